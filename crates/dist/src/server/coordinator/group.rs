//! Streams that step together: a step is applied when every member has pushed it, and then all of them are answered.
//!
//! ```text
//!              join(p): every other stream has joined p, or left it
//!   outside -------------------------------------------------------> member of pass p
//!      ^                                                                   |
//!      +------------------------------ leave(p) ---------------------------+
//! ```
//!
//! A stream is a member of a pass, and passes are numbered by the workers' scripts. A restarted worker that joins a pass it is
//! a member of, or leaves one it has left, changes nothing. A member that died stays a member, so the others wait for its
//! successor. Steps are numbered per stream, also by the scripts: `taken` is how many of a stream's steps are applied.
//!
//! A step may be measured before it is applied: gradients are clipped by the norm of the mean over the whole group, and each
//! server has a part of that mean. The pushes are answered with the part's sum of squares, and the step waits for the scale
//! factor that the workers compute from all parts. All workers send the same factor, so the first one is enough.
//!
//! A stream may push a step in parts ([`PushPart`]). Parts wait outside of the step until the last of them has arrived; then
//! they are the stream's contribution. If the stream leaves before, or a newer attempt or incarnation begins, they are dropped.
//!
//! This file has tickets instead of gradients, and knows no table.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use openfleet_core::WorkId;
use openfleet_table::aggregate::{Aggregate, Arrival};
use openfleet_table::checkpoint::{GroupWork, Work};

use super::{Answer, Effect, Ticket};
use crate::error::{Error, Result};
use crate::gradients::PushPart;

/// The streams that step together: all streams of the job, or those of one worker.
pub(super) struct Group {
    streams: Range<u32>,
    /// Streams of workers that have departed.
    departed: BTreeSet<u32>,
    /// The pass that each stream wants to join, and the requests that wait for it.
    joining: BTreeMap<u32, (u64, Vec<Ticket>)>,
    /// The pass that each stream joined last.
    joined: BTreeMap<u32, u64>,
    /// The pass that each stream left last.
    left: BTreeMap<u32, u64>,
    /// Of each stream that has pushed the current step: the requests with its parts.
    aggregate: Aggregate<Vec<Ticket>>,
    /// Of each stream that has pushed only parts of the current step: what has arrived.
    arriving: BTreeMap<u32, Arriving>,
    /// Requests that wait for the current step: the first of each stream and its repeats. All are answered, because a repeat
    /// over a new connection may overtake the original in the buffers of the old one.
    waiting: BTreeMap<u32, Vec<Ticket>>,
    /// If the last step failed: the step number of each stream, and the error. A repeat gets the same error.
    failed: Option<(BTreeMap<u32, u64>, String)>,
    /// Per stream: the number of its steps that are applied.
    taken: BTreeMap<u32, u64>,
    /// Pushes of the current step that wait for a measure.
    measuring: Vec<(u32, Ticket)>,
    /// Whether the current step was measured.
    measured: bool,
    /// The scale factor of the current step, once it is known.
    factor: Option<f32>,
    /// The scale factor of the last step, for a repeated push.
    last_factor: f32,
    /// While a snapshot is being prepared: the first step that must not be applied before it.
    limit: Option<u64>,
}

/// What a group has to know of a push.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pushed {
    /// Which part of its step it is.
    pub(crate) part: PushPart,
    /// Whether it is answered with a measure before the step is applied.
    pub(crate) measured: bool,
}

/// A step that all members have pushed.
#[derive(Debug, PartialEq)]
pub(crate) struct Step {
    /// Number of the group.
    pub(crate) group: usize,
    /// The parts that each stream has pushed, in the order of the streams.
    pub(crate) pushes: Vec<(u32, Vec<Ticket>)>,
    /// All requests that wait for the step, with their streams.
    pub(crate) waiting: Vec<(u32, Ticket)>,
    /// The factor that gradients are multiplied by.
    pub(crate) factor: f32,
}

/// The parts of a step that a stream has pushed so far.
#[derive(Default)]
struct Arriving {
    attempt: u64,
    /// Per part: its request, and repeats of it.
    parts: BTreeMap<u32, Vec<Ticket>>,
    /// The number of the last part, once it has arrived.
    last: Option<u32>,
}

impl Arriving {
    fn is_complete(&self) -> bool {
        self.last.is_some_and(|last| self.parts.len() as u64 == u64::from(last) + 1)
    }
}

