//! Compiles a program to a plan: chooses a location for every variable, a stage for every sparse table and a table for every
//! parameter.

use std::sync::Arc;

use openfleet_core::strategy::CollectiveSettings;
use openfleet_dist::collective::RankGroup;
use openfleet_dist::communicator::{Local, Replicated};
use openfleet_dist::{Cluster, Communicator};
use openfleet_table::checkpoint::StateElements;
use openfleet_table::{DenseSpec, DenseTable, SparseSpec, SparseTable};
use parking_lot::Mutex;
use tracing::warn;

use super::early::{can_push_early, early_pushes};
use super::shapes::{ShapeSource, ShapesAtRun, nodes_sized_by_values};
use super::{FeedField, Plan, PlanNode, StageSpec};
use crate::error::{Error, Result};
use crate::graph::op::Signature;
use crate::graph::table_spec::{dense_spec, non_finite, sparse_spec, trains, would_move_every_row};
use crate::graph::{Node, Program, Var, VariableKind, describe_data};
use crate::memory::{
    GradientLocation, LookupInputs, NodeLocations, NodeShapes, Scope, ValueLocation, dense_rule, sparse_rule,
};
use crate::run::states;
use crate::value::{DType, Shape};

/// Chooses a location for every variable and opens the tables.
pub(super) fn compile(program: &Program, scope: &Scope, tables: TableSource<'_>) -> Result<Plan> {
    Compiler::new(program).compile(scope, tables)
}

/// Where the tables of a plan are.
pub(super) enum TableSource<'a> {
    /// In the scope, the default without servers.
    InScope,
    /// On servers.
    On(&'a Cluster),
    /// In the scope, and the same on every rank of a collective job.
    OnEveryRank(&'a Arc<RankGroup>, CollectiveSettings),
    /// Wherever this function finds them, given the specs in the order of the stages.
    Opened(&'a OpenTables<'a>),
}

/// Opens sparse tables and parameters by name and spec, and returns the communicator that reads them.
pub(crate) type OpenTables<'a> =
    dyn Fn(Vec<(String, SparseSpec)>, Vec<(String, DenseSpec)>) -> Result<Arc<dyn Communicator>> + 'a;

/// Sparse tables and parameters with their names, in the order of the stages.
type Tables = (Vec<(String, Arc<SparseTable>)>, Vec<(String, Arc<DenseTable>)>);

/// The state of the compiler.
struct Compiler<'a> {
    program: &'a Program,
    locations: Vec<Option<ValueLocation>>,
    gradient_locations: Vec<Option<GradientLocation>>,
    gradient_slots: Vec<(GradientLocation, Shape)>,
    gradient_buffers: usize,
    feeds: Vec<FeedField>,
    feed_of: Vec<Option<usize>>,
    stages: Vec<StageSpec>,
    dense: Vec<Var>,
    sparse: Vec<Var>,
    states: Vec<Var>,
    buffer_count: usize,
}

impl<'a> Compiler<'a> {
    fn new(program: &'a Program) -> Self {
        let count = program.variables().len();
        Compiler {
            program,
            locations: vec![None; count],
            gradient_locations: vec![None; count],
            gradient_slots: Vec::new(),
            gradient_buffers: 0,
            feeds: Vec::new(),
            feed_of: vec![None; count],
            stages: Vec::new(),
            dense: Vec::new(),
            sparse: Vec::new(),
            states: Vec::new(),
            buffer_count: 0,
        }
    }

