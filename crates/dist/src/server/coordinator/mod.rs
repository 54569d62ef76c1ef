//! The control plane of a server: which workers are present, who waits for whom, and how far each of them is.
//!
//! One state machine behind one lock. It is told what happens (a worker connects, sends a request, falls silent; time passes)
//! and returns [`Effect`]s, which its caller carries out before it releases the lock. A request that has to wait is a
//! [`Ticket`] here: its payload and the channel for its reply stay with the caller. The coordinator knows no tables, no sockets
//! and no clock except the time passed to it, so a test can run through whole histories.

mod collective;
mod group;
mod journal;
mod membership;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

use openfleet_core::WorkId;
use openfleet_core::topology::Incarnation;
use openfleet_table::checkpoint::{GroupWork, Work};
use openfleet_table::ledger::Ledger;
use serde::{Deserialize, Serialize};

pub use collective::{Collective, Completed, Reduce};
pub(crate) use collective::{Contribution, put_parts};
pub(crate) use group::{Pushed, Step};
pub use journal::{Action, Journal, Kind as ActionKind};
pub use membership::Absent;
pub(crate) use membership::End;
pub use snapshot::CutAnswer;
pub(crate) use snapshot::Owner;

use self::collective::Collectives;
use self::group::Group;
use self::membership::Membership;
use self::snapshot::Snapshot;
use super::description::{Team, check_worker};
use crate::error::{Error, Result};
use crate::frame::Payload;

/// Number of a waiting request.
pub(crate) type Ticket = u64;

/// What the caller of the coordinator has to do, in order.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Answer a request.
    Answer(Ticket, Answer),
    /// Answer a push that was applied before.
    Repeated(Ticket, Answer),
    /// Measure a step that all streams of a group have pushed, and answer these requests. Its pushes are kept.
    Measure {
        /// The parts that each stream has pushed, in the order of the streams.
        pushes: Vec<(u32, Vec<Ticket>)>,
        /// The requests to answer.
        waiting: Vec<Ticket>,
    },
    /// Apply a step that all streams of a group have pushed, and answer every request that waits for it.
    Apply(Step),
    /// Close the gate of the tables for all work except this, or open it.
    Gate(Option<Option<Work>>),
    /// Retry a push that was held back.
    Retry(Ticket),
    /// Discard the snapshot of a save.
    ForgetCut(String),
    /// Stop the server.
    Stop(End),
}

/// The reply to a request that waited.
#[derive(Debug)]
pub(crate) enum Answer {
    /// A number.
    Number(u64),
    /// These bytes.
    Payload(Payload),
    /// The dense values that the request asked for.
    Values,
    /// The part of a step is dropped: its worker has begun a newer attempt, or has ended the pass. No one reads the reply.
    Superseded,
    /// A measured step was applied before, with this scale factor.
    Applied(f32),
    /// An error.
    Failed(Error),
}

/// How far a job is, besides what its tables have applied. Stored in every checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Completed collectives.
    pub collectives: BTreeMap<u64, Completed>,
    /// What each worker's script has done.
    pub journals: BTreeMap<u32, Journal>,
}

/// Positions of a worker's streams on one server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamPositions {
    /// The applied steps of its streams.
    pub applied: Ledger,
    /// Per stream: the pass it left last, if streams step together.
    pub left: BTreeMap<u32, u64>,
}

/// The control plane.
#[derive(Default)]
pub(crate) struct Coordinator {
    membership: Membership,
    team: Option<Team>,
    groups: Vec<Group>,
    collectives: Collectives,
    journals: BTreeMap<u32, Journal>,
    snapshot: Snapshot,
    next_ticket: Ticket,
}

type Effects = Vec<Effect>;

