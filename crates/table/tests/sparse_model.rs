//! The sparse table against the simplest possible model: a map from keys to vectors.
//!
//! Equality is exact, bit by bit: the same rule runs on both sides, so any difference is a row that was lost, duplicated, mixed
//! up with a neighbour or read from the wrong position.

use std::collections::HashMap;

use openfleet_core::Key;
use openfleet_table::{
    Accessor, Adadelta, Adagrad, Adam, AdamW, Adamax, Admission, DecayedAdagrad, Fans, Ftrl, Initializer, Lamb,
    Missing, Momentum, NonFinite, Optimizer, Regularizer, RmsProp, RowwiseAdagrad, Schedule, Scratch, Sgd, SparseSpec,
    SparseTable,
};
use proptest::prelude::*;

const FANS: Fans = Fans { fan_in: 1.0, fan_out: 1.0 };

#[derive(Debug, Clone)]
enum Request {
    Pull {
        keys: Vec<Key>,
        create: bool,
    },
    /// Keys, and the seed of their gradients.
    Push {
        keys: Vec<Key>,
        seed: u64,
    },
}

struct Model {
    spec: SparseSpec,
    rows: HashMap<Key, (Vec<f32>, Vec<f32>)>,
    step: u64,
}

impl Model {
    fn initial(&self, key: Key) -> (Vec<f32>, Vec<f32>) {
        let mut weights = vec![0.0; self.spec.dim];
        self.spec.initializer.row(self.spec.seed, key, FANS, &mut weights);
        let mut state = vec![0.0; self.spec.optimizer.state_len(self.spec.dim)];
        self.spec.optimizer.init_state(self.spec.dim, &mut state);
        (weights, state)
    }

    fn pull(&mut self, keys: &[Key], create: bool) -> Vec<f32> {
        let mut out = Vec::new();
        for key in keys {
            let initial = self.initial(*key);
            let row =
                if create { self.rows.entry(*key).or_insert(initial) } else { self.rows.get(key).unwrap_or(&initial) };
            out.extend(&row.0);
        }
        out
    }

    fn push(&mut self, keys: &[Key], gradients: &[f32]) {
        let rate = self.spec.schedule.rate(self.step) as f32;
        self.step += 1;
        for (key, gradient) in keys.iter().zip(gradients.chunks(self.spec.dim)) {
            if gradient.iter().any(|g| !g.is_finite()) {
                continue;
            }
            let initial = self.initial(*key);
            let (weights, state) = self.rows.entry(*key).or_insert(initial);
            let mut gradient = gradient.to_vec();
            if let Some(regularizer) = self.spec.regularizer {
                regularizer.add_to(weights, &mut gradient);
            }
            self.spec.optimizer.apply(rate, self.step, weights, state, &gradient);
        }
        if self.spec.optimizer.moves_every_row() {
            let others = self.rows.iter_mut().filter(|(key, _)| !keys.contains(key));
            others.for_each(|(_, (weights, state))| {
                self.spec.optimizer.apply(rate, self.step, weights, state, &vec![0.0; self.spec.dim]);
            });
        }
    }
}

fn optimizers() -> impl Strategy<Value = Optimizer> {
    prop_oneof![
        Just(Optimizer::Sgd(Sgd {})),
        Just(Optimizer::Momentum(Momentum { nesterov: true, ..Momentum::default() })),
        Just(Optimizer::Adagrad(Adagrad { initial_accumulator: 0.1, ..Adagrad::default() })),
        Just(Optimizer::RowwiseAdagrad(RowwiseAdagrad { initial_accumulator: 0.1, ..RowwiseAdagrad::default() })),
        Just(Optimizer::DecayedAdagrad(DecayedAdagrad::default())),
        Just(Optimizer::Adadelta(Adadelta::default())),
        Just(Optimizer::Adam(Adam::default())),
        Just(Optimizer::Adam(Adam { lazy_mode: false, ..Adam::default() })),
        Just(Optimizer::AdamW(AdamW::default())),
        Just(Optimizer::Adamax(Adamax::default())),
        Just(Optimizer::Lamb(Lamb::default())),
        Just(Optimizer::RmsProp(RmsProp { centered: true, ..RmsProp::default() })),
        Just(Optimizer::Ftrl(Ftrl { l1: 0.01, ..Ftrl::default() })),
    ]
}

