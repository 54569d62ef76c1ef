//! The rules by which a job continues and ends, without processes, signals or a clock: the supervisor is told what happened
//! and when, and answers what to do.
//!
//! ```text
//!    a worker fails: it pauses, then starts again alone
//!        +---+                       a server fails or ends too early
//!        |   v                  +------------------------------------------+
//!       Running ----------------+                                          v
//!        |   |  ^------------------------------------------------------ Returning
//!        |   |    all processes have been killed; all start again, servers first
//!        |   |
//!        |   +-- no restart left / a silent process / a signal / the timeout --> Asked --> Killed --> Over
//!        |                                                                       ^
//!        +-- all workers of the job exited with 0 --> Leaving -------------------+
//!                                  servers may end by themselves; the job has succeeded
//! ```
//!
//! On a machine that has only some of the workers servers are never asked to end: the others still need them, and they end by
//! themselves when the last worker has departed.

use std::fmt;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use openfleet_core::topology::Role;

use super::plan::Policy;
use super::process::Ending;
use crate::job_file::RESTART_EXIT_CODE;
use crate::progress::Progress;

#[cfg(test)]
mod tests;

/// From SIGTERM to SIGKILL; with the time to notice, a failed job is over within five seconds.
const ASKED: Duration = Duration::from_secs(3);
/// The same where the user has asked: a worker may save what it has. A second request kills at once.
const ASKED_BY_USER: Duration = Duration::from_secs(10);
/// From SIGKILL to giving up: a process may hang in the kernel.
const KILLED: Duration = Duration::from_secs(5);
/// How long servers may take to end by themselves after the last worker has exited with 0.
const LEAVING: Duration = Duration::from_secs(1);
/// How long workers may outlive a server that exited with 0. After that the server counts as failed, unless every worker that
/// still runs has reported that it needs no server ([`Progress::DONE`]).
const OUTLIVING: Duration = Duration::from_secs(3);
/// A process of this machine that a peer has not heard from for so long is frozen: it is killed.
const LOCAL_SILENCE: Duration = Duration::from_secs(8);
/// A process of another machine that has been silent for so long is missing.
const REMOTE_SILENCE: Duration = Duration::from_secs(10);
/// With restarts allowed, its own launcher may bring it back: the job ends only after so long.
pub(crate) const REMOTE_SILENCE_LIMIT: Duration = Duration::from_secs(120);
/// The pause before a process starts again; doubled for each of its attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How often a worker may ask to be started again at no charge: so often at first, and as often again for each restart that
/// the job has been charged. Then asking counts as failing, so that a broken job does not loop for ever.
const FREE_RESTARTS: u64 = 3;

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Start process `.0`; `.1` is the attempt, counted from 1.
    Start(usize, u64),
    /// Send process `.0` a signal.
    Signal(usize, Signal),
    /// Tell the user.
    Notify(Notice),
}

/// What the user is told while the job continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Worker `.0` failed and starts again alone.
    WorkerRestart(usize, Cause),
    /// Server `.0` failed, or worker `.0` when servers had ended; all processes of this machine start again.
    Return(usize, Cause),
    /// Worker `.0` asked to be started again.
    FreeRestart(usize),
    /// A process of another machine is silent. It is waited for until its silence reaches [`REMOTE_SILENCE_LIMIT`].
    WaitForRemote { role: Role, rank: usize, silent: Duration },
}

/// Why a process counts as failed. Displayed with its verb: `exited with code 3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It ended by itself.
    Ended(Ending),
    /// A peer had not heard from it for so long, and it was killed.
    Silent(Duration),
    /// A server that exited with 0 while workers needed it.
    EndedEarly,
    /// It was killed and did not end.
    NotKilled,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Ended(ending) => write!(f, "{ending}"),
            Cause::Silent(time) => write!(f, "did not answer for {} s; it was killed", time.as_secs()),
            Cause::EndedEarly => f.write_str("ended with exit code 0 while workers were still running"),
            Cause::NotKilled => write!(f, "did not end within {} s of SIGKILL", KILLED.as_secs()),
        }
    }
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All workers succeeded.
    Done,
    /// A process failed and could not be started again.
    Failed(usize, Cause),
    /// A process could not be started.
    NotStarted(usize),
    /// A process of another machine was silent for too long.
    RemoteSilent { role: Role, rank: usize, silent: Duration },
    /// A signal came.
    Interrupted(Signal),
    /// The time was over.
    TimedOut,
}

