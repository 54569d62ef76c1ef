//! How a worker joins a collective job.

use std::sync::{Arc, Weak};
use std::time::Duration;

use openfleet_core::strategy::{CollectiveSettings, ModeSettings, Strategy};
use openfleet_dist::collective::{Element, InProcess, MpiTransport, RankGroup, Rendezvous, Standby};
use openfleet_dist::session::Identity;
use openfleet_engine::{Executor, Program, Scope};
use parking_lot::Mutex;

use super::{Fleet, Others, Stage};
use crate::cli::output::plural;
use crate::error::{Error, Result};
use crate::role::{CollectiveBackend, ReservedPort};

/// A rank that gives no sign of life for this long is lost.
const SILENCE: Duration = Duration::from_secs(5);

impl Fleet {
    /// Waits for the other ranks and connects to them. `reserved` is the port that rank 0 listens on, if it was chosen for it.
    pub(super) fn join_ranks(&self, reserved: Option<ReservedPort>) -> Result<Arc<RankGroup>> {
        let group = Arc::new(self.connect_ranks(reserved)?);
        let standby: Arc<StandbyRank> = Arc::new(StandbyRank {
            group: Arc::downgrade(&group),
            trained: self.trained.clone(),
            scopes: self.scopes.clone(),
            strategy: self.strategy.clone(),
            return_point: self.return_point.clone(),
            executor: Mutex::default(),
        });
        let weak: Weak<StandbyRank> = Arc::downgrade(&standby);
        group.set_standby(weak);
        *self.standby.lock() = Some(standby);
        Ok(group)
    }

    fn connect_ranks(&self, reserved: Option<ReservedPort>) -> Result<RankGroup> {
        let topology = &self.topology;
        if topology.worker_count() == 1 {
            let alone = InProcess::group(1).pop().map(RankGroup::new);
            let alone = alone.ok_or(Error::TooEarly { call: "init_worker", missing: "init" })?;
            self.agree_on_return_point(&alone)?;
            return Ok(alone);
        }
        if self.settings.server_tls.is_some() || self.settings.worker_tls.is_some() {
            return Err(Error::Unavailable { what: "TLS between the ranks of a collective job" });
        }
        let (group, by) = match self.settings.collective_backend {
            CollectiveBackend::Tcp => (self.join_by_tcp(reserved)?, ""),
            CollectiveBackend::Mpi => (self.join_by_mpi()?, " by MPI"),
        };
        let others = plural(topology.worker_count() - 1, "other rank");
        self.notices.print(&format!("{}: connected to {others}{by}", self.name()));
        self.agree_on_return_point(&group)?;
        Ok(group)
    }

    fn join_by_mpi(&self) -> Result<RankGroup> {
        let (rank, size) = (self.topology.rank(), self.topology.worker_count());
        Ok(RankGroup::open(move || MpiTransport::open(rank, size))?)
    }

    fn join_by_tcp(&self, reserved: Option<ReservedPort>) -> Result<RankGroup> {
        let topology = &self.topology;
        let Some(meeting) = topology.rendezvous().or(topology.worker_endpoints().first()).cloned() else {
            return Err(Error::NoMeeting { workers: topology.worker_count() });
        };
        self.warn_without_secret(std::slice::from_ref(&meeting));
        let own = topology.own_endpoint();
        let listens_at = if topology.rank() == 0 { Some(&meeting) } else { own };
        let rendezvous = Rendezvous {
            identity: Identity {
                job: self.settings.job.to_string(),
                secret: self.settings.secret.clone(),
                rank: topology.rank() as u32,
                incarnation: self.settings.incarnation,
            },
            size: topology.worker_count() as u32,
            bind: listens_at.map(|endpoint| self.bind_address(endpoint).to_owned()),
            port: own.map_or(0, |endpoint| endpoint.port()),
            host: own.map(|endpoint| endpoint.host().to_owned()),
            meeting,
            wait_limit: self.settings.wait_limit,
            silence: SILENCE,
            trusts_private_network: self.trusts_private_network,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|source| Error::Runtime { source })?;
        let mut interrupted = self.interrupted.subscribe();
        let name = self.name();
        let notice = |line: &str| self.notices.print(&format!("{name}: {line}"));
        let transport = runtime.block_on(async {
            // Released at the last moment, so that no other process takes the port.
            drop(reserved);
            tokio::select! {
                joined = rendezvous.join(&notice) => Ok(joined?),
                _ = interrupted.wait_for(|interrupted| *interrupted) => Err(Error::WaitInterrupted),
            }
        })?;
        Ok(RankGroup::new(transport))
    }

