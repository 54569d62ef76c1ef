//! Merging the pushes of one step: the state behind sync mode.
//!
//! A step is complete when every live member has contributed. Then its gradients are added in the order of the ranks and
//! divided by the number of members that took part, for dense and sparse tables alike:
//!
//! ```text
//! dense    g = (g_0 + g_1 + ... + g_n-1) / n
//! sparse   for each key:  (sum over the members that have the key, in the order of their ranks) / n
//! ```
//!
//! Dividing by the members that took part, not by those that have the key, makes N workers with one batch each equal to one
//! process on the N batches together. Adding in the order of ranks makes two runs bit-identical: float addition is not
//! associative, and the order of arrival is never the same twice.
//!
//! ```text
//!                contribute (last member missing) / leave (last member missing)
//! collecting ------------------------------------------------------------------> complete
//!     ^                                                                              |
//!     +--------------------------------- take: step + 1 -----------------------------+
//! ```
//!
//! [`Aggregate`] knows who has contributed and holds the contributions (`T`, such as the bytes of a request, which need not be
//! copied); [`DenseMean`] and [`SparseMean`] do the sums for one table each. None of them waits, locks or sends.

use std::collections::{BTreeMap, BTreeSet};

use multiversion::multiversion;
use openfleet_core::{Key, Unique};

use crate::error::{Error, Result, same_length};
use crate::push::ShowClick;

/// The contributions to one step, by rank.
#[derive(Debug)]
pub struct Aggregate<T> {
    step: u64,
    members: BTreeSet<u32>,
    /// Of members, and of ranks that left after they had contributed.
    contributions: BTreeMap<u32, T>,
}

/// The state of a step after a contribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Accepted; other contributions are missing.
    Waiting,
    /// Accepted, and the last one: [`Aggregate::take`] the step now.
    Complete,
    /// The rank had already contributed to this step. The first contribution is kept, this one is dropped.
    Repeat,
}

impl<T> Aggregate<T> {
    /// A group, at the given first step.
    pub fn new(members: impl IntoIterator<Item = u32>, step: u64) -> Self {
        Aggregate { step, members: members.into_iter().collect(), contributions: BTreeMap::new() }
    }

    /// Accepts the contribution of `rank` to `step`. After an error the contribution is dropped and nothing else has changed.
    pub fn contribute(&mut self, rank: u32, step: u64, contribution: T) -> Result<Arrival> {
        let current = self.step;
        match step.cmp(&current) {
            std::cmp::Ordering::Less => return Err(Error::Late { rank, step, current }),
            std::cmp::Ordering::Greater => return Err(Error::Early { rank, step, current }),
            std::cmp::Ordering::Equal => {}
        }
        if self.contributions.contains_key(&rank) {
            return Ok(Arrival::Repeat);
        }
        if !self.members.contains(&rank) {
            return Err(Error::NotAMember { rank, current });
        }
        self.contributions.insert(rank, contribution);
        Ok(if self.is_complete() { Arrival::Complete } else { Arrival::Waiting })
    }

    /// Removes a member, and returns whether the step is complete without it. If it has contributed to this step, its
    /// contribution counts; otherwise the divisor shrinks.
    pub fn leave(&mut self, rank: u32) -> bool {
        self.members.remove(&rank);
        self.is_complete()
    }

    /// A member joins at the current step, which now waits for it too.
    pub fn join(&mut self, rank: u32) {
        self.members.insert(rank);
    }

    /// Whether there is something to apply and no contribution is missing.
    pub fn is_complete(&self) -> bool {
        !self.contributions.is_empty() && self.missing().next().is_none()
    }

    /// The contributions of a complete step in the order of their ranks; the group continues with the next step. `None` while a
    /// contribution is missing. The divisor is the length.
    pub fn take(&mut self) -> Option<BTreeMap<u32, T>> {
        if !self.is_complete() {
            return None;
        }
        self.step += 1;
        Some(std::mem::take(&mut self.contributions))
    }

    /// What was contributed to the current step, in the order of the ranks.
    pub fn contributions(&self) -> impl Iterator<Item = (u32, &T)> {
        self.contributions.iter().map(|(&rank, contribution)| (rank, contribution))
    }

    /// The step being collected.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The live members, in order.
    pub fn members(&self) -> impl Iterator<Item = u32> {
        self.members.iter().copied()
    }

    /// The members that have not contributed yet, in order.
    pub fn missing(&self) -> impl Iterator<Item = u32> {
        self.members.iter().copied().filter(|rank| !self.contributions.contains_key(rank))
    }
}

/// Means of dense gradients; its buffer is reused for the next step.
#[derive(Debug, Default)]
pub struct DenseMean {
    sum: Vec<f32>,
}

