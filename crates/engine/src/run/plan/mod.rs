//! A plan is a compiled program: every variable has a location, every op knows where to read and write.
//!
//! A program is compiled once. All training threads share the plan, each with its own [`Arena`]. A step is
//!
//! ```text
//! prepare (deduplicate the ids) -> pull rows -> forward -> backward -> reduce (collective jobs) -> clip -> push
//! ```
//!
//! The phases are separate calls, so that a communicator with a network behind it can pull the next batch's rows while this batch
//! is computed. The plan does not know where the tables are.

mod compile;
mod early;
mod fetch;
mod finite;
mod lookups;
mod outside;
mod prepare;
mod ranks;
mod shapes;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use openfleet_core::key::mix;
use openfleet_core::strategy::CollectiveSettings;
use openfleet_core::{Batch, FieldKind, Schema, Unique, WorkId};
use openfleet_dist::collective::RankGroup;
use openfleet_dist::communicator::{Missing, Pushed, Replicated};
use openfleet_dist::stage::{DenseStage, Lookup, SparseStage, each_gradient};
use openfleet_dist::{Cluster, Communicator};
use openfleet_table::{Clip, NonFinite, PushReport, clip};
use parking_lot::Mutex;

use compile::{OpenTables, TableSource};
use early::EarlyPush;
pub use lookups::LookedUp;
pub(crate) use outside::OutsideState;
pub use outside::{OutsideGradients, Returned};
pub(crate) use ranks::StepsWithoutData;
use shapes::{ShapeSource, ShapesAtRun};

use crate::error::{Error, Result};
use crate::graph::op::Op;
use crate::graph::op::class_labels::LABEL_VALUE;
use crate::graph::{Program, Var};
use crate::kernel::matrix::FEWEST_TO_DIVIDE;
use crate::memory::{
    Arena, Buffer, EarlyTrial, GradientLocation, Gradients, Inputs, NextRows, NodeLocations, NodeShapes, Outputs,
    Scope, ShapeSet, State, StepTimes, TakenGradient, ValueLocation,
};
use crate::value::{DType, FedDims, Shape};

/// An op with the locations of what it reads and writes.
struct PlanNode {
    op: Op,
    locations: NodeLocations,
    shapes: NodeShapes,
    output_dtypes: Vec<DType>,
    /// Only if the program has shapes that are known when it runs.
    shapes_at_run: Option<ShapesAtRun>,
}

/// A field of the batch that the plan reads.
struct FeedField {
    name: String,
    kind: FieldKind,
    described: String,
    /// As declared.
    shape: Shape,
    is_ragged: bool,
    /// Whether the number of elements per row is known only when the program runs.
    is_any_size: bool,
    /// Ids must be below this.
    vocabulary: Option<u64>,
}

struct StageSpec {
    feeds: Vec<usize>,
    /// Per feed: the salt of its ids; 0 for plain ids.
    salts: Vec<u64>,
    /// Per table: index among the sparse tables, and dim.
    lookups: Vec<(usize, usize)>,
    /// The feeds of shows and clicks, if rows count them.
    counts: Option<(usize, usize)>,
}

/// A compiled program.
pub struct Plan {
    nodes: Vec<PlanNode>,
    /// Nodes whose backward runs, in that order.
    backward: Vec<usize>,
    /// After each of them: how many parameters have their whole gradient.
    completed: Vec<usize>,
    /// Gradients that are pushed before the backward pass has ended, in its order.
    early: Vec<EarlyPush>,
    loss_gradient: Option<(GradientLocation, usize)>,
    feeds: Vec<FeedField>,
    stages: Vec<StageSpec>,
    dense_sizes: Vec<usize>,
    states: Vec<State>,
    /// Number of running statistics among the values of the states.
    statistics: usize,
    buffer_count: usize,
    gradient_slots: Vec<(GradientLocation, Shape)>,
    locations: Vec<Option<ValueLocation>>,
    gradient_locations: Vec<Option<GradientLocation>>,
    shapes: Vec<(String, Shape, DType)>,
    /// Whether some shapes are known only when the program runs.
    are_shapes_unknown: bool,
    /// Per variable: where its shape comes from then.
    shape_sources: Vec<ShapeSource>,
    /// Names of the tables, in the order of the stages.
    dense_names: Vec<String>,
    sparse_names: Vec<String>,
    /// The buffer of the loss, and its name.
    loss: Option<(usize, String)>,
    clip: Option<Clip>,
    non_finite: NonFinite,
    /// Names that were logged as not finite; each is logged once.
    warned: Mutex<BTreeSet<String>>,
    /// Whether gradients are computed.
    differentiates: bool,
    /// Whether gradients are pushed: the program has an optimizer.
    trains: bool,
    for_test: bool,
    seed: u64,
    communicator: Arc<dyn Communicator>,
    /// The communicator, in a collective job.
    replicated: Option<Arc<Replicated>>,
}

