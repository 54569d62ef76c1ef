//! Every key behaves as if it were alone.
//!
//! A table of many keys is driven through random requests, days and shrinks; beside it stands one table for each key
//! that is given the same requests with all other keys left out. Whatever is admitted, refused, evicted or removed around
//! a key, its own row must be equal to the bit. A gradient that lands on a neighbour, a row that is found under another's
//! number after a removal, a long part that changes hands: all of them show here.

use std::collections::BTreeMap;

use openfleet_core::Key;
use openfleet_table::{
    Accessor, Adagrad, Adam, Admission, CtrOptions, Initializer, Missing, NonFinite, Optimizer, PushReport,
    Regularizer, Schedule, Scratch, Sgd, ShowClick, Shrunk, SparseSpec, SparseTable,
};
use proptest::prelude::*;

const KEYS: u64 = 40;

#[derive(Debug, Clone)]
enum Event {
    Pull {
        keys: Vec<Key>,
        create: bool,
    },
    /// Keys, the seed of their gradients, and whether shows and clicks come with them.
    Push {
        keys: Vec<Key>,
        seed: u64,
        counted: bool,
    },
    Add {
        keys: Vec<Key>,
        seed: u64,
    },
    Day,
    Shrink {
        max_age: u32,
    },
}

/// Never more than a batch, so that a row is evicted after a request and not within it.
fn keys() -> impl Strategy<Value = Vec<Key>> {
    prop::collection::vec(prop_oneof![0..KEYS, 0..KEYS / 4], 0..100)
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (keys(), any::<bool>()).prop_map(|(keys, create)| Event::Pull { keys, create }),
        6 => (keys(), any::<u64>(), any::<bool>()).prop_map(|(keys, seed, counted)| Event::Push { keys, seed, counted }),
        1 => (keys(), any::<u64>()).prop_map(|(keys, seed)| Event::Add { keys, seed }),
        2 => Just(Event::Day),
        1 => (0u32..4).prop_map(|max_age| Event::Shrink { max_age }),
    ];
    prop::collection::vec(event, 1..25)
}

fn specs() -> impl Strategy<Value = SparseSpec> {
    let optimizer = prop_oneof![
        Just(Optimizer::Sgd(Sgd {})),
        Just(Optimizer::Adagrad(Adagrad { initial_accumulator: 0.1, ..Adagrad::default() })),
        Just(Optimizer::Adam(Adam::default())),
    ];
    let ctr = (0.0f32..3.0, 0.5f32..1.0, 0.0f32..0.6, 0u32..3, any::<bool>()).prop_map(
        |(embedx_threshold, show_click_decay_rate, delete_threshold, delete_after_unseen_days, zero_init)| {
            Accessor::Ctr(CtrOptions {
                embedx_threshold,
                show_click_decay_rate,
                delete_threshold,
                delete_after_unseen_days,
                zero_init,
                ..CtrOptions::default()
            })
        },
    );
    let accessor = prop_oneof![1 => Just(Accessor::Plain), 2 => ctr];
    let admission = prop_oneof![
        Just(Admission::All),
        (0u32..5).prop_map(Admission::Count),
        (0.2f64..0.9).prop_map(Admission::Probability),
        (0.0f32..6.0, 0.0f32..3.0).prop_map(|(show, click)| Admission::ShowClick { show, click }),
    ];
    let capacity = prop_oneof![2 => Just(None), 1 => (4usize..30).prop_map(Some)];
    let non_finite = prop_oneof![2 => Just(NonFinite::Skip), 1 => Just(NonFinite::Clip(0.7))];
    let regularizer = prop_oneof![Just(None), Just(Some(Regularizer::L2(0.1)))];
    (1usize..12, optimizer, accessor, admission, capacity, non_finite, regularizer, 0u32..3, any::<u64>()).prop_map(
        |(dim, optimizer, accessor, admission, capacity, non_finite, regularizer, shard_bits, seed)| SparseSpec {
            dim,
            optimizer,
            schedule: Schedule::InverseTime { base: 0.1, decay_steps: 3, decay_rate: 0.5, staircase: false },
            regularizer,
            initializer: Initializer::Normal { mean: 0.0, std: 0.5 },
            seed,
            shards: 1 << shard_bits,
            accessor,
            admission,
            capacity,
            non_finite,
            salted: false,
            storage: Default::default(),
        },
    )
}

/// Random numbers; occasionally a row that a table should refuse.
fn numbers(seed: u64, count: usize, dim: usize) -> Vec<f32> {
    let mut values = vec![0.0; count * dim];
    Initializer::Uniform { low: -1.0, high: 1.0 }.fill(seed, &[count, dim], &mut values);
    for row in (seed as usize % 20..count).step_by(20) {
        values[row * dim + row % dim] = [f32::NAN, f32::NEG_INFINITY, 1e38][row % 3];
    }
    values
}

