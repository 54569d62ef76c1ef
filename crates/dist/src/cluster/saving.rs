//! Saving and loading checkpoints, from the worker's side.
//!
//! ```text
//! begin (first server) -> prepare (all) -> cut (all, until all are done) -> write (all at once) -> commit (first server)
//! ```
//!
//! Between prepare and cut, pushes are held back: for two round trips, plus the time that pushes in flight take.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use openfleet_table::checkpoint::{Commit, Manifest, Replaces, ServerPart, States, Work, decode_states, encode_states};
use tracing::warn;

use super::Cluster;
use crate::client::Link;
use crate::communicator::wait_all;
use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::handshake::fresh_nonce;
use crate::request::committed::Committed;
use crate::request::cut::{self, Answer, Cut};
use crate::request::geo_flush::{self, GeoFlush};
use crate::request::load::LoadRequest;
use crate::request::save::{self, Base, Save};
use crate::server::{ActionKind, Load, cut_of};

/// How a checkpoint is saved.
#[derive(Debug, Clone, PartialEq)]
pub struct SaveOptions {
    /// Name of the job.
    pub job: String,
    /// Id of the run, if no server knows it: in a collective job.
    pub run: String,
    /// Whether to replace an existing checkpoint; if not, an existing one is an error.
    pub replace: bool,
    /// Whether to write only the rows that changed since the checkpoint at this address, which becomes part of the new one. The
    /// tables must know that checkpoint: it is one of the last that this job saved, or the one it was loaded from. If the
    /// address is empty, everything is written.
    pub delta: bool,
    /// User data that is returned when the checkpoint is loaded, such as an epoch or a position in the data.
    pub data: serde_json::Value,
    /// The program's own state, outside of its tables.
    pub states: States,
    /// Tables and parameters to save; empty for all of them.
    pub only: Vec<String>,
    /// Whether to leave out optimizer state.
    pub without_state: bool,
}

impl Default for SaveOptions {
    fn default() -> Self {
        SaveOptions {
            job: "openfleet".into(),
            run: String::new(),
            replace: true,
            delta: false,
            data: serde_json::Value::Null,
            states: States::new(),
            only: Vec::new(),
            without_state: false,
        }
    }
}

/// How a checkpoint is loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Whether to skip what does not fit instead of failing.
    pub partial: bool,
    /// Whether to leave the program's own state unchanged.
    pub tables_only: bool,
}

/// Time limit for writing: disks are slow and tables are large.
const WRITING: Duration = Duration::from_secs(6 * 3600);
/// Time limit of a request while pushes are held back.
const CUTTING: Duration = Duration::from_secs(10);
/// Maximum time that pushes are held back; then training continues, and the save retries.
const PAUSE: Duration = Duration::from_secs(2);
/// How long a save waits for the other workers' unsent differences (GEO): each worker needs an exchange.
const COLLECTING: Duration = Duration::from_secs(60);
/// Interval between two checks.
const ASKING: Duration = Duration::from_millis(20);
/// Time limit for taking the snapshot, including retries.
const TRYING: Duration = Duration::from_secs(120);

impl Cluster {
    /// Saves all tables of the job from one consistent snapshot, while training continues. One worker calls this. The servers
    /// write, so the address must mean the same directory or bucket to all of them. Queued gradients of this worker are sent
    /// first; in geo mode the other workers are asked to send what they have not sent yet.
    ///
    /// After an error, an existing checkpoint at the address is unchanged.
    pub fn save(&self, address: &str, options: &SaveOptions) -> Result<Manifest> {
        let communicator = self.connected.lock().as_ref().map(|connected| connected.communicator.clone());
        let Some(communicator) = communicator else { return Err(Error::NothingToSave) };
        communicator.flush()?;
        let Some(first) = self.links.first() else { return Err(Error::NothingToSave) };
        if self.strategy.trains_on_copies() {
            self.flush_other_workers(address)?;
        }
        let id = fresh_save_id();
        let address = address.to_owned();
        let (replace, delta) = (options.replace, options.delta);
        let begin = Save::Begin { address: address.clone(), id: id.clone(), replace, delta };
        let begun = ask_to_save(first, &begin)?;
        let base = if delta { save::decode_base(begun.bytes())? } else { None };
        let saved = self.save_begun(&address, &id, base, options);
        match &saved {
            Ok(manifest) => self.announce(manifest, &address, options)?,
            Err(_) => {
                // Report the first error only.
                let _ = ask_to_save(first, &Save::Abandon { address, id });
            }
        }
        saved
    }

