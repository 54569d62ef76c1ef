//! What all remote modes share: placement of keys and blocks, encoding stages into requests, and decoding replies into stages.
//!
//! One request per server and batch, for all stages and tables together; replies are gathered in order. When a request is sent
//! is up to the mode.

mod early;
mod row_cache;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use openfleet_core::placement::{DenseParameter, Grouping, Placement, PlacementRule};
use openfleet_core::strategy::{FloatWidth, Mode};
use openfleet_core::{Key, WorkId};
use openfleet_table::{DenseSpec, Missing, SparseSpec, clip};
use parking_lot::Mutex;

use self::early::EarlyParts;
use self::row_cache::{DividedPull, RowCache};
use super::Streams;
use crate::client::{Link, Pending};
use crate::error::{Error, Result};
use crate::floats;
use crate::frame::{Payload, PayloadPool, Reader};
use crate::gradients::{Counts, Head, Measure, PushEncoder, request_changes, take_barrier};
use crate::pull::{self, PullEncoder};
use crate::request::create_tables::{self, CreateTables, Description, ServerShare};
use crate::request::depart::Depart;
use crate::request::join::Join;
use crate::request::leave::Leave;
use crate::request::list_keys::{self, ListKeys};
use crate::request::pull_changes::{self, PullChanges};
use crate::request::pull_dense::PullDense;
use crate::request::put_rows::PutRows;
use crate::request::scale::Scale;
use crate::request::status::{self, Status, StatusRequest};
use crate::request::{Kind, Request};
use crate::stage::{DenseStage, SparseStage};

/// Rank of this worker, number of workers, and training threads per worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Worker {
    /// Rank, from 0.
    pub rank: u32,
    /// Number of workers in the job.
    pub count: u32,
    /// Number of training threads, the same on every worker.
    pub threads: u32,
}

impl Worker {
    /// The job-wide number of one of this worker's threads.
    pub fn stream(&self, thread: u32) -> u32 {
        self.rank * self.threads + thread
    }
}

/// Dense values as of the last reply of each server with changes.
#[derive(Default)]
pub(super) struct HeldValues {
    /// One vector per parameter.
    pub(super) values: Vec<Vec<f32>>,
    /// Per server: the number of that reply.
    numbers: Vec<u64>,
}

impl HeldValues {
    /// Full values, without a reply that changes could refer to.
    pub(super) fn of(values: Vec<Vec<f32>>) -> Self {
        HeldValues { values, numbers: Vec::new() }
    }

    /// Per server: the number of its last reply; a server that is missing has sent none.
    pub(super) fn numbers(&self) -> &[u64] {
        &self.numbers
    }

    /// The number of a server's last reply; 0 for none.
    pub(super) fn number(&self, server: usize) -> u64 {
        self.numbers.get(server).copied().unwrap_or(0)
    }
}

/// What the reply to a push contains.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PushReply {
    /// Nothing: the push was applied.
    Nothing,
    /// The new dense values.
    Values,
    /// The squared norm of this server's part of the mean gradients. The push is applied when the workers have sent the scale
    /// factor.
    Measure,
}

/// A program's tables on the servers, as one worker sees them.
pub struct Remote {
    pub(super) links: Vec<Link>,
    pub(super) worker: Worker,
    placement: Placement,
    /// Per server: indices of its blocks in `placement.blocks()`. The position in the list is the block's number on the server.
    blocks: Vec<Vec<usize>>,
    dims: Vec<u32>,
    width: FloatWidth,
    /// Rows are pushed with 32 bits, whatever the width is.
    wide_rows: bool,
    /// Working memory; each call takes one set.
    buffer_pool: Mutex<Vec<CallBuffers>>,
    /// Memory of pushes.
    payloads: PayloadPool,
    /// Per server: the session number that prefixes the numbers of this worker's pulls.
    sessions: Vec<u64>,
    /// Step counters of the training threads.
    pub(super) streams: Arc<Streams>,
    /// The program's own state from the checkpoint that the tables were loaded from.
    states: Mutex<Vec<u8>>,
    pulls: AtomicU64,
    /// Per stream that steps together with others, if floats are narrow: the dense values that its replies refer to.
    stepped: Mutex<HashMap<u32, HeldValues>>,
    /// Per stream: the parts of its step that were sent.
    early: Mutex<HashMap<u32, EarlyParts>>,
    /// Rows that batches may use again.
    row_cache: Option<RowCache>,
    /// The bits of [`Communicator::set_rate_factor`](super::Communicator::set_rate_factor).
    rate_factor: AtomicU32,
}