impl Group {
    pub(super) fn new(streams: Range<u32>) -> Self {
        Group {
            streams,
            departed: BTreeSet::new(),
            joining: BTreeMap::new(),
            joined: BTreeMap::new(),
            left: BTreeMap::new(),
            aggregate: Aggregate::new([], 0),
            arriving: BTreeMap::new(),
            waiting: BTreeMap::new(),
            failed: None,
            taken: BTreeMap::new(),
            measuring: Vec::new(),
            measured: false,
            factor: None,
            last_factor: f32::NAN,
            limit: None,
        }
    }

    pub(super) fn has(&self, stream: u32) -> bool {
        self.streams.contains(&stream)
    }

    /// How many of each stream's steps are applied.
    pub(super) fn positions(&self) -> impl Iterator<Item = (u32, u64)> {
        self.streams.clone().map(|stream| (stream, self.taken(stream)))
    }

    fn taken(&self, stream: u32) -> u64 {
        self.taken.get(&stream).copied().unwrap_or(0)
    }

    fn left(&self, stream: u32) -> u64 {
        self.left.get(&stream).copied().unwrap_or(0)
    }

    fn is_member(&self, stream: u32) -> bool {
        self.aggregate.members().any(|member| member == stream)
    }

    /// What has been applied.
    pub(super) fn work(&self) -> GroupWork {
        let streams = (self.streams.start, self.streams.end);
        GroupWork { streams, step: self.aggregate.step(), taken: self.taken.clone(), left: self.left.clone() }
    }

    /// Continues from a checkpoint, if it contains this group. No stream is a member then.
    pub(super) fn restore(&mut self, work: &GroupWork) {
        if work.streams == (self.streams.start, self.streams.end) {
            self.aggregate = Aggregate::new([], work.step);
            self.taken.clone_from(&work.taken);
            self.left.clone_from(&work.left);
        }
    }

    /// Whether a stream is in a pass.
    pub(super) fn is_training(&self) -> bool {
        self.aggregate.members().next().is_some()
    }

    /// Stops applying steps. Pushes are still accepted.
    pub(super) fn freeze(&mut self) {
        self.limit = Some(self.aggregate.step());
    }

    /// Applies the steps that another server has applied, as far as their pushes have arrived.
    pub(super) fn advance_to(&mut self, number: usize, target: &Work, effects: &mut Vec<Effect>) {
        let theirs = target.groups.iter().find(|group| group.streams == (self.streams.start, self.streams.end));
        self.limit = Some(theirs.map_or(self.aggregate.step(), |group| group.step));
        self.complete(number, effects);
    }

    /// Applies steps again.
    pub(super) fn thaw(&mut self, number: usize, effects: &mut Vec<Effect>) {
        self.limit = None;
        self.complete(number, effects);
    }

    /// The streams that the current step, or the start of a pass, waits for.
    pub(super) fn missing(&self) -> Vec<u32> {
        if self.measured && self.factor.is_none() {
            // All of them know the factor, and one of them is enough.
            return self.aggregate.contributions().map(|(stream, _)| stream).collect();
        }
        let stepping = || self.aggregate.missing().collect();
        let Some(pass) = self.next_pass().filter(|_| self.waiting.is_empty()) else { return stepping() };
        self.streams.clone().filter(|&stream| !self.is_ready_for(stream, pass)).collect()
    }

    /// A stream pushes one of its steps, or a part of it.
    pub(super) fn push(
        &mut self,
        number: usize,
        work: WorkId,
        Pushed { part, measured }: Pushed,
        ticket: Ticket,
        effects: &mut Vec<Effect>,
    ) -> Result<()> {
        let WorkId { stream, first_step: step, .. } = work;
        let answer = if measured { Answer::Applied(self.last_factor) } else { Answer::Values };
        if self.is_repeated(stream, step, ticket, answer, effects)? {
            return Ok(());
        }
        let arrival = if self.aggregate.contributions().any(|(contributor, _)| contributor == stream) {
            // A repeat, or the attempt of a newer incarnation: the first one is kept, and both are answered.
            self.waiting.entry(stream).or_default().push(ticket);
            Arrival::Repeat
        } else {
            let Some(parts) = self.arrive(stream, part, ticket, effects) else { return Ok(()) };
            self.contribute(stream, parts)?
        };
        if measured {
            self.measuring.push((stream, ticket));
        }
        if arrival == Arrival::Complete || measured {
            self.complete(number, effects);
        }
        Ok(())
    }

