//! A table as a copy of rows that another table owns: bases, differences, and rows that are received.
#![allow(clippy::unwrap_used, reason = "a test")]

use openfleet_core::Key;
use openfleet_table::sparse::Differences;
use openfleet_table::{Existing, Initializer, Missing, Optimizer, Schedule, Scratch, Sgd, SparseSpec, SparseTable};
use proptest::prelude::*;

const OFTEN: u32 = 3;

fn spec(dim: usize) -> SparseSpec {
    SparseSpec {
        dim,
        optimizer: Optimizer::Sgd(Sgd::default()),
        schedule: Schedule::Constant(1.0),
        regularizer: None,
        initializer: Initializer::Constant(0.0),
        seed: 1,
        shards: 2,
        accessor: Default::default(),
        admission: Default::default(),
        capacity: None,
        non_finite: Default::default(),
        salted: false,
        storage: Default::default(),
    }
}

fn copy(dim: usize) -> SparseTable {
    SparseTable::new(spec(dim)).unwrap().as_copy(OFTEN)
}

fn push(table: &SparseTable, keys: &[Key], gradient: f32) {
    table.push(keys, &vec![gradient; keys.len() * table.dim()], &mut Scratch::new()).unwrap();
}

fn differences(table: &SparseTable, keys: &[Key], divisor: f32) -> Differences {
    table.differences(keys, divisor, &mut Scratch::new()).unwrap()
}

#[test]
fn a_row_is_listed_each_time_it_was_used_often_and_once_per_window() {
    let table = copy(1);
    (0..2).for_each(|_| push(&table, &[1, 2], 1.0));
    assert!(table.take_often_used().is_empty());
    push(&table, &[2, 3], 1.0);
    assert_eq!(table.take_often_used(), [2]);
    (0..6).for_each(|_| push(&table, &[2], 1.0));
    assert_eq!(table.take_often_used(), [2], "once, however often it was used meanwhile");
    assert_eq!(table.take_used(), [1, 3], "what was listed and not used since is left out");
    push(&table, &[2], 1.0);
    assert_eq!(table.take_used(), [2]);
    assert!(table.take_used().is_empty());
    assert_eq!(table.changed_keys(), [1, 2, 3], "rows have a difference until it is taken");
}

#[test]
fn a_whole_difference_leaves_no_base_and_a_part_leaves_the_rest() {
    let table = copy(2);
    push(&table, &[1, 2], -8.0);
    assert_eq!(differences(&table, &[1, 9], 2.0), Differences { keys: vec![1], values: vec![4.0, 4.0] });
    assert_eq!(differences(&table, &[1], 2.0), Differences { keys: vec![1], values: vec![2.0, 2.0] });
    assert_eq!(differences(&table, &[2], 1.0), Differences { keys: vec![2], values: vec![8.0, 8.0] });
    assert_eq!(table.changed_keys(), [1]);
    assert_eq!(differences(&table, &[2], 1.0), Differences::default());
    push(&table, &[2], 0.0);
    assert_eq!(table.changed_keys(), [1, 2]);
    assert_eq!(differences(&table, &[2], 1.0), Differences::default(), "pushed, but equal to its base");
    assert_eq!(table.changed_keys(), [1]);
}

#[test]
fn a_row_that_is_not_finite_is_not_taken_and_keeps_its_base() {
    let table = copy(1);
    push(&table, &[1], -1.0);
    table.put(&[1], &[f32::INFINITY], Existing::Replace, &mut Scratch::new()).unwrap();
    assert_eq!(differences(&table, &[1], 1.0), Differences::default());
    assert_eq!(table.changed_keys(), [1]);
}

#[test]
fn received_rows_are_added_to_progress_and_replace_rows_without_any() {
    let (table, mut scratch) = (copy(1), Scratch::new());
    table.put(&[1, 2], &[1.0, 2.0], Existing::Keep, &mut scratch).unwrap();
    push(&table, &[1], -10.0);
    table.receive(&[1, 2, 3], &[5.0, 7.0, 9.0], &mut scratch).unwrap();
    let row = |key| table.read(key, |row, _| row[0]);
    assert_eq!((row(1), row(2), row(3)), (Some(15.0), Some(7.0), None));
    assert_eq!(differences(&table, &[1, 2], 1.0), Differences { keys: vec![1], values: vec![10.0] });
}

#[test]
fn a_table_that_is_no_copy_has_no_differences() {
    let table = SparseTable::new(spec(1)).unwrap();
    push(&table, &[1], -1.0);
    assert_eq!(differences(&table, &[1], 1.0), Differences::default());
    assert!(table.changed_keys().is_empty() && table.take_used().is_empty());
}

#[test]
fn bases_follow_rows_whose_numbers_change() {
    let table = copy(1);
    table.set_stamp(0);
    push(&table, &[1, 2, 3, 4, 5, 6], -1.0);
    table.set_stamp(9);
    push(&table, &[2, 4, 6], -2.0);
    assert_eq!(table.shrink(9, 5).by_age, 3);
    assert_eq!(table.changed_keys(), [2, 4, 6]);
    let mut taken = differences(&table, &[1, 2, 3, 4, 5, 6], 1.0);
    taken.keys.sort_unstable();
    assert_eq!(taken, Differences { keys: vec![2, 4, 6], values: vec![3.0; 3] });
    push(&table, &[1], -1.0);
    assert_eq!(differences(&table, &[1], 1.0), Differences { keys: vec![1], values: vec![1.0] });
}

proptest! {
    /// Two copies and their owner: at the end all have the sum of all changes, to the bit.
    #[test]
    fn copies_that_exchange_everything_agree_with_their_owner(
        steps in prop::collection::vec((0usize..2, prop::collection::vec(0u64..20, 1..8), -9i32..9, any::<bool>()), 1..60),
    ) {
        let (owner, copies, mut scratch) = (SparseTable::new(spec(1)).unwrap(), [copy(1), copy(1)], Scratch::new());
        let all: Vec<Key> = (0..20).collect();
        for copy in &copies {
            copy.put(&all, &[0.0; 20], Existing::Keep, &mut scratch).unwrap();
        }
        let exchange = |copy: &SparseTable, keys: &[Key], scratch: &mut Scratch| {
            let Differences { keys, values } = copy.differences(keys, 1.0, scratch).unwrap();
            owner.add(&keys, &values, scratch).unwrap();
            let mut rows = vec![0.0; all.len()];
            owner.pull(&all, Missing::Initial, &mut rows, scratch).unwrap();
            copy.receive(&all, &rows, scratch).unwrap();
        };
        let mut sums = [0.0f32; 20];
        for (which, mut keys, gradient, exchanges) in steps {
            keys.sort_unstable();
            keys.dedup();
            push(&copies[which], &keys, gradient as f32);
            keys.iter().for_each(|&key| sums[key as usize] -= gradient as f32);
            if exchanges {
                let used = copies[which].take_used();
                exchange(&copies[which], &used, &mut scratch);
            }
        }
        for copy in [&copies[0], &copies[1], &copies[0]] {
            exchange(copy, &copy.changed_keys(), &mut scratch);
            prop_assert!(copy.changed_keys().is_empty());
        }
        for table in [&owner, &copies[0], &copies[1]] {
            let mut rows = vec![0.0; all.len()];
            table.pull(&all, Missing::Initial, &mut rows, &mut scratch).unwrap();
            prop_assert_eq!(&rows[..], &sums[..]);
        }
    }
}
