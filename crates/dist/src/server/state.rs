//! A server without sockets: its tables, its coordinator, and what each request does to them.
//!
//! [`Tables`] is the data plane, [`Coordinator`] the control plane. The state carries out what the coordinator decides, and
//! keeps the requests that wait. Tests and in-process links call it directly.
//!
//! Lock order: the fence of a worker, then the control plane, then the gate of the tables, then the locks inside the tables. An
//! ordinary push or pull takes only the fence and the gate.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use openfleet_core::topology::Incarnation;
use openfleet_table::{Row, Shrunk};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{oneshot, watch};

use super::coordinator::{Absent, Action, ActionKind, Collective, Contribution, Coordinator, End, Owner, Pushed};
use super::description::{Description, Team, check_same, check_worker};
use super::geo::GeoState;
use super::saving::{Restored, Saving, make};
use super::shrink::Shrink;
use super::status::Status;
use super::tables::{TableSet, Tables};
use super::waiting::{Control, RequestBody, WaitingRequest};
use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::gradients::PushView;
use crate::handshake::{Nonce, fresh_nonce};

/// A reply, now or when other workers have done their part.
pub enum Outcome {
    /// The reply.
    Now(Result<Payload>),
    /// The reply arrives through this channel.
    Later(oneshot::Receiver<Result<Payload>>),
}

/// The sender of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// Rank of the worker.
    pub rank: u32,
    /// Incarnation of the worker; `None` for a worker in this process.
    pub incarnation: Option<Incarnation>,
}

/// A server without sockets.
pub struct State {
    pub(crate) tables: Tables,
    pub(super) control: Mutex<Control>,
    pub(super) saving: Saving,
    pub(super) job: Mutex<Job>,
    /// Held while tables are created or the job returns to a checkpoint, which may take long.
    pub(super) making: Mutex<()>,
    /// Per worker: which incarnation is served. Read-locked while a request of the worker is handled, so that a newer
    /// incarnation is admitted between two requests and not during one.
    fences: Mutex<BTreeMap<u32, Arc<RwLock<IncarnationFence>>>>,
    /// Number of requests to create tables so far.
    sessions: AtomicU64,
    stopped: watch::Sender<bool>,
    ended: Mutex<Option<End>>,
    instance: u64,
}

/// What a push contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushing {
    /// Gradients.
    Gradients,
    /// Differences of geo mode.
    Differences,
}

/// Which incarnation of a worker is served.
#[derive(Debug, Clone, Copy, Default)]
struct IncarnationFence {
    /// The newest incarnation that was admitted.
    incarnation: Incarnation,
    /// Whether it belongs to an older generation and has to restart.
    recalled: bool,
}

/// The run and its current generation.
pub(super) struct Job {
    pub(super) run: String,
    pub(super) generation: u64,
    /// The instances of all servers that the generation was begun with.
    pub(super) instances: Vec<u64>,
    /// The checkpoint that the generation began from.
    pub(super) began: Option<super::entry::Cut>,
    /// The checkpoint to return to if that is necessary.
    pub(super) cut: Option<super::entry::Cut>,
}

impl Default for State {
    fn default() -> Self {
        State::new()
    }
}

impl State {
    /// A server without tables.
    pub fn new() -> Self {
        State::with_saving(Saving::default())
    }

