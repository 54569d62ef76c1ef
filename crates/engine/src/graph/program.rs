//! A `Program` is a static graph: variables with shapes, ops in order, parameters with initializers.
//!
//! It is plain data: it holds no values (a `Scope` does), starts nothing and computes nothing (a `Plan` does). Layers add
//! to it through a [`Net`](crate::Net).

use std::collections::HashMap;

use openfleet_core::FieldKind;
use openfleet_core::key::{mix, of_category, salt};
use openfleet_table::{Accessor, Admission, DenseSpec, Initializer, Regularizer, RowStorage, SparseSpec};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::graph::net::infer;
use crate::graph::op::{Op, Signature};
use crate::graph::table_spec::{dense_spec, sparse_spec};
use crate::graph::{Backward, Minimize};
use crate::value::{DType, Dim, Shape};

/// A variable of one program, by position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Var(pub(crate) u32);

impl Var {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where a variable's value comes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum VariableKind {
    /// Fed with each batch.
    Data,
    /// Computed by an op in each step.
    Temporary,
    /// A dense parameter: stored in the scope, updated by the optimizer.
    Parameter(ParameterAttributes),
    /// The rows of a sparse table, updated by the optimizer.
    SparseTable(SparseAttributes),
    /// Stored in the scope and changed by ops: counters, running statistics.
    State,
    /// The gradient of another variable.
    Gradient {
        /// The other variable.
        of: Var,
    },
}

/// How a dense parameter is trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParameterAttributes {
    /// Multiplies the optimizer's learning rate.
    pub learning_rate: f32,
    /// Replaces the optimizer's regularizer.
    pub regularizer: Option<Regularizer>,
    /// `false` freezes the parameter.
    pub trainable: bool,
}

/// The attributes of an embedding's sparse table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SparseAttributes {
    /// D, the floats per row.
    pub dim: usize,
    /// Ids must be below this; `None` accepts any.
    pub vocabulary: Option<u64>,
    /// How the first values of a row are made.
    pub initializer: Initializer,
    /// Multiplies the optimizer's learning rate.
    pub learning_rate: f32,
    /// Replaces the optimizer's regularizer.
    pub regularizer: Option<Regularizer>,
    /// `false` freezes all rows.
    pub trainable: bool,
    /// Which rows exist.
    #[serde(default)]
    pub rows: RowLife,
}

/// Which ids get a row, what a row stores and how, and which rows are evicted. By default every id has a row of floats forever.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RowLife {
    /// Which ids get a row of their own.
    pub admission: Admission,
    /// The layout of a row and when it is evicted.
    pub accessor: Accessor,
    /// The maximum number of rows per server (or in this process). Rows that were not seen for the longest time are evicted
    /// first.
    pub capacity: Option<usize>,
    /// For accessors that count shows and clicks: the data variables that give them, one number per sample.
    #[serde(default)]
    pub counts: Option<(String, String)>,
    /// How the weights of a row are stored.
    #[serde(default, skip_serializing_if = "RowStorage::is_float32")]
    pub storage: RowStorage,
}

/// A named value with a shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Variable {
    /// Unique in its program.
    pub name: String,
    /// `-1` as the first dimension is the batch.
    pub shape: Shape,
    /// The type of its elements.
    pub dtype: DType,
    /// Where its value comes from.
    pub kind: VariableKind,
    /// No gradient flows into it.
    pub stop_gradient: bool,
    /// Data only: any number of elements per row, in CSR form.
    pub ragged: bool,
}

impl Variable {
    /// Whether the first dimension is the batch.
    pub fn is_batched(&self) -> bool {
        self.shape.0.first() == Some(&Dim::PerRow(1))
    }

    /// Whether its shape is known only when the program runs.
    fn has_unknown_shape(&self) -> bool {
        self.shape.has_unknown() || (self.kind == VariableKind::Data && !self.is_batched())
    }

    /// Whether a row has a number of elements that is known before the program runs.
    pub(crate) fn is_fixed_per_row(&self) -> bool {
        self.is_batched() && !self.ragged && !self.shape.has_unknown()
    }

