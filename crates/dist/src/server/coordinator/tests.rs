//! Sequences of events, and the coordinator's effects.
//!
//! First single histories, each as a table; then random interleavings of joins, deaths, returns, pushes, snapshots, releases
//! and departures. The invariants must hold after each.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openfleet_core::strategy::Mode;
use proptest::prelude::*;

use super::*;
use crate::gradients::PushPart;

fn team(mode: Mode, workers: u32, threads: u32) -> Team {
    Team { mode, workers, threads }
}

fn coordinator(mode: Mode, workers: u32) -> Coordinator {
    let mut coordinator = Coordinator::default();
    coordinator.begin(team(mode, workers, 1), None, None);
    coordinator
}

/// Effects as short texts: what was answered, applied and retried.
fn told(effects: Vec<Effect>) -> Vec<String> {
    let text = |effect| match effect {
        Effect::Answer(ticket, Answer::Payload(payload)) => {
            let numbers = bytemuck::try_cast_slice::<u8, f64>(payload.bytes());
            format!("{ticket}: {:?}", numbers.unwrap_or(&[f64::NAN]))
        }
        Effect::Answer(ticket, Answer::Failed(error)) => format!("{ticket}: {error}"),
        Effect::Answer(ticket, _) => format!("{ticket}: yes"),
        Effect::Repeated(ticket, Answer::Applied(factor)) => format!("{ticket}: applied with {factor}"),
        Effect::Repeated(ticket, _) => format!("{ticket}: repeated"),
        Effect::Measure { pushes, waiting } => {
            let streams = pushes.iter().map(|(stream, _)| stream.to_string()).collect::<Vec<_>>();
            let waiting = waiting.iter().map(|ticket| ticket.to_string()).collect::<Vec<_>>();
            format!("measure of {} for {}", streams.join("+"), waiting.join("+"))
        }
        Effect::Apply(step) if step.factor != 1.0 => format!("step scaled by {}", step.factor),
        Effect::Apply(step) => {
            let streams = step.pushes.iter().map(|(stream, _)| stream.to_string()).collect::<Vec<_>>();
            let waiting = step.waiting.iter().map(|(_, ticket)| ticket.to_string()).collect::<Vec<_>>();
            format!("step of {} for {}", streams.join("+"), waiting.join("+"))
        }
        Effect::Gate(None) => "open".to_owned(),
        Effect::Gate(Some(None)) => "closed".to_owned(),
        Effect::Gate(Some(Some(_))) => "closed but for a target".to_owned(),
        Effect::Retry(ticket) => format!("retry {ticket}"),
        Effect::ForgetCut(id) => format!("forget {id}"),
        Effect::Stop(end) => format!("{end:?}"),
    };
    effects.into_iter().map(text).collect()
}

const WHOLE: Pushed = Pushed { part: PushPart { attempt: 0, number: 0, has_more: false }, measured: false };
const MEASURED: Pushed = Pushed { measured: true, ..WHOLE };

fn owner(rank: u32, incarnation: u64) -> Owner {
    Owner { rank, incarnation: Some(Incarnation(incarnation)) }
}

#[test]
fn a_step_is_applied_when_every_member_has_pushed_it_and_a_repeat_is_answered() {
    let mut job = coordinator(Mode::Sync, 2);
    assert!(told(job.join(0, 1, 10)).is_empty(), "a pass begins when all have joined it");
    assert_eq!(told(job.join(1, 1, 11)), ["10: yes", "11: yes"]);
    assert!(told(job.push(WorkId::step(1, 0), WHOLE, 21).unwrap()).is_empty());
    assert_eq!(told(job.push(WorkId::step(0, 0), WHOLE, 20).unwrap()), ["step of 0+1 for 20+21"]);
    assert_eq!(told(job.push(WorkId::step(0, 0), WHOLE, 30).unwrap()), ["30: repeated"]);
    let error = job.push(WorkId::step(0, 2), WHOLE, 31).unwrap_err();
    assert_eq!(error.to_string(), "stream 0 pushed step 2, expected step 1");
}

