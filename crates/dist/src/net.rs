//! Frames over a stream of bytes, whatever carries it: TCP, or a pipe in a test.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::frame::{HEADER, Header, Payload};

/// Anything that carries bytes both ways.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for T {}

/// A frame as read.
#[derive(Debug)]
pub struct Frame {
    /// What the payload means.
    pub kind: u16,
    /// Which request it is, or answers.
    pub request: u64,
    /// The payload, checked.
    pub payload: Payload,
}

/// Reads a frame with at most `cap` bytes of payload; `None` when the other side has hung up between two frames.
pub async fn read_frame(from: &mut (impl AsyncRead + Unpin), cap: u64, peer: &str) -> Result<Option<Frame>> {
    let socket = |source| Error::Socket { action: "reading from", endpoint: peer.to_owned(), source };
    let mut bytes = [0; HEADER];
    match from.read(&mut bytes[..1]).await {
        Ok(0) => return Ok(None),
        // TLS says so of a peer that hung up without taking leave of it first: ours do.
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read.map_err(socket)?,
    };
    from.read_exact(&mut bytes[1..]).await.map_err(socket)?;
    let header = Header::decode(&bytes, cap)?;
    let mut payload = Payload::zeros(header.length as usize);
    from.read_exact(payload.bytes_mut()).await.map_err(socket)?;
    header.check(payload.bytes())?;
    Ok(Some(Frame { kind: header.kind, request: header.request, payload }))
}

/// When bytes last came: a peer is silent only if not even a part of a frame arrives, however slow its network is.
#[derive(Debug, Clone)]
pub struct LastSeen(Arc<Mutex<Instant>>);

impl LastSeen {
    /// As of now.
    pub fn now() -> Self {
        LastSeen(Arc::new(Mutex::new(Instant::now())))
    }

    /// Takes this moment for a sign of life.
    pub fn note(&self) {
        *self.0.lock() = Instant::now();
    }

    /// How long nothing has come.
    pub fn silent_for(&self) -> Duration {
        self.0.lock().elapsed()
    }

    /// Ends when nothing has come for so long.
    pub async fn until_silent_for(&self, most: Duration) {
        loop {
            let end = *self.0.lock() + most;
            if end <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }

    /// Runs `work` to its end, or gives up (`None`) when nothing has come for so long.
    pub async fn unless_silent_for<T>(&self, most: Duration, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            // In this order: bytes that came while nobody looked are a sign of life.
            biased;
            done = work => Some(done),
            () = self.until_silent_for(most) => None,
        }
    }
}

/// A reader that notes when bytes come, or a writer that notes when they go.
#[derive(Debug)]
pub struct Watched<S> {
    side: S,
    heard: LastSeen,
}

impl<S: Unpin> Watched<S> {
    /// Around one side of a stream.
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

/// Writes a frame.
pub async fn write_frame(
    to: &mut (impl AsyncWrite + Unpin),
    kind: u16,
    request: u64,
    payload: &[u8],
    peer: &str,
) -> Result<()> {
    let socket = |source| Error::Socket { action: "writing to", endpoint: peer.to_owned(), source };
    to.write_all(&Header::of(kind, request, payload).encode()).await.map_err(socket)?;
    to.write_all(payload).await.map_err(socket)?;
    to.flush().await.map_err(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A handler that took long leaves bytes unread: they are read, however long ago the last ones came.
    #[tokio::test(start_paused = true)]
    async fn what_is_there_is_taken_before_silence_is() {
        let heard = LastSeen::now();
        tokio::time::advance(Duration::from_secs(60)).await;
        for _ in 0..100 {
            let taken = heard.unless_silent_for(Duration::from_secs(3), std::future::ready(7)).await;
            assert_eq!(taken, Some(7));
        }
        assert_eq!(heard.unless_silent_for(Duration::from_secs(3), std::future::pending::<()>()).await, None);
    }
}
