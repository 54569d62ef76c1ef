//! Which work has been applied: the state behind exactly-once updates.
//!
//! Every push has the steps of a stream that it contains ([`WorkId`]). A ledger has, per stream, the set of applied steps, so a
//! client may retry anything and a repeat changes nothing. It must be kept with the rows, under the same lock and in the same
//! checkpoint: rows without their ledger, or a ledger without its rows, would apply work twice or not at all.
//!
//! Steps of a stream arrive almost in order, so the set is a prefix and a few ranges beyond it:
//!
//! ```text
//! 0 1 2 3 4 5 6 7 8 9 ...
//! x x x x . . x x . x        next = 4, beyond = [6..=7, 9..=9]
//! ```
//!
//! A stream costs a few dozen bytes and each gap another sixteen, however long the job runs. This file knows no table, no
//! worker and no network; a stream is just a number.

use std::collections::BTreeMap;

use openfleet_core::WorkId;
use serde::{Deserialize, Serialize};

/// The applied steps of every stream.
///
/// ```
/// use openfleet_core::WorkId;
/// use openfleet_table::ledger::{Applied, Ledger};
///
/// let (mut ledger, mut counter) = (Ledger::new(), 0);
/// assert_eq!(ledger.apply_once(WorkId::step(7, 0), || counter += 1), Applied::Now(()));
/// assert_eq!(ledger.apply_once(WorkId::step(7, 0), || counter += 1), Applied::Before);
/// assert_eq!((counter, ledger.position(7)), (1, 1));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Ordered, so that ledgers of equal content are saved as equal bytes.
    streams: BTreeMap<u32, Steps>,
}

/// The result of offering work to a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "work that was applied in part, or is not a range of steps, was not applied and must be reported"]
pub enum Applied<R> {
    /// It was new and has been applied; the result of applying it.
    Now(R),
    /// A repeat: all its steps had been applied before, and nothing was done.
    Before,
    /// Some of its steps had been applied and others not, or its first step is after its last. Nothing was done: a merged
    /// gradient cannot be taken apart. A client that retries exactly what it sent never causes this.
    Part,
}

/// How much of some work has been applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Covered {
    /// No step of it.
    No,
    /// Every step.
    All,
    /// Some steps, or the work is not a valid range.
    Part,
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Self {
        Ledger::default()
    }

    /// Runs `apply` if no step of `work` has been applied, and records all its steps.
    pub fn apply_once<R>(&mut self, work: WorkId, apply: impl FnOnce() -> R) -> Applied<R> {
        match self.try_apply_once(work, || Ok::<R, std::convert::Infallible>(apply())) {
            Ok(applied) => applied,
            Err(never) => match never {},
        }
    }

    /// [`apply_once`](Self::apply_once) for work that can fail: after an error the ledger is unchanged, and the same work may
    /// be offered again.
    pub fn try_apply_once<R, E>(
        &mut self,
        work: WorkId,
        apply: impl FnOnce() -> Result<R, E>,
    ) -> Result<Applied<R>, E> {
        match self.is_applied(work) {
            Covered::All => Ok(Applied::Before),
            Covered::Part => Ok(Applied::Part),
            Covered::No => {
                let result = apply()?;
                self.streams.entry(work.stream).or_default().insert(work.first_step, work.last_step);
                Ok(Applied::Now(result))
            }
        }
    }

    /// How much of `work` has been applied.
    pub fn is_applied(&self, work: WorkId) -> Covered {
        // The greatest number has no successor and so cannot end a range; at a million steps per second it would be reached
        // after half a million years.
        if work.first_step > work.last_step || work.last_step == u64::MAX {
            return Covered::Part;
        }
        self.streams.get(&work.stream).map_or(Covered::No, |steps| steps.covered(work.first_step, work.last_step))
    }

    /// The first step of a stream that has not been applied, where a restarted worker resumes. 0 for an unknown stream.
    pub fn position(&self, stream: u32) -> u64 {
        self.streams.get(&stream).map_or(0, |steps| steps.next)
    }

    /// Adds everything in another ledger.
    pub fn merge(&mut self, other: &Ledger) {
        for (stream, theirs) in &other.streams {
            if theirs.next > 0 || !theirs.beyond.is_empty() {
                self.streams.entry(*stream).or_default().merge(theirs);
            }
        }
    }

    /// One ledger per stream.
    pub fn by_stream(&self) -> impl Iterator<Item = (u32, Ledger)> {
        self.streams.iter().map(|(&stream, steps)| (stream, Ledger { streams: [(stream, steps.clone())].into() }))
    }

    /// The streams that have applied work, with their positions, in order.
    pub fn positions(&self) -> impl Iterator<Item = (u32, u64)> {
        self.streams.iter().map(|(stream, steps)| (*stream, steps.next))
    }
}