    fn compile(mut self, scope: &Scope, tables: TableSource<'_>) -> Result<Plan> {
        let program = self.program;
        self.locate_tables()?;
        for node in program.nodes() {
            for &var in &node.inputs {
                self.locate_input(var)?;
            }
            for &var in &node.outputs {
                self.locations[var.index()] = Some(ValueLocation::Buffer(self.buffer_count));
                self.buffer_count += 1;
            }
        }
        let (backward, loss_gradient) = self.locate_gradients();
        let are_shapes_unknown = program.has_unknown_shapes();
        let shape_sources = self.shape_sources();
        let mut nodes = program.nodes().iter().map(|node| self.node(node)).collect::<Vec<_>>();
        if are_shapes_unknown {
            self.add_shapes_at_run(&mut nodes, &shape_sources);
        }
        let (order, completed) = self.completion(&nodes, &backward);
        let clip = program.minimize.as_ref().and_then(|minimize| minimize.clip);
        let floats = self.states.iter().map(|&var| program.variable(var)).filter(|state| state.dtype.is_float());
        let statistics = floats.map(|state| state.shape.elements(0)).sum();
        let (communicator, replicated) = match tables {
            TableSource::OnEveryRank(group, settings) => {
                let (sparse, dense) = self.tables_of(scope, self.sparse_specs(), self.dense_specs())?;
                let (group, program) = (group.clone(), program.fingerprint());
                let replicated =
                    Arc::new(Replicated::new(group, program, settings, sparse, dense, &order, statistics)?);
                (replicated.clone() as Arc<dyn Communicator>, Some(replicated))
            }
            tables => (self.communicator(scope, tables)?, None),
        };
        let dense_sizes: Vec<usize> = self.dense.iter().map(|&var| program.variable(var).shape.elements(0)).collect();
        let early = match communicator.pushes_early() && program.minimize.is_some() && can_push_early(clip) {
            true => early_pushes(&order, &completed, |parameter| dense_sizes[parameter]),
            false => Vec::new(),
        };
        // After the parameters, which an error about a missing value should name first.
        let states =
            self.states.iter().map(|&var| scope.state(&program.variable(var).name)).collect::<Result<Vec<_>>>()?;
        let loss = program.backward.as_ref().and_then(|backward| match self.locations[backward.loss().index()] {
            Some(ValueLocation::Buffer(buffer)) => Some((buffer, program.variable(backward.loss()).name.clone())),
            _ => None,
        });
        let mut shapes: Vec<(String, Shape, DType)> =
            program.variables().iter().map(|v| (v.name.clone(), v.shape.clone(), v.dtype)).collect();
        shapes.shrink_to_fit();
        Ok(Plan {
            nodes,
            backward,
            completed,
            early,
            loss_gradient,
            feeds: self.feeds,
            stages: self.stages,
            dense_sizes,
            states,
            statistics,
            buffer_count: self.buffer_count,
            gradient_slots: self.gradient_slots,
            locations: self.locations,
            gradient_locations: self.gradient_locations,
            shapes,
            are_shapes_unknown,
            shape_sources,
            dense_names: self.dense.iter().map(|&var| program.variable(var).name.clone()).collect(),
            sparse_names: self.sparse.iter().map(|&var| program.variable(var).name.clone()).collect(),
            loss,
            non_finite: non_finite(program),
            warned: Mutex::default(),
            clip,
            differentiates: program.backward.is_some(),
            trains: program.minimize.is_some(),
            for_test: program.for_test,
            seed: program.seed,
            communicator,
            replicated,
        })
    }

    /// Sparse tables come first: tables that are looked up with the same slots share a stage, so their ids are deduplicated once.
    fn locate_tables(&mut self) -> Result<()> {
        let program = self.program;
        let mut tables: Vec<(Var, Vec<(Var, u64)>)> = Vec::new();
        for node in program.nodes() {
            for &(table, slot) in node.op.operator().lookups() {
                let (table, slot) = (node.inputs[table], (node.inputs[slot], node.salt()));
                let entry = match tables.iter().position(|(known, _)| *known == table) {
                    Some(at) => at,
                    None => {
                        tables.push((table, Vec::new()));
                        tables.len() - 1
                    }
                };
                if !tables[entry].1.contains(&slot) {
                    tables[entry].1.push(slot);
                }
            }
        }
        for (table, slots) in tables {
            let VariableKind::SparseTable(attributes) = &program.variable(table).kind else { continue };
            let salts: Vec<u64> = slots.iter().map(|&(_, salt)| salt).collect();
            let mut feeds = Vec::with_capacity(slots.len());
            for (slot, _) in slots {
                let variable = program.variable(slot);
                if variable.kind != VariableKind::Data {
                    return Err(Error::Input {
                        op: "embedding",
                        expected: "ids for a sparse table that come directly from the data".into(),
                        got: format!("`{}`, which an op computes", variable.name),
                    });
                }
                let feed = self.feed(slot);
                let limit = &mut self.feeds[feed].vocabulary;
                *limit = match (*limit, attributes.vocabulary) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
                feeds.push(feed);
            }
            let counts = match &attributes.rows.counts {
                Some(names) if trains(program, table) => Some(self.counts(names)?),
                _ => None,
            };
            let same = |stage: &StageSpec| stage.feeds == feeds && stage.salts == salts && stage.counts == counts;
            let stage = match self.stages.iter().position(same) {
                Some(stage) => stage,
                None => {
                    self.stages.push(StageSpec { feeds, salts, lookups: Vec::new(), counts });
                    self.stages.len() - 1
                }
            };
            let lookups = &mut self.stages[stage].lookups;
            lookups.push((self.sparse.len(), attributes.dim));
            self.locations[table.index()] = Some(ValueLocation::Rows { stage, lookup: lookups.len() - 1 });
            self.sparse.push(table);
        }
        Ok(())
    }

