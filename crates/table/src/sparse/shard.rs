//! One shard: an index over rows, and how a group of keys is processed.
//!
//! Keys are processed in batches of [`BATCH`]: prefetch all their index entries, then all their rows, then work. The cache
//! misses of a batch overlap, which is a factor of four at ten million rows. Rows are removed only between batches, so that a
//! row found for a key is valid until the batch is done. The lock belongs to the table; a shard is called with it held.
//!
//! The accessor ([`RowLayout`]) defines what a row consists of; this file finds, admits, touches and evicts keys.

use std::sync::Arc;

use openfleet_core::Key;

use super::bases::Bases;
use super::changes::{Changes, NewCut};
use super::cut::ShardCut;
use super::differences::Differences;
use super::index::Index;
use super::rows::Rows;
use super::scratch::Wanted;
use super::unadmitted::UnadmittedCounts;
use super::{Existing, Missing};
use crate::accessor::{Additive, CtrFields, NewRow, Push, Retention, Row, RowLayout, Target};
use crate::admission::{Admission, UNADMITTED_LIMIT};
use crate::clip::all_usable;
use crate::push::{PushReport, Shrunk};
use crate::sparse::SparseSpec;

/// Number of lookups in flight together: more than a core's outstanding misses, few enough to stay in the first-level cache.
pub(crate) const BATCH: usize = 128;

/// No row.
const NONE: u32 = u32::MAX;

/// Part of a table behind one lock, on its own cache lines, because other threads lock its neighbours.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Shard {
    index: Index,
    rows: Rows,
    unadmitted: UnadmittedCounts,
    /// Per row: whether it was touched since the clock hand last passed it; empty in a table without a capacity.
    recent: Vec<bool>,
    /// Clock hand: the row where the search for a row to evict continues.
    hand: u32,
    /// Maximum number of rows when the lock is released.
    capacity: usize,
    evicted: u64,
    /// A cut that is being read.
    cut: Option<Box<ShardCut>>,
    /// Changes since the first cut.
    changes: Option<Box<Changes>>,
    /// Of a table that is a copy: what rows were before they were pushed.
    bases: Option<Box<Bases>>,
    /// Working memory of a push that moves every row: whether the push has a gradient for a row.
    pushed: Vec<bool>,
}

impl Shard {
    pub(super) fn new(spec: &SparseSpec, layout: &impl RowLayout) -> Self {
        let (floats, long_floats) = layout.widths(spec);
        Shard {
            index: Index::new(),
            rows: Rows::new(floats, long_floats),
            unadmitted: UnadmittedCounts::new(UNADMITTED_LIMIT / spec.shards),
            recent: Vec::new(),
            hand: 0,
            // Rounded down, so that the shards together never exceed the capacity.
            capacity: spec.capacity.map_or(usize::MAX, |capacity| capacity / spec.shards),
            evicted: 0,
            cut: None,
            changes: None,
            bases: None,
            pushed: Vec::new(),
        }
    }

    /// Copies the weights of each wanted key to its position in `out`.
    pub(super) fn pull(
        &mut self,
        layout: &impl RowLayout,
        group: &[Wanted],
        missing: Missing,
        new_row: &NewRow<'_>,
        out: &mut [f32],
    ) {
        let dim = new_row.spec.dim;
        let mut hints = [NONE; BATCH];
        for batch in group.chunks(BATCH) {
            self.look_ahead(layout, batch, layout.pulled_floats(dim), dim, &mut hints);
            for (wanted, hint) in batch.iter().zip(hints) {
                let place = &mut out[wanted.at as usize * dim..][..dim];
                let row = match (self.find_row(wanted, hint), missing) {
                    (Some(row), _) => row,
                    (None, Missing::Create) => match self.admit_pulled(layout, wanted, new_row) {
                        Some(row) => row,
                        None => {
                            place.fill(0.0);
                            continue;
                        }
                    },
                    (None, Missing::Initial) => {
                        new_row.show_absent(layout, wanted.key, place);
                        continue;
                    }
                };
                if missing == Missing::Create {
                    if self.rows.stamp(row) != new_row.stamp {
                        self.record_change(layout, row);
                    }
                    self.touch(row, new_row.stamp);
                }
                layout.pull(&self.rows, row, place);
            }
            self.evict_surplus(layout);
        }
    }

