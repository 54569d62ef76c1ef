//! Promise P12: an unauthenticated peer makes a server allocate at most 1 MiB. In its own binary, because an allocator is
//! global.
#![allow(clippy::unwrap_used)] // helpers outside `#[test]` functions are tests too

use std::sync::Arc;

use openfleet_dist::frame::Header;
use openfleet_dist::handshake::Secret;
use openfleet_dist::listener::serve;
use openfleet_dist::{ServerConfig, State};
use openfleet_testkit::allocation::{CountingAllocator, live_bytes, peak_bytes, reset_peak};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Maximum bytes that one connection makes the server hold, including the pipe.
async fn cost(bytes: &[u8]) -> usize {
    let state = Arc::new(State::new());
    let config = Arc::new(ServerConfig { secret: Secret::new("secret"), ..ServerConfig::default() });
    let before = live_bytes();
    reset_peak();
    let (mut ours, theirs) = duplex(4096);
    let served = tokio::spawn(serve(theirs, config, state, "stranger".into()));
    // The server may disconnect before it has read everything.
    let _ = ours.write_all(bytes).await;
    let _ = ours.shutdown().await;
    let mut answer = [0; 512];
    while matches!(ours.read(&mut answer).await, Ok(1..)) {}
    served.await.unwrap();
    peak_bytes() - before
}

#[tokio::test(start_paused = true)]
async fn at_most_a_mebibyte_is_allocated_before_a_peer_has_proved_itself() {
    const MEBIBYTE: usize = 1 << 20;
    let header = |length| Header { kind: 0x4001, request: 1, length, checksum: 0 }.encode().to_vec();
    for length in [1 << 63, u64::MAX, 1 << 30, 4097, 4096] {
        let mut bytes = header(length);
        bytes.extend(std::iter::repeat_n(0x5b, 100_000));
        let cost = cost(&bytes).await;
        assert!(cost < MEBIBYTE, "{cost} bytes for a frame of {length}");
    }
    // The largest frame that is accepted, with the worst content for a parser.
    let nested = [b'['; 4096];
    let mut bytes = Header::of(0x4001, 1, &nested).encode().to_vec();
    bytes.extend_from_slice(&nested);
    assert!(cost(&bytes).await < MEBIBYTE);
    // A job name of full length is repeated in the refusal and in the log.
    let hello = format!(r#"{{"job":"{}","rank":0,"incarnation":1,"nonce":[{}0]}}"#, "x".repeat(4000), "0,".repeat(15));
    let mut bytes = Header::of(0x4001, 1, hello.as_bytes()).encode().to_vec();
    bytes.extend_from_slice(hello.as_bytes());
    assert!(cost(&bytes).await < MEBIBYTE);
    assert!(peak_bytes() > 0, "the allocator counts");
}
