//! Sets first values of parameters and states; startup programs consist of this op.

use openfleet_table::Initializer;
use serde::{Deserialize, Serialize};

use super::{Operator, Signature};
use crate::error::Result;
use crate::graph::{Program, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Tensor, check_memory_for};

/// How first values are made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Initialize {
    /// Floats drawn by an initializer.
    Random(Initializer),
    /// Zeros of the variable's type.
    Zeros,
    /// These floats.
    Values(Vec<f32>),
    /// One integer in every element.
    Integer(i64),
}

impl Initialize {
    /// The first value of a variable. It depends on the program's seed and the variable's name, not on the order of creation.
    /// Fails if there is not enough memory.
    pub fn value(&self, program: &Program, var: Var) -> Result<Tensor> {
        let variable = program.variable(var);
        let dims = variable.shape.sizes(0);
        match self {
            Initialize::Random(initializer) if variable.dtype == DType::F32 => {
                check_memory_for(&variable.name, &dims, size_of::<f32>(), "")?;
                let mut values = vec![0.0; dims.iter().product()];
                initializer.fill(program.seed_of(&variable.name), &dims, &mut values);
                Tensor::from_f32(&dims, values)
            }
            Initialize::Values(values) => Tensor::from_f32(&dims, values.clone()),
            Initialize::Integer(value) if variable.dtype == DType::I64 => {
                check_memory_for(&variable.name, &dims, size_of::<i64>(), "")?;
                Tensor::from_i64(&dims, vec![*value; dims.iter().product()])
            }
            _ => {
                check_memory_for(&variable.name, &dims, size_of::<i64>(), "")?;
                Ok(Tensor::zeros(&dims, variable.dtype))
            }
        }
    }
}

impl Operator for Initialize {
    fn name(&self) -> &'static str {
        "initialize"
    }

    fn infer(&self, _: &[Signature]) -> Result<Vec<Signature>> {
        Ok(Vec::new())
    }

    /// The executor runs startup programs and puts `value` into the scope, so there is nothing to do per batch.
    fn forward(&self, _: &Inputs<'_>, _: &mut Outputs<'_>) -> Result<()> {
        Ok(())
    }

    fn backward(&self, _: &Inputs<'_>, _: &mut Gradients<'_>) -> Result<()> {
        Ok(())
    }
}
