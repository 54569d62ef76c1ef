//! The rules for restarting and ending a job, without processes, signals or a clock: callers report events with their time, and
//! the supervisor returns actions.
//!
//! ```text
//!    a worker fails: it pauses, then restarts alone
//!        +---+                       a server fails or ends too early, or a rank of a collective job fails
//!        |   v                  +------------------------------------------+
//!       Running ----------------+                                          v
//!        |   |  ^------------------------------------------------------ Returning
//!        |   |    all processes have been killed; all restart, servers first
//!        |   |
//!        |   +-- no restart left / a silent process / a signal / the timeout --> Terminating --> Killing --> Ended
//!        |                                                                       ^
//!        +-- all workers of the job exited with 0 --> Leaving -------------------+
//!                                  servers may end by themselves; the job has succeeded
//! ```
//!
//! On a machine with only some of the workers, servers are never asked to end: other machines still need them, and they end by
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

/// Time from SIGTERM to SIGKILL. Including the time to notice the failure, a failed job ends within five seconds.
const ASKED: Duration = Duration::from_secs(3);
/// The same after a request of the user: a worker may need the time to save. A second request kills at once.
const ASKED_BY_USER: Duration = Duration::from_secs(10);
/// Time from SIGKILL to giving up: a process may hang in the kernel.
const KILLED: Duration = Duration::from_secs(5);
/// Time for servers to end by themselves after the last worker has exited with 0.
const LEAVING: Duration = Duration::from_secs(1);
/// Time for workers to end after a server has exited with 0. After that the server counts as failed, unless every running
/// worker has reported that it needs no server ([`Progress::DONE`]).
const OUTLIVING: Duration = Duration::from_secs(3);
/// A process of this machine that has been silent this long for a peer is frozen: it is killed.
const LOCAL_SILENCE: Duration = Duration::from_secs(8);
/// A process of another machine that has been silent this long is missing.
const REMOTE_SILENCE: Duration = Duration::from_secs(10);
/// With restarts allowed, its own launcher may restart it: the job ends only after this time.
pub(crate) const REMOTE_SILENCE_LIMIT: Duration = Duration::from_secs(120);
/// The pause before a restart; it doubles with each attempt of the process.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Restarts that a worker may request free of charge. It gets this many again for each restart that the job was charged. After
/// that a request counts as a failure, so that a broken job does not loop forever.
const FREE_RESTARTS: u64 = 3;

/// What the caller must do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Start process `.0`; `.1` is the attempt, counted from 1.
    Start(usize, u64),
    /// Send process `.0` a signal.
    Signal(usize, Signal),
    /// Print a line for the user.
    Notify(Notice),
}

/// What the user is told while the job continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Worker `.0` failed and restarts alone.
    WorkerRestart(usize, Cause),
    /// Server `.0` failed, worker `.0` failed after servers had ended, or rank `.0` of a collective job failed. All processes of
    /// this machine restart.
    Return(usize, Cause),
    /// Worker `.0` requested a restart.
    FreeRestart(usize),
    /// A process of another machine is silent. The job waits for it until its silence reaches [`REMOTE_SILENCE_LIMIT`].
    WaitForRemote { role: Role, rank: usize, silent: Duration },
}

/// Why a process counts as failed. Displayed with a verb: `exited with code 3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It ended by itself.
    Ended(Ending),
    /// A peer had not heard from it for this long, and it was killed.
    Silent(Duration),
    /// A server that exited with 0 while workers needed it.
    EndedEarly,
    /// It was killed but did not end.
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
    /// A process failed and may not be restarted.
    Failed(usize, Cause),
    /// A process could not be started.
    NotStarted(usize),
    /// A process of another machine was silent for too long.
    RemoteSilent { role: Role, rank: usize, silent: Duration },
    /// The launcher received a signal.
    Interrupted(Signal),
    /// The timeout expired.
    TimedOut,
}

/// The state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    /// Restarts at this time.
    Paused(Instant),
    Ended(Ending),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// A server failed: all processes are killed, and restart when all have ended and this time has come.
    Returning(Instant),
    /// The workers have succeeded; servers are asked to end at this time.
    Leaving(Instant),
    /// Processes were asked to end; they are killed at this time.
    Terminating(Instant),
    /// Processes were killed; the supervisor gives up at this time.
    Killing(Instant),
    Ended,
}

/// Applies the rules to the processes of one machine.
#[derive(Debug)]
pub(crate) struct Supervisor {
    policy: Policy,
    processes: Vec<SupervisedProcess>,
    phase: Phase,
    /// Decided when the job starts to end; [`Outcome::Done`] until then.
    outcome: Outcome,
    started: Instant,
    /// Restarts charged to the budget.
    restarts: u64,
    /// The first server that exited with 0, and the time by which workers must have ended.
    early: Option<(usize, Instant)>,
    /// Silent processes of other machines that the user has been told about, and the time of the last report of each.
    waited_for: Vec<(Role, usize, Instant)>,
}

#[derive(Debug)]
struct SupervisedProcess {
    role: Role,
    rank: usize,
    state: State,
    /// The number of times it was started.
    attempts: u64,
    free_restarts: u64,
    /// Start of the current attempt.
    since: Instant,
    /// It has reported [`Progress::DONE`] in this attempt.
    is_done: bool,
    /// Its pause is charged to the budget as one restart.
    is_charged: bool,
    /// It was killed because it had been silent this long.
    frozen: Option<Duration>,
    /// It was killed and must end by this time.
    killed_until: Option<Instant>,
}

