//! The value of a state, as a tensor that other ops can read.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::Elements;

/// The value of a state at this point of the program. Input: the state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReadState;

impl Net {
    /// The value of a state in this step. Layers on a state read it by themselves.
    pub(crate) fn read_state(&mut self, state: Var) -> Result<Var> {
        let value = self.append_one("read_state", ReadState, &[state])?;
        self.main.set_state_value(state, value);
        Ok(value)
    }
}

impl Operator for ReadState {
    fn name(&self) -> &'static str {
        "read_state"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        Ok(vec![inputs[0].clone()])
    }

    fn changes_state(&self, _: usize) -> bool {
        true
    }

    fn has_gradient(&self, _: usize) -> bool {
        false
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        match inputs.state(0).lock().elements() {
            Elements::F32(values) => outputs.floats(0).copy_from_slice(values),
            Elements::I64(values) => outputs.ints(0).iter_mut().zip(values).for_each(|(out, &v)| *out = v as u64),
        }
        Ok(())
    }

    fn backward(&self, _: &Inputs<'_>, _: &mut Gradients<'_>) -> Result<()> {
        Ok(())
    }
}
