//! Small rows: weights of 16 bits and one float of optimizer state per row.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;

use openfleet_core::bfloat16::{round_to_nearest, widen};
use openfleet_core::placement::{BUCKET_COUNT, Buckets};
use openfleet_core::{Hinted, Key};
use openfleet_table::checkpoint::{
    Commit, Manifest, MappedTable, Memory, Replaces, Sequential, SparseCut, TableCuts, Work, each_row, read_manifest,
    read_sparse, save_alone,
};
use openfleet_table::{
    Accessor, Adagrad, Adam, CtrOptions, DenseSpec, DenseTable, Error, Initializer, Missing, Optimizer, Regularizer,
    RowStorage, RowwiseAdagrad, Schedule, Scratch, Sgd, ShowClick, SparseSpec, SparseTable,
};

fn spec(dim: usize, optimizer: Optimizer, storage: RowStorage) -> SparseSpec {
    SparseSpec {
        dim,
        optimizer,
        schedule: Schedule::Constant(0.05),
        regularizer: None,
        initializer: Initializer::Uniform { low: -1.0, high: 1.0 },
        seed: 7,
        shards: 4,
        accessor: Accessor::Plain,
        admission: Default::default(),
        capacity: None,
        non_finite: Default::default(),
        salted: false,
        storage,
    }
}

fn rowwise() -> Optimizer {
    Optimizer::RowwiseAdagrad(RowwiseAdagrad::default())
}

fn table(dim: usize, optimizer: Optimizer, storage: RowStorage) -> Arc<SparseTable> {
    Arc::new(SparseTable::new(spec(dim, optimizer, storage)).unwrap())
}

fn keys(count: u64) -> Vec<Key> {
    (0..count).map(|key| key.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect()
}

fn gradients(count: usize, step: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7 + step * 3) % 11) as f32 * 0.173 - 0.9).collect()
}

/// Every row as bits, by key.
fn rows(table: &SparseTable) -> Vec<(Key, Vec<u32>, Vec<u32>)> {
    let bits = |floats: &[f32]| floats.iter().map(|float| float.to_bits()).collect();
    let mut rows = Vec::new();
    table.for_each(|key, weights, state| rows.push((key, bits(weights), bits(state))));
    rows.sort();
    rows
}

fn pull(table: &SparseTable, keys: &[Key], missing: Missing) -> Vec<f32> {
    let mut rows = vec![0.0; keys.len() * table.dim()];
    table.pull(keys, missing, &mut rows, &mut Scratch::new()).unwrap();
    rows
}

fn save(storage: &Memory, table: &Arc<SparseTable>, number: u64, delta: bool, without_state: bool) -> Manifest {
    let standing = delta.then(|| read_manifest(storage).unwrap());
    let cut = table.cut_since(standing.as_ref().map(Manifest::moment)).unwrap();
    let cuts = TableCuts {
        server: 0,
        buckets: 0..BUCKET_COUNT,
        sparse: vec![SparseCut { name: "t".into(), cut, without_state }],
        dense: Vec::new(),
        work: Work::default(),
        position: Default::default(),
    };
    let replaces = standing.map_or(Replaces::Anything, |standing| Replaces::Changes(standing.id));
    save_alone(storage, Commit { id: format!("{number:016x}"), replaces, ..Commit::default() }, cuts, true).unwrap()
}

fn load(storage: &Memory, manifest: &Manifest, table: &SparseTable) {
    read_sparse(storage, manifest, &manifest.sparse[0], 0..BUCKET_COUNT, table, true, &Sequential).unwrap();
}

#[test]
fn row_wise_adagrad_divides_by_the_mean_square_of_the_row() {
    // By hand: the gradient (3, 4) has the mean square 12.5, then 12.5 + 12.5 = 25, whose root is 5.
    let spec = SparseSpec { initializer: Initializer::Constant(1.0), ..spec(2, rowwise(), RowStorage::Float32) };
    let table = SparseTable::new(spec).unwrap();
    let mut scratch = Scratch::new();
    table.push(&[9], &[3.0, 4.0], &mut scratch).unwrap();
    table.push(&[9], &[3.0, 4.0], &mut scratch).unwrap();
    let root = 12.5f64.sqrt();
    let expected = [1.0 - 0.05 * 3.0 / root - 0.05 * 3.0 / 5.0, 1.0 - 0.05 * 4.0 / root - 0.05 * 4.0 / 5.0];
    table.read(9, |weights, state| {
        for (weight, expected) in weights.iter().zip(expected) {
            assert!((f64::from(*weight) - expected).abs() < 1e-6, "{weights:?}, expected {expected:?}");
        }
        assert_eq!(state, [25.0]);
    });
}

