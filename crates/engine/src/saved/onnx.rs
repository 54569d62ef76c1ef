//! Exports a saved inference model as one self-contained ONNX graph: ids in, predictions out.
//!
//! ```text
//! ids of every slot of a table -> BitwiseXor with the slot's salt, if any -> Concat -> LabelEncoder (id -> row number) -> Split -> Gather -> pooling -> ops
//! ```
//!
//! A table has one `LabelEncoder` for all of its slots, because each encoder holds all of the table's keys. Feeds keep their
//! names and shapes: floats `[batch, D]`, integers `[batch, L]`. A ragged slot becomes two inputs, as in a [`Feed`](crate::Feed):
//! `NAME.ids`, the ids of all rows in order, and `NAME.lengths` `[batch]`, the number of ids per row. Ids are `int64` in ONNX and
//! `u64` here: the same 64 bits.
//!
//! **Unknown ids.** Training draws the first values of a new row from its key, which a graph cannot do. In ONNX all unknown ids
//! share one row: the constant of the initializer if it has one, else zeros. Known ids predict as the
//! [`Predictor`](crate::Predictor) does, and so do unknown ids of tables with an admission rule (they are zeros there too). The
//! vocabulary of a table is not checked.
//!
//! Ops write their own nodes ([`Operator::onnx`](crate::op::Operator::onnx)); this file writes the tables, the graph around them
//! and the file.

use std::collections::BTreeMap;

use openfleet_dist::storage::{Addresses, Opened};
use openfleet_table::checkpoint::{Manifest, MappedTable, StateElements, Storage, read_dense, read_states};
use openfleet_table::{Accessor, Admission, Initializer, SparseSpec};
use prost::Message;

use crate::graph::onnx_builder::proto::{
    Dimension, FLOAT, GraphProto, INT64, ModelProto, OperatorSetIdProto, StringStringEntryProto, TensorProto,
    TensorShapeProto, TensorType, TypeProto, ValueInfoProto,
};
use crate::graph::onnx_builder::{ML_DOMAIN, OnnxGraph, ids_name, keys, lengths_name};
pub use crate::graph::onnx_builder::{OnnxAttribute, OnnxNode};

use crate::error::{Error, Result};
use crate::graph::op::Op;
use crate::graph::table_spec::sparse_spec;
use crate::graph::{Node, Var, Variable, VariableKind};
use crate::saved::checkpoint;
use crate::saved::inference::{self, InferenceModel};
use crate::value::{DType, Dim};

/// The ONNX file in the directory of the model.
pub const FILE: &str = "model.onnx";
/// The ONNX file of a model with pooled rows as inputs.
pub const POOLED_FILE: &str = "model.pooled.onnx";
/// The rows of large tables, in the directory of the model's other data.
const EXTERNAL_FILE: &str = "model.onnx.data";

/// The first opset with everything we use: `ScatterElements` with reduction `add`.
const OPSET: i64 = 18;
/// The first opset whose `LabelEncoder` takes tensors.
const ML_OPSET: i64 = 4;
/// The IR version of that opset.
const IR_VERSION: i64 = 8;
/// External tensors start at a multiple of this, so that they can be mapped into memory.
const ALIGNMENT: u64 = 4096;

/// The size limit of a protobuf file.
const LARGEST_FILE: u64 = i32::MAX as u64;

/// Options of the export.
#[derive(Debug, Clone, Copy)]
pub struct OnnxOptions {
    /// If the rows of all tables take more bytes than this, they go into a separate file; `model.onnx` itself cannot exceed 2 GB.
    pub inline_bytes: u64,
    /// For callers that store the rows elsewhere: the graph has no tables, and pooled rows replace ids as inputs, each under the
    /// name of its variable. The metadata `openfleet.pooled.VARIABLE` names the slot and the table, and `openfleet.salt.VARIABLE`
    /// the salt of the ids, if there is one. The file is [`POOLED_FILE`].
    pub pooled_inputs: bool,
}

impl Default for OnnxOptions {
    fn default() -> Self {
        OnnxOptions { inline_bytes: 256 << 20, pooled_inputs: false }
    }
}

/// Writes `model.onnx` next to the inference model at an address, replacing an existing one. Fails before anything is written if
/// an op has no ONNX form.
///
/// The file belongs to the model as it is now: saving another model at the address removes it.
pub fn write(address: &str, options: &OnnxOptions) -> Result<()> {
    let opened = Opened::new(&Addresses, address, "reading")?;
    let model = inference::model_in_manifest(&opened.manifest, address)?;
    opened.read(|_, manifest| checkpoint::check(&model.program, manifest))?;
    let (storage, manifest) = (opened.storage.as_ref(), &opened.manifest);
    OnnxExport { address, storage, manifest, model: &model }.write(options)
}

