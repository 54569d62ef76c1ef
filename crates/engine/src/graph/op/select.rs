//! Takes each element from one of two tensors, selected by a condition: PaddlePaddle's `where`.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, broadcast, expected, shapes, view};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Shape};

/// x where the condition is true, y elsewhere. Inputs of one shape: condition, x, y.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Select {
    integers: bool,
}

impl Net {
    /// x where `condition` is true, y elsewhere. Shapes are aligned at the right; dimensions of size 1 are broadcast.
    pub fn select(&mut self, condition: Var, x: Var, y: Var) -> Result<Var> {
        let mut inputs = [condition, x, y];
        let together = inputs.iter().try_fold(Vec::new(), |dims, &var| broadcast::broadcast_dims(&dims, &self.shape(var).0));
        // If the shapes cannot be broadcast, the op itself reports it.
        if let Some(shape) = together.map(Shape) {
            let all = inputs;
            for var in &mut inputs {
                if *self.shape(*var) != shape {
                    *var = self.expand_like(*var, shape.clone(), &all)?;
                }
            }
        }
        let integers = !self.main.variable(x).dtype.is_float();
        self.append_one("where", Select { integers }, &inputs)
    }

    /// [`select`](Self::select) under PaddlePaddle's name.
    pub fn where_(&mut self, condition: Var, x: Var, y: Var) -> Result<Var> {
        self.select(condition, x, y)
    }
}

impl Operator for Select {
    fn name(&self) -> &'static str {
        "where"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        let (condition, x, y) = (&inputs[0], &inputs[1], &inputs[2]);
        if condition.dtype != DType::Bool {
            return expected(
                self.name(),
                "booleans as the condition",
                "numbers; compare them with something first",
            );
        }
        if x.dtype.is_float() != y.dtype.is_float() {
            return expected(self.name(), "floats and floats, or integers and integers", "one of each");
        }
        if x.shape != y.shape || x.shape != condition.shape {
            return expected(self.name(), "dimensions that are equal or 1, aligned at the right", shapes(inputs));
        }
        view::expect_tensors(self.name(), inputs)?;
        Ok(vec![x.clone()])
    }

    fn has_gradient(&self, input: usize) -> bool {
        input != 0
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let condition = inputs.floats(0);
        if self.integers {
            choose(condition, inputs.ints(1), inputs.ints(2), outputs.ints(0));
        } else {
            choose(condition, inputs.floats(1), inputs.floats(2), outputs.floats(0));
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let (condition, out_gradient) = (inputs.floats(0), inputs.output_gradient(0));
        if let Some(gradient) = gradients.of(1) {
            gradient.add(|i| if condition[i] != 0.0 { out_gradient[i] } else { 0.0 });
        }
        if let Some(gradient) = gradients.of(2) {
            gradient.add(|i| if condition[i] != 0.0 { 0.0 } else { out_gradient[i] });
        }
        Ok(())
    }
}

fn choose<T: Copy>(condition: &[f32], x: &[T], y: &[T], out: &mut [T]) {
    for (((out, &condition), &x), &y) in out.iter_mut().zip(condition).zip(x).zip(y) {
        *out = if condition != 0.0 { x } else { y };
    }
}
