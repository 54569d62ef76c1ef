//! Delta saves: whatever happens between them, a chain of them equals one full save.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use openfleet_core::Key;
use openfleet_core::placement::{BUCKET_COUNT, Buckets};
use openfleet_table::accessor::Row;
use openfleet_table::checkpoint::{
    Commit, Manifest, MappedTable, Memory, Parallelism, Replaces, Sequential, SparseCut, TableCuts, Work, compact,
    read_manifest, read_sparse, reshard, save_alone, verify,
};
use openfleet_table::{
    Accessor, Adagrad, Adam, CtrOptions, Error, Existing, Initializer, Missing, Optimizer, RowStorage, RowwiseAdagrad,
    Schedule, Scratch, SparseSpec, SparseTable,
};
use proptest::prelude::*;

fn spec(capacity: Option<usize>, accessor: Accessor) -> SparseSpec {
    SparseSpec {
        dim: 3,
        optimizer: Optimizer::Adagrad(Adagrad::default()),
        schedule: Schedule::Constant(0.5),
        regularizer: None,
        initializer: Initializer::Uniform { low: -1.0, high: 1.0 },
        seed: 7,
        shards: 2,
        accessor,
        admission: Default::default(),
        capacity,
        non_finite: Default::default(),
        salted: false,
        storage: Default::default(),
    }
}

/// The same with small rows: row-wise state, and weights of 16 bits where the accessor allows it.
fn small(spec: SparseSpec) -> SparseSpec {
    let storage = if spec.accessor == Accessor::Plain { RowStorage::Bfloat16 } else { RowStorage::Float32 };
    SparseSpec { optimizer: Optimizer::RowwiseAdagrad(RowwiseAdagrad::default()), storage, ..spec }
}

fn plain() -> Arc<SparseTable> {
    Arc::new(SparseTable::new(spec(None, Accessor::Plain)).unwrap())
}

fn id(number: usize) -> String {
    format!("{number:016x}")
}

fn save(storage: &Memory, table: &Arc<SparseTable>, number: usize, delta: bool) -> Result<Manifest, Error> {
    let standing = delta.then(|| read_manifest(storage)).transpose()?;
    let cut = table.cut_since(standing.as_ref().map(Manifest::moment))?;
    let sparse = vec![SparseCut { name: "t".into(), cut, without_state: false }];
    let cuts = TableCuts {
        server: 0,
        buckets: 0..BUCKET_COUNT,
        sparse,
        dense: Vec::new(),
        work: Work::default(),
        position: Default::default(),
    };
    let replaces = standing.map_or(Replaces::Anything, |standing| Replaces::Changes(standing.id));
    let commit = Commit { id: id(number), replaces, ..Commit::default() };
    save_alone(storage, commit, cuts, true)
}

type Whole = (u32, Vec<u32>, Vec<u32>, Option<(u32, u32, u32, u32, bool)>);

fn rows(table: &SparseTable) -> BTreeMap<Key, Whole> {
    let bits = |floats: &[f32]| floats.iter().map(|float| float.to_bits()).collect();
    let whole = |row: &Row<'_>| {
        let ctr = row.ctr;
        let ctr =
            ctr.map(|c| (c.show.to_bits(), c.click.to_bits(), c.delta_score.to_bits(), c.unseen_days, c.has_long));
        (row.key, (row.stamp, bits(row.weights), bits(row.state), ctr))
    };
    let mut rows = BTreeMap::new();
    table.for_each_row(|row| rows.extend([whole(row)]));
    rows
}

fn loaded(storage: &Memory, spec: SparseSpec) -> SparseTable {
    let manifest = read_manifest(storage).unwrap();
    let table = SparseTable::new(SparseSpec { capacity: None, ..spec }).unwrap();
    read_sparse(storage, &manifest, &manifest.sparse[0], 0..BUCKET_COUNT, &table, true, &Sequential).unwrap();
    table
}

#[derive(Debug, Clone)]
enum Act {
    Push(Vec<Key>),
    Add(Vec<Key>),
    Pull(Vec<Key>, u32),
    Put(Vec<Key>),
    Shrink(u32),
    EndOfDay,
    Save { delta: bool },
    SaveThatFails,
    Compact,
    Restart,
}

