//! A global allocator that counts, for tests of how much is allocated.
//!
//! A test binary installs it with `#[global_allocator] static ALLOCATOR: CountingAllocator = CountingAllocator;`. Calls are counted per
//! thread, because the test runner's own threads allocate at any time; live bytes are counted for the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, with counters.
pub struct CountingAllocator;

thread_local! {
    // Initialized by a constant and without a destructor, so that using it never allocates.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}
static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);
static LARGE: AtomicUsize = AtomicUsize::new(0);

/// Allocations of this many bytes count as large: the system's allocator returns such memory to the kernel, whose pages then have
/// to be mapped and zeroed again.
pub const LARGE_BYTES: usize = 64 << 10;

/// Allocations and reallocations that `work` makes on this thread.
pub fn allocations(work: impl FnOnce()) -> u64 {
    let before = CALLS.with(Cell::get);
    work();
    CALLS.with(Cell::get) - before
}

/// Large allocations of all threads since the process began. See [`LARGE_BYTES`].
pub fn large_allocations() -> usize {
    LARGE.load(Relaxed)
}

/// Bytes that the process holds now.
pub fn live_bytes() -> usize {
    LIVE_BYTES.load(Relaxed)
}

/// The most bytes held since the last [`reset_peak`].
pub fn peak_bytes() -> usize {
    PEAK_BYTES.load(Relaxed)
}

/// Starts a new measurement of [`peak_bytes`] at the bytes held now.
pub fn reset_peak() {
    PEAK_BYTES.store(live_bytes(), Relaxed);
}

fn count(added: usize, removed: usize) {
    CALLS.set(CALLS.get() + 1);
    if added >= LARGE_BYTES {
        LARGE.fetch_add(1, Relaxed);
    }
    let live = LIVE_BYTES.fetch_add(added, Relaxed) + added;
    PEAK_BYTES.fetch_max(live, Relaxed);
    LIVE_BYTES.fetch_sub(removed, Relaxed);
}

// SAFETY: every call is passed to the system's allocator with its arguments unchanged. Counting uses a thread-local cell without a
// destructor and atomics, which allocate nothing and touch no memory of the caller.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller upholds the contract of `alloc`, which is the same for `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `pointer` came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: `pointer` came from `System` with this layout, and the caller upholds the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