#[test]
fn both_parts_of_a_ctr_row_have_a_mean_square_of_their_own_and_are_restored() {
    let options = CtrOptions { zero_init: false, embedx_threshold: 2.0, ..CtrOptions::default() };
    let spec = SparseSpec { accessor: Accessor::Ctr(options), ..spec(3, rowwise(), RowStorage::Float32) };
    let table = Arc::new(SparseTable::new(spec.clone()).unwrap());
    let mut scratch = Scratch::new();
    for step in 0..3 {
        // The second push of key 1 creates its long part, the third trains it; key 2 stays short.
        let counts = ShowClick { show: &[1.0, 0.1], click: &[1.0, 0.0] };
        table.push_with(&[1, 2], &[2.0, 1.0, 7.0, 0.5, 9.0, 9.0], Some(counts), &mut scratch).unwrap();
        let long = if step < 2 { 0.0 } else { (1.0 + 49.0) / 2.0 };
        assert_eq!(table.read(1, |_, state| state.to_vec()).unwrap(), [4.0 * (step + 1) as f32, long]);
    }
    assert_eq!(table.read(2, |_, state| state.to_vec()).unwrap(), [0.75, 0.0]);
    let storage = Memory::new();
    let manifest = save(&storage, &table, 1, false, false);
    let loaded = SparseTable::new(spec).unwrap();
    load(&storage, &manifest, &loaded);
    assert_eq!(rows(&loaded), rows(&table));
}

#[test]
fn a_row_wise_rule_is_refused_for_a_dense_table_by_name() {
    let dense = |optimizer| {
        DenseTable::new(DenseSpec {
            shape: vec![4],
            optimizer,
            schedule: Schedule::Constant(0.1),
            regularizer: None,
            non_finite: Default::default(),
        })
    };
    let error = dense(rowwise()).unwrap_err();
    assert_eq!(error.to_string(), "`rowwise_adagrad` cannot train a dense table, which has no rows");
    assert!(error.hint().unwrap().to_string().contains("`adagrad`"));
    assert!(dense(rowwise().for_dense()).is_ok());
    let Optimizer::Adagrad(Adagrad { epsilon, .. }) = rowwise().for_dense() else { panic!("not adagrad") };
    assert_eq!(epsilon, RowwiseAdagrad::default().epsilon);
}

#[test]
fn updates_of_16_bit_rows_are_those_of_32_bits_rounded_to_a_neighbour() {
    let rules =
        [Optimizer::Sgd(Sgd {}), Optimizer::Adagrad(Adagrad::default()), Optimizer::Adam(Adam::default()), rowwise()];
    for rule in rules {
        // 5 = one block of four and one element; 17 = two blocks of eight and one element.
        for dim in [1, 5, 17] {
            let keys = keys(200);
            let (narrow, wide) = (table(dim, rule, RowStorage::Bfloat16), table(dim, rule, RowStorage::Float32));
            let mut scratch = Scratch::new();
            pull(&narrow, &keys, Missing::Create);
            for step in 0..5 {
                let gradients = gradients(keys.len() * dim, step);
                // The wide table continues from the narrow one's rows, so each step is compared on its own.
                narrow.for_each(|key, weights, state| wide.assign(key, weights, Some(state)).unwrap());
                wide.set_step(narrow.step());
                narrow.push(&keys, &gradients, &mut scratch).unwrap();
                wide.push(&keys, &gradients, &mut scratch).unwrap();
                let (mut exact, mut differs) = (0, 0);
                for key in &keys {
                    let (expected, state) = wide.read(*key, |w, s| (w.to_vec(), s.to_vec())).unwrap();
                    narrow.read(*key, |weights, narrow_state| {
                        assert_eq!(narrow_state, state, "state is computed in 32 bits");
                        for (weight, expected) in weights.iter().zip(&expected) {
                            let low = f32::from_bits(expected.to_bits() & 0xffff_0000);
                            let high = f32::from_bits((expected.to_bits() & 0xffff_0000) + 0x1_0000);
                            assert!(*weight == low || *weight == high, "{weight} for {expected}");
                            exact += usize::from(*weight == widen(round_to_nearest(*expected)));
                            differs += usize::from(*weight != widen(round_to_nearest(*expected)));
                        }
                    });
                }
                assert!(exact > differs && differs > 0, "{rule:?}, dim {dim}: {exact} to the nearest, {differs} not");
            }
        }
    }
}