impl Plan {
    /// Compiles a program whose tables are in the scope. Fails if a variable has no value there or one that does not match.
    pub fn compile(program: &Program, scope: &Scope) -> Result<Self> {
        compile::compile(program, scope, TableSource::InScope)
    }

    /// Compiles a program whose tables are on servers.
    pub(crate) fn compile_on(program: &Program, scope: &Scope, cluster: &Cluster) -> Result<Self> {
        compile::compile(program, scope, TableSource::On(cluster))
    }

    /// Compiles a program whose tables are in the scope and on every other rank.
    pub(crate) fn compile_in_group(
        program: &Program,
        scope: &Scope,
        group: &Arc<RankGroup>,
        settings: CollectiveSettings,
    ) -> Result<Self> {
        compile::compile(program, scope, TableSource::OnEveryRank(group, settings))
    }

    /// Compiles a program whose tables `open` returns; the scope has the states.
    pub(crate) fn compile_with(program: &Program, scope: &Scope, open: &OpenTables<'_>) -> Result<Self> {
        compile::compile(program, scope, TableSource::Opened(open))
    }

    /// The communicator of this plan's pulls and pushes.
    pub fn communicator(&self) -> &dyn Communicator {
        self.communicator.as_ref()
    }

    /// Memory for one training thread.
    pub fn arena(&self) -> Arena {
        Arena {
            buffers: (0..self.buffer_count).map(|_| Buffer::default()).collect(),
            gradients: self
                .gradient_slots
                .iter()
                .filter(|(location, _)| matches!(location, GradientLocation::Buffer(_)))
                .map(|_| Vec::new())
                .collect(),
            dense: self
                .dense_sizes
                .iter()
                .enumerate()
                .map(|(table, &size)| DenseStage {
                    table,
                    values: vec![0.0; size],
                    gradient: if self.differentiates { vec![0.0; size] } else { Vec::new() },
                    trained: self.trains && self.has_gradient(GradientLocation::Dense(table)),
                    version: 0,
                })
                .collect(),
            sparse: self.empty_stages(),
            sparse_ahead: self.empty_stages(),
            next_rows: NextRows::Unknown,
            states: self.states.clone(),
            statistics: Vec::new(),
            feeds: Vec::new(),
            fed_dims: Vec::new(),
            shape_sets: Vec::new(),
            is_shape_limit_reported: false,
            written: vec![false; self.gradient_slots.len()],
            outputs: Vec::new(),
            taken: Vec::new(),
            scratch: Vec::new(),
            profile: None,
            times: StepTimes::default(),
            early_trial: EarlyTrial::default(),
        }
    }

    fn empty_stages(&self) -> Vec<SparseStage> {
        let stages = self.stages.iter().enumerate();
        stages
            .map(|(number, stage)| SparseStage {
                counts: None,
                unique: Unique::new(),
                lookups: stage
                    .lookups
                    .iter()
                    .enumerate()
                    .map(|(lookup, &(table, dim))| Lookup {
                        table,
                        dim,
                        trained: self.trains && self.has_gradient(GradientLocation::Rows { stage: number, lookup }),
                        rows: Vec::new(),
                        gradients: Vec::new(),
                    })
                    .collect(),
                scratch: Default::default(),
            })
            .collect()
    }