struct OnnxExport<'a> {
    address: &'a str,
    storage: &'a dyn Storage,
    manifest: &'a Manifest,
    model: &'a InferenceModel,
}

impl OnnxExport<'_> {
    fn write(&self, options: &OnnxOptions) -> Result<()> {
        let program = &self.model.program;
        let mut graph = OnnxGraph::new(program);
        let tables = if options.pooled_inputs { Vec::new() } else { self.tables()? };
        // Each key takes 8 bytes and its row number another 8. Both must be inside the file.
        let keys: u64 = tables.iter().map(|table| 16 * table.rows.len() as u64).sum();
        if keys > LARGEST_FILE {
            return Err(Error::Input {
                op: "onnx",
                expected: format!("at most {} rows, because an ONNX file holds all keys", LARGEST_FILE / 16),
                got: format!("{} rows", keys / 16),
            });
        }
        // Write the ops first, so that an op without an ONNX form is found before anything is written.
        index_tables(&mut graph, &tables);
        let is_pooled = |node: &&Node| options.pooled_inputs && matches!(node.op, Op::Embedding(_));
        let pooled_nodes: Vec<&Node> = program.nodes().iter().filter(is_pooled).collect();
        for node in program.nodes().iter().filter(|node| !is_pooled(node)) {
            node.op.operator().onnx(&mut OnnxNode { graph: &mut graph, node })?;
        }
        self.add_values(&mut graph)?;
        let bytes: u64 = tables.iter().map(|table| table.bytes()).sum();
        let rows = match bytes > options.inline_bytes.min(LARGEST_FILE / 2) {
            true => self.external_rows(&tables)?,
            false => tables.iter().map(ExportedTable::inline_rows).collect(),
        };
        graph.initializers.extend(rows);
        let fed = self.model.feeds.iter().map(|name| program.find(name)).collect::<Result<Vec<_>>>()?;
        // Ids that were only used for lookups are then no inputs.
        let read = |var: &Var| {
            let reads = |node: &Node| node.inputs.contains(var) && !pooled_nodes.contains(&node);
            program.nodes().iter().any(reads) || self.model.targets.contains(var)
        };
        let fed = fed.into_iter().filter(|var| pooled_nodes.is_empty() || read(var));
        let pooled_rows = pooled_nodes.iter().map(|node| node.outputs[0]);
        let inputs = fed.chain(pooled_rows).flat_map(|var| inputs_of(program.variable(var)));
        let outputs = self.model.targets.iter().map(|&target| {
            let variable = program.variable(target);
            value(&variable.name, variable, variable.shape.0.iter().map(dimension).collect())
        });
        let graph = GraphProto {
            name: Some("openfleet".into()),
            input: inputs.collect(),
            output: outputs.collect(),
            node: graph.nodes,
            initializer: graph.initializers,
        };
        let name = |var: Var| program.variable(var).name.as_str();
        let mut metadata_props = vec![StringStringEntryProto::new("openfleet.model", &self.manifest.id)];
        metadata_props.extend(pooled_nodes.iter().map(|node| {
            let (slot, table) = (name(node.inputs[0]), name(node.inputs[1]));
            StringStringEntryProto::new(
                &format!("openfleet.pooled.{}", name(node.outputs[0])),
                format!("{slot} of {table}"),
            )
        }));
        metadata_props.extend(pooled_nodes.iter().filter_map(|node| {
            let salt = node.op.operator().salt()?;
            Some(StringStringEntryProto::new(&format!("openfleet.salt.{}", name(node.outputs[0])), salt))
        }));
        let set = |domain: &str, version| OperatorSetIdProto { domain: Some(domain.into()), version: Some(version) };
        let model = ModelProto {
            ir_version: Some(IR_VERSION),
            producer_name: Some("openfleet".into()),
            producer_version: Some(env!("CARGO_PKG_VERSION").into()),
            graph: Some(graph),
            opset_import: vec![set("", OPSET), set(ML_DOMAIN, ML_OPSET)],
            metadata_props,
        };
        self.save(if options.pooled_inputs { POOLED_FILE } else { FILE }, |sink| sink.write_all(&model.encode_to_vec()))
    }

    /// The sparse tables of the program, with their rows.
    fn tables(&self) -> Result<Vec<ExportedTable>> {
        let program = &self.model.program;
        let open = |(var, variable): (Var, &Variable)| {
            let (spec, saved) =
                (sparse_spec(program, var)?, self.manifest.sparse.iter().find(|saved| saved.name == variable.name)?);
            let default = default_row(&spec);
            let rows = MappedTable::open(self.storage, self.manifest, saved, spec);
            let rows = rows.map_err(|source| Error::checkpoint("reading", self.address, source));
            Some(rows.map(|rows| ExportedTable { var, name: variable.name.clone(), rows, default }))
        };
        program.persistables().filter_map(open).collect()
    }

    /// Adds dense parameters and states as initializers.
    fn add_values(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let failed = |source| Error::checkpoint("reading", self.address, source);
        let mut dense = read_dense(self.storage, self.manifest).map_err(failed)?;
        let mut states = read_states(self.storage, self.manifest).map_err(failed)?;
        for (_, variable) in self.model.program.persistables() {
            let dims = variable.shape.sizes(0);
            let tensor = match &variable.kind {
                VariableKind::Parameter(_) => {
                    dense.remove(&variable.name).map(|value| TensorProto::floats(&dims, value.values))
                }
                VariableKind::State => states.remove(&variable.name).map(|value| match value.elements {
                    StateElements::F32(floats) => TensorProto::floats(&dims, floats),
                    StateElements::I64(ints) => TensorProto::ints(&dims, ints),
                }),
                _ => None,
            };
            graph.initializers.extend(tensor.map(|tensor| TensorProto { name: Some(variable.name.clone()), ..tensor }));
        }
        Ok(())
    }

    /// Writes the rows of all tables to one file and returns tensors that refer to it.
    fn external_rows(&self, tables: &[ExportedTable]) -> Result<Vec<TensorProto>> {
        let path = format!("{}/{EXTERNAL_FILE}", self.manifest.directory);
        let mut tensors = Vec::new();
        self.save(&path, |sink| {
            let mut position: u64 = 0;
            for table in tables {
                let padding = position.next_multiple_of(ALIGNMENT) - position;
                sink.write_all(&vec![0; padding as usize])?;
                position += padding;
                let (mut failed, mut bytes) = (Ok(()), Vec::new());
                table.each_row(|row| {
                    bytes.extend(row.iter().flat_map(|float| float.to_le_bytes()));
                    if bytes.len() >= 1 << 20 && failed.is_ok() {
                        failed = sink.write_all(&bytes);
                        bytes.clear();
                    }
                });
                failed?;
                sink.write_all(&bytes)?;
                tensors.push(TensorProto {
                    name: Some(table.name.clone()),
                    dims: table.dims().map(|dim| dim as i64).to_vec(),
                    data_type: Some(FLOAT),
                    data_location: Some(1),
                    external_data: vec![
                        StringStringEntryProto::new("location", &path),
                        StringStringEntryProto::new("offset", position),
                        StringStringEntryProto::new("length", table.bytes()),
                    ],
                    ..TensorProto::default()
                });
                position += table.bytes();
            }
            Ok(())
        })?;
        Ok(tensors)
    }

    /// Writes a file under another name and then renames it, so that readers find either the old file or the new one.
    fn save(&self, path: &str, write: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>) -> Result<()> {
        let saving = format!("{path}.saving");
        let written = self.storage.create(&saving).and_then(|mut sink| {
            write(&mut sink)?;
            sink.sync()?;
            self.storage.rename(&saving, path)
        });
        let written = written.map_err(openfleet_table::Error::storage("write", path));
        written.map_err(|source| Error::checkpoint("writing an ONNX model to", self.address, source))
    }
}

