//! How many ids each row of a slot has, as integers.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expected};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Shape};

/// The number of ids in each row of the only input, a slot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlotLengths;

impl Net {
    /// The number of ids in each row of a slot, integers `[B]`.
    pub fn slot_lengths(&mut self, slot: Var) -> Result<Var> {
        self.append_one("slot_lengths", SlotLengths, &[slot])
    }
}

/// Fails unless the only input is a slot.
pub(super) fn expect_slot(op: &'static str, inputs: &[Signature]) -> Result<()> {
    if inputs[0].ragged { Ok(()) } else { expected(op, "a slot", format!("a tensor of shape {}", inputs[0].shape)) }
}

impl Operator for SlotLengths {
    fn name(&self) -> &'static str {
        "slot_lengths"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_slot(self.name(), inputs)?;
        Ok(vec![Signature { shape: Shape(vec![inputs[0].shape.0[0]]), dtype: DType::I64, ragged: false }])
    }

    fn has_gradient(&self, _: usize) -> bool {
        false
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let offsets = inputs.ids(0).offsets;
        for (length, bounds) in outputs.ints(0).iter_mut().zip(offsets.windows(2)) {
            *length = u64::from(bounds[1] - bounds[0]);
        }
        Ok(())
    }

    fn backward(&self, _: &Inputs<'_>, _: &mut Gradients<'_>) -> Result<()> {
        Ok(())
    }
}