#[test]
fn a_step_in_parts_is_applied_when_all_of_one_attempt_have_arrived() {
    let mut job = coordinator(Mode::Sync, 2);
    job.join(0, 1, 1);
    job.join(1, 1, 2);
    let part = |attempt, number, has_more| Pushed { part: PushPart { attempt, number, has_more }, measured: false };
    let mut push = |stream, pushed, ticket| told(job.push(WorkId::step(stream, 0), pushed, ticket).unwrap());
    assert!(push(0, WHOLE, 10).is_empty());
    assert!(push(1, part(3, 0, true), 20).is_empty());
    assert!(push(1, part(3, 0, true), 21).is_empty(), "a repeat");
    assert_eq!(push(1, part(4, 1, false), 22), ["20: yes", "21: yes"], "the attempt before is dropped");
    assert_eq!(push(1, part(3, 1, false), 23), ["23: yes"], "what arrives late of it too");
    assert_eq!(push(1, part(4, 0, true), 24), ["step of 0+1 for 10+22+24"], "parts may arrive in any order");
    assert_eq!(push(1, part(4, 0, true), 25), ["25: repeated"]);
}

#[test]
fn parts_of_a_dead_worker_are_dropped() {
    let mut job = coordinator(Mode::Sync, 1);
    job.admit(0, Incarnation(0)).unwrap();
    job.join(0, 1, 1);
    let part = |attempt, number, has_more| Pushed { part: PushPart { attempt, number, has_more }, measured: false };
    assert!(told(job.push(WorkId::step(0, 0), part(7, 0, true), 2).unwrap()).is_empty());
    assert!(told(job.admit(0, Incarnation(0)).unwrap()).is_empty(), "the same process connects again");
    assert_eq!(told(job.admit(0, Incarnation(1)).unwrap()), ["2: yes"]);
    assert!(told(job.push(WorkId::step(0, 0), part(0, 0, true), 3).unwrap()).is_empty());
    assert_eq!(told(job.push(WorkId::step(0, 0), part(0, 1, false), 4).unwrap()), ["step of 0 for 4+3"]);
}

#[test]
fn a_measured_step_is_applied_when_its_factor_is_known() {
    let mut job = coordinator(Mode::Sync, 2);
    job.join(0, 1, 1);
    job.join(1, 1, 2);
    assert!(told(job.push(WorkId::step(1, 0), MEASURED, 11).unwrap()).is_empty());
    let error = job.scale(1, 0, 0.5, 12).unwrap_err();
    assert_eq!(error.to_string(), "stream 1 sent a scale factor for step 0, which was not measured");
    assert_eq!(told(job.push(WorkId::step(0, 0), MEASURED, 10).unwrap()), ["measure of 0+1 for 11+10"]);
    // Worker 0 is killed; its successor pushes the step again, and gets the same measure.
    assert_eq!(told(job.push(WorkId::step(0, 0), MEASURED, 20).unwrap()), ["measure of 0+1 for 20"]);
    assert_eq!(told(job.scale(1, 0, 0.5, 21).unwrap()), ["step scaled by 0.5"]);
    // The other worker's factor arrives too late, and so does a push that is repeated over a new connection.
    assert_eq!(told(job.scale(0, 0, 0.5, 22).unwrap()), ["22: repeated"]);
    assert_eq!(told(job.push(WorkId::step(0, 0), MEASURED, 23).unwrap()), ["23: applied with 0.5"]);
    // Steps that are not measured are applied as usual.
    job.push(WorkId::step(0, 1), WHOLE, 30).unwrap();
    assert_eq!(told(job.push(WorkId::step(1, 1), WHOLE, 31).unwrap()), ["step of 0+1 for 30+31"]);
}

