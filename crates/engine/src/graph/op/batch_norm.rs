//! Batch normalisation: `y = (x - mean) / sqrt(variance + e) * scale + bias`, with the mean and variance of each channel over the
//! batch.
//!
//! Training keeps running statistics in the scope, `running = momentum * running + (1 - momentum) * batch`; evaluation uses them
//! instead of the batch's. The variance is divided by the number of elements, not one less, as in PaddlePaddle. Training threads
//! share the running statistics.
//!
//! N rows, C channels, S positions: x is N x C x S (S = 1 for `[N, C]`), or with the channels last, (N S) x C.

use openfleet_table::Initializer;
use serde::{Deserialize, Serialize};

use super::{Initialize, Operator, Signature, expect_floats, expected, shapes};
use crate::kernel;
use crate::error::Result;
use crate::graph::{Net, ParamAttr, Var};
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Dim, Elements, Shape, Tensor};

/// Batch normalisation. Inputs: x, scale, bias, running mean, running variance. Outputs: y, and per channel the mean and 1 /
/// deviation that were used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchNorm {
    /// The axis of the channels.
    pub axis: usize,
    /// The fraction of the running statistics that is kept in each step.
    pub momentum: f32,
    /// e, added to the variance.
    pub epsilon: f32,
    /// Uses the running statistics in training too.
    pub use_global_stats: bool,
}

/// Options of batch normalisation.
#[derive(Debug, Clone)]
pub struct BatchNormOptions {
    /// The fraction of the running statistics that is kept in each step.
    pub momentum: f32,
    /// Added to the variance.
    pub epsilon: f32,
    /// The scale; starts at 1.
    pub scale: ParamAttr,
    /// The bias; starts at 0.
    pub bias: ParamAttr,
    /// The channels are the last axis (NHWC) instead of the second (NCHW).
    pub channels_last: bool,
    /// The name of the running mean; `batch_norm_N.w_1` by default.
    pub moving_mean_name: Option<String>,
    /// The name of the running variance; `batch_norm_N.w_2` by default.
    pub moving_variance_name: Option<String>,
    /// Uses the running statistics in training too, and does not change them.
    pub use_global_stats: bool,
}

impl Default for BatchNormOptions {
    fn default() -> Self {
        BatchNormOptions {
            momentum: 0.9,
            epsilon: 1e-5,
            scale: ParamAttr::default(),
            bias: ParamAttr::default(),
            channels_last: false,
            moving_mean_name: None,
            moving_variance_name: None,
            use_global_stats: false,
        }
    }
}

impl Net {
    /// Batch normalisation of `[N, C]` or `[N, C, ..]`.
    pub fn batch_norm(&mut self, x: Var, options: &BatchNormOptions) -> Result<Var> {
        let shape = self.shape(x).clone();
        let axis = if options.channels_last { shape.rank().saturating_sub(1) } else { 1 };
        let channels = channels(&shape, axis)?;
        let layer = self.unique_name("batch_norm");
        let word = format!("{layer}.w");
        let scale = self.parameter(&word, &[channels], &options.scale, Initializer::Constant(1.0))?;
        let bias = self.parameter(&format!("{layer}.b"), &[channels], &options.bias, Initializer::Constant(0.0))?;
        let mean = options.moving_mean_name.clone().unwrap_or_else(|| self.unique_name(&word));
        let mean = self.state(&mean, &[channels], DType::F32, Initialize::Zeros)?;
        let variance = options.moving_variance_name.clone().unwrap_or_else(|| self.unique_name(&word));
        let variance = self.state(&variance, &[channels], DType::F32, Initialize::Random(Initializer::Constant(1.0)))?;
        let op = BatchNorm {
            axis,
            momentum: options.momentum,
            epsilon: options.epsilon,
            use_global_stats: options.use_global_stats,
        };
        let outputs = self.append(&layer, op, &[x, scale, bias, mean, variance])?;
        self.stop_gradient(outputs[1]);
        self.stop_gradient(outputs[2]);
        Ok(outputs[0])
    }
}