    /// The feeds of shows and clicks.
    fn counts(&mut self, (show, click): &(String, String)) -> Result<(usize, usize)> {
        let mut feed = |name: &str| {
            let var = self.program.find(name)?;
            let variable = self.program.variable(var);
            let one_a_row = !variable.ragged && variable.shape.elements(1) == 1;
            if variable.kind != VariableKind::Data || !one_a_row {
                return Err(Error::Input {
                    op: "embedding",
                    expected: "shows and clicks directly from the data, one number per row".into(),
                    got: format!("`{name}` of shape {}", variable.shape),
                });
            }
            Ok(self.feed(var))
        };
        Ok((feed(show)?, feed(click)?))
    }

    fn locate_input(&mut self, var: Var) -> Result<()> {
        if self.locations[var.index()].is_some() {
            return Ok(());
        }
        let variable = self.program.variable(var);
        self.locations[var.index()] = Some(match &variable.kind {
            VariableKind::Data => ValueLocation::Feed(self.feed(var)),
            VariableKind::Parameter(_) => {
                self.dense.push(var);
                ValueLocation::Dense(self.dense.len() - 1)
            }
            VariableKind::State => {
                self.states.push(var);
                ValueLocation::State(self.states.len() - 1)
            }
            VariableKind::SparseTable(_) | VariableKind::Temporary | VariableKind::Gradient { .. } => {
                return Err(Error::NotFetchable {
                    name: variable.name.clone(),
                    reason: "an op reads it before any op writes it",
                });
            }
        });
        Ok(())
    }

    fn feed(&mut self, var: Var) -> usize {
        if let Some(feed) = self.feed_of[var.index()] {
            return feed;
        }
        let variable = self.program.variable(var);
        self.feeds.push(FeedField {
            name: variable.name.clone(),
            kind: variable.field_kind(),
            described: describe_data(variable),
            shape: variable.shape.clone(),
            is_ragged: variable.ragged,
            is_any_size: !variable.ragged && !variable.is_fixed_per_row(),
            vocabulary: None,
        });
        let feed = self.feeds.len() - 1;
        self.feed_of[var.index()] = Some(feed);
        self.locations[var.index()] = Some(ValueLocation::Feed(feed));
        feed
    }

    fn locate_gradients(&mut self) -> (Vec<usize>, Option<(GradientLocation, usize)>) {
        let Some(backward) = &self.program.backward else { return (Vec::new(), None) };
        for (of, gradient) in backward.gradients() {
            let location = match self.locations[of.index()] {
                Some(ValueLocation::Dense(i)) => GradientLocation::Dense(i),
                Some(ValueLocation::Rows { stage, lookup }) => GradientLocation::Rows { stage, lookup },
                _ => {
                    self.gradient_buffers += 1;
                    GradientLocation::Buffer(self.gradient_buffers - 1)
                }
            };
            self.gradient_locations[gradient.index()] = Some(location);
            self.gradient_slots.push((location, self.program.variable(of).shape.clone()));
        }
        (backward.order().to_vec(), self.gradient_slot(backward.loss()))
    }

    /// The parameters that are trained, in the order in which the backward pass completes their gradients, and how many of them
    /// each of its nodes completes.
    fn completion(&self, nodes: &[PlanNode], backward: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let mut last: Vec<Option<usize>> = vec![None; self.dense.len()];
        for (position, &node) in backward.iter().enumerate() {
            for (location, _) in nodes[node].locations.input_gradients.iter().flatten() {
                if let GradientLocation::Dense(parameter) = *location {
                    last[parameter] = Some(position);
                }
            }
        }
        let mut order = Vec::new();
        let mut completed = Vec::with_capacity(backward.len());
        for position in 0..backward.len() {
            let before = order.len();
            order.extend((0..last.len()).filter(|&parameter| last[parameter] == Some(position)));
            completed.push(order.len() - before);
        }
        (order, completed)
    }

    fn gradient_slot(&self, var: Var) -> Option<(GradientLocation, usize)> {
        let gradient = self.program.gradient_of(var)?;
        let location = self.gradient_locations[gradient.index()]?;
        let slot = self.gradient_slots.iter().position(|(known, _)| *known == location)?;
        Some((location, slot))
    }

