//! The cost of AUC for a training step of 512 rows: `cargo bench -p openfleet-core --bench auc`.
//!
//! Prints microseconds for counting a batch and for integrating the batch window, which a step pays only if it asks for the
//! value.

#![allow(clippy::print_stdout, clippy::disallowed_methods)] // a bench prints, and reads the clock

use std::hint::black_box;
use std::time::Instant;

use openfleet_core::{key::mix, metrics::Auc};
use openfleet_testkit::bench::size;

fn main() {
    let labels: Vec<u64> = (0..512).map(|row| u64::from(mix(row).is_multiple_of(4))).collect();
    let probabilities: Vec<f32> = (0..512).map(|row| (mix(row + 512) >> 40) as f32 / (1 << 24) as f32).collect();
    let mut auc = Auc::new();
    let update = best_microseconds(|| {
        if let Err(error) = auc.update(black_box(&labels), black_box(&probabilities)) {
            println!("{error}");
        }
    });
    let integrate = best_microseconds(|| {
        black_box(black_box(&auc).batch_value());
    });
    println!("auc 512 rows: update {update:.2} us, batch value {integrate:.2} us");
}

/// Calls per round.
const CALLS: usize = 200;

/// The mean of a call in the best of many rounds.
fn best_microseconds(mut call: impl FnMut()) -> f64 {
    let mut round = || {
        let start = Instant::now();
        (0..CALLS).for_each(|_| call());
        start.elapsed().as_secs_f64() * 1e6 / CALLS as f64
    };
    (0..size(50, 1)).map(|_| round()).fold(f64::INFINITY, f64::min)
}
