//! What the sparse table promises, one sentence per test.

use openfleet_core::{Hinted, Key};
use openfleet_table::sparse::DEFAULT_SHARDS;
use openfleet_table::{
    Accessor, Adam, Admission, CtrOptions, DenseSpec, DenseTable, Error, Existing, Initializer, Missing, NonFinite,
    Optimizer, Regularizer, Schedule, Scratch, Sgd, SparseSpec, SparseTable,
};

fn spec(dim: usize, optimizer: Optimizer, rate: f64) -> SparseSpec {
    SparseSpec {
        dim,
        optimizer,
        schedule: Schedule::Constant(rate),
        regularizer: None,
        initializer: Initializer::Uniform { low: -0.1, high: 0.1 },
        seed: 42,
        shards: DEFAULT_SHARDS,
        accessor: Accessor::Plain,
        admission: Admission::All,
        capacity: None,
        non_finite: NonFinite::Skip,
        salted: false,
        storage: Default::default(),
    }
}

fn pull(table: &SparseTable, keys: &[Key]) -> Vec<f32> {
    let mut rows = vec![0.0; keys.len() * table.dim()];
    table.pull(keys, Missing::Initial, &mut rows, &mut Scratch::new()).expect("lengths agree");
    rows
}

#[test]
fn initial_pull_gives_first_values_and_creates_nothing() {
    let table = SparseTable::new(spec(4, Optimizer::Adam(Adam::default()), 0.1)).unwrap();
    let keys: Vec<Key> = (0..1000).collect();
    let shown = pull(&table, &keys);
    assert!(table.is_empty());
    let mut created = vec![0.0; shown.len()];
    table.pull(&keys, Missing::Create, &mut created, &mut Scratch::new()).unwrap();
    assert_eq!(shown, created);
    assert_eq!(table.len(), 1000);
}

#[test]
fn first_values_do_not_depend_on_the_order_of_creation_or_the_number_of_shards() {
    let keys: Vec<Key> = (0..5000u64).map(|i| i * i * 977).collect();
    let backwards: Vec<Key> = keys.iter().rev().copied().collect();
    let mut scratch = Scratch::new();
    let tables: Vec<SparseTable> = [(1, &keys), (64, &keys), (64, &backwards), (1024, &backwards)]
        .into_iter()
        .map(|(shards, keys)| {
            let table = SparseTable::new(SparseSpec { shards, ..spec(3, Optimizer::Sgd(Sgd {}), 0.1) }).unwrap();
            for keys in keys.chunks(700) {
                table.pull(keys, Missing::Create, &mut vec![0.0; keys.len() * 3], &mut scratch).unwrap();
            }
            table
        })
        .collect();
    let first = pull(&tables[0], &keys);
    assert!(tables.iter().all(|table| pull(table, &keys) == first));
}

#[test]
fn two_shard_counts_train_to_the_same_rows() {
    let train = |shards| {
        let table =
            SparseTable::new(SparseSpec { shards, ..spec(10, Optimizer::Adam(Adam::default()), 0.01) }).unwrap();
        let mut scratch = Scratch::new();
        for step in 0..20u64 {
            let keys: Vec<Key> = (0..300).map(|i| (i * 7 + step * 31) % 1000).collect();
            let gradients: Vec<f32> = (0..3000).map(|i| ((i * 37 + step as usize) % 19) as f32 - 9.0).collect();
            table.push(&keys, &gradients, &mut scratch).unwrap();
        }
        pull(&table, &(0..1000).collect::<Vec<Key>>())
    };
    assert_eq!(train(1), train(256));
}

#[test]
fn duplicates_in_one_push_are_applied_one_after_another() {
    let initializer = Initializer::Constant(0.0);
    let table = SparseTable::new(SparseSpec { initializer, ..spec(2, Optimizer::Sgd(Sgd {}), 1.0) }).unwrap();
    let report = table.push(&[5, 6, 5], &[-1.0, -2.0, -10.0, -20.0, -100.0, -200.0], &mut Scratch::new()).unwrap();
    assert_eq!(report.applied, 3);
    assert_eq!(pull(&table, &[5, 6]), [101.0, 202.0, 10.0, 20.0]);
    assert_eq!(table.step(), 1);
}

