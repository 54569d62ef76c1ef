//! A long short-term memory over a sequence.
//!
//! With the gates of x and of the state before added: i, f and o are sigmoids, g is a tanh; the cell becomes f cell + i g, and the
//! state o tanh(cell). The gates are in the order i, f, g, o.

use serde::{Deserialize, Serialize};

use super::recurrent::{self, Steps};
use super::{Operator, Signature};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::kernel::transcendental::{sigmoid, tanh};
use crate::memory::{Gradients, Inputs, Outputs};

const GATES: usize = 4;

/// A long short-term memory. Inputs: the gates of x `[T, B, 4 H]`, weights `[4 H, H]`, bias `[4 H]`, the first state and the first
/// cell `[B, H]`, and optionally the lengths of the rows `[B]`. Outputs: the states and the cells `[T, B, H]`, and the values of
/// the gates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lstm {
    /// Begins at the last step.
    pub reverse: bool,
}

impl Net {
    /// The states and the cells `[T, B, H]` of a long short-term memory, given the gates of x `[T, B, 4 H]` (i, f, g, o), the
    /// weights `[4 H, H]` and the bias `[4 H]` of the state, and the first state and cell `[B, H]`. Rows with a length keep both
    /// after it.
    pub fn lstm(
        &mut self,
        gates: Var,
        weights: Var,
        bias: Var,
        first: [Var; 2],
        lengths: Option<Var>,
        reverse: bool,
    ) -> Result<(Var, Var)> {
        let inputs: Vec<Var> = [gates, weights, bias].into_iter().chain(first).chain(lengths).collect();
        let outputs = self.append("lstm", Lstm { reverse }, &inputs)?;
        self.stop_gradient(outputs[2]);
        Ok((outputs[0], outputs[1]))
    }
}

impl Operator for Lstm {
    fn name(&self) -> &'static str {
        "lstm"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        let (states, gates) = recurrent::infer(self.name(), inputs, GATES, 2)?;
        Ok(vec![states.clone(), states, gates])
    }

    fn has_gradient(&self, input: usize) -> bool {
        input < 5
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let steps = Steps::of(inputs, GATES, 2, self.reverse);
        let (x, weights, bias) = (inputs.floats(0), inputs.floats(1), inputs.floats(2));
        let (h, width) = (steps.state, GATES * steps.state);
        let [states, cells, values] = outputs.all() else { unreachable!("three outputs were inferred") };
        let (states, cells, values) = (&mut states.floats, &mut cells.floats, &mut values.floats);
        for step in steps.order() {
            let part = step * steps.rows * width..(step + 1) * steps.rows * width;
            let (x, values) = (&x[part.clone()], &mut values[part]);
            let state = steps.begin(step, states, inputs.floats(3));
            let cell = steps.begin(step, cells, inputs.floats(4));
            steps.multiply(state, weights, values);
            for row in 0..steps.rows {
                let (x, values) = (&x[row * width..][..width], &mut values[row * width..][..width]);
                for (gate, (value, (x, bias))) in values.iter_mut().zip(x.iter().zip(bias)).enumerate() {
                    let sum = *value + x + bias;
                    *value = if gate / h == 2 { tanh(sum) } else { sigmoid(sum) };
                }
                if !steps.has(step, row) {
                    continue;
                }
                for i in 0..h {
                    let cell = &mut cell[row * h + i];
                    *cell = values[h + i] * *cell + values[i] * values[2 * h + i];
                    state[row * h + i] = values[3 * h + i] * tanh(*cell);
                }
            }
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let steps = Steps::of(inputs, GATES, 2, self.reverse);
        let (weights, first, first_cell) = (inputs.floats(1), inputs.floats(3), inputs.floats(4));
        let (states, cells, values) = (inputs.output(0), inputs.output(1), inputs.output(2));
        let (dy, d_cells) = (inputs.output_gradient(0), inputs.output_gradient(1));
        let (h, width, block) = (steps.state, GATES * steps.state, steps.block());
        let all = steps.steps * steps.rows * width;
        // The gradients of the gates, and of the state and the cell that are passed back.
        let mut scratch = gradients.take_scratch();
        scratch.clear();
        scratch.resize(all + 2 * block, 0.0);
        let (d_gates, rest) = scratch.split_at_mut(all);
        let (d_state, d_cell) = rest.split_at_mut(block);
        for step in steps.order().rev() {
            let before = steps.before(step, cells, first_cell);
            for (passed, own) in [(&mut *d_state, dy), (&mut *d_cell, d_cells)] {
                passed.iter_mut().zip(own.iter().skip(step * block)).for_each(|(d, own)| *d += own);
            }
            for row in (0..steps.rows).filter(|&row| steps.has(step, row)) {
                let at = (step * steps.rows + row) * width;
                for i in 0..h {
                    let [input, forget, new, out] = [0, 1, 2, 3].map(|gate| values[at + gate * h + i]);
                    let tanh = tanh(cells[step * block + row * h + i]);
                    let (d, d_cell) = (&mut d_state[row * h + i], &mut d_cell[row * h + i]);
                    let d_out = *d * tanh * out * (1.0 - out);
                    let total = *d_cell + *d * out * (1.0 - tanh * tanh);
                    d_gates[at + i] = total * new * input * (1.0 - input);
                    d_gates[at + h + i] = total * before[row * h + i] * forget * (1.0 - forget);
                    d_gates[at + 2 * h + i] = total * input * (1.0 - new * new);
                    d_gates[at + 3 * h + i] = d_out;
                    (*d, *d_cell) = (0.0, total * forget);
                }
            }
            let part = step * steps.rows * width..(step + 1) * steps.rows * width;
            steps.multiply_back(&d_gates[part], weights, d_state);
        }
        if let Some(gradient) = gradients.of(0) {
            gradient.add(|i| d_gates[i]);
        }
        steps.add_parameter_gradients(gradients, d_gates, states, first);
        for (input, passed) in [(3, &*d_state), (4, &*d_cell)] {
            if let Some(gradient) = gradients.of(input) {
                gradient.add(|i| passed[i]);
            }
        }
        gradients.put_scratch(scratch);
        Ok(())
    }
}