fn act() -> impl Strategy<Value = Act> {
    let keys = || prop::collection::vec(0u64..40, 0..12);
    prop_oneof![
        3 => keys().prop_map(Act::Push),
        1 => keys().prop_map(Act::Add),
        1 => (keys(), 0u32..9).prop_map(|(keys, stamp)| Act::Pull(keys, stamp)),
        1 => keys().prop_map(Act::Put),
        1 => (0u32..4).prop_map(Act::Shrink),
        1 => Just(Act::EndOfDay),
        1 => Just(Act::Save { delta: false }),
        4 => Just(Act::Save { delta: true }),
        1 => Just(Act::SaveThatFails),
        1 => Just(Act::Compact),
        1 => Just(Act::Restart),
    ]
}

proptest! {
    #[test]
    fn a_chain_of_deltas_equals_one_full_save(
        acts in prop::collection::vec(act(), 0..50),
        capacity in prop::option::of(8usize..30),
        is_ctr: bool,
        is_small: bool,
    ) {
        let options = CtrOptions { embedx_threshold: 0.15, delete_threshold: 0.1, show_click_decay_rate: 0.5, ..CtrOptions::default() };
        let spec = spec(capacity, if is_ctr { Accessor::Ctr(options) } else { Accessor::Plain });
        let spec = if is_small { small(spec) } else { spec };
        let mut table = Arc::new(SparseTable::new(spec.clone()).unwrap());
        let (storage, mut scratch) = (Memory::new(), Scratch::new());
        let mut saved = save(&storage, &table, 0, false).unwrap();
        for (number, act) in acts.into_iter().enumerate() {
            let floats = |keys: &[Key]| vec![0.5; keys.len() * 3];
            match act {
                Act::Push(keys) => drop(table.push(&keys, &floats(&keys), &mut scratch).unwrap()),
                Act::Add(_) if spec.storage == RowStorage::Bfloat16 => {}
                Act::Add(keys) => drop(table.add(&keys, &floats(&keys), &mut scratch).unwrap()),
                Act::Pull(keys, stamp) => {
                    table.set_stamp(stamp);
                    table.pull(&keys, Missing::Create, &mut floats(&keys), &mut scratch).unwrap();
                }
                Act::Put(keys) => table.put(&keys, &floats(&keys), Existing::Replace, &mut scratch).unwrap(),
                Act::Shrink(age) => drop(table.shrink(9, age)),
                Act::EndOfDay => table.end_of_day(),
                Act::Save { delta } => {
                    saved = save(&storage, &table, number + 1, delta).unwrap();
                    prop_assert_eq!(saved.sparse[0].rows, table.len() as u64);
                    prop_assert_eq!(rows(&loaded(&storage, spec.clone())), rows(&table));
                    let mapped = MappedTable::open(&storage, &saved, &saved.sparse[0], spec.clone()).unwrap();
                    let mut weights = BTreeMap::new();
                    mapped.for_each(|key, row| drop(weights.insert(key, row.to_vec())));
                    prop_assert_eq!(weights.len(), table.len());
                    prop_assert_eq!(mapped.len(), table.len());
                    let (mut theirs, mut ours) = (vec![0.0; 150], vec![1.0; 150]);
                    let keys: Vec<Key> = (0..50).collect();
                    table.pull(&keys, Missing::Initial, &mut ours, &mut scratch).unwrap();
                    mapped.pull(&keys, &mut theirs).unwrap();
                    prop_assert_eq!(ours, theirs);
                }
                // What is not written still has to be saved.
                Act::SaveThatFails => drop(table.cut_since(Some(saved.moment())).unwrap()),
                Act::Compact => {
                    let before = rows(&loaded(&storage, spec.clone()));
                    let compacted = compact(&storage, &saved, &id(1000 + number)).unwrap();
                    prop_assert_eq!(compacted.moment(), saved.moment());
                    let version = if is_small { 3 } else { 1 };
                    prop_assert!(compacted.layers.is_empty() && compacted.version == version);
                    prop_assert_eq!(rows(&loaded(&storage, spec.clone())), before);
                    saved = compacted;
                }
                // Resumes from the last save.
                Act::Restart => {
                    let fresh = SparseTable::new(spec.clone()).unwrap();
                    read_sparse(&storage, &saved, &saved.sparse[0], 0..BUCKET_COUNT, &fresh, true, &Sequential).unwrap();
                    table = Arc::new(fresh);
                }
            }
            verify(&storage, &saved).unwrap();
        }
    }
}