/// A set of steps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Steps {
    /// Every step below this one is in the set; this one is not.
    next: u64,
    /// First and last steps of the ranges above `next`, ascending, with at least one missing step before each.
    beyond: Vec<(u64, u64)>,
}

impl Steps {
    fn covered(&self, first: u64, last: u64) -> Covered {
        if last < self.next {
            return Covered::All;
        }
        if first < self.next {
            return Covered::Part;
        }
        match self.beyond.get(self.beyond.partition_point(|range| range.1 < first)) {
            Some(&(start, end)) if start <= first && last <= end => Covered::All,
            Some(&(start, _)) if start <= last => Covered::Part,
            _ => Covered::No,
        }
    }

    /// Adds the steps of another set.
    fn merge(&mut self, other: &Steps) {
        let first = |next: u64| next.checked_sub(1).map(|last| (0, last));
        let mut ranges: Vec<(u64, u64)> = first(self.next).into_iter().chain(first(other.next)).collect();
        ranges.extend(self.beyond.iter().chain(&other.beyond));
        ranges.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
        for (start, end) in ranges {
            match joined.last_mut() {
                Some(last) if start <= last.1.saturating_add(1) => last.1 = last.1.max(end),
                _ => joined.push((start, end)),
            }
        }
        self.next = match joined.first() {
            Some(&(0, last)) => {
                joined.remove(0);
                last + 1
            }
            _ => 0,
        };
        self.beyond = joined;
    }

