//! A trained model as a directory: a checkpoint that says what it is a model of.
//!
//! The checkpoint's own words are in the table room and in docs/reference/checkpoint.md. What is added here is under `data` in
//! its manifest: the kind and shape of the model and how its data is read, so that the network can be built anew. What
//! `save_inference_model` wrote has its program there instead, and is opened by the same call.

use std::fs;
use std::path::Path;

use openfleet_dist::SaveOptions;
use openfleet_dist::storage::{Directories, Stores};
use openfleet_engine::{InferenceModel, Predictor};
use openfleet_table::checkpoint::{MANIFEST, Manifest, read_manifest};
use serde::{Deserialize, Serialize};

use crate::columns::DataDescription;
use crate::error::{Error, Result};
use crate::model::ModelShape;

/// What a manifest says of the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelDescription {
    /// Kind and shape.
    pub model: ModelShape,
    /// Decides the rows of ids that were never seen.
    pub seed: u64,
    /// How its data is read.
    pub data: DataDescription,
    /// Whether training ran to its end.
    pub complete: bool,
    /// Epochs that were done, where positions in the data are not counted by batches.
    pub epochs: u64,
    /// Word2Vec only: the word of key 0, 1, 2 ...
    #[serde(default)]
    pub vocabulary: Vec<String>,
}

impl ModelDescription {
    /// How a checkpoint of this model is saved.
    pub fn save_options(&self, job: &str) -> SaveOptions {
        // Plain numbers, strings and lists: there is nothing that JSON cannot say.
        let data = serde_json::to_value(self).unwrap_or_default();
        SaveOptions { job: job.to_owned(), data, ..SaveOptions::default() }
    }
}

/// A saved model, ready to predict.
pub struct Opened {
    /// What was trained and how its data is read, where `train --save` wrote it.
    pub description: Option<ModelDescription>,
    /// Its program on its values.
    pub predictor: Predictor,
}

impl Opened {
    /// What it is, in a word.
    pub fn kind(&self) -> &'static str {
        self.description.as_ref().map_or("model", |description| description.model.name())
    }
}

/// Whether `directory` can be saved to: it does not exist, is empty, or holds an older model, which is replaced. Worth
/// asking before an hour of training.
pub fn check_place(directory: &Path) -> Result<()> {
    let mut entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io("save to", directory)(error)),
    };
    if entries.next().is_none() || holds_checkpoint(directory) {
        return Ok(());
    }
    Err(Error::NotOurs { path: directory.to_owned() })
}

/// Whether there is something to go on from.
pub fn holds_checkpoint(directory: &Path) -> bool {
    directory.join(MANIFEST).is_file()
}

/// What a directory holds, without its values.
pub fn describe(directory: &Path) -> Result<(Manifest, ModelDescription)> {
    let manifest = manifest(directory)?;
    let description = serde_json::from_value(manifest.data.clone()).map_err(|error| Error::Damaged {
        path: directory.join(MANIFEST),
        expected: "the description of a model under `data`".into(),
        got: format!("something else ({error})"),
    })?;
    Ok((manifest, description))
}

fn manifest(directory: &Path) -> Result<Manifest> {
    let address = directory.to_string_lossy();
    let failed =
        |source| openfleet_dist::Error::Checkpoint { action: "reading", address: address.as_ref().into(), source };
    Ok(read_manifest(Directories.open(&address)?.as_ref()).map_err(failed)?)
}

/// Opens a model to predict with: what `train --save` wrote, whose network is built anew and cut down to its prediction, or
/// what `save_inference_model` wrote. `option` is how the user names the directory.
pub fn open(directory: &Path, option: &'static str) -> Result<Opened> {
    let address = directory.to_string_lossy();
    if manifest(directory)?.data.get("model").is_none() {
        return Ok(Opened { description: None, predictor: Predictor::open(&address)? });
    }
    let (_, description) = describe(directory)?;
    let network = description.model.build(&description.data.schema, description.seed)?;
    let Some(prediction) = network.prediction else {
        return Err(Error::BadOption {
            option,
            expected: "a model that predicts something of a row",
            got: format!("{} in {}", description.model.name(), directory.display()),
        });
    };
    let model = InferenceModel::leading_to(&network.net.main, &[prediction]);
    Ok(Opened { description: Some(description), predictor: Predictor::of(model, &address)? })
}
