//! The ids of a slot as a tensor: one row for each id.

use serde::{Deserialize, Serialize};

use super::slot_lengths::expect_slot;
use super::{Operator, Signature};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Dim, Shape};

/// The ids of the only input, a slot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlotIds;

impl Net {
    /// The ids of all rows of a slot, one below the other: integers `[N, 1]`, sequences as long as the rows of the slot.
    pub fn slot_ids(&mut self, slot: Var) -> Result<Var> {
        let lengths = self.lengths(slot)?;
        let ids = self.append_one("slot_ids", SlotIds, &[slot])?;
        self.main.set_lengths(ids, lengths);
        Ok(ids)
    }
}

impl SlotIds {
    fn signature(&self, inputs: &[Signature], ids: Dim) -> Result<Vec<Signature>> {
        expect_slot(self.name(), inputs)?;
        Ok(vec![Signature { shape: Shape(vec![ids, Dim::Fixed(1)]), dtype: DType::I64, ragged: false }])
    }
}

impl Operator for SlotIds {
    fn name(&self) -> &'static str {
        "slot_ids"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        self.signature(inputs, Dim::Unknown)
    }

    fn infer_at_run(&self, inputs: &[Signature], values: &Inputs<'_>) -> Result<Vec<Signature>> {
        self.signature(inputs, Dim::Fixed(values.ids(0).keys.len()))
    }

    fn is_sized_by(&self, _: usize) -> bool {
        true
    }

    fn has_gradient(&self, _: usize) -> bool {
        false
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        outputs.ints(0).copy_from_slice(inputs.ids(0).keys);
        Ok(())
    }

    fn backward(&self, _: &Inputs<'_>, _: &mut Gradients<'_>) -> Result<()> {
        Ok(())
    }
}