/// Floats of the rows that one request puts.
const PUT_FLOATS: usize = 1 << 20;

/// Rows that are requested from the servers.
pub struct PullInFlight {
    asked: Vec<Pending>,
    buffers: CallBuffers,
    /// If some of the rows are cached: those, and the stages that were requested instead.
    divided: Option<DividedPull>,
}

/// Working memory of one call.
#[derive(Default)]
pub(super) struct CallBuffers {
    /// One grouping per stage.
    groupings: Vec<Grouping>,
}

impl Remote {
    /// Creates the program's tables on all servers, or checks that they exist there with the same specs. `dense` has initial
    /// values.
    pub fn create(
        links: Vec<Link>,
        worker: Worker,
        mode: Mode,
        rule: PlacementRule,
        sparse: &[(String, SparseSpec)],
        dense: &[(String, DenseSpec, Vec<f32>)],
    ) -> Result<Self> {
        let parameter = |(name, spec, _): &(String, DenseSpec, Vec<f32>)| {
            DenseParameter::new(name.clone(), spec.shape.clone()).whole_if(spec.optimizer.needs_whole_parameters())
        };
        let parameters = dense.iter().map(parameter).collect();
        let placement = Placement::new(parameters, links.len(), rule)?;
        let blocks: Vec<Vec<usize>> = (0..links.len())
            .map(|server| {
                let here = placement.blocks().iter().enumerate().filter(|(_, block)| block.server == server);
                here.map(|(number, _)| number).collect()
            })
            .collect();
        let whole: Vec<_> = dense.iter().map(|(name, spec, _)| (name.clone(), spec.clone())).collect();
        let asked = links.iter().zip(&blocks).enumerate().map(|(server, (link, blocks))| {
            let blocks = blocks.iter().map(|&number| &placement.blocks()[number]);
            let description = Description {
                mode,
                workers: worker.count,
                threads: worker.threads,
                sparse: sparse.to_vec(),
                dense: blocks
                    .clone()
                    .map(|block| {
                        let spec = DenseSpec { shape: vec![block.length], ..dense[block.parameter].1.clone() };
                        (placement.block_name(block), spec)
                    })
                    .collect(),
                share: ServerShare {
                    server: server as u32,
                    servers: links.len() as u32,
                    parameters: whole.clone(),
                    blocks: blocks.clone().map(|block| (block.parameter as u32, block.offset as u64)).collect(),
                },
            };
            let values =
                blocks.map(|block| dense[block.parameter].2[block.offset..block.offset + block.length].to_vec());
            // The longer limit: servers may load the tables from a checkpoint first.
            link.send_patiently(&CreateTables { description, first_values: values.collect() })
        });
        let answers = wait_all(asked.collect::<Result<Vec<_>>>()?)?;
        let created = answers.iter().map(|answer| create_tables::decode(answer.bytes())).collect::<Result<Vec<_>>>()?;
        let sessions = created.iter().map(|created| created.session).collect();
        let states = Mutex::new(created.into_iter().next().map(|created| created.states).unwrap_or_default());
        let dims = sparse.iter().map(|(_, spec)| spec.dim as u32).collect();
        let (buffer_pool, payloads, pulls) = (Mutex::default(), PayloadPool::default(), AtomicU64::new(0));
        let (width, wide_rows) = (FloatWidth::default(), false);
        let streams = Arc::new(Streams::new(worker, Vec::new()));
        Ok(Remote {
            links,
            worker,
            placement,
            blocks,
            dims,
            width,
            wide_rows,
            buffer_pool,
            payloads,
            sessions,
            streams,
            states,
            pulls,
            stepped: Mutex::default(),
            early: Mutex::default(),
            row_cache: None,
            rate_factor: AtomicU32::new(1.0f32.to_bits()),
        })
    }

