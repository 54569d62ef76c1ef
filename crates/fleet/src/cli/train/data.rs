//! The training data of one worker: streamed, in memory, or a text for word2vec.

use openfleet_core::key::mix;
use openfleet_engine::dataset::{Dataset, InMemoryDataset, QueueDataset, WordsDataset};

use crate::error::Result;

/// The training data of one worker.
pub(super) enum TrainingData {
    Queue(QueueDataset),
    Memory(InMemoryDataset),
    Words(WordsDataset),
}

impl TrainingData {
    pub(super) fn dataset(&self) -> &dyn Dataset {
        match self {
            TrainingData::Queue(dataset) => dataset,
            TrainingData::Memory(dataset) => dataset,
            TrainingData::Words(dataset) => dataset,
        }
    }

    /// Shuffles rows in memory; the order depends only on the seed and the epoch.
    pub(super) fn begin_epoch(&mut self, seed: u64, epoch: u64) -> Result<()> {
        if let TrainingData::Memory(dataset) = self {
            dataset.local_shuffle(mix(seed ^ mix(epoch)))?;
        }
        Ok(())
    }

    /// Whether the rows are in memory before training starts.
    pub(super) fn is_loaded(&self) -> bool {
        !matches!(self, TrainingData::Queue(_))
    }

    /// Batches of all workers per epoch, if known before training.
    pub(super) fn batches_of_all(&self) -> Option<u64> {
        match self {
            TrainingData::Words(dataset) => Some(dataset.batches_of_all()),
            _ => None,
        }
    }

    /// The vocabulary of word2vec, most frequent word first; `None` for other models.
    pub(super) fn vocabulary(&self) -> Option<&[String]> {
        match self {
            TrainingData::Words(dataset) => Some(dataset.words()),
            _ => None,
        }
    }
}