    fn node(&self, node: &Node) -> PlanNode {
        let program = self.program;
        let inputs: Vec<ValueLocation> =
            node.inputs.iter().map(|var| self.locations[var.index()].expect("every input has a location")).collect();
        let outputs = node
            .outputs
            .iter()
            .map(|var| match self.locations[var.index()] {
                Some(ValueLocation::Buffer(i)) => i,
                _ => unreachable!("every output has a buffer"),
            })
            .collect();
        let lookups = node
            .op
            .operator()
            .lookups()
            .iter()
            .filter_map(|&(table, slot)| {
                let ValueLocation::Rows { stage, .. } = inputs[table] else { return None };
                let feed = self.feed_of[node.inputs[slot].index()]?;
                let StageSpec { feeds, salts, .. } = &self.stages[stage];
                let others = feeds.iter().zip(salts).take_while(|&(&f, &salt)| (f, salt) != (feed, node.salt()));
                let before = others.map(|(&f, _)| f).collect();
                Some(LookupInputs { table, slot, before })
            })
            .collect();
        let locations = NodeLocations {
            op_name: node.op.operator().name(),
            input_gradients: node
                .inputs
                .iter()
                .enumerate()
                .map(|(i, &var)| node.op.operator().has_gradient(i).then(|| self.gradient_slot(var)).flatten())
                .collect(),
            output_gradients: node.outputs.iter().map(|&var| self.gradient_slot(var)).collect(),
            inputs,
            outputs,
            lookups,
        };
        let shapes_of = |vars: &[Var]| vars.iter().map(|&var| program.variable(var).shape.clone()).collect();
        PlanNode {
            op: node.op.clone(),
            locations,
            shapes: NodeShapes { inputs: shapes_of(&node.inputs), outputs: shapes_of(&node.outputs) },
            output_dtypes: node.outputs.iter().map(|&var| program.variable(var).dtype).collect(),
            shapes_at_run: None,
        }
    }

    /// Where the shape of each variable comes from when the program runs. A gradient has the shape of its variable.
    fn shape_sources(&self) -> Vec<ShapeSource> {
        let mut sources: Vec<ShapeSource> =
            self.feed_of.iter().map(|feed| feed.map_or(ShapeSource::Known, ShapeSource::Feed)).collect();
        for (index, node) in self.program.nodes().iter().enumerate() {
            for (output, var) in node.outputs.iter().enumerate() {
                sources[var.index()] = ShapeSource::Output { node: index, output };
            }
        }
        for (of, gradient) in self.program.backward.iter().flat_map(|backward| backward.gradients()) {
            sources[gradient.index()] = sources[of.index()];
        }
        sources
    }

    fn add_shapes_at_run(&self, nodes: &mut [PlanNode], sources: &[ShapeSource]) {
        let sized_by_values = nodes_sized_by_values(self.program);
        for (index, (plan, node)) in nodes.iter_mut().zip(self.program.nodes()).enumerate() {
            plan.shapes_at_run = Some(ShapesAtRun {
                sources: node.inputs.iter().map(|var| sources[var.index()]).collect(),
                inputs: node.inputs.iter().map(|&var| Signature::of(self.program.variable(var))).collect(),
                depends_on_values: sized_by_values[index],
                made_at: self.program.made_at(index).map(str::to_owned),
            });
        }
    }

    fn communicator(&self, scope: &Scope, tables: TableSource<'_>) -> Result<Arc<dyn Communicator>> {
        let (sparse, dense) = (self.sparse_specs(), self.dense_specs());
        match tables {
            TableSource::InScope | TableSource::OnEveryRank(..) => {
                let (sparse, dense) = self.tables_of(scope, sparse, dense)?;
                Ok(Arc::new(Local::new(sparse, dense)))
            }
            TableSource::On(cluster) => {
                // Servers update the rows that they are sent, as PaddlePaddle's servers do.
                let (mut sparse, mut dense) = (sparse, dense);
                sparse.iter_mut().for_each(|(_, _, spec)| spec.optimizer = spec.optimizer.lazily());
                dense.iter_mut().for_each(|(_, _, spec)| spec.optimizer = spec.optimizer.lazily());
                if !cluster.is_connected() {
                    self.tell_resting(&sparse, "they are on servers");
                }
                if cluster.is_connected() {
                    self.check_rules(cluster, &sparse, &dense)?;
                }
                let sparse: Vec<_> = sparse.into_iter().map(|(_, name, spec)| (name, spec)).collect();
                let dense = dense.into_iter().map(|(_, name, spec)| {
                    let first = scope.get(&name).ok_or_else(|| Error::NotInitialized { name: name.clone() })?;
                    let first = first.f32s().unwrap_or_default().to_vec();
                    Ok((name, spec, first))
                });
                let communicator = cluster.communicator(&sparse, &dense.collect::<Result<Vec<_>>>()?)?;
                // Servers that resumed from a checkpoint have its tables; the program gets its running statistics from there.
                // Counters belong to one worker and start from zero.
                let mut states = cluster.take_resumed_states()?;
                states.retain(|_, state| matches!(state.elements, StateElements::F32(_)));
                states::set(self.program, scope, states)?;
                Ok(communicator)
            }
            TableSource::Opened(open) => open(
                sparse.into_iter().map(|(_, name, spec)| (name, spec)).collect(),
                dense.into_iter().map(|(_, name, spec)| (name, spec)).collect(),
            ),
        }
    }

