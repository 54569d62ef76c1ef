//! Rows of a sparse table, pooled over the ids of a slot.
//!
//! Each row was pulled once before the step began; this op only gathers the rows and sums their gradients. A batch row without
//! ids gives zeros.
//!
//! B rows, D dim; the ids of row r are `offsets[r]..offsets[r + 1]`.

use openfleet_table::Initializer;
use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expected};
use crate::error::Result;
use crate::graph::{Net, ParamAttr, RowLife, Var};
use crate::graph::onnx_builder::{OnnxAttribute, OnnxNode};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Dim, Shape};

/// How the rows of several ids are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Pooling {
    /// Their sum.
    #[default]
    Sum,
    /// Their mean.
    Mean,
    /// Their sum divided by the square root of their number.
    Sqrtn,
    /// Not combined: slots of a fixed length L give [B, L, D], other slots [N, D] for N ids in all rows.
    Each,
}

impl Pooling {
    fn factor(self, count: usize) -> f32 {
        match self {
            Pooling::Sum | Pooling::Each => 1.0,
            Pooling::Mean => 1.0 / count.max(1) as f32,
            Pooling::Sqrtn => 1.0 / (count.max(1) as f32).sqrt(),
        }
    }
}

/// Rows of a sparse table, pooled. Inputs: slot, table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Embedding {
    /// How the rows of several ids are combined.
    pub pooling: Pooling,
    /// D.
    pub dim: usize,
    /// An id that counts as absent: zeros if rows are not combined, skipped if they are pooled. It is not trained.
    #[serde(default)]
    pub padding: Option<u64>,
    /// The salt of the ids: rows are those of `id ^ salt`. Absent in programs that were saved before salts existed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub salt: Option<String>,
}

/// Options of an embedding.
#[derive(Debug, Clone, Default)]
pub struct EmbeddingOptions {
    /// The table. Give it a name to share it between slots. First values are uniform in ±1/sqrt(dim) by default.
    pub table: ParamAttr,
    /// How the rows of several ids are combined.
    pub pooling: Pooling,
    /// Ids must be below this; `None` accepts any 64-bit id.
    pub vocabulary: Option<u64>,
    /// Which ids get a row, for how long, and how its weights are stored.
    pub rows: RowLife,
    /// An id that counts as absent; a negative one counts from the end of the vocabulary, if there is one.
    pub padding_idx: Option<i64>,
    /// Salts the ids, usually with the slot's name: slots that share a table then share no rows, even if their ids are equal.
    /// With `None`, equal ids are one feature.
    pub salt: Option<String>,
}

impl Net {
    /// Looks a slot up in a sparse table with rows of `dim` floats; the table grows as ids are seen.
    pub fn embedding(&mut self, slot: Var, dim: usize, options: &EmbeddingOptions) -> Result<Var> {
        let padding = match (options.padding_idx, options.vocabulary) {
            (None, _) => None,
            (Some(id), None) => Some(id as u64),
            (Some(id), Some(rows)) => {
                let resolved = if id < 0 { id.saturating_add_unsigned(rows) } else { id };
                match u64::try_from(resolved) {
                    Ok(resolved) if resolved < rows => Some(resolved),
                    _ => return expected("embedding", format!("`padding_idx` among {rows} rows"), id),
                }
            }
        };
        let layer = self.unique_name("embedding");
        let range = 1.0 / (dim.max(1) as f32).sqrt();
        let table = self.sparse_table(
            &format!("{layer}.w"),
            dim,
            options.vocabulary,
            &options.table,
            Initializer::Uniform { low: -range, high: range },
            &options.rows,
        )?;
        let salt = options.salt.clone();
        let rows = self.append_one(&layer, Embedding { pooling: options.pooling, dim, padding, salt }, &[slot, table])?;
        self.join_rows_of(slot, rows, options.pooling)
    }

    /// Says that the rows that are not pooled belong to the rows of a slot.
    pub(super) fn join_rows_of(&mut self, slot: Var, rows: Var, pooling: Pooling) -> Result<Var> {
        if pooling == Pooling::Each && self.main.variable(slot).ragged {
            let lengths = self.lengths(slot)?;
            self.main.set_lengths(rows, lengths);
        }
        Ok(rows)
    }
}

impl Embedding {
    #[inline(always)]
    fn is_padding(&self, id: u64) -> bool {
        self.padding == Some(id)
    }

    /// The number of ids that are pooled.
    fn count(&self, ids: &[u64]) -> usize {
        match self.padding {
            None => ids.len(),
            Some(padding) => ids.iter().filter(|&&id| id != padding).count(),
        }
    }
}