    /// Copies the weights of each wanted key that has a row to its position in `out`; lists the positions of the others.
    pub(super) fn pull_present(
        &self,
        layout: &impl RowLayout,
        group: &[Wanted],
        dim: usize,
        out: &mut [f32],
        absent: &mut Vec<u32>,
    ) {
        let mut hints = [NONE; BATCH];
        for batch in group.chunks(BATCH) {
            self.look_ahead(layout, batch, layout.pulled_floats(dim), dim, &mut hints);
            for (wanted, hint) in batch.iter().zip(hints) {
                match self.find_row(wanted, hint) {
                    Some(row) => layout.pull(&self.rows, row, &mut out[wanted.at as usize * dim..][..dim]),
                    None => absent.push(wanted.at),
                }
            }
        }
    }

    /// Collects the positions of wanted keys that have no row.
    pub(super) fn absent(&self, layout: &impl RowLayout, group: &[Wanted], dim: usize, absent: &mut Vec<u32>) {
        let mut hints = [NONE; BATCH];
        for batch in group.chunks(BATCH) {
            self.look_ahead(layout, batch, 0, dim, &mut hints);
            let missing = batch.iter().zip(hints).filter(|(wanted, hint)| self.find_row(wanted, *hint).is_none());
            absent.extend(missing.map(|(wanted, _)| wanted.at));
        }
    }

    /// Sets the weights of each wanted key that has no row, or of all of them.
    pub(super) fn put(
        &mut self,
        layout: &impl RowLayout,
        group: &[Wanted],
        new_row: &NewRow<'_>,
        rows: &[f32],
        existing: Existing,
    ) {
        let dim = new_row.spec.dim;
        let mut buffers = RowBuffers::default();
        let mut hints = [NONE; BATCH];
        for batch in group.chunks(BATCH) {
            self.look_ahead(layout, batch, layout.pulled_floats(dim), dim, &mut hints);
            for (wanted, hint) in batch.iter().zip(hints) {
                let weights = &rows[wanted.at as usize * dim..][..dim];
                match (self.find_row(wanted, hint), existing) {
                    (Some(_), Existing::Keep) => {}
                    (Some(row), Existing::Replace) => self.replace(layout, row, new_row, weights, &mut buffers),
                    (None, _) => {
                        let row = self.add_row(wanted, new_row.stamp);
                        layout.restore(&mut self.rows, row, new_row, weights, None, None);
                    }
                }
            }
            self.evict_surplus(layout);
        }
    }

    /// Applies its gradient to each wanted key; creates missing rows first if the key is admitted.
    pub(super) fn push(&mut self, layout: &impl RowLayout, group: &[Wanted], push: &Push<'_>) -> PushReport {
        let mut report = PushReport::default();
        let mut hints = [NONE; BATCH];
        let mut targets = [Target::default(); BATCH];
        for batch in group.chunks(BATCH) {
            self.look_ahead(layout, batch, self.rows.floats(), usize::MAX, &mut hints);
            if let Some(bases) = &self.bases {
                hints[..batch.len()].iter().for_each(|&row| bases.prefetch(row));
            }
            let mut count = 0;
            for (wanted, hint) in batch.iter().zip(hints) {
                // Refused before its row is searched, so that none is created.
                if !all_usable(push.gradient(wanted.at)) || !counts_are_sound(push, wanted.at) {
                    report.non_finite += 1;
                    continue;
                }
                let Some(row) = self.find_row(wanted, hint).or_else(|| self.admit_pushed(layout, wanted, push)) else {
                    report.not_admitted += 1;
                    continue;
                };
                self.record_change(layout, row);
                self.keep_base(layout, row, wanted.key);
                self.touch(row, push.new_row.stamp);
                targets[count] = Target { at: wanted.at, row };
                count += 1;
            }
            report.applied += count;
            layout.push(&mut self.rows, push, &targets[..count]);
            self.evict_surplus(layout);
        }
        report
    }