    /// The field of a batch that a data variable is fed from.
    pub fn field_kind(&self) -> FieldKind {
        let per_row = self.shape.0.iter().skip(1).map(|d| d.size(1)).product();
        match self.dtype {
            DType::I64 if !self.is_fixed_per_row() => FieldKind::Ids,
            DType::I64 => FieldKind::FixedIds { length: per_row },
            DType::F32 | DType::Bool => FieldKind::Floats { dim: per_row },
        }
    }
}

/// One op with its inputs and outputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// The op.
    pub op: Op,
    /// The variables it reads.
    pub inputs: Vec<Var>,
    /// The variables it writes.
    pub outputs: Vec<Var>,
}

impl Node {
    /// The salt of the ids of its lookups; 0 for plain ids.
    pub(crate) fn salt(&self) -> u64 {
        self.op.operator().salt().map_or(0, salt)
    }
}

/// Variables and ops in order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    variables: Vec<Variable>,
    nodes: Vec<Node>,
    #[serde(skip)]
    by_name: HashMap<String, Var>,
    pub(crate) backward: Option<Backward>,
    pub(crate) minimize: Option<Minimize>,
    /// Dropout, batch statistics and so on behave as in evaluation.
    pub(crate) for_test: bool,
    /// A running hash of everything that was added.
    content: u64,
    /// Whether a variable has a shape that is known only when the program runs.
    #[serde(skip)]
    has_unknown_shapes: bool,
    /// The variable that has the value of a state after the ops so far; absent if no op has read or written it yet.
    #[serde(skip)]
    state_values: HashMap<Var, Var>,
    /// The number of rows of each sequence, for variables that join sequences.
    #[serde(skip)]
    lengths: HashMap<Var, Var>,
    /// The line of the script that added each op, for messages. Shorter than the ops if the last lines are not known.
    #[serde(skip)]
    made_at: Vec<Option<String>>,
    /// Every random number of this program is a function of this seed.
    pub seed: u64,
}

impl Program {
    /// An empty program.
    pub fn new() -> Self {
        Program::default()
    }

    /// All variables, in order of creation.
    pub fn variables(&self) -> &[Variable] {
        &self.variables
    }

    /// All ops, in order of execution.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A variable of this program.
    pub fn variable(&self, var: Var) -> &Variable {
        &self.variables[var.index()]
    }

    pub(crate) fn stop_gradient(&mut self, var: Var) {
        self.add_to_hash(&("stop_gradient", var));
        self.variables[var.index()].stop_gradient = true;
    }

    /// Finds a variable by name. Fails with the known names if there is none.
    pub fn find(&self, name: &str) -> Result<Var> {
        self.by_name.get(name).copied().ok_or_else(|| Error::UnknownVariable {
            name: name.to_owned(),
            known: self.variables.iter().map(|v| v.name.clone()).collect(),
        })
    }

    /// Whether the program updates parameters when it runs.
    pub fn is_trained(&self) -> bool {
        self.minimize.is_some()
    }

    /// Whether some shapes are known only when the program runs, so that it infers shapes for every batch.
    pub fn has_unknown_shapes(&self) -> bool {
        self.has_unknown_shapes
    }

    /// Whether this is a copy made by [`clone_for_test`](Self::clone_for_test).
    pub fn is_for_test(&self) -> bool {
        self.for_test
    }

    /// The variables that are fed, in order of declaration.
    pub fn data(&self) -> impl Iterator<Item = (Var, &Variable)> {
        self.numbered().filter(|(_, v)| v.kind == VariableKind::Data)
    }

    /// The dense parameters, in order of creation.
    pub fn parameters(&self) -> impl Iterator<Item = (Var, &Variable)> {
        self.numbered().filter(|(_, v)| matches!(v.kind, VariableKind::Parameter(_)))
    }

    /// The sparse tables, in order of creation.
    pub fn tables(&self) -> impl Iterator<Item = (Var, &Variable)> {
        self.numbered().filter(|(_, v)| matches!(v.kind, VariableKind::SparseTable(_)))
    }

    /// The specs that the sparse tables are created from, with their names, in order of creation.
    pub fn sparse_specs(&self) -> Vec<(String, SparseSpec)> {
        let named = |(var, variable): (Var, &Variable)| Some((variable.name.clone(), sparse_spec(self, var)?));
        self.tables().filter_map(named).collect()
    }

