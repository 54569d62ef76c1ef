//! Collective training: every rank has all tables, and applies the same updates to them.
//!
//! The gradients of a step are reduced over the ranks, then every rank applies the result to its own tables: the same numbers in
//! the same order, so the tables stay equal bit by bit. Dense gradients are reduced in buckets, each as soon as the backward
//! pass has completed it, while the rest is still computed. Sparse gradients are gathered by distinct key.
//!
//! ```text
//! begin_step -> pull -> backward: dense_ready ... -> reduce -> push
//! ```

use std::ops::Range;
use std::sync::Arc;

use openfleet_core::strategy::{CollectiveSettings, CollectiveUpdate, FloatWidth};
use openfleet_core::{Key, WorkId};
use openfleet_table::{DenseTable, SparseTable};
use parking_lot::Mutex;

use super::{Communicator, Local, Missing, Pushed, Step};
use crate::collective::{Call, Pending, RankGroup, Turn, algorithms, any_is_new, participants, rate_factor};
use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::server::Reduce;
use crate::stage::{DenseStage, SparseStage};

mod averaging;
mod merging;
mod sparse;

use averaging::Averaging;
use merging::Merging;

/// The tables of one program, on every rank.
pub struct Replicated {
    group: Arc<RankGroup>,
    tables: Local,
    program: u64,
    settings: CollectiveSettings,
    /// Trained parameters, in the order in which the backward pass completes their gradients, with their sizes.
    order: Vec<(usize, usize)>,
    /// Ranges of `order` that are reduced together.
    buckets: Vec<Range<usize>>,
    /// Number of running statistics.
    statistics: usize,
    step: Mutex<StepState>,
}

/// The values of a step besides its gradients.
pub struct StepValues<'a> {
    /// The loss of this rank's batch; `None` without data.
    pub loss: Option<f32>,
    /// Running statistics: every rank gets the mean.
    pub statistics: &'a mut [f32],
}

#[derive(Default)]
struct StepState {
    /// Parameters of this rank may differ from the others'.
    is_new: bool,
    /// The other ranks wait for the gradients of this step.
    is_announced: bool,
    /// What every rank does in this step, once it is known.
    calls: Option<Vec<Call>>,
    vote: Option<Pending<Turn>>,
    /// How many gradients of `order` are complete.
    ready: usize,
    /// Buckets on their way.
    reducing: Vec<Pending<Vec<f32>>>,
    /// Buffers of buckets, used again.
    buffers: Vec<Vec<f32>>,
    sparse: sparse::Gather,
    merging: Merging,
    averaging: Averaging,
}

impl Replicated {
    /// Tables with their names, in the order the stages refer to them; `order` is that in which the backward pass completes the
    /// gradients of trained parameters, by the position of their tables; `statistics` is the number of running statistics.
    ///
    /// # Errors
    /// If the settings do not allow for a sparse table.
    pub fn new(
        group: Arc<RankGroup>,
        program: u64,
        settings: CollectiveSettings,
        sparse: Vec<(String, Arc<SparseTable>)>,
        dense: Vec<(String, Arc<DenseTable>)>,
        order: &[usize],
        statistics: usize,
    ) -> Result<Self> {
        if let (CollectiveUpdate::Local { .. }, Some((table, _))) = (settings.update, sparse.first()) {
            return Err(Error::NotInLocalSgd { table: table.clone() });
        }
        let order: Vec<(usize, usize)> = order.iter().map(|&table| (table, dense[table].1.len())).collect();
        let buckets = buckets(&order, &settings);
        let step = Mutex::new(StepState { is_new: true, ..StepState::default() });
        Ok(Replicated { group, tables: Local::new(sparse, dense), program, settings, order, buckets, statistics, step })
    }

    /// The ranks that train together.
    pub fn group(&self) -> &Arc<RankGroup> {
        &self.group
    }

