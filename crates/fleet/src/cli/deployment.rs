//! Where `openfleet train` trains: in this process alone, with servers and workers inside it, or as one worker of a job.
//!
//! The launcher's environment decides whether this is a process of a job; the command line decides the rest. The code of a
//! worker is the same in all three; this module knows which workers run in this process, where their tables are and how
//! they add up their figures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openfleet_core::strategy::{Mode, ModeSettings};
use openfleet_dist::collective::{InProcess, RankGroup};
use openfleet_dist::{Cluster, Reduce, SaveOptions};
use openfleet_engine::{Executor, Minimize, Program, Scope};
use openfleet_table::checkpoint::Manifest;

use super::Outcome;
use super::cluster_choice::ClusterChoice;
use crate::error::Result;
use crate::fleet::{Fleet, ProcessContext};
use crate::local_cluster::LocalCluster;
use crate::role;
use crate::variables::Variables;

/// The job's process that the environment describes; `None` if no launcher started this process. The variables of MPI and Slurm
/// do not say whether a job is collective: the command line does.
pub(crate) fn launched(is_collective: bool) -> Result<Option<Fleet>> {
    let variables = Variables::of_process();
    match role::is_launched(&variables) {
        false => Ok(None),
        true if is_collective && !role::is_explicit(&variables) => {
            Fleet::init_collective(ProcessContext::default()).map(Some)
        }
        true => Fleet::init(None).map(Some),
    }
}

/// Runs a server until its workers have departed. `resume` is a checkpoint to start from. The outcome is `Interrupted` if the
/// server was asked to stop before that.
pub(crate) fn serve(fleet: &Fleet, stop: &AtomicBool, resume: Option<&str>) -> Result<Outcome> {
    fleet.resume_server(resume)?;
    interruptible(fleet, stop, || fleet.run_server())?;
    Ok(if fleet.is_done() { Outcome::Done } else { Outcome::Interrupted })
}

/// Where training happens.
pub(crate) enum Deployment {
    /// One process that holds its own tables.
    Local,
    /// Servers and workers, all in this process.
    InProcess(Box<LocalCluster>, Box<ClusterChoice>),
    /// The ranks of a collective job, all in this process.
    Ranks(Vec<Arc<RankGroup>>, Box<ClusterChoice>),
    /// One worker of a job.
    Job(Box<Fleet>),
}

impl Deployment {
    /// Starts the servers of this process, or connects to those of the job.
    pub(crate) fn start(
        fleet: Option<Fleet>,
        choice: Option<ClusterChoice>,
        threads: usize,
        minimize: &Minimize,
        stop: &AtomicBool,
        resume: Option<&str>,
    ) -> Result<Self> {
        let threads = threads as u32;
        match (fleet, choice) {
            (Some(fleet), Some(choice)) => {
                let fleet = fleet.threads(threads);
                fleet.distributed_optimizer(minimize.clone(), &choice.options)?;
                interruptible(&fleet, stop, || fleet.init_worker())?;
                Ok(Deployment::Job(Box::new(fleet)))
            }
            (None, Some(choice)) if choice.strategy.mode() == Mode::Collective => {
                let ranks = InProcess::group(choice.workers as usize).into_iter().map(RankGroup::new).map(Arc::new);
                Ok(Deployment::Ranks(ranks.collect(), Box::new(choice)))
            }
            (None, Some(choice)) => {
                let (servers, workers) = (choice.servers, choice.workers);
                let cluster = LocalCluster::start(choice.strategy, servers, workers, threads, choice.over_sockets)?;
                if let Some(checkpoint) = resume {
                    cluster.resume_from(checkpoint)?;
                }
                Ok(Deployment::InProcess(Box::new(cluster), Box::new(choice)))
            }
            (_, None) => Ok(Deployment::Local),
        }
    }

    /// The ranks of the workers in this process.
    pub(crate) fn ranks(&self) -> std::ops::Range<usize> {
        match self {
            Deployment::Local => 0..1,
            Deployment::InProcess(_, choice) | Deployment::Ranks(_, choice) => 0..choice.workers as usize,
            Deployment::Job(fleet) => {
                let rank = fleet.topology().rank();
                rank..rank + 1
            }
        }
    }

    /// Workers of the whole job.
    pub(crate) fn worker_count(&self) -> usize {
        match self {
            Deployment::Local => 1,
            Deployment::InProcess(_, choice) | Deployment::Ranks(_, choice) => choice.workers as usize,
            Deployment::Job(fleet) => fleet.worker_num(),
        }
    }

    /// Whether the first worker runs in this process. It prints and saves for all.
    pub(crate) fn is_first_worker(&self) -> bool {
        self.ranks().start == 0
    }

    /// The servers as a worker of this process sees them; `None` without servers.
    pub(crate) fn cluster(&self, rank: usize) -> Result<Option<Arc<Cluster>>> {
        match self {
            Deployment::Local | Deployment::Ranks(..) => Ok(None),
            Deployment::InProcess(cluster, _) => Ok(Some(Arc::new(cluster.worker(rank as u32)))),
            Deployment::Job(fleet) => fleet.cluster(),
        }
    }