impl Operator for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        let slot = &inputs[0];
        if slot.dtype != DType::I64 {
            return expected(self.name(), "a slot of integer ids", format!("floats of shape {}", slot.shape));
        }
        if self.pooling != Pooling::Each {
            return Ok(vec![Signature::float(Shape(vec![slot.shape.0[0], Dim::Fixed(self.dim)]))]);
        }
        let mut dims = if slot.ragged { vec![Dim::Unknown] } else { slot.shape.0.clone() };
        dims.push(Dim::Fixed(self.dim));
        Ok(vec![Signature::float(Shape(dims))])
    }

    fn infer_at_run(&self, inputs: &[Signature], values: &Inputs<'_>) -> Result<Vec<Signature>> {
        match self.pooling == Pooling::Each && inputs[0].ragged {
            true => Ok(vec![Signature::float(Shape::fixed(&[values.ids(0).keys.len(), self.dim]))]),
            false => self.infer(inputs),
        }
    }

    fn is_sized_by(&self, input: usize) -> bool {
        input == 0 && self.pooling == Pooling::Each
    }

    fn lookups(&self) -> &'static [(usize, usize)] {
        &[(1, 0)]
    }

    fn salt(&self) -> Option<&str> {
        self.salt.as_deref()
    }

    fn has_gradient(&self, input: usize) -> bool {
        input == 1
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (ids, view) = (inputs.ids(0), inputs.table(1, 0));
        let (d, out) = (self.dim, outputs.floats(0));
        let row = |i: usize| &view.rows[view.inverse[i] as usize * d..][..d];
        if self.pooling == Pooling::Each {
            for (i, out) in out.chunks_exact_mut(d).enumerate() {
                match self.is_padding(ids.keys[i]) {
                    true => out.fill(0.0),
                    false => out.copy_from_slice(row(i)),
                }
            }
            return Ok(());
        }
        for (bounds, out) in ids.offsets.windows(2).zip(out.chunks_exact_mut(d)) {
            let range = bounds[0] as usize..bounds[1] as usize;
            match range.len() {
                0 => out.fill(0.0),
                1 if self.padding.is_none() => out.copy_from_slice(row(range.start)),
                _ => {
                    out.fill(0.0);
                    let count = self.count(&ids.keys[range.clone()]);
                    for i in range.filter(|&i| !self.is_padding(ids.keys[i])) {
                        out.iter_mut().zip(row(i)).for_each(|(o, v)| *o += v);
                    }
                    let factor = self.pooling.factor(count);
                    if factor != 1.0 {
                        out.iter_mut().for_each(|o| *o *= factor);
                    }
                }
            }
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let Some(gradient) = gradients.of(1) else { return Ok(()) };
        let (ids, view) = (inputs.ids(0), inputs.table(1, 0));
        let (d, out_gradient) = (self.dim, inputs.output_gradient(0));
        let rows = gradient.accumulate();
        let mut add = |i: usize, factor: f32, from: &[f32]| {
            let row = &mut rows[view.inverse[i] as usize * d..][..d];
            row.iter_mut().zip(from).for_each(|(r, g)| *r += factor * g);
        };
        if self.pooling == Pooling::Each {
            for (i, from) in out_gradient.chunks_exact(d).enumerate().filter(|&(i, _)| !self.is_padding(ids.keys[i])) {
                add(i, 1.0, from);
            }
            return Ok(());
        }
        for (bounds, from) in ids.offsets.windows(2).zip(out_gradient.chunks_exact(d)) {
            let range = bounds[0] as usize..bounds[1] as usize;
            let factor = self.pooling.factor(self.count(&ids.keys[range.clone()]));
            for i in range.filter(|&i| !self.is_padding(ids.keys[i])) {
                add(i, factor, from);
            }
        }
        Ok(())
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        let rows = node.table_rows(1, 0);
        onnx_pooled(node, rows, self.dim, self.pooling, self.padding);
        Ok(())
    }
}

/// The ONNX form of pooling for both kinds of embedding, from the rows of the ids of input 0, `[ids, dim]`.
pub(super) fn onnx_pooled(
    node: &mut OnnxNode<'_, '_>,
    mut rows: String,
    dim: usize,
    pooling: Pooling,
    padding: Option<u64>,
) {
    // 1 for ids that count and 0 for padding, if there is padding: [ids, 1].
    let counted = padding.map(|padding| {
        let (ids, padding, last) = (node.ids(0), node.int(padding as i64), node.ints(&[1]));
        let is_padding = node.emit("Equal", &[&ids, &padding], vec![]);
        let counts = node.emit("Not", &[&is_padding], vec![]);
        let counts = node.emit("Cast", &[&counts], vec![("to", OnnxAttribute::Int(1))]);
        node.emit("Unsqueeze", &[&counts, &last], vec![])
    });
    if let Some(counted) = &counted {
        rows = node.emit("Mul", &[&rows, counted], vec![]);
    }
    if pooling == Pooling::Each {
        match node.is_ragged(0) {
            true => node.finish(0, "Identity", &[&rows], vec![]),
            false => node.finish_reshaped(0, &rows),
        }
        return;
    }
    let ragged = node.is_ragged(0);
    let length = node.input_shape(0).0[1..].iter().map(|dim| dim.size(1)).product::<usize>();
    let sum = |node: &mut OnnxNode<'_, '_>, values: &str, width: usize| {
        if ragged {
            return node.sum_by_row(0, values, width);
        }
        let (shape, last) = (node.ints(&[-1, length as i64, width as i64]), node.ints(&[1]));
        let by_row = node.emit("Reshape", &[values, &shape], vec![]);
        node.emit("ReduceSum", &[&by_row, &last], vec![("keepdims", OnnxAttribute::Int(0))])
    };
    let sums = sum(node, &rows, dim);
    if pooling == Pooling::Sum {
        node.finish(0, "Identity", &[&sums], vec![]);
        return;
    }
    // The number of ids per row, at least 1.
    let counts = match (counted, ragged) {
        (Some(counted), _) => sum(node, &counted, 1),
        (None, true) => node.lengths(0),
        (None, false) => node.float(length as f32),
    };
    let one = node.float(1.0);
    let mut divisor = node.emit("Max", &[&counts, &one], vec![]);
    if pooling == Pooling::Sqrtn {
        divisor = node.emit("Sqrt", &[&divisor], vec![]);
    }
    node.finish(0, "Div", &[&sums, &divisor], vec![]);
}