    /// All ranks of a restarted job return to the checkpoint that the launcher of rank 0 knows: it is on the machine of the
    /// rank that saves. The identity of the run is that of rank 0 too.
    fn agree_on_return_point(&self, group: &RankGroup) -> Result<()> {
        let own = (&self.settings.run, &self.settings.resume);
        let own = serde_json::to_vec(&own).unwrap_or_default();
        let all = group.all_gather(&own)?;
        let first = all.first().and_then(|first| serde_json::from_slice(first).ok());
        let (run, resume): (Option<String>, Option<String>) = first.unwrap_or_default();
        *self.run.lock() = run;
        if let Some(address) = resume {
            self.notices.print(&format!("{}: returns to the checkpoint `{address}`", self.name()));
            *self.return_point.lock() = Some(address);
        }
        Ok(())
    }

    /// Whether this rank was restarted and repeats what its script had done before. `what` is not done again; a line says so.
    pub fn skips_repeated(&self, what: impl std::fmt::Display) -> bool {
        let skips = matches!(&*self.stage.lock(), Stage::InGroup(group) if group.replays());
        if skips {
            self.notices
                .print(&format!("{}: {what} is skipped: it was done before the job was restarted", self.name()));
        }
        skips
    }

    /// The settings of a collective job; the defaults if `distributed_optimizer` was not called.
    pub(super) fn collective_settings(&self) -> CollectiveSettings {
        settings_of(&self.strategy)
    }

    /// Copies the bytes of worker `root` to all workers of a collective job. All pass the same number of bytes.
    pub fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<()> {
        match self.working("broadcast")? {
            Others::Ranks(group) => Ok(group.broadcast(root, bytes)?),
            Others::Nobody => Ok(()),
            Others::Servers(_) => Err(Error::Unavailable { what: "`broadcast` in a job with servers" }),
        }
    }

    /// Gathers the bytes of all workers, in rank order; their lengths may differ.
    pub fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        match self.working("all_gather")? {
            Others::Ranks(group) => Ok(group.all_gather(bytes)?),
            Others::Nobody => Ok(vec![bytes.to_vec()]),
            Others::Servers(_) => Err(Error::Unavailable { what: "`all_gather` in a job with servers" }),
        }
    }

    /// Reduces the numbers of all workers element by element, of which each worker gets its own part.
    pub fn reduce_scatter<T: Element>(&self, op: openfleet_dist::Reduce, values: &[T]) -> Result<Vec<T>> {
        match self.working("reduce_scatter")? {
            Others::Ranks(group) => Ok(group.reduce_scatter(op, values)?),
            Others::Nobody => Ok(values.to_vec()),
            Others::Servers(_) => Err(Error::Unavailable { what: "`reduce_scatter` in a job with servers" }),
        }
    }
}

fn settings_of(strategy: &Mutex<Option<Strategy>>) -> CollectiveSettings {
    match strategy.lock().as_ref().map(|strategy| *strategy.settings()) {
        Some(ModeSettings::Collective(settings)) => settings,
        _ => CollectiveSettings::default(),
    }
}

/// Compiles the job's program on a rank that has not trained it, when the other ranks train while this one waits for them.
pub(super) struct StandbyRank {
    group: Weak<RankGroup>,
    trained: Arc<Mutex<Option<Arc<Program>>>>,
    scopes: Arc<Mutex<Vec<Weak<Scope>>>>,
    strategy: Arc<Mutex<Option<Strategy>>>,
    return_point: Arc<Mutex<Option<String>>>,
    /// Has the compiled program.
    executor: Mutex<Option<Executor>>,
}

impl Standby for StandbyRank {
    fn register(&self, program: u64) {
        let trained = self.trained.lock().clone().filter(|trained| trained.fingerprint() == program);
        let scope = self.scopes.lock().iter().find_map(Weak::upgrade);
        let (Some(trained), Some(scope), Some(group)) = (trained, scope, self.group.upgrade()) else { return };
        let executor = Executor::in_group(scope, group, settings_of(&self.strategy));
        let mut executor = executor.resuming_from(self.return_point.clone());
        // Fails if parameters have no first values here; then the group says that this rank cannot take part.
        *self.executor.lock() = executor.prepare_to_take_part(&trained).is_ok().then_some(executor);
    }
}
