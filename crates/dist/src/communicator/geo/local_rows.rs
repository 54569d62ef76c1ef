//! The local copies of a GEO worker: the rows it trains on. Of rows that it has changed since it last sent them, the table also has what
//! the servers have (the base).
//!
//! ```text
//!           first use: pulled           push: base = the copy, then it changes
//!   absent --------------------> copy <----------------------------------------> changed copy with a base
//!                                            exchange: the difference is sent
//! ```
//!
//! All workers train the rows that most batches use, each from its own copy. The more often a worker trains such a row between two
//! exchanges, the further the copies move apart, and the sum of their progress overshoots. So a row that was used [`OFTEN`] times is
//! exchanged before its window ends.
//!
//! Only rows that this worker has touched have a copy. One thread requests a row, mostly while it computes the batch before the
//! one that needs it; whichever thread needs the row first stores the reply.
//!
//! Pulls and exchanges use different connections, so either may overtake the other. A change that an exchange brings while its row
//! is being pulled, or for a row that was stored after the exchange was sent, may or may not be in the row, and the server will not
//! send it again. Such a row is pulled once more.
//!
//! Lock order: arrivals, a shard of the local rows.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use openfleet_core::Key;
use openfleet_table::{Existing, Missing, Scratch, SparseSpec, SparseTable};
use parking_lot::{Condvar, Mutex};

use crate::communicator::{PullInFlight, Remote};
use crate::error::{Error, Result};
use crate::stage::{Lookup, SparseStage};

/// Uses after which a row is exchanged early. With 5 and rows every 400 batches, two workers reach the AUC of sync mode.
const OFTEN: u32 = 5;

/// After so many batches in a row that needed no new rows, one in so many is looked at in advance.
const MANY_COMPLETE: u32 = 16;

/// The rows this worker has touched.
pub(super) struct LocalRows {
    tables: Vec<LocalTable>,
    /// Batches since the last one that needed new rows.
    complete: AtomicU32,
    arrivals: Mutex<Arrivals>,
    /// Notified when rows have arrived or were requested, or when a thread has failed to pull them.
    arrived: Condvar,
}

struct LocalTable {
    name: String,
    /// The rows that training reads and changes.
    local: Arc<SparseTable>,
}

/// Rows that are being pulled.
#[derive(Default)]
struct Arrivals {
    /// By table and key: whether a change has arrived in the meantime.
    rows: HashMap<(usize, Key), bool>,
    /// Requests whose replies no thread waits for yet.
    requested: VecDeque<Request>,
    /// Rows stored since the last exchange was sent.
    stored: HashSet<(usize, Key)>,
}

/// Requested rows: a stage per table.
struct Request {
    stages: Vec<SparseStage>,
    pull: PullInFlight,
}

/// A table number and keys of that table.
type TableKeys = (usize, Vec<Key>);

impl LocalRows {
    /// No copies yet.
    pub(super) fn new(tables: Vec<(String, SparseSpec)>) -> Result<Self> {
        let tables = tables.into_iter().map(|(name, spec)| {
            let making = |source| Error::Table { action: "making a copy of", table: name.clone(), source };
            let local = Arc::new(SparseTable::new(spec).map_err(making)?.as_copy(OFTEN));
            Ok(LocalTable { name, local })
        });
        let tables = tables.collect::<Result<_>>()?;
        Ok(LocalRows { tables, complete: AtomicU32::new(0), arrivals: Mutex::default(), arrived: Condvar::new() })
    }

    /// The tables that training reads and changes.
    pub(super) fn local(&self) -> Vec<(String, Arc<SparseTable>)> {
        self.tables.iter().map(|table| (table.name.clone(), table.local.clone())).collect()
    }

    /// How many tables there are.
    pub(super) fn len(&self) -> usize {
        self.tables.len()
    }

    /// Weights per row of a table.
    pub(super) fn dim(&self, number: usize) -> usize {
        self.tables[number].local.dim()
    }

