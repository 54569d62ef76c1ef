//! A dense layer: `y = activation(x w + b)`, bias and activation fused into one pass over the product.
//!
//! B rows, I inputs, O outputs: x is B x I (leading dimensions are flattened), w is I x O, b is O.

use openfleet_table::Initializer;
use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expect_floats, expected, shapes};
use crate::kernel;
use crate::error::Result;
use crate::graph::{Net, ParamAttr, Var};
use crate::graph::onnx_builder::OnnxNode;
use crate::kernel::matrix::{Plain, Transposed, multiply};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{Dim, Shape};

/// The activation function of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Activation {
    /// No activation.
    #[default]
    Linear,
    /// max(x, 0).
    Relu,
    /// 1 / (1 + exp(-x)).
    Sigmoid,
    /// tanh(x).
    Tanh,
}

/// A dense layer. Inputs: x, w and, with `bias`, b.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fc {
    /// The activation.
    pub activation: Activation,
    /// Whether the layer has a bias.
    pub bias: bool,
    /// Leading dimensions of x that count as rows; the others are flattened into I.
    pub row_axes: usize,
}

/// Options of a dense layer.
#[derive(Debug, Clone)]
pub struct FcOptions {
    /// The activation.
    pub activation: Activation,
    /// The weights; Xavier by default.
    pub weight: ParamAttr,
    /// The bias, initialised to 0 by default; `None` for no bias.
    pub bias: Option<ParamAttr>,
    /// Leading dimensions of x that count as rows.
    pub row_axes: usize,
    /// The layer's name; `fc_N` by default.
    pub name: Option<String>,
}

impl Default for FcOptions {
    fn default() -> Self {
        FcOptions {
            activation: Activation::Linear,
            weight: ParamAttr::default(),
            bias: Some(ParamAttr::default()),
            row_axes: 1,
            name: None,
        }
    }
}

impl Net {
    /// A dense layer of `size` outputs with Xavier weights and a zero bias.
    pub fn fc(&mut self, x: Var, size: usize, activation: Activation) -> Result<Var> {
        self.fc_with(x, size, FcOptions { activation, ..FcOptions::default() })
    }

    /// A dense layer with all options.
    pub fn fc_with(&mut self, x: Var, size: usize, options: FcOptions) -> Result<Var> {
        let inputs = input_size(&self.shape(x).clone(), options.row_axes)?;
        let layer = options.name.clone().unwrap_or_else(|| self.unique_name("fc"));
        let weight = self.parameter(
            &format!("{layer}.w"),
            &[inputs, size],
            &options.weight,
            Initializer::Xavier { uniform: true, fan_in: None, fan_out: None },
        )?;
        let mut all = vec![x, weight];
        if let Some(bias) = &options.bias {
            all.push(self.parameter(&format!("{layer}.b"), &[size], bias, Initializer::Constant(0.0))?);
        }
        let op = Fc { activation: options.activation, bias: options.bias.is_some(), row_axes: options.row_axes };
        self.append_one(&layer, op, &all)
    }
}

fn input_size(shape: &Shape, row_axes: usize) -> Result<usize> {
    if row_axes == 0 || row_axes >= shape.rank() {
        return expected("fc", format!("more than {row_axes} dimension(s)"), shape);
    }
    match Shape::product(&shape.0[row_axes..]) {
        Dim::Fixed(n) => Ok(n),
        _ => expected("fc", "fixed dimensions after the rows", shape),
    }
}

