//! Bytes between the ranks of a collective job: all that a backend has to provide.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};

/// Point-to-point bytes between ranks. Both sides know how many bytes an exchange has, so nothing is framed: what one rank
/// sends in one exchange, the other receives in one exchange.
pub trait Transport: Send + Sync {
    /// The rank of this process, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Sends bytes to one rank while receiving bytes from another, or the same one. Returns when all bytes have arrived and
    /// the bytes to send can be reused. An empty slice sends or receives nothing.
    ///
    /// # Errors
    /// [`Error::RankLost`] if a process of the job has ended or does not answer.
    fn exchange(&self, to: usize, send: &[u8], from: usize, receive: &mut [u8]) -> Result<()>;

    /// Ends the exchanges of all ranks with an error: this process cannot continue.
    fn abort(&self, reason: &str);

    /// This process no longer uses the transport and has not departed: the exchanges of the other ranks end with an error.
    fn abandon(&self, reason: &str) {
        self.abort(reason);
    }

    /// Closes the connections: every rank has departed. The thread that exchanges calls this.
    fn close(&self) {}
}

/// Ranks that are threads of one process.
pub struct InProcess {
    rank: usize,
    shared: Arc<Shared>,
}

struct Shared {
    size: usize,
    mail: Mutex<Mail>,
    arrived: Condvar,
}

struct Mail {
    /// Bytes on their way, by `from * size + to`.
    queues: Vec<VecDeque<u8>>,
    /// The rank that aborted, and why.
    aborted: Option<(usize, String)>,
}

impl InProcess {
    /// The transports of a whole group, in rank order.
    pub fn group(size: usize) -> Vec<InProcess> {
        let mail = Mail { queues: vec![VecDeque::new(); size * size], aborted: None };
        let shared = Arc::new(Shared { size, mail: Mutex::new(mail), arrived: Condvar::new() });
        (0..size).map(|rank| InProcess { rank, shared: shared.clone() }).collect()
    }
}

impl Transport for InProcess {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.shared.size
    }

    fn exchange(&self, to: usize, send: &[u8], from: usize, receive: &mut [u8]) -> Result<()> {
        let size = self.shared.size;
        let mut mail = self.shared.mail.lock();
        mail.queues[self.rank * size + to].extend(send);
        self.shared.arrived.notify_all();
        // Bytes that arrived before an abort are received, as from a socket.
        while mail.queues[from * size + self.rank].len() < receive.len() {
            if let Some((rank, reason)) = &mail.aborted {
                return Err(Error::RankLost { rank: *rank as u32, reason: reason.clone() });
            }
            self.shared.arrived.wait(&mut mail);
        }
        let queue = &mut mail.queues[from * size + self.rank];
        // There are enough bytes.
        let _ = queue.read_exact(receive);
        Ok(())
    }

    fn abort(&self, reason: &str) {
        self.shared.mail.lock().aborted.get_or_insert_with(|| (self.rank, reason.to_owned()));
        self.shared.arrived.notify_all();
    }
}