    pub(super) fn with_saving(saving: Saving) -> Self {
        let nonce = fresh_nonce();
        let run = nonce[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        State {
            tables: Tables::default(),
            control: Mutex::default(),
            saving,
            job: Mutex::new(Job { run, generation: 0, instances: Vec::new(), began: None, cut: None }),
            making: Mutex::default(),
            fences: Mutex::default(),
            sessions: AtomicU64::new(0),
            stopped: watch::channel(false).0,
            ended: Mutex::default(),
            instance: u64::from_le_bytes(std::array::from_fn(|at| nonce[8 + at])),
        }
    }

    /// Identifies this server process; a restarted server has another number.
    pub(crate) fn instance(&self) -> u64 {
        self.instance
    }

    /// Runs `answer` unless the caller is fenced off: a newer incarnation was admitted, or the job has returned to a checkpoint
    /// since. `enters`: the request is one that a worker makes to enter.
    ///
    /// # Errors
    ///
    /// [`Error::Replaced`] or [`Error::Recalled`].
    pub(crate) fn fenced<R>(
        &self,
        caller: Caller,
        is_slow: bool,
        enters: bool,
        answer: impl FnOnce() -> R,
    ) -> Result<R> {
        let Caller { rank, incarnation: Some(incarnation) } = caller else { return Ok(answer()) };
        let fence = self.fences.lock().get(&rank).cloned();
        let fence = fence.as_ref().map(|fence| fence.read());
        match fence.as_deref() {
            Some(fence) if fence.incarnation != incarnation => return Err(Error::Replaced { rank, incarnation }),
            None => return Err(Error::Replaced { rank, incarnation }),
            Some(fence) if fence.recalled && !enters => return Err(Error::Recalled { rank }),
            Some(_) => {}
        }
        if is_slow {
            // A slow request is recognised by its own id, and must not delay the admission of a newer incarnation.
            drop(fence);
        }
        Ok(answer())
    }

    /// Admits a worker unless a newer incarnation of it was admitted before.
    pub fn admit(&self, rank: u32, incarnation: Incarnation) -> std::result::Result<(), String> {
        let fence = self.fences.lock().entry(rank).or_default().clone();
        let mut fence = fence.write();
        let mut control = self.control.lock();
        let effects = control.coordinator.admit(rank, incarnation)?;
        if incarnation > fence.incarnation {
            *fence = IncarnationFence { incarnation, recalled: false };
        }
        self.carry_out(&mut control, effects);
        Ok(())
    }

    /// Refuses all requests of this generation's workers from now on, except the caller's.
    pub(super) fn recall_others(&self, caller: Caller) {
        let fences: Vec<_> = self.fences.lock().iter().map(|(&rank, fence)| (rank, fence.clone())).collect();
        for (rank, fence) in fences {
            if rank != caller.rank {
                fence.write().recalled = true;
            }
        }
        let mut control = self.control.lock();
        for waiting in control.waiting.values_mut().filter(|waiting| waiting.caller.rank != caller.rank) {
            let rank = waiting.caller.rank;
            waiting.answer.take().map(|sender| sender.send(Err(Error::Recalled { rank })));
        }
        // A push may already be part of a step, which is applied when the other pushes have arrived; it is not sent again.
        control.waiting.retain(|_, waiting| waiting.answer.is_some() || matches!(waiting.body, RequestBody::Push(..)));
    }

    /// The worker has entered: its requests are served again.
    pub(super) fn let_in(&self, caller: Caller) {
        let fence = self.fences.lock().get(&caller.rank).cloned();
        if let Some(fence) = fence {
            fence.write().recalled = false;
        }
    }

    /// A connection of a worker ended.
    pub fn disconnected(&self, rank: u32) {
        self.control.lock().coordinator.disconnected(rank, now());
    }

    /// A worker has sent nothing since then.
    pub(crate) fn silent(&self, rank: u32, since: Instant) {
        self.control.lock().coordinator.silent(rank, since);
    }

    /// A silent worker has sent something.
    pub(crate) fn heard(&self, rank: u32) {
        self.control.lock().coordinator.heard(rank);
    }

    /// Workers that have entered and are missing.
    pub fn absent(&self) -> Vec<Absent> {
        self.control.lock().coordinator.absent(now())
    }

    /// Checks timeouts.
    pub fn tick(&self) {
        let mut control = self.control.lock();
        let effects = control.coordinator.tick(now());
        self.carry_out(&mut control, effects);
    }

    /// Creates tables, or checks that the existing ones are the same.
    pub(crate) fn create_tables(&self, tables: Description, first_values: &[&[f32]]) -> Result<Created> {
        let team = tables.team();
        team.check()?;
        let _making = self.making.lock();
        let session = self.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(existing) = &self.tables.current().description {
            check_same(existing, &tables)?;
            return Ok(Created { is_new: false, session, states: self.saving.states.lock().clone() });
        }
        if self.control.lock().coordinator.team() != Some(team) {
            // No worker has entered: the caller only uses the tables of this server.
            self.control.lock().coordinator.begin(team, None, None);
        }
        let resume = self.saving.resume.lock().clone();
        let Restored { sparse, dense } = match &resume {
            Some(load) => self.restore(&tables, load)?,
            None => make(&tables, first_values)?,
        };
        let states = match resume.filter(|_| tables.share.server == 0) {
            Some(load) => self.saved_states(&load.address)?,
            None => Vec::new(),
        };
        self.saving.states.lock().clone_from(&states);
        let geo = (!team.duties().runs_optimizers).then(|| Arc::new(GeoState::new(sparse.len(), team.workers)));
        let (_, _, departed, _) = self.control.lock().coordinator.waits();
        departed.iter().for_each(|&worker| geo.iter().for_each(|geo| geo.leave(worker)));
        self.tables.replace(|current| *current = TableSet { geo, sparse, dense, description: Some(tables) });
        Ok(Created { is_new: true, session, states })
    }

    /// Applies a push of gradients or differences, now or when its group or the gate allows.
    pub(crate) fn push(&self, caller: Caller, how: Pushing, payload: Payload) -> Result<Outcome> {
        let view = self.tables.decode(&payload)?;
        let work = view.work;
        let team = self.check_mode(how)?;
        team.check_stream(caller.rank, work.stream)?;
        // Exchanges belong to the worker, not to a thread.
        let exchanges = team.second_stream(team.streams_of(caller.rank).start);
        if how == Pushing::Differences && work.stream != exchanges {
            return Err(Error::NotYours { worker: caller.rank, stream: work.stream, owner: caller.rank });
        }
        self.tables.check_push(&view)?;
        if how == Pushing::Gradients && team.is_grouped(work.stream) {
            let pushed = Pushed { part: view.part, measured: view.measured };
            drop(view);
            let body = RequestBody::Push(how, payload);
            return self.wait(caller, body, |coordinator, ticket| coordinator.push(work, pushed, ticket));
        }
        if view.part.has_more {
            return Err(Error::Damaged { what: "push: it is a part of a step, but its stream steps alone" });
        }
        let mut held = false;
        loop {
            let permit = self.tables.permit();
            if permit.lets_through(work) {
                let answer = self.apply(&permit, caller, how, &view);
                drop((view, permit));
                return Ok(Outcome::Now(answer.and_then(|answer| self.answer_push(caller, how, answer, &payload))));
            }
            drop(permit);
            // Only the coordinator opens and closes the gate: if it is open by now, the push is applied.
            if std::mem::replace(&mut held, true) {
                std::thread::yield_now();
            }
            let mut control = self.control.lock();
            let ticket = control.coordinator.ticket();
            if control.coordinator.hold_back(work, ticket) {
                drop(view);
                let (answer, receiver) = oneshot::channel();
                control.waiting.insert(ticket, WaitingRequest::new(caller, RequestBody::Push(how, payload), answer));
                return Ok(Outcome::Later(receiver));
            }
        }
    }

    pub(super) fn apply(
        &self,
        permit: &super::tables::GatePermit<'_>,
        caller: Caller,
        how: Pushing,
        view: &PushView<'_>,
    ) -> Result<Option<Payload>> {
        match how {
            Pushing::Gradients => self.tables.push(permit, view).map(|()| None),
            Pushing::Differences => self.tables.exchange(permit, caller.rank, view).map(Some),
        }
    }

    pub(super) fn answer_push(
        &self,
        caller: Caller,
        how: Pushing,
        answer: Option<Payload>,
        push: &Payload,
    ) -> Result<Payload> {
        match (how, answer) {
            (Pushing::Differences, Some(answer)) => Ok(answer),
            _ => self.tables.answer_push(caller.rank, push, None),
        }
    }

    /// GEO: the tables contain all progress of a worker up to these steps.
    pub(crate) fn geo_flushed(&self, caller: Caller, positions: &[(u32, u64)]) -> Result<()> {
        let team = self.check_mode(Pushing::Differences)?;
        positions.iter().try_for_each(|(stream, _)| team.check_stream(caller.rank, *stream))?;
        let permit = self.tables.permit();
        self.tables.geo_flushed(&permit, caller.rank, positions);
        Ok(())
    }

    /// GEO: asks the workers with unsent progress to flush, once per ticket. Returns those that have not flushed yet.
    pub(crate) fn geo_flush(&self, caller: Caller, ticket: u64) -> Vec<u32> {
        self.tables.geo().map(|geo| geo.request_flush(caller.rank, ticket)).unwrap_or_default()
    }

    /// GEO: a worker has flushed as requested.
    pub(crate) fn geo_flush_done(&self, caller: Caller, ticket: u64) {
        if let Some(geo) = self.tables.geo() {
            geo.flush_done(caller.rank, ticket);
        }
    }

    /// Fails unless the job's mode allows this kind of push.
    fn check_mode(&self, how: Pushing) -> Result<Team> {
        let current = self.tables.current();
        match &current.description {
            None => Err(Error::UnknownStream { stream: 0, count: 0 }),
            Some(tables) if current.geo.is_some() != (how == Pushing::Differences) => {
                let what = if how == Pushing::Gradients { "push" } else { "exchange geo" };
                Err(Error::WrongMode { what, mode: tables.mode.to_string() })
            }
            Some(tables) => Ok(tables.team()),
        }
    }

    /// A stream joins a pass; answered when the other streams of its group are ready.
    pub(crate) fn join(&self, caller: Caller, stream: u32, pass: u64) -> Result<Outcome> {
        self.check_stream(caller, stream)?;
        self.wait(caller, RequestBody::Empty, |coordinator, ticket| Ok(coordinator.join(stream, pass, ticket)))
    }

    /// Sets the scale factor of a measured step; answered with the values of these blocks when the step is applied.
    pub(crate) fn scale(
        &self,
        caller: Caller,
        (stream, step): (u32, u64),
        factor: f32,
        blocks: Vec<u32>,
    ) -> Result<Outcome> {
        self.check_stream(caller, stream)?;
        let ask = |coordinator: &mut Coordinator, ticket| coordinator.scale(stream, step, factor, ticket);
        self.wait(caller, RequestBody::Values(blocks), ask)
    }

    /// A stream leaves a pass.
    pub(crate) fn leave(&self, caller: Caller, stream: u32, pass: u64) -> Result<()> {
        self.check_stream(caller, stream)?;
        let mut control = self.control.lock();
        let effects = control.coordinator.leave(stream, pass);
        self.carry_out(&mut control, effects);
        Ok(())
    }

    fn check_stream(&self, caller: Caller, stream: u32) -> Result<()> {
        let team = self.control.lock().coordinator.team();
        let unknown = Error::UnknownStream { stream, count: 0 };
        team.ok_or(unknown)?.check_stream(caller.rank, stream)
    }

    /// A worker departs. The server stops when all workers have departed.
    pub fn depart(&self, worker: u32, workers: u32) -> Result<()> {
        check_worker(worker, workers)?;
        if let Some(geo) = self.tables.geo() {
            geo.leave(worker);
        }
        let mut control = self.control.lock();
        let effects = control.coordinator.depart(worker, workers)?;
        self.carry_out(&mut control, effects);
        Ok(())
    }

    /// A worker arrives at a collective; answered when all workers have arrived.
    pub(crate) fn arrive(
        &self,
        caller: Caller,
        number: u64,
        wanted: Collective,
        contribution: Contribution,
    ) -> Result<Outcome> {
        self.wait(caller, RequestBody::Empty, |coordinator, ticket| {
            coordinator.arrive(caller.rank, number, wanted, contribution, ticket)
        })
    }

    /// A worker's script begins an action. Returns the recorded action if it is already complete.
    pub(crate) fn begin_action(
        &self,
        caller: Caller,
        kind: ActionKind,
        number: u64,
        what: &str,
        again: bool,
    ) -> Result<Option<Action>> {
        let mut control = self.control.lock();
        let journal = control.coordinator.journal(caller.rank);
        if again {
            journal.open.remove(&kind);
        }
        journal.begin(kind, number, what)
    }

    /// A worker's script has completed an action.
    pub(crate) fn complete_action(
        &self,
        caller: Caller,
        kind: ActionKind,
        number: u64,
        action: Action,
        states: Vec<u8>,
    ) -> Result<()> {
        self.control.lock().coordinator.journal(caller.rank).complete(kind, number, action, states)
    }

    /// Shrinks one sparse table or all, once per `id`.
    pub(crate) fn shrink(&self, id: Nonce, shrink: &Shrink) -> Result<Shrunk> {
        self.tables.shrink(id, shrink)
    }

    /// The status of the server.
    pub fn status(&self) -> Status {
        let current = self.tables.current();
        let sparse: Vec<_> = current
            .sparse
            .iter()
            .map(|named| (named.name.clone(), named.table.len() as u64, named.table.bytes() as u64))
            .collect();
        let dense: Vec<_> = current
            .dense
            .iter()
            .map(|named| (named.name.clone(), named.table.len() as u64, named.table.step()))
            .collect();
        let non_finite = current.sparse.iter().map(|named| named.table.non_finite()).sum::<u64>()
            + current.dense.iter().map(|named| named.table.non_finite()).sum::<u64>();
        drop(current);
        let generation = self.job.lock().generation;
        let control = self.control.lock();
        let mut positions = control.coordinator.positions();
        positions.extend(self.tables.applied().positions());
        positions.sort_unstable();
        let (waiting_for, workers_awaited, workers_left, collectives) = control.coordinator.waits();
        Status {
            sparse,
            dense,
            positions,
            waiting_for,
            collectives,
            workers_awaited,
            workers_left,
            non_finite,
            repeats: self.tables.repeats(),
            connected: control.coordinator.connected(),
            generation,
        }
    }

    /// Number of pushes that the tables have applied.
    pub fn step(&self) -> u64 {
        let current = self.tables.current();
        let dense = current.dense.iter().map(|named| named.table.step());
        dense.chain(current.sparse.iter().map(|named| named.table.step())).max().unwrap_or(0)
    }

    /// Stops the server, even if workers still use it.
    pub fn stop(&self) {
        self.end(End::Asked);
    }

    pub(super) fn end(&self, end: End) {
        self.ended.lock().get_or_insert(end);
        self.stopped.send_replace(true);
    }

    /// Becomes `true` when the server should shut down.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stopped.subscribe()
    }