#[test]
fn a_delta_save_has_the_changed_rows_and_names_its_layers() {
    let (table, storage, mut scratch) = (plain(), Memory::new(), Scratch::new());
    let keys: Vec<Key> = (0..1000).collect();
    table.push(&keys, &[0.25; 3000], &mut scratch).unwrap();
    save(&storage, &table, 1, false).unwrap();
    table.push(&[7, 8, 5000], &[0.5; 9], &mut scratch).unwrap();
    let second = save(&storage, &table, 2, true).unwrap();
    assert_eq!((second.version, second.layers.len(), second.layers[0].id.as_str()), (2, 1, id(1).as_str()));
    assert_eq!((second.sparse[0].parts[0].rows, second.sparse[0].rows), (3, 1001));
    let third = save(&storage, &table, 3, true).unwrap();
    assert_eq!((third.sparse[0].parts[0].rows, third.layers.len()), (0, 2));
    // A full save needs none of the others, and removes them.
    let whole = save(&storage, &table, 4, false).unwrap();
    assert_eq!((whole.version, whole.layers.len(), whole.sparse[0].parts[0].rows), (1, 0, 1001));
    let directories: BTreeSet<_> =
        storage.files().into_keys().filter_map(|path| Some(path.split_once('/')?.0.to_owned())).collect();
    assert_eq!(directories, [whole.directory].into());
}

#[test]
fn a_delta_save_has_the_rows_that_moved_without_a_gradient() {
    let adam = Optimizer::Adam(Adam { lazy_mode: false, ..Adam::default() });
    let spec = SparseSpec { optimizer: adam, ..spec(None, Accessor::Plain) };
    let (table, storage, mut scratch) =
        (Arc::new(SparseTable::new(spec.clone()).unwrap()), Memory::new(), Scratch::new());
    let keys: Vec<Key> = (0..1000).collect();
    table.push(&keys, &[0.25; 3000], &mut scratch).unwrap();
    let first = save(&storage, &table, 1, false).unwrap();
    table.push(&[7], &[0.5; 3], &mut scratch).unwrap();
    let second = save(&storage, &table, 2, true).unwrap();
    assert_eq!((second.sparse[0].parts[0].rows, second.layers.len()), (1000, 1));
    assert_eq!((first.version, second.version), (3, 3), "earlier versions have no word for the rule");
    assert_eq!(rows(&loaded(&storage, spec)), rows(&table));
}

#[test]
fn a_rule_that_moves_every_row_needs_plain_rows_without_a_limit() {
    let optimizer = Optimizer::Adam(Adam { lazy_mode: false, ..Adam::default() });
    for spec in [spec(Some(8), Accessor::Plain), spec(None, Accessor::Ctr(CtrOptions::default()))] {
        let error = SparseTable::new(SparseSpec { optimizer, ..spec.clone() }).unwrap_err();
        assert_eq!(error.to_string(), "`adam` without `lazy_mode` needs a sparse table of plain rows without a limit");
        assert!(SparseTable::new(SparseSpec { optimizer: optimizer.lazily(), ..spec }).is_ok());
    }
}