    /// A step of this rank begins, with these keys. The other ranks learn of it while it is computed.
    pub fn begin_step(&self, sparse: &[SparseStage]) -> Result<()> {
        let mut step = self.step.lock();
        step.ready = 0;
        step.calls = None;
        match self.settings.update {
            CollectiveUpdate::EveryStep => {
                let bytes = sparse::bytes(sparse, self.settings.float_width);
                step.vote = Some(self.group.vote(self.call_of_step(step.is_new, bytes)));
                step.is_announced = true;
            }
            // Ranks that train alone at first must begin with the same parameters.
            CollectiveUpdate::Merged { .. } | CollectiveUpdate::Local { .. } if step.is_new => {
                self.group.agree(Call::average(self.program, true, 0))?;
                self.synchronize(&mut step)?;
            }
            CollectiveUpdate::Merged { .. } | CollectiveUpdate::Local { .. } => {}
        }
        if step.is_new {
            self.await_vote(&mut step)?;
        }
        Ok(())
    }

    fn call_of_step(&self, is_new: bool, sparse_bytes: usize) -> Call {
        Call::step(self.program, is_new, sparse_bytes).at_rate_factor(self.tables.rate_factor())
    }

    /// This rank takes part in a step of others, without data.
    pub fn begin_step_of_others(&self, calls: Vec<Call>) -> Result<()> {
        let mut step = self.step.lock();
        step.ready = 0;
        step.vote = None;
        self.arrived(&mut step, calls)
    }

    /// The gradient of a parameter is complete: the next one of the order.
    pub fn dense_ready(&self, dense: &[DenseStage]) {
        if self.settings.update != CollectiveUpdate::EveryStep {
            return;
        }
        let mut step = self.step.lock();
        if !step.is_announced {
            // A step that is computed again after a restart, for its values only.
            return;
        }
        step.ready += 1;
        // The last bucket also carries statistics, so it is sent by `reduce`.
        let last = self.buckets.len().saturating_sub(1);
        if let Some(bucket) = self.buckets[..last].get(step.reducing.len())
            && step.ready == bucket.end
        {
            // If a rank is new, parameters are exchanged before the first bucket. An error comes again in `reduce`.
            if self.await_vote(&mut step).is_ok() {
                self.send_bucket(&mut step, dense, bucket.clone(), &[]);
            }
        }
    }

    /// Replaces the gradients of a step by those of all ranks. Returns whether they are to be applied now.
    pub fn reduce(&self, sparse: &mut [SparseStage], dense: &mut [DenseStage], values: StepValues<'_>) -> Result<bool> {
        let mut step = self.step.lock();
        match self.settings.update {
            CollectiveUpdate::EveryStep => {}
            CollectiveUpdate::Merged { steps, averages } => {
                if values.loss.is_some() && !step.merging.add(sparse, dense, steps) {
                    return Ok(false);
                }
                if values.loss.is_some() {
                    step.merging.take(sparse, dense, if averages { steps } else { 1 });
                    let bytes = sparse::bytes(sparse, self.settings.float_width);
                    step.vote = Some(self.group.vote(self.call_of_step(false, bytes)));
                }
            }
            CollectiveUpdate::Local { .. } => return self.begin_average(&mut step, values),
        }
        let has_data = values.loss.is_some();
        self.await_vote(&mut step)?;
        let calls = step.calls.clone().unwrap_or_default();
        while step.reducing.len() + 1 < self.buckets.len() {
            let bucket = self.buckets[step.reducing.len()].clone();
            self.send_bucket(&mut step, dense, bucket, &[]);
        }
        let last = self.buckets.last().cloned().unwrap_or_default();
        self.send_bucket(&mut step, dense, last, values.statistics);
        let width = self.settings.float_width;
        let gathering = match sparse.is_empty() {
            true => None,
            false => {
                let mine = if has_data { step.sparse.encode(sparse, width) } else { Payload::new() };
                Some(self.group.submit_gather(mine, calls.iter().map(Call::length).collect()))
            }
        };
        let scale = if self.settings.sums { 1.0 } else { 1.0 / participants(&calls).max(1) as f32 };
        let mean = 1.0 / participants(&calls).max(1) as f32;
        self.receive_buckets(&mut step, dense, values.statistics, scale, mean)?;
        if let Some(gathering) = gathering {
            let all = gathering.wait()?;
            let lengths: Vec<usize> = calls.iter().map(Call::length).collect();
            step.sparse.merge(sparse, &all, &lengths, width, scale)?;
        }
        step.is_announced = false;
        let batches = match self.settings.update {
            CollectiveUpdate::Merged { steps, .. } => steps,
            CollectiveUpdate::EveryStep | CollectiveUpdate::Local { .. } => 1,
        };
        let applied: Vec<u64> = calls.iter().map(|call| if call.trains() { batches } else { 0 }).collect();
        self.group.apply_batches(self.program, &applied);
        Ok(true)
    }

