//! Carries out a plan: starts its processes, reports what happens to [`Control`] and performs the actions it returns.
//!
//! The calling thread starts, signals and waits for all processes. The parent-death signal requires that, and it ensures that a
//! process id is not reused between a check and a signal. Other threads read output and wait for signals, and wake this one.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use signal_hook::iterator::Signals;

use super::control::{Control, Verdict};
use super::error::Error;
use super::guard::Guard;
use super::logs::{self, LastLines};
use super::plan::{LaunchPlan, forget_progress, make_directories};
use super::process::{Ending, LEFT_BEHIND, Process};
use super::screen::{ProcessName, Row, Screen};
use super::supervise::{Action, Notice, Outcome, State};
use crate::error::Result;
use crate::progress::Progress;

/// How often the status is drawn. Children are checked as often, in case a SIGCHLD was lost.
const EVERY: Duration = Duration::from_millis(250);
/// How often the reports of processes are read.
const READ_REPORTS: Duration = Duration::from_secs(1);

/// What wakes the loop.
enum Event {
    Signal(Signal),
    /// All output of the process of this index has been read.
    Silent(usize),
}

/// Runs the job to its end. The caller prints the failure, and the last lines of a failed process, last.
pub(crate) fn run(mut plan: LaunchPlan) -> Result<Ended> {
    make_directories(&plan)?;
    let (events, woken) = channel();
    let listener = Listener::start(events.clone())?;
    let screen = Arc::new(Screen::new());
    plan.notes.iter().for_each(|note| screen.remark(note));
    screen.remark(&plan.headline());
    let guard = Guard::start();
    if let Err(error) = &guard {
        screen.remark(&format!(
            "warning: cannot start the guard, so processes may outlive fleetrun if it is killed (`/bin/sh`: {error})"
        ));
    }
    let mut running = Running {
        slots: plan.processes.iter().map(|_| ProcessSlot::default()).collect(),
        control: Control::new(
            plan.processes.iter().map(|process| ProcessName { role: process.role, rank: process.rank }),
            plan.counts(),
            plan.policy,
            Instant::now(),
        ),
        guard: guard.ok(),
        screen,
        events,
        started: Instant::now(),
        start_error: None,
    };
    running.write_job_file(&plan);
    for index in 0..plan.processes.len() {
        // Release the port at the last moment.
        drop(plan.processes[index].reserved.take());
        let actions = running.start(&plan, index, 1)?;
        running.perform(&plan, actions)?;
        if running.control.supervisor.stopping().is_some() {
            (index + 1..plan.processes.len()).for_each(|index| running.skip(index));
            break;
        }
    }
    let outcome = running.supervise(&plan, &woken)?;
    running.finish(&woken);
    drop(listener);
    running.judge(&plan, outcome)
}

/// A job that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The exit code of `fleetrun`.
    pub exit_code: u8,
    pub failure: Option<Failure>,
}

/// What failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub error: Error,
    /// The log of the process that failed, and its last lines.
    pub last_words: Option<(PathBuf, Vec<String>)>,
}

/// One process of the plan, over all its attempts.
#[derive(Debug, Default)]
struct ProcessSlot {
    process: Option<Process>,
    reader: Option<JoinHandle<()>>,
    last: LastLines,
    /// The process has ended. The rest of its group is killed at this time, or when its output has been read.
    leftover: Option<Instant>,
}

struct Running {
    slots: Vec<ProcessSlot>,
    control: Control,
    guard: Option<Guard>,
    screen: Arc<Screen>,
    events: Sender<Event>,
    started: Instant,
    /// Why a process could not be started.
    start_error: Option<Error>,
}