    /// Uses the step counters of the worker, which know what the servers had applied when it entered the job.
    pub(crate) fn with_streams(self, streams: Arc<Streams>) -> Self {
        Remote { streams, ..self }
    }

    /// Takes the program's own state from the checkpoint that the tables were loaded from. Empty after the first call.
    pub fn take_states(&self) -> Vec<u8> {
        std::mem::take(&mut self.states.lock())
    }

    /// Sends gradients with another float width. Rows and dense values are always pulled with 32 bits: training on rounded
    /// values stalls when gradients are smaller than the rounding error.
    pub fn with_float_width(self, width: FloatWidth) -> Self {
        Remote { width, ..self }
    }

    /// Lets training use a pulled row for this many more batches of the worker; 0: every batch pulls its rows.
    pub fn with_row_staleness(self, batches: u64) -> Self {
        Remote { row_cache: (batches > 0).then(|| RowCache::new(batches)), ..self }
    }

    /// The next batch pulls all of its rows.
    pub(super) fn forget_rows(&self) {
        self.row_cache.iter().for_each(RowCache::clear);
    }

    /// Pushes rows with 32 bits, whatever the float width is.
    pub(super) fn with_wide_rows(self) -> Self {
        Remote { wide_rows: true, ..self }
    }

    /// The width of the floats in gradients.
    pub(super) fn float_width(&self) -> FloatWidth {
        self.width
    }

    /// Bytes sent and received, over all servers.
    pub fn traffic(&self) -> (u64, u64) {
        let sum = |what: fn(&crate::client::Traffic) -> &AtomicU64| {
            self.links.iter().map(|link| what(link.traffic()).load(Ordering::Relaxed)).sum()
        };
        (sum(|traffic| &traffic.sent), sum(|traffic| &traffic.received))
    }

    /// Fills `rows` of every lookup.
    pub(super) fn pull_sparse(&self, stages: &mut [SparseStage], missing: Missing) -> Result<()> {
        let pull = self.begin_pull(stages, missing);
        self.end_pull(pull, stages)
    }

    /// Requests the rows of the stages' keys. [`end_pull`](Remote::end_pull) must be called with the same stages.
    pub(super) fn begin_pull(&self, stages: &[SparseStage], missing: Missing) -> PullInFlight {
        // An evaluation sees the newest rows.
        let cache = self.row_cache.as_ref().filter(|_| missing == Missing::Create);
        let divided = cache.map(|cache| cache.divide(stages));
        let stages = divided.as_ref().map_or(stages, |divided| &divided.requested);
        let buffers = self.group(stages);
        let number = self.pulls.fetch_add(1, Ordering::Relaxed);
        let mut asked = Vec::with_capacity(self.links.len());
        for (server, link) in self.links.iter().enumerate() {
            asked
                .push(link.send_payload(Kind::PullSparse, self.encode_pull(server, stages, &buffers, missing, number)));
        }
        PullInFlight { asked, buffers, divided }
    }

    /// Encodes the pull of the keys that a server has.
    fn encode_pull(
        &self,
        server: usize,
        stages: &[SparseStage],
        buffers: &CallBuffers,
        missing: Missing,
        number: u64,
    ) -> Payload {
        // 40 bits for the number: a million million pulls per incarnation of the worker.
        let mut pull = PullEncoder::new(missing, self.sessions[server] << 40 | number, stages.len());
        for (stage, grouping) in stages.iter().zip(&buffers.groupings) {
            let (tables, dims) = self.tables_of(stage, |_| true);
            pull.stage(&tables, &dims, grouping.keys(server));
        }
        pull.finish()
    }

    /// Waits for requested rows and copies them into the stages.
    pub(super) fn end_pull(&self, pull: PullInFlight, stages: &mut [SparseStage]) -> Result<()> {
        let PullInFlight { asked, buffers, mut divided } = pull;
        for (server, pending) in asked.into_iter().enumerate() {
            let answer = pending.wait()?;
            let mut reader = Reader::new(answer.bytes());
            let requested = divided.as_mut().map_or(&mut *stages, |divided| &mut divided.requested);
            take_rows(server, &mut reader, &buffers, requested)?;
            reader.end()?;
        }
        self.buffer_pool.lock().push(buffers);
        if let (Some(divided), Some(cache)) = (divided, &self.row_cache) {
            cache.join(divided, stages);
        }
        Ok(())
    }

