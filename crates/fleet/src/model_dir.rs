//! A trained model as a directory: a checkpoint that says what it is a model of.
//!
//! The checkpoint's own words are in the table room and in docs/reference/checkpoint.md. What is added here is under `data` in
//! its manifest: the kind and shape of the model and how its data is read, so that the network can be built anew.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use openfleet_dist::storage::{Directories, Stores};
use openfleet_dist::{LoadOptions, SaveOptions};
use openfleet_engine::{Executor, Scope};
use openfleet_table::checkpoint::{MANIFEST, Manifest, read_manifest};
use serde::{Deserialize, Serialize};

use crate::columns::DataDescription;
use crate::error::{Error, Result};
use crate::model::{ModelShape, Network};

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
pub struct Loaded {
    /// What it is.
    pub description: ModelDescription,
    /// The network, built anew.
    pub network: Network,
    /// An executor on its values.
    pub executor: Executor,
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
    let address = directory.to_string_lossy();
    let failed =
        |source| openfleet_dist::Error::Checkpoint { action: "reading", address: address.as_ref().into(), source };
    let manifest = read_manifest(Directories.open(&address)?.as_ref()).map_err(failed)?;
    let description = serde_json::from_value(manifest.data.clone()).map_err(|error| Error::Damaged {
        path: directory.join(MANIFEST),
        expected: "the description of a model under `data`".into(),
        got: format!("something else ({error})"),
    })?;
    Ok((manifest, description))
}

/// Reads a model: builds its network anew and gives it the saved values.
pub fn load(directory: &Path) -> Result<Loaded> {
    let (_, description) = describe(directory)?;
    let network = description.model.build(&description.data.schema, description.seed)?;
    let mut executor = Executor::new(Arc::new(Scope::new()));
    executor.run_startup(&network.net.startup)?;
    executor.load(&network.net.main.clone_for_test(), &directory.to_string_lossy(), LoadOptions::default())?;
    Ok(Loaded { description, network, executor })
}
