//! The in-memory dataset: read once, shuffled, used for any number of passes.
//!
//! ```text
//!              load_into_memory            local_shuffle, open (any number of times)
//!   empty  ------------------------>  loaded  <------------------------------.
//!     ^                                 | |                                   |
//!     '------- release_memory ----------' '-- preload_into_memory --> loading -' wait_preload_done
//! ```
//!
//! While a preload reads the next files in the background, the rows already in memory can be used for training;
//! `wait_preload_done` replaces them with the new rows. A local shuffle moves no rows: it permutes their indexes, 4 bytes per
//! row, and a batch gathers its rows from where they are stored. A global shuffle (`shuffle.rs`) moves rows to other workers.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use openfleet_core::{Batch, Schema, key};
use parking_lot::Mutex;

use super::config::{DatasetConfig, ReadPlan, check_files};
use super::error::{Error, Result};
use super::file_reader::{ReadCounters, read_file};
use super::pipe::StopSignal;
use super::records::{Records, append_rows};
use super::shuffle::Shuffle;
use super::{BatchReader, Dataset, Progress, prepare};

/// A chunk has at least this many rows, so that its own overhead is negligible.
pub(super) const CHUNK_ROWS: usize = 16 << 10;

/// Or at least this many ids, whichever comes first: rows may be long.
pub(super) const CHUNK_KEYS: usize = 1 << 20;

/// A dataset that is loaded into memory.
pub struct InMemoryDataset {
    read_plan: Arc<ReadPlan>,
    files: Vec<PathBuf>,
    loaded: Option<LoadedRows>,
    preload: Option<Preload>,
}

struct Preload {
    thread: JoinHandle<Result<LoadedRows>>,
    stop: Arc<StopSignal>,
}

impl InMemoryDataset {
    /// Checks the configuration. Files are opened when they are loaded.
    pub fn new(config: DatasetConfig) -> Result<Self> {
        let files = config.files.clone();
        Ok(InMemoryDataset { read_plan: Arc::new(config.resolve()?), files, loaded: None, preload: None })
    }

    /// Sets the files that the next load or preload reads. Rows in memory stay.
    pub fn set_files<P: Into<PathBuf>>(&mut self, files: impl IntoIterator<Item = P>) {
        self.files = files.into_iter().map(Into::into).collect();
    }

    /// Reads all files with at most `thread_num` threads. Rows are in the order of the files. After an error memory is unchanged.
    pub fn load_into_memory(&mut self) -> Result<()> {
        self.forbid_during_preload("load into memory")?;
        self.loaded = Some(load(&self.read_plan, &self.files, &Arc::default())?);
        Ok(())
    }

    /// Starts to read the files in the background. A missing file is reported here, a malformed line by
    /// [`wait_preload_done`](Self::wait_preload_done).
    pub fn preload_into_memory(&mut self) -> Result<()> {
        self.forbid_during_preload("preload into memory")?;
        check_files(&self.files)?;
        let (read_plan, files, stop) = (self.read_plan.clone(), self.files.clone(), Arc::<StopSignal>::default());
        let (stop_of_thread, first) = (stop.clone(), files.first().cloned().unwrap_or_default());
        let thread = std::thread::Builder::new()
            .name("preload".to_owned())
            .spawn(move || load(&read_plan, &files, &stop_of_thread))
            .map_err(|error| Error::io("start a thread to read", &first, error))?;
        self.preload = Some(Preload { thread, stop });
        Ok(())
    }

    /// Waits for the preload and replaces the rows in memory by its rows. After an error memory is unchanged.
    pub fn wait_preload_done(&mut self) -> Result<()> {
        let Some(preload) = self.preload.take() else {
            return Err(Error::WrongState {
                action: "wait for a preload",
                reason: "no preload was started",
                remedy: "call `preload_into_memory` first",
            });
        };
        match preload.thread.join() {
            Ok(result) => self.loaded = Some(result?),
            Err(panic) => std::panic::resume_unwind(panic),
        }
        Ok(())
    }

    /// Puts the rows in a random order that depends only on the seed and the number of rows, not on earlier shuffles: use another
    /// seed for each pass.
    pub fn local_shuffle(&mut self, seed: u64) -> Result<()> {
        let loaded = self.loaded.as_mut().ok_or(not_loaded("shuffle"))?;
        loaded.order = Some(permutation(loaded.rows, seed));
        Ok(())
    }