    /// Whether the server stops because every worker has departed, which is a success.
    pub fn is_done(&self) -> bool {
        *self.ended.lock() == Some(End::Done)
    }

    /// Whether the server stops because all workers are gone and not all of them have departed.
    pub fn is_deserted(&self) -> bool {
        *self.ended.lock() == Some(End::Deserted)
    }

    /// Calls `look` with every dense block: for saving and tests.
    pub fn each_block(&self, mut look: impl FnMut(&str, &[f32])) {
        let dense = self.tables.current().dense.clone();
        dense.iter().for_each(|named| named.table.read(|values| look(&named.name, values)));
    }

    /// Calls `look` with every row of a sparse table, including everything that is saved of it.
    pub fn each_whole_row(&self, table: u32, look: impl FnMut(&Row<'_>)) -> Result<()> {
        self.tables.sparse(table)?.table.for_each_row(look);
        Ok(())
    }

    /// Calls `look` with every row of a sparse table: for tests.
    pub fn each_row(&self, table: u32, look: impl FnMut(u64, &[f32], &[f32])) -> Result<()> {
        self.tables.sparse(table)?.table.for_each(look);
        Ok(())
    }

    pub(super) fn owner(caller: Caller) -> Owner {
        Owner { rank: caller.rank, incarnation: caller.incarnation }
    }
}

/// The result of a request to create tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    /// Whether the tables are new.
    pub is_new: bool,
    /// Increases with every request of this kind. A restarted worker prefixes its pull numbers with it, so they are greater
    /// than those of its predecessor.
    pub session: u64,
    /// The program's own state, if the first server loaded the tables from a checkpoint.
    pub states: Vec<u8>,
}

/// The clock of the runtime, which tests can pause.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
