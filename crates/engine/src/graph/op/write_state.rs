//! Sets a state to the value of a tensor: PaddlePaddle's `assign(x, output)` to a variable of `create_global_var`.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expected};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::Elements;

/// Sets a state. Inputs: x, the state, of one shape and type. The output is x.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WriteState;

impl Net {
    /// Sets a state to the value of x. Layers that are added later read the new value.
    pub fn write_state(&mut self, x: Var, state: Var) -> Result<Var> {
        let value = self.append_one("write_state", WriteState, &[x, state])?;
        self.main.set_state_value(state, value);
        Ok(value)
    }
}

impl Operator for WriteState {
    fn name(&self) -> &'static str {
        "write_state"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        let (x, state) = (&inputs[0], &inputs[1]);
        let fits = x.shape.rank() == state.shape.rank()
            && x.shape.0.iter().zip(&state.shape.0).all(|(x, state)| x.agrees(*state));
        if !fits || x.dtype.is_float() != state.dtype.is_float() {
            let words = |one: &Signature| format!("{} of {:?}", one.shape, one.dtype);
            return expected(self.name(), format!("a value of {}", words(state)), words(x));
        }
        Ok(vec![state.clone()])
    }

    fn changes_state(&self, input: usize) -> bool {
        input == 1
    }

    fn has_gradient(&self, _: usize) -> bool {
        false
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        match inputs.state(1).lock().elements_mut() {
            Elements::F32(values) => {
                outputs.floats(0).copy_from_slice(inputs.floats(0));
                values.copy_from_slice(inputs.floats(0));
            }
            Elements::I64(values) => {
                outputs.ints(0).copy_from_slice(inputs.ints(0));
                values.iter_mut().zip(inputs.ints(0)).for_each(|(value, &x)| *value = x as i64);
            }
        }
        Ok(())
    }

    fn backward(&self, _: &Inputs<'_>, _: &mut Gradients<'_>) -> Result<()> {
        Ok(())
    }
}