    /// [`push`](Self::push), then an update of all other rows by a gradient of 0, which `zeros` is. A row whose gradient was refused
    /// does not move.
    pub(super) fn push_to_all(
        &mut self,
        layout: &impl RowLayout,
        group: &[Wanted],
        push: &Push<'_>,
        zeros: &[f32],
    ) -> PushReport {
        let report = self.push(layout, group, push);
        let push = Push { gradients: zeros, regularizer: None, ..*push };
        let mut pushed = std::mem::take(&mut self.pushed);
        pushed.clear();
        pushed.resize(self.len(), false);
        for wanted in group {
            if let Some(row) = self.find_row(wanted, NONE) {
                pushed[row as usize] = true;
            }
        }
        let mut targets = [Target::default(); BATCH];
        for first in (0..self.rows.len()).step_by(BATCH) {
            let mut count = 0;
            for row in (first..self.rows.len().min(first + BATCH as u32)).filter(|&row| !pushed[row as usize]) {
                self.record_change(layout, row);
                targets[count] = Target { at: 0, row };
                count += 1;
            }
            layout.push(&mut self.rows, &push, &targets[..count]);
        }
        self.pushed = pushed;
        report
    }

    /// Adds its difference to the weights of each wanted key; creates missing rows first if the key is admitted.
    pub(super) fn add(
        &mut self,
        layout: &impl Additive,
        group: &[Wanted],
        new_row: &NewRow<'_>,
        deltas: &[f32],
    ) -> PushReport {
        let dim = new_row.spec.dim;
        let mut report = PushReport::default();
        let mut hints = [NONE; BATCH];
        for batch in group.chunks(BATCH) {
            self.look_ahead(layout, batch, layout.pulled_floats(dim), dim, &mut hints);
            for (wanted, hint) in batch.iter().zip(hints) {
                let delta = &deltas[wanted.at as usize * dim..][..dim];
                if !all_usable(delta) {
                    report.non_finite += 1;
                    continue;
                }
                let at_once = || new_row.spec.admission.at_once(new_row.spec.seed, wanted.key);
                let row = match self.find_row(wanted, hint) {
                    Some(row) => row,
                    None if at_once() => self.create(layout, wanted, new_row, 0.0, 0.0),
                    None => {
                        report.not_admitted += 1;
                        continue;
                    }
                };
                report.applied += 1;
                self.record_change(layout, row);
                self.touch(row, new_row.stamp);
                layout.add(&mut self.rows, row, delta);
            }
            self.evict_surplus(layout);
        }
        report
    }

    /// The table is a copy from now on.
    pub(super) fn keep_bases(&mut self, bases: Bases) {
        self.bases = Some(Box::new(bases));
    }

    /// Calls `work` with the bases, if the table is a copy, and a function from the number of a row to its key.
    pub(super) fn with_bases(&mut self, work: &mut impl FnMut(&mut Bases, &dyn Fn(u32) -> Key)) {
        if let Some(bases) = &mut self.bases {
            work(bases, &|row| self.rows.key(row));
        }
    }