/// Floats added at a time: the sum of a block stays in the first-level cache while all contributions are added.
const BLOCK: usize = 2048;

impl DenseMean {
    /// An empty buffer.
    pub fn new() -> Self {
        DenseMean::default()
    }

    /// The sum of `gradients`, in the order of their ranks, divided by `took_part`. A member may have taken part without a
    /// gradient for this table. Fails if lengths differ.
    pub fn mean<'a>(
        &mut self,
        took_part: usize,
        gradients: impl IntoIterator<Item = &'a [f32], IntoIter: Clone>,
    ) -> Result<&[f32]> {
        let gradients = gradients.into_iter();
        let mut rest = gradients.clone();
        let len = rest.next().map_or(0, <[f32]>::len);
        rest.try_for_each(|gradient| same_length("gradient", len, gradient.len()))?;
        self.sum.resize(len, 0.0);
        for (number, sum) in self.sum.chunks_mut(BLOCK).enumerate() {
            let here = number * BLOCK..number * BLOCK + sum.len();
            let mut gradients = gradients.clone();
            // Copied, not added to zero, so that -0.0 is unchanged with one worker.
            gradients.next().into_iter().for_each(|first| sum.copy_from_slice(&first[here.clone()]));
            gradients.for_each(|gradient| add(sum, &gradient[here.clone()]));
            divide(sum, took_part);
        }
        Ok(&self.sum)
    }
}

/// One member's gradients for a sparse table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SparsePart<'a> {
    /// The keys; a key that appears twice is added twice, in order.
    pub keys: &'a [Key],
    /// `keys.len() * dim` floats.
    pub gradients: &'a [f32],
    /// Shows and clicks of the keys, for tables that count them.
    pub show_click: Option<ShowClick<'a>>,
}

/// Means of the gradients of one sparse table; its buffers are reused for the next step.
#[derive(Debug)]
pub struct SparseMean {
    dim: usize,
    counts: bool,
    unique: Unique,
    sums: Vec<f32>,
    show: Vec<f32>,
    click: Vec<f32>,
}

impl SparseMean {
    /// For a table with `dim` weights per row.
    pub fn new(dim: usize) -> Self {
        let (unique, sums, show, click) = (Unique::new(), Vec::new(), Vec::new(), Vec::new());
        SparseMean { dim, counts: false, unique, sums, show, click }
    }

    /// For a table whose accessor counts shows and clicks: they are added and never divided, because they are events, not
    /// estimates.
    pub fn counting(dim: usize) -> Self {
        SparseMean { counts: true, ..SparseMean::new(dim) }
    }

    /// The keys of all `parts`, each once in the order of first occurrence, with the sums of their gradients divided by
    /// `took_part`. The parts come in the order of their ranks. Fails if the lengths of a part do not match.
    pub fn mean<'a>(
        &mut self,
        took_part: usize,
        parts: impl IntoIterator<Item = SparsePart<'a>, IntoIter: Clone>,
    ) -> Result<SparsePart<'_>> {
        let parts = parts.into_iter();
        let mut count = 0;
        for part in parts.clone() {
            same_length("gradients", part.keys.len().saturating_mul(self.dim), part.gradients.len())?;
            if let Some(ShowClick { show, click }) = part.show_click {
                same_length("show", part.keys.len(), show.len())?;
                same_length("click", part.keys.len(), click.len())?;
            }
            count += part.keys.len();
        }
        self.unique.start(count);
        parts.clone().for_each(|part| self.unique.add(part.keys));
        let distinct = self.unique.keys().len();
        self.sums.clear();
        self.sums.reserve(distinct * self.dim);
        let mut inverse = self.unique.inverse();
        for part in parts.clone() {
            let (rows, rest) = inverse.split_at(part.keys.len());
            add_rows(&mut self.sums, self.dim, part.gradients, rows);
            inverse = rest;
        }
        divide(&mut self.sums, took_part);
        if self.counts {
            self.count_show_click(parts, distinct);
        }
        let show_click = self.counts.then_some(ShowClick { show: &self.show, click: &self.click });
        Ok(SparsePart { keys: self.unique.keys(), gradients: &self.sums, show_click })
    }

    fn count_show_click<'a>(&mut self, parts: impl Iterator<Item = SparsePart<'a>>, distinct: usize) {
        for counts in [&mut self.show, &mut self.click] {
            counts.clear();
            counts.resize(distinct, 0.0);
        }
        let mut inverse = self.unique.inverse().iter();
        for part in parts {
            for (at, &row) in (0..part.keys.len()).zip(inverse.by_ref()) {
                let (show, click) = part.show_click.map_or((1.0, 0.0), |counts| (counts.show[at], counts.click[at]));
                self.show[row as usize] += show;
                self.click[row as usize] += click;
            }
        }
    }
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn add(sum: &mut [f32], gradient: &[f32]) {
    for (sum, g) in sum.iter_mut().zip(gradient) {
        *sum += g;
    }
}

