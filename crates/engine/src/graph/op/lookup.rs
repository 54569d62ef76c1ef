//! Rows of a dense parameter, by id: an embedding that is small enough to be a dense parameter.
//!
//! The sparse counterpart is `embedding`, whose rows are pulled one by one and whose table grows; here all V rows are in memory,
//! and so is a gradient of V rows. A batch row without ids gives zeros.
//!
//! V rows of D floats; the ids of a batch row are pooled, or each gives a row of its own.

use std::ops::Range;

use openfleet_table::Initializer;
use serde::{Deserialize, Serialize};

use super::class_labels::row_of;
use super::embedding::onnx_pooled;
use super::{Operator, Pooling, Signature, expected, shapes};
use crate::kernel;
use crate::error::{Error, Result};
use crate::graph::{Net, ParamAttr, Var};
use crate::graph::onnx_builder::{OnnxAttribute, OnnxNode};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Dim, Shape};

/// Rows of a dense parameter, by id. Inputs: ids, the parameter [V, D].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lookup {
    /// How the rows of several ids are combined.
    pub pooling: Pooling,
    /// An id that counts as absent: zeros if rows are not combined, skipped if they are pooled. It is not trained.
    pub padding: Option<u64>,
    /// Whether rows can have any number of ids.
    ragged: bool,
    /// The name of the ids, for error messages.
    slot: String,
}

/// Options of a dense embedding.
#[derive(Debug, Clone, Default)]
pub struct DenseEmbeddingOptions {
    /// The parameter. Give it a name to share it between slots. Xavier by default.
    pub table: ParamAttr,
    /// How the rows of several ids are combined.
    pub pooling: Pooling,
    /// An id that counts as absent; a negative one counts from the end of the rows.
    pub padding_idx: Option<i64>,
}

impl Net {
    /// Looks ids up in a dense parameter of `[V, D]` floats. With pooling, any slot gives `[B, D]`; with [`Pooling::Each`],
    /// integers of a fixed shape give that shape followed by D, and a slot `[N, D]` for N ids in all rows.
    pub fn dense_embedding(&mut self, ids: Var, size: [usize; 2], options: &DenseEmbeddingOptions) -> Result<Var> {
        let padding = match options.padding_idx {
            None => None,
            Some(id) => {
                let resolved = if id < 0 { id.saturating_add_unsigned(size[0] as u64) } else { id };
                match u64::try_from(resolved) {
                    Ok(resolved) if resolved < size[0] as u64 => Some(resolved),
                    _ => return expected("dense_embedding", format!("`padding_idx` among {} rows", size[0]), id),
                }
            }
        };
        let layer = self.unique_name("embedding");
        let xavier = Initializer::Xavier { uniform: true, fan_in: None, fan_out: None };
        let table = self.parameter(&format!("{layer}.w"), &size, &options.table, xavier)?;
        let variable = self.main.variable(ids);
        let (ragged, slot) = (variable.ragged, variable.name.clone());
        let rows = self.append_one(&layer, Lookup { pooling: options.pooling, padding, ragged, slot }, &[ids, table])?;
        self.join_rows_of(ids, rows, options.pooling)
    }
}

