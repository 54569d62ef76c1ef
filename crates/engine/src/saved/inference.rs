//! Inference models: the ops that lead to some targets, and the values that they read.
//!
//! An inference model is a checkpoint whose manifest contains the pruned program, its feeds and its targets. It has no optimizer
//! state, and loading it needs no training script.

use openfleet_dist::storage::{Addresses, Opened, Stores};
use openfleet_dist::{LoadOptions, SaveOptions};
use openfleet_table::checkpoint::Manifest;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::graph::{Program, Var};
use crate::run::Executor;
use crate::saved::onnx;

/// A program for prediction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InferenceModel {
    /// The ops that lead to the targets, and nothing else.
    pub program: Program,
    /// The names of the data variables it reads.
    pub feeds: Vec<String>,
    /// The variables it computes.
    pub targets: Vec<Var>,
}

/// Stored under `data` in the manifest.
#[derive(Serialize, Deserialize)]
struct ModelInManifest {
    inference: InferenceModel,
}

impl InferenceModel {
    /// The part of a program that leads to the targets. The feeds are in the order in which the program declares its data.
    pub fn leading_to(program: &Program, targets: &[Var]) -> Self {
        let (program, targets) = program.prune(targets);
        let feeds = program.data().map(|(_, variable)| variable.name.clone()).collect();
        InferenceModel { program, feeds, targets }
    }

    /// The part of a program that leads to the targets. Fails unless `feeds` names exactly the data variables that it reads.
    pub fn of(program: &Program, feeds: &[String], targets: &[Var]) -> Result<Self> {
        let InferenceModel { program, feeds: needed, targets } = Self::leading_to(program, targets);
        let mismatch = |expected: String, got: String| Err(Error::Input { op: "save_inference_model", expected, got });
        if let Some(missing) = needed.iter().find(|name| !feeds.contains(name)) {
            return mismatch(
                format!("`{missing}` among the feeds, because the targets are computed from it"),
                quoted(feeds),
            );
        }
        if let Some(extra) = feeds.iter().find(|name| !needed.contains(name)) {
            return mismatch(
                format!("feeds that the targets are computed from ({})", quoted(&needed)),
                format!("`{extra}`"),
            );
        }
        Ok(InferenceModel { program, feeds: feeds.to_vec(), targets })
    }
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

impl Executor {
    /// Saves what is needed to predict the targets. On a cluster the servers write their rows. Removes the ONNX files of an
    /// earlier model at this address; [`onnx::write`] writes new ones.
    pub fn save_inference_model(
        &mut self,
        program: &Program,
        feeds: &[String],
        targets: &[Var],
        address: &str,
    ) -> Result<Manifest> {
        let model = InferenceModel::of(program, feeds, targets)?;
        let only = model.program.persistables().map(|(_, variable)| variable.name.clone()).collect();
        // A model consists of ops, names and numbers, which JSON can always represent.
        let data = serde_json::to_value(ModelInManifest { inference: model }).unwrap_or_default();
        let options = SaveOptions { only, data, without_state: true, ..SaveOptions::default() };
        let manifest = self.save(program, address, &options)?;
        // They belong to the model that was here before.
        for file in [onnx::FILE, onnx::POOLED_FILE] {
            let removed =
                Addresses.open(address)?.remove(file).map_err(openfleet_table::Error::storage("remove", file));
            removed.map_err(|source| Error::checkpoint("saving to", address, source))?;
        }
        Ok(manifest)
    }

    /// Loads a model's values into the scope; the returned program can then be run and fed by name.
    pub fn load_inference_model(&mut self, address: &str) -> Result<InferenceModel> {
        let model = read_inference_model(address)?;
        self.load(&model.program, address, LoadOptions::default())?;
        Ok(model)
    }
}

/// Reads a saved model without its values.
fn read_inference_model(address: &str) -> Result<InferenceModel> {
    model_in_manifest(&Opened::new(&Addresses, address, "reading")?.manifest, address)
}

/// The model in a manifest. Fails if the checkpoint is not an inference model.
pub(crate) fn model_in_manifest(manifest: &Manifest, address: &str) -> Result<InferenceModel> {
    let model_in_manifest = ModelInManifest::deserialize(&manifest.data).map_err(|_| Error::Input {
        op: "load_inference_model",
        expected: "a model that `save_inference_model` wrote".into(),
        got: format!("a checkpoint of a job in `{address}`"),
    })?;
    let mut model = model_in_manifest.inference;
    model.program.index_names();
    Ok(model)
}