    /// The specs that the tables of the dense parameters are created from, with their names, in order of creation.
    pub fn dense_specs(&self) -> Vec<(String, DenseSpec)> {
        let named = |(var, variable): (Var, &Variable)| Some((variable.name.clone(), dense_spec(self, var)?));
        self.parameters().filter_map(named).collect()
    }

    /// Every variable that is kept by name between steps: parameters, tables and states.
    pub fn persistables(&self) -> impl Iterator<Item = (Var, &Variable)> {
        self.numbered().filter(|(_, v)| {
            matches!(v.kind, VariableKind::Parameter(_) | VariableKind::SparseTable(_) | VariableKind::State)
        })
    }

    fn numbered(&self) -> impl Iterator<Item = (Var, &Variable)> {
        self.variables.iter().enumerate().map(|(i, v)| (Var(i as u32), v))
    }

    /// A copy for evaluation: no backward, no update, dropout and batch statistics fixed. Variables keep their indexes and names,
    /// so [`Var`]s of this program work on the copy.
    pub fn clone_for_test(&self) -> Self {
        Program { backward: None, minimize: None, for_test: true, ..self.clone() }
    }

    /// A copy in which a data variable has other dimensions than it was declared with; a negative size is one that is known when the
    /// program runs, the first one the batch. The shapes of all that is computed from it follow.
    pub fn with_data_shape(&self, var: Var, dims: &[i64]) -> Result<Self> {
        let mut copy = self.clone();
        copy.variables[var.index()].shape = Shape::of_data(dims);
        for node in &self.nodes {
            let inputs = node.inputs.iter().map(|&var| Signature::of(copy.variable(var))).collect::<Vec<_>>();
            let outputs = infer(node.op.operator(), &inputs)?;
            for (output, signature) in node.outputs.iter().zip(outputs) {
                copy.variables[output.index()].shape = signature.shape;
            }
        }
        for (of, gradient) in self.backward.iter().flat_map(Backward::gradients) {
            copy.variables[gradient.index()].shape = copy.variable(of).shape.clone();
        }
        copy.add_to_hash(&("shape of data", var, dims));
        copy.index_names();
        Ok(copy)
    }

    /// The part of the program that computes `targets`, for evaluation, and the targets' [`Var`]s in it. Names stay the same, and
    /// with them parameters, tables and the first values of rows.
    pub fn prune(&self, targets: &[Var]) -> (Self, Vec<Var>) {
        let mut needed = vec![false; self.variables.len()];
        targets.iter().for_each(|target| needed[target.index()] = true);
        let mut kept: Vec<&Node> = Vec::new();
        for node in self.nodes.iter().rev() {
            if node.outputs.iter().any(|output| needed[output.index()]) {
                node.inputs.iter().chain(&node.outputs).for_each(|var| needed[var.index()] = true);
                kept.push(node);
            }
        }
        let mut pruned = Program { for_test: true, seed: self.seed, ..Program::default() };
        let mut renumbered = vec![Var(0); self.variables.len()];
        for (var, variable) in self.numbered().filter(|(var, _)| needed[var.index()]) {
            renumbered[var.index()] = Var(pruned.variables.len() as u32);
            let mut variable = variable.clone();
            if let VariableKind::SparseTable(attributes) = &mut variable.kind {
                // Evaluation pushes nothing, so there are no shows and clicks to count.
                attributes.rows.counts = None;
            }
            pruned.add_to_hash(&variable);
            pruned.variables.push(variable);
        }
        for node in kept.into_iter().rev() {
            let renumber = |vars: &[Var]| vars.iter().map(|var| renumbered[var.index()]).collect();
            let (inputs, outputs) = (renumber(&node.inputs), renumber(&node.outputs));
            pruned.add_node(Node { inputs, outputs, ..node.clone() });
        }
        pruned.index_names();
        (pruned, targets.iter().map(|target| renumbered[target.index()]).collect())
    }

    /// The gradient variable that `append_backward` made for a variable.
    pub fn gradient_of(&self, var: Var) -> Option<Var> {
        self.backward.as_ref().and_then(|backward| backward.gradient_of(var))
    }