#[test]
fn a_measured_step_takes_no_new_member_and_waits_for_a_snapshot() {
    let mut job = coordinator(Mode::Sync, 2);
    job.join(0, 1, 1);
    job.join(1, 1, 2);
    job.depart(1, 2).unwrap();
    assert_eq!(told(job.push(WorkId::step(0, 0), MEASURED, 3).unwrap()), ["measure of 0 for 3"]);
    // A departed worker is back: it takes part from the next step on.
    job.enter(1);
    assert!(told(job.join(1, 2, 4)).is_empty());
    job.prepare_cut("a", owner(0, 0), Instant::now()).unwrap();
    assert!(told(job.scale(0, 0, 0.25, 5).unwrap()).is_empty());
    assert_eq!(told(job.release_cut("a")), ["open", "step scaled by 0.25"]);
    assert_eq!(told(job.leave(0, 1)), [] as [&str; 0]);
    assert_eq!(told(job.join(0, 2, 6)), ["6: yes", "4: yes"]);
}

#[test]
fn a_restarted_worker_stays_a_member_of_the_pass_it_died_in() {
    let mut job = coordinator(Mode::Sync, 2);
    job.join(0, 1, 1);
    job.join(1, 1, 2);
    job.push(WorkId::step(0, 0), WHOLE, 3).unwrap();
    // Worker 1 is killed. Its successor joins the pass again, which changes nothing, and pushes the missing step.
    assert_eq!(told(job.join(1, 1, 4)), ["4: yes"]);
    assert_eq!(told(job.push(WorkId::step(1, 0), WHOLE, 5).unwrap()), ["step of 0+1 for 3+5"]);
    // The other worker ends the pass and waits in the next one; the successor dies in between, and its own successor leaves the
    // first pass once more.
    job.leave(0, 1);
    assert!(told(job.join(0, 2, 6)).is_empty());
    job.leave(1, 1);
    assert_eq!(told(job.join(1, 1, 7)), ["7: yes"], "a pass that was left is not joined again");
    assert!(told(job.leave(1, 1)).is_empty());
    assert_eq!(told(job.join(1, 2, 8)), ["6: yes", "8: yes"]);
}

#[test]
fn a_worker_that_is_done_early_waits_for_the_others_to_end_their_pass_also_after_a_return() {
    let mut job = coordinator(Mode::Sync, 2);
    // The checkpoint was taken when stream 1 had left pass 2 and stream 0 had not.
    let group = GroupWork { streams: (0, 2), step: 7, taken: [(0, 7), (1, 5)].into(), left: [(0, 1), (1, 2)].into() };
    let work = Work { groups: vec![group], ..Work::default() };
    job.begin(team(Mode::Sync, 2, 1), Some(&work), None);
    assert!(told(job.join(1, 3, 1)).is_empty());
    assert_eq!(told(job.join(0, 2, 2)), ["2: yes"]);
    assert_eq!(told(job.push(WorkId::step(0, 7), WHOLE, 3).unwrap()), ["step of 0 for 3"]);
    job.leave(0, 2);
    assert_eq!(told(job.join(0, 3, 4)), ["4: yes", "1: yes"]);
    assert_eq!(job.stream_positions(0..2).left, [(0, 2), (1, 2)].into());
}

#[test]
fn a_step_outside_the_data_of_one_worker_is_not_waited_for_by_the_others_once_it_left() {
    let mut job = coordinator(Mode::Sync, 2);
    job.join(0, 1, 1);
    job.join(1, 1, 2);
    job.push(WorkId::step(0, 0), WHOLE, 3).unwrap();
    assert_eq!(told(job.leave(1, 1)), ["step of 0 for 3"]);
}

