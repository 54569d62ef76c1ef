//! Benches under `cargo test`.
//!
//! `cargo bench` measures. `cargo test --benches` runs each bench once with small sizes, so that a change cannot break one
//! unnoticed.

/// Whether this process was started by `cargo bench`.
pub fn is_measuring() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// `full` when measuring, otherwise `quick`: a number of rounds, rows or batches.
pub fn size(full: usize, quick: usize) -> usize {
    if is_measuring() { full } else { quick }
}