impl Operator for Fc {
    fn name(&self) -> &'static str {
        "fc"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_floats(self.name(), inputs)?;
        let size = input_size(&inputs[0].shape, self.row_axes)?;
        let fits = inputs[1].shape.rank() == 2
            && inputs[1].shape.0[0] == Dim::Fixed(size)
            && (!self.bias || inputs[2].shape.0 == inputs[1].shape.0[1..]);
        if !fits {
            return expected(self.name(), "x [B, I], w [I, O] and b [O]", shapes(inputs));
        }
        let mut dims = inputs[0].shape.0[..self.row_axes].to_vec();
        dims.push(inputs[1].shape.0[1]);
        Ok(vec![Signature::float(Shape(dims))])
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (x, w) = (inputs.floats(0), inputs.floats(1));
        let (i, o) = (inputs.size(1, 0), inputs.size(1, 1));
        let y = outputs.floats(0);
        multiply(x.len() / i, o, i, x, Plain, w, Plain, 0.0, y);
        match (self.bias, self.activation) {
            (true, Activation::Relu) => kernel::add_bias_relu(y, inputs.floats(2)),
            (true, _) => kernel::add_bias(y, inputs.floats(2)),
            (false, _) => {}
        }
        match self.activation {
            Activation::Relu if !self.bias => y.iter_mut().for_each(|v| *v = kernel::relu(*v)),
            Activation::Sigmoid => kernel::transcendental::sigmoid_each(y),
            Activation::Tanh => kernel::transcendental::tanh_each(y),
            Activation::Relu | Activation::Linear => {}
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let (x, w) = (inputs.floats(0), inputs.floats(1));
        let (i, o) = (inputs.size(1, 0), inputs.size(1, 1));
        let rows = x.len() / i;
        let y_gradient = inputs.output_gradient(0);
        // The gradient of the sum before the activation.
        let mut scratch = gradients.take_scratch();
        let sum_gradient = match self.activation {
            Activation::Linear => y_gradient,
            activation => {
                scratch.resize(y_gradient.len(), 0.0);
                activation_gradient(activation, inputs.output(0), y_gradient, &mut scratch);
                &scratch
            }
        };
        if self.bias
            && let Some(gradient) = gradients.of(2)
        {
            kernel::add_rows(sum_gradient, gradient.accumulate());
        }
        if let Some(gradient) = gradients.of(1) {
            let (values, keep) = gradient.begin();
            multiply(i, o, rows, x, Transposed, sum_gradient, Plain, keep, values);
        }
        if let Some(gradient) = gradients.of(0) {
            let (values, keep) = gradient.begin();
            multiply(rows, i, o, sum_gradient, Plain, w, Transposed, keep, values);
        }
        gradients.put_scratch(scratch);
        Ok(())
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        let (mut x, shape) = (node.input(0), node.input_shape(0));
        if shape.rank() != 2 {
            let rows = node.ints(&[-1, input_size(&shape, self.row_axes)? as i64]);
            x = node.emit("Reshape", &[&x, &rows], vec![]);
        }
        let mut inputs = vec![x, node.input(1)];
        if self.bias {
            inputs.push(node.input(2));
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let product = if self.bias { "Gemm" } else { "MatMul" };
        let activation = match self.activation {
            Activation::Linear => None,
            Activation::Relu => Some("Relu"),
            Activation::Sigmoid => Some("Sigmoid"),
            Activation::Tanh => Some("Tanh"),
        };
        match (activation, node.output_shape(0).rank()) {
            (None, 2) => node.finish(0, product, &inputs, vec![]),
            (Some(activation), 2) => {
                let sums = node.emit(product, &inputs, vec![]);
                node.finish(0, activation, &[&sums], vec![]);
            }
            (activation, _) => {
                let mut y = node.emit(product, &inputs, vec![]);
                if let Some(activation) = activation {
                    y = node.emit(activation, &[&y], vec![]);
                }
                node.finish_reshaped(0, &y);
            }
        }
        Ok(())
    }
}

fn activation_gradient(activation: Activation, y: &[f32], y_gradient: &[f32], out: &mut [f32]) {
    match activation {
        Activation::Linear => out.copy_from_slice(y_gradient),
        Activation::Relu => kernel::relu_gradient(y, y_gradient, out),
        Activation::Sigmoid => {
            for ((o, &y), &g) in out.iter_mut().zip(y).zip(y_gradient) {
                *o = g * y * (1.0 - y);
            }
        }
        Activation::Tanh => {
            for ((o, &y), &g) in out.iter_mut().zip(y).zip(y_gradient) {
                *o = g * (1.0 - y * y);
            }
        }
    }
}