#[test]
fn updates_too_small_for_16_bits_are_right_in_the_mean() {
    // A step of bfloat16 at 1 is 1/128. Each update is a hundredth of it and would be lost by rounding to the nearest.
    let spec = SparseSpec {
        initializer: Initializer::Constant(1.0),
        schedule: Schedule::Constant(1.0),
        ..spec(8, Optimizer::Sgd(Sgd {}), RowStorage::Bfloat16)
    };
    let (table, keys, mut scratch) = (SparseTable::new(spec).unwrap(), keys(2000), Scratch::new());
    let gradients = vec![-1.0 / 12_800.0; keys.len() * 8];
    for _ in 0..100 {
        table.push(&keys, &gradients, &mut scratch).unwrap();
    }
    let weights = pull(&table, &keys, Missing::Initial);
    let mean = weights.iter().map(|weight| f64::from(*weight)).sum::<f64>() / weights.len() as f64;
    // 100 roundings with a variance of about (1/128)^2 / 100 each: a standard deviation of 1/128 per weight, 6e-5 of the mean.
    assert!((mean - (1.0 + 1.0 / 128.0)).abs() < 3e-4, "{mean}");
}

#[test]
fn rounding_depends_on_key_and_step_but_not_on_shards_order_or_other_keys() {
    let keys = keys(300);
    let train = |shards: usize, parts: usize| {
        // Each part has the keys of a server, which makes an empty push where it has none of a step's keys.
        let tables: Vec<_> = (0..parts)
            .map(|_| SparseTable::new(SparseSpec { shards, ..spec(10, rowwise(), RowStorage::Bfloat16) }).unwrap())
            .collect();
        let buckets = Buckets::new(parts).unwrap();
        let mut scratch = Scratch::new();
        for step in 0..20 {
            let gradients = gradients(keys.len() * 10, step);
            for (part, table) in tables.iter().enumerate() {
                let mine = |at: &usize| buckets.range(part).contains(&openfleet_core::placement::bucket_of(keys[*at]));
                let mut own: Vec<usize> = (0..keys.len()).filter(mine).collect();
                if shards > 1 {
                    own.reverse();
                }
                let own_keys: Vec<Key> = own.iter().map(|at| keys[*at]).collect();
                let own_gradients: Vec<f32> = own.iter().flat_map(|at| gradients[at * 10..][..10].to_vec()).collect();
                table.push(&own_keys, &own_gradients, &mut scratch).unwrap();
            }
        }
        let mut all: Vec<_> = tables.iter().flat_map(rows).collect();
        all.sort();
        all
    };
    let alone = train(1, 1);
    assert_eq!(alone, train(16, 1));
    assert_eq!(alone, train(4, 3));
    let weights = |row: usize| alone[row].1.clone();
    assert_ne!(weights(0), weights(1));
}

#[test]
fn a_key_that_appears_twice_in_a_push_is_updated_twice() {
    let table = table(4, Optimizer::Sgd(Sgd {}), RowStorage::Bfloat16);
    table.assign(3, &[1.0; 4], None).unwrap();
    table.push(&[3, 3], &[10.0; 8], &mut Scratch::new()).unwrap();
    // 1 - 0.05 * 10, twice: both values fit into 16 bits.
    table.read(3, |weights, _| assert_eq!(weights, [0.0; 4]));
}

#[test]
fn a_regularizer_reads_the_stored_weights() {
    let regularizer = Some(Regularizer::L2(1.0));
    let table = SparseTable::new(SparseSpec { regularizer, ..spec(2, rowwise(), RowStorage::Bfloat16) }).unwrap();
    table.assign(3, &[2.0, 4.0], None).unwrap();
    table.push(&[3], &[0.0, 0.0], &mut Scratch::new()).unwrap();
    // The gradient is the weights: mean square (4 + 16) / 2.
    table.read(3, |weights, state| {
        assert_eq!(state, [10.0]);
        assert!((weights[0] - (2.0 - 0.05 * 2.0 / 10f32.sqrt())).abs() <= 1.0 / 128.0, "{weights:?}");
    });
}

