//! Saving and loading, as one worker asks for it.
//!
//! ```text
//! begin (first server) -> prepare (all) -> cut (all, until all are done) -> write (all at once) -> commit (first server)
//! ```
//!
//! Between prepare and cut pushes are held back: two round trips, and however long a push takes that is on its way.

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
    /// What the job is called.
    pub job: String,
    /// Whether a checkpoint that stands there is replaced; else it is an error.
    pub replace: bool,
    /// Whether only those rows are written that have changed since the checkpoint that stands there, which becomes part of
    /// this one. Tables have to know that save: one of this job's last, or the one that it was loaded from. Where nothing
    /// stands, everything is written.
    pub delta: bool,
    /// Whatever is wanted back when it is loaded: an epoch, a position in the data.
    pub data: serde_json::Value,
    /// What the program keeps beside its tables.
    pub states: States,
    /// Which tables and parameters; all of them where none is named.
    pub only: Vec<String>,
    /// Whether the optimizer's state is left out.
    pub without_state: bool,
}

impl Default for SaveOptions {
    fn default() -> Self {
        SaveOptions {
            job: "openfleet".into(),
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
    /// Whether what does not fit is left out, rather than an error.
    pub partial: bool,
    /// Whether what the program keeps beside its tables is left as it is.
    pub tables_only: bool,
}

/// How long writing may take: disks are slow, tables large.
const WRITING: Duration = Duration::from_secs(6 * 3600);
/// How long an answer may take while pushes are held back.
const CUTTING: Duration = Duration::from_secs(10);
/// How long pushes are held back at most; then everything goes on, and it is tried again.
const PAUSE: Duration = Duration::from_secs(2);
/// How long a save waits for what other workers have learnt (GEO): for an exchange of each.
const COLLECTING: Duration = Duration::from_secs(60);
/// How often it asks.
const ASKING: Duration = Duration::from_millis(20);
/// How long it is tried.
const TRYING: Duration = Duration::from_secs(120);

impl Cluster {
    /// Saves all tables of the job, from one moment, while training goes on. One worker asks; the servers write, so the
    /// address is theirs, and they all have to see the same directory or bucket. What this worker has queued is sent first; in geo
    /// mode the other workers are asked for what they have not sent yet.
    ///
    /// After an error the checkpoint that stood there still does.
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
                // What went wrong is known; what goes wrong now is not news.
                let _ = ask_to_save(first, &Save::Abandon { address, id });
            }
        }
        saved
    }

    /// GEO: waits until every other worker has sent what it has learnt, which it does with its next exchange.
    fn flush_other_workers(&self, address: &str) -> Result<()> {
        let nonce = fresh_nonce();
        // 0 means that nobody asks.
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
                    "saving to `{address}` without what workers {waiting:?} have learnt since their last exchange, {seconds} s ago or longer"
                );
                return Ok(());
            }
            std::thread::sleep(ASKING);
        }
    }

    /// Tells the servers that they can return to a checkpoint, if it is one to return to.
    fn announce(&self, manifest: &Manifest, address: &str, options: &SaveOptions) -> Result<()> {
        let is_whole = options.only.is_empty() && !options.without_state;
        if !is_whole || manifest.position.is_null() {
            return Ok(());
        }
        let committed = Committed(cut_of(manifest, address, false));
        let asked = self.links.iter().map(|link| link.send(&committed)).collect::<Result<_>>()?;
        wait_all(asked).map(drop)
    }

    /// [`Cluster::save`] as an action of the script: a restarted worker that had completed it does not repeat it, so that an old
    /// name never gets newer values.
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
        // A thread each, because a server in this process answers when it is done.
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

    /// Marks one moment on all servers, and says by which attempt.
    fn cut(&self, id: &str, since: Option<String>) -> Result<String> {
        let began = Instant::now();
        for attempt in 0.. {
            let cut = format!("{id}.{attempt}");
            let because = match self.try_cut(&cut, since.clone()) {
                Ok(None) => return Ok(cut),
                Ok(Some(because)) => because,
                Err(error) => {
                    // What went wrong is known; what goes wrong now is not news.
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

    /// One attempt; why it came to nothing, if somebody should try again.
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

    /// What the program kept beside its tables, where the servers took them from a checkpoint when they were made; once.
    pub fn take_resumed_states(&self) -> Result<States> {
        let states = std::mem::take(&mut *self.resumed.lock());
        decode_states(&states)
            .map_err(|_| Error::Damaged { what: "states of the checkpoint that the servers go on from" })
    }

    /// [`Cluster::load`] as an action of the script, which a restarted worker does not repeat: what it gave is gone then, and
    /// so are the states.
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

    /// Takes all tables from a checkpoint, whatever number of servers wrote it: those that exist, or else those that the
    /// first program makes. Not while training; workers that train already have copies of the values before. What the
    /// program kept beside its tables is the answer.
    pub fn load(&self, address: &str, options: LoadOptions) -> Result<States> {
        // Whoever enters later begins from nothing: it must not forget this.
        self.enter()?;
        if self.strategy.trains_on_copies() && self.is_connected() {
            return Err(Error::LoadOverCopies);
        }
        self.finish_implicit()?;
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

/// A name for a save that no other has.
pub fn fresh_save_id() -> String {
    fresh_nonce()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn ask_to_cut(link: &Link, ask: &Cut) -> Result<crate::client::Pending> {
    link.send_within(ask, CUTTING)
}

fn ask_to_save(link: &Link, ask: &Save) -> Result<Payload> {
    link.send_within(ask, WRITING)?.wait()
}