/// A sparse table, followed by its default row.
struct ExportedTable {
    var: Var,
    name: String,
    rows: MappedTable,
    default: Vec<f32>,
}

impl ExportedTable {
    fn dims(&self) -> [usize; 2] {
        [self.rows.len() + 1, self.rows.dim()]
    }

    fn bytes(&self) -> u64 {
        4 * self.dims().map(|dim| dim as u64).iter().product::<u64>()
    }

    fn each_row(&self, mut look: impl FnMut(&[f32])) {
        self.rows.for_each(|_, weights| look(weights));
        look(&self.default);
    }

    fn inline_rows(&self) -> TensorProto {
        let mut bytes = Vec::with_capacity(self.bytes() as usize);
        self.each_row(|row| bytes.extend(row.iter().flat_map(|float| float.to_le_bytes())));
        TensorProto { name: Some(self.name.clone()), ..TensorProto::raw(&self.dims(), FLOAT, bytes) }
    }
}

/// The row of all unknown ids: their first values if these are the same for all ids, else zeros.
fn default_row(spec: &SparseSpec) -> Vec<f32> {
    let all = matches!(spec.admission, Admission::All | Admission::Count(0 | 1));
    match spec.initializer {
        Initializer::Constant(value) if all && spec.accessor == Accessor::Plain => vec![value; spec.dim],
        _ => vec![0.0; spec.dim],
    }
}

