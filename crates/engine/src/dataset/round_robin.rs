//! Assigns batches to training threads round-robin, so that a thread's n-th batch is the same in every run.
//!
//! Threads that take whatever batch comes next are never idle, but which thread gets which batch is random. A job that resumes
//! after a crash has to know: here batch b of a pass belongs to thread b mod T, so a stream's position says which batches it has
//! done. A thread that is more than a few batches ahead waits for the others.
//!
//! The inner dataset must return its batches in the same order in every run: one reader thread, and a shuffle with a fixed seed.

use std::collections::VecDeque;

use openfleet_core::{Batch, Schema};
use parking_lot::{Condvar, Mutex};

use super::{BatchReader, Dataset, Progress, Result};

/// A dataset whose batches are assigned to a fixed number of threads.
pub struct RoundRobinDataset<'a> {
    dataset: &'a dyn Dataset,
    threads: u32,
}

impl<'a> RoundRobinDataset<'a> {
    /// Assigns the batches of `dataset` to `threads` threads.
    pub fn new(dataset: &'a dyn Dataset, threads: usize) -> Self {
        RoundRobinDataset { dataset, threads: threads.max(1) as u32 }
    }
}

impl Dataset for RoundRobinDataset<'_> {
    fn schema(&self) -> &Schema {
        self.dataset.schema()
    }

    fn batch_size(&self) -> usize {
        self.dataset.batch_size()
    }

    fn thread_num(&self) -> usize {
        self.threads as usize
    }

    fn rows(&self) -> Option<usize> {
        self.dataset.rows()
    }

    fn describe(&self) -> String {
        self.dataset.describe()
    }

    fn is_round_robin(&self) -> bool {
        true
    }

    fn skip_pass(&self) {
        self.dataset.skip_pass();
    }

    fn open(&self) -> Result<Box<dyn BatchReader + '_>> {
        let batches = (0..self.threads).map(|_| VecDeque::new()).collect();
        let queues = ThreadQueues { batches, next_thread: 0, over: false, spare: Vec::new() };
        Ok(Box::new(RoundRobinReader {
            reader: self.dataset.open()?,
            queues: Mutex::new(queues),
            batch_taken: Condvar::new(),
        }))
    }
}

/// Batches that may wait for one thread. When a queue is full, the other threads wait for that thread.
const MAX_QUEUED_BATCHES: usize = 8;

struct RoundRobinReader<'a> {
    reader: Box<dyn BatchReader + 'a>,
    queues: Mutex<ThreadQueues>,
    batch_taken: Condvar,
}

struct ThreadQueues {
    batches: Vec<VecDeque<Batch>>,
    next_thread: usize,
    over: bool,
    /// Memory of batches that were batch_taken, for reuse.
    spare: Vec<Batch>,
}

impl BatchReader for RoundRobinReader<'_> {
    fn next(&self, batch: &mut Batch) -> Result<bool> {
        self.next_for(0, batch)
    }

    fn next_for(&self, stream: u32, batch: &mut Batch) -> Result<bool> {
        let mut queues = self.queues.lock();
        let own = stream as usize % queues.batches.len();
        loop {
            if let Some(mut queued) = queues.batches[own].pop_front() {
                std::mem::swap(batch, &mut queued);
                queues.spare.push(queued);
                self.batch_taken.notify_all();
                return Ok(true);
            }
            if queues.over {
                return Ok(false);
            }
            let next_thread = queues.next_thread;
            if queues.batches[next_thread].len() >= MAX_QUEUED_BATCHES {
                self.batch_taken.wait(&mut queues);
                continue;
            }
            // Read while holding the lock, so that the batches are assigned in order.
            let mut next = queues.spare.pop().unwrap_or_default();
            match self.reader.next(&mut next) {
                Ok(true) => {
                    queues.batches[next_thread].push_back(next);
                    queues.next_thread = (next_thread + 1) % queues.batches.len();
                }
                Ok(false) => queues.over = true,
                Err(error) => {
                    queues.over = true;
                    self.batch_taken.notify_all();
                    return Err(error);
                }
            }
        }
    }

    fn end(&self) {
        self.queues.lock().over = true;
        self.batch_taken.notify_all();
    }

    fn progress(&self) -> Progress {
        self.reader.progress()
    }
}

