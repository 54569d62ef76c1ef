//! A kind of model with its sizes, and the network built from it.
//!
//! Equal sizes, schema and seed give the same network with the same names, which is how a saved model finds its values. The
//! engine defines the models (`openfleet_engine::models`); this module has one enum for them that can be saved.

use std::fmt;

use openfleet_core::{FieldKind, Schema};
use openfleet_engine::models::{self, CtrInputs, CtrOutputs};
use openfleet_engine::op::AucVars;
use openfleet_engine::{DType, Net, Program, Scope, Tensor, Var};
use openfleet_table::RowStorage;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A kind of model with everything that determines its network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields are those of the engine's structs of the same names")]
pub enum ModelShape {
    /// Embeddings and floats through dense layers.
    CtrDnn { dim: usize, hidden: Vec<usize> },
    /// A linear part next to a deep part.
    WideDeep { dim: usize, hidden: Vec<usize>, wide_ids: bool },
    /// First order, pairwise interactions and a deep part.
    #[serde(rename = "deepfm")]
    DeepFm { dim: usize, hidden: Vec<usize> },
    /// Explicit crosses next to a deep part.
    Dcn { dim: usize, hidden: Vec<usize>, crosses: usize },
    /// Skip-gram with negative sampling.
    Word2vec { dim: usize, window: usize, negatives: usize },
    /// Linear regression on the floats.
    FitALine,
    /// Counts how often each id occurs.
    Counter { scale: u32 },
}

/// What the ids of a slot are salted with, so that equal ids of different slots have different rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Salt {
    /// The slot's name: `openfleet_core::key::salt`.
    SlotName,
}

/// The hint for data without a slot of ids.
const NO_SLOTS: &str = "describe categorical columns, or cut numbers into categories with `boundaries`";

/// A network ready to be trained or run.
pub struct Network {
    /// Its main and startup programs.
    pub net: Net,
    /// The loss that training minimizes.
    pub loss: Var,
    /// Whether the loss is a sum over the rows of a batch and not their mean.
    pub loss_is_sum: bool,
    /// The prediction, one per row, in the last column; `None` if the model predicts nothing per row.
    pub prediction: Option<Var>,
    /// The AUC, for models that predict a click.
    pub auc: Option<AucVars>,
}

impl ModelShape {
    /// The name on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            ModelShape::CtrDnn { .. } => "ctr_dnn",
            ModelShape::WideDeep { .. } => "wide_deep",
            ModelShape::DeepFm { .. } => "deepfm",
            ModelShape::Dcn { .. } => "dcn",
            ModelShape::Word2vec { .. } => "word2vec",
            ModelShape::FitALine => "fit_a_line",
            ModelShape::Counter { .. } => "counter",
        }
    }

    /// Builds the network for the fields of a schema; the seed determines all random numbers. With a salt, every slot of a
    /// click model has its own rows. `storage` is how click models store rows; other models store floats.
    pub fn build(&self, schema: &Schema, seed: u64, salt: Option<Salt>, storage: RowStorage) -> Result<Network> {
        let mut net = Net::with_seed(seed);
        match self {
            ModelShape::Word2vec { dim, window, negatives } => {
                let shape = models::Word2Vec { dim: *dim, window: *window, negatives: *negatives };
                let loss = models::word2vec(&mut net, &shape)?.loss;
                Ok(Network { net, loss, loss_is_sum: true, prediction: None, auc: None })
            }
            ModelShape::FitALine => {
                let dim = self.check_regression(schema)?;
                let x = net.data("dense", &[-1, dim as i64], DType::F32)?;
                let label = net.data("label", &[-1, 1], DType::F32)?;
                let line = models::fit_a_line(&mut net, x, label)?;
                Ok(Network { net, loss: line.loss, loss_is_sum: false, prediction: Some(line.prediction), auc: None })
            }
            ModelShape::Counter { scale } => {
                let slots = self.counted_slots(schema)?;
                let slots = slots.iter().map(|name| Ok(net.slot(name)?)).collect::<Result<Vec<_>>>()?;
                let loss = models::counter(&mut net, &slots, &models::Counter { scale: *scale })?;
                Ok(Network { net, loss, loss_is_sum: true, prediction: None, auc: None })
            }
            _ => {
                self.check_clicks(schema)?;
                let inputs = CtrInputs { share_ids: salt.is_none(), storage, ..CtrInputs::declare(&mut net, schema)? };
                let outputs = self.build_clicks(&mut net, &inputs)?;
                Ok(Network {
                    net,
                    loss: outputs.loss,
                    loss_is_sum: false,
                    prediction: Some(outputs.probability),
                    auc: Some(outputs.auc),
                })
            }
        }
    }

    fn build_clicks(&self, net: &mut Net, inputs: &CtrInputs) -> Result<CtrOutputs> {
        let outputs = match self.clone() {
            ModelShape::CtrDnn { dim, hidden } => models::ctr_dnn(net, inputs, &models::CtrDnn { dim, hidden }),
            ModelShape::WideDeep { dim, hidden, wide_ids } => {
                models::wide_deep(net, inputs, &models::WideDeep { dim, hidden, wide_ids })
            }
            ModelShape::DeepFm { dim, hidden } => models::deepfm(net, inputs, &models::DeepFm { dim, hidden }),
            ModelShape::Dcn { dim, hidden, crosses } => models::dcn(net, inputs, &models::Dcn { dim, hidden, crosses }),
            ModelShape::Word2vec { .. } | ModelShape::FitALine | ModelShape::Counter { .. } => {
                unreachable!("not a model of clicks")
            }
        };
        Ok(outputs?)
    }

    fn check_clicks(&self, schema: &Schema) -> Result<()> {
        let label = schema.fields().iter().find(|field| field.name == "label");
        let floats = schema.fields().iter().filter(|field| matches!(field.kind, FieldKind::Floats { .. }));
        let slots = schema.fields().iter().filter(|field| field.kind == FieldKind::Ids).count();
        let complain = |expected, got, remedy| Err(Error::Fields { model: self.name(), expected, got, remedy });
        match label.map(|field| field.kind) {
            Some(FieldKind::FixedIds { length: 1 }) => {}
            None => return complain("a field `label`", "none".into(), "describe the label in the columns file"),
            Some(_) => {
                let remedy = "leave `regression` out of the description, or train `fit_a_line`";
                return complain("a `label` that is 0 or 1", "one that is a number to come close to".into(), remedy);
            }
        }
        match (floats.count(), slots) {
            (2.., _) => complain("at most one field of floats", describe(schema), "put all floats into one field"),
            (_, 0) => complain("at least one slot of ids", describe(schema), NO_SLOTS),
            _ => Ok(()),
        }
    }

    /// The names of all id fields except the label.
    fn counted_slots<'a>(&self, schema: &'a Schema) -> Result<Vec<&'a str>> {
        let is_slot = |kind| matches!(kind, FieldKind::Ids | FieldKind::FixedIds { .. });
        let slots = schema.fields().iter().filter(|field| field.name != "label" && is_slot(field.kind));
        let names: Vec<&str> = slots.map(|field| field.name.as_str()).collect();
        match names.is_empty() {
            true => Err(Error::Fields {
                model: self.name(),
                expected: "at least one slot of ids",
                got: describe(schema),
                remedy: NO_SLOTS,
            }),
            false => Ok(names),
        }
    }

    fn check_regression(&self, schema: &Schema) -> Result<usize> {
        let kind = |name: &str| schema.fields().iter().find(|field| field.name == name).map(|field| field.kind);
        match (kind("label"), kind("dense")) {
            (Some(FieldKind::Floats { dim: 1 }), Some(FieldKind::Floats { dim })) => Ok(dim),
            _ => Err(Error::Fields {
                model: self.name(),
                expected: "a `label` of one float and a field `dense` of floats",
                got: describe(schema),
                remedy: "describe the label with `regression = true`, and at least one dense column",
            }),
        }
    }
}