    /// Fills `rows` of every lookup: from the local copy if there is one, else from the servers. Training keeps the pulled
    /// rows.
    pub(super) fn pull(&self, remote: &Remote, stages: &mut [SparseStage], missing: Missing) -> Result<()> {
        let mut absent = Vec::new();
        loop {
            // Stage, lookup and positions of rows without a copy.
            let mut wanted: Vec<(usize, usize, Vec<u32>)> = Vec::new();
            for (at, stage) in stages.iter_mut().enumerate() {
                for (number, lookup) in stage.lookups.iter_mut().enumerate() {
                    let table = &self.tables[lookup.table];
                    let keys = stage.unique.keys();
                    let pulled = table.local.pull_present(keys, &mut lookup.rows, &mut absent, &mut stage.scratch);
                    pulled.map_err(|source| table.error("pulling from", source))?;
                    if !absent.is_empty() {
                        wanted.push((at, number, std::mem::take(&mut absent)));
                    }
                }
            }
            if wanted.is_empty() {
                return Ok(());
            }
            let keys = wanted.iter().map(|(stage, lookup, positions)| {
                let (stage, table) = (&stages[*stage], stages[*stage].lookups[*lookup].table);
                (table, positions.iter().map(|&at| stage.unique.keys()[at as usize]).collect())
            });
            let keys: Vec<TableKeys> = keys.collect();
            if missing == Missing::Create {
                self.fetch(remote, &keys)?;
                continue;
            }
            let Request { pull, stages: mut fetched } = self.ask(remote, &keys, missing);
            remote.end_pull(pull, &mut fetched)?;
            for ((stage, lookup, positions), fetched) in wanted.iter().zip(fetched) {
                let (lookup, from) = (&mut stages[*stage].lookups[*lookup], &fetched.lookups[0]);
                for (row, &at) in from.rows.chunks_exact(from.dim).zip(positions) {
                    lookup.rows[at as usize * from.dim..][..from.dim].copy_from_slice(row);
                }
            }
            return Ok(());
        }
    }

    /// Requests the rows of a later batch that have no copy and are not being pulled yet.
    ///
    /// While batches need no new rows, most are not looked at: a row that is missed is pulled when it is needed.
    pub(super) fn request(&self, remote: &Remote, stages: &[SparseStage]) -> Result<()> {
        let complete = self.complete.fetch_add(1, Ordering::Relaxed);
        if complete >= MANY_COMPLETE && !complete.is_multiple_of(MANY_COMPLETE) {
            return Ok(());
        }
        let wanted = stages.iter().flat_map(|stage| stage.lookups.iter().map(|one| (one.table, stage.unique.keys())));
        let claimed = self.claim(wanted)?;
        if !claimed.is_empty() {
            self.complete.store(0, Ordering::Relaxed);
            let request = self.ask(remote, &claimed, Missing::Create);
            self.arrivals.lock().requested.push_back(request);
            self.arrived.notify_all();
        }
        Ok(())
    }

    /// Pulls the rows that no other thread is pulling, and waits for the rest.
    fn fetch(&self, remote: &Remote, wanted: &[TableKeys]) -> Result<()> {
        let claimed = self.claim(wanted.iter().map(|(number, keys)| (*number, keys.as_slice())))?;
        if !claimed.is_empty() {
            self.complete.store(0, Ordering::Relaxed);
            self.store(remote, self.ask(remote, &claimed, Missing::Create))?;
        }
        let mut arrivals = self.arrivals.lock();
        while wanted.iter().flat_map(pairs).any(|pair| arrivals.rows.contains_key(&pair)) {
            match arrivals.requested.pop_front() {
                Some(request) => {
                    drop(arrivals);
                    self.store(remote, request)?;
                    arrivals = self.arrivals.lock();
                }
                None => self.arrived.wait(&mut arrivals),
            }
        }
        Ok(())
    }

    /// Waits for requested rows and stores them; rows that were overtaken by a change are pulled again.
    fn store(&self, remote: &Remote, mut request: Request) -> Result<()> {
        let keys = |stage: &SparseStage| (stage.lookups[0].table, stage.unique.keys().to_vec());
        let claimed: Vec<TableKeys> = request.stages.iter().map(keys).collect();
        let mut claim = Claim { local_rows: self, keys: claimed.iter().flat_map(pairs).collect() };
        loop {
            remote.end_pull(request.pull, &mut request.stages)?;
            let overtaken = self.store_pulled(&request.stages)?;
            claim.keys = overtaken.iter().flat_map(pairs).collect();
            if overtaken.is_empty() {
                return Ok(());
            }
            request = self.ask(remote, &overtaken, Missing::Create);
        }
    }

