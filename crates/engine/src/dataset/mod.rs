//! Where batches come from: files of text, streamed or kept in memory.
//!
//! ```text
//! files -> source (decompress, pipe_command) -> format (lines to rows) -> records -> batches for the training threads
//! ```
//!
//! A [`QueueDataset`] streams its files once a pass in bounded memory; an [`InMemoryDataset`] loads them, shuffles, and
//! goes over them as often as asked. Both are made of a [`DatasetConfig`] and give [`BatchReader`]s, which all training
//! threads of a worker share. What goes wrong says in which file, line and slot.
//!
//! This module does not know models, workers or the network: which files are this worker's is decided before, by
//! [`split_files`].

use openfleet_core::{Batch, Schema};

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
pub use format::{CategoricalColumn, ColumnsSpec, Criteo, Csv, Format, LibSvm, MultiSlot};
pub use in_memory::InMemoryDataset;
pub use queue::QueueDataset;
pub use round_robin::RoundRobinDataset;
pub use split::split_files;
pub use words::{WordsConfig, WordsDataset};

/// Rows that can be gone over in batches.
pub trait Dataset: Send + Sync {
    /// The fields of its batches.
    fn schema(&self) -> &Schema;

    /// How many rows a batch has; the last of a pass may have fewer.
    fn batch_size(&self) -> usize;

    /// How many threads should train on it.
    fn thread_num(&self) -> usize;

    /// How many rows a pass has, where that is known beforehand.
    fn rows(&self) -> Option<usize>;

    /// What a pass goes over, in words that are the same in another process which goes over the same.
    fn describe(&self) -> String {
        format!("batches of {}", self.batch_size())
    }

    /// Whether batches are round_robin to threads ([`RoundRobinDataset`]).
    fn is_round_robin(&self) -> bool {
        false
    }

    /// A pass is skipped: whatever depends on how many passes there were counts it all the same.
    fn skip_pass(&self) {}

    /// Begins a pass. A missing file is found here, before any training.
    fn open(&self) -> Result<Box<dyn BatchReader + '_>>;
}

/// One pass over a dataset, shared by all training threads: each row is given to one of them, once.
pub trait BatchReader: Send + Sync {
    /// Fills `batch` with the next rows, reusing its memory; `false` when the pass is over. After an error the batch is
    /// empty, and every thread that asks is told the same error.
    fn next(&self, batch: &mut Batch) -> Result<bool>;

    /// [`next`](BatchReader::next) for one of the training threads, where batches are round_robin to them.
    fn next_for(&self, _stream: u32, batch: &mut Batch) -> Result<bool> {
        self.next(batch)
    }

    /// A thread has ended before the data did: nobody waits for it any more.
    fn end(&self) {}

    /// How far the pass has come.
    fn progress(&self) -> Progress;
}

/// How far a pass over a dataset has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Rows given to training threads.
    pub rows: u64,
    /// Rows of the whole pass, where known.
    pub total_rows: Option<u64>,
    /// Bytes read of the files as they lie on disk, compressed or not.
    pub bytes: u64,
    /// Bytes of all files, where known.
    pub total_bytes: Option<u64>,
    /// Bad lines left out.
    pub skipped_lines: u64,
}

impl Progress {
    /// The part of the pass that is done, from 0 to 1, where the whole is known.
    pub fn fraction(&self) -> Option<f64> {
        let (done, total) = match (self.total_rows, self.total_bytes) {
            (Some(total), _) => (self.rows, total),
            (None, Some(total)) => (self.bytes, total),
            (None, None) => return None,
        };
        Some(if total == 0 { 1.0 } else { (done as f64 / total as f64).min(1.0) })
    }
}

/// Empties a batch for the rows to come; one that was never filled gets the schema's columns.
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
