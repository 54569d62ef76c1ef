//! What comparisons and logical ops share: two tensors that are broadcast, a boolean result, no gradient.

use super::{Signature, broadcast, expect_floats, expected};
use crate::error::Result;
use crate::memory::{Inputs, Outputs};
use crate::value::DType;

/// Booleans in the broadcast shape of x and y, which are both floats or both integers.
pub(super) fn infer(op: &'static str, inputs: &[Signature]) -> Result<Vec<Signature>> {
    if inputs.iter().any(|input| input.ragged) {
        return expected(op, "a fixed number of elements per row", "a slot of variable length");
    }
    if inputs[0].dtype.is_float() != inputs[1].dtype.is_float() {
        return expected(op, "floats and floats, or integers and integers", "one of each; `cast` one of them first");
    }
    let shape = broadcast::shape(op, inputs, broadcast::RIGHT)?;
    Ok(vec![Signature { shape, dtype: DType::Bool, ragged: false }])
}

/// `out = floats(x, y)` for floats, `integers(x, y)` for integers.
#[inline(always)]
pub(super) fn forward(
    inputs: &Inputs<'_>,
    outputs: &mut Outputs<'_>,
    of_integers: bool,
    floats: impl Fn(f32, f32) -> bool,
    integers: impl Fn(i64, i64) -> bool,
) -> Result<()> {
    let (layout, out) = (broadcast::BroadcastStrides::of(inputs, broadcast::RIGHT), outputs.floats(0));
    if of_integers {
        // Integers are stored as `u64` bits.
        let compare = |x: u64, y: u64| truth(integers(x as i64, y as i64));
        layout.combine(inputs.ints(0), inputs.ints(1), out, compare);
    } else {
        layout.combine(inputs.floats(0), inputs.floats(1), out, |x, y| truth(floats(x, y)));
    }
    Ok(())
}

/// Booleans in the broadcast shape of booleans x and y.
pub(super) fn infer_logical(op: &'static str, inputs: &[Signature]) -> Result<Vec<Signature>> {
    expect_floats(op, inputs)?;
    infer(op, inputs)
}

/// `out = f(x, y)`, where everything but 0 is true.
#[inline(always)]
pub(super) fn forward_logical(
    inputs: &Inputs<'_>,
    outputs: &mut Outputs<'_>,
    f: impl Fn(bool, bool) -> bool,
) -> Result<()> {
    forward(inputs, outputs, false, |x, y| f(x != 0.0, y != 0.0), |_, _| false)
}

/// A boolean as ops store it.
#[inline(always)]
pub(super) fn truth(value: bool) -> f32 {
    f32::from(u8::from(value))
}
