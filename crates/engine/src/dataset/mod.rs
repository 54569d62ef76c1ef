//! Reads batches from text files, streamed or kept in memory.
//!
//! ```text
//! files -> source (decompress, pipe_command) -> format (lines to rows) -> records -> batches for the training threads
//! ```
//!
//! A [`QueueDataset`] streams its files once per pass in bounded memory. An [`InMemoryDataset`] loads them, shuffles them, and
//! can run any number of passes over them. Both are made from a [`DatasetConfig`] and return [`BatchReader`]s, which all training
//! threads of a worker share. Errors name the file, line and slot.
//!
//! This module does not know models, workers or the network: [`split_files`] chooses this worker's files before.

use openfleet_core::{Batch, Schema};

#[cfg(feature = "arrow")]
mod columnar;
#[cfg(not(feature = "arrow"))]
#[path = "columnar_disabled.rs"]
mod columnar;
mod config;
mod error;
mod file_reader;
pub mod format;
mod in_memory;
mod pipe;
mod queue;
mod record_layout;
mod records;
mod round_robin;
mod shuffle;
mod source;
mod split;
mod words;

pub use config::{DatasetConfig, OnBadLine};
pub use error::{Error, Result};
pub use format::{CategoricalColumn, ColumnsSpec, Criteo, Csv, Format, LibSvm, MultiSlot, Parquet};
pub use in_memory::InMemoryDataset;
pub use queue::QueueDataset;
pub use round_robin::RoundRobinDataset;
pub use split::split_files;
pub use words::{WordsConfig, WordsDataset};

/// A source of batches.
pub trait Dataset: Send + Sync {
    /// The fields of its batches.
    fn schema(&self) -> &Schema;

    /// Rows per batch; the last batch of a pass may have fewer.
    fn batch_size(&self) -> usize;

    /// The number of threads that should train on it.
    fn thread_num(&self) -> usize;

    /// The number of rows in a pass, if known beforehand.
    fn rows(&self) -> Option<usize>;

    /// A description of a pass: equal in two processes if they read the same data in the same way.
    fn describe(&self) -> String {
        format!("batches of {}", self.batch_size())
    }

    /// Whether each thread gets every n-th batch ([`RoundRobinDataset`]).
    fn is_round_robin(&self) -> bool {
        false
    }

    /// Counts a pass that is skipped, for datasets whose content depends on the number of passes.
    fn skip_pass(&self) {}

    /// Starts a pass. A missing file is reported here, before any training.
    fn open(&self) -> Result<Box<dyn BatchReader + '_>>;
}

/// One pass over a dataset, shared by all training threads: each row goes to exactly one of them.
pub trait BatchReader: Send + Sync {
    /// Fills `batch` with the next rows, reusing its memory; returns `false` when the pass is over. After an error the batch is
    /// empty, and every later call by any thread returns the same error.
    fn next(&self, batch: &mut Batch) -> Result<bool>;

    /// [`next`](BatchReader::next) for one training thread, if batches are assigned to threads.
    fn next_for(&self, _stream: u32, batch: &mut Batch) -> Result<bool> {
        self.next(batch)
    }

    /// Called when a thread stops before the data ends, so that no other thread waits for it.
    fn end(&self) {}

    /// How much of the pass is done.
    fn progress(&self) -> Progress;
}

/// How much of a pass over a dataset is done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Rows passed to training threads.
    pub rows: u64,
    /// Rows of the whole pass, if known.
    pub total_rows: Option<u64>,
    /// Bytes read from the files, as stored on disk (compressed or not).
    pub bytes: u64,
    /// Bytes of all files, if known.
    pub total_bytes: Option<u64>,
    /// Malformed lines that were skipped.
    pub skipped_lines: u64,
}

impl Progress {
    /// The fraction of the pass that is done, from 0 to 1, if the total is known.
    pub fn fraction(&self) -> Option<f64> {
        let (done, total) = match (self.total_rows, self.total_bytes) {
            (Some(total), _) => (self.rows, total),
            (None, Some(total)) => (self.bytes, total),
            (None, None) => return None,
        };
        Some(if total == 0 { 1.0 } else { (done as f64 / total as f64).min(1.0) })
    }
}

/// Empties a batch for the next rows; a batch that was never filled gets the schema's columns.
fn prepare(batch: &mut Batch, schema: &Schema) {
    if batch.columns.len() != schema.fields().len() {
        *batch = Batch::new(schema);
    }
    batch.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_counts_rows_where_they_are_known_and_bytes_otherwise() {
        let streaming = Progress { bytes: 25, total_bytes: Some(100), ..Progress::default() };
        assert_eq!(streaming.fraction(), Some(0.25));
        let in_memory = Progress { rows: 1, total_rows: Some(2), ..streaming };
        assert_eq!(in_memory.fraction(), Some(0.5));
        assert_eq!(Progress::default().fraction(), None);
        assert_eq!(Progress { total_rows: Some(0), ..Progress::default() }.fraction(), Some(1.0));
    }
}