    /// Maps the plan's data variables to the fields of a schema. Fails if a field is missing or has another kind.
    pub fn bind(&self, arena: &mut Arena, schema: &Schema) -> Result<()> {
        arena.feeds.clear();
        arena.fed_dims.clear();
        // The rows ahead belong to a batch that is not the next one any more.
        arena.next_rows = NextRows::Unknown;
        for feed in &self.feeds {
            let position = schema.position(&feed.name).map_err(|_| Error::NotFed {
                name: feed.name.clone(),
                known: schema.fields().iter().map(|field| field.name.clone()).collect(),
            })?;
            let kind = schema.fields()[position].kind;
            // A slot of any length also accepts rows of fixed length.
            let fits = kind == feed.kind
                || (feed.kind == FieldKind::Ids && matches!(kind, FieldKind::FixedIds { .. }))
                || (feed.is_any_size
                    && matches!((feed.kind, kind), (FieldKind::Floats { .. }, FieldKind::Floats { .. })));
            if !fits {
                let got = match kind {
                    FieldKind::Ids => "a slot of ids".to_owned(),
                    FieldKind::FixedIds { length } => format!("{length} integer(s) per row"),
                    FieldKind::Floats { dim } => format!("{dim} float(s) per row"),
                };
                return Err(Error::FeedMismatch { name: feed.name.clone(), expected: feed.described.clone(), got });
            }
            arena.feeds.push(position);
        }
        Ok(())
    }

    /// The same for a batch that the caller fed, with the dimensions that were given.
    pub(crate) fn bind_fed(&self, arena: &mut Arena, schema: &Schema, dims: FedDims) -> Result<()> {
        self.bind(arena, schema)?;
        arena.fed_dims = dims;
        Ok(())
    }

    /// Whether a step of this plan changes parameters.
    pub fn trains(&self) -> bool {
        self.trains
    }

    /// Whether a batch of as many rows is computed before a second thread has woken up.
    pub(crate) fn is_small(&self, rows: usize) -> bool {
        self.dense_sizes.iter().sum::<usize>().saturating_mul(rows) < FEWEST_TO_DIVIDE
    }

    /// Runs one whole step on a batch of the bound schema.
    pub fn step(&self, arena: &mut Arena, batch: &Batch, work: WorkId) -> Result<PushReport> {
        self.step_before(arena, batch, work, None)
    }

    /// Runs one whole step; the next step will be with the batch `next`, if it is given.
    pub(crate) fn step_before(
        &self,
        arena: &mut Arena,
        batch: &Batch,
        work: WorkId,
        next: Option<&Batch>,
    ) -> Result<PushReport> {
        let started = Instant::now();
        let before = arena.times.total();
        let pushed = self.step_in_phases(arena, batch, work, next);
        // What is no other phase is computing.
        let phases = arena.times.total().saturating_sub(before);
        arena.times.compute += started.elapsed().saturating_sub(phases);
        self.record_step(arena, work, started.elapsed());
        pushed
    }

    fn step_in_phases(
        &self,
        arena: &mut Arena,
        batch: &Batch,
        work: WorkId,
        next: Option<&Batch>,
    ) -> Result<PushReport> {
        // Another program may have set other rates.
        self.communicator.set_rate_factor(1.0);
        let computed = self.prepare_or_swap(arena, batch).and_then(|()| {
            if let Some(replicated) = &self.replicated {
                replicated.begin_step(&arena.sparse)?;
            }
            self.pull(arena)?;
            if let Some(next) = next {
                self.prepare_next(arena, next)?;
            }
            let early: &[EarlyPush] = if arena.early_trial.is_early(work.last_step) { &self.early } else { &[] };
            self.compute_and_push(arena, batch, work, early)
        });
        if self.trains && computed.is_err() {
            self.communicator.return_step(work.stream);
        }
        computed?;
        self.push_or_return(arena, work)
    }

    /// Pushes the gradients of a step; one that is not pushed, because it is not finite, can be repeated under the same number.
    fn push_or_return(&self, arena: &mut Arena, work: WorkId) -> Result<PushReport> {
        self.push(arena, work).inspect_err(|error| {
            if matches!(error, Error::NotFiniteGradient { .. }) {
                self.communicator.return_step(work.stream);
            }
        })
    }

    /// Whether a step should know the next batch, to request its rows early.
    pub(crate) fn reads_ahead(&self) -> bool {
        self.trains && (self.communicator.overlaps_pulls() || self.communicator.pulls_with_pushes())
    }