impl Coordinator {
    /// A number for a request that may have to wait.
    pub(crate) fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// Begins a generation with this team, at the work and position of a checkpoint if given.
    pub(crate) fn begin(&mut self, team: Team, work: Option<&Work>, position: Option<Position>) {
        let departed = std::mem::take(&mut self.collectives).departed().clone();
        self.team = Some(team);
        self.groups = team.duties().groups.into_iter().map(Group::new).collect();
        if let Some(work) = work {
            self.groups.iter_mut().for_each(|group| work.groups.iter().for_each(|saved| group.restore(saved)));
        }
        let Position { collectives, journals } = position.unwrap_or_default();
        self.collectives.restore(collectives);
        self.journals = journals;
        self.snapshot = Snapshot::default();
        // No request waits yet, so none is answered.
        for worker in departed {
            self.collectives.depart(worker, &mut Vec::new());
            self.depart_from_groups(worker, &mut Vec::new());
        }
    }

    /// Forgets all departures: the job returns to a checkpoint, and every worker restarts.
    pub(crate) fn forget_departures(&mut self) {
        let departed = self.collectives.departed().clone();
        departed.into_iter().for_each(|worker| self.collectives.rejoin(worker));
    }

    /// The team, once it is known.
    pub(crate) fn team(&self) -> Option<Team> {
        self.team
    }

    /// The group of a stream, if it steps together with others.
    fn group_of(&mut self, stream: u32) -> Option<(usize, &mut Group)> {
        self.groups.iter_mut().enumerate().find(|(_, group)| group.has(stream))
    }

    /// A push of a stream that steps together with others.
    pub(crate) fn push(&mut self, work: WorkId, pushed: Pushed, ticket: Ticket) -> Result<Effects> {
        let mut effects = Vec::new();
        let Some((number, group)) = self.group_of(work.stream) else {
            return Err(Error::UnknownStream { stream: work.stream, count: 0 });
        };
        group.push(number, work, pushed, ticket, &mut effects)?;
        Ok(effects)
    }

    /// A stream sends the scale factor of a step; answered when the step is applied.
    pub(crate) fn scale(&mut self, stream: u32, step: u64, factor: f32, ticket: Ticket) -> Result<Effects> {
        let mut effects = Vec::new();
        let Some((number, group)) = self.group_of(stream) else {
            return Err(Error::UnknownStream { stream, count: 0 });
        };
        group.scale(number, (stream, step), factor, ticket, &mut effects)?;
        Ok(effects)
    }

    /// A step could not be applied.
    pub(crate) fn failed(&mut self, step: &Step, message: &str) {
        if let Some(group) = self.groups.get_mut(step.group) {
            group.fail(step, message);
        }
    }

    /// Holds a push back while the gate is closed for it. Returns `false` if it may be applied.
    pub(crate) fn hold_back(&mut self, work: WorkId, ticket: Ticket) -> bool {
        let holds = self.snapshot.holds_back(work);
        if holds {
            self.snapshot.hold(ticket, work);
        }
        holds
    }

    /// A stream joins a pass; answered when the others are ready, or at once if the stream has no group.
    pub(crate) fn join(&mut self, stream: u32, pass: u64, ticket: Ticket) -> Effects {
        let mut effects = Vec::new();
        match self.group_of(stream) {
            Some((_, group)) => group.join(stream, pass, ticket, &mut effects),
            None => effects.push(Effect::Answer(ticket, Answer::Number(0))),
        }
        effects
    }

    /// A stream leaves a pass.
    pub(crate) fn leave(&mut self, stream: u32, pass: u64) -> Effects {
        let mut effects = Vec::new();
        if let Some((number, group)) = self.group_of(stream) {
            group.leave(number, stream, pass, &mut effects);
        }
        effects
    }

    /// A worker departs: no other worker waits for it any more. The server stops when all have departed.
    pub(crate) fn depart(&mut self, worker: u32, workers: u32) -> Result<Effects> {
        check_worker(worker, workers)?;
        let mut effects = Vec::new();
        self.collectives.depart(worker, &mut effects);
        self.depart_from_groups(worker, &mut effects);
        self.membership.departed(worker);
        if self.snapshot.give_up(|owner| owner.rank == worker, &mut effects) {
            self.thaw(&mut effects);
        }
        if self.collectives.departed().range(..workers).count() == workers as usize {
            effects.push(Effect::Stop(End::Done));
        }
        Ok(effects)
    }

    fn depart_from_groups(&mut self, worker: u32, effects: &mut Effects) {
        let streams = self.team.map_or(0..0, |team| team.streams_of(worker));
        for stream in streams {
            if let Some((number, group)) = self.group_of(stream) {
                group.depart(number, stream, effects);
            }
        }
    }

