//! Wide & Deep: a linear part that memorises and a deep part that generalises.

use super::{CtrInputs, CtrOutputs, click_outputs, embed, mlp};
use crate::error::Result;
use crate::graph::Net;
use crate::graph::op::Activation;

/// The layer sizes of a Wide & Deep; PaddlePaddle's by default.
#[derive(Debug, Clone)]
pub struct WideDeep {
    /// Floats per embedding of the deep part.
    pub dim: usize,
    /// Sizes of the dense layers.
    pub hidden: Vec<usize>,
    /// Whether the wide part also has a weight for every id, as in the paper; PaddlePaddle's has only the floats.
    pub wide_ids: bool,
}

impl Default for WideDeep {
    fn default() -> Self {
        WideDeep { dim: 9, hidden: vec![512, 256, 128, 32], wide_ids: false }
    }
}

/// Builds a Wide & Deep.
pub fn wide_deep(net: &mut Net, inputs: &CtrInputs, shape: &WideDeep) -> Result<CtrOutputs> {
    let mut parts = embed(net, inputs, "embedding", shape.dim)?;
    parts.extend(inputs.dense);
    let x = net.concat(&parts, 1)?;
    let mut logit = mlp(net, x, &shape.hidden, 1)?;
    if let Some(dense) = inputs.dense {
        let wide = net.fc(dense, 1, Activation::Linear)?;
        logit = net.add(logit, wide)?;
    }
    if shape.wide_ids {
        for weight in embed(net, inputs, "wide", 1)? {
            logit = net.add(logit, weight)?;
        }
    }
    click_outputs(net, logit, inputs.label)
}