    /// Deduplicates the ids of a batch, unless that was done during the step before.
    fn prepare_or_swap(&self, arena: &mut Arena, batch: &Batch) -> Result<()> {
        if matches!(arena.next_rows, NextRows::Unknown) {
            return self.prepare(arena, batch);
        }
        std::mem::swap(&mut arena.sparse, &mut arena.sparse_ahead);
        Ok(())
    }

    /// Deduplicates the ids of the next batch, and requests its rows if the communicator overlaps pulls.
    fn prepare_next(&self, arena: &mut Arena, next: &Batch) -> Result<()> {
        std::mem::swap(&mut arena.sparse, &mut arena.sparse_ahead);
        let prepared = self.prepare(arena, next);
        std::mem::swap(&mut arena.sparse, &mut arena.sparse_ahead);
        prepared?;
        arena.next_rows = match self.communicator.begin_pull(&arena.sparse_ahead)? {
            Some(pull) => NextRows::Requested(pull),
            None => NextRows::Prepared,
        };
        Ok(())
    }

    /// Runs a step that the servers have applied before: computes the values to fetch, but creates no rows and pushes nothing.
    pub(crate) fn repeat(&self, arena: &mut Arena, batch: &Batch, work: WorkId) -> Result<()> {
        self.prepare(arena, batch)?;
        self.communicator.pull_sparse(&mut arena.sparse, Missing::Initial)?;
        self.communicator.pull_dense(&mut arena.dense)?;
        self.compute(arena, batch, work)
    }

    /// Pulls the rows of the prepared ids, and dense parameters that are newer than the arena's copy.
    pub(crate) fn pull(&self, arena: &mut Arena) -> Result<()> {
        let missing = if self.trains { Missing::Create } else { Missing::Initial };
        let started = Instant::now();
        match std::mem::take(&mut arena.next_rows) {
            NextRows::Unknown | NextRows::Prepared => self.communicator.pull_sparse(&mut arena.sparse, missing)?,
            NextRows::Requested(pull) => self.communicator.end_pull(pull, &mut arena.sparse)?,
            NextRows::Pulled => {}
        }
        self.communicator.pull_dense(&mut arena.dense)?;
        let elapsed = started.elapsed();
        arena.times.pull += elapsed;
        self.count_as_waiting(elapsed, arena);
        Ok(())
    }

    /// Counts the time as waiting if servers answered; tables in this process count as work.
    fn count_as_waiting(&self, elapsed: Duration, arena: &mut Arena) {
        if !self.communicator.counts_refusals() {
            arena.times.waited += elapsed;
        }
    }

    /// Runs forward and backward.
    pub fn compute(&self, arena: &mut Arena, batch: &Batch, work: WorkId) -> Result<()> {
        self.compute_and_push(arena, batch, work, &[])
    }

    /// Runs forward and backward, and pushes these gradients as soon as they are complete.
    fn compute_and_push(&self, arena: &mut Arena, batch: &Batch, work: WorkId, early: &[EarlyPush]) -> Result<()> {
        let mut shapes = self.take_shapes(arena, batch)?;
        let computed = self.compute_in_shapes(&mut shapes, arena, batch, work, early);
        // A failed step may have left shapes of another batch.
        self.keep_shapes(arena, shapes.filter(|_| computed.is_ok()));
        computed
    }

    fn compute_in_shapes(
        &self,
        shapes: &mut Option<ShapeSet>,
        arena: &mut Arena,
        batch: &Batch,
        work: WorkId,
        early: &[EarlyPush],
    ) -> Result<()> {
        // Every stream of the job has its own random numbers, like the rows of one process on the joined batch.
        let stream = self.communicator.job_stream(work.stream);
        let step_seed = mix(self.seed ^ mix(work.last_step ^ (u64::from(stream) << 40)));
        for (index, node) in self.nodes.iter().enumerate() {
            let started = arena.profile.is_some().then(Instant::now);
            let seed = mix(step_seed ^ index as u64);
            let shapes = self.shapes_of(index, shapes, arena, batch, seed)?;
            self.forward(node, shapes, arena, batch, seed)?;
            record_time(arena, index, started);
        }
        if !self.differentiates {
            return Ok(());
        }
        arena.written.fill(false);
        if let Some((location, slot)) = self.loss_gradient {
            let gradient = arena.gradient_mut(location);
            gradient.clear();
            gradient.push(1.0);
            arena.written[slot] = true;
        }
        for (position, &index) in self.backward.iter().enumerate() {
            let started = arena.profile.is_some().then(Instant::now);
            let shapes = shapes.as_ref().map_or(&self.nodes[index].shapes, |set| &set.nodes[index]);
            self.backward(&self.nodes[index], shapes, arena, batch, mix(step_seed ^ index as u64))?;
            record_time(arena, index, started);
            if let Some(replicated) = &self.replicated {
                (0..self.completed[position]).for_each(|_| replicated.dense_ready(&arena.dense));
            }
            for push in early.iter().filter(|push| push.position == position) {
                self.push_early(push, arena, work)?;
            }
        }
        self.clear_unwritten(arena, |location| !matches!(location, GradientLocation::Buffer(_)));
        self.check_loss(arena, batch, work)
    }