type Saved = (u32, Vec<u32>, Vec<u32>, Option<(u32, u32, u32, u32, bool)>);

/// A row, bit by bit.
fn saved(table: &SparseTable, key: Key) -> Option<Saved> {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
    table.read_row(key, |row| {
        let ctr = row.ctr.map(|ctr| {
            (ctr.show.to_bits(), ctr.click.to_bits(), ctr.delta_score.to_bits(), ctr.unseen_days, ctr.has_long)
        });
        (row.stamp, bits(row.weights), bits(row.state), ctr)
    })
}

/// The parts of a request that belong to one key: positions and, for them, rows of `dim` numbers.
fn part(keys: &[Key], key: Key, values: &[f32], dim: usize) -> Vec<f32> {
    let rows = keys.iter().zip(values.chunks(dim)).filter(|(other, _)| **other == key);
    rows.flat_map(|(_, row)| row.iter().copied()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_key_behaves_as_if_it_were_alone(spec in specs(), events in events()) {
        let dim = spec.dim;
        let together = SparseTable::new(spec.clone()).unwrap();
        let lonely = || SparseTable::new(SparseSpec { capacity: None, shards: 1, ..spec.clone() }).unwrap();
        let mut alone: BTreeMap<Key, SparseTable> = (0..KEYS).map(|key| (key, lonely())).collect();
        let mut scratch = Scratch::new();
        let mut day = 0;
        for event in events {
            match event {
                Event::Pull { keys, create } => {
                    let missing = if create { Missing::Create } else { Missing::Initial };
                    let mut rows = vec![f32::MAX; keys.len() * dim];
                    together.pull(&keys, missing, &mut rows, &mut scratch).unwrap();
                    for (key, table) in &alone {
                        let expected = part(&keys, *key, &rows, dim);
                        let mut got = vec![f32::MIN; expected.len()];
                        table.pull(&vec![*key; expected.len() / dim], missing, &mut got, &mut scratch).unwrap();
                        prop_assert_eq!(got, expected, "key {}", key);
                    }
                }
                Event::Push { keys, seed, counted } => {
                    let gradients = numbers(seed, keys.len(), dim);
                    let shows: Vec<f32> = (0..keys.len()).map(|i| ((seed >> (i % 50)) % 4) as f32).collect();
                    let clicks: Vec<f32> = shows.iter().map(|show| (show - 1.0).max(0.0)).collect();
                    let counts = ShowClick { show: &shows, click: &clicks };
                    let counts = counted.then_some(counts);
                    let report = together.push_with(&keys, &gradients, counts, &mut scratch).unwrap();
                    let mut sum = PushReport::default();
                    for (key, table) in &alone {
                        let gradients = part(&keys, *key, &gradients, dim);
                        let (shows, clicks) = (part(&keys, *key, &shows, 1), part(&keys, *key, &clicks, 1));
                        let counts = counts.map(|_| ShowClick { show: &shows, click: &clicks });
                        let keys = vec![*key; gradients.len() / dim];
                        sum.merge(table.push_with(&keys, &gradients, counts, &mut scratch).unwrap());
                    }
                    prop_assert_eq!(report, sum);
                }
                Event::Add { keys, seed } => {
                    let deltas = numbers(seed, keys.len(), dim);
                    let report = together.add(&keys, &deltas, &mut scratch).unwrap();
                    let mut sum = PushReport::default();
                    for (key, table) in &alone {
                        let deltas = part(&keys, *key, &deltas, dim);
                        let keys = vec![*key; deltas.len() / dim];
                        sum.merge(table.add(&keys, &deltas, &mut scratch).unwrap());
                    }
                    prop_assert_eq!(report, sum);
                }
                Event::Day => {
                    day += 1;
                    for table in alone.values().chain([&together]) {
                        table.end_of_day();
                        table.set_stamp(day);
                    }
                }
                Event::Shrink { max_age } => {
                    let mut sum = Shrunk::default();
                    alone.values().for_each(|table| sum.merge(table.shrink(day, max_age)));
                    prop_assert_eq!(together.shrink(day, max_age), sum);
                }
            }
            let mut rows = 0;
            for (key, table) in &mut alone {
                let row = saved(&together, *key);
                rows += usize::from(row.is_some());
                if spec.capacity.is_some() && row.is_none() && !table.is_empty() {
                    // Evicted: the key starts from nothing, in both tables.
                    let step = table.step();
                    *table = lonely();
                    table.set_step(step);
                    table.set_stamp(day);
                }
                prop_assert_eq!(row, saved(table, *key), "key {}", key);
            }
            prop_assert_eq!(together.len(), rows);
            prop_assert!(spec.capacity.is_none_or(|capacity| rows <= capacity));
            let mut shown = 0;
            together.for_each_row(|row| shown += usize::from(row.key < KEYS));
            prop_assert_eq!(shown, rows);
        }
    }
}
