//! Signs of life between the ranks: who has ended, told to all within seconds.
//!
//! Every rank has one connection to rank 0 for this. Both sides send a heartbeat every second, from a thread of their own, so
//! a long computation is not silence. Rank 0 sees a rank whose connection closes or is silent, and tells all others which one
//! it was; if rank 0 itself ends, every rank sees that. Whoever learns of a lost rank cuts its data connections, so that no
//! exchange waits for it.
//!
//! A message is `kind u8 | rank u32 | length of the text u16 | text`, little-endian.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Condvar, Mutex};

use crate::error::Error;

const HEARTBEAT: u8 = 1;
/// A rank is lost; the text is the reason.
const LOST: u8 = 2;
/// The sender departs: its connection may close.
const DEPARTED: u8 = 3;
const HEADER: usize = 7;
/// Longest text that is sent.
const LONGEST: usize = 1000;
/// Time between two heartbeats.
const BEAT: Duration = Duration::from_secs(1);
/// How often the thread looks at the clock and at what other threads ask for.
const TICK_MILLIS: u16 = 100;

/// The thread that watches the other ranks, and what it has found.
pub(super) struct Watch {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    /// The first rank that was lost, and why.
    verdict: Mutex<Option<(usize, String)>>,
    decided: Condvar,
    /// The job is over: connections may close.
    ending: AtomicBool,
    /// Cuts the data connections, once there are some.
    cut: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
}

impl Shared {
    /// Records the first lost rank; later ones are a consequence.
    fn decide(&self, rank: usize, reason: &str) {
        let mut verdict = self.verdict.lock();
        if verdict.is_none() && !self.ending.load(Ordering::SeqCst) {
            *verdict = Some((rank, reason.to_owned()));
            self.decided.notify_all();
            if let Some(cut) = self.cut.lock().as_ref() {
                cut();
            }
        }
    }

    fn verdict(&self) -> Option<Error> {
        let verdict = self.verdict.lock();
        verdict.as_ref().map(|(rank, reason)| Error::RankLost { rank: *rank as u32, reason: reason.clone() })
    }
}