    /// Fails if a table on the servers has another rule than this program trains it with: tables keep the rule that they were
    /// created with.
    fn check_rules(
        &self,
        cluster: &Cluster,
        sparse: &[(Var, String, SparseSpec)],
        dense: &[(Var, String, DenseSpec)],
    ) -> Result<()> {
        let mismatch = |name: &str, expected: String, got: String| Error::ServerMismatch {
            name: name.to_owned(),
            expected: format!("trained by {expected}"),
            got: format!("trained by {got}"),
        };
        for (_, name, spec) in sparse {
            if let Some(made) = cluster.sparse_spec(name).filter(|made| made.salted != spec.salted) {
                let keys =
                    |spec: &SparseSpec| if spec.salted { "keys salted by slot" } else { "keys that are plain ids" };
                let (expected, got) = (keys(spec).to_owned(), keys(&made).to_owned());
                return Err(Error::ServerMismatch { name: name.clone(), expected, got });
            }
        }
        for (_, name, spec) in sparse.iter().filter(|(var, ..)| trains(self.program, *var)) {
            if let Some(made) = cluster.sparse_spec(name).filter(|made| made != spec) {
                return Err(mismatch(name, sparse_rule(spec), sparse_rule(&made)));
            }
        }
        for (_, name, spec) in dense.iter().filter(|(var, ..)| trains(self.program, *var)) {
            if let Some(made) = cluster.dense_spec(name).filter(|made| made != spec) {
                return Err(mismatch(name, dense_rule(spec), dense_rule(&made)));
            }
        }
        Ok(())
    }

    /// Tells of tables whose rows move only with their batches although the optimizer has no `lazy_mode`.
    fn tell_resting(&self, sparse: &[(Var, String, SparseSpec)], why: &str) {
        let rests = |(var, _, spec): &&(Var, String, SparseSpec)| {
            would_move_every_row(self.program, *var) && !spec.optimizer.moves_every_row()
        };
        let names: Vec<_> = sparse.iter().filter(rests).map(|(_, name, _)| format!("`{name}`")).collect();
        if !names.is_empty() {
            let names = names.join(", ");
            warn!("rows that are not in a batch do not move, as with `lazy_mode`, in the tables {names}: {why}");
        }
    }

    fn tables_of(
        &self,
        scope: &Scope,
        sparse: Vec<(Var, String, SparseSpec)>,
        dense: Vec<(Var, String, DenseSpec)>,
    ) -> Result<Tables> {
        let new = sparse.iter().filter(|(_, name, _)| scope.sparse(name).is_none()).cloned().collect::<Vec<_>>();
        self.tell_resting(&new, "they have no bound on their ids, or rows that are counted or evicted");
        let sparse = sparse.into_iter().map(|(var, name, spec)| {
            let table = scope.sparse_or_create(&name, spec, trains(self.program, var))?;
            Ok((name, table))
        });
        let dense = dense.into_iter().map(|(var, name, spec)| {
            let table = scope.dense_or_promote(&name, spec, trains(self.program, var))?;
            Ok((name, table))
        });
        Ok((sparse.collect::<Result<_>>()?, dense.collect::<Result<_>>()?))
    }

    fn sparse_specs(&self) -> Vec<(Var, String, SparseSpec)> {
        let named = |&var: &Var| Some((var, self.program.variable(var).name.clone(), sparse_spec(self.program, var)?));
        self.sparse.iter().filter_map(named).collect()
    }

    fn dense_specs(&self) -> Vec<(Var, String, DenseSpec)> {
        let named = |&var: &Var| Some((var, self.program.variable(var).name.clone(), dense_spec(self.program, var)?));
        self.dense.iter().filter_map(named).collect()
    }
}
