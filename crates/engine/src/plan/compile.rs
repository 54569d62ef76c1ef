//! From a program to a plan: finds a place for every variable, a stage for every sparse table, a table for every parameter.

use std::sync::Arc;

use openfleet_dist::communicator::Local;
use openfleet_dist::{Cluster, Communicator};
use openfleet_table::checkpoint::StateElements;
use openfleet_table::sparse::DEFAULT_SHARDS;
use openfleet_table::{DenseSpec, NonFinite, Optimizer, Regularizer, Schedule, Sgd, SparseSpec};
use parking_lot::Mutex;

use super::{Feed, LookupPlan, Plan, PlanNode, StagePlan, seed_of};
use crate::arena::{GradientPlace, Place};
use crate::checkpoint;
use crate::error::{Error, Result};
use crate::program::{Node, Program, Var, VariableKind, describe_data};
use crate::scope::{Scope, rule_of, rule_of_rows};
use crate::shape::Shape;
use crate::tensor::DType;

/// Gives every variable its place and finds its tables in the scope.
pub(super) fn compile(program: &Program, scope: &Scope, tables: Tables<'_>) -> Result<Plan> {
    Compiler::new(program).compile(scope, tables)
}

/// Where the tables of a plan are.
pub(super) enum Tables<'a> {
    /// In the scope, as the embedded default.
    InScope,
    /// On servers.
    On(&'a Cluster),
    /// Where somebody finds them who is told what the program makes of them, in the order of the stages.
    Found(&'a FindTables<'a>),
}

/// From sparse tables and parameters to whatever reads them.
pub(crate) type FindTables<'a> =
    dyn Fn(Vec<(String, SparseSpec)>, Vec<(String, DenseSpec)>) -> Result<Arc<dyn Communicator>> + 'a;

