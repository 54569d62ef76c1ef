//! A program made ready to run: every variable has a place, every op knows where to read and write.
//!
//! Compiling happens once; a plan is shared by all training threads, each with an [`Arena`] of its own. A step is
//!
//! ```text
//! prepare (de-duplicate the ids) -> pull rows -> forward -> backward -> clip -> push
//! ```
//!
//! and the phases are separate calls, so that a communicator with a network behind it can pull the next batch's rows
//! while this one is computed. The plan does not know where the tables are.

mod compile;
mod finite;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use openfleet_core::key::mix;
use openfleet_core::{Batch, Column, FieldKind, Schema, Unique, WorkId};
use openfleet_dist::communicator::Missing;
use openfleet_dist::stage::{Counts, DenseStage, Lookup, SparseStage};
use openfleet_dist::{Cluster, Communicator};
use openfleet_table::{Clip, NonFinite, PushReport};
use parking_lot::Mutex;

use compile::{FindTables, Tables};
pub(crate) use compile::{dense_spec, sparse_spec, trains};

use crate::arena::{Arena, Buffer, GradientPlace, Gradients, Inputs, Outputs, Place, TakenGradient};
use crate::error::{Error, Result};
use crate::minimize::clip_each;
use crate::op::Op;
use crate::op::class_labels::A_LABEL;
use crate::program::{Program, Var};
use crate::scope::{Scope, State};
use crate::shape::Shape;
use crate::tensor::{DType, Tensor};

/// An op with the places of what it reads and writes.
pub(crate) struct PlanNode {
    pub(crate) op: Op,
    pub(crate) inputs: Vec<Place>,
    pub(crate) outputs: Vec<usize>,
    pub(crate) input_shapes: Vec<Shape>,
    output_shapes: Vec<(Shape, DType)>,
    /// Per input: where its gradient goes, and the slot that says whether it was written.
    pub(crate) input_gradients: Vec<Option<(GradientPlace, usize)>>,
    pub(crate) output_gradients: Vec<Option<(GradientPlace, usize)>>,
    pub(crate) lookups: Vec<LookupPlan>,
}

/// Where the ids of a slot stand among those of its table's stage.
pub(crate) struct LookupPlan {
    pub(crate) table: usize,
    pub(crate) slot: usize,
    /// The feeds whose ids come first.
    pub(crate) before: Vec<usize>,
}

struct Feed {
    name: String,
    kind: FieldKind,
    described: String,
    /// Ids must be below this.
    vocabulary: Option<u64>,
}

struct StagePlan {
    feeds: Vec<usize>,
    /// Of each feed: what its ids are salted with; 0 for plain ids.
    salts: Vec<u64>,
    /// Position among the sparse tables, and dim.
    lookups: Vec<(usize, usize)>,
    /// Where shows and clicks are fed, if rows count them.
    counts: Option<(usize, usize)>,
}

/// Where a value that can be fetched is.
enum Fetched {
    Gradient(GradientPlace),
    State(usize),
    Dense(usize),
    Buffer(usize),
    Feed(usize),
}

/// A program made ready to run.
pub struct Plan {
    nodes: Vec<PlanNode>,
    /// Nodes whose backward runs, in order of running.
    backward: Vec<usize>,
    loss_gradient: Option<(GradientPlace, usize)>,
    feeds: Vec<Feed>,
    stages: Vec<StagePlan>,
    dense_sizes: Vec<usize>,
    states: Vec<State>,
    buffer_count: usize,
    gradient_slots: Vec<(GradientPlace, Shape)>,
    places: Vec<Option<Place>>,
    gradient_places: Vec<Option<GradientPlace>>,
    shapes: Vec<(String, Shape, DType)>,
    /// What the tables are called, in the order of the stages.
    dense_names: Vec<String>,
    sparse_names: Vec<String>,
    /// Where the loss is, and what it is called.
    loss: Option<(usize, String)>,
    clip: Option<Clip>,
    non_finite: NonFinite,
    /// What was told of numbers that are not finite: once is enough.
    told: Mutex<BTreeSet<String>>,
    /// Gradients are computed.
    differentiates: bool,
    /// And pushed: an optimizer was chosen.
    trains: bool,
    for_test: bool,
    seed: u64,
    communicator: Arc<dyn Communicator>,
}

impl Plan {
    /// Gives every variable its place and finds its tables in the scope.
    pub fn compile(program: &Program, scope: &Scope) -> Result<Self> {
        compile::compile(program, scope, Tables::InScope)
    }