    /// Takes part in an average of others, without data of its own. Changes the tables and the statistics.
    pub fn take_part_in_average(&self, calls: &[Call], statistics: &mut [f32]) -> Result<()> {
        let mut step = self.step.lock();
        if any_is_new(calls) {
            return self.synchronize(&mut step);
        }
        step.averaging.set_ranks(calls);
        self.average_statistics(StepValues { loss: None, statistics })?;
        self.average(&mut step)
    }

    /// This rank has no more data in this pass. Takes part in the steps of the others until they have none either.
    pub fn end_of_data(&self) -> Result<()> {
        if let CollectiveUpdate::Local { .. } = self.settings.update {
            self.flush_average(&mut self.step.lock())?;
        }
        self.group.agree(Call::end_of_data()).map(drop)
    }

    /// Waits for what the other ranks do in this step.
    fn await_vote(&self, step: &mut StepState) -> Result<()> {
        let Some(vote) = step.vote.take() else { return Ok(()) };
        match vote.wait()? {
            Turn::Own { calls } => self.arrived(step, calls),
            // A rank that trains is always in turn.
            Turn::Others { .. } | Turn::Again => Err(Error::Damaged { what: "call of a rank" }),
        }
    }

    fn arrived(&self, step: &mut StepState, calls: Vec<Call>) -> Result<()> {
        if any_is_new(&calls) {
            self.synchronize(step)?;
        }
        self.tables.set_rate_factor(rate_factor(&calls));
        step.calls = Some(calls);
        Ok(())
    }

    /// Gives all ranks the parameters of rank 0, with their optimizer state, and checks that sparse tables are equal.
    fn synchronize(&self, step: &mut StepState) -> Result<()> {
        for (_, table) in self.tables.dense() {
            let bytes = table.read_all(|values, state, step| {
                let mut bytes = step.to_le_bytes().to_vec();
                bytes.extend_from_slice(bytemuck::cast_slice(values));
                bytes.extend_from_slice(bytemuck::cast_slice(state));
                bytes
            });
            let received = self.group.submit_broadcast(0, bytes).wait()?;
            if self.group.rank() != 0 {
                let (count, numbers) = received.split_at(size_of::<u64>());
                let numbers: Vec<f32> = numbers.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
                let (values, state) = numbers.split_at(table.len());
                let damaged = |_| Error::Damaged { what: "broadcast of a parameter" };
                let count = u64::from_le_bytes(count.try_into().map_err(damaged)?);
                table.restore(values, state, count).map_err(|source| Error::Table {
                    action: "restoring",
                    table: "of a parameter".into(),
                    source,
                })?;
            }
        }
        for (name, table) in self.tables.sparse() {
            let (digest, table, size) = (sparse::digest(table), name.clone(), self.group.size());
            let compared = self.group.submit(move |transport| {
                let mut digests: Vec<[u64; 2]> = vec![digest; size];
                let mine = [digest];
                algorithms::all_gather(transport, bytemuck::cast_slice(&mine), bytemuck::cast_slice_mut(&mut digests))?;
                let different = digests.iter().position(|other| *other != digests[0]);
                different.map_or(Ok(()), |rank| Err(Error::RowsDiffer { table, rank: rank as u32 }))
            });
            compared.wait()?;
        }
        step.is_new = false;
        step.averaging.begin(self.tables.dense());
        Ok(())
    }

    /// Sends the gradients of a bucket, and `more` numbers with them.
    fn send_bucket(&self, step: &mut StepState, dense: &[DenseStage], bucket: Range<usize>, more: &[f32]) {
        let mut buffer = step.buffers.pop().unwrap_or_default();
        buffer.clear();
        self.order[bucket].iter().for_each(|&(table, _)| buffer.extend_from_slice(&dense[table].gradient));
        buffer.extend_from_slice(more);
        let width = self.settings.float_width;
        step.reducing.push(self.group.submit(move |transport| {
            match width {
                FloatWidth::Bits32 => algorithms::all_reduce(transport, Reduce::Sum, &mut buffer)?,
                FloatWidth::Bits16 => algorithms::all_reduce_narrow(transport, &mut buffer)?,
            }
            Ok(buffer)
        }));
    }

