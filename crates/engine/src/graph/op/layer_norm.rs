//! Layer normalisation: `y = (x - mean) / sqrt(variance + e) * scale + shift`, with mean and variance over a row.
//!
//! Axes before `begin_norm_axis` make R rows, the others D columns; scale and shift have D elements.

use openfleet_table::Initializer;
use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expect_floats, expected, shapes};
use crate::kernel;
use crate::error::Result;
use crate::graph::{Net, ParamAttr, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{Dim, Shape};

/// Layer normalisation. Inputs: x, then scale and shift if used. Outputs: y, and the mean and 1 / deviation of each row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerNorm {
    /// Axes from here on are normalised together.
    pub begin_norm_axis: usize,
    /// e, added to the variance.
    pub epsilon: f32,
    /// Whether a scale is used.
    pub scale: bool,
    /// Whether a shift is used.
    pub shift: bool,
}

/// Options of layer normalisation.
#[derive(Debug, Clone)]
pub struct LayerNormOptions {
    /// Axes from here on are normalised together.
    pub begin_norm_axis: usize,
    /// Added to the variance.
    pub epsilon: f32,
    /// The scale, initialised to 1; `None` for no scale.
    pub scale: Option<ParamAttr>,
    /// The shift, initialised to 0; `None` for no shift.
    pub shift: Option<ParamAttr>,
}

impl Default for LayerNormOptions {
    fn default() -> Self {
        LayerNormOptions {
            begin_norm_axis: 1,
            epsilon: 1e-5,
            scale: Some(ParamAttr::default()),
            shift: Some(ParamAttr::default()),
        }
    }
}

impl Net {
    /// Layer normalisation; `&LayerNormOptions::default()` normalises each row of the batch, with scale and shift.
    pub fn layer_norm(&mut self, x: Var, options: &LayerNormOptions) -> Result<Var> {
        let (_, columns) = split(&self.shape(x).clone(), options.begin_norm_axis)?;
        let layer = self.unique_name("layer_norm");
        let mut inputs = vec![x];
        if let Some(scale) = &options.scale {
            inputs.push(self.parameter(&format!("{layer}.w"), &[columns], scale, Initializer::Constant(1.0))?);
        }
        if let Some(shift) = &options.shift {
            inputs.push(self.parameter(&format!("{layer}.b"), &[columns], shift, Initializer::Constant(0.0))?);
        }
        let op = LayerNorm {
            begin_norm_axis: options.begin_norm_axis,
            epsilon: options.epsilon,
            scale: options.scale.is_some(),
            shift: options.shift.is_some(),
        };
        let outputs = self.append(&layer, op, &inputs)?;
        self.stop_gradient(outputs[1]);
        self.stop_gradient(outputs[2]);
        Ok(outputs[0])
    }
}

/// R and D.
fn split(shape: &Shape, axis: usize) -> Result<(Dim, usize)> {
    if axis == 0 || axis >= shape.rank() {
        return expected("layer_norm", format!("`begin_norm_axis` in 1..{}", shape.rank()), axis);
    }
    match (Shape::product(&shape.0[..axis]), Shape::product(&shape.0[axis..])) {
        (rows, Dim::Fixed(columns)) if columns > 0 => Ok((rows, columns)),
        _ => expected("layer_norm", format!("fixed dimensions from axis {axis} on"), shape),
    }
}

impl LayerNorm {
    fn shift_input(&self) -> Option<usize> {
        self.shift.then_some(1 + usize::from(self.scale))
    }
}

impl Operator for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_floats(self.name(), inputs)?;
        let (rows, columns) = split(&inputs[0].shape, self.begin_norm_axis)?;
        if inputs[1..].iter().any(|parameter| parameter.shape != Shape::fixed(&[columns])) {
            return expected(self.name(), format!("scale and shift of {columns} floats"), shapes(inputs));
        }
        let per_row = Signature::float(Shape(vec![rows]));
        Ok(vec![Signature::float(inputs[0].shape.clone()), per_row.clone(), per_row])
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let x = inputs.floats(0);
        let d = inputs.extent(0, self.begin_norm_axis..inputs.rank(0));
        let scale = self.scale.then(|| inputs.floats(1));
        let shift = self.shift_input().map(|input| inputs.floats(input));
        let [y, means, inverses] = outputs.all() else { unreachable!("three outputs were inferred") };
        let rows = x.chunks_exact(d).zip(y.floats.chunks_exact_mut(d));
        for ((x, y), (mean, inverse)) in rows.zip(means.floats.iter_mut().zip(&mut inverses.floats)) {
            *mean = (kernel::sum(x) / d as f64) as f32;
            for (y, x) in y.iter_mut().zip(x) {
                *y = x - *mean;
            }
            *inverse = 1.0 / (kernel::dot(y, y) / d as f32 + self.epsilon).sqrt();
            y.iter_mut().for_each(|y| *y *= *inverse);
            if let Some(scale) = scale {
                y.iter_mut().zip(scale).for_each(|(y, scale)| *y *= scale);
            }
            if let Some(shift) = shift {
                kernel::add(shift, y);
            }
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let (x, dy) = (inputs.floats(0), inputs.output_gradient(0));
        let d = inputs.extent(0, self.begin_norm_axis..inputs.rank(0));
        let statistics = || inputs.output(1).iter().zip(inputs.output(2));
        let rows = || x.chunks_exact(d).zip(dy.chunks_exact(d)).zip(statistics());
        if let Some(gradient) = self.shift_input().and_then(|input| gradients.of(input)) {
            kernel::add_rows(dy, gradient.accumulate());
        }
        if let Some(gradient) = self.scale.then(|| gradients.of(1)).flatten() {
            let sums = gradient.accumulate();
            for ((x, dy), (&mean, &inverse)) in rows() {
                for ((sum, x), dy) in sums.iter_mut().zip(x).zip(dy) {
                    *sum += dy * (x - mean) * inverse;
                }
            }
        }
        let mut scratch = gradients.take_scratch();
        if let Some(gradient) = gradients.of(0) {
            // With h = (x - mean) / deviation and g = dy * scale: dx = (g - mean(g) - h mean(g h)) / deviation.
            scratch.resize(2 * d, 0.0);
            let (g, h) = scratch.split_at_mut(d);
            let (dx, keep) = gradient.begin();
            for (((x, dy), (&mean, &inverse)), dx) in rows().zip(dx.chunks_exact_mut(d)) {
                match self.scale {
                    true => kernel::product(dy, inputs.floats(1), g),
                    false => g.copy_from_slice(dy),
                }
                h.iter_mut().zip(x).for_each(|(h, x)| *h = (x - mean) * inverse);
                let mean_g = (kernel::sum(g) / d as f64) as f32;
                let mean_gh = kernel::dot(g, h) / d as f32;
                for ((dx, g), h) in dx.iter_mut().zip(&*g).zip(&*h) {
                    kernel::put(dx, (g - mean_g - h * mean_gh) * inverse, keep);
                }
            }
        }
        gradients.put_scratch(scratch);
        Ok(())
    }
}
