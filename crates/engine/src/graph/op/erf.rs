//! The error function of x, element by element.

use std::f64::consts::FRAC_2_SQRT_PI;

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, unary};
use crate::error::Result;
use crate::graph::onnx_builder::OnnxNode;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};

/// The error function of x, element by element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Erf;

impl Net {
    /// The error function of x, element by element.
    pub fn erf(&mut self, x: Var) -> Result<Var> {
        self.append_one("erf", Erf, &[x])
    }
}

impl Operator for Erf {
    fn name(&self) -> &'static str {
        "erf"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        unary::infer(self.name(), inputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        unary::forward(inputs, outputs, |x| erf(f64::from(x)) as f32)
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        unary::backward(inputs, gradients, |x, _| (FRAC_2_SQRT_PI * (-f64::from(x) * f64::from(x)).exp()) as f32)
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        node.single_node("Erf", vec![]);
        Ok(())
    }
}

/// 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x: a series near 0, a continued fraction far from it, in double precision.
fn erf(x: f64) -> f64 {
    let size = x.abs();
    if size > 6.0 {
        return x.signum();
    }
    if size < 3.0 {
        // The sum of (-1)^n x^(2n+1) / (n! (2n+1)).
        let (mut term, mut sum) = (x, x);
        for n in 1..60 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return sum * FRAC_2_SQRT_PI;
    }
    // 1 - exp(-x^2) / sqrt(pi) / (x + (1/2) / (x + (2/2) / (x + ...))).
    let fraction = (1..40).rev().fold(size, |below, n| size + f64::from(n) / 2.0 / below);
    x.signum() * (1.0 - (-size * size).exp() * 0.5 * FRAC_2_SQRT_PI / fraction)
}

#[cfg(test)]
mod tests {
    #[test]
    fn erf_agrees_with_its_table() {
        // Abramowitz and Stegun, table 7.1, and its symmetry.
        for (x, expected) in [(0.0, 0.0), (0.5, 0.520_499_877_8), (1.0, 0.842_700_792_9), (2.0, 0.995_322_265_0)] {
            assert!((super::erf(x) - expected).abs() < 1e-10 && (super::erf(-x) + expected).abs() < 1e-10, "{x}");
        }
        // Both sides of the change of the method.
        assert!((super::erf(3.0 - 1e-12) - super::erf(3.0)).abs() < 1e-11);
        assert!((super::erf(3.5) - 0.999_999_256_901_6).abs() < 1e-12);
    }
}