    /// A worker arrives at a collective; answered when all workers have arrived.
    pub(crate) fn arrive(
        &mut self,
        worker: u32,
        number: u64,
        wanted: Collective,
        contribution: Contribution,
        ticket: Ticket,
    ) -> Result<Effects> {
        let mut effects = Vec::new();
        self.collectives.arrive(worker, number, wanted, contribution, ticket, &mut effects)?;
        Ok(effects)
    }

    /// Whether a restarted worker can repeat this collective only together with all other workers, restarted as well.
    pub(crate) fn needs_all(&self, number: u64) -> bool {
        self.collectives.needs_all(number)
    }

    /// All workers restart while the tables stay.
    pub(crate) fn recall(&mut self) {
        self.collectives.recall();
    }

    /// A worker's journal.
    pub(crate) fn journal(&mut self, worker: u32) -> &mut Journal {
        self.journals.entry(worker).or_default()
    }

    /// How far the job is, besides what is applied.
    pub(crate) fn position(&self) -> Position {
        Position { collectives: self.collectives.completed().clone(), journals: self.journals.clone() }
    }

    /// Positions of a worker's streams in groups. The tables know the positions of other streams.
    pub(crate) fn stream_positions(&self, streams: Range<u32>) -> StreamPositions {
        let mut positions = StreamPositions::default();
        for group in &self.groups {
            let GroupWork { taken, left, .. } = group.work();
            for (stream, taken) in taken.into_iter().filter(|(stream, taken)| streams.contains(stream) && *taken > 0) {
                let work = WorkId { stream, first_step: 0, last_step: taken - 1 };
                let _ = positions.applied.apply_once(work, || ());
            }
            positions.left.extend(left.into_iter().filter(|(stream, _)| streams.contains(stream)));
        }
        positions
    }

    // Connections

    /// Admits a worker unless a newer incarnation of it was admitted before.
    pub(crate) fn admit(&mut self, rank: u32, incarnation: Incarnation) -> std::result::Result<Effects, String> {
        let is_newer = self.membership.incarnation(rank).is_some_and(|known| known < incarnation);
        self.membership.admit(rank, incarnation)?;
        let mut effects = Vec::new();
        if is_newer {
            let streams = self.team.map_or(0..0, |team| team.streams_of(rank));
            for stream in streams {
                if let Some((_, group)) = self.group_of(stream) {
                    group.drop_parts(stream, &mut effects);
                }
            }
        }
        let older = |owner: Owner| owner.rank == rank && owner.incarnation.is_some_and(|known| known < incarnation);
        if self.snapshot.give_up(older, &mut effects) {
            self.thaw(&mut effects);
        }
        Ok(effects)
    }

    /// A worker takes part in the job from now on. If its predecessor had departed, that departure is undone.
    pub(crate) fn enter(&mut self, rank: u32) {
        self.membership.enter(rank);
        if self.collectives.departed().contains(&rank) {
            self.collectives.rejoin(rank);
            let streams = self.team.map_or(0..0, |team| team.streams_of(rank));
            for stream in streams {
                if let Some((_, group)) = self.group_of(stream) {
                    group.rejoin(stream);
                }
            }
        }
    }

    /// A connection of a worker ended.
    pub(crate) fn disconnected(&mut self, rank: u32, now: Instant) {
        self.membership.disconnected(rank, now);
    }

    /// A worker has sent nothing since then.
    pub(crate) fn silent(&mut self, rank: u32, since: Instant) {
        self.membership.silent(rank, since);
    }

    /// A silent worker has sent something.
    pub(crate) fn heard(&mut self, rank: u32) {
        self.membership.heard(rank);
    }

    /// The newest incarnation of a worker that was admitted.
    pub(crate) fn incarnation(&self, rank: u32) -> Option<Incarnation> {
        self.membership.incarnation(rank)
    }

    /// Workers that are gone or silent, and have not departed.
    pub(crate) fn absent(&self, now: Instant) -> Vec<Absent> {
        self.membership.absent(now)
    }

