//! Frames over a byte stream: TCP, or a pipe in a test.

use std::future::Future;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::frame::{HEADER, Header, Payload, PayloadPool};

/// A bidirectional byte stream.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for T {}

/// A received frame.
#[derive(Debug)]
pub struct Frame {
    /// The meaning of the payload: a request kind, or a reply.
    pub kind: u16,
    /// Number of the request that this frame is, or replies to.
    pub request: u64,
    /// The payload; its checksum matched.
    pub payload: Payload,
}

/// Reads a frame with at most `cap` bytes of payload. Returns `None` when the peer closed the connection between two frames.
pub async fn read_frame(from: &mut (impl AsyncRead + Unpin), cap: u64, peer: &str) -> Result<Option<Frame>> {
    read_pooled_frame(from, cap, peer, &PayloadPool::default()).await
}

/// [`read_frame`] into memory of a pool.
pub(crate) async fn read_pooled_frame(
    from: &mut (impl AsyncRead + Unpin),
    cap: u64,
    peer: &str,
    pool: &PayloadPool,
) -> Result<Option<Frame>> {
    let socket = |source| Error::Socket { action: "reading from", endpoint: peer.to_owned(), source };
    let mut bytes = [0; HEADER];
    let read = match from.read(&mut bytes).await {
        Ok(0) => return Ok(None),
        // TLS reports this if the peer closed the connection without `close_notify`, as our processes do.
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read.map_err(socket)?,
    };
    from.read_exact(&mut bytes[read..]).await.map_err(socket)?;
    let header = Header::decode(&bytes, cap)?;
    let mut payload = pool.sized(header.length as usize);
    from.read_exact(payload.bytes_mut()).await.map_err(socket)?;
    header.check(payload.bytes())?;
    Ok(Some(Frame { kind: header.kind, request: header.request, payload }))
}

/// Time of the last received byte. A peer is silent only if not even a part of a frame arrives, so a slow network is not
/// silence.
#[derive(Debug, Clone)]
pub struct LastSeen(Arc<Mutex<Instant>>);

impl LastSeen {
    /// Starts with the current time.
    pub fn now() -> Self {
        LastSeen(Arc::new(Mutex::new(Instant::now())))
    }

    /// Records the current time as a sign of life.
    pub fn note(&self) {
        *self.0.lock() = Instant::now();
    }

    /// Time since the last sign of life.
    pub fn silent_for(&self) -> Duration {
        self.0.lock().elapsed()
    }

    /// Returns when there has been no sign of life for `most`.
    pub async fn until_silent_for(&self, most: Duration) {
        loop {
            let end = *self.0.lock() + most;
            if end <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }

    /// Runs `work` to its end, or returns `None` when there has been no sign of life for `most`.
    pub async fn unless_silent_for<T>(&self, most: Duration, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            // Poll `work` first: bytes that arrived while no task was reading are a sign of life.
            biased;
            done = work => Some(done),
            () = self.until_silent_for(most) => None,
        }
    }
}

/// A reader that records when bytes arrive, or a writer that records when bytes leave.
#[derive(Debug)]
pub struct Watched<S> {
    side: S,
    heard: LastSeen,
}

impl<S: Unpin> Watched<S> {
    /// Wraps one half of a stream.
    pub fn new(side: S, heard: LastSeen) -> Self {
        Watched { side, heard }
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Watched<W> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let poll = Pin::new(&mut self.side).poll_write(context, bytes);
        if matches!(poll, Poll::Ready(Ok(count)) if count > 0) {
            self.heard.note();
        }
        poll
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let poll = Pin::new(&mut self.side).poll_write_vectored(context, slices);
        if matches!(poll, Poll::Ready(Ok(count)) if count > 0) {
            self.heard.note();
        }
        poll
    }

    fn is_write_vectored(&self) -> bool {
        self.side.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.side).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.side).poll_shutdown(context)
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Watched<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let poll = Pin::new(&mut self.side).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.heard.note();
        }
        poll
    }
}

/// Writes a frame and flushes it.
pub async fn write_frame(
    to: &mut (impl AsyncWrite + Unpin),
    kind: u16,
    request: u64,
    payload: &[u8],
    peer: &str,
) -> Result<()> {
    let socket = |source| Error::Socket { action: "writing to", endpoint: peer.to_owned(), source };
    let header = Header::of(kind, request, payload).encode();
    let mut slices = [IoSlice::new(&header), IoSlice::new(payload)];
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let count = to.write_vectored(rest).await.map_err(socket)?;
        if count == 0 {
            return Err(socket(std::io::ErrorKind::WriteZero.into()));
        }
        IoSlice::advance_slices(&mut rest, count);
    }
    to.flush().await.map_err(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_pass_a_narrow_pipe_whole_and_are_read_into_used_memory() {
        let (mut ours, mut theirs) = tokio::io::duplex(1000);
        let large: Vec<u8> = (0..100_000u32).map(|at| at as u8).collect();
        let sent = large.clone();
        let writing = tokio::spawn(async move {
            for request in 0..3 {
                write_frame(&mut ours, 1, request, &sent, "a test").await.unwrap();
                write_frame(&mut ours, 2, request, &[], "a test").await.unwrap();
            }
        });
        let pool = PayloadPool::default();
        let mut memory = Vec::new();
        for request in 0..3 {
            let frame = read_pooled_frame(&mut theirs, 1 << 20, "a test", &pool).await.unwrap().unwrap();
            assert_eq!((frame.kind, frame.request, frame.payload.bytes()), (1, request, &large[..]));
            memory.push(frame.payload.bytes().as_ptr() as usize);
            drop(frame);
            let frame = read_pooled_frame(&mut theirs, 1 << 20, "a test", &pool).await.unwrap().unwrap();
            assert_eq!((frame.kind, frame.request, frame.payload.bytes()), (2, request, &[][..]));
        }
        assert_eq!(memory, [memory[0]; 3]);
        writing.await.unwrap();
        assert!(read_pooled_frame(&mut theirs, 1 << 20, "a test", &pool).await.unwrap().is_none());
    }

    /// A slow handler leaves bytes unread: they are read before the connection is considered silent.
    #[tokio::test(start_paused = true)]
    async fn bytes_that_have_arrived_are_read_before_the_peer_counts_as_silent() {
        let heard = LastSeen::now();
        tokio::time::advance(Duration::from_secs(60)).await;
        for _ in 0..100 {
            let taken = heard.unless_silent_for(Duration::from_secs(3), std::future::ready(7)).await;
            assert_eq!(taken, Some(7));
        }
        assert_eq!(heard.unless_silent_for(Duration::from_secs(3), std::future::pending::<()>()).await, None);
    }
}