/// What a process does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    /// To be started again at this time.
    Paused(Instant),
    Ended(Ending),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// A server failed: all processes are killed, and start again when all have ended and this time has come.
    Returning(Instant),
    /// Workers have succeeded; servers are asked to end at this time.
    Leaving(Instant),
    /// Asked to end; killed at this time.
    Terminating(Instant),
    /// Killed; given up at this time.
    Killing(Instant),
    Ended,
}

/// The rules applied to the processes of one machine.
#[derive(Debug)]
pub(crate) struct Supervisor {
    policy: Policy,
    processes: Vec<SupervisedProcess>,
    phase: Phase,
    /// Decided when stopping begins; [`Outcome::Done`] until then.
    outcome: Outcome,
    started: Instant,
    /// Restarts that the budget was charged with.
    restarts: u64,
    /// The first server that exited with 0, and how long workers may outlive it.
    early: Option<(usize, Instant)>,
    /// Silent processes of other machines that the user knows about, and when they were reported last.
    waited_for: Vec<(Role, usize, Instant)>,
}

#[derive(Debug)]
struct SupervisedProcess {
    role: Role,
    rank: usize,
    state: State,
    /// How often it was started.
    attempts: u64,
    free_restarts: u64,
    /// Start of the current attempt.
    since: Instant,
    /// It has reported [`Progress::DONE`] in this attempt.
    is_done: bool,
    /// It is paused at the cost of one restart of the budget.
    is_charged: bool,
    /// It was killed because of a silence of so long.
    frozen: Option<Duration>,
    /// It was killed and has to end by this time.
    killed_until: Option<Instant>,
}

impl Supervisor {
    /// All processes, by role and rank, are being started.
    pub(crate) fn new(processes: impl IntoIterator<Item = (Role, usize)>, policy: Policy, now: Instant) -> Self {
        let watched = |(role, rank)| SupervisedProcess {
            role,
            rank,
            state: State::Running,
            attempts: 1,
            free_restarts: 0,
            since: now,
            is_done: false,
            is_charged: false,
            frozen: None,
            killed_until: None,
        };
        Supervisor {
            policy,
            processes: processes.into_iter().map(watched).collect(),
            phase: Phase::Running,
            outcome: Outcome::Done,
            started: now,
            restarts: 0,
            early: None,
            waited_for: Vec::new(),
        }
    }

