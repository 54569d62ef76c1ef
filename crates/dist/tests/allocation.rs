//! Promise P12: an unauthenticated peer makes a server allocate at most 1 MiB. In its own binary, because an allocator is
//! global.
#![allow(clippy::unwrap_used)] // helpers outside `#[test]` functions are tests too

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use openfleet_dist::frame::Header;
use openfleet_dist::handshake::Secret;
use openfleet_dist::listener::serve;
use openfleet_dist::{ServerConfig, State};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it came; counting touches no memory of the caller's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        MOST.fetch_max(LIVE.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same there.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the memory came from `alloc` above, and so from the system.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Maximum bytes that one connection makes the server hold, including the pipe.
async fn cost(bytes: &[u8]) -> usize {
    let state = Arc::new(State::new());
    let config = Arc::new(ServerConfig { secret: Secret::new("secret"), ..ServerConfig::default() });
    let before = LIVE.load(Relaxed);
    MOST.store(before, Relaxed);
    let (mut ours, theirs) = duplex(4096);
    let served = tokio::spawn(serve(theirs, config, state, "stranger".into()));
    // The server may disconnect before it has read everything.
    let _ = ours.write_all(bytes).await;
    let _ = ours.shutdown().await;
    let mut answer = [0; 512];
    while matches!(ours.read(&mut answer).await, Ok(1..)) {}
    served.await.unwrap();
    MOST.load(Relaxed) - before
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
    assert!(MOST.load(Relaxed) > 0, "the allocator counts");
}