    /// Workers that are connected.
    pub(crate) fn connected(&self) -> Vec<u32> {
        self.membership.connected()
    }

    /// Checks timeouts.
    pub(crate) fn tick(&mut self, now: Instant) -> Effects {
        let mut effects = Vec::new();
        let mut opened = self.snapshot.tick(now, &mut effects);
        let membership = &self.membership;
        opened |= self.snapshot.give_up(|owner| membership.is_gone_permanently(owner, now), &mut effects);
        if opened {
            self.thaw(&mut effects);
        }
        effects.extend(self.membership.deserted(now).map(Effect::Stop));
        effects
    }

    // Saving

    /// Closes the gate for a save, or returns why that is not possible now.
    pub(crate) fn prepare_cut(
        &mut self,
        id: &str,
        owner: Owner,
        now: Instant,
    ) -> Result<(Option<&'static str>, Effects)> {
        let mut effects = Vec::new();
        // An owner that is gone will not write its snapshot.
        let marked = self.snapshot.marked_by().filter(|marked| *marked != owner);
        if let Some(marked) = marked.filter(|marked| !self.membership.is_connected(*marked)) {
            self.snapshot.give_up(|owner| owner == marked, &mut effects);
        }
        let busy = self.snapshot.prepare(id, owner, now)?;
        if busy.is_none() {
            self.groups.iter_mut().for_each(Group::freeze);
            effects.insert(0, Effect::Gate(self.snapshot.target()));
        }
        Ok((busy, effects))
    }

    /// Sets what all servers have to apply before the snapshot is taken.
    pub(crate) fn aim(&mut self, id: &str, target: &Work, now: Instant) -> Result<Effects> {
        let mut effects = Vec::new();
        self.snapshot.aim(id, target, now, &mut effects)?;
        effects.insert(0, Effect::Gate(self.snapshot.target()));
        for (number, group) in self.groups.iter_mut().enumerate() {
            group.advance_to(number, target, &mut effects);
        }
        Ok(effects)
    }

    /// Whether the snapshot of this save has been taken.
    pub(crate) fn is_marked(&self, id: &str) -> bool {
        self.snapshot.is_marked(id)
    }

    /// The snapshot was taken: training continues.
    pub(crate) fn marked(&mut self, id: &str) -> Effects {
        let mut effects = Vec::new();
        self.snapshot.mark(id, &mut effects);
        self.thaw(&mut effects);
        effects
    }

    /// The snapshot is being written.
    pub(crate) fn written(&mut self, id: &str) {
        self.snapshot.written(id);
    }

    /// Aborts a save.
    pub(crate) fn release_cut(&mut self, id: &str) -> Effects {
        let mut effects = Vec::new();
        if self.snapshot.release(id, &mut effects) {
            self.thaw(&mut effects);
        }
        effects
    }

    /// What groups have applied.
    pub(crate) fn group_work(&self) -> Vec<GroupWork> {
        self.groups.iter().map(Group::work).collect()
    }

    /// Whether streams that step together are in a pass.
    pub(crate) fn is_training(&self) -> bool {
        self.groups.iter().any(Group::is_training)
    }

    /// Per stream of a group: the number of its steps that are applied.
    pub(crate) fn positions(&self) -> Vec<(u32, u64)> {
        self.groups.iter().flat_map(Group::positions).collect()
    }

    /// Streams that a step or the start of a pass waits for; workers that a collective waits for; departed workers; and the
    /// number of completed collectives.
    pub(crate) fn waits(&self) -> (Vec<u32>, Vec<u32>, Vec<u32>, u64) {
        let streams = self.groups.iter().flat_map(Group::missing).collect();
        let departed = self.collectives.departed().iter().copied().collect();
        (streams, self.collectives.missing(), departed, self.collectives.number())
    }

    /// The gate was opened: first of all, apply the steps that waited.
    fn thaw(&mut self, effects: &mut Effects) {
        let mut thawed = vec![Effect::Gate(self.snapshot.target())];
        for (number, group) in self.groups.iter_mut().enumerate() {
            group.thaw(number, &mut thawed);
        }
        thawed.append(effects);
        *effects = thawed;
    }
}
