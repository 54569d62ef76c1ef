//! MPI between the ranks of a job, for networks on which an MPI library is faster than TCP.
//!
//! Only bytes from one rank to another go through MPI. The algorithms are our own, so a job has the same bits as over TCP.
//!
//! The launcher of MPI watches the processes: when one ends without departing, it ends the others. So there are no heartbeats
//! here, and no secret: whoever can start a process of the job is trusted.
//!
//! The thread of the [`RankGroup`](super::RankGroup) opens, uses and closes the library; [`Transport::abort`] may come from any
//! thread. A lock keeps their calls apart, so the library has to support `MPI_THREAD_SERIALIZED`.

use std::sync::Arc;
use std::time::Duration;

use mpi::Threading;
use mpi::environment::{self, Universe};
use mpi::point_to_point::{Destination, Source};
use mpi::request::{self, Request, Scope};
use mpi::topology::{Communicator, SimpleCommunicator};
use parking_lot::Mutex;

use super::transport::Transport;
use crate::error::{Error, Result};

/// Distinguishes our messages from those of a program that uses MPI itself. The standard allows tags up to 32767.
const TAG: i32 = 0x4f46;
/// Longest message: MPI counts bytes in a C `int`.
const LONGEST: usize = 1 << 30;
/// How often a wait asks the library before it yields the core, and then before it sleeps.
const SPINS: u32 = 200;
const YIELDS: u32 = 2_000;
/// Longest sleep between two questions: other ranks compute while this one waits, perhaps on the same cores.
const LONGEST_SLEEP: Duration = Duration::from_micros(500);
/// How long a process that has left without departing may take to print its own error and end.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// One rank of an MPI job.
pub struct MpiTransport {
    rank: usize,
    size: usize,
    library: Arc<Mutex<Library>>,
}

/// Locked during every call of the library.
struct Library {
    /// `None` if the program has initialised MPI itself, and after the end.
    universe: Option<Universe>,
}

impl Drop for Library {
    fn drop(&mut self) {
        // Finalizing waits for the other ranks: only those that have all departed do so, in `close`.
        std::mem::forget(self.universe.take());
    }
}

impl MpiTransport {
    /// Initialises MPI, which waits for the other ranks. If the program has done so already, this uses its library and does not
    /// finalize it.
    ///
    /// # Errors
    /// If this process is another rank in MPI than in the job, or the library cannot be used by the threads of this process.
    pub fn open(rank: usize, size: usize) -> Result<Self> {
        if environment::is_finalized() {
            return Err(Error::MpiEnded);
        }
        let (universe, provided, needed) = match mpi::initialize_with_threading(Threading::Serialized) {
            Some((universe, provided)) => (Some(universe), provided, Threading::Serialized),
            // Its calls may come at any time.
            None => (None, environment::threading_support(), Threading::Multiple),
        };
        let library = Arc::new(Mutex::new(Library { universe }));
        if provided < needed {
            return Err(Error::MpiThreads { needed: level(needed), provided: level(provided) });
        }
        let world = SimpleCommunicator::world();
        let (mpi_rank, mpi_size) = (world.rank() as usize, world.size() as usize);
        if (mpi_rank, mpi_size) != (rank, size) {
            return Err(Error::MpiRank { rank, size, mpi_rank, mpi_size });
        }
        Ok(MpiTransport { rank, size, library })
    }
}

impl Transport for MpiTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn exchange(&self, to: usize, send: &[u8], from: usize, receive: &mut [u8]) -> Result<()> {
        let mut sends = send.chunks(LONGEST);
        let mut receives = receive.chunks_mut(LONGEST);
        loop {
            let (send, receive) = (sends.next(), receives.next());
            if send.is_none() && receive.is_none() {
                return Ok(());
            }
            request::scope(|scope| {
                let world = SimpleCommunicator::world();
                let calls = self.library.lock();
                let mut receiving = receive
                    .map(|bytes| world.process_at_rank(from as i32).immediate_receive_into_with_tag(scope, bytes, TAG));
                let mut sending =
                    send.map(|bytes| world.process_at_rank(to as i32).immediate_send_with_tag(scope, bytes, TAG));
                drop(calls);
                let mut pause = Pause::default();
                loop {
                    let calls = self.library.lock();
                    receiving = receiving.and_then(unfinished);
                    sending = sending.and_then(unfinished);
                    drop(calls);
                    if receiving.is_none() && sending.is_none() {
                        return;
                    }
                    pause.wait();
                }
            });
        }
    }

    /// Does not return: it ends all processes of the job.
    fn abort(&self, reason: &str) {
        end_job(&self.library, self.rank, reason);
    }

    /// The process may be about to print why it ends, which a launcher of MPI answers by ending the job. Only if it continues
    /// without departing does this end the job.
    fn abandon(&self, reason: &str) {
        let (library, rank, text) = (self.library.clone(), self.rank, reason.to_owned());
        let end = move || {
            std::thread::sleep(LAST_WORDS);
            end_job(&library, rank, &text);
        };
        if std::thread::Builder::new().name("openfleet-abort".into()).spawn(end).is_err() {
            self.abort(reason);
        }
    }

    fn close(&self) {
        drop(self.library.lock().universe.take());
    }
}

/// The request, unless it is complete.
fn unfinished<'a, D: ?Sized, S: Scope<'a>>(request: Request<'a, D, S>) -> Option<Request<'a, D, S>> {
    request.test().err()
}

#[allow(clippy::print_stderr, reason = "the process ends here, so nobody else can print the reason")]
fn end_job(library: &Mutex<Library>, rank: usize, reason: &str) {
    let _calls = library.lock();
    if environment::is_finalized() {
        return;
    }
    eprintln!("rank {rank} ends the job: {reason}");
    SimpleCommunicator::world().abort(1);
}

/// The name of a level in the standard.
fn level(threading: Threading) -> &'static str {
    match threading {
        Threading::Single => "MPI_THREAD_SINGLE",
        Threading::Funneled => "MPI_THREAD_FUNNELED",
        Threading::Serialized => "MPI_THREAD_SERIALIZED",
        Threading::Multiple => "MPI_THREAD_MULTIPLE",
    }
}

/// The time between two questions of a wait: none at first, because most messages come soon.
#[derive(Default)]
struct Pause {
    asked: u32,
}

impl Pause {
    fn wait(&mut self) {
        self.asked = self.asked.saturating_add(1);
        match self.asked {
            0..SPINS => std::hint::spin_loop(),
            SPINS..YIELDS => std::thread::yield_now(),
            more => std::thread::sleep(LONGEST_SLEEP.min(Duration::from_micros(u64::from(more - YIELDS) + 1))),
        }
    }
}
