//! Parts of a step's push that are sent while the rest of the step is computed.
//!
//! A server keeps them until the step's last part arrives ([`PushPart`]), so a step is still applied as a whole or not at all. Each
//! part is answered then, with the new values of its parameters.

use openfleet_core::WorkId;

use super::{PushReply, Remote};
use crate::client::Pending;
use crate::error::Result;
use crate::frame::Reader;
use crate::gradients::{PushPart, take_barrier};
use crate::request::Kind;
use crate::stage::DenseStage;

/// The parts of a step that were sent.
pub(super) struct EarlyParts {
    attempt: u64,
    parts: Vec<EarlyPart>,
}

struct EarlyPart {
    /// For each parameter that it has the gradient of, the index of its stage.
    places: Vec<Option<usize>>,
    asked: Vec<Pending>,
}

impl EarlyParts {
    fn next(&self, has_more: bool) -> PushPart {
        PushPart { attempt: self.attempt, number: self.parts.len() as u32, has_more }
    }

    /// The step's last part.
    pub(super) fn last(&self) -> PushPart {
        self.next(false)
    }

    /// Removes the parameters whose gradients were sent.
    pub(super) fn remove_sent(&self, places: &mut [Option<usize>]) {
        for part in &self.parts {
            places.iter_mut().zip(&part.places).filter(|(_, sent)| sent.is_some()).for_each(|(place, _)| *place = None);
        }
    }
}

impl Remote {
    /// Sends the complete gradients of these stages; [`push_in_step`](Remote::push_in_step) sends the rest of the step.
    pub(in crate::communicator) fn push_early(&self, work: WorkId, dense: &[DenseStage], stages: &[usize]) {
        let mut early = self.take_early(work.stream);
        let mut places = vec![None; self.placement.parameters().len()];
        stages.iter().for_each(|&place| places[dense[place].table] = Some(place));
        let head = self.head(work, self.step_reply()).of_part(early.next(true));
        let payloads = self.encode_push_before(head, &[], (dense, &places), None);
        let asked = self.ask_all(Kind::Push, payloads);
        early.parts.push(EarlyPart { places, asked });
        self.early.lock().insert(work.stream, early);
    }

    /// The parts that were sent of a stream's step; a new attempt if there are none.
    pub(super) fn take_early(&self, stream: u32) -> EarlyParts {
        let known = self.early.lock().remove(&stream);
        known.unwrap_or_else(|| EarlyParts { attempt: self.streams.next_attempt(), parts: Vec::new() })
    }

    /// A stream gives its step up: the servers drop the parts when the next attempt arrives.
    pub(in crate::communicator) fn drop_early(&self, thread: u32) {
        self.early.lock().remove(&self.worker.stream(thread));
    }

    /// Waits for the replies to the parts, and copies the values in them, if there are any.
    pub(super) fn take_early_values(&self, early: EarlyParts, dense: &mut [DenseStage]) -> Result<()> {
        for EarlyPart { places, asked } in early.parts {
            for (server, pending) in asked.into_iter().enumerate() {
                let answer = pending.wait()?;
                let mut reader = Reader::new(answer.bytes());
                if self.step_reply() == PushReply::Values {
                    self.take_values(server, &mut reader, &places, dense)?;
                }
                // The last part tells the wait that counts: this one includes the time to compute the rest of the step.
                take_barrier(&mut reader)?;
                reader.end()?;
            }
        }
        Ok(())
    }
}