#[test]
fn collectives_are_recorded_and_answered_as_they_were() {
    let mut job = coordinator(Mode::Async, 2);
    let sum = Collective::AllReduce { workers: 2, op: Reduce::Sum, length: 1 };
    let number = |value: f64| Contribution::Numbers(vec![value]);
    let barrier = Collective::Barrier { workers: 2 };
    assert!(told(job.arrive(0, 0, sum, number(1.0), 1).unwrap()).is_empty());
    assert_eq!(told(job.arrive(1, 0, sum, number(2.0), 2).unwrap()), ["1: [3.0]", "2: [3.0]"]);
    job.arrive(0, 1, barrier, Contribution::Nothing, 3).unwrap();
    job.arrive(1, 1, barrier, Contribution::Nothing, 4).unwrap();
    // Worker 1 restarts, with other numbers.
    assert_eq!(told(job.arrive(1, 0, sum, number(9.0), 5).unwrap()), ["5: [3.0]"]);
    assert_eq!(told(job.arrive(1, 1, barrier, Contribution::Nothing, 6).unwrap()), ["6: []"]);
    let error = job.arrive(1, 0, barrier, Contribution::Nothing, 7).unwrap_err().to_string();
    let expected = "collective 0 of worker 1 was the sum of 1 values of 2 workers before the restart, and is a barrier of \
                    2 workers now";
    assert_eq!(error, expected);
    // The same after a return to a checkpoint.
    let position = serde_json::to_string(&job.position()).unwrap();
    let mut returned = coordinator(Mode::Async, 2);
    returned.begin(team(Mode::Async, 2, 1), None, Some(serde_json::from_str(&position).unwrap()));
    assert_eq!(told(returned.arrive(0, 0, sum, number(9.0), 8).unwrap()), ["8: [3.0]"]);
    assert!(told(returned.arrive(0, 2, barrier, Contribution::Nothing, 9).unwrap()).is_empty());
}

#[test]
fn a_result_too_large_to_record_is_repeated_by_all_workers_together() {
    let mut job = coordinator(Mode::Async, 2);
    let all = Collective::AllToAll { workers: 2 };
    let parts = |to: u32| Contribution::Parts([(to, vec![to as u8])].into());
    for number in 0..3 {
        job.arrive(0, number, all, parts(1), 1).unwrap();
        job.arrive(1, number, all, parts(0), 2).unwrap();
    }
    assert!(job.needs_all(0), "a restarted worker cannot come here alone");
    assert!(!job.needs_all(3), "a new one is nobody's to repeat");
    job.recall();
    assert!(!job.needs_all(0) && !job.needs_all(1), "any worker that arrives now was restarted");
    for number in 0..3 {
        assert!(told(job.arrive(0, number, all, parts(1), 3).unwrap()).is_empty());
        assert_eq!(told(job.arrive(1, number, all, parts(0), 4).unwrap()).len(), 2);
    }
    assert!(told(job.arrive(0, 3, all, parts(1), 5).unwrap()).is_empty());
    assert!(job.needs_all(0), "the next restart is another one");
}

#[test]
fn the_server_ends_when_all_have_departed_and_not_when_all_are_gone() {
    let now = Instant::now();
    let mut job = coordinator(Mode::Async, 2);
    for rank in [0, 1] {
        job.admit(rank, Incarnation(1)).unwrap();
        job.enter(rank);
    }
    job.disconnected(0, now);
    assert!(job.absent(now).is_empty(), "it may be back at once");
    assert_eq!(job.absent(now + Duration::from_secs(2)), [Absent { rank: 0, seconds: 2.0 }]);
    job.disconnected(1, now);
    assert!(told(job.tick(now + Duration::from_secs(599))).is_empty());
    assert_eq!(told(job.tick(now + Duration::from_secs(600))), ["Deserted"]);
    assert!(told(job.depart(0, 2).unwrap()).is_empty());
    assert_eq!(told(job.depart(1, 2).unwrap()), ["Done"]);
    assert!(job.absent(now + Duration::from_secs(9)).is_empty(), "who departed is not missed");
}

