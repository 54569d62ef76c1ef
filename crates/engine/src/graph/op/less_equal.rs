//! x <= y, element by element.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, compare};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};

/// Whether x is less than or equal to y, element by element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LessEqual {
    integers: bool,
}

impl Net {
    /// Whether x is less than or equal to y, element by element: booleans, from two float or two integer tensors.
    pub fn less_equal(&mut self, x: Var, y: Var) -> Result<Var> {
        let integers = !self.main.variable(x).dtype.is_float();
        self.append_one("less_equal", LessEqual { integers }, &[x, y])
    }
}

impl Operator for LessEqual {
    fn name(&self) -> &'static str {
        "less_equal"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        compare::infer(self.name(), inputs)
    }

    fn has_gradient(&self, _: usize) -> bool {
        false
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        compare::forward(inputs, outputs, self.integers, |x, y| x <= y, |x, y| x <= y)
    }

    fn backward(&self, _: &Inputs<'_>, _: &mut Gradients<'_>) -> Result<()> {
        Ok(())
    }
}