#[cfg(test)]
mod tests {
    use openfleet_core::{Column, Field, FieldKind};

    use super::*;

    /// A dataset whose batches contain their index.
    struct Numbers {
        schema: Schema,
        count: i64,
    }

    struct NumbersReader<'a> {
        next: Mutex<i64>,
        numbers: &'a Numbers,
    }

    impl Dataset for Numbers {
        fn schema(&self) -> &Schema {
            &self.schema
        }

        fn batch_size(&self) -> usize {
            1
        }

        fn thread_num(&self) -> usize {
            1
        }

        fn rows(&self) -> Option<usize> {
            None
        }

        fn open(&self) -> Result<Box<dyn BatchReader + '_>> {
            Ok(Box::new(NumbersReader { next: Mutex::new(0), numbers: self }))
        }
    }

    impl BatchReader for NumbersReader<'_> {
        fn next(&self, batch: &mut Batch) -> Result<bool> {
            let mut next = self.next.lock();
            if *next == self.numbers.count {
                return Ok(false);
            }
            super::super::prepare(batch, &self.numbers.schema);
            if let Column::Floats { values, .. } = &mut batch.columns[0] {
                values.push(*next as f32);
            }
            batch.rows = 1;
            *next += 1;
            Ok(true)
        }

        fn progress(&self) -> Progress {
            Progress { rows: *self.next.lock() as u64, ..Progress::default() }
        }
    }

    fn number(batch: &Batch) -> i64 {
        match &batch.columns[0] {
            Column::Floats { values, .. } => values[0] as i64,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn no_thread_waits_for_a_thread_that_has_ended() {
        let schema = Schema::new(vec![Field::new("n", FieldKind::Floats { dim: 1 })]).unwrap();
        let numbers = Numbers { schema, count: i64::MAX };
        let round_robin = RoundRobinDataset::new(&numbers, 2);
        let reader = round_robin.open().unwrap();
        std::thread::scope(|scope| {
            // The other thread never takes a batch, so this one has to wait for it.
            let taking = scope.spawn(|| {
                let (mut batch, mut taken) = (Batch::default(), 0);
                while reader.next_for(0, &mut batch).unwrap() {
                    taken += 1;
                }
                taken
            });
            while reader.progress().rows < 2 * MAX_QUEUED_BATCHES as u64 {
                std::thread::yield_now();
            }
            reader.end();
            assert!(taking.join().unwrap() <= MAX_QUEUED_BATCHES + 1);
        });
    }

    #[test]
    fn a_thread_gets_every_nth_batch_whatever_the_others_do() {
        let schema = Schema::new(vec![Field { name: "n".into(), kind: FieldKind::Floats { dim: 1 } }]).unwrap();
        let numbers = Numbers { schema, count: 100 };
        let round_robin = RoundRobinDataset::new(&numbers, 3);
        let reader = round_robin.open().unwrap();
        let taken: Vec<Vec<i64>> = std::thread::scope(|scope| {
            let take = |stream: u32| {
                let reader = &reader;
                move || {
                    let (mut batch, mut taken) = (Batch::default(), Vec::new());
                    while reader.next_for(stream, &mut batch).unwrap() {
                        taken.push(number(&batch));
                    }
                    taken
                }
            };
            let threads: Vec<_> = (0..3).map(|stream| scope.spawn(take(stream))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (stream, taken) in taken.into_iter().enumerate() {
            assert_eq!(taken, (0..100).filter(|number| *number as usize % 3 == stream).collect::<Vec<_>>());
        }
    }
}
