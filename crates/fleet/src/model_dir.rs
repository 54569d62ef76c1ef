//! A trained model at an address: a checkpoint that describes its model.
//!
//! docs/reference/checkpoint.md describes the checkpoint itself. This module adds the kind and sizes of the model and the
//! format of its data under `data` in the manifest, so that the network can be rebuilt. A model of `save_inference_model` has
//! its program there instead, and is opened by the same call.

use openfleet_dist::SaveOptions;
use openfleet_dist::storage::{Addresses, Opened, Stores};
use openfleet_engine::{InferenceModel, Predictor};
use openfleet_table::RowStorage;
use openfleet_table::checkpoint::{MANIFEST, Manifest, Storage, is_of_a_save};
use serde::{Deserialize, Serialize};

use crate::columns::DataDescription;
use crate::error::{Error, Result};
use crate::model::{ModelShape, Salt};

/// The description of a model in a manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelDescription {
    /// Kind and sizes.
    pub model: ModelShape,
    /// The seed, which determines the rows of ids that were never seen.
    pub seed: u64,
    /// The format of its data.
    pub data: DataDescription,
    /// The salt of ids; absent if equal ids of different slots share a row, as in all models saved before salts existed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub salt: Option<Salt>,
    /// How rows are stored, which also rounds the rows of ids that were never seen.
    #[serde(default, skip_serializing_if = "RowStorage::is_float32")]
    pub storage: RowStorage,
    /// Whether training ran to its end.
    pub complete: bool,
    /// Complete epochs, for modes that do not count positions in batches.
    pub epochs: u64,
    /// word2vec only: the words of key 0, 1, 2, ...
    #[serde(default)]
    pub vocabulary: Vec<String>,
}

impl ModelDescription {
    /// The options for saving a checkpoint of this model.
    pub fn save_options(&self, job: &str) -> SaveOptions {
        // Numbers, strings and lists always serialize.
        let data = serde_json::to_value(self).unwrap_or_default();
        SaveOptions { job: job.to_owned(), data, ..SaveOptions::default() }
    }
}

/// A saved model, ready to predict.
pub struct SavedModel {
    /// The model and the format of its data, if `train --save` wrote it.
    pub description: Option<ModelDescription>,
    /// The program with its values.
    pub predictor: Predictor,
}

impl SavedModel {
    /// The kind of model, in one word.
    pub fn kind(&self) -> &'static str {
        self.description.as_ref().map_or("model", |description| description.model.name())
    }
}

/// Checks that an address can be saved to: it is empty, or has an older model, which is replaced, or the remains of a save that
/// was killed. Called before training.
pub fn check_place(address: &str) -> Result<()> {
    let names = ask("list", address, |storage| storage.list(""))?;
    if names.iter().any(|name| name == MANIFEST) || names.iter().all(|name| is_of_a_save(name)) {
        return Ok(());
    }
    Err(Error::NotOurs { address: address.to_owned() })
}

/// Writes a small file and removes it, so that a read-only or full disk is found before training. Called by the processes that
/// will write: servers, or a process that trains locally.
pub fn probe(address: &str) -> Result<()> {
    let directory = format!(".saving-{}", openfleet_dist::fresh_save_id());
    ask("write to", address, |storage| {
        let written = (|| {
            storage.make_directory(&directory)?;
            let mut file = storage.create(&format!("{directory}/probe"))?;
            file.write_all(&[0; 4096])?;
            file.sync()
        })();
        let removed = storage.remove(&directory);
        written.and(removed)
    })
}

/// Whether the address has a checkpoint to resume from.
pub fn holds_checkpoint(address: &str) -> Result<bool> {
    Ok(ask("look for a checkpoint in", address, |storage| storage.size(MANIFEST))?.is_some())
}

fn ask<T>(action: &'static str, address: &str, ask: impl FnOnce(&dyn Storage) -> std::io::Result<T>) -> Result<T> {
    let answer = ask(Addresses.open(address)?.as_ref()).map_err(openfleet_table::Error::storage(action, address));
    Ok(answer.map_err(openfleet_dist::Error::checkpoint("saving to", address))?)
}

/// Reads the description of the model at an address, without its values.
pub fn describe(address: &str) -> Result<(Manifest, ModelDescription)> {
    let manifest = Opened::new(&Addresses, address, "reading")?.manifest;
    let description = serde_json::from_value(manifest.data.clone()).map_err(|error| Error::Damaged {
        file: format!("{}/{MANIFEST}", address.trim_end_matches('/')),
        expected: "the description of a model under `data`".into(),
        got: format!("something else ({error})"),
    })?;
    Ok((manifest, description))
}

/// Opens a model for prediction: one of `train --save`, whose network is rebuilt and reduced to its prediction, or one of
/// `save_inference_model`. `option` is the name of the address in errors.
pub fn open(address: &str, option: &'static str) -> Result<SavedModel> {
    if Opened::new(&Addresses, address, "reading")?.manifest.data.get("model").is_none() {
        return Ok(SavedModel { description: None, predictor: Predictor::open(address)? });
    }
    let (_, description) = describe(address)?;
    let ModelDescription { model, seed, data, salt, storage, .. } = &description;
    let network = model.build(&data.schema, *seed, *salt, *storage)?;
    let Some(prediction) = network.prediction else {
        return Err(Error::BadOption {
            option,
            expected: "a model that predicts something of a row",
            got: format!("{} in {address}", description.model.name()),
        });
    };
    let model = InferenceModel::leading_to(&network.net.main, &[prediction]);
    Ok(SavedModel { description: Some(description), predictor: Predictor::of(model, address)? })
}
