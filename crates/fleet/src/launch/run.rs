//! Carries a plan out: starts its processes, tells the [`Supervisor`] what happens to them, and does what it answers.
//!
//! All processes are started, signalled and waited for on the calling thread (the parent-death signal asks for it, and
//! a number can then not be used again between the look and the signal). Other threads read output and listen to signals,
//! and wake this one.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use openfleet_core::topology::Role;
use signal_hook::iterator::Signals;

use super::error::Error;
use super::guard::Guard;
use super::logs::{self, LastLines};
use super::plan::{Plan, forget_progress, make_directories};
use super::process::{Ending, Process};
use super::screen::{Row, Screen, Speaker};
use super::supervise::{Action, Outcome, State, Supervisor};
use crate::cli::output::{duration, plural};
use crate::error::Result;
use crate::progress::Progress;

/// How often the status is drawn, and children are looked at in case that a signal about them was lost.
const EVERY: Duration = Duration::from_millis(250);
/// How long whatever a process has left behind may go on before it is killed: Python's own helpers tidy up.
const LEFT_BEHIND: Duration = Duration::from_secs(1);

/// What wakes the loop.
enum Event {
    Signal(Signal),
    /// All that the process of this index had to say has been read.
    Silent(usize),
}

/// Runs the job to its end. The screen has been told what failed, and of a failed process the last lines, last.
pub(crate) fn run(mut plan: Plan) -> Result<Ended> {
    make_directories(&plan)?;
    let (events, woken) = channel();
    let listener = Listener::start(events.clone())?;
    let screen = Arc::new(Screen::new());
    screen.remark(&plan.headline());
    let guard = Guard::start();
    if let Err(error) = &guard {
        screen.remark(&format!("warning: no guard against the death of fleetrun itself (`/bin/sh`: {error})"));
    }
    let mut running = Running {
        seats: plan.processes.iter().map(|_| Seat::default()).collect(),
        supervisor: Supervisor::new(plan.processes.iter().map(|process| process.role), plan.policy, Instant::now()),
        guard: guard.ok(),
        screen,
        events,
        started: Instant::now(),
        start_error: None,
    };
    for index in 0..plan.processes.len() {
        // Released at the last moment.
        drop(plan.processes[index].reserved.take());
        let actions = running.start(&plan, index, 1)?;
        running.perform(&plan, actions)?;
        if running.supervisor.stopping().is_some() {
            running.skip_from(index + 1);
            break;
        }
    }
    let outcome = running.supervise(&plan, &woken)?;
    running.finish(&woken);
    drop(listener);
    running.judge(&plan, outcome)
}

/// A job that came to its end.
#[derive(Debug)]
pub(crate) struct Ended {
    /// What `fleetrun` exits with.
    pub exit_code: u8,
    pub failure: Option<Failure>,
}

/// What went wrong.
#[derive(Debug)]
pub(crate) struct Failure {
    pub error: Error,
    /// Of the process that it went wrong with: its log, and the last lines of it.
    pub last_words: Option<(PathBuf, Vec<String>)>,
}

/// A place at the job, in which one life of a process follows another.
#[derive(Debug, Default)]
struct Seat {
    process: Option<Process>,
    pid: u32,
    reader: Option<JoinHandle<()>>,
    last: LastLines,
    /// Its process has ended; whatever it left behind is killed when the time comes, or when nothing more is printed.
    leftover: Option<Instant>,
}

struct Running {
    seats: Vec<Seat>,
    supervisor: Supervisor,
    guard: Option<Guard>,
    screen: Arc<Screen>,
    events: Sender<Event>,
    started: Instant,
    /// Why a process could not be started.
    start_error: Option<Error>,
}

