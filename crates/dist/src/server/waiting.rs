//! Requests that wait for other workers, and the effects of the coordinator that answer them.
//!
//! The coordinator knows a waiting request by its [`Ticket`]; its payload, and the channel for its reply, are kept here.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::warn;

use super::coordinator::{Answer, Coordinator, Effect, Step, Ticket};
use super::state::{Caller, Outcome, Pushing, State};
use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::gradients::{Measure, put_barrier};

/// The control plane and the requests that wait in it.
#[derive(Default)]
pub(super) struct Control {
    pub(super) coordinator: Coordinator,
    pub(super) waiting: HashMap<Ticket, WaitingRequest>,
}

/// A request that waits.
pub(super) struct WaitingRequest {
    pub(super) caller: Caller,
    pub(super) body: RequestBody,
    /// `None` once it was answered, if its push is still needed.
    pub(super) answer: Option<oneshot::Sender<Result<Payload>>>,
    since: Instant,
    /// How long it waited until the last push of its step arrived.
    barrier: Duration,
}

/// The part of a waiting request that is needed to answer it.
pub(super) enum RequestBody {
    /// Nothing.
    Empty,
    /// The payload of a push.
    Push(Pushing, Payload),
    /// The blocks whose values are requested.
    Values(Vec<u32>),
}

impl WaitingRequest {
    pub(super) fn new(caller: Caller, body: RequestBody, answer: oneshot::Sender<Result<Payload>>) -> Self {
        let (since, barrier) = (Instant::now(), Duration::ZERO);
        WaitingRequest { caller, body, answer: Some(answer), since, barrier }
    }

    fn send(self, answer: Result<Payload>) {
        // If the worker is gone, it retries when it is back.
        self.answer.map(|sender| sender.send(answer));
    }
}

impl Control {
    /// Forgets pushes that were answered and kept for their step: a new generation begins, and no step is in progress.
    pub(super) fn forget_answered(&mut self) {
        self.waiting.retain(|_, waiting| waiting.answer.is_some());
    }

    /// The payloads of the pushes with these tickets, by stream.
    fn pushes(&self, streams: &[(u32, Vec<Ticket>)]) -> Result<Vec<Vec<&Payload>>> {
        let push = |ticket: &Ticket| match self.waiting.get(ticket)?.body {
            RequestBody::Push(_, ref push) => Some(push),
            RequestBody::Empty | RequestBody::Values(_) => None,
        };
        let missing = Error::Damaged { what: "step: a push of it is missing" };
        let parts = |(_, parts): &(u32, Vec<Ticket>)| parts.iter().map(push).collect::<Option<Vec<_>>>();
        streams.iter().map(parts).collect::<Option<_>>().ok_or(missing)
    }
}

impl State {
    /// Handles a request that may have to wait for other workers.
    pub(super) fn wait(
        &self,
        caller: Caller,
        body: RequestBody,
        ask: impl FnOnce(&mut Coordinator, Ticket) -> Result<Vec<Effect>>,
    ) -> Result<Outcome> {
        let (answer, receiver) = oneshot::channel();
        let mut control = self.control.lock();
        let ticket = control.coordinator.ticket();
        control.waiting.insert(ticket, WaitingRequest::new(caller, body, answer));
        match ask(&mut control.coordinator, ticket) {
            Ok(effects) => self.carry_out(&mut control, effects),
            Err(error) => {
                control.waiting.remove(&ticket);
                return Err(error);
            }
        }
        drop(control);
        Ok(Outcome::Later(receiver))
    }

