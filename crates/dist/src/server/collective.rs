//! Where workers meet: barriers, all-reduces and all-to-alls, one after the other, for all workers of the job that have
//! not left.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::oneshot;

use super::state::Outcome;
use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::request::all_reduce::{Collective, Reduce};
use crate::request::all_to_all;
use crate::request::create_tables::MOST_STREAMS;

/// The one collective that is open, and the last one that was.
///
/// All workers take part in each, so nobody can be more than one behind: whoever asks for an older one repeats a request
/// that nobody waits for. A worker that was started again goes on with the number that is open now.
#[derive(Default)]
pub(super) struct Collectives {
    /// Workers that are done for good.
    left: BTreeSet<u32>,
    /// Of the open one.
    number: u64,
    /// Who came first to the open one, and what for.
    first: Option<(u32, Collective)>,
    contributions: BTreeMap<u32, Brought>,
    /// The first request of each and its repeats: all are answered, because which of them came over a connection that
    /// still lives cannot be told.
    waiting: Vec<(u32, oneshot::Sender<Result<Payload>>)>,
    /// What came of the one before, for repeats.
    last: Option<std::result::Result<Answers, Failure>>,
}

/// What a worker brings to a collective.
#[derive(Debug)]
pub(crate) enum Brought {
    /// It only waits.
    Nothing,
    /// Numbers to be made one with the others'.
    Numbers(Vec<f64>),
    /// Bytes for workers, by rank.
    Parts(BTreeMap<u32, Vec<u8>>),
}

/// What a collective that went well tells the workers.
enum Answers {
    Same(Payload),
    Each(BTreeMap<u32, Payload>),
}

impl Answers {
    fn to(&self, worker: u32) -> Payload {
        match self {
            Answers::Same(answer) => answer.clone(),
            Answers::Each(answers) => answers.get(&worker).cloned().unwrap_or_default(),
        }
    }
}

/// Why a collective failed, for all alike.
#[derive(Debug, Clone, Copy)]
enum Failure {
    Disagreement(Disagreement),
    /// Something was for a worker that has left.
    Undeliverable {
        worker: u32,
    },
}

/// Two workers, and what each came for.
#[derive(Debug, Clone, Copy)]
struct Disagreement {
    workers: [u32; 2],
    wanted: [Collective; 2],
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Disagreement(Disagreement { workers, wanted }) => Error::Disagreement {
                worker: workers[1],
                wanted: wanted[1],
                other: workers[0],
                other_wanted: wanted[0],
            },
            Failure::Undeliverable { worker } => Error::Undeliverable { worker },
        }
    }
}

/// Fails unless the job has such a worker, and not absurdly many.
pub(super) fn check_worker(worker: u32, workers: u32) -> Result<()> {
    if worker < workers && workers <= MOST_STREAMS {
        return Ok(());
    }
    Err(Error::UnknownWorker { worker, count: workers })
}

impl Collectives {
    /// A worker comes, and is answered when all are here.
    pub(super) fn meet(&mut self, worker: u32, number: u64, wanted: Collective, brought: Brought) -> Result<Outcome> {
        check_worker(worker, wanted.workers())?;
        if let Brought::Parts(parts) = &brought {
            parts.keys().try_for_each(|&to| check_worker(to, wanted.workers()))?;
        }
        if number.checked_add(1) == Some(self.number)
            && let Some(last) = &self.last
        {
            return Ok(Outcome::Now(answer_of(last, worker)));
        }
        // A server that was started again has met nobody yet, and takes the workers' word for the number.
        if number > self.number && self.first.is_none() {
            self.number = number;
        }
        if number != self.number || self.left.contains(&worker) {
            return Err(Error::NotMeeting { worker, number, expected: self.number });
        }
        let (sender, receiver) = oneshot::channel();
        self.waiting.push((worker, sender));
        let (first, agreed) = *self.first.get_or_insert((worker, wanted));
        if agreed != wanted {
            self.end(Err(Failure::Disagreement(Disagreement { workers: [first, worker], wanted: [agreed, wanted] })));
        } else {
            // A worker that was started again may bring other numbers: the newest count.
            self.contributions.insert(worker, brought);
            self.end_if_all();
        }
        Ok(Outcome::Later(receiver))
    }

    /// A worker is done for good; the open collective may be complete without it.
    pub(super) fn leave(&mut self, worker: u32) {
        self.left.insert(worker);
        self.end_if_all();
    }

    /// Workers that are done for good.
    pub(super) fn left(&self) -> &BTreeSet<u32> {
        &self.left
    }

    /// The number of the open one.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Whom the open one waits for.
    pub(super) fn missing(&self) -> Vec<u32> {
        let Some((_, collective)) = self.first else { return Vec::new() };
        let is_missing = |worker: &u32| !self.contributions.contains_key(worker) && !self.left.contains(worker);
        (0..collective.workers()).filter(is_missing).collect()
    }

