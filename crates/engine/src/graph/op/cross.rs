//! A cross layer of the Deep & Cross Network (Wang et al. 2017): `y = x0 (x . w) + b + x`.
//!
//! B rows, N columns: x0, x and y are B x N, w and b are N. The inner products are a second output, so that the backward does not
//! compute them again.

use openfleet_table::Initializer;
use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expect_floats, expected, shapes};
use crate::kernel;
use crate::error::Result;
use crate::graph::{Net, ParamAttr, Var};
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{Dim, Shape};

/// A cross layer. Inputs: x0, x, w, b. Outputs: y, and x . w [B, 1].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cross;

impl Net {
    /// A cross layer with Xavier weights and a zero bias. `x0` is the input of the first cross layer, `x` the input of this one.
    pub fn cross(&mut self, x0: Var, x: Var) -> Result<Var> {
        self.cross_with(x0, x, &ParamAttr::default(), &ParamAttr::default())
    }

    /// A cross layer with all options.
    pub fn cross_with(&mut self, x0: Var, x: Var, weight: &ParamAttr, bias: &ParamAttr) -> Result<Var> {
        let columns = columns(self.shape(x0))?;
        let layer = self.unique_name("cross");
        let xavier = Initializer::Xavier { uniform: true, fan_in: None, fan_out: None };
        let weight = self.parameter(&format!("{layer}.w"), &[columns], weight, xavier)?;
        let bias = self.parameter(&format!("{layer}.b"), &[columns], bias, Initializer::Constant(0.0))?;
        let outputs = self.append(&layer, Cross, &[x0, x, weight, bias])?;
        self.stop_gradient(outputs[1]);
        Ok(outputs[0])
    }
}

/// N.
fn columns(shape: &Shape) -> Result<usize> {
    match shape.0.as_slice() {
        &[_, Dim::Fixed(columns @ 1..)] => Ok(columns),
        _ => expected("cross", "x0 and x [B, N]", shape),
    }
}

impl Operator for Cross {
    fn name(&self) -> &'static str {
        "cross"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_floats(self.name(), inputs)?;
        let shape = &inputs[0].shape;
        let parameter = Shape::fixed(&[columns(shape)?]);
        if inputs[1].shape != *shape || inputs[2].shape != parameter || inputs[3].shape != parameter {
            return expected(self.name(), "x0 [B, N], x [B, N], w [N] and b [N]", shapes(inputs));
        }
        Ok(vec![Signature::float(shape.clone()), Signature::float(Shape(vec![shape.0[0], Dim::Fixed(1)]))])
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let [x0, x, w, b] = [0, 1, 2, 3].map(|input| inputs.floats(input));
        let n = w.len();
        let (y, products) = outputs.two_floats(0, 1);
        let rows = x0.chunks_exact(n).zip(x.chunks_exact(n)).zip(y.chunks_exact_mut(n));
        for (((x0, x), y), product) in rows.zip(products) {
            *product = kernel::dot(x, w);
            for (((y, x0), x), b) in y.iter_mut().zip(x0).zip(x).zip(b) {
                *y = x0 * *product + b + x;
            }
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let [x0, x, w] = [0, 1, 2].map(|input| inputs.floats(input));
        let (n, products, dy) = (w.len(), inputs.output(1), inputs.output_gradient(0));
        // The gradient of x . w, row by row.
        let mut scratch = gradients.take_scratch();
        scratch.clear();
        scratch.extend(dy.chunks_exact(n).zip(x0.chunks_exact(n)).map(|(dy, x0)| kernel::dot(dy, x0)));
        // x0 and x are one variable in the first layer. The first use overwrites the gradient, the second adds.
        if let Some(gradient) = gradients.of(0) {
            let (dx0, keep) = gradient.begin();
            for ((dx0, dy), product) in dx0.chunks_exact_mut(n).zip(dy.chunks_exact(n)).zip(products) {
                for (dx0, dy) in dx0.iter_mut().zip(dy) {
                    kernel::put(dx0, dy * product, keep);
                }
            }
        }
        if let Some(gradient) = gradients.of(1) {
            let (dx, keep) = gradient.begin();
            for ((dx, dy), dp) in dx.chunks_exact_mut(n).zip(dy.chunks_exact(n)).zip(&scratch) {
                for ((dx, dy), w) in dx.iter_mut().zip(dy).zip(w) {
                    kernel::put(dx, dy + dp * w, keep);
                }
            }
        }
        if let Some(gradient) = gradients.of(2) {
            let dw = gradient.accumulate();
            for (x, &dp) in x.chunks_exact(n).zip(&scratch) {
                kernel::add_scaled(dp, x, dw);
            }
        }
        if let Some(gradient) = gradients.of(3) {
            kernel::add_rows(dy, gradient.accumulate());
        }
        gradients.put_scratch(scratch);
        Ok(())
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        let [x0, x, w, b] = [0, 1, 2, 3].map(|input| node.input(input));
        let column = node.ints(&[-1, 1]);
        let w = node.emit("Reshape", &[&w, &column], vec![]);
        let products = node.emit("MatMul", &[&x, &w], vec![]);
        node.finish(1, "Identity", &[&products], vec![]);
        let crossed = node.emit("Mul", &[&x0, &products], vec![]);
        let moved = node.emit("Add", &[&crossed, &b], vec![]);
        node.finish(0, "Add", &[&moved, &x], vec![]);
        Ok(())
    }
}