/// What is known so far while a program is compiled.
struct Compiler<'a> {
    program: &'a Program,
    places: Vec<Option<Place>>,
    gradient_places: Vec<Option<GradientPlace>>,
    gradient_slots: Vec<(GradientPlace, Shape)>,
    gradient_buffers: usize,
    feeds: Vec<Feed>,
    feed_of: Vec<Option<usize>>,
    stages: Vec<StagePlan>,
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
            places: vec![None; count],
            gradient_places: vec![None; count],
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

    fn compile(mut self, scope: &Scope, tables: Tables<'_>) -> Result<Plan> {
        let program = self.program;
        self.place_tables()?;
        for node in program.nodes() {
            for &var in &node.inputs {
                self.place_input(var)?;
            }
            for &var in &node.outputs {
                self.places[var.index()] = Some(Place::Buffer(self.buffer_count));
                self.buffer_count += 1;
            }
        }
        let (backward, loss_gradient) = self.place_gradients();
        let nodes = program.nodes().iter().map(|node| self.node(node)).collect::<Vec<_>>();
        let communicator = self.communicator(scope, tables)?;
        let states =
            self.states.iter().map(|&var| scope.state(&program.variable(var).name)).collect::<Result<Vec<_>>>()?;
        let loss = program.backward.as_ref().and_then(|backward| match self.places[backward.loss().index()] {
            Some(Place::Buffer(buffer)) => Some((buffer, program.variable(backward.loss()).name.clone())),
            _ => None,
        });
        let mut shapes: Vec<(String, Shape, DType)> =
            program.variables().iter().map(|v| (v.name.clone(), v.shape.clone(), v.dtype)).collect();
        shapes.shrink_to_fit();
        Ok(Plan {
            nodes,
            backward,
            loss_gradient,
            feeds: self.feeds,
            stages: self.stages,
            dense_sizes: self.dense.iter().map(|&var| program.variable(var).shape.elements(0)).collect(),
            states,
            buffer_count: self.buffer_count,
            gradient_slots: self.gradient_slots,
            places: self.places,
            gradient_places: self.gradient_places,
            shapes,
            dense_names: self.dense.iter().map(|&var| program.variable(var).name.clone()).collect(),
            sparse_names: self.sparse.iter().map(|&var| program.variable(var).name.clone()).collect(),
            loss,
            non_finite: non_finite(program),
            told: Mutex::default(),
            clip: program.minimize.as_ref().and_then(|minimize| minimize.clip),
            differentiates: program.backward.is_some(),
            trains: program.minimize.is_some(),
            for_test: program.for_test,
            seed: program.seed,
            communicator,
        })
    }

    /// Sparse tables first: tables looked up with the same slots share a stage, hence one de-duplication.
    fn place_tables(&mut self) -> Result<()> {
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
                        expected: "ids of a sparse table straight from the data".into(),
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
            let same = |stage: &StagePlan| stage.feeds == feeds && stage.salts == salts && stage.counts == counts;
            let stage = match self.stages.iter().position(same) {
                Some(stage) => stage,
                None => {
                    self.stages.push(StagePlan { feeds, salts, lookups: Vec::new(), counts });
                    self.stages.len() - 1
                }
            };
            let lookups = &mut self.stages[stage].lookups;
            lookups.push((self.sparse.len(), attributes.dim));
            self.places[table.index()] = Some(Place::Rows { stage, lookup: lookups.len() - 1 });
            self.sparse.push(table);
        }
        Ok(())
    }

    /// Where shows and clicks are fed.
    fn counts(&mut self, (show, click): &(String, String)) -> Result<(usize, usize)> {
        let mut feed = |name: &str| {
            let var = self.program.find(name)?;
            let variable = self.program.variable(var);
            let one_a_row = !variable.ragged && variable.shape.elements(1) == 1;
            if variable.kind != VariableKind::Data || !one_a_row {
                return Err(Error::Input {
                    op: "embedding",
                    expected: "shows and clicks straight from the data, one number a row".into(),
                    got: format!("`{name}` of shape {}", variable.shape),
                });
            }
            Ok(self.feed(var))
        };
        Ok((feed(show)?, feed(click)?))
    }

    fn place_input(&mut self, var: Var) -> Result<()> {
        if self.places[var.index()].is_some() {
            return Ok(());
        }
        let variable = self.program.variable(var);
        self.places[var.index()] = Some(match &variable.kind {
            VariableKind::Data => Place::Feed(self.feed(var)),
            VariableKind::Parameter(_) => {
                self.dense.push(var);
                Place::Dense(self.dense.len() - 1)
            }
            VariableKind::State => {
                self.states.push(var);
                Place::State(self.states.len() - 1)
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
        self.feeds.push(Feed {
            name: variable.name.clone(),
            kind: variable.field_kind(),
            described: describe_data(variable),
            vocabulary: None,
        });
        let feed = self.feeds.len() - 1;
        self.feed_of[var.index()] = Some(feed);
        self.places[var.index()] = Some(Place::Feed(feed));
        feed
    }

    fn place_gradients(&mut self) -> (Vec<usize>, Option<(GradientPlace, usize)>) {
        let Some(backward) = &self.program.backward else { return (Vec::new(), None) };
        for (of, gradient) in backward.gradients() {
            let place = match self.places[of.index()] {
                Some(Place::Dense(i)) => GradientPlace::Dense(i),
                Some(Place::Rows { stage, lookup }) => GradientPlace::Rows { stage, lookup },
                _ => {
                    self.gradient_buffers += 1;
                    GradientPlace::Buffer(self.gradient_buffers - 1)
                }
            };
            self.gradient_places[gradient.index()] = Some(place);
            self.gradient_slots.push((place, self.program.variable(of).shape.clone()));
        }
        (backward.order().to_vec(), self.gradient_slot(backward.loss()))
    }

    fn gradient_slot(&self, var: Var) -> Option<(GradientPlace, usize)> {
        let gradient = self.program.gradient_of(var)?;
        let place = self.gradient_places[gradient.index()]?;
        let slot = self.gradient_slots.iter().position(|(known, _)| *known == place)?;
        Some((place, slot))
    }

    fn node(&self, node: &Node) -> PlanNode {
        let program = self.program;
        let inputs: Vec<Place> =
            node.inputs.iter().map(|var| self.places[var.index()].expect("inputs were placed")).collect();
        let outputs = node
            .outputs
            .iter()
            .map(|var| match self.places[var.index()] {
                Some(Place::Buffer(i)) => i,
                _ => unreachable!("outputs were given buffers"),
            })
            .collect();
        let lookups = node
            .op
            .operator()
            .lookups()
            .iter()
            .filter_map(|&(table, slot)| {
                let Place::Rows { stage, .. } = inputs[table] else { return None };
                let feed = self.feed_of[node.inputs[slot].index()]?;
                let StagePlan { feeds, salts, .. } = &self.stages[stage];
                let others = feeds.iter().zip(salts).take_while(|&(&f, &salt)| (f, salt) != (feed, node.salt()));
                let before = others.map(|(&f, _)| f).collect();
                Some(LookupPlan { table, slot, before })
            })
            .collect();
        PlanNode {
            op: node.op.clone(),
            input_gradients: node
                .inputs
                .iter()
                .enumerate()
                .map(|(i, &var)| node.op.operator().has_gradient(i).then(|| self.gradient_slot(var)).flatten())
                .collect(),
            output_gradients: node.outputs.iter().map(|&var| self.gradient_slot(var)).collect(),
            input_shapes: node.inputs.iter().map(|&var| program.variable(var).shape.clone()).collect(),
            output_shapes: node
                .outputs
                .iter()
                .map(|&var| (program.variable(var).shape.clone(), program.variable(var).dtype))
                .collect(),
            inputs,
            outputs,
            lookups,
        }
    }

    fn communicator(&self, scope: &Scope, tables: Tables<'_>) -> Result<Arc<dyn Communicator>> {
        let (sparse, dense) = (self.sparse_specs(), self.dense_specs());
        match tables {
            Tables::InScope => self.tables_of(scope, sparse, dense),
            Tables::On(cluster) => {
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
                // Servers that go on from a checkpoint have its tables, and the program its running statistics. Counters are one
                // worker's own, and begin anew.
                let mut states = cluster.take_resumed_states()?;
                states.retain(|_, state| matches!(state.elements, StateElements::F32(_)));
                checkpoint::set_states(self.program, scope, states)?;
                Ok(communicator)
            }
            Tables::Found(find) => find(
                sparse.into_iter().map(|(_, name, spec)| (name, spec)).collect(),
                dense.into_iter().map(|(_, name, spec)| (name, spec)).collect(),
            ),
        }
    }

    /// What this program trains is trained by its rule, or it is an error: tables keep the rule that they were made with.
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
                return Err(mismatch(name, rule_of_rows(spec), rule_of_rows(&made)));
            }
        }
        for (_, name, spec) in dense.iter().filter(|(var, ..)| trains(self.program, *var)) {
            if let Some(made) = cluster.dense_spec(name).filter(|made| made != spec) {
                return Err(mismatch(name, rule_of(spec), rule_of(&made)));
            }
        }
        Ok(())
    }

    fn tables_of(
        &self,
        scope: &Scope,
        sparse: Vec<(Var, String, SparseSpec)>,
        dense: Vec<(Var, String, DenseSpec)>,
    ) -> Result<Arc<dyn Communicator>> {
        let sparse = sparse.into_iter().map(|(var, name, spec)| {
            let table = scope.sparse_or_create(&name, spec, trains(self.program, var))?;
            Ok((name, table))
        });
        let dense = dense.into_iter().map(|(var, name, spec)| {
            let table = scope.dense_or_promote(&name, spec, trains(self.program, var))?;
            Ok((name, table))
        });
        Ok(Arc::new(Local::new(sparse.collect::<Result<_>>()?, dense.collect::<Result<_>>()?)))
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

/// Whether any lookup in a table salts its ids.
fn is_salted(program: &Program, table: Var) -> bool {
    let looks_up = |node: &Node| node.op.operator().lookups().iter().any(|&(input, _)| node.inputs[input] == table);
    program.nodes().iter().any(|node| node.op.operator().salt().is_some() && looks_up(node))
}

/// Whether the program changes a parameter or table; what it only reads may be trained by another one, by that one's rule.
pub(crate) fn trains(program: &Program, var: Var) -> bool {
    program.minimize.is_some() && program.gradient_of(var).is_some()
}

/// What the table of a variable is made from; `None` for other variables.
pub(crate) fn sparse_spec(program: &Program, var: Var) -> Option<SparseSpec> {
    let variable = program.variable(var);
    let VariableKind::SparseTable(attributes) = &variable.kind else { return None };
    let (optimizer, schedule, regularizer) = rule(program);
    Some(SparseSpec {
        dim: attributes.dim,
        optimizer,
        schedule: schedule.scaled(f64::from(attributes.learning_rate)),
        regularizer: attributes.regularizer.or(regularizer),
        initializer: attributes.initializer,
        seed: seed_of(program.seed, &variable.name),
        shards: DEFAULT_SHARDS,
        accessor: attributes.rows.accessor,
        admission: attributes.rows.admission,
        capacity: attributes.rows.capacity,
        non_finite: non_finite(program),
        salted: is_salted(program, var),
    })
}

/// What the table of a parameter is made from; `None` for other variables.
pub(crate) fn dense_spec(program: &Program, var: Var) -> Option<DenseSpec> {
    let variable = program.variable(var);
    let VariableKind::Parameter(attributes) = &variable.kind else { return None };
    let (optimizer, schedule, regularizer) = rule(program);
    Some(DenseSpec {
        shape: variable.shape.sizes(0),
        optimizer,
        schedule: schedule.scaled(f64::from(attributes.learning_rate)),
        regularizer: attributes.regularizer.or(regularizer),
        non_finite: non_finite(program),
    })
}

fn rule(program: &Program) -> (Optimizer, Schedule, Option<Regularizer>) {
    match &program.minimize {
        Some(minimize) => (minimize.optimizer, minimize.schedule.clone(), minimize.regularizer),
        None => (Optimizer::Sgd(Sgd::default()), Schedule::Constant(0.0), None),
    }
}

fn non_finite(program: &Program) -> NonFinite {
    program.minimize.as_ref().map_or(NonFinite::default(), |minimize| minimize.non_finite)
}