    /// Sets the weights of keys that have no row yet, some megabytes at a time.
    pub(super) fn put_rows(&self, table: usize, keys: &[Key], rows: &[f32]) -> Result<()> {
        let dim = self.dims[table];
        let (width, most) = (dim as usize, (PUT_FLOATS / dim as usize).max(1));
        let mut grouping = Grouping::new();
        for (keys, rows) in keys.chunks(most).zip(rows.chunks(most * width)) {
            self.placement.group(keys, &mut grouping);
            let asked = self.links.iter().enumerate().map(|(server, link)| {
                let of = |&at: &u32| &rows[at as usize * width..][..width];
                let here = grouping.positions(server).iter().flat_map(of).copied().collect();
                link.send(&PutRows { table: table as u32, dim, keys: grouping.keys(server).to_vec(), rows: here })
            });
            wait_all(asked.collect::<Result<_>>()?)?;
        }
        Ok(())
    }

    /// The keys of all rows of a table.
    pub(super) fn keys(&self, table: usize) -> Result<Vec<Key>> {
        let (mut keys, mut shard, mut shards) = (Vec::new(), 0, 1);
        while shard < shards {
            let request = ListKeys { table: table as u32, shard };
            for reply in wait_all(self.links.iter().map(|link| link.send(&request)).collect::<Result<_>>()?)? {
                shards = list_keys::take(&reply, &mut keys)?.max(shards);
            }
            shard += 1;
        }
        Ok(keys)
    }

    /// Fetches the values of these parameters.
    pub(super) fn pull_dense(&self, stages: &mut [DenseStage]) -> Result<()> {
        let places = self.places(stages, |_| true);
        let asked = self.links.iter().enumerate().map(|(server, link)| {
            let blocks = self.blocks_of(server, &places).map(|(at, _, _)| at).collect();
            link.send(&PullDense { blocks })
        });
        let asked: Vec<Pending> = asked.collect::<Result<_>>()?;
        for (server, pending) in asked.into_iter().enumerate() {
            let answer = pending.wait()?;
            let mut reader = Reader::new(answer.bytes());
            self.take_values(server, &mut reader, &places, stages)?;
            reader.end()?;
        }
        Ok(())
    }

    /// Requests how all dense values have changed since the replies with these numbers; without numbers, the values themselves.
    /// Only for narrow floats.
    pub(super) fn pull_changes(&self, numbers: &[u64]) -> Result<Vec<Payload>> {
        let places = self.all_places();
        let asked = self.links.iter().enumerate().map(|(server, link)| {
            let blocks = self.blocks_of(server, &places).map(|(at, _, _)| at).collect();
            link.send(&PullChanges { held: numbers.get(server).copied().unwrap_or(0), blocks })
        });
        wait_all(asked.collect::<Result<_>>()?)
    }

    /// Adds the changes in the replies of all servers to the values.
    pub(super) fn take_all_changes(&self, answers: &[Payload], held: &mut HeldValues) -> Result<()> {
        for (server, answer) in answers.iter().enumerate() {
            let mut reader = Reader::new(answer.bytes());
            self.take_changes(server, &mut reader, held)?;
            reader.end()?;
        }
        Ok(())
    }

    /// Adds the changes that a server replied to the values.
    pub(super) fn take_changes(&self, server: usize, reader: &mut Reader<'_>, held: &mut HeldValues) -> Result<()> {
        let parameters = self.placement.parameters();
        held.numbers.resize(self.links.len(), 0);
        held.values.resize_with(parameters.len(), Vec::new);
        for (values, parameter) in held.values.iter_mut().zip(parameters) {
            values.resize(parameter.shape.iter().product(), 0.0);
        }
        let (number, are_differences) = pull_changes::take_number(reader)?;
        for (_, parameter, range) in self.blocks_of(server, &self.all_places()) {
            let values = &mut held.values[parameter][range];
            match are_differences {
                true => floats::add_differences(reader, values)?,
                false => floats::take_into(reader, values)?,
            }
        }
        held.numbers[server] = number;
        Ok(())
    }