    /// Takes the differences of the wanted keys from their bases.
    pub(super) fn differences(
        &mut self,
        layout: &impl RowLayout,
        group: &[Wanted],
        divisor: f32,
        new_row: &NewRow<'_>,
        differences: &mut Differences,
    ) {
        let dim = new_row.spec.dim;
        let Some(mut bases) = self.bases.take() else { return };
        let (mut weights, mut buffers) = (vec![0.0; dim], RowBuffers::default());
        let mut hints = [NONE; BATCH];
        for batch in group.chunks(BATCH) {
            self.look_ahead(layout, batch, layout.pulled_floats(dim), dim, &mut hints);
            for (wanted, hint) in batch.iter().zip(hints) {
                let Some(row) = self.find_row(wanted, hint) else { continue };
                let Some(base) = bases.get(row) else { continue };
                layout.pull(&self.rows, row, &mut weights);
                if weights == *base {
                    bases.remove(row);
                    continue;
                }
                let start = differences.values.len();
                differences.values.extend(weights.iter().zip(&*base).map(|(weight, base)| (weight - base) / divisor));
                let difference = &differences.values[start..];
                if !all_usable(difference) {
                    differences.values.truncate(start);
                    continue;
                }
                differences.keys.push(wanted.key);
                base.iter_mut().zip(difference).for_each(|(base, difference)| *base += difference);
                if divisor != 1.0 {
                    continue;
                }
                // The owner has all of it, but adding the difference may have rounded the last bit.
                if weights != *base {
                    self.replace(layout, row, new_row, base, &mut buffers);
                }
                bases.remove(row);
            }
        }
        self.bases = Some(bases);
    }

    /// Receives the rows of the wanted keys from their owner, where this shard has rows.
    pub(super) fn receive(&mut self, layout: &impl Additive, group: &[Wanted], new_row: &NewRow<'_>, rows: &[f32]) {
        let dim = new_row.spec.dim;
        let mut bases = self.bases.take();
        let (mut difference, mut buffers) = (vec![0.0; dim], RowBuffers::default());
        let mut hints = [NONE; BATCH];
        for batch in group.chunks(BATCH) {
            self.look_ahead(layout, batch, layout.pulled_floats(dim), dim, &mut hints);
            for (wanted, hint) in batch.iter().zip(hints) {
                let Some(row) = self.find_row(wanted, hint) else { continue };
                let received = &rows[wanted.at as usize * dim..][..dim];
                match bases.as_mut().and_then(|bases| bases.get(row)) {
                    Some(base) => {
                        let each = difference.iter_mut().zip(received).zip(&*base);
                        each.for_each(|((difference, received), base)| *difference = received - base);
                        base.copy_from_slice(received);
                        self.record_change(layout, row);
                        layout.add(&mut self.rows, row, &difference);
                    }
                    None => self.replace(layout, row, new_row, received, &mut buffers),
                }
            }
        }
        self.bases = bases;
    }

