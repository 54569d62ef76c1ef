//! What the benches share: a timer that takes the best of several rounds, and the batches they run on.
//!
//! Machines are noisy, so candidates take turns within one process, the best round of each counts, and the result is the ratio
//! between them. Results are printed as `name  value unit`; docs/benchmarks.md records them.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use openfleet_core::{Batch, Column, Field, FieldKind, Schema};
use openfleet_engine::matrix::{Plain, Transposed, multiply};
use openfleet_testkit::bench::size;

/// Runs the candidates in turn for some rounds and returns the best time of each.
pub fn best_of(rounds: usize, candidates: &mut [&mut dyn FnMut()]) -> Vec<Duration> {
    let mut best = vec![Duration::MAX; candidates.len()];
    for _ in 0..size(rounds, 1) {
        for (best, candidate) in best.iter_mut().zip(candidates.iter_mut()) {
            let started = Instant::now();
            candidate();
            *best = (*best).min(started.elapsed());
        }
    }
    best
}

/// Runs the nine matrix products of a CTR-DNN step (forward and backward of three layers) `count` times: the upper limit that
/// everything else is compared with.
pub fn nine_products(count: usize) {
    const SIZES: [(usize, usize); 3] = [(SLOTS * 10 + DENSE, 400), (400, 400), (400, 400)];
    let fill = |n: usize| (0..n).map(|k| (k % 13) as f32 * 0.01).collect::<Vec<f32>>();
    let mut layers =
        SIZES.map(|(i, o)| (fill(ROWS * i), fill(i * o), fill(ROWS * o), fill(ROWS * i), fill(i * o), fill(ROWS * o)));
    for _ in 0..count {
        for (&(i, o), (x, w, y, ..)) in SIZES.iter().zip(&mut layers) {
            multiply(ROWS, o, i, x, Plain, w, Plain, 0.0, y);
        }
        for (&(i, o), (x, w, _, dx, dw, dy)) in SIZES.iter().zip(&mut layers).rev() {
            multiply(i, o, ROWS, x, Transposed, dy, Plain, 0.0, dw);
            multiply(ROWS, i, o, dy, Plain, w, Transposed, 0.0, dx);
        }
    }
}

/// Prints one line of results.
pub fn print_result(name: &str, value: f64, unit: &str) {
    println!("{name:<52} {value:>12.3} {unit}");
}

/// Rows per batch of the CTR-DNN that the benches run.
pub const ROWS: usize = 512;
/// Categorical slots.
pub const SLOTS: usize = 26;
/// Dense fields.
pub const DENSE: usize = 13;

/// The fields of a Criteo-like row.
pub fn criteo_schema() -> Schema {
    let mut fields = vec![
        Field::new("label", FieldKind::FixedIds { length: 1 }),
        Field::new("dense", FieldKind::Floats { dim: DENSE }),
    ];
    fields.extend((1..=SLOTS).map(|i| Field::new(format!("C{i}"), FieldKind::Ids)));
    Schema::new(fields).expect("field names are distinct")
}

/// Batches of Zipf-like ids from a space of a million; about one third of the ids in a batch are unique.
pub fn criteo_batches(count: usize) -> Vec<Batch> {
    let schema = criteo_schema();
    let mut state = 42u64;
    let mut uniform = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (openfleet_core::key::mix(state) >> 11) as f64 / (1u64 << 53) as f64
    };
    (0..count)
        .map(|_| {
            let mut batch = Batch::new(&schema);
            batch.rows = ROWS;
            for (field, column) in batch.columns.iter_mut().enumerate() {
                for _ in 0..ROWS {
                    match column {
                        Column::Ids { .. } if field == 0 => column.push_ids(&[u64::from(uniform() < 0.25)]),
                        Column::Ids { .. } => {
                            // The vocabulary of a slot grows with its index; ids follow a power law.
                            let slot = field as f64 - 2.0;
                            let vocabulary = (4.0 * (slot * 0.42).exp()).min(200_000.0);
                            let rank = vocabulary.powf(uniform()) as u64;
                            column.push_ids(&[(field as u64) << 32 | rank]);
                        }
                        Column::Floats { .. } => {
                            let row: Vec<f32> = (0..DENSE).map(|_| uniform() as f32).collect();
                            column.push_floats(&row);
                        }
                    }
                }
            }
            batch
        })
        .collect()
}