    /// Sends every row to a random member, receives the rows of the others, and shuffles the received rows.
    ///
    /// All members call it at the same time. `exchange` takes the bytes for each member and returns the bytes from each member;
    /// every member calls it equally often, with a few megabytes at a time. A member without rows in memory only receives. Rows
    /// leave memory as they are sent, so after an error memory is empty.
    pub fn global_shuffle<E: From<Error>>(
        &mut self,
        seed: u64,
        rank: usize,
        members: usize,
        exchange: impl FnMut(Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, E>,
    ) -> Result<(), E> {
        let loaded = self.loaded.take();
        let (file_bytes, skipped_lines) = loaded.as_ref().map_or((0, 0), |l| (l.file_bytes, l.skipped_lines));
        let own_rows = loaded.map_or_else(Vec::new, |loaded| loaded.chunks);
        let mut shuffle = Shuffle { layout: &self.read_plan.layout, seed, rank, members };
        let chunks = shuffle.run(own_rows, exchange)?;
        let mut loaded = LoadedRows::of(chunks, file_bytes, skipped_lines)?;
        loaded.order = Some(permutation(loaded.rows, key::mix(seed) ^ rank as u64));
        self.loaded = Some(loaded);
        Ok(())
    }

    /// Drops the rows and frees their memory. A running preload continues.
    pub fn release_memory(&mut self) {
        self.loaded = None;
    }

    /// Rows in memory.
    pub fn memory_rows(&self) -> usize {
        self.loaded.as_ref().map_or(0, |loaded| loaded.rows)
    }

    /// Bytes that the rows in memory take, including all overhead.
    pub fn memory_bytes(&self) -> usize {
        self.loaded.as_ref().map_or(0, LoadedRows::memory_bytes)
    }

    /// Malformed lines that were skipped when the rows in memory were read.
    pub fn skipped_lines(&self) -> u64 {
        self.loaded.as_ref().map_or(0, |loaded| loaded.skipped_lines)
    }

    fn forbid_during_preload(&self, action: &'static str) -> Result<()> {
        match self.preload {
            None => Ok(()),
            Some(_) => Err(Error::WrongState {
                action,
                reason: "a preload is running",
                remedy: "call `wait_preload_done` first",
            }),
        }
    }
}

impl Drop for InMemoryDataset {
    fn drop(&mut self) {
        if let Some(preload) = self.preload.take() {
            preload.stop.request();
            let _ = preload.thread.join();
        }
    }
}

impl Dataset for InMemoryDataset {
    fn schema(&self) -> &Schema {
        &self.read_plan.schema
    }

    fn batch_size(&self) -> usize {
        self.read_plan.batch_size
    }

    fn thread_num(&self) -> usize {
        self.read_plan.thread_num
    }

    fn rows(&self) -> Option<usize> {
        self.loaded.as_ref().map(|loaded| loaded.rows)
    }

    fn describe(&self) -> String {
        format!("batches of {} from {} rows in memory", self.read_plan.batch_size, self.memory_rows())
    }

    fn open(&self) -> Result<Box<dyn BatchReader + '_>> {
        let loaded = self.loaded.as_ref().ok_or(not_loaded("read batches"))?;
        Ok(Box::new(InMemoryReader { read_plan: &self.read_plan, loaded, cursor: AtomicUsize::new(0) }))
    }
}

fn not_loaded(action: &'static str) -> Error {
    let remedy = "call `load_into_memory` first";
    Error::WrongState { action, reason: "the dataset is not in memory", remedy }
}

/// A pass: threads take ranges of rows from one cursor, without a lock.
struct InMemoryReader<'a> {
    read_plan: &'a ReadPlan,
    loaded: &'a LoadedRows,
    cursor: AtomicUsize,
}

impl InMemoryReader<'_> {
    /// Rows of the pass, without those that `drop_last` skips.
    fn rows(&self) -> usize {
        let rows = self.loaded.rows;
        if self.read_plan.drop_last { rows - rows % self.read_plan.batch_size } else { rows }
    }
}

impl BatchReader for InMemoryReader<'_> {
    fn next(&self, batch: &mut Batch) -> Result<bool> {
        prepare(batch, &self.read_plan.schema);
        // After the end of the pass every call still adds a batch; an overflow would take centuries.
        let start = self.cursor.fetch_add(self.read_plan.batch_size, Ordering::Relaxed);
        let end = self.rows().min(start.saturating_add(self.read_plan.batch_size));
        if start >= end {
            return Ok(false);
        }
        append_rows(&self.read_plan.layout, (start..end).map(|place| self.loaded.row(place)), batch);
        Ok(true)
    }

    fn progress(&self) -> Progress {
        Progress {
            rows: self.cursor.load(Ordering::Relaxed).min(self.rows()) as u64,
            total_rows: Some(self.rows() as u64),
            bytes: self.loaded.file_bytes,
            total_bytes: Some(self.loaded.file_bytes),
            skipped_lines: self.loaded.skipped_lines,
        }
    }
}

/// Rows in memory, in chunks that never change.
struct LoadedRows {
    chunks: Vec<Records>,
    /// The index of each chunk's first row.
    starts: Vec<usize>,
    rows: usize,
    /// The order of the rows; `None` means as loaded.
    order: Option<Vec<u32>>,
    file_bytes: u64,
    skipped_lines: u64,
}