    /// Clips and pushes the gradients of a step; in a collective job those of all ranks.
    pub fn push(&self, arena: &mut Arena, work: WorkId) -> Result<PushReport> {
        if !self.trains || !self.reduce(arena, true)? {
            return Ok(PushReport::default());
        }
        self.apply(arena, work)
    }

    /// Clips and pushes gradients that are complete.
    fn apply(&self, arena: &mut Arena, work: WorkId) -> Result<PushReport> {
        if let Some(clip) = self.clip {
            clip_each(clip, &mut arena.sparse, &mut arena.dense);
        }
        let refused = self.refused_gradients(arena, work)?;
        let started = Instant::now();
        let pushed = match refused.is_empty() {
            true => self.push_clipped(arena, work)?,
            false => self.push_without(&refused, arena, work)?,
        };
        let elapsed = started.elapsed();
        let barrier = pushed.barrier.min(elapsed);
        arena.times.barrier += barrier;
        arena.times.push += elapsed - barrier;
        self.count_as_waiting(elapsed, arena);
        Ok(pushed.report)
    }

    fn push_clipped(&self, arena: &mut Arena, work: WorkId) -> Result<Pushed> {
        let Arena { sparse, dense, sparse_ahead, next_rows, .. } = arena;
        Ok(match (self.clip, &next_rows) {
            (Some(Clip::GlobalNorm(norm)), _) => self.communicator.push_within_norm(work, sparse, dense, norm)?,
            (_, NextRows::Prepared) if self.communicator.pulls_with_pushes() => {
                let pushed = self.communicator.push_and_pull(work, sparse, dense, sparse_ahead)?;
                *next_rows = NextRows::Pulled;
                pushed
            }
            _ => self.communicator.push(work, sparse, dense)?,
        })
    }

    /// The name of a variable.
    pub fn name(&self, var: Var) -> &str {
        self.shapes.get(var.index()).map_or("?", |(name, ..)| name)
    }