    /// All parts of a stream's step have arrived.
    fn contribute(&mut self, stream: u32, parts: BTreeMap<u32, Vec<Ticket>>) -> Result<Arrival> {
        let current = self.aggregate.step();
        let contribution = parts.values().filter_map(|tickets| tickets.first().copied()).collect();
        let arrival = self.aggregate.contribute(stream, current, contribution).map_err(|source| Error::Table {
            action: "taking a push for",
            table: "all".into(),
            source,
        })?;
        // The last part is answered first: its reply has the rows of the next step.
        self.waiting.entry(stream).or_default().extend(parts.into_values().rev().flatten());
        Ok(arrival)
    }

    /// Adds a part to those of its step. Returns all of them if none is missing.
    fn arrive(
        &mut self,
        stream: u32,
        part: PushPart,
        ticket: Ticket,
        effects: &mut Vec<Effect>,
    ) -> Option<BTreeMap<u32, Vec<Ticket>>> {
        let attempt = self.arriving.get(&stream).map_or(part.attempt, |arriving| arriving.attempt);
        if part.attempt < attempt {
            effects.push(Effect::Answer(ticket, Answer::Superseded));
            return None;
        }
        if part.attempt > attempt {
            self.drop_parts(stream, effects);
        }
        let arriving = self.arriving.entry(stream).or_default();
        arriving.attempt = part.attempt;
        arriving.parts.entry(part.number).or_default().push(ticket);
        if !part.has_more {
            arriving.last = Some(part.number);
        }
        if !arriving.is_complete() {
            return None;
        }
        self.arriving.remove(&stream).map(|arriving| arriving.parts)
    }

    /// Drops the parts of a step that was not pushed to its end.
    pub(super) fn drop_parts(&mut self, stream: u32, effects: &mut Vec<Effect>) {
        let dropped = self.arriving.remove(&stream).into_iter().flat_map(|arriving| arriving.parts.into_values());
        effects.extend(dropped.flatten().map(|ticket| Effect::Answer(ticket, Answer::Superseded)));
    }

    /// A stream sends the scale factor of a measured step.
    pub(super) fn scale(
        &mut self,
        number: usize,
        (stream, step): (u32, u64),
        factor: f32,
        ticket: Ticket,
        effects: &mut Vec<Effect>,
    ) -> Result<()> {
        if self.is_repeated(stream, step, ticket, Answer::Values, effects)? {
            return Ok(());
        }
        if !self.measured {
            return Err(Error::NotMeasured { stream, step });
        }
        self.waiting.entry(stream).or_default().push(ticket);
        self.factor.get_or_insert(factor);
        self.complete(number, effects);
        Ok(())
    }

    /// Whether a stream's step was applied before; if so, it is answered.
    fn is_repeated(
        &self,
        stream: u32,
        step: u64,
        ticket: Ticket,
        answer: Answer,
        effects: &mut Vec<Effect>,
    ) -> Result<bool> {
        let taken = self.taken(stream);
        if step > taken {
            return Err(Error::StepOutOfOrder { stream, expected: taken, got: step });
        }
        if step == taken {
            return Ok(false);
        }
        let answer = match &self.failed {
            Some((steps, message)) if steps.get(&stream) == Some(&step) => {
                Answer::Failed(Error::Background { message: message.clone() })
            }
            _ => answer,
        };
        effects.push(Effect::Repeated(ticket, answer));
        Ok(true)
    }

    /// A stream joins a pass; answered when the others are ready for it.
    pub(super) fn join(&mut self, stream: u32, pass: u64, ticket: Ticket, effects: &mut Vec<Effect>) {
        let is_member = self.is_member(stream) && pass <= self.joined.get(&stream).copied().unwrap_or(0);
        if is_member || pass <= self.left(stream) || self.departed.contains(&stream) {
            effects.push(Effect::Answer(ticket, Answer::Number(self.aggregate.step())));
            return;
        }
        let (wanted, tickets) = self.joining.entry(stream).or_default();
        *wanted = pass.max(*wanted);
        tickets.push(ticket);
        self.admit(effects);
    }

