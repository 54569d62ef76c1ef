//! Builds an ONNX graph. Each op writes its nodes through an [`OnnxNode`].

pub(crate) mod proto;

use std::collections::{BTreeMap, BTreeSet};

use self::proto::{AttributeProto, NodeProto, TensorProto};
use crate::graph::{Node, Program, Var};
use crate::value::{DType, Dim, Shape};

/// The domain of `LabelEncoder`.
pub(crate) const ML_DOMAIN: &str = "ai.onnx.ml";

/// The value of an attribute of an ONNX node.
pub enum OnnxAttribute {
    /// An integer or an enum value.
    Int(i64),
    /// Several integers.
    Ints(Vec<i64>),
    /// A string.
    Text(&'static str),
    /// Integers as a tensor of one dimension.
    IntTensor(Vec<i64>),
}

/// The graph built so far.
pub(crate) struct OnnxGraph<'a> {
    pub(crate) program: &'a Program,
    pub(crate) nodes: Vec<NodeProto>,
    pub(crate) initializers: Vec<TensorProto>,
    /// Per ragged slot: the value that holds the batch row of each id.
    rows: BTreeMap<Var, String>,
    /// Per table, slot and salt: the value that holds the table row of each id.
    pub(crate) indexes: BTreeMap<(Var, Var, u64), String>,
    constants: Vec<(String, TensorProto)>,
    names: BTreeSet<String>,
}

impl<'a> OnnxGraph<'a> {
    pub(crate) fn new(program: &'a Program) -> Self {
        let names = program.variables().iter().map(|variable| variable.name.clone()).collect();
        OnnxGraph {
            program,
            nodes: Vec::new(),
            initializers: Vec::new(),
            rows: BTreeMap::new(),
            indexes: BTreeMap::new(),
            constants: Vec::new(),
            names,
        }
    }

    /// A name that is not in use yet.
    fn unique_name(&mut self, about: &str) -> String {
        let numbered = (0..).map(|number: usize| format!("{about}/{number}"));
        let name = numbered.into_iter().find(|name| !self.names.contains(name)).unwrap_or_default();
        self.names.insert(name.clone());
        name
    }