/// C.
fn channels(shape: &Shape, axis: usize) -> Result<usize> {
    match (shape.rank(), shape.0.get(axis)) {
        (2.., Some(&Dim::Fixed(channels @ 1..))) => Ok(channels),
        _ => expected("batch_norm", format!("[N, C] or [N, C, ..] with fixed channels in axis {axis}"), shape),
    }
}

impl BatchNorm {
    /// Whether this batch's statistics are used.
    fn of_batch(&self, inputs: &Inputs<'_>) -> bool {
        inputs.training() && !self.use_global_stats
    }

    /// C and S.
    fn view(&self, inputs: &Inputs<'_>) -> (usize, usize) {
        (inputs.size(0, self.axis), inputs.extent(0, self.axis + 1..inputs.rank(0)).max(1))
    }
}

impl Operator for BatchNorm {
    fn name(&self) -> &'static str {
        "batch_norm"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_floats(self.name(), inputs)?;
        let per_channel = Shape::fixed(&[channels(&inputs[0].shape, self.axis)?]);
        if inputs[1..].iter().any(|input| input.shape != per_channel) {
            return expected(self.name(), format!("scale, bias, mean and variance {per_channel}"), shapes(inputs));
        }
        let per_channel = Signature::float(per_channel);
        Ok(vec![Signature::float(inputs[0].shape.clone()), per_channel.clone(), per_channel])
    }

    fn has_gradient(&self, input: usize) -> bool {
        input < 3
    }

    fn changes_state(&self, input: usize) -> bool {
        input >= 3
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (x, scale, bias) = (inputs.floats(0), inputs.floats(1), inputs.floats(2));
        let (c, s) = self.view(inputs);
        let [y, mean, inverse] = outputs.all() else { unreachable!("three outputs were inferred") };
        let (y, mean, inverse) = (&mut y.floats, &mut mean.floats, &mut inverse.floats);
        if self.of_batch(inputs) {
            let share = 1.0 / (x.len() / c).max(1) as f32;
            mean.fill(0.0);
            each(c, s, x, x, |i, x, _| mean[i] += x);
            mean.iter_mut().for_each(|mean| *mean *= share);
            // Sum around the mean: the difference of two large sums would lose the variance of a channel far from 0.
            inverse.fill(0.0);
            each(c, s, x, x, |i, x, _| inverse[i] += (x - mean[i]) * (x - mean[i]));
            inverse.iter_mut().for_each(|variance| *variance *= share);
            if !x.is_empty() {
                // Locks one state at a time, never both, so there is no lock order to keep.
                for (state, batch) in [(3, &*mean), (4, &*inverse)] {
                    let mut running = inputs.state(state).lock();
                    for (running, batch) in statistics(&mut running).iter_mut().zip(batch) {
                        *running = self.momentum * *running + (1.0 - self.momentum) * batch;
                    }
                }
            }
        } else {
            for (state, out) in [(3, &mut *mean), (4, &mut *inverse)] {
                let mut running = inputs.state(state).lock();
                out.iter_mut().zip(statistics(&mut running)).for_each(|(out, running)| *out = *running);
            }
        }
        inverse.iter_mut().for_each(|variance| *variance = 1.0 / (*variance + self.epsilon).sqrt());
        each_mut(c, s, y, x, x, |i, y, x, _| *y = (x - mean[i]) * inverse[i] * scale[i] + bias[i]);
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let (x, scale, dy) = (inputs.floats(0), inputs.floats(1), inputs.output_gradient(0));
        let (mean, inverse) = (inputs.output(1), inputs.output(2));
        let (c, s) = self.view(inputs);
        // With h = (x - mean) / deviation: the sums over a channel of dy and of dy h.
        let mut scratch = gradients.take_scratch();
        scratch.clear();
        scratch.resize(2 * c, 0.0);
        let (sums, sums_h) = scratch.split_at_mut(c);
        each(c, s, x, dy, |i, x, dy| {
            sums[i] += dy;
            sums_h[i] += dy * (x - mean[i]) * inverse[i];
        });
        if let Some(gradient) = gradients.of(1) {
            kernel::add(sums_h, gradient.accumulate());
        }
        if let Some(gradient) = gradients.of(2) {
            kernel::add(sums, gradient.accumulate());
        }
        if let Some(gradient) = gradients.of(0) {
            let (dx, keep) = gradient.begin();
            if self.of_batch(inputs) {
                let share = 1.0 / (x.len() / c).max(1) as f32;
                each_mut(c, s, dx, x, dy, |i, dx, x, dy| {
                    let h = (x - mean[i]) * inverse[i];
                    let centred = dy - share * (sums[i] + h * sums_h[i]);
                    kernel::put(dx, scale[i] * inverse[i] * centred, keep);
                });
            } else {
                each_mut(c, s, dx, x, dy, |i, dx, _, dy| kernel::put(dx, scale[i] * inverse[i] * dy, keep));
            }
        }
        gradients.put_scratch(scratch);
        Ok(())
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        // One value per channel, aligned with the axis of the channels.
        let mut per_channel = vec![-1];
        per_channel.resize(node.input_shape(0).rank() - self.axis, 1);
        let per_channel = node.ints(&per_channel);
        let x = node.input(0);
        let [scale, bias, mean, variance] = [1, 2, 3, 4].map(|input| {
            let value = node.input(input);
            node.emit("Reshape", &[&value, &per_channel], vec![])
        });
        let epsilon = node.float(self.epsilon);
        let variance = node.emit("Add", &[&variance, &epsilon], vec![]);
        let deviation = node.emit("Sqrt", &[&variance], vec![]);
        let centred = node.emit("Sub", &[&x, &mean], vec![]);
        let normal = node.emit("Div", &[&centred, &deviation], vec![]);
        let scaled = node.emit("Mul", &[&normal, &scale], vec![]);
        node.finish(0, "Add", &[&scaled, &bias], vec![]);
        Ok(())
    }
}