    /// Op names in order, for profiles.
    pub(crate) fn op_names(&self) -> Vec<&'static str> {
        self.nodes.iter().map(|node| node.op.operator().name()).collect()
    }

    fn forward(&self, node: &PlanNode, shapes: &NodeShapes, arena: &mut Arena, batch: &Batch, seed: u64) -> Result<()> {
        let mut outputs = std::mem::take(&mut arena.outputs);
        let signatures = shapes.outputs.iter().zip(&node.output_dtypes);
        for (&buffer, (shape, dtype)) in node.locations.outputs.iter().zip(signatures) {
            let mut taken = std::mem::take(&mut arena.buffers[buffer]);
            let elements = shape.elements(batch.rows);
            if dtype.is_float() {
                taken.floats.resize(elements, 0.0);
            } else {
                taken.ints.resize(elements, 0);
            }
            outputs.push(taken);
        }
        let inputs = Inputs { node: &node.locations, shapes, arena, batch, training: !self.for_test, seed };
        let result = node.op.operator().forward(&inputs, &mut Outputs { buffers: &mut outputs });
        for (&buffer, taken) in node.locations.outputs.iter().zip(outputs.drain(..)) {
            arena.buffers[buffer] = taken;
        }
        arena.outputs = outputs;
        result.map_err(|error| self.name_label_field(node, error))
    }

    /// Adds the name of the field to the error of a bad label.
    fn name_label_field(&self, node: &PlanNode, error: Error) -> Error {
        match error {
            Error::Value { op, what, expected, got, row } if what == LABEL_VALUE => {
                let field = node.locations.inputs.get(1).and_then(|&location| self.source_field(location));
                let what = field.map_or(what, |name| format!("label `{name}`"));
                Error::Value { op, what, expected, got, row }
            }
            error => error,
        }
    }

    /// The field that a value was computed from, followed through the first input of each op.
    fn source_field(&self, location: ValueLocation) -> Option<&str> {
        let mut location = location;
        loop {
            match location {
                ValueLocation::Feed(feed) => return Some(&self.feeds[feed].name),
                ValueLocation::Buffer(buffer) => {
                    let producer = self.nodes.iter().find(|node| node.locations.outputs.contains(&buffer))?;
                    location = *producer.locations.inputs.first()?;
                }
                _ => return None,
            }
        }
    }

    fn backward(
        &self,
        node: &PlanNode,
        shapes: &NodeShapes,
        arena: &mut Arena,
        batch: &Batch,
        seed: u64,
    ) -> Result<()> {
        // An output that no op used has no gradient yet: set it to zero.
        for (output, &(location, slot)) in
            node.locations.output_gradients.iter().enumerate().filter_map(|(o, g)| Some((o, g.as_ref()?)))
        {
            if !arena.written[slot] {
                let elements = shapes.outputs[output].elements(batch.rows);
                let gradient = arena.gradient_mut(location);
                gradient.clear();
                gradient.resize(elements, 0.0);
                arena.written[slot] = true;
            }
        }
        let mut taken = std::mem::take(&mut arena.taken);
        for (input, gradient) in node.locations.input_gradients.iter().enumerate() {
            let Some((location, slot)) = *gradient else { continue };
            if taken.iter().any(|t: &TakenGradient| t.slot == slot) {
                continue;
            }
            let mut values = arena.take_gradient(location);
            if matches!(location, GradientLocation::Buffer(_)) {
                values.resize(shapes.inputs[input].elements(batch.rows), 0.0);
            }
            taken.push(TakenGradient { slot, values, written: arena.written[slot] });
        }
        let mut scratch = std::mem::take(&mut arena.scratch);
        let inputs = Inputs { node: &node.locations, shapes, arena, batch, training: !self.for_test, seed };
        let mut gradients = Gradients { node: &node.locations, taken: &mut taken, scratch: &mut scratch };
        let result = node.op.operator().backward(&inputs, &mut gradients);
        arena.scratch = scratch;
        for t in taken.drain(..) {
            let (location, _) = self.gradient_slots[t.slot];
            *arena.gradient_mut(location) = t.values;
            arena.written[t.slot] = t.written;
        }
        arena.taken = taken;
        result
    }

    fn has_gradient(&self, location: GradientLocation) -> bool {
        self.gradient_slots.iter().any(|(known, _)| *known == location)
    }

    /// Sets those of the chosen gradients that this batch did not reach to zero, so that they do not keep the last batch's values.
    fn clear_unwritten(&self, arena: &mut Arena, is_chosen: impl Fn(GradientLocation) -> bool) {
        for (slot, (location, _)) in self.gradient_slots.iter().enumerate() {
            if !arena.written[slot] && is_chosen(*location) {
                arena.gradient_mut(*location).fill(0.0);
            }
        }
    }
}

fn record_time(arena: &mut Arena, index: usize, started: Option<Instant>) {
    if let (Some(started), Some(profile)) = (started, arena.profile.as_mut()) {
        profile[index] += started.elapsed().as_nanos() as u64;
    }
}

/// Clips each gradient of a step on the worker. The global norm is left to the communicator, because it may span the gradients of
/// several workers.
fn clip_each(clip: Clip, sparse: &mut [SparseStage], dense: &mut [DenseStage]) {
    match clip {
        Clip::Value { min, max } => each_gradient(sparse, dense, |gradient| clip::by_value(gradient, min, max)),
        Clip::Norm(norm) => each_gradient(sparse, dense, |gradient| clip::by_norm(gradient, norm)),
        Clip::GlobalNorm(_) => {}
    }
}