    /// A stream leaves a pass. The step may be complete without it, and others may begin the next pass.
    pub(super) fn leave(&mut self, number: usize, stream: u32, pass: u64, effects: &mut Vec<Effect>) {
        if pass <= self.left(stream) {
            return;
        }
        self.left.insert(stream, pass);
        self.drop_parts(stream, effects);
        if self.aggregate.leave(stream) {
            self.complete(number, effects);
        }
        self.admit(effects);
    }

    /// A stream departs and does not take part again.
    pub(super) fn depart(&mut self, number: usize, stream: u32, effects: &mut Vec<Effect>) {
        self.departed.insert(stream);
        self.drop_parts(stream, effects);
        if let Some((_, tickets)) = self.joining.remove(&stream) {
            let step = self.aggregate.step();
            effects.extend(tickets.into_iter().map(|ticket| Effect::Answer(ticket, Answer::Number(step))));
        }
        if self.aggregate.leave(stream) {
            self.complete(number, effects);
        }
        self.admit(effects);
    }

    /// The worker of a departed stream takes part again.
    pub(super) fn rejoin(&mut self, stream: u32) {
        self.departed.remove(&stream);
    }

    /// The first pass that a stream waits to join.
    fn next_pass(&self) -> Option<u64> {
        self.joining.values().map(|(pass, _)| *pass).min()
    }

    fn is_ready_for(&self, stream: u32, pass: u64) -> bool {
        self.departed.contains(&stream)
            || self.left(stream) >= pass
            || self.joining.get(&stream).is_some_and(|(joining, _)| *joining >= pass)
            || (self.is_member(stream) && self.joined.get(&stream).is_some_and(|&joined| joined >= pass))
    }

    fn admit(&mut self, effects: &mut Vec<Effect>) {
        let Some(pass) = self.next_pass() else { return };
        if self.measured {
            // Another member would change the mean. This is called again when the step is applied.
            return;
        }
        if !self.streams.clone().all(|stream| self.is_ready_for(stream, pass)) {
            return;
        }
        let step = self.aggregate.step();
        let ready: Vec<u32> =
            self.joining.iter().filter(|(_, (joining, _))| *joining == pass).map(|(&s, _)| s).collect();
        for stream in ready {
            let Some((_, tickets)) = self.joining.remove(&stream) else { continue };
            self.aggregate.join(stream);
            self.joined.insert(stream, pass);
            effects.extend(tickets.into_iter().map(|ticket| Effect::Answer(ticket, Answer::Number(step))));
        }
    }

    /// If all pushes of the current step have arrived, measures it, if that is wanted, or applies it.
    fn complete(&mut self, number: usize, effects: &mut Vec<Effect>) {
        if !self.aggregate.is_complete() {
            return;
        }
        let measuring = std::mem::take(&mut self.measuring);
        if !measuring.is_empty() {
            self.measured = true;
            let pushes = self.aggregate.contributions().map(|(stream, parts)| (stream, parts.clone())).collect();
            effects
                .push(Effect::Measure { pushes, waiting: measuring.into_iter().map(|(_, ticket)| ticket).collect() });
        }
        if !self.measured || self.factor.is_some() {
            self.apply(number, effects);
        }
    }

    fn apply(&mut self, number: usize, effects: &mut Vec<Effect>) {
        if self.limit.is_some_and(|limit| self.aggregate.step() >= limit) {
            return;
        }
        let Some(contributions) = self.aggregate.take() else { return };
        for &stream in contributions.keys() {
            *self.taken.entry(stream).or_insert(0) += 1;
        }
        self.failed = None;
        let waiting = std::mem::take(&mut self.waiting);
        let waiting = waiting.into_iter().flat_map(|(stream, tickets)| tickets.into_iter().map(move |t| (stream, t)));
        let pushes = contributions.into_iter().collect();
        let factor = self.factor.take().unwrap_or(1.0);
        self.last_factor = factor;
        effects.push(Effect::Apply(Step { group: number, pushes, waiting: waiting.collect(), factor }));
        if std::mem::take(&mut self.measured) {
            self.admit(effects);
        }
    }

    /// The last step could not be applied: a repeated push gets the error.
    pub(super) fn fail(&mut self, step: &Step, message: &str) {
        let steps = step.pushes.iter().map(|&(stream, _)| (stream, self.taken(stream) - 1)).collect();
        self.failed = Some((steps, message.to_owned()));
    }
}
