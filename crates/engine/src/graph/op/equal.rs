//! x == y, element by element.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, compare};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};

/// Whether x is equal to y, element by element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Equal {
    integers: bool,
}

impl Net {
    /// Whether x is equal to y, element by element: booleans, from two float or two integer tensors.
    pub fn equal(&mut self, x: Var, y: Var) -> Result<Var> {
        let integers = !self.main.variable(x).dtype.is_float();
        self.append_one("equal", Equal { integers }, &[x, y])
    }
}

impl Operator for Equal {
    fn name(&self) -> &'static str {
        "equal"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        compare::infer(self.name(), inputs)
    }

    fn has_gradient(&self, _: usize) -> bool {
        false
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        compare::forward(inputs, outputs, self.integers, |x, y| x == y, |x, y| x == y)
    }

    fn backward(&self, _: &Inputs<'_>, _: &mut Gradients<'_>) -> Result<()> {
        Ok(())
    }
}
