//! A gated recurrent unit over a sequence.
//!
//! With the gates of x and of the state before, x_r + h_r and so on: r = sigmoid(x_r + h_r), z = sigmoid(x_z + h_z),
//! c = tanh(x_c + r h_c), and the state becomes z h + (1 - z) c. The gates are in the order r, z, c.

use serde::{Deserialize, Serialize};

use super::recurrent::{self, Steps};
use super::{Operator, Signature};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::kernel::transcendental::{sigmoid, tanh};
use crate::memory::{Gradients, Inputs, Outputs};

const GATES: usize = 3;

/// A gated recurrent unit. Inputs: the gates of x `[T, B, 3 H]`, weights `[3 H, H]`, bias `[3 H]`, the first state `[B, H]`, and
/// optionally the lengths of the rows `[B]`. Outputs: the states `[T, B, H]`, the gates of the state, and the values of the gates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gru {
    /// Begins at the last step.
    pub reverse: bool,
}

impl Net {
    /// The states `[T, B, H]` of a gated recurrent unit, given the gates of x `[T, B, 3 H]` (r, z, c), the weights `[3 H, H]` and
    /// the bias `[3 H]` of the state, and the first state `[B, H]`. Rows with a length keep their state after it.
    pub fn gru(
        &mut self,
        gates: Var,
        weights: Var,
        bias: Var,
        first: Var,
        lengths: Option<Var>,
        reverse: bool,
    ) -> Result<Var> {
        let inputs: Vec<Var> = [gates, weights, bias, first].into_iter().chain(lengths).collect();
        let outputs = self.append("gru", Gru { reverse }, &inputs)?;
        outputs[1..].iter().for_each(|&output| self.stop_gradient(output));
        Ok(outputs[0])
    }
}

impl Operator for Gru {
    fn name(&self) -> &'static str {
        "gru"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        let (states, gates) = recurrent::infer(self.name(), inputs, GATES, 1)?;
        Ok(vec![states, gates.clone(), gates])
    }

    fn has_gradient(&self, input: usize) -> bool {
        input < 4
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let steps = Steps::of(inputs, GATES, 1, self.reverse);
        let (x, weights, bias, first) = (inputs.floats(0), inputs.floats(1), inputs.floats(2), inputs.floats(3));
        let (h, width) = (steps.state, GATES * steps.state);
        let [states, recurrent, values] = outputs.all() else { unreachable!("three outputs were inferred") };
        let (states, recurrent, values) = (&mut states.floats, &mut recurrent.floats, &mut values.floats);
        for step in steps.order() {
            let products = &mut recurrent[step * steps.rows * width..][..steps.rows * width];
            let state = steps.begin(step, states, first);
            steps.multiply(state, weights, products);
            for row in 0..steps.rows {
                let at = (step * steps.rows + row) * width;
                let (x, products) = (&x[at..][..width], &mut products[row * width..][..width]);
                let (values, state) = (&mut values[at..][..width], &mut state[row * h..][..h]);
                products.iter_mut().zip(bias).for_each(|(product, bias)| *product += bias);
                for i in 0..h {
                    let (r, z) = (sigmoid(x[i] + products[i]), sigmoid(x[h + i] + products[h + i]));
                    let c = tanh(x[2 * h + i] + r * products[2 * h + i]);
                    (values[i], values[h + i], values[2 * h + i]) = (r, z, c);
                    if steps.has(step, row) {
                        state[i] = z * state[i] + (1.0 - z) * c;
                    }
                }
            }
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let steps = Steps::of(inputs, GATES, 1, self.reverse);
        let (weights, first) = (inputs.floats(1), inputs.floats(3));
        let (states, recurrent, values) = (inputs.output(0), inputs.output(1), inputs.output(2));
        let dy = inputs.output_gradient(0);
        let (h, width, block) = (steps.state, GATES * steps.state, steps.block());
        let all = steps.steps * steps.rows * width;
        // The gradients of the gates of x, of the products with the state, and of the state that is passed back.
        let mut scratch = gradients.take_scratch();
        scratch.clear();
        scratch.resize(2 * all + block, 0.0);
        let (d_x, rest) = scratch.split_at_mut(all);
        let (d_products, d_state) = rest.split_at_mut(all);
        for step in steps.order().rev() {
            let before = steps.before(step, states, first);
            d_state.iter_mut().zip(&dy[step * block..][..block]).for_each(|(d, dy)| *d += dy);
            let part = step * steps.rows * width..(step + 1) * steps.rows * width;
            for row in (0..steps.rows).filter(|&row| steps.has(step, row)) {
                let at = (step * steps.rows + row) * width;
                for i in 0..h {
                    let (r, z, c) = (values[at + i], values[at + h + i], values[at + 2 * h + i]);
                    let d = &mut d_state[row * h + i];
                    let d_c = *d * (1.0 - z) * (1.0 - c * c);
                    let d_z = *d * (before[row * h + i] - c) * z * (1.0 - z);
                    let d_r = d_c * recurrent[at + 2 * h + i] * r * (1.0 - r);
                    *d *= z;
                    (d_x[at + i], d_x[at + h + i], d_x[at + 2 * h + i]) = (d_r, d_z, d_c);
                    (d_products[at + i], d_products[at + h + i], d_products[at + 2 * h + i]) = (d_r, d_z, d_c * r);
                }
            }
            steps.multiply_back(&d_products[part], weights, d_state);
        }
        if let Some(gradient) = gradients.of(0) {
            gradient.add(|i| d_x[i]);
        }
        steps.add_parameter_gradients(gradients, d_products, states, first);
        if let Some(gradient) = gradients.of(3) {
            gradient.add(|i| d_state[i]);
        }
        gradients.put_scratch(scratch);
        Ok(())
    }
}