/// Adds the nodes that map the ids of all slots of a table to row numbers.
fn index_tables(graph: &mut OnnxGraph<'_>, tables: &[ExportedTable]) {
    let mut slots: BTreeMap<Var, Vec<(Var, u64)>> = BTreeMap::new();
    for node in graph.program.nodes() {
        for &(table, slot) in node.op.operator().lookups() {
            let slots = slots.entry(node.inputs[table]).or_default();
            let slot = (node.inputs[slot], node.salt());
            if !slots.contains(&slot) {
                slots.push(slot);
            }
        }
    }
    for table in tables {
        let Some(slots) = slots.get(&table.var) else { continue };
        let ids: Vec<String> = slots.iter().map(|&(slot, salt)| keys(graph, slot, salt)).collect();
        let sizes: Vec<String> = ids.iter().map(|ids| graph.emit("Shape", &[ids], vec![])).collect();
        let joined = |names: &[String], graph: &mut OnnxGraph<'_>| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            graph.emit("Concat", &names, vec![("axis", OnnxAttribute::Int(0))])
        };
        let (ids, sizes) = (joined(&ids, graph), joined(&sizes, graph));
        let default = table.rows.len() as i64;
        let mut keys = Vec::with_capacity(table.rows.len());
        table.rows.for_each(|key, _| keys.push(key as i64));
        let mut numbers: Vec<i64> = (0..default).collect();
        if keys.is_empty() {
            // An empty `LabelEncoder` is invalid, so add one id that maps to the default row, like all others.
            keys.push(0);
            numbers.push(default);
        }
        let attributes = vec![
            ("keys_tensor", OnnxAttribute::IntTensor(keys)),
            ("values_tensor", OnnxAttribute::IntTensor(numbers)),
            ("default_tensor", OnnxAttribute::IntTensor(vec![default])),
        ];
        let numbers = graph.emit("LabelEncoder", &[&ids], attributes);
        let indexes = graph.emit_many("Split", &[&numbers, &sizes], slots.len());
        graph.indexes.extend(slots.iter().map(|&(slot, salt)| (table.var, slot, salt)).zip(indexes));
    }
}

/// The graph inputs of a data variable.
fn inputs_of(variable: &Variable) -> Vec<ValueInfoProto> {
    let name = &variable.name;
    if !variable.ragged {
        return vec![value(name, variable, variable.shape.0.iter().map(dimension).collect())];
    }
    let symbol = |symbol: String| Dimension { dim_value: None, dim_param: Some(symbol) };
    vec![
        value(&ids_name(name), variable, vec![symbol(format!("ids of {name}"))]),
        value(&lengths_name(name), variable, vec![symbol(BATCH.to_owned())]),
    ]
}

const BATCH: &str = "batch";

fn dimension(dim: &Dim) -> Dimension {
    match *dim {
        Dim::Fixed(size) => Dimension { dim_value: Some(size as i64), dim_param: None },
        Dim::Unknown => Dimension { dim_value: None, dim_param: None },
        Dim::PerRow(1) => Dimension { dim_value: None, dim_param: Some(BATCH.to_owned()) },
        Dim::PerRow(each) => Dimension { dim_value: None, dim_param: Some(format!("{each} {BATCH}")) },
    }
}

fn value(name: &str, variable: &Variable, dims: Vec<Dimension>) -> ValueInfoProto {
    let elem_type = if variable.dtype == DType::I64 { INT64 } else { FLOAT };
    let shape = TensorShapeProto { dim: dims };
    let tensor_type = TensorType { elem_type: Some(elem_type), shape: Some(shape) };
    ValueInfoProto { name: Some(name.to_owned()), kind: Some(TypeProto { tensor_type: Some(tensor_type) }) }
}