    /// GEO: waits until every other worker has sent its unsent differences, which it does with its next exchange.
    fn flush_other_workers(&self, address: &str) -> Result<()> {
        let nonce = fresh_nonce();
        // 0 means that no flush is requested.
        let ask = GeoFlush { ticket: u64::from_le_bytes(std::array::from_fn(|at| nonce[at])).max(1) };
        let began = Instant::now();
        loop {
            let asked = self.links.iter().map(|link| link.send(&ask)).collect::<Result<_>>()?;
            let mut waiting = BTreeSet::new();
            for answer in wait_all(asked)? {
                waiting.extend(geo_flush::decode(answer.bytes())?);
            }
            if waiting.is_empty() {
                return Ok(());
            }
            if began.elapsed() > COLLECTING {
                let seconds = COLLECTING.as_secs();
                warn!(
                    "saving to `{address}` without the unsent progress of workers {waiting:?}: no exchange for {seconds} s"
                );
                return Ok(());
            }
            std::thread::sleep(ASKING);
        }
    }

    /// Tells the servers that they can return to this checkpoint, if it is complete and has positions.
    fn announce(&self, manifest: &Manifest, address: &str, options: &SaveOptions) -> Result<()> {
        let is_whole = options.only.is_empty() && !options.without_state;
        if !is_whole || manifest.position.is_null() {
            return Ok(());
        }
        let committed = Committed(cut_of(manifest, address, false));
        let asked = self.links.iter().map(|link| link.send(&committed)).collect::<Result<_>>()?;
        wait_all(asked).map(drop)
    }

    /// [`Cluster::save`] as an action of the script: a restarted worker that had completed it skips it, so a later state is
    /// never saved under an earlier name.
    pub fn save_once(&self, address: &str, options: &SaveOptions) -> Result<Manifest> {
        let begun = self.begin_action(ActionKind::Save, format!("save to `{address}`"))?;
        if let Some(manifest) = begun.recorded() {
            warn!("skipped saving to `{address}`: it was saved before this worker was restarted");
            return Ok(manifest);
        }
        let manifest = self.save(address, options)?;
        self.complete_action(begun, &manifest, Vec::new())?;
        Ok(manifest)
    }

    fn save_begun(&self, address: &str, id: &str, base: Option<Base>, options: &SaveOptions) -> Result<Manifest> {
        let cut = self.cut(id, base.as_ref().map(|base| base.moment.clone()))?;
        let (only, without_state) = (options.only.clone(), options.without_state);
        let write = Save::Write { address: address.to_owned(), id: id.to_owned(), cut, only, without_state };
        // One thread per server, because a server in this process blocks until it is done.
        let parts: Vec<Result<ServerPart>> = std::thread::scope(|scope| {
            let writing: Vec<_> = self.links.iter().map(|link| scope.spawn(|| ask_to_save(link, &write))).collect();
            let written = writing.into_iter().map(|thread| thread.join().unwrap_or(Err(Error::NothingToSave)));
            written.map(|answer| save::decode_part(answer?.bytes())).collect()
        });
        let commit = Commit {
            id: id.to_owned(),
            job: self.job.as_ref().unwrap_or(&options.job).clone(),
            mode: self.strategy.mode().to_string(),
            workers: self.worker.count,
            threads: self.worker.threads,
            data: options.data.clone(),
            states: encode_states(&options.states).map_err(Error::checkpoint("saving to", address))?,
            parts: parts.into_iter().collect::<Result<_>>()?,
            replaces: base.map_or(Replaces::Anything, |base| Replaces::Changes(base.id)),
            ..Commit::default()
        };
        let commit = Save::Commit { address: address.to_owned(), commit: Box::new(commit) };
        save::decode_manifest(ask_to_save(&self.links[0], &commit)?.bytes())
    }

