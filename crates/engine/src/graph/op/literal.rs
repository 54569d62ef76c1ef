//! A tensor of given numbers, without inputs: PaddlePaddle's `to_tensor`, `arange` and the masks of `tril` and `triu`.
//!
//! The numbers are stored in the program, so this is for small tensors; use parameters for large ones.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expected};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Shape};

/// A constant tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Literal {
    /// The dimensions.
    pub dims: Vec<usize>,
    /// The numbers in row-major order.
    pub values: LiteralValues,
}

/// The numbers of a constant tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum LiteralValues {
    /// Floats.
    F32(Vec<f32>),
    /// Integers.
    I64(Vec<i64>),
    /// Booleans.
    Bool(Vec<bool>),
}

impl LiteralValues {
    fn len(&self) -> usize {
        match self {
            LiteralValues::F32(values) => values.len(),
            LiteralValues::I64(values) => values.len(),
            LiteralValues::Bool(values) => values.len(),
        }
    }
}

impl Net {
    /// A constant tensor from numbers in row-major order. No gradient flows into it. Fails if their number does not match `dims`.
    pub fn literal(&mut self, dims: &[usize], values: LiteralValues) -> Result<Var> {
        self.append_one("literal", Literal { dims: dims.to_vec(), values }, &[])
    }
}

impl Operator for Literal {
    fn name(&self) -> &'static str {
        "literal"
    }

    fn infer(&self, _: &[Signature]) -> Result<Vec<Signature>> {
        let (wanted, got) = (self.dims.iter().product::<usize>(), self.values.len());
        if wanted != got {
            return expected(self.name(), format!("{wanted} numbers for {:?}", self.dims), got);
        }
        let dtype = match self.values {
            LiteralValues::F32(_) => DType::F32,
            LiteralValues::I64(_) => DType::I64,
            LiteralValues::Bool(_) => DType::Bool,
        };
        Ok(vec![Signature { dtype, ..Signature::float(Shape::fixed(&self.dims)) }])
    }

    fn forward(&self, _: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        match &self.values {
            LiteralValues::F32(values) => outputs.floats(0).copy_from_slice(values),
            LiteralValues::I64(values) => {
                outputs.ints(0).iter_mut().zip(values).for_each(|(out, &value)| *out = value as u64);
            }
            LiteralValues::Bool(values) => {
                outputs.floats(0).iter_mut().zip(values).for_each(|(out, &value)| *out = f32::from(u8::from(value)));
            }
        }
        Ok(())
    }

    fn backward(&self, _: &Inputs<'_>, _: &mut Gradients<'_>) -> Result<()> {
        Ok(())
    }
}
