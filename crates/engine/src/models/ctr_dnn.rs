//! CTR-DNN: the embeddings of all slots joined with the floats, then dense layers, then a softmax over (no click, click).

use super::{CtrInputs, CtrOutputs, embed, mlp};
use crate::error::Result;
use crate::graph::Net;

/// The layer sizes of a CTR-DNN; PaddlePaddle's by default.
#[derive(Debug, Clone)]
pub struct CtrDnn {
    /// Floats per embedding.
    pub dim: usize,
    /// Sizes of the dense layers.
    pub hidden: Vec<usize>,
}

impl Default for CtrDnn {
    fn default() -> Self {
        CtrDnn { dim: 10, hidden: vec![400, 400, 400] }
    }
}

/// Builds a CTR-DNN.
pub fn ctr_dnn(net: &mut Net, inputs: &CtrInputs, shape: &CtrDnn) -> Result<CtrOutputs> {
    let mut parts = embed(net, inputs, "SparseFeatFactors", shape.dim)?;
    parts.extend(inputs.dense);
    let x = net.concat(&parts, 1)?;
    let logits = mlp(net, x, &shape.hidden, 2)?;
    let losses = net.softmax_with_cross_entropy(logits, inputs.label)?;
    let loss = net.mean(losses)?;
    let probability = net.softmax(logits)?;
    let auc = net.auc(probability, inputs.label)?;
    Ok(CtrOutputs { loss, probability, auc })
}