    /// Every parameter at its own number.
    fn all_places(&self) -> Vec<Option<usize>> {
        (0..self.placement.parameters().len()).map(Some).collect()
    }

    /// Pulls all dense values, one vector per parameter.
    pub(super) fn pull_dense_values(&self) -> Result<Vec<Vec<f32>>> {
        let mut stages: Vec<DenseStage> = self
            .placement
            .parameters()
            .iter()
            .enumerate()
            .map(|(table, parameter)| DenseStage {
                table,
                values: vec![0.0; parameter.shape.iter().product()],
                ..Default::default()
            })
            .collect();
        self.pull_dense(&mut stages)?;
        Ok(stages.into_iter().map(|stage| stage.values).collect())
    }

    /// Encodes one push per server. If `dense` is empty, only sparse gradients are sent.
    pub(super) fn encode_push(
        &self,
        work: WorkId,
        sparse: &[SparseStage],
        dense: &[DenseStage],
        reply: PushReply,
    ) -> Vec<Payload> {
        let places = self.places(dense, |stage| stage.trained);
        self.encode_push_before(self.head(work, reply), sparse, (dense, &places), None)
    }

    fn head(&self, work: WorkId, reply: PushReply) -> Head {
        let (want_values, measured) = (reply == PushReply::Values, reply == PushReply::Measure);
        let (width, wide_rows) = (self.width, self.wide_rows);
        let rate_factor = f32::from_bits(self.rate_factor.load(Ordering::Relaxed));
        Head { want_values, width, wide_rows, measured, rate_factor, ..Head::of(work) }
    }

    pub(super) fn set_rate_factor(&self, factor: f32) {
        self.rate_factor.store(factor.to_bits(), Ordering::Relaxed);
    }

    /// What the reply to a group's step contains, besides changes of the values if floats are narrow.
    fn step_reply(&self) -> PushReply {
        match self.width {
            FloatWidth::Bits16 => PushReply::Nothing,
            FloatWidth::Bits32 => PushReply::Values,
        }
    }

    /// Encodes one push per server, with the gradients of the parameters that have a place; it also requests the rows of the
    /// next step's stages.
    fn encode_push_before(
        &self,
        head: Head,
        sparse: &[SparseStage],
        (dense, places): (&[DenseStage], &[Option<usize>]),
        next: Option<(&[SparseStage], &CallBuffers)>,
    ) -> Vec<Payload> {
        let number = next.map_or(0, |_| self.pulls.fetch_add(1, Ordering::Relaxed));
        let buffers = self.group(sparse);
        let head = Head { counted: sparse.iter().any(|stage| stage.counts.is_some()), ..head };
        let payloads = (0..self.links.len())
            .map(|server| {
                let mut push = PushEncoder::in_payload(head, self.payloads.empty());
                for (stage, grouping) in sparse.iter().zip(&buffers.groupings) {
                    let (tables, dims) = self.tables_of(stage, |lookup| lookup.trained);
                    let (keys, positions) = (grouping.keys(server), grouping.positions(server));
                    let gradients = stage.lookups.iter().filter(|lookup| lookup.trained).map(|lookup| {
                        positions.iter().map(|&from| &lookup.gradients[from as usize * lookup.dim..][..lookup.dim])
                    });
                    let of =
                        |counts: &'_ [f32]| positions.iter().map(|&from| counts[from as usize]).collect::<Vec<_>>();
                    let counts = stage.counts.as_ref().map(|counts| (of(&counts.show), of(&counts.click)));
                    let mut counts = counts.map(|(show, click)| (show.into_iter(), click.into_iter()));
                    let counts = counts.as_mut().map(|(show, click)| Counts { show, click });
                    push.stage(&tables, &dims, keys, gradients, counts);
                }
                let mut push = push.blocks();
                for (at, place, range) in self.blocks_of(server, places) {
                    push.block(at, &dense[place].gradient[range]);
                }
                match next {
                    None => push.finish(),
                    Some((stages, buffers)) => {
                        push.finish_before(&self.encode_pull(server, stages, buffers, Missing::Create, number))
                    }
                }
            })
            .collect();
        self.buffer_pool.lock().push(buffers);
        payloads
    }