    /// Takes a snapshot on all servers and returns the id of the successful attempt.
    fn cut(&self, id: &str, since: Option<String>) -> Result<String> {
        let began = Instant::now();
        for attempt in 0.. {
            let cut = format!("{id}.{attempt}");
            let because = match self.try_cut(&cut, since.clone()) {
                Ok(None) => return Ok(cut),
                Ok(Some(because)) => because,
                Err(error) => {
                    // Report the first error only.
                    let _ = self.release(&cut);
                    return Err(error);
                }
            };
            self.release(&cut)?;
            if began.elapsed() > TRYING {
                return Err(Error::NoCut { waited: began.elapsed(), because });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(Error::CutOver)
    }

    fn release(&self, cut: &str) -> Result<()> {
        wait_all(self.each(&Cut::Release { id: cut.to_owned() })?).map(drop)
    }

    /// Makes one attempt. Returns the reason if it failed and should be retried.
    fn try_cut(&self, id: &str, since: Option<String>) -> Result<Option<String>> {
        let mut target = Work::default();
        for answer in wait_all(self.each(&Cut::Prepare { id: id.to_owned() })?)? {
            match cut::decode(answer.bytes())? {
                Answer::Prepared(work) => target.merge(&work),
                Answer::Busy(because) => return Ok(Some(because)),
                Answer::Done | Answer::NotYet(_) => return Err(Error::Damaged { what: "answer to a cut" }),
            }
        }
        let ask = Cut::Cut { id: id.to_owned(), target, since };
        let mut behind: Vec<&Link> = self.links.iter().collect();
        let began = Instant::now();
        loop {
            let asked = behind.iter().map(|link| ask_to_cut(link, &ask)).collect::<Result<Vec<_>>>()?;
            let answers = wait_all(asked)?;
            let mut still = Vec::new();
            for (link, answer) in behind.into_iter().zip(answers) {
                if cut::decode(answer.bytes())? != Answer::Done {
                    still.push(link);
                }
            }
            behind = still;
            let Some(link) = behind.first() else { return Ok(None) };
            if began.elapsed() > PAUSE {
                return Ok(Some(format!("server `{}` waits for pushes that others have applied", link.name())));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn each(&self, ask: &Cut) -> Result<Vec<crate::client::Pending>> {
        self.links.iter().map(|link| ask_to_cut(link, ask)).collect()
    }

    /// Takes the program's own state that came with the checkpoint the servers resumed from. Empty after the first call.
    pub fn take_resumed_states(&self) -> Result<States> {
        let states = std::mem::take(&mut *self.resumed.lock());
        decode_states(&states)
            .map_err(|_| Error::Damaged { what: "states of the checkpoint that the servers resumed from" })
    }

    /// [`Cluster::load`] as an action of the script, which a restarted worker skips. Returns `None` if it was skipped: the
    /// program's own state is not available then.
    pub fn load_once(&self, address: &str, options: LoadOptions) -> Result<Option<States>> {
        let begun = self.begin_action(ActionKind::Load, format!("load `{address}`"))?;
        if begun.recorded::<bool>().is_some() {
            warn!("skipped loading `{address}`: it was loaded before this worker was restarted");
            return Ok(None);
        }
        let states = self.load(address, options)?;
        self.complete_action(begun, &true, Vec::new())?;
        Ok(Some(states))
    }

    /// Loads all tables from a checkpoint, whatever the number of servers that wrote it: the existing tables, or those that the
    /// first program will create. Returns the program's own state.
    ///
    /// # Errors
    ///
    /// While training, and in geo mode once tables exist: workers have copies of the old values.
    pub fn load(&self, address: &str, options: LoadOptions) -> Result<States> {
        // Enter first: entering later could begin a generation and lose the loaded values.
        let entry = self.enter()?;
        if self.strategy.trains_on_copies() && self.is_connected() {
            return Err(Error::LoadOverCopies);
        }
        // Not an empty one: other workers do not load, and would count fewer passes.
        self.finish_implicit(&entry.streams, false)?;
        let load = LoadRequest(Load { address: address.to_owned(), partial: options.partial });
        let ask = |link: &Link| link.send_within(&load, WRITING)?.wait();
        let ask = &ask;
        let answers: Vec<Result<Payload>> = std::thread::scope(|scope| {
            let loading: Vec<_> = self.links.iter().map(|link| scope.spawn(move || ask(link))).collect();
            loading.into_iter().map(|thread| thread.join().unwrap_or(Err(Error::NothingToSave))).collect()
        });
        self.values_were_replaced();
        let mut states = States::new();
        for answer in answers {
            states = decode_states(answer?.bytes()).map_err(Error::checkpoint("loading", address))?;
        }
        Ok(states)
    }
}

/// A new unique id for a save.
pub fn fresh_save_id() -> String {
    fresh_nonce()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn ask_to_cut(link: &Link, ask: &Cut) -> Result<crate::client::Pending> {
    link.send_within(ask, CUTTING)
}

fn ask_to_save(link: &Link, ask: &Save) -> Result<Payload> {
    link.send_within(ask, WRITING)?.wait()
}