impl Running {
    /// Until all have ended.
    fn supervise(&mut self, plan: &Plan, woken: &Receiver<Event>) -> Result<Outcome> {
        let mut shown = Instant::now();
        let mut said = Said::default();
        self.show(plan);
        loop {
            let now = Instant::now();
            self.look(plan, now)?;
            let actions = self.supervisor.tick(now);
            self.perform(plan, actions)?;
            self.tidy(Instant::now());
            said.say(&self.supervisor, plan, &self.screen);
            if let Some(outcome) = self.supervisor.outcome() {
                return Ok(outcome);
            }
            if shown.elapsed() >= EVERY {
                self.show(plan);
                shown = Instant::now();
            }
            let due = self.supervisor.next_tick().map_or(EVERY, |at| at.saturating_duration_since(Instant::now()));
            match woken.recv_timeout(due.min(EVERY)) {
                Ok(Event::Signal(Signal::SIGCHLD)) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Event::Signal(signal)) => {
                    let actions = self.supervisor.interrupted(signal, Instant::now());
                    self.perform(plan, actions)?;
                }
                Ok(Event::Silent(index)) => self.silent(index),
                // We hold a sender ourselves.
                Err(RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    /// Notices who has ended, servers first: their end is more often the cause than the effect.
    fn look(&mut self, plan: &Plan, now: Instant) -> Result<()> {
        for index in 0..self.seats.len() {
            let seat = &mut self.seats[index];
            if seat.leftover.is_some() {
                continue;
            }
            let Some(ending) = seat.process.as_mut().and_then(Process::try_wait) else { continue };
            seat.leftover = Some(now + LEFT_BEHIND);
            let planned = &plan.processes[index];
            let is_done = planned.role == Role::Server && Progress::read(&planned.progress).is_done();
            let actions = self.supervisor.ended(index, ending, is_done, now);
            if let State::Paused(_) = self.supervisor.state(index) {
                let who = Speaker { role: planned.role, rank: planned.rank };
                let (pid, count) = (self.seats[index].pid, self.supervisor.restarts());
                let most = plan.policy.max_restarts.map(|most| format!(" of {most}")).unwrap_or_default();
                self.screen.remark(&format!("{who} (pid {pid}) {ending}; it is started again (restart {count}{most})"));
            }
            self.perform(plan, actions)?;
        }
        Ok(())
    }

    fn perform(&mut self, plan: &Plan, actions: Vec<Action>) -> Result<()> {
        for action in actions {
            match action {
                Action::Signal(index, signal) => {
                    if let Some(process) = &self.seats[index].process {
                        process.signal(signal);
                    }
                }
                Action::Start(index, life) => {
                    let more = self.start(plan, index, life)?;
                    self.perform(plan, more)?;
                }
            }
        }
        Ok(())
    }

    /// Starts a process; a failure to do so is an end of the job like others.
    fn start(&mut self, plan: &Plan, index: usize, life: u64) -> Result<Vec<Action>> {
        self.vacate(index);
        let planned = &plan.processes[index];
        forget_progress(&planned.progress);
        let log = logs::open(&planned.log, life == 1)?;
        let line = self.guard.as_mut().map(Guard::line).transpose();
        let start = |line| Process::start(&plan.program.words, &planned.variables, &plan.extra(life), line);
        let (process, output) = match line.and_then(|line| start(line.flatten())) {
            Ok(started) => started,
            Err(source) => {
                let program = plan.program.words.first().map(|word| word.to_string_lossy().into_owned());
                let (role, rank) = (planned.role, planned.rank);
                self.start_error = Some(Error::Start { role, rank, program: program.unwrap_or_default(), source });
                return Ok(self.supervisor.not_started(index, Instant::now()));
            }
        };
        let seat = &mut self.seats[index];
        seat.pid = process.pid();
        seat.process = Some(process);
        let speaker = Speaker { role: planned.role, rank: planned.rank };
        let (screen, last, events) = (self.screen.clone(), seat.last.clone(), self.events.clone());
        seat.reader = Some(std::thread::spawn(move || {
            logs::copy(output, log, &screen, speaker, &last);
            // The loop may be over already.
            let _ = events.send(Event::Silent(index));
        }));
        Ok(vec![])
    }

    /// Those that were never started have nothing to be waited for.
    fn skip_from(&mut self, first: usize) {
        for index in first..self.seats.len() {
            self.supervisor.ended(index, Ending::Unknown, false, Instant::now());
        }
    }

    /// Kills what a process has left behind, when it has had its time.
    fn tidy(&mut self, now: Instant) {
        for index in 0..self.seats.len() {
            if self.seats[index].leftover.is_some_and(|until| now >= until) {
                self.vacate(index);
            }
        }
    }

    /// Nothing more will be printed: if the process has ended, so has all that it left behind, or it hides.
    fn silent(&mut self, index: usize) {
        let seat = &self.seats[index];
        if seat.leftover.is_some() && seat.reader.as_ref().is_none_or(JoinHandle::is_finished) {
            self.vacate(index);
        }
    }

    /// Ends whatever is left of a process's group.
    fn vacate(&mut self, index: usize) {
        let seat = &mut self.seats[index];
        if let Some(process) = seat.process.take() {
            process.signal(Signal::SIGKILL);
            if let Some(guard) = &mut self.guard {
                guard.forget(process.pid());
            }
        }
        seat.leftover = None;
    }

    /// Kills what is left of all groups and reads what they have said.
    fn finish(&mut self, woken: &Receiver<Event>) {
        let grace = Instant::now() + LEFT_BEHIND;
        let is_read = |seat: &Seat| seat.reader.as_ref().is_none_or(JoinHandle::is_finished);
        // What was left behind by those that ended well may tidy up first; then what they have said is read.
        for limit in [grace, grace + LEFT_BEHIND] {
            while !self.seats.iter().all(is_read) && Instant::now() < limit {
                let _ = woken.recv_timeout(Duration::from_millis(20));
            }
            for index in 0..self.seats.len() {
                self.vacate(index);
            }
        }
        for seat in self.seats.iter_mut().filter(|seat| is_read(seat)) {
            // A reader that is not finished reads from somebody who has left the group and still holds the pipe.
            let _ = seat.reader.take().map(JoinHandle::join);
        }
        if let Some(guard) = self.guard.take() {
            guard.dismiss();
        }
        self.screen.clear();
    }

    fn show(&self, plan: &Plan) {
        if !self.screen.has_status() {
            return;
        }
        let row = |index: usize| {
            let planned = &plan.processes[index];
            let progress = Progress::read(&planned.progress);
            let state = match self.supervisor.state(index) {
                State::Running => progress.state.unwrap_or_else(|| "running".into()),
                State::Paused(_) => "starts again".into(),
                State::Ended(ending) if ending.is_success() => "done".into(),
                State::Ended(ending) => ending.to_string(),
            };
            let is_running = self.supervisor.state(index) == State::Running;
            let samples_per_second = progress.samples_per_second.filter(|_| is_running);
            let speaker = Speaker { role: planned.role, rank: planned.rank };
            Row { speaker, pid: self.seats[index].pid, state, samples_per_second }
        };
        let rows: Vec<Row> = (0..self.seats.len()).map(row).collect();
        self.screen.show(&rows, self.started.elapsed());
    }

    /// From the outcome to an exit code and words.
    fn judge(&mut self, plan: &Plan, outcome: Outcome) -> Result<Ended> {
        let failed = |index: usize, exit_code, error| {
            let last_words = Some((plan.processes[index].log.clone(), self.seats[index].last.get()));
            Ended { exit_code, failure: Some(Failure { error, last_words }) }
        };
        Ok(match outcome {
            Outcome::Done => Ended { exit_code: 0, failure: None },
            Outcome::Failed(index, ending) => {
                let (planned, pid) = (&plan.processes[index], self.seats[index].pid);
                let (role, rank) = (planned.role, planned.rank);
                failed(index, ending.exit_code(), Error::Failed { role, rank, pid, ending })
            }
            Outcome::ServerLeft(index) => {
                let (planned, pid) = (&plan.processes[index], self.seats[index].pid);
                failed(index, 1, Error::ServerLeft { rank: planned.rank, pid })
            }
            Outcome::NotStarted(_) => match self.start_error.take() {
                Some(error) => return Err(error.into()),
                None => Ended { exit_code: 1, failure: None },
            },
            Outcome::Interrupted(signal) => {
                Ended { exit_code: Ending::Signal(signal as i32).exit_code(), failure: None }
            }
            Outcome::TimedOut => {
                let limit = duration(plan.policy.timeout.unwrap_or_default());
                Ended {
                    exit_code: TIMED_OUT,
                    failure: Some(Failure { error: Error::TimedOut { limit }, last_words: None }),
                }
            }
        })
    }
}

/// What `timeout` of the shell exits with.
const TIMED_OUT: u8 = 124;

/// Words that are said once.
#[derive(Debug, Default)]
struct Said {
    leaving: bool,
    stopping: bool,
}

impl Said {
    fn say(&mut self, supervisor: &Supervisor, plan: &Plan, screen: &Screen) {
        if supervisor.is_leaving() && !self.leaving {
            self.leaving = true;
            let servers = plural(supervisor.unfinished(Role::Server), "server");
            screen.remark(&format!("the workers are done; {servers} to end"));
        }
        let is_left_to_others = !plan.policy.has_all_workers
            && plan.processes.iter().any(|process| process.role == Role::Worker)
            && supervisor.unfinished(Role::Worker) == 0
            && supervisor.stopping().is_none();
        if is_left_to_others && supervisor.unfinished(Role::Server) > 0 && !self.leaving {
            self.leaving = true;
            let servers = plural(supervisor.unfinished(Role::Server), "server");
            screen.remark(&format!("the workers of this machine are done; {servers} here until those of others are"));
        }
        let Some(outcome) = supervisor.stopping().filter(|_| !self.stopping) else { return };
        self.stopping = true;
        let speaker = |index: usize| {
            let planned = &plan.processes[index];
            Speaker { role: planned.role, rank: planned.rank }
        };
        let why = match outcome {
            Outcome::Done => return,
            Outcome::Failed(index, ending) => format!("{} {ending}", speaker(index)),
            Outcome::NotStarted(index) => format!("{} could not be started", speaker(index)),
            Outcome::ServerLeft(index) => format!("{} ended before the workers", speaker(index)),
            Outcome::Interrupted(signal) => format!("{signal} was received (once more ends it at once)"),
            Outcome::TimedOut => "the time is over".to_owned(),
        };
        screen.remark(&format!("{why}; the job ends"));
    }
}

/// Turns signals into events until it is dropped.
struct Listener {
    handle: signal_hook::iterator::Handle,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    fn start(events: Sender<Event>) -> Result<Self> {
        // What whoever started us wants ignored (`nohup`, a shell's background job) stays ignored.
        let ignored = ignored();
        let ends = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
        let wanted = ends.into_iter().filter(|signal| !ignored.contains(signal)).chain([Signal::SIGCHLD]);
        let mut signals =
            Signals::new(wanted.map(|signal| signal as i32)).map_err(|source| Error::Signals { source })?;
        let handle = signals.handle();
        let thread = std::thread::spawn(move || {
            for signal in signals.forever().filter_map(|number| Signal::try_from(number).ok()) {
                if events.send(Event::Signal(signal)).is_err() {
                    break;
                }
            }
        });
        Ok(Listener { handle, thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.handle.close();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The signals that were ignored when we were started, where the system tells (Linux).
fn ignored() -> Vec<Signal> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    Signal::iterator().filter(|signal| mask & (1 << (*signal as u32 - 1)) != 0).collect()
}