    /// Adds steps, none of which is in the set.
    fn insert(&mut self, first: u64, last: u64) {
        if first == self.next {
            self.next = last + 1;
            // The gap before this range is closed: merge it into the prefix.
            if self.beyond.first().is_some_and(|range| range.0 == self.next) {
                self.next = self.beyond.remove(0).1 + 1;
            }
            return;
        }
        let at = self.beyond.partition_point(|range| range.1 < first);
        let joins_before = at > 0 && self.beyond[at - 1].1 + 1 == first;
        let joins_after = self.beyond.get(at).is_some_and(|range| range.0 == last + 1);
        match (joins_before, joins_after) {
            (true, true) => self.beyond[at - 1].1 = self.beyond.remove(at).1,
            (true, false) => self.beyond[at - 1].1 = last,
            (false, true) => self.beyond[at].0 = first,
            (false, false) => self.beyond.insert(at, (first, last)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn work(first_step: u64, last_step: u64) -> WorkId {
        WorkId { stream: 3, first_step, last_step }
    }

    #[test]
    fn a_repeat_is_answered_and_not_applied() {
        let mut ledger = Ledger::new();
        assert_eq!(ledger.apply_once(work(0, 4), || "first"), Applied::Now("first"));
        assert_eq!(ledger.apply_once(work(0, 4), || "again"), Applied::Before);
        assert_eq!(ledger.apply_once(work(2, 3), || "inside"), Applied::Before);
        assert_eq!(ledger.apply_once(work(4, 5), || "overlapping"), Applied::Part);
        assert_eq!(ledger.position(3), 5);
        assert_eq!(ledger.is_applied(WorkId::step(4, 0)), Covered::No, "streams do not know each other");
    }

    #[test]
    fn work_that_failed_may_be_offered_again() {
        let mut ledger = Ledger::new();
        assert_eq!(ledger.try_apply_once(work(0, 0), || Err::<(), _>("disk full")), Err("disk full"));
        assert_eq!(ledger.try_apply_once(work(0, 0), || Ok::<_, &str>(1)), Ok(Applied::Now(1)));
    }

    #[test]
    fn steps_out_of_order_wait_beyond_the_prefix_and_join_it() {
        let mut ledger = Ledger::new();
        for step in [2, 5, 4, 0] {
            assert!(matches!(ledger.apply_once(WorkId::step(3, step), || ()), Applied::Now(())));
        }
        assert_eq!(ledger.streams[&3], Steps { next: 1, beyond: vec![(2, 2), (4, 5)] });
        let _ = ledger.apply_once(WorkId::step(3, 3), || ());
        assert_eq!(ledger.streams[&3], Steps { next: 1, beyond: vec![(2, 5)] });
        let _ = ledger.apply_once(WorkId::step(3, 1), || ());
        assert_eq!(ledger.streams[&3], Steps { next: 6, beyond: vec![] });
    }

    #[test]
    fn work_that_is_not_a_range_of_steps_is_reported_and_harmless() {
        let mut ledger = Ledger::new();
        for (first, last) in [(5, 4), (u64::MAX, u64::MAX), (0, u64::MAX), (u64::MAX, 0)] {
            assert_eq!(ledger.apply_once(work(first, last), || ()), Applied::Part);
        }
        assert!(matches!(ledger.apply_once(work(0, u64::MAX - 1), || ()), Applied::Now(())));
        assert_eq!(ledger.position(3), u64::MAX);
    }

    proptest! {
        #[test]
        fn a_merged_ledger_is_the_union(
            left in prop::collection::vec((0u32..2, 0u64..40, 0u64..4), 0..20),
            right in prop::collection::vec((0u32..2, 0u64..40, 0u64..4), 0..20),
        ) {
            let ledger = |offers: &[(u32, u64, u64)]| {
                let mut ledger = Ledger::new();
                for &(stream, first_step, more) in offers {
                    (first_step..=first_step + more).for_each(|step| {
                        let _ = ledger.apply_once(WorkId::step(stream, step), || ());
                    });
                }
                ledger
            };
            let (mut merged, both) = (ledger(&left), ledger(&[left.clone(), right.clone()].concat()));
            merged.merge(&ledger(&right));
            prop_assert_eq!(merged, both, "equal content is equal");
        }

        #[test]
        fn a_ledger_agrees_with_a_set_of_steps(
            offers in prop::collection::vec((0u32..3, 0u64..60, 0u64..6), 0..200),
        ) {
            let (mut ledger, mut set) = (Ledger::new(), HashSet::new());
            for (count, (stream, first_step, more)) in offers.iter().copied().enumerate() {
                let work = WorkId { stream, first_step, last_step: first_step + more };
                let steps = first_step..=first_step + more;
                let known = steps.clone().filter(|step| set.contains(&(stream, *step))).count() as u64;
                let expected = match known {
                    0 => Covered::No,
                    all if all == more + 1 => Covered::All,
                    _ => Covered::Part,
                };
                prop_assert_eq!(ledger.is_applied(work), expected);
                let applied = ledger.apply_once(work, || set.extend(steps.map(|step| (stream, step))));
                prop_assert_eq!(applied, match expected {
                    Covered::No => Applied::Now(()),
                    Covered::All => Applied::Before,
                    Covered::Part => Applied::Part,
                });
                if count == offers.len() / 2 {
                    let saved = serde_json::to_string(&ledger).unwrap();
                    prop_assert_eq!(&serde_json::from_str::<Ledger>(&saved).unwrap(), &ledger);
                }
                for (stream, position) in ledger.positions() {
                    let first_missing = (0..).find(|step| !set.contains(&(stream, *step))).unwrap();
                    prop_assert_eq!(position, first_missing);
                }
                for steps in ledger.streams.values() {
                    let ends: Vec<u64> = steps.beyond.iter().flat_map(|range| [range.0, range.1 + 1]).collect();
                    prop_assert!(ends.windows(2).all(|pair| pair[0] < pair[1]), "disjoint and not adjacent: {:?}", steps);
                    prop_assert!(ends.first().is_none_or(|first| *first > steps.next));
                }
            }
        }
    }
}