#[test]
fn a_save_belongs_to_one_incarnation_and_never_blocks_a_later_one() {
    let now = Instant::now();
    let mut job = coordinator(Mode::Async, 2);
    job.admit(0, Incarnation(1)).unwrap();
    job.admit(1, Incarnation(1)).unwrap();
    let (busy, effects) = job.prepare_cut("a", owner(0, 1), now).unwrap();
    assert_eq!((busy, told(effects)), (None, vec!["closed".to_owned()]));
    assert!(job.hold_back(WorkId::step(1, 0), 7));
    let (busy, _) = job.prepare_cut("b", owner(1, 1), now).unwrap();
    assert_eq!(busy, Some("another checkpoint is being prepared"));
    assert_eq!(told(job.marked("a")), ["open", "retry 7"]);
    let (busy, _) = job.prepare_cut("b", owner(1, 1), now).unwrap();
    assert_eq!(busy, Some("another checkpoint is being written"));
    // The worker dies between the snapshot and the write, and restarts.
    assert_eq!(told(job.admit(0, Incarnation(2)).unwrap()), ["forget a"]);
    let (busy, effects) = job.prepare_cut("b", owner(1, 1), now).unwrap();
    assert_eq!((busy, told(effects)), (None, vec!["closed".to_owned()]));
    // This one dies and is not restarted: the gate opens by itself, or when the worker is known to be gone.
    assert_eq!(told(job.tick(now + Duration::from_secs(3))), ["open"]);
    assert!(job.prepare_cut("b", owner(1, 1), now).is_ok_and(|(busy, _)| busy.is_none()), "it is asked again");
    job.marked("b");
    job.disconnected(1, now);
    let (busy, effects) = job.prepare_cut("c", owner(0, 2), now).unwrap();
    assert_eq!((busy, told(effects)), (None, vec!["closed".to_owned(), "forget b".to_owned()]));
}

#[test]
fn an_action_is_recorded_once_and_another_one_in_its_place_is_named() {
    let mut journal = Journal::default();
    assert_eq!(journal.begin(ActionKind::Train, 0, "file a").unwrap(), None);
    let action = Action { what: "file a".into(), result: serde_json::json!([1, 2]) };
    journal.complete(ActionKind::Train, 0, action.clone(), vec![1, 2, 255]).unwrap();
    journal.complete(ActionKind::Train, 0, action.clone(), vec![]).unwrap();
    let saved = serde_json::to_string(&journal).unwrap();
    let mut journal: Journal = serde_json::from_str(&saved).unwrap();
    assert_eq!(journal.states, Some((ActionKind::Train, 0, vec![1, 2, 255])));
    assert_eq!(journal.begin(ActionKind::Train, 0, "file a").unwrap(), Some(action));
    let error = journal.begin(ActionKind::Train, 0, "file b").unwrap_err().to_string();
    assert_eq!(error, "training pass 1 of this script was `file a` before the restart, and is `file b` now");
    journal.begin(ActionKind::Train, 1, "file c").unwrap();
    assert!(journal.begin(ActionKind::Train, 1, "file d").is_err(), "also one that has only begun");
    assert!(journal.begin(ActionKind::Save, 1, "model").is_err(), "actions come one after the other");
    assert_eq!(journal.passes_only().actions.len(), 1);
}

/// Events in a job of two workers.
#[derive(Debug, Clone)]
enum Event {
    /// A worker's process executes the next step of its script.
    Work(u32),
    /// It is killed, and restarted.
    Restart(u32),
    /// It gives up the step whose first part it has pushed, to compute it again.
    GiveUp(u32),
    Prepare(u32),
    Aim,
    Mark,
    Release,
    /// Time passes, in milliseconds.
    Wait(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        12 => (0u32..2).prop_map(Event::Work),
        2 => (0u32..2).prop_map(Event::Restart),
        1 => (0u32..2).prop_map(Event::GiveUp),
        1 => (0u32..2).prop_map(Event::Prepare),
        1 => Just(Event::Aim),
        1 => Just(Event::Mark),
        1 => Just(Event::Release),
        1 => (0u64..2000).prop_map(Event::Wait),
    ];
    prop::collection::vec(event, 0..200)
}

/// Passes and steps of a worker's script.
const PASSES: u64 = 3;
const STEPS: u64 = 4;

/// The position of a worker's process in its script.
#[derive(Debug, Clone, Copy, Default)]
struct Script {
    incarnation: u64,
    pass: u64,
    step: u64,
    joined: bool,
    /// The request that it waits for.
    waits: Option<Ticket>,
    /// Its step was measured, and it has not sent the factor yet.
    measured: bool,
    /// The attempt at its step, and the next part of it to push.
    attempt: u64,
    part: u32,
    departed: bool,
}