    /// Adds a node with one result and returns the result's name.
    pub(crate) fn emit(
        &mut self,
        op: &'static str,
        inputs: &[&str],
        attributes: Vec<(&'static str, OnnxAttribute)>,
    ) -> String {
        let output = self.unique_name(op);
        self.emit_to(op, inputs, attributes, vec![output.clone()]);
        output
    }

    /// Adds a node whose results have the given names.
    pub(crate) fn emit_to(
        &mut self,
        op: &'static str,
        inputs: &[&str],
        attributes: Vec<(&'static str, OnnxAttribute)>,
        outputs: Vec<String>,
    ) {
        // The only op we use that is not in ONNX's default domain.
        let domain = (op == "LabelEncoder").then(|| ML_DOMAIN.to_owned());
        self.nodes.push(NodeProto {
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            name: Some(format!("node {}", self.nodes.len())),
            output: outputs,
            op_type: Some(op.to_owned()),
            attribute: attributes.into_iter().map(|(name, value)| attribute(name, value)).collect(),
            domain,
        });
    }

    /// Adds a node with `count` results and returns their names.
    pub(crate) fn emit_many(&mut self, op: &'static str, inputs: &[&str], count: usize) -> Vec<String> {
        let outputs: Vec<String> = (0..count).map(|_| self.unique_name(op)).collect();
        self.emit_to(op, inputs, vec![("axis", OnnxAttribute::Int(0))], outputs.clone());
        outputs
    }

    pub(crate) fn ints(&mut self, ints: &[i64]) -> String {
        self.constant(TensorProto::ints(&[ints.len()], ints.iter().copied()))
    }

    /// A small constant tensor; equal constants are written once.
    pub(crate) fn constant(&mut self, tensor: TensorProto) -> String {
        if let Some((name, _)) = self.constants.iter().find(|(_, known)| *known == tensor) {
            return name.clone();
        }
        let name = self.unique_name("constant");
        self.constants.push((name.clone(), tensor.clone()));
        self.initializers.push(TensorProto { name: Some(name.clone()), ..tensor });
        name
    }

    /// The batch row of each id of a ragged slot, computed from the row lengths.
    ///
    /// Set a mark at the end of each row (several marks where rows are empty), then count the marks up to each id: lengths 2 0 1
    /// -> ends 2 2 3 -> marks 0 0 2 1 -> rows 0 0 2.
    fn rows(&mut self, slot: Var) -> String {
        if let Some(rows) = self.rows.get(&slot) {
            return rows.clone();
        }
        let name = &self.program.variable(slot).name;
        let (ids, lengths) = (ids_name(name), lengths_name(name));
        let axis = self.constant(TensorProto::ints(&[], [0]));
        let (zero, one) = (self.ints(&[0]), self.ints(&[1]));
        let count = self.emit("Shape", &[&ids], vec![]);
        let places = self.emit("Add", &[&count, &one], vec![]);
        let none = self.emit("ConstantOfShape", &[&places], vec![("value", OnnxAttribute::IntTensor(vec![0]))]);
        let ends = self.emit("CumSum", &[&lengths, &axis], vec![]);
        let batch = self.emit("Shape", &[&lengths], vec![]);
        let ones = self.emit("ConstantOfShape", &[&batch], vec![("value", OnnxAttribute::IntTensor(vec![1]))]);
        let marks = self.emit("ScatterElements", &[&none, &ends, &ones], scatter());
        let sums = self.emit("CumSum", &[&marks, &axis], vec![]);
        let rows = self.emit("Slice", &[&sums, &zero, &count], vec![]);
        self.rows.insert(slot, rows.clone());
        rows
    }
}

/// Attributes of `ScatterElements` that add values with the same index.
fn scatter() -> Vec<(&'static str, OnnxAttribute)> {
    vec![("axis", OnnxAttribute::Int(0)), ("reduction", OnnxAttribute::Text("add"))]
}

fn attribute(name: &'static str, value: OnnxAttribute) -> AttributeProto {
    let mut proto = AttributeProto { name: Some(name.to_owned()), ..AttributeProto::default() };
    proto.kind = Some(match value {
        OnnxAttribute::Int(int) => {
            proto.i = Some(int);
            2
        }
        OnnxAttribute::Text(word) => {
            proto.s = Some(word.as_bytes().to_vec());
            3
        }
        OnnxAttribute::IntTensor(ints) => {
            proto.t = Some(TensorProto::ints(&[ints.len()], ints));
            4
        }
        OnnxAttribute::Ints(ints) => {
            proto.ints = ints;
            7
        }
    });
    proto
}

/// The op that is being written, and the graph that it writes to.
///
/// Values are referred to by name: variables keep their names, intermediate values get generated ones.
pub struct OnnxNode<'n, 'a> {
    pub(crate) graph: &'n mut OnnxGraph<'a>,
    pub(crate) node: &'a Node,
}

impl OnnxNode<'_, '_> {
    /// The number of inputs of the op.
    pub fn count(&self) -> usize {
        self.node.inputs.len()
    }

    /// The name of an input.
    pub fn input(&self, input: usize) -> String {
        self.graph.program.variable(self.node.inputs[input]).name.clone()
    }

    /// The shape of an input.
    pub fn input_shape(&self, input: usize) -> Shape {
        self.graph.program.variable(self.node.inputs[input]).shape.clone()
    }

    /// Whether an input is a ragged slot.
    pub fn is_ragged(&self, input: usize) -> bool {
        self.graph.program.variable(self.node.inputs[input]).ragged
    }

    /// The shape of an output.
    pub fn output_shape(&self, output: usize) -> Shape {
        self.graph.program.variable(self.node.outputs[output]).shape.clone()
    }

    /// The element type of an output.
    pub fn output_type(&self, output: usize) -> DType {
        self.graph.program.variable(self.node.outputs[output]).dtype
    }

    /// Adds a node with one result and returns the result's name.
    pub fn emit(
        &mut self,
        op: &'static str,
        inputs: &[&str],
        attributes: Vec<(&'static str, OnnxAttribute)>,
    ) -> String {
        self.graph.emit(op, inputs, attributes)
    }

    /// Adds a node whose result is an output of the op.
    pub fn finish(
        &mut self,
        output: usize,
        op: &'static str,
        inputs: &[&str],
        attributes: Vec<(&'static str, OnnxAttribute)>,
    ) {
        let name = self.graph.program.variable(self.node.outputs[output]).name.clone();
        self.graph.emit_to(op, inputs, attributes, vec![name]);
    }

    /// Writes the op as one node that reads all of its inputs.
    pub fn single_node(&mut self, op: &'static str, attributes: Vec<(&'static str, OnnxAttribute)>) {
        let inputs: Vec<String> = (0..self.count()).map(|input| self.input(input)).collect();
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        self.finish(0, op, &inputs, attributes);
    }

    /// Writes a value as an output, reshaped to the output's shape.
    pub fn finish_reshaped(&mut self, output: usize, value: &str) {
        let shape = dims(&self.output_shape(output));
        let shape = self.ints(&shape);
        self.finish(output, "Reshape", &[value, &shape], vec![]);
    }

    /// A constant vector of integers.
    pub fn ints(&mut self, ints: &[i64]) -> String {
        self.graph.ints(ints)
    }

    /// A constant float scalar.
    pub fn float(&mut self, float: f32) -> String {
        self.graph.constant(TensorProto::floats(&[], [float]))
    }

    /// A constant integer scalar.
    pub fn int(&mut self, int: i64) -> String {
        self.graph.constant(TensorProto::ints(&[], [int]))
    }

    /// The ids of all rows of a slot in order.
    pub fn ids(&mut self, slot: usize) -> String {
        flat_ids(self.graph, self.node.inputs[slot])
    }

    /// The number of ids in each row of a ragged slot, `[B, 1]`, as floats.
    pub fn lengths(&mut self, slot: usize) -> String {
        let lengths = lengths_name(&self.input(slot));
        let last = self.ints(&[1]);
        let column = self.emit("Unsqueeze", &[&lengths, &last], vec![]);
        self.emit("Cast", &[&column], vec![("to", OnnxAttribute::Int(1))])
    }

    /// The table row of each id of a slot, `[ids, D]`. Unknown ids get the default row.
    pub fn table_rows(&mut self, table: usize, slot: usize) -> String {
        let (table, slot) = (self.node.inputs[table], self.node.inputs[slot]);
        let index = self.graph.indexes.get(&(table, slot, self.node.salt())).cloned().unwrap_or_default();
        let table = self.graph.program.variable(table).name.clone();
        self.emit("Gather", &[&table, &index], vec![("axis", OnnxAttribute::Int(0))])
    }

    /// Sums `[ids, D]` over the ids of each batch row of a ragged slot: `[B, D]`.
    pub fn sum_by_row(&mut self, slot: usize, values: &str, dim: usize) -> String {
        let slot = self.node.inputs[slot];
        let rows = self.graph.rows(slot);
        let lengths = lengths_name(&self.graph.program.variable(slot).name);
        let dim = self.ints(&[dim as i64]);
        let (batch, shape) = (self.emit("Shape", &[&lengths], vec![]), self.emit("Shape", &[values], vec![]));
        let sizes = self.emit("Concat", &[&batch, &dim], vec![("axis", OnnxAttribute::Int(0))]);
        // Without a `value` attribute this gives float zeros.
        let zeros = self.emit("ConstantOfShape", &[&sizes], vec![]);
        let last = self.ints(&[1]);
        let column = self.emit("Unsqueeze", &[&rows, &last], vec![]);
        let places = self.emit("Expand", &[&column, &shape], vec![]);
        self.emit("ScatterElements", &[&zeros, &places, values], scatter())
    }
}

/// The ids of all rows of a slot in order, as keys of a table: salted, if there is a salt.
pub(crate) fn keys(graph: &mut OnnxGraph<'_>, slot: Var, salt: u64) -> String {
    let ids = flat_ids(graph, slot);
    if salt == 0 {
        return ids;
    }
    let salt = graph.constant(TensorProto::ints(&[], [salt as i64]));
    graph.emit("BitwiseXor", &[&ids, &salt], vec![])
}

/// The ids of all rows of a slot in order.
pub(crate) fn flat_ids(graph: &mut OnnxGraph<'_>, slot: Var) -> String {
    let variable = graph.program.variable(slot);
    if variable.ragged {
        return ids_name(&variable.name);
    }
    let (name, flat) = (variable.name.clone(), graph.ints(&[-1]));
    graph.emit("Reshape", &[&name, &flat], vec![])
}

/// A shape in the form that `Reshape` reads.
fn dims(shape: &Shape) -> Vec<i64> {
    let size = |dim: &Dim| match *dim {
        Dim::Fixed(size) => size as i64,
        Dim::PerRow(_) | Dim::Unknown => -1,
    };
    shape.0.iter().map(size).collect()
}

/// The input with the ids of a ragged slot.
pub(crate) fn ids_name(slot: &str) -> String {
    format!("{slot}.ids")
}

/// The input with the number of ids per row of a ragged slot.
pub(crate) fn lengths_name(slot: &str) -> String {
    format!("{slot}.lengths")
}
