//! Frames over a stream of bytes, whatever carries it: TCP, or a pipe in a test.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

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
    if from.read(&mut bytes[..1]).await.map_err(socket)? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut bytes[1..]).await.map_err(socket)?;
    let header = Header::decode(&bytes, cap)?;
    let mut payload = Payload::zeros(header.length as usize);
    from.read_exact(payload.bytes_mut()).await.map_err(socket)?;
    header.check(payload.bytes())?;
    Ok(Some(Frame { kind: header.kind, request: header.request, payload }))
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
