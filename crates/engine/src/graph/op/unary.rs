//! What ops share that have one float input and one result of the same shape.

use super::{Signature, expect_floats};
use crate::error::Result;
use crate::memory::{Gradients, Inputs, Outputs};

/// The output has the shape of the input.
pub(super) fn infer(op: &'static str, inputs: &[Signature]) -> Result<Vec<Signature>> {
    expect_floats(op, inputs)?;
    Ok(vec![Signature::float(inputs[0].shape.clone())])
}

/// `y = f(x)`, element by element.
#[inline(always)]
pub(super) fn forward(inputs: &Inputs<'_>, outputs: &mut Outputs<'_>, f: impl Fn(f32) -> f32) -> Result<()> {
    for (y, &x) in outputs.floats(0).iter_mut().zip(inputs.floats(0)) {
        *y = f(x);
    }
    Ok(())
}

/// `y = f(x)`, by a kernel that works in place.
pub(super) fn forward_each(inputs: &Inputs<'_>, outputs: &mut Outputs<'_>, f: fn(&mut [f32])) -> Result<()> {
    let y = outputs.floats(0);
    y.copy_from_slice(inputs.floats(0));
    f(y);
    Ok(())
}

/// `dx += dy * slope(x, y)`, element by element.
#[inline(always)]
pub(super) fn backward(
    inputs: &Inputs<'_>,
    gradients: &mut Gradients<'_>,
    slope: impl Fn(f32, f32) -> f32,
) -> Result<()> {
    if let Some(gradient) = gradients.of(0) {
        let (x, y, dy) = (inputs.floats(0), inputs.output(0), inputs.output_gradient(0));
        gradient.add(|i| dy[i] * slope(x[i], y[i]));
    }
    Ok(())
}