    fn end_if_all(&mut self) {
        let Some((_, collective)) = self.first else { return };
        let gone = self.left.range(..collective.workers()).filter(|worker| !self.contributions.contains_key(worker));
        if gone.count() + self.contributions.len() < collective.workers() as usize {
            return;
        }
        let brought = std::mem::take(&mut self.contributions);
        let answers = match collective {
            Collective::Barrier { .. } => Ok(Answers::Same(Payload::new())),
            Collective::AllReduce { op, .. } => {
                let mut answer = Payload::new();
                answer.put(&reduced(op, brought.values()));
                Ok(Answers::Same(answer))
            }
            Collective::AllToAll { .. } => delivered(&brought).map(Answers::Each),
        };
        self.end(answers);
    }

    fn end(&mut self, result: std::result::Result<Answers, Failure>) {
        for (worker, waiting) in self.waiting.drain(..) {
            // Whoever is gone by now asks again when it is back.
            let _ = waiting.send(answer_of(&result, worker));
        }
        self.last = Some(result);
        self.number = self.number.saturating_add(1);
        self.first = None;
        self.contributions.clear();
    }
}

fn answer_of(result: &std::result::Result<Answers, Failure>, worker: u32) -> Result<Payload> {
    match result {
        Ok(answers) => Ok(answers.to(worker)),
        Err(failure) => Err((*failure).into()),
    }
}

/// What everybody brought, sorted by whom it is for and then by rank.
fn delivered(brought: &BTreeMap<u32, Brought>) -> std::result::Result<BTreeMap<u32, Payload>, Failure> {
    let mut mail: BTreeMap<u32, Vec<(u32, &[u8])>> = brought.keys().map(|&worker| (worker, Vec::new())).collect();
    for (&from, brought) in brought {
        let Brought::Parts(parts) = brought else { continue };
        for (&to, part) in parts {
            mail.get_mut(&to).ok_or(Failure::Undeliverable { worker: to })?.push((from, part));
        }
    }
    Ok(mail.into_iter().map(|(worker, parts)| (worker, all_to_all::answer(&parts))).collect())
}