    /// Claims the keys that have no copy and are not being pulled yet.
    fn claim<'a>(&self, wanted: impl Iterator<Item = (usize, &'a [Key])>) -> Result<Vec<TableKeys>> {
        // Look for copies under the lock: pulling a row that already has one would make the server forget changes of it.
        let mut arrivals = self.arrivals.lock();
        let (mut absent, mut scratch) = (Vec::new(), Scratch::new());
        let without_copy = wanted.map(|(number, keys)| {
            let table = &self.tables[number];
            let looked = table.local.absent(keys, &mut absent, &mut scratch);
            looked.map_err(|source| table.error("finding rows of", source))?;
            Ok((number, absent.iter().map(|&at| keys[at as usize]).collect()))
        });
        let mut claimed: Vec<TableKeys> = without_copy.collect::<Result<_>>()?;
        for (number, keys) in &mut claimed {
            keys.retain(|&key| match arrivals.rows.entry((*number, key)) {
                Entry::Occupied(_) => false,
                Entry::Vacant(entry) => {
                    entry.insert(false);
                    true
                }
            });
        }
        claimed.retain(|(_, keys)| !keys.is_empty());
        Ok(claimed)
    }

    /// Stores pulled rows. Returns the keys that have to be pulled again.
    fn store_pulled(&self, pulled: &[SparseStage]) -> Result<Vec<TableKeys>> {
        let mut arrivals = self.arrivals.lock();
        let mut scratch = Scratch::new();
        let mut again = Vec::new();
        for stage in pulled {
            let Lookup { table: number, dim, rows, .. } = &stage.lookups[0];
            let table = &self.tables[*number];
            let (mut keys, mut values, mut overtaken) = (Vec::new(), Vec::new(), Vec::new());
            for (&key, row) in stage.unique.keys().iter().zip(rows.chunks_exact(*dim)) {
                if arrivals.rows.insert((*number, key), false) == Some(true) {
                    overtaken.push(key);
                } else {
                    keys.push(key);
                    values.extend_from_slice(row);
                }
            }
            let kept = table.local.put(&keys, &values, Existing::Keep, &mut scratch);
            kept.map_err(|source| table.error("copying rows of", source))?;
            for key in keys {
                arrivals.rows.remove(&(*number, key));
                arrivals.stored.insert((*number, key));
            }
            if !overtaken.is_empty() {
                again.push((*number, overtaken));
            }
        }
        drop(arrivals);
        self.arrived.notify_all();
        Ok(again)
    }

    fn ask(&self, remote: &Remote, wanted: &[TableKeys], missing: Missing) -> Request {
        let stages = wanted.iter().map(|(table, keys)| {
            let dim = self.tables[*table].local.dim();
            let lookup = Lookup { table: *table, dim, rows: vec![0.0; keys.len() * dim], ..Lookup::default() };
            stage_of(keys, lookup)
        });
        let stages: Vec<SparseStage> = stages.collect();
        Request { pull: remote.begin_pull(&stages, missing), stages }
    }

    /// Takes the keys of each table whose rows should be exchanged before the window ends.
    pub(super) fn take_often_used(&self) -> Vec<Vec<Key>> {
        self.tables.iter().map(|table| table.local.take_often_used()).collect()
    }

    /// Begins a new window. Returns the keys of each table that were used in the last one.
    pub(super) fn close_window(&self) -> Vec<Vec<Key>> {
        self.tables.iter().map(|table| table.local.take_used()).collect()
    }

    /// The differences of rows from the servers' rows, divided by `divisor`. They are added to the base, as the servers will
    /// add them to their rows. Rows without a difference, or with one that is not finite, are left out.
    pub(super) fn differences(
        &self,
        number: usize,
        keys: &[Key],
        divisor: f32,
        scratch: &mut Scratch,
    ) -> Result<SparseStage> {
        let table = &self.tables[number];
        let taken = table.local.differences(keys, divisor, scratch);
        let taken = taken.map_err(|source| table.error("copying rows of", source))?;
        let dim = table.local.dim();
        let lookup = Lookup { table: number, dim, trained: true, gradients: taken.values, ..Lookup::default() };
        Ok(stage_of(&taken.keys, lookup))
    }

    /// An exchange is about to be sent.
    pub(super) fn begin_exchange(&self) {
        self.arrivals.lock().stored.clear();
    }

    /// Receives the rows in the reply to an exchange. Rows that were stored meanwhile are pulled instead.
    pub(super) fn receive(
        &self,
        remote: &Remote,
        number: usize,
        keys: &[Key],
        rows: &[f32],
        scratch: &mut Scratch,
    ) -> Result<()> {
        let overtaken = self.add_changes(number, keys, rows, scratch)?;
        if overtaken.is_empty() {
            return Ok(());
        }
        let Request { mut stages, pull } = self.ask(remote, &[(number, overtaken)], Missing::Create);
        remote.end_pull(pull, &mut stages)?;
        let (keys, rows) = (stages[0].unique.keys(), &stages[0].lookups[0].rows);
        let mut arrivals = self.arrivals.lock();
        keys.iter().for_each(|&key| {
            arrivals.stored.remove(&(number, key));
        });
        drop(arrivals);
        self.add_changes(number, keys, rows, scratch).map(drop)
    }

    /// Adds what others have changed to the local rows: the differences of the servers' rows from the base. Rows without a local
    /// copy are skipped; they are pulled when they are first used. Returns the keys of rows that were stored since the exchange
    /// was sent, which are skipped too.
    fn add_changes(&self, number: usize, keys: &[Key], rows: &[f32], scratch: &mut Scratch) -> Result<Vec<Key>> {
        let table = &self.tables[number];
        let (dim, error) = (table.local.dim(), |source| table.error("copying rows of", source));
        let (mut absent, mut overtaken) = (Vec::new(), Vec::new());
        {
            // Look for copies under the lock: a row that is stored later is newer than these.
            let mut arrivals = self.arrivals.lock();
            if !arrivals.rows.is_empty() {
                for &key in keys {
                    if let Some(overtaken) = arrivals.rows.get_mut(&(number, key)) {
                        *overtaken = true;
                    }
                }
            }
            if !arrivals.stored.is_empty() {
                overtaken.extend(keys.iter().filter(|&&key| arrivals.stored.contains(&(number, key))));
            }
            table.local.absent(keys, &mut absent, scratch).map_err(error)?;
        }
        if absent.is_empty() && overtaken.is_empty() {
            table.local.receive(keys, rows, scratch).map_err(error)?;
            return Ok(overtaken);
        }
        let (mut absent, mut skipped) = (absent.into_iter().peekable(), overtaken.iter().peekable());
        let (mut received, mut values) = (Vec::new(), Vec::new());
        for (at, (&key, row)) in keys.iter().zip(rows.chunks_exact(dim)).enumerate() {
            let is_skipped = skipped.next_if_eq(&&key).is_some();
            if absent.next_if_eq(&(at as u32)).is_none() && !is_skipped {
                received.push(key);
                values.extend_from_slice(row);
            }
        }
        table.local.receive(&received, &values, scratch).map_err(error)?;
        Ok(overtaken)
    }

    /// The keys of rows whose difference has not been sent, in ascending order.
    pub(super) fn unsent(&self, number: usize) -> Vec<Key> {
        self.tables[number].local.changed_keys()
    }
}