    /// Pushes a step of a group, or what remains of it after [`push_early`](Remote::push_early), waits until it is applied, and
    /// takes the new dense values from the reply; also the rows of `next`, the stages of the stream's next step, which may be
    /// empty. Returns how long the servers waited for the pushes of other workers.
    pub(super) fn push_in_step(
        &self,
        work: WorkId,
        sparse: &[SparseStage],
        dense: &mut [DenseStage],
        next: &mut [SparseStage],
    ) -> Result<Duration> {
        let buffers = (!next.is_empty()).then(|| self.group(next));
        let with_next = buffers.as_ref().map(|buffers| (&*next, buffers));
        // After an error the next reply has full values, because nothing is held.
        let mut held = match self.width {
            FloatWidth::Bits16 => Some(self.stepped.lock().remove(&work.stream).unwrap_or_default()),
            FloatWidth::Bits32 => None,
        };
        let early = self.take_early(work.stream);
        let mut places = self.places(dense, |stage| stage.trained);
        early.remove_sent(&mut places);
        let head = self.head(work, self.step_reply()).of_part(early.last());
        let mut payloads = self.encode_push_before(head, sparse, (dense, &places), with_next);
        if let Some(held) = &held {
            for (server, payload) in payloads.iter_mut().enumerate() {
                request_changes(payload, held.number(server));
            }
        }
        let asked = self.ask_all(Kind::Push, payloads);
        let barrier =
            self.take_stepped_values(asked, dense, &places, held.as_mut(), |server, reader| match &buffers {
                Some(buffers) => take_rows(server, reader, buffers, next),
                None => Ok(()),
            })?;
        self.take_early_values(early, dense)?;
        if let Some(held) = held {
            for stage in dense.iter_mut().filter(|stage| stage.trained) {
                stage.values.copy_from_slice(&held.values[stage.table]);
            }
            self.stepped.lock().insert(work.stream, held);
        }
        self.buffer_pool.lock().extend(buffers);
        Ok(barrier)
    }

    /// Like `push_in_step`, but scales the group's mean gradients so that their global norm is at most `norm`. Every server
    /// measures its part and applies the step when it gets the factor, which takes a second round trip.
    pub(super) fn push_in_step_within_norm(
        &self,
        work: WorkId,
        sparse: &[SparseStage],
        dense: &mut [DenseStage],
        norm: f32,
    ) -> Result<Duration> {
        let places = self.places(dense, |stage| stage.trained);
        let head = self.head(work, PushReply::Measure).of_part(self.take_early(work.stream).last());
        let asked = self.ask_all(Kind::Push, self.encode_push_before(head, sparse, (dense, &places), None));
        let (mut squares, mut applied, mut barrier) = (0.0, None, Duration::ZERO);
        // Sum in the order of the servers, so that all workers get the same result.
        for answer in wait_all(asked)? {
            let mut reader = Reader::new(answer.bytes());
            match Measure::take(&mut reader)? {
                Measure::Squares(part) => squares += part,
                Measure::Applied { factor } => applied = Some(factor),
            }
            barrier = barrier.max(take_barrier(&mut reader)?);
            reader.end()?;
        }
        // A server that has already applied the step got the factor from another worker.
        let factor = applied.unwrap_or_else(|| clip::global_scale(squares, norm));
        if factor.is_nan() {
            return Err(Error::NotMeasured { stream: work.stream, step: work.first_step });
        }
        let payloads = (0..self.links.len()).map(|server| {
            let blocks = self.blocks_of(server, &places).map(|(at, _, _)| at).collect();
            Scale { stream: work.stream, step: work.first_step, factor, blocks }.encode()
        });
        let asked = self.ask_all(Kind::Scale, payloads.collect::<Result<_>>()?);
        Ok(barrier + self.take_stepped_values(asked, dense, &places, None, |_, _| Ok(()))?)
    }