impl Supervisor {
    /// Starts to supervise processes, given by role and rank, that are being started.
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

    /// Reports that a process has ended.
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
            (Phase::Running, Role::Worker) if self.policy.restarts_together => self.return_all(index, cause, now),
            (Phase::Running, Role::Worker) if self.is_free(index, ending) => self.restart_free(index, now),
            (Phase::Running, Role::Worker) => self.worker_failed(index, cause, now),
            (Phase::Returning(start), _) => {
                self.processes[index].state = State::Paused(start);
                vec![]
            }
            // The workers have succeeded, or the job is ending.
            (Phase::Leaving(_) | Phase::Terminating(_) | Phase::Killing(_) | Phase::Ended, _) => vec![],
        };
        self.settle(now);
        actions
    }

    /// Reports that a process could not be started.
    pub(crate) fn not_started(&mut self, index: usize, now: Instant) -> Vec<Action> {
        self.processes[index].state = State::Ended(Ending::Unknown);
        let actions = match self.phase {
            Phase::Running => self.stop(Outcome::NotStarted(index), Signal::SIGTERM, now),
            _ => vec![],
        };
        self.settle(now);
        actions
    }

    /// Handles a new report of a process. Reports of a process that has ended or is being killed are ignored.
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

    /// Handles a request to end the job. The second request kills the processes.
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

    /// Handles the passing of time.
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

    /// How the job ended; `None` while it runs.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        (self.phase == Phase::Ended).then_some(self.outcome)
    }

    /// Whether the workers have succeeded and the servers have not yet been asked to end.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving(_))
    }

    /// Why the job is being ended early, if it is.
    pub(crate) fn stopping(&self) -> Option<Outcome> {
        (self.outcome != Outcome::Done).then_some(self.outcome)
    }

    pub(crate) fn state(&self, index: usize) -> State {
        self.processes[index].state
    }

    /// Restarts charged to the budget.
    pub(crate) fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Ranks of the workers that have exited with 0 and will not restart, ascending.
    pub(crate) fn departed(&self) -> Vec<usize> {
        let has_departed = |process: &&SupervisedProcess| {
            process.role == Role::Worker && matches!(process.state, State::Ended(ending) if ending.is_success())
        };
        let mut ranks: Vec<usize> = self.processes.iter().filter(has_departed).map(|process| process.rank).collect();
        ranks.sort_unstable();
        ranks
    }

    /// The number of processes of a role that run or will restart.
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

    /// Whether the budget allows one more restart after this many.
    fn may_restart(&self, charged: u64) -> bool {
        self.policy.max_restarts.is_none_or(|most| charged < most)
    }

    /// Restarts a worker alone, charging one restart.
    fn worker_failed(&mut self, index: usize, cause: Cause, now: Instant) -> Vec<Action> {
        if !self.may_restart(self.restarts) {
            return self.stop(Outcome::Failed(index, cause), Signal::SIGTERM, now);
        }
        self.restarts += 1;
        self.pause(index, now);
        self.processes[index].is_charged = true;
        vec![Action::Notify(Notice::WorkerRestart(index, cause))]
    }

    /// The process to name when a worker fails after a server has exited with 0: the server, unless one of the two had reported
    /// that the worker had departed.
    fn blame(&self, worker: usize, cause: Cause, server: usize) -> (usize, Cause) {
        let has_departed = self.processes[server].is_done || self.processes[worker].is_done;
        if has_departed { (worker, cause) } else { (server, Cause::EndedEarly) }
    }

    /// Kills and restarts all processes, charging one restart however many die. Process `index` is the cause: a server that
    /// failed, a worker that failed after servers had ended, or a rank of a collective job.
    fn return_all(&mut self, index: usize, cause: Cause, now: Instant) -> Vec<Action> {
        // Workers that are still paused failed moments ago, most likely because of the server: it is the same event.
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

    /// Whether a worker that ended like this restarts free of charge.
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

    /// Handles the silence of a process of this machine.
    fn local_silence(&mut self, index: usize, time: Duration, now: Instant) -> Vec<Action> {
        let process = &mut self.processes[index];
        // A silence that began before the process started belongs to its previous attempt.
        let is_own = now.saturating_duration_since(process.since) >= time;
        if process.state != State::Running || process.frozen.is_some() || !is_own || time < LOCAL_SILENCE {
            return vec![];
        }
        process.frozen = Some(time);
        process.killed_until = Some(now + KILLED);
        vec![Action::Signal(index, Signal::SIGKILL)]
    }

    /// Handles the silence of a process of another machine.
    fn remote_silence(&mut self, role: Role, rank: usize, time: Duration, now: Instant) -> Vec<Action> {
        if time < REMOTE_SILENCE {
            return vec![];
        }
        if self.policy.max_restarts == Some(0) || time >= REMOTE_SILENCE_LIMIT {
            return self.stop(Outcome::RemoteSilent { role, rank, silent: time }, Signal::SIGTERM, now);
        }
        // A process that has not been reported for a while was heard from again: its next silence is a new one.
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

    /// Moves to the phase that the states of the processes require.
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

/// The pause after this many attempts.
fn pause(attempts: u64) -> Duration {
    let doubled = FIRST_PAUSE * 2u32.pow(attempts.saturating_sub(1).min(10) as u32);
    doubled.min(LONGEST_PAUSE)
}
