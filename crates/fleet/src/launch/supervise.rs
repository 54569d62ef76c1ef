//! The rules by which a job goes on and ends, without processes, signals or a clock: it is told what happened and when, and
//! answers what to do.
//!
//! ```text
//!            a process fails, no restart left / a server leaves early /
//!            a signal / the time is over
//! Running ---------------------------------------------------------> Stopping --> all ended
//!    |  ^ \__ a process fails, a restart is left: it waits, then starts    asked, then killed
//!    |  |
//!    | all workers of the job are done
//!    v
//! Leaving  servers have time to end by themselves, are asked, are killed; then all is well
//! ```
//!
//! On a machine that has only some of the workers servers are never asked: the others still need them, and they end by
//! themselves when the last worker has left.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use openfleet_core::topology::Role;

use super::plan::Policy;
use super::process::Ending;

/// From asking to killing; with the time to notice, a failed job is over within five seconds.
const ASKED: Duration = Duration::from_secs(3);
/// The same where the user has asked: a worker may save what it has. Who asks twice does not wait.
const ASKED_BY_USER: Duration = Duration::from_secs(10);
/// From killing to not waiting any more: a process may hang in the kernel.
const KILLED: Duration = Duration::from_secs(5);
/// Servers stay for a few seconds after the last worker has left, in case that its last answer was lost.
const LEAVING: Duration = Duration::from_secs(10);
/// How long workers may outlive a server that ended without saying that it was done.
const OUTLIVING: Duration = Duration::from_secs(3);
/// The pause before a process starts again; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Start the process of this index, for the so-manieth time.
    Start(usize, u64),
    /// Send it a signal.
    Signal(usize, Signal),
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All went well.
    Done,
    /// A process failed.
    Failed(usize, Ending),
    /// A process could not be started again.
    NotStarted(usize),
    /// A server ended while workers needed it.
    ServerLeft(usize),
    /// A signal came.
    Interrupted(Signal),
    /// The time was over.
    TimedOut,
}

/// Where a process stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    /// To be started again.
    Paused(Instant),
    Ended(Ending),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// Workers are done; servers are asked when the time comes.
    Leaving(Instant),
    /// Asked to end; killed when the time comes.
    Asked(Instant),
    /// Killed; given up when the time comes.
    Killed(Instant),
    Over,
}

/// The rules applied to the processes of one machine.
#[derive(Debug)]
pub(crate) struct Supervisor {
    policy: Policy,
    processes: Vec<Watched>,
    phase: Phase,
    /// Decided when stopping begins; until then all may be well.
    outcome: Outcome,
    started: Instant,
    restarts: u64,
    /// A server that ended early, and until when that may be right.
    early: Option<(usize, Instant)>,
}

#[derive(Debug)]
struct Watched {
    role: Role,
    state: State,
    lives: u64,
}

impl Supervisor {
    /// All processes are being started.
    pub(crate) fn new(roles: impl IntoIterator<Item = Role>, policy: Policy, now: Instant) -> Self {
        let processes = roles.into_iter().map(|role| Watched { role, state: State::Running, lives: 1 }).collect();
        let (phase, outcome) = (Phase::Running, Outcome::Done);
        Supervisor { policy, processes, phase, outcome, started: now, restarts: 0, early: None }
    }

    /// A process has ended. `is_done`: it is a server and says that all its workers have left.
    pub(crate) fn ended(&mut self, index: usize, ending: Ending, is_done: bool, now: Instant) -> Vec<Action> {
        let process = &mut self.processes[index];
        process.state = State::Ended(ending);
        let (role, lives) = (process.role, process.lives);
        let mut actions = Vec::new();
        match self.phase {
            Phase::Running if ending.is_success() => {
                let is_early = role == Role::Server && !is_done;
                self.early = self.early.or(is_early.then_some((index, now + OUTLIVING)));
            }
            Phase::Running if self.policy.max_restarts.is_none_or(|most| self.restarts < most) => {
                self.restarts += 1;
                let doubled = FIRST_PAUSE * 2u32.pow(lives.saturating_sub(1).min(10) as u32);
                self.processes[index].state = State::Paused(now + doubled.min(LONGEST_PAUSE));
            }
            Phase::Running | Phase::Leaving(_) if !ending.is_success() => {
                actions = self.stop(Outcome::Failed(index, ending), Signal::SIGTERM, now);
            }
            _ => {}
        }
        self.settle(now);
        actions
    }