    /// The same with the tables on servers.
    pub fn compile_on(program: &Program, scope: &Scope, cluster: &Cluster) -> Result<Self> {
        compile::compile(program, scope, Tables::On(cluster))
    }

    /// The same with tables that somebody finds; the scope has the states.
    pub(crate) fn compile_with(program: &Program, scope: &Scope, find: &FindTables<'_>) -> Result<Self> {
        compile::compile(program, scope, Tables::Found(find))
    }

    /// How this plan's pulls and pushes travel.
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
                .filter(|(place, _)| matches!(place, GradientPlace::Buffer(_)))
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
                    trained: self.trains && self.has_gradient(GradientPlace::Dense(table)),
                    version: 0,
                })
                .collect(),
            sparse: self
                .stages
                .iter()
                .enumerate()
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
                            trained: self.trains && self.has_gradient(GradientPlace::Rows { stage: number, lookup }),
                            rows: Vec::new(),
                            gradients: Vec::new(),
                        })
                        .collect(),
                    scratch: Default::default(),
                })
                .collect(),
            states: self.states.clone(),
            feeds: Vec::new(),
            written: vec![false; self.gradient_slots.len()],
            outputs: Vec::new(),
            taken: Vec::new(),
            scratch: Vec::new(),
            profile: None,
            waited: Duration::ZERO,
        }
    }

    /// Finds the plan's data variables among the fields of a schema.
    pub fn bind(&self, arena: &mut Arena, schema: &Schema) -> Result<()> {
        arena.feeds.clear();
        for feed in &self.feeds {
            let position = schema.position(&feed.name).map_err(|_| Error::NotFed {
                name: feed.name.clone(),
                known: schema.fields().iter().map(|field| field.name.clone()).collect(),
            })?;
            let kind = schema.fields()[position].kind;
            // Any row of fixed length is also a row of any length.
            let fits = kind == feed.kind || (feed.kind == FieldKind::Ids && matches!(kind, FieldKind::FixedIds { .. }));
            if !fits {
                let got = match kind {
                    FieldKind::Ids => "a slot of ids".to_owned(),
                    FieldKind::FixedIds { length } => format!("{length} integer(s) a row"),
                    FieldKind::Floats { dim } => format!("{dim} float(s) a row"),
                };
                return Err(Error::FeedMismatch { name: feed.name.clone(), expected: feed.described.clone(), got });
            }
            arena.feeds.push(position);
        }
        Ok(())
    }

    /// Whether a step of this plan changes parameters.
    pub fn trains(&self) -> bool {
        self.trains
    }

    /// One whole step on a bound batch.
    pub fn step(&self, arena: &mut Arena, batch: &Batch, work: WorkId) -> Result<PushReport> {
        let computed = self.prepare(arena, batch).and_then(|()| {
            self.pull(arena)?;
            self.compute(arena, batch, work)
        });
        if self.trains && computed.is_err() {
            self.communicator.return_step(work.stream);
        }
        computed?;
        self.push(arena, work).inspect_err(|error| {
            if matches!(error, Error::NotFiniteGradient { .. }) {
                self.communicator.return_step(work.stream);
            }
        })
    }

    /// A step that the servers have applied before: computes what can be fetched, and creates and pushes nothing.
    pub fn repeat(&self, arena: &mut Arena, batch: &Batch, work: WorkId) -> Result<()> {
        self.prepare(arena, batch)?;
        self.communicator.pull_sparse(&mut arena.sparse, Missing::Initial)?;
        self.communicator.pull_dense(&mut arena.dense)?;
        self.compute(arena, batch, work)
    }

    /// De-duplicates the ids of every stage.
    pub fn prepare(&self, arena: &mut Arena, batch: &Batch) -> Result<()> {
        for (plan, stage) in self.stages.iter().zip(&mut arena.sparse) {
            stage.unique.start(0);
            for (&feed, &salt) in plan.feeds.iter().zip(&plan.salts) {
                if let Column::Ids { keys, offsets } = &batch.columns[arena.feeds[feed]] {
                    if let Some(vocabulary) = self.feeds[feed].vocabulary {
                        check_vocabulary(&self.feeds[feed].name, vocabulary, keys, offsets)?;
                    }
                    stage.unique.add_salted(keys, salt);
                }
            }
            let count = stage.unique.keys().len();
            if let Some((show, click)) = plan.counts {
                let column = |feed: usize| &batch.columns[arena.feeds[feed]];
                let ids = plan.feeds.iter().map(|&feed| column(feed));
                let counts = stage.counts.get_or_insert_default();
                count_keys(counts, count, stage.unique.inverse(), ids, column(show), column(click));
            }
            for lookup in &mut stage.lookups {
                lookup.rows.resize(count * lookup.dim, 0.0);
                if self.differentiates {
                    lookup.gradients.resize(count * lookup.dim, 0.0);
                }
            }
        }
        Ok(())
    }

    /// Fetches the rows of the prepared ids, and newer dense parameters.
    pub fn pull(&self, arena: &mut Arena) -> Result<()> {
        let missing = if self.trains { Missing::Create } else { Missing::Initial };
        let asked = Instant::now();
        self.communicator.pull_sparse(&mut arena.sparse, missing)?;
        self.communicator.pull_dense(&mut arena.dense)?;
        self.waited_since(asked, arena);
        Ok(())
    }

    /// What the servers take is waited for; tables in this process are work.
    fn waited_since(&self, asked: Instant, arena: &mut Arena) {
        if !self.communicator.counts_refusals() {
            arena.waited += asked.elapsed();
        }
    }

    /// Forward, backward and clipping.
    pub fn compute(&self, arena: &mut Arena, batch: &Batch, work: WorkId) -> Result<()> {
        // Every stream of the job has chances of its own, as the rows of one process on the joined batch have.
        let stream = self.communicator.job_stream(work.stream);
        let step_seed = mix(self.seed ^ mix(work.last_step ^ (u64::from(stream) << 40)));
        for (index, node) in self.nodes.iter().enumerate() {
            let started = arena.profile.is_some().then(Instant::now);
            self.forward(node, arena, batch, mix(step_seed ^ index as u64))?;
            charge(arena, index, started);
        }
        if !self.differentiates {
            return Ok(());
        }
        arena.written.fill(false);
        if let Some((place, slot)) = self.loss_gradient {
            let gradient = arena.gradient_mut(place);
            gradient.clear();
            gradient.push(1.0);
            arena.written[slot] = true;
        }
        for &index in &self.backward {
            let started = arena.profile.is_some().then(Instant::now);
            self.backward(&self.nodes[index], arena, batch, mix(step_seed ^ index as u64))?;
            charge(arena, index, started);
        }
        self.clear_unwritten(arena);
        self.check_loss(arena, batch, work)?;
        if let Some(clip) = self.clip {
            clip_each(clip, &mut arena.sparse, &mut arena.dense);
        }
        Ok(())
    }

    /// Sends the gradients of a step.
    pub fn push(&self, arena: &mut Arena, work: WorkId) -> Result<PushReport> {
        if !self.trains {
            return Ok(PushReport::default());
        }
        let unusable = self.unusable_gradients(arena, work)?;
        let asked = Instant::now();
        let pushed = match unusable.is_empty() {
            true => self.push_clipped(arena, work)?,
            false => self.push_without(&unusable, arena, work)?,
        };
        self.waited_since(asked, arena);
        Ok(pushed)
    }

    fn push_clipped(&self, arena: &mut Arena, work: WorkId) -> Result<PushReport> {
        let Arena { sparse, dense, .. } = arena;
        Ok(match self.clip {
            Some(Clip::GlobalNorm(norm)) => self.communicator.push_within_norm(work, sparse, dense, norm)?,
            _ => self.communicator.push(work, sparse, dense)?,
        })
    }

    /// Fails if a variable cannot be fetched after a step; to be asked before one.
    pub fn check_fetch(&self, var: Var) -> Result<()> {
        self.fetched(var).map(drop)
    }

    /// A copy of a variable's value after a step. A slot of any length gives its ids one after the other.
    pub fn fetch(&self, arena: &Arena, batch: &Batch, var: Var) -> Result<Tensor> {
        let place = self.fetched(var)?;
        let (_, shape, dtype) = &self.shapes[var.index()];
        let sizes = shape.sizes(batch.rows);
        let ints = |values: &[u64]| values.iter().map(|&v| v as i64).collect();
        match place {
            Fetched::Gradient(place) => Tensor::from_f32(&sizes, arena.gradient(place).to_vec()),
            Fetched::State(i) => Ok(arena.states[i].lock().clone()),
            Fetched::Dense(i) => Tensor::from_f32(&sizes, arena.dense[i].values.clone()),
            Fetched::Buffer(i) if dtype.is_float() => Tensor::from_f32(&sizes, arena.buffers[i].floats.clone()),
            Fetched::Buffer(i) => Tensor::from_i64(&sizes, ints(&arena.buffers[i].ints)),
            Fetched::Feed(i) => match &batch.columns[arena.feeds[i]] {
                Column::Floats { values, .. } => Tensor::from_f32(&sizes, values.clone()),
                Column::Ids { keys, .. } if self.feeds[i].kind == FieldKind::Ids => {
                    Tensor::from_i64(&[keys.len()], ints(keys))
                }
                Column::Ids { keys, .. } => Tensor::from_i64(&sizes, ints(keys)),
            },
        }
    }

    fn fetched(&self, var: Var) -> Result<Fetched> {
        let Some((name, ..)) = self.shapes.get(var.index()) else {
            let name = format!("variable {}", var.index());
            return Err(Error::NotFetchable { name, reason: "it is a variable of another program" });
        };
        let not = |reason| Err(Error::NotFetchable { name: name.clone(), reason });
        match (self.gradient_places[var.index()], self.places[var.index()]) {
            (Some(GradientPlace::Rows { .. }), _) => not("it is the gradient of a sparse table"),
            (Some(place), _) => Ok(Fetched::Gradient(place)),
            (None, None) => not("no op of this program computes or reads it"),
            (None, Some(Place::Rows { .. })) => not("it is a sparse table"),
            (None, Some(Place::State(i))) => Ok(Fetched::State(i)),
            (None, Some(Place::Dense(i))) => Ok(Fetched::Dense(i)),
            (None, Some(Place::Buffer(i))) => Ok(Fetched::Buffer(i)),
            (None, Some(Place::Feed(i))) => Ok(Fetched::Feed(i)),
        }
    }

    /// The value of a variable with one float, without allocating.
    pub fn scalar(&self, arena: &Arena, var: Var) -> Option<f32> {
        match (*self.places.get(var.index())?)? {
            Place::Buffer(i) => match arena.buffers[i].floats.as_slice() {
                [value] => Some(*value),
                _ => None,
            },
            _ => None,
        }
    }

    /// What a variable is called.
    pub fn name(&self, var: Var) -> &str {
        self.shapes.get(var.index()).map_or("?", |(name, ..)| name)
    }

    /// Op names in order, for profiles.
    pub(crate) fn op_names(&self) -> Vec<&'static str> {
        self.nodes.iter().map(|node| node.op.operator().name()).collect()
    }

    fn forward(&self, node: &PlanNode, arena: &mut Arena, batch: &Batch, seed: u64) -> Result<()> {
        let mut outputs = std::mem::take(&mut arena.outputs);
        for (&buffer, (shape, dtype)) in node.outputs.iter().zip(&node.output_shapes) {
            let mut taken = std::mem::take(&mut arena.buffers[buffer]);
            let elements = shape.elements(batch.rows);
            if dtype.is_float() {
                taken.floats.resize(elements, 0.0);
            } else {
                taken.ints.resize(elements, 0);
            }
            outputs.push(taken);
        }
        let inputs = Inputs { node, arena, batch, training: !self.for_test, seed };
        let result = node.op.operator().forward(&inputs, &mut Outputs { buffers: &mut outputs });
        for (&buffer, taken) in node.outputs.iter().zip(outputs.drain(..)) {
            arena.buffers[buffer] = taken;
        }
        arena.outputs = outputs;
        result.map_err(|error| self.with_field(node, error))
    }

    /// Says which field a bad label comes from.
    fn with_field(&self, node: &PlanNode, error: Error) -> Error {
        match error {
            Error::Value { op, what, expected, got, row } if what == A_LABEL => {
                let field = node.inputs.get(1).and_then(|&place| self.fed_from(place));
                let what = field.map_or(what, |name| format!("label `{name}`"));
                Error::Value { op, what, expected, got, row }
            }
            error => error,
        }
    }

    /// The field that a value is made of, over ops that have it as their first input.
    fn fed_from(&self, place: Place) -> Option<&str> {
        let mut place = place;
        loop {
            match place {
                Place::Feed(feed) => return Some(&self.feeds[feed].name),
                Place::Buffer(buffer) => {
                    let maker = self.nodes.iter().find(|node| node.outputs.contains(&buffer))?;
                    place = *maker.inputs.first()?;
                }
                _ => return None,
            }
        }
    }

    fn backward(&self, node: &PlanNode, arena: &mut Arena, batch: &Batch, seed: u64) -> Result<()> {
        // An output that nothing used has no gradient yet: it is zero.
        for (output, &(place, slot)) in
            node.output_gradients.iter().enumerate().filter_map(|(o, g)| Some((o, g.as_ref()?)))
        {
            if !arena.written[slot] {
                let elements = node.output_shapes[output].0.elements(batch.rows);
                let gradient = arena.gradient_mut(place);
                gradient.clear();
                gradient.resize(elements, 0.0);
                arena.written[slot] = true;
            }
        }
        let mut taken = std::mem::take(&mut arena.taken);
        for (input, gradient) in node.input_gradients.iter().enumerate() {
            let Some((place, slot)) = *gradient else { continue };
            if taken.iter().any(|t: &TakenGradient| t.slot == slot) {
                continue;
            }
            let mut values = arena.take_gradient(place);
            if matches!(place, GradientPlace::Buffer(_)) {
                values.resize(node.input_shapes[input].elements(batch.rows), 0.0);
            }
            taken.push(TakenGradient { slot, values, written: arena.written[slot] });
        }
        let mut scratch = std::mem::take(&mut arena.scratch);
        let inputs = Inputs { node, arena, batch, training: !self.for_test, seed };
        let mut gradients = Gradients { node, taken: &mut taken, scratch: &mut scratch };
        let result = node.op.operator().backward(&inputs, &mut gradients);
        arena.scratch = scratch;
        for t in taken.drain(..) {
            let (place, _) = self.gradient_slots[t.slot];
            *arena.gradient_mut(place) = t.values;
            arena.written[t.slot] = t.written;
        }
        arena.taken = taken;
        result
    }

    fn has_gradient(&self, place: GradientPlace) -> bool {
        self.gradient_slots.iter().any(|(known, _)| *known == place)
    }

    /// A parameter that this batch did not reach has a zero gradient, not the last batch's.
    fn clear_unwritten(&self, arena: &mut Arena) {
        for (slot, (place, _)) in self.gradient_slots.iter().enumerate() {
            if !arena.written[slot] && !matches!(place, GradientPlace::Buffer(_)) {
                arena.gradient_mut(*place).fill(0.0);
            }
        }
    }
}