struct World {
    job: Coordinator,
    scripts: [Script; 2],
    /// How often each step of each stream was applied.
    applied: BTreeMap<(u32, u64), u32>,
    /// The step that each request pushes, and by which incarnation and in which attempt.
    waiting: BTreeMap<Ticket, (u64, (u64, u64))>,
    now: Instant,
    cut: Option<(String, u32)>,
    cuts: u32,
    done: bool,
    pushing: PushKind,
}

/// How steps are pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PushKind {
    Whole,
    Measured,
    InTwoParts,
}

impl World {
    fn new(pushing: PushKind) -> Self {
        let mut job = coordinator(Mode::Sync, 2);
        for rank in [0, 1] {
            job.admit(rank, Incarnation(0)).unwrap();
            job.enter(rank);
        }
        World {
            job,
            scripts: Default::default(),
            applied: BTreeMap::new(),
            waiting: BTreeMap::new(),
            now: Instant::now(),
            cut: None,
            cuts: 0,
            done: false,
            pushing,
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Answer(ticket, _) | Effect::Repeated(ticket, _) => self.answered(ticket),
                Effect::Measure { waiting, .. } => {
                    for script in self.scripts.iter_mut().filter(|s| s.waits.is_some_and(|t| waiting.contains(&t))) {
                        (script.waits, script.measured) = (None, true);
                    }
                }
                Effect::Apply(step) => {
                    for (stream, parts) in &step.pushes {
                        let (number, attempt) = self.waiting[&parts[0]];
                        assert_eq!(parts.len(), if self.pushing == PushKind::InTwoParts { 2 } else { 1 });
                        assert!(
                            parts.iter().all(|part| self.waiting[part] == (number, attempt)),
                            "parts of two attempts"
                        );
                        *self.applied.entry((*stream, number)).or_default() += 1;
                    }
                    step.waiting.into_iter().for_each(|(_, ticket)| self.answered(ticket));
                }
                Effect::Stop(End::Done) => self.done = true,
                Effect::Stop(_) | Effect::Gate(_) | Effect::Retry(_) | Effect::ForgetCut(_) => {}
            }
        }
    }

    fn answered(&mut self, ticket: Ticket) {
        for script in self.scripts.iter_mut().filter(|script| script.waits == Some(ticket)) {
            script.waits = None;
            match script.joined {
                false => script.joined = true,
                true => script.step += 1,
            }
        }
    }

    /// Executes the next step of a worker's script, unless it waits. Numbers come from the script: a restarted one starts from
    /// the beginning.
    fn work(&mut self, rank: u32) {
        let script = &mut self.scripts[rank as usize];
        if script.waits.is_some() || script.departed {
            return;
        }
        let script = *script;
        let ticket = self.job.ticket();
        let effects = if script.pass == PASSES {
            self.scripts[rank as usize].departed = true;
            self.job.depart(rank, 2).unwrap()
        } else if !script.joined {
            self.scripts[rank as usize].waits = Some(ticket);
            self.job.join(rank, script.pass + 1, ticket)
        } else if script.measured {
            (self.scripts[rank as usize].waits, self.scripts[rank as usize].measured) = (Some(ticket), false);
            self.job.scale(rank, script.step, 0.5, ticket).unwrap()
        } else if script.step < (script.pass + 1) * STEPS {
            let has_more = self.pushing == PushKind::InTwoParts && script.part == 0;
            let Script { incarnation, attempt, part: number, .. } = script;
            self.waiting.insert(ticket, (script.step, (incarnation, attempt)));
            let script = &mut self.scripts[rank as usize];
            if has_more {
                script.part = 1;
            } else {
                (script.waits, script.part, script.attempt) = (Some(ticket), 0, attempt + 1);
            }
            let part = PushPart { attempt, number, has_more };
            let pushed = Pushed { part, measured: self.pushing == PushKind::Measured };
            self.job.push(WorkId::step(rank, script.step), pushed, ticket).unwrap()
        } else {
            let script = &mut self.scripts[rank as usize];
            (script.pass, script.joined) = (script.pass + 1, false);
            self.job.leave(rank, script.pass)
        };
        self.carry_out(effects);
    }

    fn play(&mut self, event: &Event) {
        match *event {
            Event::Work(rank) => self.work(rank),
            Event::Restart(rank) => {
                let script = &mut self.scripts[rank as usize];
                if script.departed {
                    return;
                }
                let incarnation = script.incarnation + 1;
                *script = Script { incarnation, ..Script::default() };
                self.job.disconnected(rank, self.now);
                let effects = self.job.admit(rank, Incarnation(incarnation)).unwrap();
                self.carry_out(effects);
            }
            Event::GiveUp(rank) => {
                let script = &mut self.scripts[rank as usize];
                if script.part == 1 {
                    (script.part, script.attempt) = (0, script.attempt + 1);
                }
            }
            Event::Prepare(rank) => {
                self.cuts += 1;
                let id = format!("cut {}", self.cuts);
                let incarnation = self.scripts[rank as usize].incarnation;
                let (busy, effects) = self.job.prepare_cut(&id, owner(rank, incarnation), self.now).unwrap();
                if busy.is_none() {
                    self.cut = Some((id, rank));
                }
                self.carry_out(effects);
            }
            Event::Aim => {
                if let Some((id, _)) = self.cut.clone() {
                    let target = Work { groups: self.job.group_work(), ..Work::default() };
                    let effects = self.job.aim(&id, &target, self.now).unwrap_or_default();
                    self.carry_out(effects);
                }
            }
            Event::Mark => {
                if let Some((id, _)) = self.cut.take() {
                    let effects = self.job.marked(&id);
                    self.carry_out(effects);
                }
            }
            Event::Release => {
                if let Some((id, _)) = self.cut.take() {
                    let effects = self.job.release_cut(&id);
                    self.carry_out(effects);
                }
            }
            Event::Wait(milliseconds) => {
                self.now += Duration::from_millis(milliseconds);
                let effects = self.job.tick(self.now);
                self.carry_out(effects);
            }
        }
    }
}