#[test]
fn concurrent_pushes_lose_nothing() {
    // The counter table: rate 1 and gradient -1 count how often a key was pushed.
    let initializer = Initializer::Constant(0.0);
    let table =
        SparseTable::new(SparseSpec { initializer, shards: 8, ..spec(1, Optimizer::Sgd(Sgd {}), 1.0) }).unwrap();
    let (threads, rounds, width) = (4u64, 50u64, 500u64);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let table = &table;
            scope.spawn(move || {
                let mut scratch = Scratch::new();
                for round in 0..rounds {
                    let start = (thread * 13 + round * 7) % 100;
                    let keys: Vec<Key> = (start..start + width).collect();
                    table.push(&keys, &vec![-1.0; keys.len()], &mut scratch).unwrap();
                    table.pull(&keys, Missing::Create, &mut vec![0.0; keys.len()], &mut scratch).unwrap();
                }
            });
        }
    });
    let mut expected = vec![0.0f32; 600];
    for (thread, round) in (0..threads).flat_map(|thread| (0..rounds).map(move |round| (thread, round))) {
        let start = ((thread * 13 + round * 7) % 100) as usize;
        expected[start..start + width as usize].iter_mut().for_each(|count| *count += 1.0);
    }
    assert_eq!(pull(&table, &(0..600).collect::<Vec<Key>>()), expected);
    assert_eq!(table.step(), threads * rounds);
}

#[test]
fn gradients_that_are_not_finite_are_refused_and_leave_their_neighbours_alone() {
    let initializer = Initializer::Constant(1.0);
    let table = SparseTable::new(SparseSpec { initializer, ..spec(2, Optimizer::Sgd(Sgd {}), 1.0) }).unwrap();
    let gradients = [1.0, 1.0, f32::NAN, 1.0, 2.0, 2.0, 1.0, f32::INFINITY];
    let report = table.push(&[1, 2, 3, 4], &gradients, &mut Scratch::new()).unwrap();
    assert_eq!((report.applied, report.non_finite, table.non_finite()), (2, 2, 2));
    assert_eq!(pull(&table, &[1, 2, 3, 4]), [0.0, 0.0, 1.0, 1.0, -1.0, -1.0, 1.0, 1.0]);
    assert_eq!(table.len(), 2, "a refused gradient creates no row");
}

#[test]
fn wrong_lengths_are_errors_and_change_nothing() {
    let table = SparseTable::new(spec(3, Optimizer::Sgd(Sgd {}), 1.0)).unwrap();
    let mut scratch = Scratch::new();
    let error = table.pull(&[1, 2], Missing::Create, &mut [0.0; 5], &mut scratch).unwrap_err();
    assert_eq!(error.to_string(), "rows: expected 6 values, got 5");
    assert!(error.hint().unwrap().contains("keys.len() * dim"));
    let error = table.push(&[1, 2], &[0.0; 7], &mut scratch).unwrap_err();
    assert_eq!(error, Error::Length { what: "gradients", expected: 6, got: 7 });
    assert!(table.assign(1, &[0.0; 2], None).is_err());
    assert_eq!((table.len(), table.step()), (0, 0));
}

#[test]
fn an_empty_push_is_a_step_and_an_empty_pull_is_nothing() {
    let table = SparseTable::new(spec(3, Optimizer::Sgd(Sgd {}), 1.0)).unwrap();
    table.push(&[], &[], &mut Scratch::new()).unwrap();
    table.pull(&[], Missing::Create, &mut [], &mut Scratch::new()).unwrap();
    assert_eq!((table.len(), table.step()), (0, 1));
}

#[test]
fn every_row_shown_can_be_assigned_to_another_table() {
    let make = || SparseTable::new(spec(10, Optimizer::Adam(Adam::default()), 0.01)).unwrap();
    let (table, copy) = (make(), make());
    let keys: Vec<Key> = (0..2000).map(|i| i * 3).collect();
    let mut scratch = Scratch::new();
    let push = |table: &SparseTable, scratch: &mut Scratch| table.push(&keys, &[0.5; 20_000], scratch).unwrap();
    push(&table, &mut scratch);
    table.for_each(|key, weights, state| copy.assign(key, weights, Some(state)).unwrap());
    copy.set_step(table.step());
    push(&table, &mut scratch);
    push(&copy, &mut scratch);
    assert_eq!(pull(&table, &keys), pull(&copy, &keys));
    assert_eq!(table.read(6, |_, state| state.to_vec()), copy.read(6, |_, state| state.to_vec()));
    assert_eq!(table.read(7, |weights, _| weights.to_vec()), None);
}

#[test]
fn assigning_without_state_starts_the_optimizer_afresh() {
    let table = SparseTable::new(spec(1, Optimizer::Adam(Adam::default()), 0.01)).unwrap();
    table.push(&[9], &[1.0], &mut Scratch::new()).unwrap();
    table.assign(9, &[3.0], None).unwrap();
    assert_eq!(table.read(9, |weights, state| (weights.to_vec(), state.to_vec())), Some((vec![3.0], vec![0.0, 0.0])));
}