impl Running {
    /// Runs until all processes have ended.
    fn supervise(&mut self, plan: &LaunchPlan, woken: &Receiver<Event>) -> Result<Outcome> {
        let (mut shown, mut read) = (Instant::now(), Instant::now());
        self.show(plan);
        loop {
            let now = Instant::now();
            self.look(plan, now)?;
            if read.elapsed() >= READ_REPORTS {
                read = now;
                self.read_reports(plan)?;
            }
            let actions = self.control.supervisor.tick(now);
            self.perform(plan, actions)?;
            self.tidy(Instant::now());
            for line in self.control.announce() {
                self.screen.remark(&line);
            }
            if let Some(outcome) = self.control.supervisor.outcome() {
                return Ok(outcome);
            }
            if shown.elapsed() >= EVERY {
                self.show(plan);
                shown = Instant::now();
            }
            let due =
                self.control.supervisor.next_tick().map_or(EVERY, |at| at.saturating_duration_since(Instant::now()));
            match woken.recv_timeout(due.min(EVERY)) {
                Ok(Event::Signal(Signal::SIGCHLD)) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Event::Signal(signal)) => {
                    let actions = self.control.supervisor.interrupted(signal, Instant::now());
                    self.perform(plan, actions)?;
                }
                Ok(Event::Silent(index)) => self.silent(index),
                // This thread holds a sender itself.
                Err(RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    /// Finds processes that have ended.
    fn look(&mut self, plan: &LaunchPlan, now: Instant) -> Result<()> {
        let mut ended = Vec::new();
        // Workers before servers: a worker that failed because of a server is then always seen together with it.
        for (index, slot) in self.slots.iter_mut().enumerate().rev().filter(|(_, slot)| slot.leftover.is_none()) {
            if let Some(ending) = slot.process.as_mut().and_then(Process::try_wait) {
                slot.leftover = Some(now + LEFT_BEHIND);
                ended.push((index, ending));
            }
        }
        self.control.sort(&mut ended);
        for (index, ending) in ended {
            let actions = self.control.ended(index, ending, report(plan, index), now);
            self.perform(plan, actions)?;
        }
        Ok(())
    }

    /// Passes on the reports of running processes.
    fn read_reports(&mut self, plan: &LaunchPlan) -> Result<()> {
        for index in 0..self.slots.len() {
            if self.control.supervisor.state(index) == State::Running {
                let actions = self.control.reported(index, report(plan, index), Instant::now());
                self.perform(plan, actions)?;
            }
        }
        Ok(())
    }

    /// Tells the processes what has changed, before they can notice it otherwise.
    fn write_job_file(&mut self, plan: &LaunchPlan) {
        let Some(file) = self.control.changed_job_file() else { return };
        if let Err(error) = file.write(&plan.job_file) {
            self.screen.remark(&format!("warning: cannot write the job file: {error}"));
        }
    }

    fn perform(&mut self, plan: &LaunchPlan, actions: Vec<Action>) -> Result<()> {
        self.write_job_file(plan);
        for action in actions {
            match action {
                Action::Signal(index, signal) => {
                    if let Some(process) = &self.slots[index].process {
                        process.signal(signal);
                    }
                }
                // An earlier process could not be started.
                Action::Start(index, _) if self.control.supervisor.stopping().is_some() => self.skip(index),
                Action::Start(index, attempt) => {
                    let more = self.start(plan, index, attempt)?;
                    self.perform(plan, more)?;
                }
                Action::Notify(notice) => self.say(plan, notice),
            }
        }
        Ok(())
    }

    fn say(&mut self, plan: &LaunchPlan, notice: Notice) {
        if let Notice::Return(..) = notice {
            // Read the newest checkpoint and the steps of the servers.
            for index in 0..self.slots.len() {
                self.control.note(index, report(plan, index));
            }
        }
        self.screen.remark(&self.control.line(notice));
    }

    /// Starts a process. A failure to start it ends the job.
    fn start(&mut self, plan: &LaunchPlan, index: usize, attempt: u64) -> Result<Vec<Action>> {
        self.vacate(index);
        let planned = &plan.processes[index];
        forget_progress(&planned.progress);
        let log = logs::open(&planned.log, attempt == 1 && !plan.keeps_logs)?;
        let extra = plan.extra(attempt, self.control.starting(index, attempt));
        let line = self.guard.as_mut().map(Guard::line).transpose();
        let role = planned.variables.iter().map(|(name, value)| (*name, OsStr::new(value)));
        let variables = role.chain(extra.iter().map(|(name, value)| (*name, value.as_os_str())));
        let start = |line| Process::start(&plan.program.words, variables, line);
        let (process, output) = match line.and_then(|line| start(line.flatten())) {
            Ok(started) => started,
            Err(source) => {
                let program = plan.program.words.first().map(|word| word.to_string_lossy().into_owned());
                let (role, rank) = (planned.role, planned.rank);
                self.start_error = Some(Error::Start { role, rank, program: program.unwrap_or_default(), source });
                return Ok(self.control.supervisor.not_started(index, Instant::now()));
            }
        };
        let slot = &mut self.slots[index];
        self.control.started(index, process.pid());
        slot.process = Some(process);
        let process_name = ProcessName { role: planned.role, rank: planned.rank };
        let (screen, last, events) = (self.screen.clone(), slot.last.clone(), self.events.clone());
        slot.reader = Some(std::thread::spawn(move || {
            logs::copy(output, log, &screen, process_name, &last);
            // The loop may have ended.
            let _ = events.send(Event::Silent(index));
        }));
        Ok(vec![])
    }

    /// Does not start a process, because the job ends.
    fn skip(&mut self, index: usize) {
        self.control.supervisor.ended(index, Ending::Unknown, Instant::now());
    }

    /// Kills the rest of a group when its time is over.
    fn tidy(&mut self, now: Instant) {
        for index in 0..self.slots.len() {
            if self.slots[index].leftover.is_some_and(|until| now >= until) {
                self.vacate(index);
            }
        }
    }

    /// Handles the end of a process's output: if the process has ended, the rest of its group has ended too or is hidden.
    fn silent(&mut self, index: usize) {
        let slot = &self.slots[index];
        if slot.leftover.is_some() && slot.reader.as_ref().is_none_or(JoinHandle::is_finished) {
            self.vacate(index);
        }
    }

    /// Kills the rest of a process's group.
    fn vacate(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if let Some(process) = slot.process.take() {
            process.signal(Signal::SIGKILL);
            if let Some(guard) = &mut self.guard {
                guard.forget(process.pid());
            }
        }
        slot.leftover = None;
    }

    /// Kills the rest of all groups and reads their output.
    fn finish(&mut self, woken: &Receiver<Event>) {
        let grace = Instant::now() + LEFT_BEHIND;
        let is_read = |slot: &ProcessSlot| slot.reader.as_ref().is_none_or(JoinHandle::is_finished);
        // The helpers of processes that succeeded may clean up first; then their output is read.
        for limit in [grace, grace + LEFT_BEHIND] {
            while !self.slots.iter().all(is_read) && Instant::now() < limit {
                let _ = woken.recv_timeout(Duration::from_millis(20));
            }
            for index in 0..self.slots.len() {
                self.vacate(index);
            }
        }
        for slot in self.slots.iter_mut().filter(|slot| is_read(slot)) {
            // A reader that has not finished reads from a process that has left the group and still holds the pipe.
            let _ = slot.reader.take().map(JoinHandle::join);
        }
        if let Some(guard) = self.guard.take() {
            guard.dismiss();
        }
        self.screen.clear();
    }

    fn show(&self, plan: &LaunchPlan) {
        if !self.screen.has_status() {
            return;
        }
        let row = |index: usize| {
            let planned = &plan.processes[index];
            let is_running = self.control.supervisor.state(index) == State::Running;
            let progress = if is_running { Progress::read(&planned.progress) } else { Progress::default() };
            let state = match self.control.supervisor.state(index) {
                State::Running => progress.state.unwrap_or_else(|| "running".into()),
                State::Paused(_) => "restarting".into(),
                State::Ended(ending) if ending.is_success() => "done".into(),
                State::Ended(ending) => ending.to_string(),
            };
            let process_name = ProcessName { role: planned.role, rank: planned.rank };
            Row { process_name, pid: self.control.pid(index), state, samples_per_second: progress.samples_per_second }
        };
        let rows: Vec<Row> = (0..self.slots.len()).map(row).collect();
        self.screen.show(&rows, self.started.elapsed());
    }

    /// Turns the outcome into an exit code and an error.
    fn judge(&mut self, plan: &LaunchPlan, outcome: Outcome) -> Result<Ended> {
        if let (Outcome::NotStarted(_), Some(error)) = (outcome, self.start_error.take()) {
            return Err(error.into());
        }
        let host = |role, rank| plan.host(role, rank).unwrap_or_default().to_owned();
        let Verdict { exit_code, error, process } = self.control.judge(outcome, host);
        let last_words = process.map(|index| (plan.processes[index].log.clone(), self.slots[index].last.get()));
        Ok(Ended { exit_code, failure: error.map(|error| Failure { error, last_words }) })
    }
}

/// The content of a process's progress file.
fn report(plan: &LaunchPlan, index: usize) -> String {
    std::fs::read_to_string(&plan.processes[index].progress).unwrap_or_default()
}

/// Turns signals into events until it is dropped.
struct Listener {
    handle: signal_hook::iterator::Handle,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    fn start(events: Sender<Event>) -> Result<Self> {
        // Signals that the caller ignores (`nohup`, a background job of a shell) stay ignored.
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

/// The signals that were ignored when this process started, if the system tells (Linux).
fn ignored() -> Vec<Signal> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    Signal::iterator().filter(|signal| mask & (1 << (*signal as u32 - 1)) != 0).collect()
}