impl LoadedRows {
    fn new(chunks: Vec<Records>, counters: &ReadCounters) -> Result<Self> {
        LoadedRows::of(chunks, counters.bytes.load(Ordering::Relaxed), counters.skipped_lines.load(Ordering::Relaxed))
    }

    fn of(chunks: Vec<Records>, file_bytes: u64, skipped_lines: u64) -> Result<Self> {
        let mut starts = Vec::with_capacity(chunks.len());
        let mut rows = 0;
        for chunk in &chunks {
            starts.push(rows);
            rows += chunk.rows();
        }
        let limit = u64::from(u32::MAX);
        if rows as u64 > limit {
            return Err(Error::TooManyRows { rows: rows as u64, limit });
        }
        Ok(LoadedRows { chunks, starts, rows, order: None, file_bytes, skipped_lines })
    }

    #[inline]
    fn row(&self, place: usize) -> super::records::RowView<'_> {
        let row = self.order.as_ref().map_or(place, |order| order[place] as usize);
        let chunk = self.starts.partition_point(|&start| start <= row) - 1;
        self.chunks[chunk].row(row - self.starts[chunk])
    }

    fn memory_bytes(&self) -> usize {
        self.chunks.iter().map(Records::memory_bytes).sum::<usize>()
            + self.starts.capacity() * size_of::<usize>()
            + self.order.as_ref().map_or(0, |order| order.capacity() * size_of::<u32>())
    }
}

/// Reads all files; each thread reads whole files. The result does not depend on the number of threads.
fn load(read_plan: &ReadPlan, files: &[PathBuf], stop: &Arc<StopSignal>) -> Result<LoadedRows> {
    check_files(files)?;
    let counters = ReadCounters::default();
    let next_file = AtomicUsize::new(0);
    let by_file: Mutex<Vec<Vec<Records>>> = Mutex::new(vec![Vec::new(); files.len()]);
    let failure: Mutex<Option<Error>> = Mutex::new(None);
    std::thread::scope(|scope| {
        let work = || {
            let mut records = Records::new(read_plan.layout.clone());
            loop {
                let index = next_file.fetch_add(1, Ordering::Relaxed);
                if index >= files.len() || stop.is_requested() {
                    return;
                }
                match load_file(read_plan, files, index, &counters, stop, &mut records) {
                    Ok(chunks) => by_file.lock()[index] = chunks,
                    Err(error) => {
                        let mut failure = failure.lock();
                        // The other readers stop because of the first error; their own errors are noise.
                        if !stop.is_requested() {
                            *failure = Some(error);
                        }
                        stop.request();
                        return;
                    }
                }
            }
        };
        for _ in 1..read_plan.thread_num.min(files.len()) {
            scope.spawn(work);
        }
        work();
    });
    if let Some(error) = failure.into_inner() {
        return Err(error);
    }
    LoadedRows::new(by_file.into_inner().into_iter().flatten().collect(), &counters)
}

fn load_file(
    read_plan: &ReadPlan,
    files: &[PathBuf],
    index: usize,
    counters: &ReadCounters,
    stop: &Arc<StopSignal>,
    records: &mut Records,
) -> Result<Vec<Records>> {
    let mut chunks = Vec::new();
    records.clear();
    read_file(read_plan, &files[index], counters, stop, records, |records| {
        if records.rows() >= CHUNK_ROWS || records.keys() >= CHUNK_KEYS {
            chunks.push(records.sealed());
            records.clear();
        }
        true
    })?;
    if records.rows() > 0 {
        chunks.push(records.sealed());
    }
    Ok(chunks)
}

/// A Fisher-Yates permutation of `0..rows`. The random numbers are `key::mix` of a Weyl sequence, a counter-based generator.
fn permutation(rows: usize, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..rows as u32).collect();
    let mut state = key::mix(seed ^ 0x6f70_656e_666c_6565);
    for last in (1..rows).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        // The upper half of a 64-bit product is uniform over `0..=last` up to one part in 2^32.
        let chosen = ((u128::from(key::mix(state)) * (last as u128 + 1)) >> 64) as usize;
        order.swap(last, chosen);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_is_a_permutation_that_depends_on_the_seed_alone() {
        let first = permutation(1000, 7);
        assert_eq!(first, permutation(1000, 7));
        assert_ne!(first, permutation(1000, 8));
        let mut sorted = first.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<u32>>());
        assert_eq!(permutation(0, 1), Vec::<u32>::new());
        assert_eq!(permutation(1, 1), [0]);
    }

    #[test]
    fn every_order_is_equally_likely() {
        // 24 000 shuffles of 4 rows: each of the 24 orders is expected 1000 times, with a standard deviation of 31.
        let mut counts = std::collections::HashMap::new();
        for seed in 0..24_000 {
            *counts.entry(permutation(4, seed)).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 24);
        assert!(counts.values().all(|&count| (850..1150).contains(&count)), "{counts:?}");
    }
}
