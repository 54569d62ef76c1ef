//! The streaming dataset: files are read while training runs, and no rows are kept.
//!
//! ```text
//! reader 0: files 0, R, 2R, ...  -- bounded queue of chunks --\                           /-- training thread
//! reader 1: files 1, R+1, ...    -- bounded queue of chunks ---+- TURN_ROWS rows in turn --+-- training thread
//! ```
//!
//! A full queue blocks its reader (backpressure), so memory does not depend on the size of the data. Rows are taken from the
//! readers in turn, a fixed number from each, so the order of rows depends on the files and the number of readers and not on
//! their speed: a restarted worker reads the same batches again. A reader's error comes after the rows that it read before, and
//! every training thread gets it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use openfleet_core::{Batch, Schema};
use parking_lot::Mutex;

use super::config::{DatasetConfig, ReadPlan, check_files};
use super::error::{Error, Result};
use super::file_reader::{ReadCounters, read_file};
use super::pipe::StopSignal;
use super::records::{Records, append_rows};
use super::{BatchReader, Dataset, Progress, prepare};

/// Chunks in the queue of each reader thread; a chunk is the rows of a quarter of a megabyte of text.
const CHUNKS_AHEAD: usize = 4;

/// Rows that are taken from one reader before the next reader's turn.
const TURN_ROWS: usize = 1024;

/// How long a dropped pass waits for its readers. They stop at once unless a file system blocks them.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// A dataset that streams its files once per pass.
pub struct QueueDataset {
    read_plan: Arc<ReadPlan>,
    files: Arc<[PathBuf]>,
}

impl QueueDataset {
    /// Checks the configuration. Files are opened by [`Dataset::open`].
    pub fn new(config: DatasetConfig) -> Result<Self> {
        let files = config.files.clone().into();
        Ok(QueueDataset { read_plan: Arc::new(config.resolve()?), files })
    }
}

impl Dataset for QueueDataset {
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
        None
    }

    fn describe(&self) -> String {
        let size = |file: &PathBuf| file.metadata().map_or(0, |file| file.len());
        let bytes: u64 = self.files.iter().map(size).sum();
        format!("batches of {} from {} files of {bytes} bytes", self.read_plan.batch_size, self.files.len())
    }

    fn open(&self) -> Result<Box<dyn BatchReader + '_>> {
        let total_bytes = check_files(&self.files)?;
        Ok(Box::new(QueueReader::start(self, total_bytes)?))
    }
}

struct QueueReader {
    shared: Arc<ReaderState>,
    /// Emptied chunks go back to the readers, so that a warm pass allocates nothing.
    emptied: Sender<Records>,
    rotation: Mutex<ReaderRotation>,
    threads: Vec<JoinHandle<()>>,
    /// Closes when the last reader thread has ended.
    ended: Receiver<()>,
    rows: AtomicU64,
    total_bytes: u64,
}

/// Which reader's rows are taken next.
struct ReaderRotation {
    /// The readers that have not reached their end; empty during shutdown.
    readers: Vec<ReaderCursor>,
    turn: usize,
    /// Rows to take before the next reader's turn.
    left: usize,
}

/// The chunk of a reader whose rows are being taken, and the next row.
struct ReaderCursor {
    queue: Receiver<Records>,
    records: Records,
    row: usize,
}

/// What the reader threads and the `QueueReader` share.
struct ReaderState {
    read_plan: Arc<ReadPlan>,
    files: Arc<[PathBuf]>,
    counters: ReadCounters,
    stop: Arc<StopSignal>,
    failure: Mutex<Option<Error>>,
    panicked: AtomicBool,
}

impl QueueReader {
    fn start(dataset: &QueueDataset, total_bytes: u64) -> Result<Self> {
        let thread_count = dataset.read_plan.thread_num.min(dataset.files.len());
        let shared = Arc::new(ReaderState {
            read_plan: dataset.read_plan.clone(),
            files: dataset.files.clone(),
            counters: ReadCounters::default(),
            stop: Arc::default(),
            failure: Mutex::new(None),
            panicked: AtomicBool::new(false),
        });
        let (emptied, empty) = crossbeam_channel::bounded(thread_count * CHUNKS_AHEAD);
        let (ended_sender, ended) = crossbeam_channel::bounded(0);
        let mut reader = QueueReader {
            shared,
            emptied,
            rotation: Mutex::new(ReaderRotation {
                readers: Vec::with_capacity(thread_count),
                turn: 0,
                left: TURN_ROWS,
            }),
            threads: Vec::with_capacity(thread_count),
            ended,
            rows: AtomicU64::new(0),
            total_bytes,
        };
        for index in 0..thread_count {
            let (sender, queue) = crossbeam_channel::bounded(CHUNKS_AHEAD);
            let records = Records::new(dataset.read_plan.layout.clone());
            reader.rotation.get_mut().readers.push(ReaderCursor { queue, records, row: 0 });
            let (shared, empty) = (reader.shared.clone(), empty.clone());
            let ended = ended_sender.clone();
            let thread = std::thread::Builder::new().name(format!("read-{index}")).spawn(move || {
                shared.read_files(index, thread_count, &sender, &empty);
                drop((sender, ended));
            });
            // On an error, dropping `reader` stops the threads that have started.
            reader
                .threads
                .push(thread.map_err(|error| Error::io("start a thread to read", &dataset.files[index], error))?);
        }
        Ok(reader)
    }