impl LocalTable {
    fn error(&self, action: &'static str, source: openfleet_table::Error) -> Error {
        Error::Table { action, table: self.name.clone(), source }
    }
}

/// Keys that a thread is pulling. Dropping it releases them, so that other threads do not wait for a thread that failed.
struct Claim<'a> {
    local_rows: &'a LocalRows,
    keys: Vec<(usize, Key)>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut arrivals = self.local_rows.arrivals.lock();
        self.keys.iter().for_each(|key| {
            arrivals.rows.remove(key);
        });
        drop(arrivals);
        self.local_rows.arrived.notify_all();
    }
}

fn pairs((table, keys): &TableKeys) -> impl Iterator<Item = (usize, Key)> {
    keys.iter().map(|&key| (*table, key))
}

fn stage_of(keys: &[Key], lookup: Lookup) -> SparseStage {
    let mut stage = SparseStage { lookups: vec![lookup], ..SparseStage::default() };
    stage.unique.start(keys.len());
    stage.unique.add(keys);
    stage
}

#[cfg(test)]
mod tests {
    use openfleet_table::{Initializer, Optimizer, Schedule, Sgd};

    use super::*;

    fn local_rows() -> LocalRows {
        let spec = SparseSpec {
            dim: 1,
            optimizer: Optimizer::Sgd(Sgd::default()),
            schedule: Schedule::Constant(1.0),
            regularizer: None,
            initializer: Initializer::Constant(0.5),
            seed: 1,
            shards: 2,
            accessor: Default::default(),
            admission: Default::default(),
            capacity: None,
            non_finite: Default::default(),
            salted: false,
            storage: Default::default(),
        };
        LocalRows::new(vec![("table".into(), spec)]).unwrap()
    }

    fn claim(local_rows: &LocalRows, keys: &[Key]) -> Vec<TableKeys> {
        local_rows.claim([(0, keys)].into_iter()).unwrap()
    }

    fn push(local_rows: &LocalRows, key: Key, gradient: f32) {
        local_rows.tables[0].local.push(&[key], &[gradient], &mut Scratch::new()).unwrap();
    }

    fn pulled(keys: &[Key], rows: Vec<f32>) -> SparseStage {
        stage_of(keys, Lookup { table: 0, dim: 1, rows, ..Lookup::default() })
    }