proptest! {
    /// No push is lost or applied twice, a save never blocks a later one, and some worker can always make progress: scripts
    /// that are left to run reach their end, and the server shuts down.
    #[test]
    fn whatever_is_interleaved_every_step_is_applied_once_and_the_job_ends(
        events in events(),
        pushing in prop::sample::select(vec![PushKind::Whole, PushKind::Measured, PushKind::InTwoParts]),
    ) {
        let mut world = World::new(pushing);
        for event in &events {
            world.play(event);
            prop_assert!(world.applied.values().all(|&times| times == 1), "{:?}", world.applied);
        }
        // From here on no worker dies; a save in progress is aborted in time.
        for round in 0..300 {
            world.play(&Event::Wait(if round == 0 { 3000 } else { 0 }));
            [0, 1].into_iter().for_each(|rank| world.work(rank));
        }
        prop_assert!(world.done, "the job did not end: {:?}", world.scripts);
        let expected: BTreeSet<(u32, u64)> = (0..2).flat_map(|rank| (0..PASSES * STEPS).map(move |step| (rank, step))).collect();
        prop_assert_eq!(world.applied.keys().copied().collect::<BTreeSet<_>>(), expected);
        prop_assert!(world.applied.values().all(|&times| times == 1));
        // The gate is not left closed, and the next save can begin.
        world.job.enter(0);
        let incarnation = world.scripts[0].incarnation + 1;
        let effects = world.job.admit(0, Incarnation(incarnation)).unwrap();
        world.carry_out(effects);
        let later = world.now + Duration::from_secs(20);
        let effects = world.job.tick(later);
        world.carry_out(effects);
        if let Some((id, _)) = world.cut.take() {
            let effects = world.job.release_cut(&id);
            world.carry_out(effects);
        }
        world.job.disconnected(1, world.now);
        let (busy, _) = world.job.prepare_cut("last", owner(0, incarnation), later).unwrap();
        prop_assert_eq!(busy, None);
    }
}
