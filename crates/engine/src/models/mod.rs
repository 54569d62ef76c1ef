//! Ready-made models, each a plain function over the layers.
//!
//! A model takes variables and returns variables. It owns nothing, so a user's own model is written the same way. Sizes default
//! to PaddlePaddle's. There is one model per file.

mod counter;
mod ctr_dnn;
mod dcn;
mod deepfm;
mod fit_a_line;
mod wide_deep;
mod word2vec;

pub use counter::{COUNTER_TABLE, Counter, counter};
pub use ctr_dnn::{CtrDnn, ctr_dnn};
pub use dcn::{Dcn, dcn};
pub use deepfm::{DeepFm, deepfm};
pub use fit_a_line::{FitALine, fit_a_line};
pub use wide_deep::{WideDeep, wide_deep};
pub use word2vec::{INPUT_TABLE, OUTPUT_TABLE, Word2Vec, Word2VecVars, word2vec};

use openfleet_core::FieldKind;
use openfleet_core::Schema;
use openfleet_table::{Initializer, RowStorage};

use crate::error::{Error, Result};
use crate::graph::op::{Activation, AucVars, EmbeddingOptions, FcOptions};
use crate::graph::{Net, ParamAttr, RowLife, Var};
use crate::value::DType;

/// The inputs of a click model: slots of ids, floats, and the label.
#[derive(Debug, Clone)]
pub struct CtrInputs {
    /// Categorical slots.
    pub slots: Vec<Var>,
    /// Floats, if there are any.
    pub dense: Option<Var>,
    /// The label: 0 or 1.
    pub label: Var,
    /// Whether equal ids of different slots are one feature with one row. Otherwise every slot has its own rows: its ids are
    /// salted with its name.
    pub share_ids: bool,
    /// How the weights of embedding rows are stored.
    pub storage: RowStorage,
}

/// The outputs of a click model.
#[derive(Debug, Clone, Copy)]
pub struct CtrOutputs {
    /// The mean loss of the batch.
    pub loss: Var,
    /// The probability of a click, [B, 1] or, from a softmax, [B, 2] with the click last.
    pub probability: Var,
    /// The area under the curve.
    pub auc: AucVars,
}

impl CtrInputs {
    /// Declares a data variable for each field of a schema: the field `label`, slots of ids, and at most one field of
    /// floats. Slots do not share ids, and rows are floats.
    pub fn declare(net: &mut Net, schema: &Schema) -> Result<Self> {
        let (mut slots, mut dense, mut label) = (Vec::new(), None, None);
        for field in schema.fields() {
            match field.kind {
                FieldKind::FixedIds { length: 1 } if field.name == "label" => {
                    label = Some(net.data(&field.name, &[-1, 1], DType::I64)?);
                }
                FieldKind::Ids | FieldKind::FixedIds { .. } => slots.push(net.slot(&field.name)?),
                FieldKind::Floats { dim } => dense = Some(net.data(&field.name, &[-1, dim as i64], DType::F32)?),
            }
        }
        match label {
            Some(label) => Ok(CtrInputs { slots, dense, label, share_ids: false, storage: RowStorage::Float32 }),
            None => Err(Error::NotFed {
                name: "label".into(),
                known: schema.fields().iter().map(|field| field.name.clone()).collect(),
            }),
        }
    }
}

/// The standard deviation of the first weights of embeddings: small, so that an id that was seen once has little effect.
const EMBEDDING_STD: f32 = 0.01;

/// Looks all slots up in one table: one [B, dim] per slot.
fn embed(net: &mut Net, inputs: &CtrInputs, table: &str, dim: usize) -> Result<Vec<Var>> {
    let table = ParamAttr {
        name: Some(table.to_owned()),
        initializer: Some(Initializer::Normal { mean: 0.0, std: EMBEDDING_STD }),
        ..ParamAttr::default()
    };
    let rows = RowLife { storage: inputs.storage, ..RowLife::default() };
    let mut options = EmbeddingOptions { table, rows, ..EmbeddingOptions::default() };
    let embedded = inputs.slots.iter().map(|&slot| {
        options.salt = (!inputs.share_ids).then(|| net.main.variable(slot).name.clone());
        net.embedding(slot, dim, &options)
    });
    embedded.collect()
}

/// Dense layers with ReLU, then a linear layer of size `outputs`. Weights are normal with std 1/sqrt(inputs), as in PaddlePaddle.
fn mlp(net: &mut Net, x: Var, hidden: &[usize], outputs: usize) -> Result<Var> {
    let mut x = x;
    let sizes = hidden.iter().map(|&size| (size, Activation::Relu)).chain([(outputs, Activation::Linear)]);
    for (size, activation) in sizes {
        let inputs = net.shape(x).columns().unwrap_or(1).max(1);
        let std = 1.0 / (inputs as f32).sqrt();
        let weight = ParamAttr::init(Initializer::Normal { mean: 0.0, std });
        x = net.fc_with(x, size, FcOptions { activation, weight, ..FcOptions::default() })?;
    }
    Ok(x)
}

/// The loss and metrics of one logit per row, [B, 1].
fn click_outputs(net: &mut Net, logit: Var, label: Var) -> Result<CtrOutputs> {
    let target = net.cast(label, DType::F32)?;
    let losses = net.sigmoid_cross_entropy_with_logits(logit, target)?;
    let loss = net.mean(losses)?;
    let probability = net.sigmoid(logit)?;
    let auc = net.auc(probability, label)?;
    Ok(CtrOutputs { loss, probability, auc })
}