/// In the order given, which is that of ranks.
fn reduced<'a>(op: Reduce, contributions: impl Iterator<Item = &'a Brought>) -> Vec<f64> {
    let mut contributions = contributions.filter_map(|brought| match brought {
        Brought::Numbers(values) => Some(values),
        Brought::Nothing | Brought::Parts(_) => None,
    });
    let mut result = contributions.next().cloned().unwrap_or_default();
    for values in contributions {
        result.iter_mut().zip(values).for_each(|(result, &value)| *result = op.of(*result, value));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: Collective = Collective::Barrier { workers: 2 };

    fn sum(workers: u32, length: usize) -> Collective {
        Collective::AllReduce { workers, op: Reduce::Sum, length }
    }

    fn numbers(outcome: Result<Outcome>) -> Vec<f64> {
        let payload = match outcome.unwrap() {
            Outcome::Now(answer) => answer.unwrap(),
            Outcome::Later(mut receiver) => receiver.try_recv().unwrap().unwrap(),
        };
        bytemuck::cast_slice(payload.bytes()).to_vec()
    }

    fn waits(outcome: &mut Result<Outcome>) -> bool {
        let Ok(Outcome::Later(receiver)) = outcome else { return false };
        receiver.try_recv().is_err()
    }

    #[test]
    fn numbers_are_added_in_the_order_of_ranks_whoever_comes_first() {
        // (1e16 + 1) + -1e16 is 0 in floats, (1e16 + -1e16) + 1 is 1.
        let values = [1e16, -1e16, 1.0];
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let mut collectives = Collectives::default();
            let outcomes =
                order.map(|rank| collectives.meet(rank, 0, sum(3, 1), Brought::Numbers(vec![values[rank as usize]])));
            outcomes.into_iter().for_each(|outcome| assert_eq!(numbers(outcome), [1.0]));
        }
    }

    #[test]
    fn a_repeat_is_answered_from_what_was_kept_and_not_added() {
        let mut collectives = Collectives::default();
        let first = collectives.meet(0, 0, sum(2, 2), Brought::Numbers(vec![1.0, 2.0]));
        let mut repeat = collectives.meet(0, 0, sum(2, 2), Brought::Numbers(vec![1.0, 2.0]));
        assert!(waits(&mut repeat), "one worker is not two");
        assert_eq!(numbers(collectives.meet(1, 0, sum(2, 2), Brought::Numbers(vec![10.0, 20.0]))), [11.0, 22.0]);
        assert_eq!([first, repeat].map(numbers), [[11.0, 22.0], [11.0, 22.0]]);
        let mut next = collectives.meet(1, 1, sum(2, 2), Brought::Numbers(vec![5.0, 5.0]));
        assert_eq!(numbers(collectives.meet(0, 0, sum(2, 2), Brought::Numbers(vec![1.0, 2.0]))), [11.0, 22.0]);
        assert!(waits(&mut next));
    }

    #[test]
    fn who_left_is_not_waited_for() {
        let mut collectives = Collectives::default();
        let mut early = collectives.meet(0, 0, sum(3, 1), Brought::Numbers(vec![1.0]));
        collectives.leave(1);
        assert!(waits(&mut early));
        assert_eq!(collectives.missing(), [2]);
        collectives.leave(2);
        assert_eq!(numbers(early), [1.0]);
        assert_eq!(numbers(collectives.meet(0, 1, sum(3, 1), Brought::Numbers(vec![4.0]))), [4.0]);
        let error = collectives.meet(1, 2, sum(3, 1), Brought::Numbers(vec![4.0])).err().unwrap();
        assert!(matches!(error, Error::NotMeeting { worker: 1, .. }), "{error}");
    }

    #[test]
    fn workers_that_came_for_different_things_all_hear_of_both() {
        for wanted in [sum(2, 3), TWO, Collective::AllReduce { workers: 2, op: Reduce::Max, length: 2 }] {
            let mut collectives = Collectives::default();
            let first = collectives.meet(0, 0, sum(2, 2), Brought::Numbers(vec![1.0; 2]));
            let second = collectives.meet(1, 0, wanted, Brought::Nothing);
            let again = collectives.meet(1, 0, wanted, Brought::Nothing);
            for outcome in [first, second, again] {
                let error = match outcome.unwrap() {
                    Outcome::Now(answer) => answer.unwrap_err(),
                    Outcome::Later(mut receiver) => receiver.try_recv().unwrap().unwrap_err(),
                };
                let expected = format!("worker 1 came for {wanted}, worker 0 for the sum of 2 values of 2 workers");
                assert_eq!(error.to_string(), expected);
            }
        }
    }

    #[test]
    fn a_worker_that_was_started_again_brings_its_numbers_anew() {
        let mut collectives = Collectives::default();
        let _lost = collectives.meet(0, 0, sum(2, 1), Brought::Numbers(vec![1.0]));
        assert_eq!(collectives.number(), 0, "its predecessor waited here");
        let second = collectives.meet(0, collectives.number(), sum(2, 1), Brought::Numbers(vec![2.0]));
        assert_eq!(numbers(collectives.meet(1, 0, sum(2, 1), Brought::Numbers(vec![10.0]))), [12.0]);
        assert_eq!(numbers(second), [12.0]);
        assert_eq!(collectives.number(), 1);
    }

    #[test]
    fn a_server_that_was_started_again_takes_the_workers_word_but_not_two_words() {
        let mut collectives = Collectives::default();
        let _waits = collectives.meet(0, 7, TWO, Brought::Nothing).unwrap();
        let error = collectives.meet(1, 6, TWO, Brought::Nothing).err().unwrap();
        assert_eq!(error.to_string(), "worker 1 came to collective 6, where nobody meets any more: the next is 7");
        assert!(numbers(collectives.meet(1, 7, TWO, Brought::Nothing)).is_empty());
    }

    fn parts(parts: &[(u32, &[u8])]) -> Brought {
        Brought::Parts(parts.iter().map(|&(to, bytes)| (to, bytes.to_vec())).collect())
    }

    fn mail(outcome: Result<Outcome>) -> Vec<(u32, Vec<u8>)> {
        let payload = match outcome.unwrap() {
            Outcome::Now(answer) => answer.unwrap(),
            Outcome::Later(mut receiver) => receiver.try_recv().unwrap().unwrap(),
        };
        all_to_all::decode(payload.bytes()).unwrap().into_iter().map(|(from, part)| (from, part.to_vec())).collect()
    }

    #[test]
    fn everybody_gets_what_is_for_them_in_the_order_of_ranks_and_again_if_they_ask_again() {
        let mut collectives = Collectives::default();
        let wanted = Collective::AllToAll { workers: 3 };
        let third = collectives.meet(2, 0, wanted, parts(&[(0, b"from 2"), (1, b"x")]));
        let second = collectives.meet(1, 0, wanted, parts(&[(0, b""), (2, b"from 1")]));
        let first = collectives.meet(0, 0, wanted, parts(&[]));
        assert_eq!(mail(first), [(1, Vec::new()), (2, b"from 2".to_vec())]);
        assert_eq!(mail(second), [(2, b"x".to_vec())]);
        assert_eq!(mail(third), [(1, b"from 1".to_vec())]);
        assert_eq!(mail(collectives.meet(2, 0, wanted, parts(&[]))), [(1, b"from 1".to_vec())]);
    }

    #[test]
    fn what_is_for_a_worker_that_left_fails_for_all_rather_than_being_lost() {
        let mut collectives = Collectives::default();
        let wanted = Collective::AllToAll { workers: 3 };
        collectives.leave(2);
        let first = collectives.meet(0, 0, wanted, parts(&[(2, b"lost?")]));
        let second = collectives.meet(1, 0, wanted, parts(&[]));
        for outcome in [first, second] {
            let Outcome::Later(mut receiver) = outcome.unwrap() else { panic!("both wait") };
            let error = receiver.try_recv().unwrap().unwrap_err();
            assert_eq!(error.to_string(), "something was sent to worker 2, which has left the job");
        }
        let error = collectives.meet(0, 1, wanted, parts(&[(3, b"")])).err().unwrap();
        assert!(matches!(error, Error::UnknownWorker { worker: 3, count: 3 }), "{error}");
    }
}