impl Lookup {
    /// The ids of all rows.
    fn ids<'a>(&self, inputs: &Inputs<'a>) -> &'a [u64] {
        if self.ragged { inputs.ids(0).keys } else { inputs.ints(0) }
    }

    /// Calls `visit` with each row of the output and its ids.
    fn each_row(&self, inputs: &Inputs<'_>, mut visit: impl FnMut(usize, Range<usize>)) {
        if self.ragged && self.pooling != Pooling::Each {
            for (row, bounds) in inputs.ids(0).offsets.windows(2).enumerate() {
                visit(row, bounds[0] as usize..bounds[1] as usize);
            }
            return;
        }
        if self.pooling == Pooling::Each {
            return (0..self.ids(inputs).len()).for_each(|row| visit(row, row..row + 1));
        }
        let (rows, length) = (inputs.size(0, 0), inputs.extent(0, 1..inputs.rank(0)));
        (0..rows).for_each(|row| visit(row, row * length..(row + 1) * length));
    }

    /// The factor of each row when these ids are pooled.
    fn factor(&self, ids: &[u64]) -> f32 {
        let count = ids.iter().filter(|&&id| Some(id) != self.padding).count().max(1) as f32;
        match self.pooling {
            Pooling::Sum | Pooling::Each => 1.0,
            Pooling::Mean => 1.0 / count,
            Pooling::Sqrtn => 1.0 / count.sqrt(),
        }
    }

    /// Fails if an id has no row.
    fn check(&self, inputs: &Inputs<'_>) -> Result<()> {
        let (ids, rows) = (self.ids(inputs), inputs.size(1, 0));
        match ids.iter().position(|&id| id >= rows as u64) {
            None => Ok(()),
            Some(at) => Err(Error::Value {
                op: self.name(),
                what: format!("an id of slot `{}`", self.slot),
                expected: format!("below the number of rows {rows}"),
                got: (ids[at] as i64).to_string(),
                row: match self.ragged {
                    true => inputs.ids(0).offsets.partition_point(|&end| end as usize <= at).saturating_sub(1),
                    false => row_of(inputs, at, ids.len()),
                },
            }),
        }
    }
}

impl Operator for Lookup {
    fn name(&self) -> &'static str {
        "dense_embedding"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        let (ids, table) = (&inputs[0], &inputs[1]);
        if ids.dtype != DType::I64 {
            return expected(self.name(), "integer ids", format!("floats of shape {}", ids.shape));
        }
        let &[Dim::Fixed(_), dim @ Dim::Fixed(1..)] = table.shape.0.as_slice() else {
            return expected(self.name(), "ids and a parameter [V, D]", shapes(inputs));
        };
        let mut dims = ids.shape.0.clone();
        match (self.pooling, ids.ragged) {
            (Pooling::Each, true) => dims = vec![Dim::Unknown, dim],
            (Pooling::Each, false) => dims.push(dim),
            _ => {
                dims.truncate(1);
                dims.push(dim);
            }
        }
        Ok(vec![Signature::float(Shape(dims))])
    }

    fn infer_at_run(&self, inputs: &[Signature], values: &Inputs<'_>) -> Result<Vec<Signature>> {
        match self.pooling == Pooling::Each && inputs[0].ragged {
            true => {
                let rows = Dim::Fixed(values.ids(0).keys.len());
                Ok(vec![Signature::float(Shape(vec![rows, inputs[1].shape.0[1]]))])
            }
            false => self.infer(inputs),
        }
    }

    fn is_sized_by(&self, input: usize) -> bool {
        input == 0 && self.pooling == Pooling::Each && self.ragged
    }

    fn has_gradient(&self, input: usize) -> bool {
        input == 1
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        self.check(inputs)?;
        let (ids, table, d) = (self.ids(inputs), inputs.floats(1), inputs.size(1, 1));
        let out = outputs.floats(0);
        self.each_row(inputs, |row, ids_of_row| {
            let (out, ids) = (&mut out[row * d..][..d], &ids[ids_of_row]);
            out.fill(0.0);
            for &id in ids.iter().filter(|&&id| Some(id) != self.padding) {
                kernel::add(&table[id as usize * d..][..d], out);
            }
            let factor = self.factor(ids);
            if factor != 1.0 {
                out.iter_mut().for_each(|out| *out *= factor);
            }
        });
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let Some(gradient) = gradients.of(1) else { return Ok(()) };
        let (ids, dy, d) = (self.ids(inputs), inputs.output_gradient(0), inputs.size(1, 1));
        let rows = gradient.accumulate();
        self.each_row(inputs, |row, ids_of_row| {
            let (dy, ids) = (&dy[row * d..][..d], &ids[ids_of_row]);
            let factor = self.factor(ids);
            for &id in ids.iter().filter(|&&id| Some(id) != self.padding) {
                kernel::add_scaled(factor, dy, &mut rows[id as usize * d..][..d]);
            }
        });
        Ok(())
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        let (ids, table) = (node.ids(0), node.input(1));
        let rows = node.emit("Gather", &[&table, &ids], vec![("axis", OnnxAttribute::Int(0))]);
        let dim = node.input_shape(1).columns().unwrap_or(1);
        onnx_pooled(node, rows, dim, self.pooling, self.padding);
        Ok(())
    }
}
