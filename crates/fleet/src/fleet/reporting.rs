//! What a process of a job reports to its launcher: its progress and the peers that are silent. It also reads which workers
//! have departed.
//!
//! A thread polls once per second. A process that was frozen would take all peers for silent when it wakes up, so after a gap
//! between two polls it reports no silent peers for a while.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use openfleet_core::topology::{Endpoint, Role};
use openfleet_dist::State;
use openfleet_dist::missing_peers::MissingPeers;
use parking_lot::Mutex;

use crate::job_file::JobFile;
use crate::progress::{Progress, Silent};

/// Time between two polls.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A longer gap between two polls means that this process was frozen.
const FROZEN: Duration = Duration::from_secs(3);
/// Seconds of silence after which a peer is reported.
const SILENT: f64 = 2.0;

/// The current report of this process.
#[derive(Clone, Default)]
pub(super) struct Report {
    file: Option<PathBuf>,
    progress: Arc<Mutex<Progress>>,
}

impl Report {
    /// Writes to `file`, if the launcher named one.
    pub(super) fn to(file: Option<PathBuf>) -> Self {
        Report { file, progress: Arc::default() }
    }

    /// Changes the report and writes it if it differs. A failure to write is ignored.
    pub(super) fn update(&self, change: impl FnOnce(&mut Progress)) {
        let mut progress = self.progress.lock();
        let before = progress.clone();
        change(&mut progress);
        if let Some(file) = self.file.as_ref().filter(|_| *progress != before) {
            let _ = progress.write(file);
        }
    }
}

/// The polling thread, which ends on drop.
pub(super) struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    fn start(mut poll: impl FnMut(bool) + Send + 'static) -> Self {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name("report".to_owned()).spawn(move || {
            let (mut polled, mut woke) = (Instant::now(), None::<Instant>);
            while stopped.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                if polled.elapsed() > FROZEN {
                    woke = Some(Instant::now());
                }
                polled = Instant::now();
                poll(woke.is_none_or(|woke| woke.elapsed() > FROZEN));
            }
        });
        // Without the thread nothing is reported, but the job still works.
        Watch { stop: Some(stop), thread: thread.ok() }
    }

    /// For a worker: reports silent peers.
    pub(super) fn of_worker(report: Report, peers: Arc<MissingPeers>, servers: Vec<Endpoint>) -> Self {
        Watch::start(move |is_trusted| {
            let workers = peers.workers().into_iter().map(|(rank, since)| (Role::Worker, rank as usize, since));
            let missing = peers.servers();
            let rank = |name: &str| servers.iter().position(|server| server.to_string() == name);
            let servers = missing.iter().filter_map(|(name, since)| Some((Role::Server, rank(name)?, *since)));
            let silent = workers.chain(servers).map(|(role, rank, since)| (role, rank, since.as_secs_f64()));
            let silent = if is_trusted { silents(silent) } else { Vec::new() };
            report.update(|progress| progress.silent = silent);
        })
    }

    /// For a server: reports its step, the checkpoint it would return to, and silent workers; marks workers as departed whose
    /// processes ended successfully without departing.
    pub(super) fn of_server(report: Report, state: Arc<State>, job_file: Option<PathBuf>, workers: u32) -> Self {
        Watch::start(move |is_trusted| {
            let absent = state.absent();
            let absent = absent.iter().map(|absent| (Role::Worker, absent.rank as usize, absent.seconds));
            let silent = if is_trusted { silents(absent) } else { Vec::new() };
            let point = state.return_point();
            report.update(|progress| {
                progress.state = Some("serving".to_owned());
                progress.step = Some(state.step());
                progress.checkpoint_step = point.as_ref().map(|cut| cut.step);
                progress.checkpoint = point.map(|cut| cut.address);
                progress.silent = silent;
            });
            let departed = job_file.as_ref().map(|file| JobFile::read(file).departed).unwrap_or_default();
            for rank in departed.into_iter().filter_map(|rank| u32::try_from(rank).ok()) {
                // Idempotent.
                let _ = state.depart(rank, workers);
            }
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn silents(peers: impl Iterator<Item = (Role, usize, f64)>) -> Vec<Silent> {
    peers.filter(|peer| peer.2 >= SILENT).map(|(role, rank, seconds)| Silent { role, rank, seconds }).collect()
}