#[test]
fn a_row_of_16_weights_takes_at_most_60_bytes() {
    let table = table(16, rowwise(), RowStorage::Bfloat16);
    let keys = keys(100_000);
    for keys in keys.chunks(1000) {
        pull(&table, keys, Missing::Create);
    }
    let bytes = table.bytes() as f64 / table.len() as f64;
    assert!(bytes <= 60.0, "{bytes}");
}

#[test]
fn an_absent_key_has_the_values_that_its_row_would_start_with() {
    let table = table(7, rowwise(), RowStorage::Bfloat16);
    let keys = keys(50);
    let initial = pull(&table, &keys, Missing::Initial);
    assert_eq!(initial, pull(&table, &keys, Missing::Create));
    assert!(initial.iter().all(|weight| widen(round_to_nearest(*weight)) == *weight));
    // Rows longer than the buffer of short ones.
    let long = SparseTable::new(spec(200, rowwise(), RowStorage::Bfloat16)).unwrap();
    assert_eq!(pull(&long, &keys, Missing::Initial), pull(&long, &keys, Missing::Create));
}

#[test]
fn training_continues_from_a_checkpoint_bit_by_bit() {
    let keys = keys(100);
    for rule in [rowwise(), Optimizer::Adam(Adam::default())] {
        let table = table(6, rule, RowStorage::Bfloat16);
        let (storage, mut scratch) = (Memory::new(), Scratch::new());
        let mut train = |table: &SparseTable, steps: std::ops::Range<usize>| {
            for step in steps {
                table.push(&keys, &gradients(600, step), &mut scratch).unwrap();
            }
        };
        train(&table, 0..10);
        let manifest = save(&storage, &table, 1, false, false);
        train(&table, 10..20);
        let resumed = SparseTable::new(table.spec().clone()).unwrap();
        load(&storage, &manifest, &resumed);
        train(&resumed, 10..20);
        assert_eq!(rows(&resumed), rows(&table), "{rule:?}");
    }
}

#[test]
fn rows_are_loaded_across_storages_and_a_chain_may_have_both() {
    let (keys, mut scratch) = (keys(64), Scratch::new());
    let wide = table(5, rowwise(), RowStorage::Float32);
    wide.push(&keys, &gradients(320, 0), &mut scratch).unwrap();
    let storage = Memory::new();
    let first = save(&storage, &wide, 1, false, false);
    // From 32 bits to 16: to the nearest value.
    let narrow = table(5, rowwise(), RowStorage::Bfloat16);
    load(&storage, &first, &narrow);
    for key in &keys {
        let expected = wide.read(*key, |weights, state| (weights.to_vec(), state.to_vec())).unwrap();
        narrow.read(*key, |weights, state| {
            assert_eq!(state, expected.1);
            assert!(weights.iter().zip(&expected.0).all(|(got, was)| *got == widen(round_to_nearest(*was))));
        });
    }
    // Its delta has 16 bits over a base of 32.
    narrow.push(&keys[..10], &gradients(50, 1), &mut scratch).unwrap();
    let second = save(&storage, &narrow, 2, true, false);
    assert_eq!((second.version, second.layers.len(), second.sparse[0].parts[0].rows), (3, 1, 10));
    let again = table(5, rowwise(), RowStorage::Bfloat16);
    load(&storage, &second, &again);
    assert_eq!(rows(&again), rows(&narrow));
    // And from 16 bits to 32: nothing is lost.
    let third = save(&storage, &narrow, 3, false, false);
    let back = table(5, rowwise(), RowStorage::Float32);
    load(&storage, &third, &back);
    assert_eq!(rows(&back), rows(&narrow));
}