fn charge(arena: &mut Arena, index: usize, started: Option<Instant>) {
    if let (Some(started), Some(profile)) = (started, arena.profile.as_mut()) {
        profile[index] += started.elapsed().as_nanos() as u64;
    }
}

/// Adds up what the samples with each key say of shows and clicks.
fn count_keys<'a>(
    counts: &mut Counts,
    keys: usize,
    inverse: &[u32],
    slots: impl Iterator<Item = &'a Column>,
    show: &Column,
    click: &Column,
) {
    for sums in [&mut counts.show, &mut counts.click] {
        sums.clear();
        sums.resize(keys, 0.0);
    }
    let mut of_id = inverse.iter();
    for slot in slots {
        let Column::Ids { offsets, .. } = slot else { continue };
        for (row, ends) in offsets.windows(2).enumerate() {
            let (show, click) = (number(show, row), number(click, row));
            for &key in of_id.by_ref().take((ends[1] - ends[0]) as usize) {
                counts.show[key as usize] += show;
                counts.click[key as usize] += click;
            }
        }
    }
}

/// The one number of a row.
fn number(column: &Column, row: usize) -> f32 {
    match column {
        Column::Ids { offsets, keys } => keys[offsets[row] as usize] as f32,
        Column::Floats { values, .. } => values[row],
    }
}

fn check_vocabulary(slot: &str, vocabulary: u64, keys: &[u64], offsets: &[u32]) -> Result<()> {
    match keys.iter().position(|&key| key >= vocabulary) {
        None => Ok(()),
        Some(at) => Err(Error::Value {
            op: "embedding",
            what: format!("an id of slot `{slot}`"),
            expected: format!("below the vocabulary's size {vocabulary}"),
            got: keys[at].to_string(),
            row: offsets.partition_point(|&end| end as usize <= at).saturating_sub(1),
        }),
    }
}

/// Every parameter draws from a stream of its own, whatever the order of creation.
pub(crate) fn seed_of(program_seed: u64, name: &str) -> u64 {
    mix(program_seed ^ openfleet_core::key::of_category(0, name.as_bytes()))
}