/// Adds each gradient to its row.
#[multiversion(targets("x86_64+avx2+fma"))]
fn add_rows(sums: &mut Vec<f32>, dim: usize, gradients: &[f32], rows: &[u32]) {
    for (gradient, row) in gradients.chunks_exact(dim).zip(rows) {
        let start = *row as usize * dim;
        // Positions are assigned in the order of first occurrence, so a new key's row is always the next one.
        if start == sums.len() {
            sums.extend_from_slice(gradient);
            continue;
        }
        for (sum, g) in sums[start..start + dim].iter_mut().zip(gradient) {
            *sum += g;
        }
    }
}

/// Divides instead of multiplying by a reciprocal, which would round twice unless the divisor is a power of two.
#[multiversion(targets("x86_64+avx2+fma"))]
fn divide(sum: &mut [f32], by: usize) {
    if by > 1 {
        let by = by as f32;
        for value in sum {
            *value /= by;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::initializer::Initializer;

    /// The contribution of one member: a dense gradient, keys and their gradients.
    #[derive(Debug, Clone)]
    struct Contribution {
        dense: Vec<f32>,
        keys: Vec<Key>,
        rows: Vec<f32>,
    }

    const DIM: usize = 3;

    impl Contribution {
        fn new(rank: u32, keys: Vec<Key>) -> Self {
            let numbers = Initializer::Normal { mean: 0.0, std: 1.0 };
            let (mut dense, mut rows) = (vec![0.0; 5000], vec![0.0; keys.len() * DIM]);
            numbers.fill(u64::from(rank), &[dense.len()], &mut dense);
            numbers.fill(u64::from(rank) + 100, &[rows.len()], &mut rows);
            Contribution { dense, keys, rows }
        }

        fn part(&self) -> SparsePart<'_> {
            SparsePart { keys: &self.keys, gradients: &self.rows, show_click: None }
        }
    }

    fn means(step: &BTreeMap<u32, Contribution>) -> (Vec<u32>, Vec<Key>, Vec<u32>) {
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
        let (mut dense, mut sparse) = (DenseMean::new(), SparseMean::new(DIM));
        let rows = sparse.mean(step.len(), step.values().map(Contribution::part)).unwrap();
        let (keys, rows) = (rows.keys.to_vec(), bits(rows.gradients));
        (bits(dense.mean(step.len(), step.values().map(|contribution| &contribution.dense[..])).unwrap()), keys, rows)
    }

    #[test]
    fn a_step_is_complete_when_every_member_has_contributed() {
        let mut group = Aggregate::new([2, 0, 1], 10);
        assert_eq!(group.contribute(1, 10, "b"), Ok(Arrival::Waiting));
        assert_eq!(group.contribute(1, 10, "again"), Ok(Arrival::Repeat));
        assert_eq!(group.contribute(2, 10, "c"), Ok(Arrival::Waiting));
        assert_eq!((group.take(), group.missing().collect::<Vec<_>>()), (None, vec![0]));
        assert_eq!(group.contribute(0, 10, "a"), Ok(Arrival::Complete));
        assert_eq!(group.take().unwrap().into_values().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!((group.step(), group.take()), (11, None));
    }

    #[test]
    fn a_contribution_to_another_step_is_refused_and_changes_nothing() {
        let mut group = Aggregate::new([0, 1], 5);
        assert_eq!(group.contribute(0, 4, ()), Err(Error::Late { rank: 0, step: 4, current: 5 }));
        assert_eq!(group.contribute(0, 6, ()), Err(Error::Early { rank: 0, step: 6, current: 5 }));
        let error = group.contribute(7, 5, ()).unwrap_err();
        assert_eq!(error.to_string(), "rank 7 is not a member of the group at step 5");
        assert_eq!(group.missing().collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn who_leaves_before_contributing_is_not_divided_by_and_who_leaves_after_is() {
        let mut group = Aggregate::new([0, 1, 2], 0);
        group.contribute(0, 0, vec![3.0]).unwrap();
        assert!(!group.leave(0), "its work counts, and the others are still missing");
        assert_eq!(group.contribute(1, 0, vec![1.0]), Ok(Arrival::Waiting));
        assert!(group.leave(2), "the step is complete without it");
        let step = group.take().unwrap();
        assert_eq!(DenseMean::new().mean(step.len(), step.values().map(|g| &g[..])).unwrap(), [2.0]);
        group.contribute(1, 1, vec![7.0]).unwrap();
        assert_eq!(group.take().unwrap().into_values().collect::<Vec<_>>(), [vec![7.0]]);
        assert!(!group.leave(1), "nobody is left and nothing came");
        group.join(2);
        assert_eq!(group.contribute(2, 2, vec![1.0]), Ok(Arrival::Complete));
    }

    #[test]
    fn rows_are_divided_by_the_members_that_took_part_and_not_by_those_that_have_the_key() {
        let [a, b] = [([1, 2], [1.0, 2.0]), ([2, 3], [20.0, 30.0])];
        let part = |(keys, gradients): &'static ([Key; 2], [f32; 2])| SparsePart { keys, gradients, show_click: None };
        let parts = [part(Box::leak(Box::new(a))), part(Box::leak(Box::new(b)))];
        let mut mean = SparseMean::new(1);
        let merged = mean.mean(4, parts).unwrap();
        assert_eq!((merged.keys, merged.gradients), (&[1, 2, 3][..], &[0.25, 5.5, 7.5][..]));
    }

    #[test]
    fn shows_and_clicks_are_added_and_never_divided() {
        let (keys, gradients) = ([5, 6], [0.0, 0.0]);
        let counts = ShowClick { show: &[3.0, 4.0], click: &[1.0, 0.0] };
        let part = SparsePart { keys: &keys, gradients: &gradients, show_click: None };
        let mut mean = SparseMean::counting(1);
        let merged = mean.mean(2, [part, SparsePart { show_click: Some(counts), ..part }]).unwrap();
        assert_eq!(merged.show_click, Some(ShowClick { show: &[4.0, 5.0], click: &[1.0, 0.0] }));
    }

    #[test]
    fn lengths_that_disagree_are_errors() {
        assert_eq!(
            DenseMean::new().mean(2, [&[1.0, 2.0][..], &[1.0][..]]),
            Err(Error::Length { what: "gradient", expected: 2, got: 1 })
        );
        let part = SparsePart { keys: &[1, 2], gradients: &[0.0; 5], show_click: None };
        assert_eq!(SparseMean::new(3).mean(1, [part]), Err(Error::Length { what: "gradients", expected: 6, got: 5 }));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn any_order_of_arrival_gives_the_same_bits(
            keys in prop::collection::vec(prop::collection::vec(0u64..50, 0..80), 1..6),
            order in any::<u64>(),
        ) {
            let contribution: Vec<Contribution> =
                keys.into_iter().enumerate().map(|(rank, keys)| Contribution::new(rank as u32, keys)).collect();
            let ranks = 0..contribution.len() as u32;
            let mut shuffled: Vec<u32> = ranks.clone().collect();
            shuffled.sort_by_key(|rank| openfleet_core::key::mix(order ^ u64::from(*rank)));
            let run = |order: &mut dyn Iterator<Item = u32>| {
                let mut group = Aggregate::new(ranks.clone(), 0);
                order.for_each(|rank| {
                    group.contribute(rank, 0, contribution[rank as usize].clone()).unwrap();
                });
                means(&group.take().unwrap())
            };
            prop_assert_eq!(run(&mut ranks.clone()), run(&mut shuffled.into_iter()));
        }

        #[test]
        fn every_row_is_its_members_gradients_added_in_the_order_of_the_ranks(
            keys in prop::collection::vec(prop::collection::vec(0u64..50, 0..80), 1..6),
        ) {
            let contribution: BTreeMap<u32, Contribution> = keys
                .into_iter()
                .enumerate()
                .map(|(rank, keys)| (rank as u32, Contribution::new(rank as u32, keys)))
                .collect();
            let (dense, keys, rows) = means(&contribution);
            let n = contribution.len() as f32;
            for (at, mean) in dense.iter().enumerate() {
                let sum = contribution.values().map(|contribution| contribution.dense[at]).reduce(|sum, g| sum + g).unwrap();
                prop_assert_eq!(*mean, (sum / n).to_bits());
            }
            for (row, key) in keys.iter().enumerate() {
                for column in 0..DIM {
                    let sum = contribution
                        .values()
                        .flat_map(|contribution| contribution.keys.iter().zip(contribution.rows.chunks(DIM)))
                        .filter(|(other, _)| *other == key)
                        .map(|(_, gradient)| gradient[column])
                        .reduce(|sum, g| sum + g)
                        .unwrap();
                    prop_assert_eq!(rows[row * DIM + column], (sum / n).to_bits());
                }
            }
        }
    }
}