#[test]
fn a_saved_model_with_16_bit_rows_predicts_from_its_files() {
    let keys = keys(64);
    let table = table(5, rowwise(), RowStorage::Bfloat16);
    table.push(&keys[..40], &gradients(200, 0), &mut Scratch::new()).unwrap();
    let storage = Memory::new();
    let manifest = save(&storage, &table, 1, false, true);
    let mapped = MappedTable::open(&storage, &manifest, &manifest.sparse[0], table.spec().without_state()).unwrap();
    let mut got = vec![0.0; 320];
    mapped.pull(&keys, &mut got).unwrap();
    assert_eq!(got, pull(&table, &keys, Missing::Initial), "with and without a row");
    let weights = manifest.files.iter().find(|file| file.path.ends_with(".weights.npy")).unwrap();
    assert_eq!(weights.bytes, 128 + 40 * 5 * 2);
}

#[test]
fn only_checkpoints_with_small_rows_need_the_new_version() {
    let versions = |optimizer, storage| {
        let table = table(4, optimizer, storage);
        table.push(&[1, 2], &[0.5; 8], &mut Scratch::new()).unwrap();
        let [whole, model] = [false, true].map(|without_state| {
            let manifest = save(&Memory::new(), &table, 1, false, without_state);
            let json = serde_json::to_string(&manifest.sparse[0].spec).unwrap();
            assert_eq!(json.contains("storage"), storage == RowStorage::Bfloat16, "{json}");
            manifest.version
        });
        (whole, model)
    };
    assert_eq!(versions(Optimizer::Adagrad(Adagrad::default()), RowStorage::Float32), (1, 1));
    // Earlier releases know neither the rule nor the layout of its state; a model for prediction has no state.
    assert_eq!(versions(rowwise(), RowStorage::Float32), (3, 1));
    assert_eq!(versions(Optimizer::Sgd(Sgd {}), RowStorage::Bfloat16), (3, 3));
}

#[test]
fn the_columns_of_small_rows_are_what_the_format_says() {
    let table = table(3, rowwise(), RowStorage::Bfloat16);
    table.assign(5, &[1.0, -2.0, 0.5], Some(&[9.0])).unwrap();
    let storage = Memory::new();
    let manifest = save(&storage, &table, 1, false, false);
    let column = |name: &str| {
        let files = storage.files();
        let (_, bytes) = files.into_iter().find(|(path, _)| path.ends_with(&format!(".{name}.npy"))).unwrap();
        let (header, values) = bytes.split_at(128.min(bytes.len()));
        (String::from_utf8_lossy(header).into_owned(), values.to_vec())
    };
    let (header, weights) = column("weights");
    assert!(header.contains("'descr': '<u2'") && header.contains("'shape': (1, 3)"), "{header}");
    // 1, -2 and 0.5 are 0x3f80, 0xc000 and 0x3f00 without their lower halves.
    assert_eq!(weights, [0x80, 0x3f, 0x00, 0xc0, 0x00, 0x3f]);
    let (header, state) = column("state");
    assert!(header.contains("'descr': '<f4'") && header.contains("'shape': (1, 1, 1)"), "{header}");
    assert_eq!(state, 9f32.to_le_bytes());
    each_row(&storage, &manifest, &manifest.sparse[0], 0..BUCKET_COUNT, |row| {
        assert_eq!((row.key, row.weights, row.state), (5, &[1.0, -2.0, 0.5][..], &[9.0][..]));
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn what_16_bit_rows_cannot_do_is_refused_by_name() {
    let ctr = Accessor::Ctr(CtrOptions::default());
    let error = SparseTable::new(SparseSpec { accessor: ctr, ..spec(4, rowwise(), RowStorage::Bfloat16) }).unwrap_err();
    assert_eq!(error.to_string(), "ctr rows cannot be stored as `bfloat16`");
    assert!(error.hint().is_some());
    let table = table(4, rowwise(), RowStorage::Bfloat16);
    let error = table.add(&[1], &[0.5; 4], &mut Scratch::new()).unwrap_err();
    assert_eq!(error.to_string(), "differences cannot be added to rows stored as `bfloat16`");
    assert!(error.hint().unwrap().to_string().contains("geo"));
    assert!(table.is_empty());
    let error = "float16".parse::<RowStorage>().unwrap_err();
    assert_eq!(error.to_string(), "`storage` of a sparse table must be `float32` or `bfloat16`, got `float16`");
    assert_eq!("bfloat16".parse::<RowStorage>().unwrap(), RowStorage::Bfloat16);
}
