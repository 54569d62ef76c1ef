//! TCP between the ranks of a job: one connection per pair of ranks, and one from every rank to rank 0 that carries only signs
//! of life ([`Watch`]).

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};

use super::transport::Transport;
use super::watch::Watch;
use crate::error::{Error, Result};

/// How long a rank whose connection broke waits to be told which process has ended.
const VERDICT: Duration = Duration::from_secs(3);
/// How long a wait for a socket lasts before the verdict is checked again.
const POLL_MILLIS: u16 = 200;

/// The connections of one rank.
pub struct TcpTransport {
    rank: usize,
    /// By rank; `None` for this one.
    peers: Arc<Vec<Option<TcpStream>>>,
    watch: Watch,
}

impl TcpTransport {
    /// Connections that have been set up, by rank, and the watch over the ranks.
    pub(super) fn new(rank: usize, peers: Vec<Option<TcpStream>>, watch: Watch) -> std::io::Result<Self> {
        for peer in peers.iter().flatten() {
            peer.set_nonblocking(true)?;
            peer.set_nodelay(true)?;
            detect_broken(peer)?;
        }
        let peers = Arc::new(peers);
        let sockets = peers.clone();
        watch.cut_with(move || {
            for socket in sockets.iter().flatten() {
                let _ = socket.shutdown(Shutdown::Both);
            }
        });
        Ok(TcpTransport { rank, peers, watch })
    }

    fn peer(&self, rank: usize) -> Result<&TcpStream> {
        let missing = || Error::RankLost { rank: rank as u32, reason: "there is no connection to it".into() };
        self.peers.get(rank).and_then(Option::as_ref).ok_or_else(missing)
    }

    /// The error of a broken connection. The process at the other end may have ended because of a third one: rank 0 knows.
    fn lost(&self, rank: usize, reason: String) -> Error {
        self.watch.verdict_within(VERDICT, rank, reason)
    }
}

/// Without these a connection whose network has gone is noticed only after 15 minutes.
fn detect_broken(socket: &TcpStream) -> std::io::Result<()> {
    setsockopt(socket, sockopt::KeepAlive, &true)?;
    #[cfg(target_os = "linux")]
    {
        setsockopt(socket, sockopt::TcpKeepIdle, &5)?;
        setsockopt(socket, sockopt::TcpKeepInterval, &5)?;
        setsockopt(socket, sockopt::TcpKeepCount, &4)?;
        setsockopt(socket, sockopt::TcpUserTimeout, &25_000)?;
    }
    Ok(())
}

impl Transport for TcpTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.peers.len()
    }

    fn exchange(&self, to: usize, mut send: &[u8], from: usize, receive: &mut [u8]) -> Result<()> {
        let mut received = 0;
        while !send.is_empty() || received < receive.len() {
            let mut is_blocked = true;
            if !send.is_empty() {
                match self.peer(to)?.write(send) {
                    Ok(count) => {
                        send = &send[count..];
                        is_blocked = count == 0;
                    }
                    Err(error) if is_temporary(&error) => {}
                    Err(error) => return Err(self.lost(to, error.to_string())),
                }
            }
            if received < receive.len() {
                match self.peer(from)?.read(&mut receive[received..]) {
                    Ok(0) => return Err(self.lost(from, "its connection was closed".into())),
                    Ok(count) => {
                        received += count;
                        is_blocked = false;
                    }
                    Err(error) if is_temporary(&error) => {}
                    Err(error) => return Err(self.lost(from, error.to_string())),
                }
            }
            if is_blocked {
                let mut waits = Vec::with_capacity(2);
                if !send.is_empty() {
                    waits.push(PollFd::new(self.peer(to)?.as_fd(), PollFlags::POLLOUT));
                }
                if received < receive.len() {
                    waits.push(PollFd::new(self.peer(from)?.as_fd(), PollFlags::POLLIN));
                }
                // An interrupted or failed poll shows in the next read or write.
                let _ = poll(&mut waits, PollTimeout::from(POLL_MILLIS));
                if let Some(error) = self.watch.verdict() {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn abort(&self, reason: &str) {
        self.watch.abort(self.rank, reason);
    }

    fn close(&self) {
        self.watch.end();
    }
}

fn is_temporary(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