    /// A process has ended.
    pub(crate) fn ended(&mut self, index: usize, ending: Ending, now: Instant) -> Vec<Action> {
        let process = &mut self.processes[index];
        process.state = State::Ended(ending);
        process.killed_until = None;
        let cause = process.frozen.take().map_or(Cause::Ended(ending), Cause::Silent);
        let actions = match (self.phase, process.role) {
            (Phase::Running, Role::Worker) if ending.is_success() => vec![],
            (Phase::Running, Role::Server) if ending.is_success() => {
                self.early = self.early.or(Some((index, now + OUTLIVING)));
                vec![]
            }
            (Phase::Running, Role::Server) => self.return_all(index, cause, now),
            (Phase::Running, Role::Worker) if let Some((server, _)) = self.early => {
                let (blamed, cause) = self.blame(index, cause, server);
                self.return_all(blamed, cause, now)
            }
            (Phase::Running, Role::Worker) if self.is_free(index, ending) => self.restart_free(index, now),
            (Phase::Running, Role::Worker) => self.worker_failed(index, cause, now),
            (Phase::Returning(start), _) => {
                self.processes[index].state = State::Paused(start);
                vec![]
            }
            // The workers have succeeded, or the job ends anyway.
            (Phase::Leaving(_) | Phase::Terminating(_) | Phase::Killing(_) | Phase::Ended, _) => vec![],
        };
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

    /// A process has written a new report. Reports of a process that does not run any more, or that is being killed, do not count.
    pub(crate) fn reported(&mut self, index: usize, progress: &Progress, now: Instant) -> Vec<Action> {
        let reporter = &mut self.processes[index];
        if reporter.state != State::Running || reporter.frozen.is_some() {
            return vec![];
        }
        reporter.is_done |= progress.is_done();
        let mut actions = Vec::new();
        for silent in &progress.silent {
            let Ok(time) = Duration::try_from_secs_f64(silent.seconds) else { continue };
            let is_named = |process: &SupervisedProcess| (process.role, process.rank) == (silent.role, silent.rank);
            actions.extend(match self.processes.iter().position(is_named) {
                _ if self.phase != Phase::Running => vec![],
                Some(named) if named == index => vec![],
                Some(named) => self.local_silence(named, time, now),
                None => self.remote_silence(silent.role, silent.rank, time, now),
            });
        }
        self.settle(now);
        actions
    }

    /// Somebody wants the job to end. The second time processes are killed.
    pub(crate) fn interrupted(&mut self, signal: Signal, now: Instant) -> Vec<Action> {
        let actions = match self.phase {
            Phase::Terminating(_) => {
                self.phase = Phase::Killing(now + KILLED);
                self.signal_all(Signal::SIGKILL)
            }
            Phase::Running | Phase::Returning(_) | Phase::Leaving(_) => {
                self.stop(Outcome::Interrupted(signal), signal, now)
            }
            Phase::Killing(_) | Phase::Ended => vec![],
        };
        self.settle(now);
        actions
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Action> {
        let is_over = self.policy.timeout.is_some_and(|timeout| now >= self.started + timeout);
        let not_killed = self.processes.iter().position(|process| process.killed_until.is_some_and(|at| now >= at));
        let actions = match self.phase {
            Phase::Running | Phase::Returning(_) | Phase::Leaving(_) if is_over => {
                self.stop(Outcome::TimedOut, Signal::SIGTERM, now)
            }
            Phase::Running | Phase::Returning(_) if let Some(index) = not_killed => {
                self.stop(Outcome::Failed(index, Cause::NotKilled), Signal::SIGTERM, now)
            }
            Phase::Running => match self.early {
                Some((index, until)) if now >= until && self.needs_servers() => {
                    self.return_all(index, Cause::EndedEarly, now)
                }
                _ => self.start_paused(now),
            },
            Phase::Returning(start) if now >= start && self.running() == 0 => {
                self.phase = Phase::Running;
                self.start_paused(now)
            }
            Phase::Leaving(until) if now >= until => {
                self.phase = Phase::Terminating(now + ASKED);
                self.signal_all(Signal::SIGTERM)
            }
            Phase::Terminating(until) if now >= until => {
                self.phase = Phase::Killing(now + KILLED);
                self.signal_all(Signal::SIGKILL)
            }
            Phase::Killing(until) if now >= until => {
                self.phase = Phase::Ended;
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
        let killed = self.processes.iter().filter_map(|process| process.killed_until);
        let early = self.early.filter(|_| self.needs_servers()).map(|(_, until)| until);
        let timeout = self.policy.timeout.map(|timeout| self.started + timeout);
        match self.phase {
            Phase::Running => paused.chain(killed).chain(early).chain(timeout).min(),
            Phase::Returning(_) if self.running() > 0 => killed.chain(timeout).min(),
            Phase::Returning(until) | Phase::Leaving(until) => Some(until).into_iter().chain(timeout).min(),
            Phase::Terminating(until) | Phase::Killing(until) => Some(until),
            Phase::Ended => None,
        }
    }

    /// How the job ended, when it has.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        (self.phase == Phase::Ended).then_some(self.outcome)
    }

    /// Whether the workers have succeeded and servers have not yet been asked to end.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving(_))
    }

    /// Why the job is being ended before its time, if it is.
    pub(crate) fn stopping(&self) -> Option<Outcome> {
        (self.outcome != Outcome::Done).then_some(self.outcome)
    }

    pub(crate) fn state(&self, index: usize) -> State {
        self.processes[index].state
    }

    /// How many restarts the budget was charged with.
    pub(crate) fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Ranks of the workers that have exited with 0 and are not to be started again, ascending.
    pub(crate) fn departed(&self) -> Vec<usize> {
        let has_departed = |process: &&SupervisedProcess| {
            process.role == Role::Worker && matches!(process.state, State::Ended(ending) if ending.is_success())
        };
        let mut ranks: Vec<usize> = self.processes.iter().filter(has_departed).map(|process| process.rank).collect();
        ranks.sort_unstable();
        ranks
    }

    /// How many of a role run, or are to be started again.
    pub(crate) fn unfinished(&self, role: Role) -> usize {
        let unfinished =
            |process: &&SupervisedProcess| process.role == role && !matches!(process.state, State::Ended(_));
        self.processes.iter().filter(unfinished).count()
    }

    fn has_unfinished(&self, role: Role) -> bool {
        self.unfinished(role) > 0
    }

    fn running(&self) -> usize {
        self.processes.iter().filter(|process| process.state == State::Running).count()
    }

    /// Whether a worker of this machine still needs the servers.
    fn needs_servers(&self) -> bool {
        let needs = |process: &SupervisedProcess| process.role == Role::Worker && !process.is_done;
        self.processes.iter().any(|process| needs(process) && !matches!(process.state, State::Ended(_)))
    }

    /// Whether so many charged restarts leave room for one more.
    fn may_restart(&self, charged: u64) -> bool {
        self.policy.max_restarts.is_none_or(|most| charged < most)
    }

    /// A worker is started again alone, at the cost of one restart of the budget.
    fn worker_failed(&mut self, index: usize, cause: Cause, now: Instant) -> Vec<Action> {
        if !self.may_restart(self.restarts) {
            return self.stop(Outcome::Failed(index, cause), Signal::SIGTERM, now);
        }
        self.restarts += 1;
        self.pause(index, now);
        self.processes[index].is_charged = true;
        vec![Action::Notify(Notice::WorkerRestart(index, cause))]
    }

    /// Who is to be named when a worker fails after a server has exited with 0: the server, unless one of them had reported that
    /// the worker had departed.
    fn blame(&self, worker: usize, cause: Cause, server: usize) -> (usize, Cause) {
        let has_departed = self.processes[server].is_done || self.processes[worker].is_done;
        if has_departed { (worker, cause) } else { (server, Cause::EndedEarly) }
    }

    /// All processes are killed and started again, at the cost of one restart, however many die of it. Process `index` is to
    /// blame: a server that failed, or a worker that failed when servers had ended.
    fn return_all(&mut self, index: usize, cause: Cause, now: Instant) -> Vec<Action> {
        // Workers that are still paused failed moments ago, most likely because of the server: the same event.
        let merged = self.processes.iter().filter(|process| process.is_charged).count() as u64;
        let charged = self.restarts.saturating_sub(merged);
        if !self.may_restart(charged) {
            return self.stop(Outcome::Failed(index, cause), Signal::SIGTERM, now);
        }
        self.restarts = charged + 1;
        self.early = None;
        let start = now + pause(self.processes[index].attempts);
        self.phase = Phase::Returning(start);
        let mut actions = vec![Action::Notify(Notice::Return(index, cause))];
        for (index, process) in self.processes.iter_mut().enumerate() {
            if process.state == State::Running {
                process.killed_until = Some(now + KILLED);
                actions.push(Action::Signal(index, Signal::SIGKILL));
            } else {
                process.state = State::Paused(start);
            }
        }
        actions
    }

    /// Whether a worker that ended like this is started again without a charge.
    fn is_free(&self, index: usize, ending: Ending) -> bool {
        ending == Ending::Code(i32::from(RESTART_EXIT_CODE))
            && self.policy.max_restarts != Some(0)
            && self.processes[index].free_restarts < FREE_RESTARTS + FREE_RESTARTS * self.restarts
    }

    fn restart_free(&mut self, index: usize, now: Instant) -> Vec<Action> {
        self.processes[index].free_restarts += 1;
        self.pause(index, now);
        vec![Action::Notify(Notice::FreeRestart(index))]
    }

    /// A peer has not heard from a process of this machine.
    fn local_silence(&mut self, index: usize, time: Duration, now: Instant) -> Vec<Action> {
        let process = &mut self.processes[index];
        // A silence that began before the process started is its predecessor's.
        let is_own = now.saturating_duration_since(process.since) >= time;
        if process.state != State::Running || process.frozen.is_some() || !is_own || time < LOCAL_SILENCE {
            return vec![];
        }
        process.frozen = Some(time);
        process.killed_until = Some(now + KILLED);
        vec![Action::Signal(index, Signal::SIGKILL)]
    }

    /// A peer has not heard from a process of another machine.
    fn remote_silence(&mut self, role: Role, rank: usize, time: Duration, now: Instant) -> Vec<Action> {
        if time < REMOTE_SILENCE {
            return vec![];
        }
        if self.policy.max_restarts == Some(0) || time >= REMOTE_SILENCE_LIMIT {
            return self.stop(Outcome::RemoteSilent { role, rank, silent: time }, Signal::SIGTERM, now);
        }
        // Who has not been reported for a while has been heard from: its next silence is news.
        self.waited_for.retain(|(_, _, last)| now.saturating_duration_since(*last) < REMOTE_SILENCE);
        match self.waited_for.iter_mut().find(|waited| (waited.0, waited.1) == (role, rank)) {
            Some(waited) => {
                waited.2 = now;
                vec![]
            }
            None => {
                self.waited_for.push((role, rank, now));
                vec![Action::Notify(Notice::WaitForRemote { role, rank, silent: time })]
            }
        }
    }

    fn stop(&mut self, outcome: Outcome, signal: Signal, now: Instant) -> Vec<Action> {
        self.outcome = outcome;
        let is_user = matches!(outcome, Outcome::Interrupted(_));
        self.phase = Phase::Terminating(now + if is_user { ASKED_BY_USER } else { ASKED });
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

    fn pause(&mut self, index: usize, now: Instant) {
        let process = &mut self.processes[index];
        process.state = State::Paused(now + pause(process.attempts));
        process.is_done = false;
    }

    fn start_paused(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        for (index, process) in self.processes.iter_mut().enumerate() {
            if matches!(process.state, State::Paused(until) if now >= until) {
                process.attempts += 1;
                process.state = State::Running;
                process.since = now;
                process.is_done = false;
                process.is_charged = false;
                actions.push(Action::Start(index, process.attempts));
            }
        }
        actions
    }

    /// Goes on to the phase that the processes' states ask for.
    fn settle(&mut self, now: Instant) {
        let (has_workers, has_servers) = (self.has_unfinished(Role::Worker), self.has_unfinished(Role::Server));
        match self.phase {
            Phase::Returning(_) => {}
            _ if !has_workers && !has_servers => self.phase = Phase::Ended,
            Phase::Running if self.policy.has_all_workers && !has_workers => {
                self.phase = Phase::Leaving(now + LEAVING);
            }
            _ => {}
        }
    }
}

/// The pause after so many attempts.
fn pause(attempts: u64) -> Duration {
    let doubled = FIRST_PAUSE * 2u32.pow(attempts.saturating_sub(1).min(10) as u32);
    doubled.min(LONGEST_PAUSE)
}
