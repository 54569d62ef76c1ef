//! DeepFM: first-order weights, pairwise interactions of all embeddings, and a deep part on the same embeddings.
//!
//! F slots plus floats, D dim. A float takes part in the interactions as its value times a trained vector.

use openfleet_table::Initializer;

use super::{CtrInputs, CtrOutputs, EMBEDDING_STD, click_outputs, embed, mlp};
use crate::error::Result;
use crate::graph::op::Activation;
use crate::graph::{Net, ParamAttr};

/// The layer sizes of a DeepFM; PaddlePaddle's by default.
#[derive(Debug, Clone)]
pub struct DeepFm {
    /// Floats per embedding.
    pub dim: usize,
    /// Sizes of the dense layers.
    pub hidden: Vec<usize>,
}

impl Default for DeepFm {
    fn default() -> Self {
        DeepFm { dim: 9, hidden: vec![512, 256, 128, 32] }
    }
}

/// Builds a DeepFM.
pub fn deepfm(net: &mut Net, inputs: &CtrInputs, shape: &DeepFm) -> Result<CtrOutputs> {
    let dim = shape.dim;
    let first_order = embed(net, inputs, "first_order", 1)?;
    let first_order = net.concat(&first_order, 1)?;
    let mut logit = net.reduce_sum(first_order, &[1], true)?;
    let mut vectors = embed(net, inputs, "embedding", dim)?;
    if let Some(dense) = inputs.dense {
        let linear = net.fc(dense, 1, Activation::Linear)?;
        logit = net.add(logit, linear)?;
        let count = net.shape(dense).columns().unwrap_or(1);
        let small = Initializer::Normal { mean: 0.0, std: EMBEDDING_STD };
        let dense_vectors = net.parameter("dense_vectors.w", &[count, dim], &ParamAttr::default(), small)?;
        let values = net.unsqueeze(dense, &[2])?;
        let scaled = net.multiply(values, dense_vectors)?;
        vectors.push(net.reshape(scaled, &[-1, (count * dim) as i64])?);
    }
    let x = net.concat(&vectors, 1)?;
    let fields = net.shape(x).columns().unwrap_or(dim) / dim;
    let interactions = net.fm_of(x, fields)?;
    logit = net.add(logit, interactions)?;
    let deep = mlp(net, x, &shape.hidden, 1)?;
    logit = net.add(logit, deep)?;
    click_outputs(net, logit, inputs.label)
}