    fn receive_buckets(
        &self,
        step: &mut StepState,
        dense: &mut [DenseStage],
        statistics: &mut [f32],
        scale: f32,
        mean: f32,
    ) -> Result<()> {
        for (number, pending) in std::mem::take(&mut step.reducing).into_iter().enumerate() {
            let buffer = pending.wait()?;
            let mut rest = buffer.as_slice();
            for &(table, size) in &self.order[self.buckets[number].clone()] {
                let (reduced, after) = rest.split_at(size);
                scaled(&mut dense[table].gradient, reduced, scale);
                rest = after;
            }
            if number + 1 == self.buckets.len() {
                scaled(statistics, rest, mean);
            }
            step.buffers.push(buffer);
        }
        Ok(())
    }
}

fn scaled(to: &mut [f32], from: &[f32], factor: f32) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = from * factor);
}

/// Ranges of gradients that are reduced together. There is at least one, for the statistics.
fn buckets(order: &[(usize, usize)], settings: &CollectiveSettings) -> Vec<Range<usize>> {
    let bytes = |range: Range<usize>| order[range].iter().map(|(_, size)| size * size_of::<f32>()).sum::<usize>();
    let mut buckets: Vec<Range<usize>> = Vec::new();
    let mut start = 0;
    for end in 1..=order.len() {
        if end == order.len() || bytes(start..end + 1) > settings.bucket_bytes {
            buckets.push(start..end);
            start = end;
        }
    }
    // Nothing is computed while the last bucket is reduced, so it is kept small.
    if let Some(last) = buckets.pop() {
        let cut = last.clone().find(|&at| bytes(at..last.end) <= settings.last_bucket_bytes).unwrap_or(last.end - 1);
        if cut > last.start {
            buckets.push(last.start..cut);
        }
        buckets.push(cut..last.end);
    }
    if buckets.is_empty() {
        buckets.push(0..0);
    }
    buckets
}

impl Communicator for Replicated {
    fn pull_sparse(&self, stages: &mut [SparseStage], missing: Missing) -> Result<()> {
        self.tables.pull_sparse(stages, missing)
    }

    fn set_rate_factor(&self, factor: f32) {
        self.tables.set_rate_factor(factor);
    }

    fn pull_dense(&self, stages: &mut [DenseStage]) -> Result<()> {
        self.tables.pull_dense(stages)
    }

    /// On this rank only: every rank puts the same rows.
    fn put_rows(&self, table: usize, keys: &[Key], rows: &[f32]) -> Result<()> {
        self.tables.put_rows(table, keys, rows)
    }

    fn keys(&self, table: usize) -> Result<Vec<Key>> {
        self.tables.keys(table)
    }

    fn counts_refusals(&self) -> bool {
        true
    }

    /// Every rank draws other random numbers.
    fn job_stream(&self, _stream: u32) -> u32 {
        self.group.rank() as u32
    }

    fn next_step(&self, _stream: u32) -> Result<Step> {
        Ok(self.group.begin_batch(self.program))
    }

    /// A step that has been announced cannot be taken back: the others wait for its gradients.
    fn return_step(&self, _stream: u32) {
        if std::mem::take(&mut self.step.lock().is_announced) {
            self.group.fail("a training step failed");
        }
        self.group.take_back_batch(self.program);
    }

    fn finish(&self, _stream: u32) -> Result<()> {
        self.end_of_data()
    }

    fn push(&self, work: WorkId, sparse: &mut [SparseStage], dense: &mut [DenseStage]) -> Result<Pushed> {
        let report = self.tables.push(work, sparse, dense)?;
        let mut step = self.step.lock();
        if step.averaging.is_due() {
            self.average(&mut step)?;
        }
        Ok(report)
    }

    fn abandon(&self) {
        self.group.fail("a training thread failed");
    }
}