#[test]
fn touched_rows_carry_the_stamp_of_the_day() {
    let table = SparseTable::new(spec(1, Optimizer::Sgd(Sgd {}), 0.01)).unwrap();
    let mut scratch = Scratch::new();
    table.set_stamp(3);
    table.push(&[1, 2, 3], &[0.0; 3], &mut scratch).unwrap();
    table.set_stamp(4);
    table.pull(&[2], Missing::Create, &mut [0.0], &mut scratch).unwrap();
    table.pull(&[3], Missing::Initial, &mut [0.0], &mut scratch).unwrap();
    assert_eq!([1, 2, 3, 4].map(|key| table.stamp(key)), [Some(3), Some(4), Some(3), None]);
}

#[test]
fn adam_on_rows_is_lazy_and_corrects_by_the_tables_step() {
    let initializer = Initializer::Constant(0.0);
    let table = SparseTable::new(SparseSpec { initializer, ..spec(1, Optimizer::Adam(Adam::default()), 0.1) }).unwrap();
    let mut scratch = Scratch::new();
    table.push(&[1], &[1.0], &mut scratch).unwrap();
    let after_one = pull(&table, &[1]);
    table.push(&[2], &[1.0], &mut scratch).unwrap();
    assert_eq!(pull(&table, &[1]), after_one, "a row that is not pushed does not move");
    // Key 2's first gradient came at step 2: the rate is multiplied by sqrt(1 - 0.999^2) / (1 - 0.9^2), the moments are
    // those of a first gradient: 0.1 and 0.001.
    let expected = -0.1 * (1.0f64 - 0.998_001).sqrt() / 0.19 * 0.1 / 0.001f64.sqrt();
    assert!((f64::from(pull(&table, &[2])[0]) - expected).abs() < 1e-6);
}

#[test]
fn dense_and_sparse_pushes_do_the_same_arithmetic() {
    for regularizer in [None, Some(Regularizer::L1(0.01)), Some(Regularizer::L2(0.1))] {
        let dim = 13;
        let schedule = Schedule::Exponential { base: 0.1, decay_steps: 2, decay_rate: 0.5, staircase: false };
        let optimizer = Optimizer::Adam(Adam::default());
        let sparse =
            SparseTable::new(SparseSpec { schedule: schedule.clone(), regularizer, ..spec(dim, optimizer, 0.1) })
                .unwrap();
        let dense = DenseTable::new(DenseSpec {
            shape: vec![dim],
            optimizer,
            schedule,
            regularizer,
            non_finite: NonFinite::Skip,
        })
        .unwrap();
        dense.assign(&pull(&sparse, &[77])).unwrap();
        let mut refreshed = vec![0.0; dim];
        for step in 0..10 {
            let gradient: Vec<f32> = (0..dim).map(|i| (i as f32 - 6.0) * 0.1 + step as f32 * 0.01).collect();
            sparse.push(&[77], &gradient, &mut Scratch::new()).unwrap();
            dense.push_and_pull(&gradient, &mut 0, &mut refreshed).unwrap();
            assert_eq!(pull(&sparse, &[77]), refreshed);
        }
    }
}

#[test]
fn differences_are_added_as_they_are_and_new_rows_start_from_their_first_values() {
    let table = SparseTable::new(spec(2, Optimizer::Adam(Adam::default()), 0.1)).unwrap();
    let first = pull(&table, &[1, 2]);
    let report = table.add(&[1, 3, 1], &[1.0, 2.0, f32::NAN, 0.0, 0.5, 0.5], &mut Scratch::new()).unwrap();
    assert_eq!((report.applied, report.non_finite), (2, 1));
    assert_eq!(pull(&table, &[1, 2]), [first[0] + 1.0 + 0.5, first[1] + 2.0 + 0.5, first[2], first[3]]);
    assert_eq!((table.len(), table.step()), (1, 0), "no row for what was refused, and not a step");
    assert_eq!(table.read(1, |_, state| state.to_vec()), Some(vec![0.0; 4]), "the rule's state is untouched");
    assert!(table.add(&[1], &[0.0; 3], &mut Scratch::new()).is_err());
}