impl Watch {
    /// Starts to watch `others`: all other ranks on rank 0, rank 0 on the others.
    pub(super) fn start(rank: usize, others: Vec<(usize, TcpStream)>, silence: Duration) -> std::io::Result<Self> {
        for (_, stream) in &others {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
        }
        let shared = Arc::new(Shared {
            verdict: Mutex::default(),
            decided: Condvar::new(),
            ending: AtomicBool::new(false),
            cut: Mutex::default(),
        });
        let now = Instant::now();
        let others = others.into_iter().map(|(rank, stream)| Peer::new(rank, stream, now)).collect();
        let run = Run { rank, others, silence, shared: shared.clone(), told: false };
        let thread = std::thread::Builder::new().name("openfleet-watch".into()).spawn(move || run.run())?;
        Ok(Watch { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Sets the function that closes the data connections when a rank is lost.
    pub(super) fn cut_with(&self, cut: impl Fn() + Send + Sync + 'static) {
        let verdict = self.shared.verdict.lock();
        if verdict.is_some() {
            cut();
        }
        *self.shared.cut.lock() = Some(Box::new(cut));
    }

    /// The error of a rank that is known to be lost.
    pub(super) fn verdict(&self) -> Option<Error> {
        self.shared.verdict()
    }

    /// Waits to be told which rank was lost first. If nobody says so in time, it is `suspect`, for `reason`.
    pub(super) fn verdict_within(&self, limit: Duration, suspect: usize, reason: String) -> Error {
        let mut verdict = self.shared.verdict.lock();
        if verdict.is_none() {
            self.shared.decided.wait_for(&mut verdict, limit);
        }
        drop(verdict);
        self.shared.decide(suspect, &reason);
        self.verdict().unwrap_or(Error::RankLost { rank: suspect as u32, reason })
    }

    /// Tells all ranks that `rank` cannot continue.
    pub(super) fn abort(&self, rank: usize, reason: &str) {
        self.shared.decide(rank, reason);
    }

    /// Tells the other side that this rank departs, and ends the thread.
    pub(super) fn end(&self) {
        self.shared.ending.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Without `end` the job was not over for this rank: closing its connections tells the others.
        self.shared.decide(usize::MAX, "this process has left the job");
        self.end();
    }
}

/// The watched end of a connection.
struct Peer {
    rank: usize,
    stream: TcpStream,
    unread: Vec<u8>,
    heard: Instant,
    departed: bool,
}

impl Peer {
    fn new(rank: usize, stream: TcpStream, now: Instant) -> Self {
        Peer { rank, stream, unread: Vec::new(), heard: now, departed: false }
    }

    fn send(&mut self, kind: u8, rank: usize, text: &str) {
        let text = &text.as_bytes()[..text.len().min(LONGEST)];
        let mut message = vec![kind];
        message.extend((rank as u32).to_le_bytes());
        message.extend((text.len() as u16).to_le_bytes());
        message.extend(text);
        // A connection that cannot take a few bytes is seen as silent or closed by the reader.
        let _ = self.stream.write_all(&message);
    }

    /// Reads what has arrived. `Err` with the reason if the connection is over.
    fn read(&mut self, now: Instant) -> std::result::Result<(), String> {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err("its process has ended, or the connection to it was closed".into()),
                Ok(count) => {
                    self.heard = now;
                    self.unread.extend(&bytes[..count]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// The next whole message: kind, rank, text.
    fn message(&mut self) -> Option<(u8, usize, String)> {
        let length = u16::from_le_bytes(self.unread.get(5..HEADER)?.try_into().ok()?) as usize;
        let text = String::from_utf8_lossy(self.unread.get(HEADER..HEADER + length)?).into_owned();
        let (kind, rank) = (self.unread[0], u32::from_le_bytes(self.unread[1..5].try_into().ok()?));
        self.unread.drain(..HEADER + length);
        Some((kind, rank as usize, text))
    }
}

/// What the thread owns.
struct Run {
    rank: usize,
    others: Vec<Peer>,
    silence: Duration,
    shared: Arc<Shared>,
    /// Whether the others were told about the lost rank.
    told: bool,
}

impl Run {
    fn run(mut self) {
        let mut next_beat = Instant::now();
        loop {
            let mut waits: Vec<_> = self
                .others
                .iter()
                .filter(|peer| !peer.departed)
                .map(|peer| PollFd::new(peer.stream.as_fd(), PollFlags::POLLIN))
                .collect();
            let _ = poll(&mut waits, PollTimeout::from(TICK_MILLIS));
            drop(waits);
            let now = Instant::now();
            if now >= next_beat {
                self.others.iter_mut().for_each(|peer| peer.send(HEARTBEAT, 0, ""));
                next_beat = now + BEAT;
            }
            self.listen(now);
            let verdict = self.shared.verdict.lock().clone();
            if let Some((lost, reason)) = verdict.filter(|_| !std::mem::replace(&mut self.told, true)) {
                // A rank that ends itself only closes its connections.
                for peer in self.others.iter_mut().filter(|peer| peer.rank != lost && lost != usize::MAX) {
                    peer.send(LOST, lost, &reason);
                }
            }
            if self.shared.ending.load(Ordering::SeqCst) {
                let is_lost = self.shared.verdict.lock().is_some();
                if !is_lost {
                    self.others.iter_mut().for_each(|peer| peer.send(DEPARTED, 0, ""));
                }
                return;
            }
        }
    }

    fn listen(&mut self, now: Instant) {
        let (rank, silence) = (self.rank, self.silence);
        for peer in self.others.iter_mut().filter(|peer| !peer.departed) {
            let state = peer.read(now);
            while let Some((kind, lost, text)) = peer.message() {
                match kind {
                    LOST if lost != rank => self.shared.decide(lost, &text),
                    LOST => self.shared.decide(lost, &format!("the others gave it up: {text}")),
                    DEPARTED => peer.departed = true,
                    _ => {}
                }
            }
            let silent = now.duration_since(peer.heard);
            match state {
                _ if peer.departed => {}
                Err(reason) => self.shared.decide(peer.rank, &reason),
                Ok(()) if silent > silence => {
                    self.shared.decide(peer.rank, &format!("it has been silent for {} s", silent.as_secs()));
                }
                Ok(()) => {}
            }
        }
    }
}
