//! A tensor filled with one number, without inputs.

use serde::{Deserialize, Serialize};

use super::size_inputs::{Size, SizeInputs};
use super::{Operator, Signature};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Shape};

/// One number in every element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Constant {
    /// The shape.
    pub shape: Shape,
    /// The number.
    pub value: ConstantValue,
    /// Which sizes are the values of inputs. If there are inputs but no sizes, the shape is that of the input.
    #[serde(default, skip_serializing_if = "SizeInputs::is_empty")]
    sizes: SizeInputs,
}

/// A float or an integer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum ConstantValue {
    /// A float.
    F32(f32),
    /// An integer.
    I64(i64),
}

impl From<f32> for ConstantValue {
    fn from(value: f32) -> Self {
        ConstantValue::F32(value)
    }
}

impl From<i64> for ConstantValue {
    fn from(value: i64) -> Self {
        ConstantValue::I64(value)
    }
}

impl Net {
    /// A tensor filled with one number, an `f32` or an `i64`; -1 in `dims` is the batch. No gradient flows into it.
    pub fn fill_constant(&mut self, dims: &[i64], value: impl Into<ConstantValue>) -> Result<Var> {
        self.fill_sizes(&dims.iter().map(|&size| Size::Known(size)).collect::<Vec<_>>(), value)
    }

    /// The same with sizes of which some are the values of variables.
    pub fn fill_sizes(&mut self, dims: &[Size], value: impl Into<ConstantValue>) -> Result<Var> {
        let (list, sizes, inputs) = SizeInputs::split_sizes(dims);
        let op = Constant { shape: sizes.shape(&list), value: value.into(), sizes };
        self.append_one("fill_constant", op, &inputs)
    }

    /// One number in the shape of another variable.
    pub fn fill_like(&mut self, like: Var, value: impl Into<ConstantValue>) -> Result<Var> {
        let shape = self.shape(like).clone();
        let inputs: &[Var] = if shape.has_unknown() { &[like] } else { &[] };
        let op = Constant { shape, value: value.into(), sizes: SizeInputs::default() };
        self.append_one("fill_constant", op, inputs)
    }
}

impl Constant {
    fn signature(&self, shape: Shape) -> Signature {
        let dtype = match self.value {
            ConstantValue::F32(_) => DType::F32,
            ConstantValue::I64(_) => DType::I64,
        };
        Signature { dtype, ..Signature::float(shape) }
    }
}

impl Operator for Constant {
    fn name(&self) -> &'static str {
        "fill_constant"
    }

    fn infer(&self, _: &[Signature]) -> Result<Vec<Signature>> {
        Ok(vec![self.signature(self.shape.clone())])
    }

    fn infer_at_run(&self, inputs: &[Signature], values: &Inputs<'_>) -> Result<Vec<Signature>> {
        let shape = match inputs {
            [like] if self.sizes.is_empty() => like.shape.clone(),
            _ => self.sizes.shape_at_run(self.name(), &self.shape, values)?,
        };
        Ok(vec![self.signature(shape)])
    }

    fn is_sized_by(&self, _: usize) -> bool {
        !self.sizes.is_empty()
    }

    fn has_gradient(&self, _: usize) -> bool {
        false
    }

    fn forward(&self, _: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        match self.value {
            ConstantValue::F32(value) => outputs.floats(0).fill(value),
            ConstantValue::I64(value) => outputs.ints(0).fill(value as u64),
        }
        Ok(())
    }

    fn backward(&self, _: &Inputs<'_>, _: &mut Gradients<'_>) -> Result<()> {
        Ok(())
    }
}
