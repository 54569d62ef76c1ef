//! DCN (version 1): explicit crosses of all features and a deep part in parallel, joined by a final linear layer.

use super::{CtrInputs, CtrOutputs, click_outputs, embed, mlp};
use crate::error::Result;
use crate::graph::Net;
use crate::graph::op::Activation;

/// The layer sizes of a DCN; PaddlePaddle's by default.
#[derive(Debug, Clone)]
pub struct Dcn {
    /// Floats per embedding.
    pub dim: usize,
    /// The number of cross layers.
    pub crosses: usize,
    /// Sizes of the dense layers.
    pub hidden: Vec<usize>,
}

impl Default for Dcn {
    fn default() -> Self {
        Dcn { dim: 9, crosses: 2, hidden: vec![512, 256, 128, 32] }
    }
}

/// Builds a DCN.
pub fn dcn(net: &mut Net, inputs: &CtrInputs, shape: &Dcn) -> Result<CtrOutputs> {
    let mut parts = embed(net, inputs, "embedding", shape.dim)?;
    parts.extend(inputs.dense);
    let x = net.concat(&parts, 1)?;
    let mut crossed = x;
    for _ in 0..shape.crosses {
        crossed = net.cross(x, crossed)?;
    }
    let (&last, before) = shape.hidden.split_last().unwrap_or((&1, &[]));
    let deep = mlp(net, x, before, last)?;
    let deep = net.relu(deep)?;
    let joined = net.concat(&[crossed, deep], 1)?;
    let logit = net.fc(joined, 1, Activation::Linear)?;
    click_outputs(net, logit, inputs.label)
}