#[test]
fn a_chain_is_divided_among_other_servers_as_a_whole_save_is() {
    let (table, storage, mut scratch) = (plain(), Memory::new(), Scratch::new());
    let keys: Vec<Key> = (0..2000).map(|key: Key| key.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
    table.set_stamp(1);
    table.push(&keys, &[0.25; 6000], &mut scratch).unwrap();
    save(&storage, &table, 1, false).unwrap();
    table.set_stamp(5);
    table.push(&keys[500..], &[0.5; 4500], &mut scratch).unwrap();
    table.shrink(5, 3);
    assert_eq!(table.len(), 1500);
    let second = save(&storage, &table, 2, true).unwrap();
    assert_eq!(second.sparse[0].parts[0].removed, 500);
    for servers in 1..=5 {
        let buckets = Buckets::new(servers).unwrap();
        let mut found = BTreeMap::new();
        for server in 0..servers {
            let part = SparseTable::new(spec(None, Accessor::Plain)).unwrap();
            read_sparse(&storage, &second, &second.sparse[0], buckets.range(server), &part, true, &Sequential).unwrap();
            found.extend(rows(&part));
        }
        assert_eq!(found, rows(&table));
        let elsewhere = Memory::new();
        reshard(&storage, &second, &elsewhere, &id(9), buckets, true).unwrap();
        assert_eq!(rows(&loaded(&elsewhere, spec(None, Accessor::Plain))), rows(&table));
    }
}

/// Three shares that run one after the other.
struct Three;

impl Parallelism for Three {
    fn count(&self) -> usize {
        3
    }

    fn work(&self, share: &(dyn Fn(usize) -> Result<(), Error> + Sync)) -> Result<(), Error> {
        (0..3).try_for_each(share)
    }
}

#[test]
fn rows_read_in_parallel_equal_those_read_sequentially() {
    let (table, storage, mut scratch) = (plain(), Memory::new(), Scratch::new());
    let keys: Vec<Key> = (0..60_000).map(|key: Key| key.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
    table.push(&keys, &vec![0.25; 3 * keys.len()], &mut scratch).unwrap();
    save(&storage, &table, 1, false).unwrap();
    let manifest = read_manifest(&storage).unwrap();
    for servers in 1..=4 {
        let parts = Memory::new();
        let divided = reshard(&storage, &manifest, &parts, &id(9), Buckets::new(servers).unwrap(), true).unwrap();
        let read = |buckets: std::ops::Range<usize>, parallelism: &dyn Parallelism| {
            let fresh = plain();
            let count = read_sparse(&parts, &divided, &divided.sparse[0], buckets, &fresh, true, parallelism).unwrap();
            assert_eq!(count, fresh.len() as u64);
            rows(&fresh)
        };
        assert!(read(0..BUCKET_COUNT, &Three) == rows(&table), "{servers} parts");
        assert!(read(1000..3000, &Three) == read(1000..3000, &Sequential), "{servers} parts");
    }
    // An impossible number of rows is refused by every reader.
    for rows in [60_001, u64::MAX / 8, u64::MAX] {
        let mut wrong = manifest.clone();
        (wrong.sparse[0].rows, wrong.sparse[0].parts[0].rows) = (rows, rows);
        for parallelism in [&Sequential as &dyn Parallelism, &Three] {
            let read = read_sparse(&storage, &wrong, &wrong.sparse[0], 0..BUCKET_COUNT, &plain(), true, parallelism);
            assert!(matches!(read, Err(Error::FileLength { .. })), "{rows}: {read:?}");
        }
    }
    // Every reader reports a flipped bit.
    let weights = storage.files().into_iter().find(|(path, _)| path.ends_with(".weights.npy"));
    let (path, bytes) = weights.unwrap();
    for at in [0, 300_000, 500_000, bytes.len() - 1] {
        let mut wrong = bytes.clone();
        wrong[at] ^= 1;
        storage.put(&path, wrong);
        let read = read_sparse(&storage, &manifest, &manifest.sparse[0], 0..BUCKET_COUNT, &plain(), true, &Three);
        assert!(matches!(read, Err(Error::DamagedBlock { flip: Some(flip), .. }) if flip.offset == at as u64));
    }
}

#[test]
fn a_delta_since_an_unknown_save_is_refused() {
    let (table, storage) = (plain(), Memory::new());
    assert!(matches!(save(&storage, &table, 1, true), Err(Error::NotACheckpoint { .. })));
    save(&storage, &table, 1, false).unwrap();
    let other = plain();
    let error = save(&storage, &other, 2, true).unwrap_err();
    assert_eq!(error, Error::UnknownSave { save: id(1) });
    assert!(other.cut().is_ok(), "a cut that was refused is over");
    // Another job must not have saved in between.
    let stale = read_manifest(&storage).unwrap();
    save(&storage, &other, 3, false).unwrap();
    let error = compact(&storage, &stale, &id(4)).unwrap_err();
    assert!(matches!(error, Error::MissingFile { .. } | Error::ReplacedMeanwhile { .. }), "{error}");
    assert_eq!(read_manifest(&storage).unwrap().id, id(3));
}

#[test]
fn changes_are_not_saved_without_their_state() {
    let (table, storage) = (plain(), Memory::new());
    let base = save(&storage, &table, 1, false).unwrap();
    let cut = table.cut_since(Some(base.moment())).unwrap();
    let sparse = vec![SparseCut { name: "t".into(), cut, without_state: true }];
    let cuts = TableCuts {
        server: 0,
        buckets: 0..BUCKET_COUNT,
        sparse,
        dense: Vec::new(),
        work: Work::default(),
        position: Default::default(),
    };
    let error = openfleet_table::checkpoint::write_part(&storage, &id(2), cuts).unwrap_err();
    assert_eq!(error, Error::DeltaWithout { what: "the optimizer's state" });
}