    /// Moves rows from the queues into `batch` until it is full or the pass is over.
    fn fill(&self, batch: &mut Batch) {
        let read_plan = &self.shared.read_plan;
        // One thread at a time: otherwise a pass could have more than one batch that is not full. The others wait for the time of
        // a copy.
        let mut rotation = self.rotation.lock();
        while batch.rows < read_plan.batch_size {
            let ReaderRotation { readers, turn, left } = &mut *rotation;
            let Some(ReaderCursor { queue, records, row }) = readers.get_mut(*turn) else { return };
            if *row == records.rows() {
                let Ok(next) = queue.recv() else {
                    if self.shared.stop.is_requested() || self.shared.panicked.load(Ordering::SeqCst) {
                        // A reader failed. Rows of the other readers must not take the place of its rows: a batch always has the
                        // same rows.
                        return;
                    }
                    // This reader has reached its end; the others continue without it.
                    readers.remove(*turn);
                    (*turn, *left) = (if *turn < readers.len() { *turn } else { 0 }, TURN_ROWS);
                    continue;
                };
                let mut emptied = std::mem::replace(records, next);
                emptied.clear();
                // The channel may be full or closed; then the chunk is dropped.
                let _ = self.emptied.try_send(emptied);
                *row = 0;
                continue;
            }
            let end = records.rows().min(*row + *left).min(*row + read_plan.batch_size - batch.rows);
            append_rows(&read_plan.layout, (*row..end).map(|row| records.row(row)), batch);
            *left -= end - *row;
            *row = end;
            if *left == 0 {
                (*turn, *left) = ((*turn + 1) % readers.len(), TURN_ROWS);
            }
        }
    }
}

impl BatchReader for QueueReader {
    fn next(&self, batch: &mut Batch) -> Result<bool> {
        let read_plan = &self.shared.read_plan;
        prepare(batch, &read_plan.schema);
        self.fill(batch);
        if batch.rows < read_plan.batch_size {
            assert!(!self.shared.panicked.load(Ordering::SeqCst), "a reader thread panicked");
            if let Some(error) = &*self.shared.failure.lock() {
                batch.clear();
                return Err(error.clone());
            }
            if read_plan.drop_last {
                batch.clear();
            }
        }
        self.rows.fetch_add(batch.rows as u64, Ordering::Relaxed);
        Ok(batch.rows > 0)
    }

    fn progress(&self) -> Progress {
        Progress {
            rows: self.rows.load(Ordering::Relaxed),
            total_rows: None,
            bytes: self.shared.counters.bytes.load(Ordering::Relaxed),
            total_bytes: Some(self.total_bytes),
            skipped_lines: self.shared.counters.skipped_lines.load(Ordering::Relaxed),
        }
    }
}

impl Drop for QueueReader {
    fn drop(&mut self) {
        self.shared.stop.request();
        // A reader that waits for space in its queue sees that the queue is closed.
        self.rotation.get_mut().readers.clear();
        // Nothing is ever sent: this returns when all readers have ended, or at the timeout.
        if self.ended.recv_timeout(SHUTDOWN_TIMEOUT) == Err(crossbeam_channel::RecvTimeoutError::Disconnected) {
            for thread in self.threads.drain(..) {
                let _ = thread.join();
            }
        }
    }
}

impl ReaderState {
    fn read_files(&self, reader: usize, readers: usize, queue: &Sender<Records>, empty: &Receiver<Records>) {
        let panicking = PanicFlag(&self.panicked);
        for file in self.files.iter().skip(reader).step_by(readers) {
            let mut records = self.empty_records(empty);
            let result = read_file(&self.read_plan, file, &self.counters, &self.stop, &mut records, |records| {
                if records.rows() == 0 {
                    return true;
                }
                let full = std::mem::replace(records, self.empty_records(empty));
                queue.send(full).is_ok()
            });
            if let Err(error) = result {
                let mut failure = self.failure.lock();
                // The other readers stop because of the first error; their own errors are noise.
                if !self.stop.is_requested() {
                    *failure = Some(error);
                }
                drop(failure);
                self.stop.request();
            }
            if self.stop.is_requested() {
                break;
            }
        }
        drop(panicking);
    }

    fn empty_records(&self, empty: &Receiver<Records>) -> Records {
        empty.try_recv().unwrap_or_else(|_| Records::new(self.read_plan.layout.clone()))
    }
}

/// Sets the flag when its thread unwinds. The queue then closes as if the files had ended, which must not look like success.
struct PanicFlag<'a>(&'a AtomicBool);

impl Drop for PanicFlag<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::SeqCst);
        }
    }
}
