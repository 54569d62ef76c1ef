//! What the ops on two tensors of integers share: x and y are broadcast, and no gradient flows.

use super::broadcast::{self, BroadcastStrides};
use super::{Signature, expected};
use crate::error::{Error, Result};
use crate::memory::{Inputs, Outputs};
use crate::value::DType;

/// Integers in the broadcast shape of integers x and y.
pub(super) fn infer(op: &'static str, inputs: &[Signature]) -> Result<Vec<Signature>> {
    if let Some(input) = inputs.iter().find(|input| input.ragged || input.dtype != DType::I64) {
        let got = if input.ragged { "a slot of variable length".into() } else { format!("{:?}", input.dtype) };
        return expected(op, "integers, a fixed number per row", got);
    }
    let shape = broadcast::shape(op, inputs, broadcast::RIGHT)?;
    Ok(vec![Signature { shape, dtype: DType::I64, ragged: false }])
}

/// `out = f(x, y)`.
#[inline(always)]
pub(super) fn forward(inputs: &Inputs<'_>, outputs: &mut Outputs<'_>, f: impl Fn(i64, i64) -> i64) {
    let layout = BroadcastStrides::of(inputs, broadcast::RIGHT);
    // Integers are stored as `u64` bits.
    layout.combine(inputs.ints(0), inputs.ints(1), outputs.ints(0), |x, y| f(x as i64, y as i64) as u64);
}

/// x / y, rounded down. y is not 0.
pub(super) fn divide(x: i64, y: i64) -> i64 {
    let quotient = x.wrapping_div(y);
    let is_inexact = x.wrapping_rem(y) != 0;
    if is_inexact && (x < 0) != (y < 0) { quotient - 1 } else { quotient }
}

/// Fails if an element of y is 0.
pub(super) fn expect_no_zero(op: &'static str, inputs: &Inputs<'_>) -> Result<()> {
    match inputs.ints(1).iter().position(|&y| y == 0) {
        None => Ok(()),
        Some(row) => Err(Error::Value { op, what: "a divisor".into(), expected: "not 0".into(), got: "0".into(), row }),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn division_rounds_down() {
        let quotients = [(7, 2), (-7, 2), (7, -2), (-7, -2), (6, -2), (i64::MIN, -1)].map(|(x, y)| super::divide(x, y));
        assert_eq!(quotients, [3, -4, -4, 3, -3, i64::MIN]);
    }
}