    /// Calls `look` with the row of a single key.
    pub(super) fn read<T>(
        &self,
        layout: &impl RowLayout,
        wanted: &Wanted,
        spec: &SparseSpec,
        look: impl FnOnce(&Row<'_>) -> T,
    ) -> Option<T> {
        let row = self.find_row(wanted, NONE)?;
        Some(look(&layout.show(&self.rows, row, spec, &mut Vec::new())))
    }

    /// The last-seen stamp of a single key.
    pub(super) fn stamp(&self, wanted: &Wanted) -> Option<u32> {
        self.find_row(wanted, NONE).map(|row| self.rows.stamp(row))
    }

    /// Sets the row of a single key; creates it if necessary, admitted or not.
    pub(super) fn restore(
        &mut self,
        layout: &impl RowLayout,
        wanted: &Wanted,
        new_row: &NewRow<'_>,
        weights: &[f32],
        state: Option<&[f32]>,
        ctr: Option<CtrFields>,
    ) {
        let row = match self.find_row(wanted, NONE) {
            Some(row) => {
                self.record_change(layout, row);
                self.touch(row, new_row.stamp);
                row
            }
            None => {
                self.unadmitted.forget(wanted.key);
                self.add_row(wanted, new_row.stamp)
            }
        };
        layout.restore(&mut self.rows, row, new_row, weights, state, ctr);
        self.evict_surplus(layout);
    }

    /// Prefetches the index entries that a key needs.
    pub(super) fn prefetch(&self, wanted: &Wanted) {
        self.index.prefetch(wanted.tag);
    }

    /// Reserves capacity for this many more rows.
    pub(super) fn reserve(&mut self, rows: usize) {
        self.index.reserve(rows);
    }

    /// Calls `look` with every row, in the order of creation until one is removed.
    pub(super) fn for_each(&self, layout: &impl RowLayout, spec: &SparseSpec, look: &mut impl FnMut(&Row<'_>)) {
        let mut buffer = Vec::new();
        for row in 0..self.rows.len() {
            look(&layout.show(&self.rows, row, spec, &mut buffer));
        }
    }

    /// Decays every row, and removes rows with low scores and rows that were not touched for longer than `max_age` before
    /// `now`.
    pub(super) fn shrink(&mut self, layout: &impl RowLayout, now: u32, max_age: u32) -> Shrunk {
        let mut shrunk = Shrunk::default();
        // Backwards: the row that takes a removed row's number has already been checked.
        for row in (0..self.rows.len()).rev() {
            if layout.decays() {
                self.record_change(layout, row);
            }
            let too_old = now.saturating_sub(self.rows.stamp(row)) > max_age;
            let removed = match layout.decay(&mut self.rows, row) {
                Retention::LowScore => &mut shrunk.by_score,
                Retention::Unseen => &mut shrunk.by_unseen_days,
                Retention::Keep if too_old => &mut shrunk.by_age,
                Retention::Keep => continue,
            };
            *removed += 1;
            self.remove(layout, row);
        }
        self.index.release();
        self.rows.release();
        self.recent.shrink_to_fit();
        if let Some(changes) = &mut self.changes {
            changes.release();
        }
        shrunk
    }

    /// A day has passed for every row.
    pub(super) fn end_of_day(&mut self, layout: &impl RowLayout) {
        if !layout.decays() {
            return;
        }
        for row in 0..self.rows.len() {
            self.record_change(layout, row);
            layout.end_of_day(&mut self.rows, row);
        }
    }

    /// Begins a cut of the rows that have changed since another cut, or of all rows. Returns how many rows it has, and lists
    /// the keys whose rows were removed since then.
    pub(super) fn cut(&mut self, spec: Arc<SparseSpec>, since: Option<u16>, removed: &mut Vec<Key>) -> u32 {
        let mut cut = ShardCut::new(spec, self.rows.len());
        let mut wanted = self.rows.len();
        if let (Some(changes), Some(since)) = (&self.changes, since) {
            wanted -= cut.leave_out(|row| !changes.is_newer(row, since));
            removed.extend(changes.removed_since(since));
        }
        self.cut = Some(Box::new(cut));
        wanted
    }

    /// Rows that change from now on are newer than this cut.
    pub(super) fn begin_changes(&mut self, new_cut: NewCut) {
        Changes::cut(&mut self.changes, self.rows.len(), new_cut);
    }

    /// Whether all changes since a cut are known.
    pub(super) fn knows_changes(&self, since: u16) -> bool {
        self.changes.as_ref().is_some_and(|changes| changes.knows(since))
    }

    /// Calls `look` with about `most` rows of the cut that were not read yet; returns whether those were the last.
    pub(super) fn read_cut(&mut self, layout: &impl RowLayout, most: u32, look: &mut impl FnMut(&Row<'_>)) -> bool {
        let Some(cut) = &mut self.cut else { return true };
        cut.read_copied(look);
        let end = cut.rows.min(cut.next.saturating_add(most.max(1)));
        let mut buffer = std::mem::take(&mut cut.buffer);
        for row in cut.next..end {
            if cut.is_wanted(row) {
                look(&layout.show(&self.rows, row, &cut.spec, &mut buffer));
            }
        }
        cut.buffer = buffer;
        cut.next = end;
        let is_read = cut.is_read();
        if is_read {
            self.cut = None;
        }
        is_read
    }

    /// Ends the cut.
    pub(super) fn end_cut(&mut self) {
        self.cut = None;
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len() as usize
    }

    pub(super) fn bytes(&self) -> usize {
        let changes = self.changes.as_ref().map_or(0, |changes| changes.bytes());
        let bases = self.bases.as_ref().map_or(0, |bases| bases.bytes());
        self.index.bytes()
            + self.rows.bytes()
            + self.unadmitted.bytes()
            + self.recent.len()
            + changes
            + bases
            + self.pushed.capacity()
    }

    /// Rows removed so far to stay within the capacity.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Finds the probable row of each key of a batch, and prefetches its first `floats` floats and `further` floats of its long
    /// part.
    #[inline(always)]
    fn look_ahead(
        &self,
        layout: &impl RowLayout,
        batch: &[Wanted],
        floats: usize,
        further: usize,
        hints: &mut [u32; BATCH],
    ) {
        for wanted in batch {
            self.index.prefetch(wanted.tag);
        }
        for (wanted, hint) in batch.iter().zip(hints.iter_mut()) {
            *hint = self.index.find(wanted.tag, |_| true).unwrap_or(NONE);
            if *hint != NONE {
                self.rows.prefetch(*hint, floats);
            }
        }
        for hint in &hints[..batch.len()] {
            if *hint != NONE {
                layout.prefetch_long(&self.rows, *hint, further);
            }
        }
    }

    /// The row of a key, trying the hint first. A hint is wrong if two keys share a tag, and missing if the key was just
    /// created by a duplicate in the same batch.
    #[inline(always)]
    fn find_row(&self, wanted: &Wanted, hint: u32) -> Option<u32> {
        if hint != NONE && self.rows.key(hint) == wanted.key {
            return Some(hint);
        }
        self.index.find(wanted.tag, |row| self.rows.key(row) == wanted.key)
    }

    /// The row is about to change: record that for the next save, and copy the row if a cut still has to read it.
    #[inline(always)]
    fn record_change(&mut self, layout: &impl RowLayout, row: u32) {
        if let Some(changes) = &mut self.changes {
            changes.changed(row);
        }
        self.copy_for_cut(layout, row);
    }

    /// The row is about to be pushed: if the table is a copy, keep what the row was.
    #[inline(always)]
    fn keep_base(&mut self, layout: &impl RowLayout, row: u32, key: Key) {
        if let Some(base) = self.bases.as_mut().and_then(|bases| bases.before_push(row, key)) {
            layout.pull(&self.rows, row, base);
        }
    }

    /// Replaces the weights of a row; the optimizer's state stays.
    fn replace(
        &mut self,
        layout: &impl RowLayout,
        row: u32,
        new_row: &NewRow<'_>,
        weights: &[f32],
        buffers: &mut RowBuffers,
    ) {
        self.record_change(layout, row);
        let RowBuffers { shown, state } = buffers;
        let row_shown = layout.show(&self.rows, row, new_row.spec, shown);
        state.clear();
        state.extend_from_slice(row_shown.state);
        let ctr = row_shown.ctr;
        layout.restore(&mut self.rows, row, new_row, weights, Some(state), ctr);
    }

    /// The row is about to get another number.
    #[inline(always)]
    fn copy_for_cut(&mut self, layout: &impl RowLayout, row: u32) {
        if let Some(cut) = &mut self.cut
            && cut.is_wanted(row)
        {
            copy_to_cut(layout, &self.rows, cut, row);
        }
    }

    #[inline(always)]
    fn touch(&mut self, row: u32, stamp: u32) {
        self.rows.set_stamp(row, stamp);
        if let Some(recent) = self.recent.get_mut(row as usize) {
            *recent = true;
        }
    }

    /// Creates a row for a key that training has pulled and that has none, if it is admitted.
    #[cold]
    fn admit_pulled(&mut self, layout: &impl RowLayout, wanted: &Wanted, new_row: &NewRow<'_>) -> Option<u32> {
        let spec = new_row.spec;
        if !spec.admission.at_once(spec.seed, wanted.key) {
            let Admission::Count(enough) = spec.admission else { return None };
            if self.unadmitted.add(wanted.key, 1.0, 0.0).0 < enough as f32 {
                return None;
            }
            self.unadmitted.forget(wanted.key);
        }
        Some(self.create(layout, wanted, new_row, 0.0, 0.0))
    }

    /// Creates a row for a key that was pushed and has none, if its gradient is to be applied.
    #[cold]
    fn admit_pushed(&mut self, layout: &impl RowLayout, wanted: &Wanted, push: &Push<'_>) -> Option<u32> {
        let spec = push.new_row.spec;
        if spec.admission.at_once(spec.seed, wanted.key) {
            return Some(self.create(layout, wanted, &push.new_row, 0.0, 0.0));
        }
        if let Admission::ShowClick { show: shows, click: clicks } = spec.admission {
            let (show, click) = push.show_click(wanted.at);
            let (show, click) = self.unadmitted.add(wanted.key, show, click);
            if show >= shows && click >= clicks {
                self.unadmitted.forget(wanted.key);
                self.create(layout, wanted, &push.new_row, show, click);
            }
        }
        None
    }

    #[cold]
    fn create(&mut self, layout: &impl RowLayout, wanted: &Wanted, new_row: &NewRow<'_>, show: f32, click: f32) -> u32 {
        let row = self.add_row(wanted, new_row.stamp);
        layout.create(&mut self.rows, row, new_row, show, click);
        row
    }

    /// Adds a row of zeros for a key that has none.
    fn add_row(&mut self, wanted: &Wanted, stamp: u32) -> u32 {
        let row = self.rows.push(wanted.key, stamp);
        self.index.insert(wanted.tag, row);
        if self.capacity != usize::MAX {
            self.recent.push(true);
        }
        if let Some(changes) = &mut self.changes {
            changes.created();
        }
        row
    }

    /// Removes a row; the last one takes its number.
    fn remove(&mut self, layout: &impl RowLayout, row: u32) {
        self.copy_for_cut(layout, row);
        self.copy_for_cut(layout, self.rows.len() - 1);
        if let Some(changes) = &mut self.changes {
            changes.removed(row, self.rows.key(row));
        }
        if let Some(bases) = &mut self.bases {
            bases.deleted(row, self.rows.len() - 1);
        }
        let tag_of = |key: Key| Wanted::new(key, 0).tag;
        self.index.remove(tag_of(self.rows.key(row)), row);
        layout.release(&mut self.rows, row);
        if self.rows.swap_remove(row) {
            self.index.renumber(tag_of(self.rows.key(row)), self.rows.len(), row);
            layout.renumbered(&mut self.rows, row);
        }
        if self.capacity != usize::MAX {
            self.recent.swap_remove(row as usize);
        }
    }

    #[inline(always)]
    fn evict_surplus(&mut self, layout: &impl RowLayout) {
        if self.len() > self.capacity {
            self.evict(layout);
        }
    }

    /// Removes rows that were not touched recently until there are no more than the capacity. This is the clock algorithm: the
    /// hand goes around over the rows and skips a row once if it was touched since the last round, so approximately the least
    /// recently used rows are evicted.
    #[cold]
    fn evict(&mut self, layout: &impl RowLayout) {
        while self.len() > self.capacity {
            if self.hand >= self.rows.len() {
                self.hand = 0;
            }
            if std::mem::take(&mut self.recent[self.hand as usize]) {
                self.hand += 1;
            } else {
                self.remove(layout, self.hand);
                self.evicted += 1;
            }
        }
    }
}

/// Memory for replacing rows.
#[derive(Default)]
struct RowBuffers {
    shown: Vec<f32>,
    state: Vec<f32>,
}

#[cold]
fn copy_to_cut(layout: &impl RowLayout, rows: &Rows, cut: &mut ShardCut, row: u32) {
    let (mut buffer, spec) = (std::mem::take(&mut cut.buffer), cut.spec.clone());
    cut.copy_row(row, &layout.show(rows, row, &spec, &mut buffer));
    cut.buffer = buffer;
}

/// Whether the shows and clicks of a key are valid counts: NaN would stay in its row forever.
#[inline(always)]
fn counts_are_sound(push: &Push<'_>, at: u32) -> bool {
    push.show_click.is_none_or(|counts| {
        let (show, click) = (counts.show[at as usize], counts.click[at as usize]);
        show >= 0.0 && click >= 0.0 && all_usable(&[show, click])
    })
}