    /// The executor of a worker of this process.
    pub(crate) fn executor(&self, rank: usize, scope: Arc<Scope>, cluster: Option<&Arc<Cluster>>) -> Result<Executor> {
        match (self, cluster) {
            (_, Some(cluster)) => Ok(Executor::on_cluster(scope, cluster.clone())),
            (Deployment::Job(fleet), None) => fleet.executor(scope),
            (Deployment::Ranks(groups, choice), None) => match *choice.strategy.settings() {
                ModeSettings::Collective(settings) => Ok(Executor::in_group(scope, groups[rank].clone(), settings)),
                _ => Ok(Executor::new(scope)),
            },
            (Deployment::Local | Deployment::InProcess(..), None) => Ok(Executor::new(scope)),
        }
    }

    /// A rank of this process has failed: the others do not wait for it.
    pub(crate) fn fail(&self, rank: usize) {
        if let Deployment::Ranks(groups, _) = self {
            groups[rank].fail("its training failed");
        }
    }

    /// Reduces the values of all worker processes, position by position.
    pub(crate) fn all_reduce(&self, op: Reduce, values: &mut [f64]) -> Result<()> {
        match self {
            Deployment::Job(fleet) => fleet.all_reduce(op, values),
            Deployment::Local | Deployment::InProcess(..) | Deployment::Ranks(..) => Ok(()),
        }
    }

    /// Saves the job's tables, or those of this process. Called on the first worker.
    pub(crate) fn save(
        &self,
        executor: &mut Executor,
        program: &Program,
        address: &str,
        options: &SaveOptions,
    ) -> Result<()> {
        match self {
            Deployment::Job(fleet) => fleet.save_persistables_with(executor, program, address, options).map(drop),
            Deployment::Local | Deployment::InProcess(..) | Deployment::Ranks(..) => {
                Ok(executor.save(program, address, options).map(drop)?)
            }
        }
    }

    /// The options of a save with the name of the job.
    pub(crate) fn named(&self, options: SaveOptions) -> SaveOptions {
        match self {
            Deployment::Job(fleet) => fleet.named(options),
            Deployment::Local | Deployment::InProcess(..) | Deployment::Ranks(..) => options,
        }
    }

    /// Reports a checkpoint to the launcher.
    pub(crate) fn report_saved(&self, program: &Program, address: &str, manifest: &Manifest) {
        if let Deployment::Job(fleet) = self {
            fleet.report_saved(program, address, manifest);
        }
    }

    /// Reports training progress to the launcher.
    pub(crate) fn report_progress(&self, samples: u64, samples_per_second: f64) {
        if let Deployment::Job(fleet) = self {
            fleet.report_progress("training", Some(samples), Some(samples_per_second));
        }
    }

    /// One line about the servers and workers of this process; a job's `Fleet` has printed its own.
    pub(crate) fn describe(&self) -> Option<String> {
        match self {
            Deployment::InProcess(_, choice) | Deployment::Ranks(_, choice) => Some(choice.describe()),
            Deployment::Local | Deployment::Job(_) => None,
        }
    }

    /// Whether a worker that was asked to stop will be restarted by its launcher: it then ends at once, without evaluating or
    /// saving, and the job continues.
    pub(crate) fn will_be_restarted(&self) -> bool {
        matches!(self, Deployment::Job(fleet) if !fleet.is_job_ending())
    }

    /// Ends the membership of this process's workers: they are done.
    pub(crate) fn leave(&self, clusters: &[Arc<Cluster>]) -> Result<()> {
        match self {
            Deployment::Local => Ok(()),
            Deployment::Ranks(groups, _) => Ok(std::thread::scope(|scope| {
                let departing: Vec<_> = groups.iter().map(|group| scope.spawn(|| group.depart())).collect();
                departing.into_iter().try_for_each(|rank| rank.join().unwrap_or(Ok(())))
            })?),
            Deployment::InProcess(..) => Ok(clusters.iter().try_for_each(|cluster| cluster.close())?),
            Deployment::Job(fleet) => fleet.stop_worker(),
        }
    }
}

/// Runs `wait`, which waits for other processes. Setting `stop` ends the wait.
fn interruptible<T>(fleet: &Fleet, stop: &AtomicBool, wait: impl FnOnce() -> T) -> T {
    const POLL_INTERVAL: Duration = Duration::from_millis(50);
    let over = AtomicBool::new(false);
    let handle = fleet.stop_handle();
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if stop.load(Ordering::Relaxed) {
                    handle.stop();
                }
                std::thread::park_timeout(POLL_INTERVAL);
            }
        });
        let outcome = wait();
        over.store(true, Ordering::Relaxed);
        watcher.thread().unpark();
        outcome
    })
}