#[test]
fn a_specification_that_cannot_work_is_refused_with_its_reason() {
    let good = || spec(3, Optimizer::Sgd(Sgd {}), 1.0);
    let refused = |spec: SparseSpec| SparseTable::new(spec).unwrap_err();
    assert_eq!(
        refused(SparseSpec { shards: 48, ..good() }).to_string(),
        "`shards` of a sparse table must be a power of two up to 65536, got 48"
    );
    assert_eq!(
        refused(SparseSpec { dim: 0, ..good() }).to_string(),
        "`dim` of a sparse table must be from 1 to 1048576, got 0"
    );
    let adam = Optimizer::Adam(Adam { beta1: 1.0, ..Adam::default() });
    assert_eq!(
        refused(SparseSpec { optimizer: adam, ..good() }).to_string(),
        "`beta1` of adam must be in [0, 1), got 1"
    );
    let xavier = Initializer::Xavier { uniform: true, fan_in: None, fan_out: None };
    let error = refused(SparseSpec { initializer: xavier, ..good() });
    assert!(error.hint().unwrap().contains("with_fans_of"));
    assert!(SparseTable::new(SparseSpec { initializer: xavier.with_fans_of(&[1000, 3]), ..good() }).is_ok());
}

#[test]
fn present_rows_are_copied_and_absent_keys_named_in_order_and_not_created() {
    let table = SparseTable::new(spec(2, Optimizer::Sgd(Sgd {}), 0.1)).unwrap();
    let mut scratch = Scratch::new();
    let odd: Vec<Key> = (0..1000).map(|i| 2 * i + 1).collect();
    let weights: Vec<f32> = odd.iter().flat_map(|&key| [key as f32, -(key as f32)]).collect();
    table.put(&odd, &weights, Existing::Keep, &mut scratch).unwrap();
    let keys: Vec<Key> = (0..2001).rev().collect();
    let (mut rows, mut absent) = (vec![9.0; keys.len() * 2], vec![77]);
    table.pull_present(&keys, &mut rows, &mut absent, &mut scratch).unwrap();
    let mut looked_up = Vec::new();
    table.absent(&keys, &mut looked_up, &mut scratch).unwrap();
    assert_eq!(looked_up, absent);
    for (key, row) in keys.iter().zip(rows.chunks(2)) {
        let expected = if key % 2 == 1 { [*key as f32, -(*key as f32)] } else { [9.0, 9.0] };
        assert_eq!(row, expected);
    }
    let expected: Vec<u32> = (0..2001).filter(|at| keys[*at as usize].is_multiple_of(2)).collect();
    assert_eq!((absent, table.len()), (expected, 1000));
    let error = table.pull_present(&keys, &mut [0.0], &mut Vec::new(), &mut scratch).unwrap_err();
    assert!(matches!(error, Error::Length { .. }));
}

#[test]
fn a_put_keeps_or_replaces_the_weights_of_a_row_and_leaves_its_state_and_the_step() {
    let table = SparseTable::new(spec(1, Optimizer::Adam(Adam::default()), 0.1)).unwrap();
    let mut scratch = Scratch::new();
    table.push(&[1], &[1.0], &mut scratch).unwrap();
    let trained = table.read(1, |weights, state| (weights.to_vec(), state.to_vec())).unwrap();
    table.put(&[1, 2], &[5.0, 6.0], Existing::Keep, &mut scratch).unwrap();
    assert_eq!(table.read(1, |weights, state| (weights.to_vec(), state.to_vec())).unwrap(), trained);
    assert_eq!(pull(&table, &[2]), [6.0]);
    table.put(&[2, 1], &[7.0, 8.0], Existing::Replace, &mut scratch).unwrap();
    assert_eq!(pull(&table, &[1, 2]), [8.0, 7.0]);
    assert_eq!((table.read(1, |_, state| state.to_vec()).unwrap(), table.step()), (trained.1, 1));
}

#[test]
fn the_memory_of_a_table_is_known_before_it_is_filled() {
    let plain = spec(10, Optimizer::Adam(Adam::default()), 0.1);
    let ctr = SparseSpec { accessor: Accessor::Ctr(CtrOptions::default()), ..plain.clone() };
    for (spec, tolerance) in [(SparseSpec { shards: 1, ..plain.clone() }, 0), (plain, 100), (ctr, 100)] {
        for rows in [0, 1, 700, 50_000u64] {
            let table = SparseTable::new(spec.clone()).unwrap();
            let keys: Vec<Key> = (0..rows).collect();
            let (mut scratch, floats) = (Scratch::new(), keys.len() * spec.dim);
            table.pull(&keys, Missing::Create, &mut vec![0.0; floats], &mut scratch).unwrap();
            table.push(&keys, &vec![0.1; floats], &mut scratch).unwrap();
            // Shards differ in their numbers of rows, so their indexes may have grown once more or less.
            let (expected, got) = (spec.bytes_for(rows), table.bytes() as u64);
            assert!(expected.abs_diff(got) * 1000 <= got * tolerance, "{rows} rows: {got} bytes, expected {expected}");
        }
    }
}
