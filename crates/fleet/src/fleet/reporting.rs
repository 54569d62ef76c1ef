//! How a process of a job tells its launcher about itself and about peers that it misses, and learns who has departed.
//!
//! A thread looks about once a second. A process that was frozen itself would take everybody for silent when it wakes: after
//! a gap between two looks nothing is reported for a while.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use openfleet_core::topology::{Endpoint, Role};
use openfleet_dist::State;
use openfleet_dist::notices::Notices;
use parking_lot::Mutex;

use crate::job_file::JobFile;
use crate::progress::{Progress, Silent};

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// A longer gap between two looks means that this process itself was frozen.
const FROZEN: Duration = Duration::from_secs(3);
/// Silence that is worth a report.
const SILENT: f64 = 2.0;

/// What is reported, by whoever has something to report.
#[derive(Clone, Default)]
pub(super) struct Report {
    file: Option<PathBuf>,
    progress: Arc<Mutex<Progress>>,
}

impl Report {
    /// To a file, if there is somebody who wants to know.
    pub(super) fn to(file: Option<PathBuf>) -> Self {
        Report { file, progress: Arc::default() }
    }

    /// Changes what is reported, and reports it. Not worth failing for.
    pub(super) fn update(&self, change: impl FnOnce(&mut Progress)) {
        let mut progress = self.progress.lock();
        let before = progress.clone();
        change(&mut progress);
        if let Some(file) = self.file.as_ref().filter(|_| *progress != before) {
            let _ = progress.write(file);
        }
    }
}

/// Looks until it is dropped.
pub(super) struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    fn start(mut look: impl FnMut(bool) + Send + 'static) -> Self {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name("report".to_owned()).spawn(move || {
            let (mut looked, mut woke) = (Instant::now(), None::<Instant>);
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                if looked.elapsed() > FROZEN {
                    woke = Some(Instant::now());
                }
                looked = Instant::now();
                look(woke.is_none_or(|woke| woke.elapsed() > FROZEN));
            }
        });
        // Without a thread nothing is reported, and the job is none the worse.
        Watch { stop: Some(stop), thread: thread.ok() }
    }

    /// A worker's: reports the peers it misses.
    pub(super) fn of_worker(report: Report, notices: Arc<Notices>, servers: Vec<Endpoint>) -> Self {
        Watch::start(move |is_trusted| {
            let workers = notices.workers().into_iter().map(|(rank, since)| (Role::Worker, rank as usize, since));
            let missing = notices.servers();
            let rank = |name: &str| servers.iter().position(|server| server.to_string() == name);
            let servers = missing.iter().filter_map(|(name, since)| Some((Role::Server, rank(name)?, *since)));
            let silent = workers.chain(servers).map(|(role, rank, since)| (role, rank, since.as_secs_f64()));
            let silent = if is_trusted { silents(silent) } else { Vec::new() };
            report.update(|progress| progress.silent = silent);
        })
    }

    /// A server's: reports how far it is, what it would return to, and the workers it misses; and is told of workers whose
    /// processes ended well without having departed.
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