    pub(crate) fn add_variable(&mut self, variable: Variable) -> Result<Var> {
        if let Some(&existing) = self.by_name.get(&variable.name) {
            return Err(Error::NameTaken {
                name: variable.name,
                existing: self.variable(existing).shape.to_string(),
                requested: variable.shape.to_string(),
            });
        }
        self.add_to_hash(&variable);
        self.has_unknown_shapes |= variable.has_unknown_shape();
        let var = Var(self.variables.len() as u32);
        self.by_name.insert(variable.name.clone(), var);
        self.variables.push(variable);
        Ok(var)
    }

    /// Finds a parameter or table of this name with the same kind, shape and type, or adds it. Sharing is by name: two layers
    /// that give one parameter name share the weights. Returns whether it is new.
    pub(crate) fn find_or_add(&mut self, variable: Variable) -> Result<(Var, bool)> {
        if let Some(&existing) = self.by_name.get(&variable.name) {
            let found = self.variable(existing);
            let same_kind = std::mem::discriminant(&found.kind) == std::mem::discriminant(&variable.kind);
            if same_kind && found.shape == variable.shape && found.dtype == variable.dtype {
                return Ok((existing, false));
            }
        }
        Ok((self.add_variable(variable)?, true))
    }

    /// The variable that has the value of a state at this point of the program.
    pub(crate) fn state_value(&self, state: Var) -> Option<Var> {
        self.state_values.get(&state).copied()
    }

    /// Says which variable has the value of a state from here on.
    pub(crate) fn set_state_value(&mut self, state: Var, value: Var) {
        self.state_values.insert(state, value);
    }

    /// The number of rows of each sequence that a variable joins; `None` if its rows are not those of sequences.
    pub fn lengths(&self, var: Var) -> Option<Var> {
        self.lengths.get(&var).copied()
    }

    /// Says that the rows of a variable are those of sequences with these lengths.
    pub(crate) fn set_lengths(&mut self, var: Var, lengths: Var) {
        self.lengths.insert(var, lengths);
    }

    /// The line of the script that added an op, if it is known.
    pub fn made_at(&self, node: usize) -> Option<&str> {
        self.made_at.get(node)?.as_deref()
    }

    /// Says which line of the script added the newest op.
    pub(crate) fn set_made_at(&mut self, line: &str) {
        self.made_at.resize(self.nodes.len().saturating_sub(1), None);
        self.made_at.push(Some(line.to_owned()));
    }

    pub(crate) fn add_node(&mut self, node: Node) {
        self.add_to_hash(&node);
        self.nodes.push(node);
    }

    pub(crate) fn attach_backward(&mut self, backward: Backward) {
        self.add_to_hash(&backward);
        self.backward = Some(backward);
    }

    pub(crate) fn attach_minimize(&mut self, minimize: Minimize) {
        self.add_to_hash(&minimize);
        self.minimize = Some(minimize);
    }

    /// A hash that changes with everything that affects a run of the program.
    pub fn fingerprint(&self) -> u64 {
        let flags = [self.backward.is_some(), self.minimize.is_some(), self.for_test].map(u64::from);
        flags.into_iter().fold(mix(self.content ^ mix(self.seed)), |hash, flag| mix(hash.wrapping_add(flag)))
    }

    /// The seed of a parameter's or table's first values. It depends on the name and not on the order of creation.
    pub(crate) fn seed_of(&self, name: &str) -> u64 {
        mix(self.seed ^ of_category(0, name.as_bytes()))
    }

    fn add_to_hash(&mut self, what: &impl std::fmt::Debug) {
        self.content = mix(self.content ^ of_category(0, format!("{what:?}").as_bytes()));
    }

    /// Rebuilds what is not saved; call it after deserialization.
    pub fn index_names(&mut self) {
        self.by_name = self.variables.iter().enumerate().map(|(i, v)| (v.name.clone(), Var(i as u32))).collect();
        self.has_unknown_shapes = self.variables.iter().any(Variable::has_unknown_shape);
    }
}

/// A data variable's shape in words, for messages.
pub(crate) fn describe_data(variable: &Variable) -> String {
    if !variable.ragged && !variable.is_fixed_per_row() {
        let elements = if variable.dtype.is_float() { "floats" } else { "integers" };
        return format!("{elements} of shape {}", variable.shape);
    }
    match variable.field_kind() {
        FieldKind::Ids => "a slot of ids".into(),
        FieldKind::FixedIds { length } => format!("{length} integer(s) per row"),
        FieldKind::Floats { dim } => format!("{dim} float(s) per row"),
    }
}