/// Some common keys, few enough that duplicates are frequent, and some arbitrary ones.
fn keys() -> impl Strategy<Value = Vec<Key>> {
    let key = prop_oneof![4 => 0u64..40, 2 => 0u64..3_000, 1 => any::<u64>(), 1 => Just(u64::MAX)];
    prop::collection::vec(key, 0..600)
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let request = prop_oneof![
        (keys(), any::<bool>()).prop_map(|(keys, create)| Request::Pull { keys, create }),
        (keys(), any::<u64>()).prop_map(|(keys, seed)| Request::Push { keys, seed }),
    ];
    prop::collection::vec(request, 1..8)
}

fn specs() -> impl Strategy<Value = SparseSpec> {
    let regularizer = prop_oneof![Just(None), Just(Some(Regularizer::L1(0.01))), Just(Some(Regularizer::L2(0.1)))];
    (1usize..21, optimizers(), regularizer, any::<u64>(), 0u32..5).prop_map(
        |(dim, optimizer, regularizer, seed, shard_bits)| SparseSpec {
            dim,
            optimizer,
            schedule: Schedule::InverseTime { base: 0.1, decay_steps: 3, decay_rate: 0.5, staircase: false },
            regularizer,
            initializer: Initializer::Normal { mean: 0.0, std: 0.5 },
            seed,
            shards: 1 << shard_bits,
            accessor: Accessor::Plain,
            admission: Admission::All,
            capacity: None,
            non_finite: NonFinite::Skip,
            salted: false,
            storage: Default::default(),
        },
    )
}

/// Gradients; occasionally one that must be refused.
fn gradients(seed: u64, count: usize, dim: usize) -> Vec<f32> {
    let mut values = vec![0.0; count * dim];
    Initializer::Uniform { low: -1.0, high: 1.0 }.fill(seed, &[count, dim], &mut values);
    for row in (seed as usize % 50..count).step_by(50) {
        values[row * dim + row % dim] = if row % 2 == 0 { f32::NAN } else { f32::NEG_INFINITY };
    }
    values
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn table_equals_a_map_under_any_sequence_of_requests(spec in specs(), requests in requests()) {
        let table = SparseTable::new(spec.clone()).unwrap();
        let mut model = Model { spec: spec.clone(), rows: HashMap::new(), step: 0 };
        let mut scratch = Scratch::new();
        for request in requests {
            match request {
                Request::Pull { keys, create } => {
                    let missing = if create { Missing::Create } else { Missing::Initial };
                    let mut rows = vec![f32::NAN; keys.len() * spec.dim];
                    table.pull(&keys, missing, &mut rows, &mut scratch).unwrap();
                    prop_assert_eq!(bits(&rows), bits(&model.pull(&keys, create)));
                }
                Request::Push { keys, seed } => {
                    let gradients = gradients(seed, keys.len(), spec.dim);
                    let refused = gradients.chunks(spec.dim).filter(|g| g.iter().any(|g| !g.is_finite())).count();
                    let report = table.push(&keys, &gradients, &mut scratch).unwrap();
                    prop_assert_eq!((report.applied, report.non_finite), (keys.len() - refused, refused));
                    model.push(&keys, &gradients);
                }
            }
            prop_assert_eq!(table.len(), model.rows.len());
        }
        let mut seen = 0;
        table.for_each(|key, weights, state| {
            let expected = &model.rows[&key];
            assert_eq!((bits(weights), bits(state)), (bits(&expected.0), bits(&expected.1)), "key {key}");
            seen += 1;
        });
        prop_assert_eq!(seen, model.rows.len());
        prop_assert_eq!(table.step(), model.step);
    }
}
