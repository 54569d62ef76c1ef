//! A tensor filled with one number, without inputs.

use serde::{Deserialize, Serialize};

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
        let op = Constant { shape: Shape::of(dims), value: value.into() };
        self.append_one("fill_constant", op, &[])
    }

    /// One number in the shape of another variable.
    pub fn fill_like(&mut self, like: Var, value: impl Into<ConstantValue>) -> Result<Var> {
        let op = Constant { shape: self.shape(like).clone(), value: value.into() };
        self.append_one("fill_constant", op, &[])
    }
}

impl Operator for Constant {
    fn name(&self) -> &'static str {
        "fill_constant"
    }

    fn infer(&self, _: &[Signature]) -> Result<Vec<Signature>> {
        let dtype = match self.value {
            ConstantValue::F32(_) => DType::F32,
            ConstantValue::I64(_) => DType::I64,
        };
        Ok(vec![Signature { dtype, ..Signature::float(self.shape.clone()) }])
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