/// The sizes in one line, as the options write them.
impl fmt::Display for ModelShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers = |hidden: &[usize]| hidden.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        match self {
            ModelShape::CtrDnn { dim, hidden } | ModelShape::DeepFm { dim, hidden } => {
                write!(f, "dim {dim}, hidden {}", layers(hidden))
            }
            ModelShape::WideDeep { dim, hidden, wide_ids } => {
                let wide = if *wide_ids { "floats and ids" } else { "floats" };
                write!(f, "dim {dim}, hidden {}, wide part of {wide}", layers(hidden))
            }
            ModelShape::Dcn { dim, hidden, crosses } => {
                write!(f, "dim {dim}, hidden {}, {crosses} crosses", layers(hidden))
            }
            ModelShape::Word2vec { dim, window, negatives } => {
                write!(f, "dim {dim}, window {window}, {negatives} negatives")
            }
            ModelShape::FitALine => write!(f, "linear"),
            ModelShape::Counter { scale } => write!(f, "scale {scale}"),
        }
    }
}

impl Network {
    /// Sets the AUC counters to zero, so that the AUC covers only the following rows.
    pub fn zero_auc(&self, scope: &Scope) -> Result<()> {
        for counter in self.auc.iter().flat_map(|auc| auc.counters) {
            let name = &self.net.main.variable(counter).name;
            if let Some(counts) = scope.get(name) {
                scope.set(name, Tensor::zeros(counts.dims(), DType::I64))?;
            }
        }
        Ok(())
    }

    /// The AUC of all rows since the counters were set to zero.
    pub fn counted_auc(&self, scope: &Scope) -> Option<f64> {
        let [positive, negative] = self.auc_buckets(scope)?;
        Some(openfleet_core::metrics::global_auc(&positive, &negative))
    }

    /// Positive and negative rows per bucket of predicted probability, since the counters were set to zero.
    pub fn auc_buckets(&self, scope: &Scope) -> Option<[Vec<i64>; 2]> {
        let [_, _, positive, negative] =
            self.auc?.counters.map(|counter| scope.get(&self.net.main.variable(counter).name));
        Some([positive?.i64s()?.to_vec(), negative?.i64s()?.to_vec()])
    }

    /// Floats in all dense parameters.
    pub fn parameter_count(&self) -> usize {
        self.net.main.parameters().map(|(_, variable)| variable.shape.elements(0)).sum()
    }
}

/// The names of a program's sparse tables.
pub fn table_names(program: &Program) -> Vec<String> {
    program.tables().map(|(_, variable)| variable.name.clone()).collect()
}

fn describe(schema: &Schema) -> String {
    let fields: Vec<String> = schema
        .fields()
        .iter()
        .map(|field| match field.kind {
            FieldKind::Ids => format!("`{}` (ids)", field.name),
            FieldKind::FixedIds { length } => format!("`{}` ({length} integers)", field.name),
            FieldKind::Floats { dim } => format!("`{}` ({dim} floats)", field.name),
        })
        .collect();
    if fields.is_empty() { "no fields".into() } else { fields.join(", ") }
}