    /// Carries out what the coordinator decided, in order.
    pub(super) fn carry_out(&self, control: &mut Control, effects: Vec<Effect>) {
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Answer(ticket, answer) => self.answer(control, ticket, answer),
                Effect::Repeated(ticket, answer) => {
                    self.tables.repeated();
                    self.answer(control, ticket, answer);
                }
                Effect::Measure { pushes, waiting } => self.measure(control, &pushes, &waiting),
                Effect::Apply(step) => self.apply_step(control, step),
                Effect::Gate(gate) => self.tables.set_gate(gate),
                Effect::Retry(ticket) => self.retry(control, ticket),
                Effect::ForgetCut(id) => {
                    self.saving.forget(&id);
                    warn!("aborted save {id}: the worker that began it is gone");
                }
                Effect::Stop(end) => self.end(end),
            }
        }
    }

    fn answer(&self, control: &mut Control, ticket: Ticket, answer: Answer) {
        let Some(waiting) = control.waiting.remove(&ticket) else { return };
        let answer = match (answer, &waiting.body) {
            (Answer::Number(number), _) => {
                let mut payload = Payload::new();
                payload.put(&[number]);
                Ok(payload)
            }
            (Answer::Payload(payload), _) => Ok(payload),
            (Answer::Superseded, _) => Ok(Payload::new()),
            // It was already answered with a measure.
            (Answer::Values, _) if waiting.answer.is_none() => return,
            (Answer::Values, RequestBody::Push(_, push)) => {
                self.tables.answer_push(waiting.caller.rank, push, Some(waiting.barrier))
            }
            (Answer::Values, RequestBody::Values(blocks)) => {
                self.tables.values_of(blocks).map(|reply| with_barrier(reply, waiting.barrier))
            }
            (Answer::Values, RequestBody::Empty) => Ok(Payload::new()),
            (Answer::Applied(factor), _) => Ok(with_barrier(Measure::Applied { factor }.encode(), waiting.barrier)),
            (Answer::Failed(error), _) => Err(error),
        };
        waiting.send(answer);
    }

    /// Answers these requests with the squared norm of a step's mean gradients on this server. The pushes are kept until the
    /// step is applied.
    fn measure(&self, control: &mut Control, pushes: &[(u32, Vec<Ticket>)], waiting: &[Ticket]) {
        let now = Instant::now();
        let measured = control.pushes(pushes).and_then(|pushes| self.tables.measure_step(&pushes));
        let measured = measured.map_err(|error| openfleet_core::error::report(&error));
        for ticket in waiting {
            let Some(waiting) = control.waiting.get_mut(ticket) else { continue };
            let (sender, barrier) = (waiting.answer.take(), now.duration_since(waiting.since));
            let answer = match &measured {
                Ok(squares) => Ok(with_barrier(Measure::Squares(*squares).encode(), barrier)),
                Err(message) => Err(Error::Background { message: message.clone() }),
            };
            sender.map(|sender| sender.send(answer));
        }
    }

    fn apply_step(&self, control: &mut Control, step: Step) {
        for (_, ticket) in &step.waiting {
            if let Some(waiting) = control.waiting.get_mut(ticket) {
                waiting.barrier = waiting.since.elapsed();
            }
        }
        let applied = control.pushes(&step.pushes).and_then(|pushes| self.tables.apply_step(&pushes, step.factor));
        let Control { coordinator, .. } = control;
        let failure = applied.err().map(|error| openfleet_core::error::report(&error));
        if let Some(message) = &failure {
            coordinator.failed(&step, message);
        }
        for (_, ticket) in step.waiting {
            let answer = match &failure {
                None => Answer::Values,
                Some(message) => Answer::Failed(Error::Background { message: message.clone() }),
            };
            self.answer(control, ticket, answer);
        }
    }

    /// Applies a push that was held back, unless a newer incarnation of its worker has been admitted since.
    fn retry(&self, control: &mut Control, ticket: Ticket) {
        let Some(waiting) = control.waiting.remove(&ticket) else { return };
        let WaitingRequest { caller, body: RequestBody::Push(how, payload), answer: Some(answer), .. } = waiting else {
            return;
        };
        let newest = control.coordinator.incarnation(caller.rank);
        if let (Some(incarnation), Some(newest)) = (caller.incarnation, newest)
            && incarnation != newest
        {
            let _ = answer.send(Err(Error::Replaced { rank: caller.rank, incarnation }));
            return;
        }
        let view = match self.tables.decode(&payload) {
            Ok(view) => view,
            Err(error) => return drop(answer.send(Err(error))),
        };
        let (permit, work) = (self.tables.permit(), view.work);
        if permit.lets_through(work) {
            let applied = self.apply(&permit, caller, how, &view);
            drop((view, permit));
            let _ = answer.send(applied.and_then(|applied| self.answer_push(caller, how, applied, &payload)));
        } else {
            drop((view, permit));
            control.coordinator.hold_back(work, ticket);
            control.waiting.insert(ticket, WaitingRequest::new(caller, RequestBody::Push(how, payload), answer));
        }
    }
}

fn with_barrier(mut reply: Payload, barrier: Duration) -> Payload {
    put_barrier(&mut reply, barrier);
    reply
}