    /// Waits until the step of a group is applied, and copies the new dense values into the stages at `places`, or adds their
    /// changes to `held`; `take_rest` reads what else the reply of a server has. Returns how long the servers waited for other
    /// workers, which is the longest of their waits, because they wait at the same time.
    fn take_stepped_values(
        &self,
        asked: Vec<Pending>,
        dense: &mut [DenseStage],
        places: &[Option<usize>],
        mut held: Option<&mut HeldValues>,
        mut take_rest: impl FnMut(usize, &mut Reader<'_>) -> Result<()>,
    ) -> Result<Duration> {
        let mut barrier = Duration::ZERO;
        for (server, pending) in asked.into_iter().enumerate() {
            let answer = pending.wait()?;
            let mut reader = Reader::new(answer.bytes());
            match &mut held {
                Some(held) => self.take_changes(server, &mut reader, held)?,
                None => self.take_values(server, &mut reader, places, dense)?,
            }
            barrier = barrier.max(take_barrier(&mut reader)?);
            take_rest(server, &mut reader)?;
            reader.end()?;
        }
        Ok(barrier)
    }

    /// Sends one request to every server, with the time limit for requests that wait for other workers.
    fn ask_all(&self, kind: Kind, payloads: Vec<Payload>) -> Vec<Pending> {
        self.links.iter().zip(payloads).map(|(link, payload)| link.send_payload_patiently(kind, payload)).collect()
    }

    /// Copies the dense values in the reply to a push into their stages.
    pub(super) fn take_pushed_values(&self, server: usize, answer: &Payload, dense: &mut [DenseStage]) -> Result<()> {
        let mut reader = Reader::new(answer.bytes());
        self.take_trained_values(server, &mut reader, dense)?;
        reader.end()
    }

    /// Reads the values of those parameters whose gradients were sent.
    pub(super) fn take_trained_values(
        &self,
        server: usize,
        reader: &mut Reader<'_>,
        dense: &mut [DenseStage],
    ) -> Result<()> {
        let places = self.places(dense, |stage| stage.trained);
        self.take_values(server, reader, &places, dense)
    }

    /// Reads the values of blocks on a server, in the order it has them.
    fn take_values(
        &self,
        server: usize,
        reader: &mut Reader<'_>,
        places: &[Option<usize>],
        stages: &mut [DenseStage],
    ) -> Result<()> {
        let mut blocks = self.blocks_of(server, places);
        blocks.try_for_each(|(_, place, range)| floats::take_into(reader, &mut stages[place].values[range]))
    }

    /// For each parameter, the index of its stage. A program may use only some of the parameters, in its own order.
    fn places(&self, stages: &[DenseStage], which: impl Fn(&DenseStage) -> bool) -> Vec<Option<usize>> {
        let mut places = vec![None; self.placement.parameters().len()];
        for (place, stage) in stages.iter().enumerate().filter(|(_, stage)| which(stage)) {
            places[stage.table] = Some(place);
        }
        places
    }

    /// The blocks on a server whose parameters have a stage: the block's number on the server, the index of the stage, and the
    /// block's range within the parameter.
    fn blocks_of(&self, server: usize, places: &[Option<usize>]) -> impl Iterator<Item = (u32, usize, Range<usize>)> {
        self.blocks[server].iter().enumerate().filter_map(move |(at, &number)| {
            let block = &self.placement.blocks()[number];
            Some((at as u32, places[block.parameter]?, block.offset..block.offset + block.length))
        })
    }

    /// A training thread begins a pass over a dataset.
    pub(super) fn begin(&self, thread: u32) -> Result<()> {
        let (pass, left) = self.streams.begin(thread);
        self.leave(thread, left)?;
        self.join(thread, pass)
    }

    /// A training thread joins the implicit pass that its steps outside of a dataset form, unless it has already joined.
    pub(super) fn join_implicit(&self, thread: u32) -> Result<()> {
        self.streams.to_join(thread).map_or(Ok(()), |pass| self.join(thread, pass))
    }

    /// A training thread has ended its pass.
    pub(super) fn finish(&self, thread: u32) -> Result<()> {
        self.streams.finish(thread).map_or(Ok(()), |pass| self.leave(thread, pass))
    }

    /// Ends the implicit pass; with `also_empty` also if this worker made no step in it.
    pub(super) fn finish_implicit(&self, also_empty: bool) -> Result<()> {
        leave_implicit(&self.links, &self.streams, also_empty)
    }

    /// Fails all requests, because this process is shutting down without departing.
    pub(super) fn abandon(&self) {
        self.links.iter().for_each(|link| link.abandon(self.worker.count));
    }

    fn join(&self, thread: u32, pass: u64) -> Result<()> {
        let join = Join { stream: self.worker.stream(thread), pass };
        let asked = self.links.iter().map(|link| link.send_patiently(&join)).collect::<Result<_>>()?;
        wait_all(asked).map(drop)
    }

    fn leave(&self, thread: u32, pass: u64) -> Result<()> {
        leave_pass(&self.links, self.worker.stream(thread), pass)
    }

    /// Tells the servers that this worker departs.
    pub(super) fn depart(&self) -> Result<()> {
        depart_from(&self.links, self.worker)
    }

    /// The status of every server.
    pub fn status(&self) -> Result<Vec<Status>> {
        status_of(&self.links)
    }

    fn group(&self, stages: &[SparseStage]) -> CallBuffers {
        let mut buffers = self.buffer_pool.lock().pop().unwrap_or_default();
        buffers.groupings.resize_with(stages.len(), Grouping::new);
        for (stage, grouping) in stages.iter().zip(&mut buffers.groupings) {
            self.placement.group(stage.unique.keys(), grouping);
        }
        buffers
    }

    fn tables_of(&self, stage: &SparseStage, which: impl Fn(&crate::stage::Lookup) -> bool) -> (Vec<u32>, Vec<u32>) {
        let lookups = stage.lookups.iter().filter(|lookup| which(lookup));
        lookups.map(|lookup| (lookup.table as u32, self.dims[lookup.table])).unzip()
    }
}

/// Ends the implicit pass of a worker's streams, and tells the servers.
pub(crate) fn leave_implicit(links: &[Link], streams: &Streams, also_empty: bool) -> Result<()> {
    let end = streams.end_implicit(also_empty);
    end.left.into_iter().try_for_each(|(stream, pass)| leave_pass(links, stream, pass))
}

fn leave_pass(links: &[Link], stream: u32, pass: u64) -> Result<()> {
    let leave = Leave { stream, pass };
    let asked = links.iter().map(|link| link.send(&leave)).collect::<Result<_>>()?;
    wait_all(asked).map(drop)
}

/// Copies the rows in a server's reply into the stages that were grouped in `buffers`.
fn take_rows(server: usize, reader: &mut Reader<'_>, buffers: &CallBuffers, stages: &mut [SparseStage]) -> Result<()> {
    for (stage, grouping) in stages.iter_mut().zip(&buffers.groupings) {
        let count = grouping.keys(server).len();
        for lookup in &mut stage.lookups {
            let rows = pull::take_rows(reader, count, lookup.dim)?;
            grouping.gather(server, lookup.dim, rows, &mut lookup.rows)?;
        }
    }
    Ok(())
}

/// Tells the servers that a worker departs, whether it has tables or not.
pub(crate) fn depart_from(links: &[Link], worker: Worker) -> Result<()> {
    let depart = Depart { workers: worker.count };
    let asked = links.iter().map(|link| link.send(&depart)).collect::<Result<_>>()?;
    wait_all(asked).map(drop)
}

/// The status of servers.
pub(crate) fn status_of(links: &[Link]) -> Result<Vec<Status>> {
    let asked = links.iter().map(|link| link.send(&StatusRequest)).collect::<Result<_>>()?;
    wait_all(asked)?.iter().map(|answer| status::decode(answer.bytes())).collect()
}

/// Waits for all replies; returns the first error.
pub(crate) fn wait_all(asked: Vec<Pending>) -> Result<Vec<Payload>> {
    asked.into_iter().map(Pending::wait).collect()
}