    /// A process could not be started.
    pub(crate) fn not_started(&mut self, index: usize, now: Instant) -> Vec<Action> {
        self.processes[index].state = State::Ended(Ending::Unknown);
        let actions = match self.phase {
            Phase::Running => self.stop(Outcome::NotStarted(index), Signal::SIGTERM, now),
            _ => vec![],
        };
        self.settle(now);
        actions
    }

    /// Somebody wants the job to end. The second time nobody is asked.
    pub(crate) fn interrupted(&mut self, signal: Signal, now: Instant) -> Vec<Action> {
        let actions = match self.phase {
            Phase::Asked(_) => {
                self.phase = Phase::Killed(now + KILLED);
                self.signal_all(Signal::SIGKILL)
            }
            Phase::Running | Phase::Leaving(_) => self.stop(Outcome::Interrupted(signal), signal, now),
            Phase::Killed(_) | Phase::Over => vec![],
        };
        self.settle(now);
        actions
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Action> {
        let over = self.policy.timeout.is_some_and(|timeout| now >= self.started + timeout);
        let actions = match self.phase {
            Phase::Running | Phase::Leaving(_) if over => self.stop(Outcome::TimedOut, Signal::SIGTERM, now),
            Phase::Running => match self.early {
                Some((index, until)) if now >= until && self.has_unfinished(Role::Worker) => {
                    self.stop(Outcome::ServerLeft(index), Signal::SIGTERM, now)
                }
                _ => self.restart(now),
            },
            Phase::Leaving(until) if now >= until => {
                self.phase = Phase::Asked(now + ASKED);
                self.signal_all(Signal::SIGTERM)
            }
            Phase::Asked(until) if now >= until => {
                self.phase = Phase::Killed(now + KILLED);
                self.signal_all(Signal::SIGKILL)
            }
            Phase::Killed(until) if now >= until => {
                self.phase = Phase::Over;
                vec![]
            }
            _ => vec![],
        };
        self.settle(now);
        actions
    }

    /// When [`Supervisor::tick`] has something to do next.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        let paused = self.processes.iter().filter_map(|process| match process.state {
            State::Paused(until) => Some(until),
            _ => None,
        });
        let timeout = self.policy.timeout.map(|timeout| self.started + timeout);
        match self.phase {
            Phase::Running => paused.chain(timeout).chain(self.early.map(|(_, until)| until)).min(),
            Phase::Leaving(until) => Some(until).into_iter().chain(timeout).min(),
            Phase::Asked(until) | Phase::Killed(until) => Some(until),
            Phase::Over => None,
        }
    }

    /// How the job ended, when it has.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        (self.phase == Phase::Over).then_some(self.outcome)
    }

    /// Whether the workers are done and servers have not yet been asked to end.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving(_))
    }

    /// Whether the job is being ended before its time, and how that came.
    pub(crate) fn stopping(&self) -> Option<Outcome> {
        (self.outcome != Outcome::Done).then_some(self.outcome)
    }

    pub(crate) fn state(&self, index: usize) -> State {
        self.processes[index].state
    }

    pub(crate) fn restarts(&self) -> u64 {
        self.restarts
    }

    /// How many of a role have not come to their good end.
    pub(crate) fn unfinished(&self, role: Role) -> usize {
        let unfinished = |process: &&Watched| process.role == role && !matches!(process.state, State::Ended(_));
        self.processes.iter().filter(unfinished).count()
    }

    fn has_unfinished(&self, role: Role) -> bool {
        self.unfinished(role) > 0
    }

    fn stop(&mut self, outcome: Outcome, signal: Signal, now: Instant) -> Vec<Action> {
        self.outcome = outcome;
        let is_user = matches!(outcome, Outcome::Interrupted(_));
        self.phase = Phase::Asked(now + if is_user { ASKED_BY_USER } else { ASKED });
        for process in &mut self.processes {
            if matches!(process.state, State::Paused(_)) {
                process.state = State::Ended(Ending::Unknown);
            }
        }
        self.signal_all(signal)
    }

    fn signal_all(&self, signal: Signal) -> Vec<Action> {
        let running = self.processes.iter().enumerate().filter(|(_, process)| process.state == State::Running);
        running.map(|(index, _)| Action::Signal(index, signal)).collect()
    }

    fn restart(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        for (index, process) in self.processes.iter_mut().enumerate() {
            if matches!(process.state, State::Paused(until) if now >= until) {
                process.lives += 1;
                process.state = State::Running;
                actions.push(Action::Start(index, process.lives));
            }
        }
        actions
    }

    /// Goes on to the phase that the processes' states ask for.
    fn settle(&mut self, now: Instant) {
        if !self.has_unfinished(Role::Worker) && !self.has_unfinished(Role::Server) {
            self.phase = Phase::Over;
        } else if self.phase == Phase::Running && self.policy.has_all_workers && !self.has_unfinished(Role::Worker) {
            self.phase = Phase::Leaving(now + LEAVING);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy { max_restarts: Some(0), timeout: None, has_all_workers: true };
    const FAILED: Ending = Ending::Code(3);
    const WELL: Ending = Ending::Code(0);

    /// Servers 0 and 1, workers 2 and 3.
    fn job(policy: Policy) -> (Supervisor, Instant) {
        let now = Instant::now();
        (Supervisor::new([Role::Server, Role::Server, Role::Worker, Role::Worker], policy, now), now)
    }

    fn signals(signal: Signal, indices: &[usize]) -> Vec<Action> {
        indices.iter().map(|index| Action::Signal(*index, signal)).collect()
    }

    #[test]
    fn a_failure_asks_the_others_then_kills_them_then_gives_up() {
        let (mut job, now) = job(POLICY);
        assert_eq!(job.ended(3, FAILED, false, now), signals(Signal::SIGTERM, &[0, 1, 2]));
        assert_eq!(job.ended(2, Ending::Signal(15), false, now), vec![], "it was asked to");
        assert_eq!(job.tick(now), vec![]);
        let later = job.next_tick().unwrap();
        assert!(later - now < Duration::from_secs(5), "the promise of five seconds");
        assert_eq!(job.tick(later), signals(Signal::SIGKILL, &[0, 1]));
        assert_eq!(job.outcome(), None);
        let end = job.next_tick().unwrap();
        job.tick(end);
        assert_eq!(job.outcome(), Some(Outcome::Failed(3, FAILED)));
    }

    #[test]
    fn servers_may_end_by_themselves_when_the_workers_are_done() {
        let (mut job, now) = job(POLICY);
        job.ended(2, WELL, false, now);
        assert!(!job.is_leaving());
        job.ended(3, WELL, false, now);
        assert!(job.is_leaving());
        job.ended(0, WELL, false, now);
        assert_eq!(job.outcome(), None);
        job.ended(1, WELL, false, now);
        assert_eq!(job.outcome(), Some(Outcome::Done));
    }

    #[test]
    fn servers_that_stay_are_asked_then_killed_and_all_is_well() {
        let (mut job, now) = job(POLICY);
        job.ended(2, WELL, false, now);
        job.ended(3, WELL, false, now);
        let asked = job.next_tick().unwrap();
        assert_eq!(job.tick(asked), signals(Signal::SIGTERM, &[0, 1]));
        assert_eq!(job.ended(0, Ending::Signal(15), false, asked), vec![]);
        let killed = job.next_tick().unwrap();
        assert_eq!(job.tick(killed), signals(Signal::SIGKILL, &[1]));
        job.ended(1, Ending::Signal(9), false, killed);
        assert_eq!(job.outcome(), Some(Outcome::Done));
    }

    #[test]
    fn a_server_that_fails_after_the_workers_is_a_failure() {
        let (mut job, now) = job(POLICY);
        job.ended(2, WELL, false, now);
        job.ended(3, WELL, false, now);
        assert_eq!(job.ended(0, FAILED, false, now), signals(Signal::SIGTERM, &[1]));
        job.ended(1, WELL, false, now);
        assert_eq!(job.outcome(), Some(Outcome::Failed(0, FAILED)));
    }

    #[test]
    fn servers_on_a_machine_without_all_workers_are_never_asked() {
        let (mut job, now) = job(Policy { has_all_workers: false, ..POLICY });
        job.ended(2, WELL, false, now);
        job.ended(3, WELL, false, now);
        assert_eq!(job.next_tick(), None);
        job.ended(0, WELL, false, now);
        job.ended(1, WELL, false, now);
        assert_eq!(job.outcome(), Some(Outcome::Done));
    }

    #[test]
    fn a_server_that_leaves_while_workers_run_ends_the_job() {
        let (mut job, now) = job(POLICY);
        assert_eq!(job.ended(1, WELL, false, now), vec![]);
        let later = job.next_tick().unwrap();
        assert_eq!(job.tick(later), signals(Signal::SIGTERM, &[0, 2, 3]));
        assert_eq!(job.stopping(), Some(Outcome::ServerLeft(1)));
    }

    #[test]
    fn a_server_that_says_it_is_done_may_end_before_its_workers() {
        let (mut job, now) = job(POLICY);
        assert_eq!(job.ended(0, WELL, true, now), vec![]);
        assert_eq!(job.ended(1, WELL, true, now), vec![]);
        assert_eq!(job.next_tick(), None);
        job.ended(2, WELL, false, now);
        job.ended(3, WELL, false, now);
        assert_eq!(job.outcome(), Some(Outcome::Done));
    }

    #[test]
    fn restarts_are_counted_over_the_job_and_pause_longer_each_time() {
        let (mut job, now) = job(Policy { max_restarts: Some(2), ..POLICY });
        assert_eq!(job.ended(2, FAILED, false, now), vec![]);
        assert_eq!(job.tick(now), vec![], "not at once");
        let first = job.next_tick().unwrap();
        assert_eq!(job.tick(first), vec![Action::Start(2, 2)]);
        job.ended(2, FAILED, false, first);
        let second = job.next_tick().unwrap();
        assert!(second - first > first - now);
        assert_eq!(job.tick(second), vec![Action::Start(2, 3)]);
        assert_eq!(job.ended(0, Ending::Signal(9), false, second), signals(Signal::SIGTERM, &[1, 2, 3]));
        assert_eq!(job.stopping(), Some(Outcome::Failed(0, Ending::Signal(9))));
    }

    #[test]
    fn a_process_that_waits_to_be_started_is_not_started_into_an_ending_job() {
        let (mut job, now) = job(Policy { max_restarts: Some(1), ..POLICY });
        job.ended(2, FAILED, false, now);
        assert_eq!(job.interrupted(Signal::SIGINT, now), signals(Signal::SIGINT, &[0, 1, 3]));
        for index in [0, 1, 3] {
            job.ended(index, Ending::Signal(2), false, now);
        }
        assert_eq!(job.outcome(), Some(Outcome::Interrupted(Signal::SIGINT)));
    }

    #[test]
    fn the_second_interrupt_does_not_ask() {
        let (mut job, now) = job(POLICY);
        assert_eq!(job.interrupted(Signal::SIGTERM, now), signals(Signal::SIGTERM, &[0, 1, 2, 3]));
        assert_eq!(job.interrupted(Signal::SIGTERM, now), signals(Signal::SIGKILL, &[0, 1, 2, 3]));
    }

    #[test]
    fn a_job_whose_time_is_over_is_ended() {
        let (mut job, now) = job(Policy { timeout: Some(Duration::from_secs(60)), ..POLICY });
        let over = job.next_tick().unwrap();
        assert_eq!(over - now, Duration::from_secs(60));
        assert_eq!(job.tick(over), signals(Signal::SIGTERM, &[0, 1, 2, 3]));
        assert_eq!(job.stopping(), Some(Outcome::TimedOut));
    }
}
