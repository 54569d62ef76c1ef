//! Deduplication speed on a batch of 26 slots x 512 rows: `cargo bench -p openfleet-core --bench unique`.
//!
//! Prints one line per case: the number of distinct ids, and millions of ids per second (the best of several rounds, because
//! other processes can only slow it down). The budget is 50 M ids/s per core on the Zipf case.

#![allow(clippy::print_stdout, clippy::disallowed_methods)] // a bench prints, and reads the clock

use std::hint::black_box;
use std::time::Instant;

use openfleet_core::{Key, Unique, key::mix};
use openfleet_testkit::bench::size;

const SLOTS: usize = 26;
const ROWS: usize = 512;
/// Different batches in turn, so that the branch predictor cannot memorize one.
const BATCHES: usize = 64;

fn main() {
    measure("zipf", |batch, slot, row| {
        // A slot's vocabulary grows from 4 to about 300,000; ranks are log-uniform, which is Zipf's law with exponent 1.
        let vocabulary = 4.0 * 1.567_f64.powi(slot as i32);
        let uniform = mix((batch * SLOTS + slot) as u64 * 4096 + row as u64) as f64 / u64::MAX as f64;
        let rank = vocabulary.powf(uniform) as u64;
        mix((slot as u64) << 32 | rank) % 1_000_003
    });
    measure("all-unique", |batch, slot, row| mix((batch * SLOTS + slot) as u64 * 4096 + row as u64));
    measure("all-same", |_, _, _| 42);
}

fn measure(name: &str, id: impl Fn(usize, usize, usize) -> Key) {
    let batches: Vec<Vec<Vec<Key>>> = (0..BATCHES)
        .map(|batch| (0..SLOTS).map(|slot| (0..ROWS).map(|row| id(batch, slot, row)).collect()).collect())
        .collect();
    let mut unique = Unique::new();
    let mut distinct = 0;
    let mut best = f64::INFINITY;
    for _ in 0..size(30, 1) {
        let start = Instant::now();
        distinct = 0;
        for batch in &batches {
            unique.start(SLOTS * ROWS);
            for ids in batch {
                unique.add(black_box(ids));
            }
            distinct += black_box(&unique).keys().len();
            black_box(unique.inverse());
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    let speed = (BATCHES * SLOTS * ROWS) as f64 / best / 1e6;
    println!("dedup {speed:.0} M ids/s ({name}: {} ids, {} distinct a batch)", SLOTS * ROWS, distinct / BATCHES);
}
