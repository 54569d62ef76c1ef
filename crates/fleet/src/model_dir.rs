//! A trained model at an address: a checkpoint that says what it is a model of.
//!
//! The checkpoint's own words are in the table room and in docs/reference/checkpoint.md. What is added here is under `data` in
//! its manifest: the kind and shape of the model and how its data is read, so that the network can be built anew. What
//! `save_inference_model` wrote has its program there instead, and is opened by the same call.

use openfleet_dist::SaveOptions;
use openfleet_dist::storage::{Addresses, Opened, Stores};
use openfleet_engine::{InferenceModel, Predictor};
use openfleet_table::checkpoint::{MANIFEST, Manifest, Storage, is_of_a_save};
use serde::{Deserialize, Serialize};

use crate::columns::DataDescription;
use crate::error::{Error, Result};
use crate::model::{ModelShape, Salt};

/// What a manifest says of the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelDescription {
    /// Kind and shape.
    pub model: ModelShape,
    /// Decides the rows of ids that were never seen.
    pub seed: u64,
    /// How its data is read.
    pub data: DataDescription,
    /// What ids are salted with; absent where equal ids of different slots are one feature, as they were in all models before
    /// there were salts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub salt: Option<Salt>,
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
pub struct SavedModel {
    /// What was trained and how its data is read, where `train --save` wrote it.
    pub description: Option<ModelDescription>,
    /// Its program on its values.
    pub predictor: Predictor,
}

impl SavedModel {
    /// What it is, in a word.
    pub fn kind(&self) -> &'static str {
        self.description.as_ref().map_or("model", |description| description.model.name())
    }
}

/// Whether an address can be saved to: nothing is there, an older model, which is replaced, or what a save has left that was
/// killed. Worth asking before an hour of training.
pub fn check_place(address: &str) -> Result<()> {
    let names = ask("list", address, |storage| storage.list(""))?;
    if names.iter().any(|name| name == MANIFEST) || names.iter().all(|name| is_of_a_save(name)) {
        return Ok(());
    }
    Err(Error::NotOurs { address: address.to_owned() })
}

/// Writes a little and removes it: a place that is read-only or full is found before an hour of training. Asked of whoever will
/// write: servers, or a process that trains alone.
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

/// Whether there is something to go on from.
pub fn holds_checkpoint(address: &str) -> Result<bool> {
    Ok(ask("look for a checkpoint in", address, |storage| storage.size(MANIFEST))?.is_some())
}

fn ask<T>(action: &'static str, address: &str, ask: impl FnOnce(&dyn Storage) -> std::io::Result<T>) -> Result<T> {
    let answer = ask(Addresses.open(address)?.as_ref()).map_err(openfleet_table::Error::storage(action, address));
    Ok(answer.map_err(openfleet_dist::Error::checkpoint("saving to", address))?)
}

/// What an address holds, without its values.
pub fn describe(address: &str) -> Result<(Manifest, ModelDescription)> {
    let manifest = Opened::new(&Addresses, address, "reading")?.manifest;
    let description = serde_json::from_value(manifest.data.clone()).map_err(|error| Error::Damaged {
        file: format!("{}/{MANIFEST}", address.trim_end_matches('/')),
        expected: "the description of a model under `data`".into(),
        got: format!("something else ({error})"),
    })?;
    Ok((manifest, description))
}

/// Opens a model to predict with: what `train --save` wrote, whose network is built anew and cut down to its prediction, or
/// what `save_inference_model` wrote. `option` is how the user names the address.
pub fn open(address: &str, option: &'static str) -> Result<SavedModel> {
    if Opened::new(&Addresses, address, "reading")?.manifest.data.get("model").is_none() {
        return Ok(SavedModel { description: None, predictor: Predictor::open(address)? });
    }
    let (_, description) = describe(address)?;
    let network = description.model.build(&description.data.schema, description.seed, description.salt)?;
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