    #[test]
    fn a_row_that_changes_while_it_is_pulled_is_pulled_again() {
        let local_rows = local_rows();
        assert_eq!(claim(&local_rows, &[1, 2, 3]), [(0, vec![1, 2, 3])]);
        assert_eq!(claim(&local_rows, &[3, 4]), [(0, vec![4])], "a row is pulled by one thread");
        // The pull of 2 was answered before the change, but the change arrives first.
        local_rows.add_changes(0, &[2, 8], &[20.0, 80.0], &mut Scratch::new()).unwrap();
        assert_eq!(local_rows.store_pulled(&[pulled(&[1, 2, 3], vec![1.0, 2.0, 3.0])]).unwrap(), [(0, vec![2])]);
        assert_eq!(local_rows.tables[0].local.len(), 2);
        assert!(local_rows.store_pulled(&[pulled(&[2], vec![20.0])]).unwrap().is_empty());
        assert_eq!(local_rows.tables[0].local.read(2, |row, _| row[0]), Some(20.0));
        assert!(claim(&local_rows, &[1, 2, 3]).is_empty(), "what is here is not pulled again");
        assert!(local_rows.unsent(0).is_empty());
    }

    #[test]
    fn received_changes_are_added_to_local_progress() {
        let (local_rows, mut scratch) = (local_rows(), Scratch::new());
        claim(&local_rows, &[1]);
        local_rows.store_pulled(&[pulled(&[1], vec![1.0])]).unwrap();
        let local = &local_rows.tables[0].local;
        push(&local_rows, 1, -4.0);
        let sent = local_rows.differences(0, &[1, 1_000], 2.0, &mut scratch).unwrap();
        local_rows.begin_exchange();
        assert_eq!((sent.unique.keys(), &sent.lookups[0].gradients[..]), (&[1][..], &[2.0][..]));
        push(&local_rows, 1, -10.0);
        // The servers have this worker's 2 and another's 100 on top of 1.
        local_rows.add_changes(0, &[1], &[103.0], &mut scratch).unwrap();
        assert_eq!(local.read(1, |row, _| row[0]), Some(115.0));
        assert_eq!(local_rows.unsent(0), [1]);
        let rest = local_rows.differences(0, &[1], 1.0, &mut scratch).unwrap();
        assert_eq!(rest.lookups[0].gradients, [12.0]);
        assert!(local_rows.unsent(0).is_empty());
    }

    #[test]
    fn a_row_that_was_sent_has_no_base_and_is_what_the_servers_have() {
        let (local_rows, mut scratch) = (local_rows(), Scratch::new());
        claim(&local_rows, &[1]);
        let mut on_the_servers = 1.0 / 3.0;
        local_rows.store_pulled(&[pulled(&[1], vec![on_the_servers])]).unwrap();
        let here = || local_rows.tables[0].local.read(1, |row, _| row[0]);
        for step in 1..100 {
            push(&local_rows, 1, (step % 7 - 3) as f32 * 0.37);
            // Gradients of 0 have nothing to send.
            let sent = local_rows.differences(0, &[1], 1.0, &mut scratch).unwrap();
            on_the_servers += sent.lookups[0].gradients.first().unwrap_or(&0.0);
            assert_eq!((here(), local_rows.unsent(0)), (Some(on_the_servers), vec![]));
        }
        local_rows.begin_exchange();
        local_rows.add_changes(0, &[1], &[0.1], &mut scratch).unwrap();
        assert_eq!(here(), Some(0.1), "exactly, because the worker has changed nothing");
    }

    #[test]
    fn a_row_stored_after_an_exchange_was_sent_does_not_take_its_rows() {
        let (local_rows, mut scratch) = (local_rows(), Scratch::new());
        local_rows.begin_exchange();
        claim(&local_rows, &[1, 2]);
        local_rows.store_pulled(&[pulled(&[1, 2], vec![10.0, 20.0])]).unwrap();
        // The reply may be older or newer than the pull.
        assert_eq!(local_rows.add_changes(0, &[2, 3], &[5.0, 5.0], &mut scratch).unwrap(), [2]);
        assert_eq!(local_rows.tables[0].local.read(2, |row, _| row[0]), Some(20.0));
        local_rows.begin_exchange();
        assert!(local_rows.add_changes(0, &[1, 2], &[11.0, 21.0], &mut scratch).unwrap().is_empty());
        assert_eq!(local_rows.tables[0].local.read(2, |row, _| row[0]), Some(21.0));
        assert!(local_rows.unsent(0).is_empty());
    }

    #[test]
    fn a_thread_that_fails_leaves_its_rows_to_others() {
        let local_rows = local_rows();
        let claimed = claim(&local_rows, &[1]);
        drop(Claim { local_rows: &local_rows, keys: claimed.iter().flat_map(pairs).collect() });
        assert_eq!(claim(&local_rows, &[1]), claimed);
    }
}