fn statistics<'a>(tensor: &'a mut parking_lot::MutexGuard<'_, Tensor>) -> &'a mut [f32] {
    match tensor.elements_mut() {
        Elements::F32(values) => values,
        Elements::I64(_) => panic!("running statistics are floats"),
    }
}

/// Visits the elements of two tensors N x C x S with their channel.
#[inline(always)]
fn each(c: usize, s: usize, a: &[f32], b: &[f32], mut visit: impl FnMut(usize, f32, f32)) {
    for (a, b) in a.chunks_exact(c * s).zip(b.chunks_exact(c * s)) {
        if s == 1 {
            for i in 0..c {
                visit(i, a[i], b[i]);
            }
        } else {
            for (i, (a, b)) in a.chunks_exact(s).zip(b.chunks_exact(s)).enumerate() {
                a.iter().zip(b).for_each(|(&a, &b)| visit(i, a, b));
            }
        }
    }
}

/// The same with a third tensor that is written.
#[inline(always)]
fn each_mut(
    c: usize,
    s: usize,
    out: &mut [f32],
    a: &[f32],
    b: &[f32],
    mut visit: impl FnMut(usize, &mut f32, f32, f32),
) {
    for ((out, a), b) in out.chunks_exact_mut(c * s).zip(a.chunks_exact(c * s)).zip(b.chunks_exact(c * s)) {
        if s == 1 {
            for i in 0..c {
                visit(i, &mut out[i], a[i], b[i]);
            }
        } else {
            for (i, ((out, a), b)) in out.chunks_exact_mut(s).zip(a.chunks_exact(s)).zip(b.chunks_exact(s)).enumerate()
            {
                out.iter_mut().zip(a).zip(b).for_each(|((out, &a), &b)| visit(i, out, a, b));
            }
        }
    }
}
