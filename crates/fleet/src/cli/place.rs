//! Where a command trains: in this process alone, with servers and workers inside it, or as one process of a job.
//!
//! The launcher's environment decides about the last, the command line about the rest. What a worker does is the same
//! everywhere; this knows which workers this process is, where their tables are, and how they add up their figures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openfleet_dist::{Cluster, Reduce};
use openfleet_engine::Minimize;

use super::Outcome;
use super::cluster_choice::ClusterChoice;
use crate::error::Result;
use crate::fleet::Fleet;
use crate::local_cluster::LocalCluster;
use crate::role;
use crate::variables::Variables;

/// The process of a job that the environment makes this one; `None` if it makes it none.
pub(crate) fn launched() -> Result<Option<Fleet>> {
    if role::is_launched(&Variables::of_process()) { Fleet::init(None).map(Some) } else { Ok(None) }
}

/// A server's whole life: it needs neither files nor a model, but perhaps a checkpoint to continue from. Says whether it was
/// asked to stop before its workers had departed: that is no good end.
pub(crate) fn serve(fleet: &Fleet, stop: &AtomicBool, resume: Option<&str>) -> Result<Outcome> {
    fleet.resume_server(resume)?;
    interruptible(fleet, stop, || fleet.run_server())?;
    Ok(if fleet.is_done() { Outcome::Done } else { Outcome::Interrupted })
}

/// Where training happens.
pub(crate) enum Place {
    /// One process, its tables inside it.
    Alone,
    /// Servers and workers, all in this process.
    Inside(Box<LocalCluster>, Box<ClusterChoice>),
    /// One worker of a job.
    Job(Box<Fleet>),
}

impl Place {
    /// Starts the servers of this process, or finds those of the job.
    pub(crate) fn prepare(
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
                Ok(Place::Job(Box::new(fleet)))
            }
            (None, Some(choice)) => {
                let (servers, workers) = (choice.servers, choice.workers);
                let cluster = LocalCluster::start(choice.strategy, servers, workers, threads, choice.over_sockets)?;
                if let Some(checkpoint) = resume {
                    cluster.resume_from(checkpoint)?;
                }
                Ok(Place::Inside(Box::new(cluster), Box::new(choice)))
            }
            (_, None) => Ok(Place::Alone),
        }
    }

    /// The ranks of the workers in this process.
    pub(crate) fn ranks(&self) -> std::ops::Range<usize> {
        match self {
            Place::Alone => 0..1,
            Place::Inside(_, choice) => 0..choice.workers as usize,
            Place::Job(fleet) => {
                let rank = fleet.topology().rank();
                rank..rank + 1
            }
        }
    }

    /// Workers in all.
    pub(crate) fn worker_count(&self) -> usize {
        match self {
            Place::Alone => 1,
            Place::Inside(_, choice) => choice.workers as usize,
            Place::Job(fleet) => fleet.worker_num(),
        }
    }

    /// Whether this process speaks for all.
    pub(crate) fn speaks(&self) -> bool {
        self.ranks().start == 0
    }

    /// A worker's servers.
    pub(crate) fn cluster(&self, rank: usize) -> Result<Option<Arc<Cluster>>> {
        match self {
            Place::Alone => Ok(None),
            Place::Inside(cluster, _) => Ok(Some(Arc::new(cluster.worker(rank as u32)))),
            Place::Job(fleet) => fleet.cluster(),
        }
    }

    /// Makes the values of all processes that train one.
    pub(crate) fn all_reduce(&self, op: Reduce, values: &mut [f64]) -> Result<()> {
        match self {
            Place::Job(fleet) => fleet.all_reduce(op, values),
            Place::Alone | Place::Inside(..) => Ok(()),
        }
    }

    /// Tells the launcher how far training has come.
    pub(crate) fn tell_launcher(&self, samples: u64, samples_per_second: f64) {
        if let Place::Job(fleet) = self {
            fleet.tell_launcher("training", Some(samples), Some(samples_per_second));
        }
    }

    /// One line for people, where there is something to say that was not said yet.
    pub(crate) fn describe(&self) -> Option<String> {
        match self {
            Place::Inside(_, choice) => Some(choice.describe()),
            Place::Alone | Place::Job(_) => None,
        }
    }

    /// Whether a worker that was asked to stop should end at once, because it will be started again and continue: it is one
    /// process of a job that goes on.
    pub(crate) fn ends_at_once(&self) -> bool {
        matches!(self, Place::Job(fleet) if !fleet.is_job_ending())
    }

    /// The workers of this process are done.
    pub(crate) fn leave(&self, clusters: &[Arc<Cluster>]) -> Result<()> {
        match self {
            Place::Alone => Ok(()),
            Place::Inside(..) => Ok(clusters.iter().try_for_each(|cluster| cluster.close())?),
            Place::Job(fleet) => fleet.stop_worker(),
        }
    }
}

/// Does something that waits for others; a stop that is asked for meanwhile ends the wait.
fn interruptible<T>(fleet: &Fleet, stop: &AtomicBool, wait: impl FnOnce() -> T) -> T {
    const LOOK_EVERY: Duration = Duration::from_millis(50);
    let over = AtomicBool::new(false);
    let handle = fleet.stop_handle();
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if stop.load(Ordering::Relaxed) {
                    handle.stop();
                }
                std::thread::park_timeout(LOOK_EVERY);
            }
        });
        let outcome = wait();
        over.store(true, Ordering::Relaxed);
        watcher.thread().unpark();
        outcome
    })
}
