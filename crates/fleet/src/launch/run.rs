//! Carries out a plan: starts its processes, reports what happens to the [`Supervisor`] and performs the actions it returns.
//!
//! The calling thread starts, signals and waits for all processes. The parent-death signal requires that, and it ensures that a
//! process id is not reused between a check and a signal. Other threads read output and wait for signals, and wake this one.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use openfleet_core::topology::Role;
use signal_hook::iterator::Signals;

use super::announcements::{self, Announcements};
use super::error::Error;
use super::guard::Guard;
use super::logs::{self, LastLines};
use super::plan::{LaunchPlan, forget_progress, make_directories};
use super::position::Position;
use super::process::{Ending, Process};
use super::screen::{ProcessName, Row, Screen};
use super::supervise::{Action, Cause, Notice, Outcome, State, Supervisor};
use crate::cli::output::duration;
use crate::error::Result;
use crate::job_file::JobFile;
use crate::progress::Progress;

/// How often the status is drawn. Children are checked as often, in case a SIGCHLD was lost.
const EVERY: Duration = Duration::from_millis(250);
/// How often the reports of processes are read.
const READ_REPORTS: Duration = Duration::from_secs(1);
/// How long the remaining processes of a group may run after its leader has ended: Python's own helpers clean up.
const LEFT_BEHIND: Duration = Duration::from_secs(1);

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
    screen.remark(&plan.headline());
    let guard = Guard::start();
    if let Err(error) = &guard {
        screen.remark(&format!(
            "warning: cannot start the guard, so processes may outlive fleetrun if it is killed (`/bin/sh`: {error})"
        ));
    }
    let mut running = Running {
        slots: plan.processes.iter().map(|_| ProcessSlot::default()).collect(),
        supervisor: Supervisor::new(
            plan.processes.iter().map(|process| (process.role, process.rank)),
            plan.policy,
            Instant::now(),
        ),
        position: Position::default(),
        job_file: None,
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
        if running.supervisor.stopping().is_some() {
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
    pid: u32,
    reader: Option<JoinHandle<()>>,
    last: LastLines,
    /// The content of its progress file when it was last read.
    report: String,
    /// The process has ended. The rest of its group is killed at this time, or when its output has been read.
    leftover: Option<Instant>,
}

struct Running {
    slots: Vec<ProcessSlot>,
    supervisor: Supervisor,
    position: Position,
    /// The content of the job file; `None` before it is first written.
    job_file: Option<JobFile>,
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
        let mut remarks = Announcements::default();
        self.show(plan);
        loop {
            let now = Instant::now();
            self.look(plan, now)?;
            if read.elapsed() >= READ_REPORTS {
                read = now;
                self.read_reports(plan)?;
            }
            let actions = self.supervisor.tick(now);
            self.perform(plan, actions)?;
            self.tidy(Instant::now());
            remarks.update(&self.supervisor, plan, &self.screen);
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
        // A success cannot be undone by a failure at the same moment, and the failure of a server is more often the cause of a
        // worker's failure than its effect.
        ended.sort_by_key(|&(index, ending)| match plan.processes[index].role {
            Role::Worker if ending.is_success() => (0, index),
            Role::Server => (1, index),
            Role::Worker => (2, index),
        });
        for (index, ending) in ended {
            if let Some(mut progress) = self.new_report(plan, index) {
                // Ignore what an ended process says about its peers.
                progress.silent.clear();
                self.supervisor.reported(index, &progress, now);
            }
            let actions = self.supervisor.ended(index, ending, now);
            self.perform(plan, actions)?;
        }
        Ok(())
    }

    /// Passes the reports of running processes to the supervisor.
    fn read_reports(&mut self, plan: &LaunchPlan) -> Result<()> {
        for index in 0..self.slots.len() {
            if self.supervisor.state(index) == State::Running
                && let Some(progress) = self.new_report(plan, index)
            {
                let actions = self.supervisor.reported(index, &progress, Instant::now());
                self.perform(plan, actions)?;
            }
        }
        Ok(())
    }

    /// The report of a process, if it has changed. An unchanged report says nothing: its writer may be frozen.
    fn new_report(&mut self, plan: &LaunchPlan, index: usize) -> Option<Progress> {
        let planned = &plan.processes[index];
        let report = std::fs::read_to_string(&planned.progress).unwrap_or_default();
        if report == self.slots[index].report {
            return None;
        }
        let mut progress = Progress::parse(&report);
        progress.silent.retain(|silent| plan.host(silent.role, silent.rank).is_some());
        self.slots[index].report = report;
        if planned.role == Role::Server {
            self.position.note(&progress);
        }
        Some(progress)
    }

    /// Tells the processes what has changed, before they can notice it otherwise.
    fn write_job_file(&mut self, plan: &LaunchPlan) {
        let file = JobFile { ending: self.supervisor.stopping().is_some(), departed: self.supervisor.departed() };
        if self.job_file.as_ref() == Some(&file) {
            return;
        }
        if let Err(error) = file.write(&plan.job_file) {
            self.screen.remark(&format!("warning: cannot write the job file: {error}"));
        }
        self.job_file = Some(file);
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
                Action::Start(index, _) if self.supervisor.stopping().is_some() => self.skip(index),
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
                self.new_report(plan, index);
            }
        }
        let name = |index: usize| {
            let planned = &plan.processes[index];
            format!("{} {} (pid {})", planned.role, planned.rank, self.slots[index].pid)
        };
        let (count, restarts) = (self.slots.len(), self.supervisor.restarts());
        let line = announcements::notice(notice, name, count, restarts, plan.policy, &self.position);
        self.screen.remark(&line);
    }

    /// Starts a process. A failure to start it ends the job.
    fn start(&mut self, plan: &LaunchPlan, index: usize, attempt: u64) -> Result<Vec<Action>> {
        self.vacate(index);
        let planned = &plan.processes[index];
        forget_progress(&planned.progress);
        self.slots[index].report.clear();
        let log = logs::open(&planned.log, attempt == 1)?;
        let is_restarted_server = planned.role == Role::Server && attempt > 1;
        if is_restarted_server {
            self.position.return_to_checkpoint();
        }
        let extra = plan.extra(attempt, self.position.resume().filter(|_| is_restarted_server));
        let line = self.guard.as_mut().map(Guard::line).transpose();
        let start = |line| Process::start(&plan.program.words, &planned.variables, &extra, line);
        let (process, output) = match line.and_then(|line| start(line.flatten())) {
            Ok(started) => started,
            Err(source) => {
                let program = plan.program.words.first().map(|word| word.to_string_lossy().into_owned());
                let (role, rank) = (planned.role, planned.rank);
                self.start_error = Some(Error::Start { role, rank, program: program.unwrap_or_default(), source });
                return Ok(self.supervisor.not_started(index, Instant::now()));
            }
        };
        let slot = &mut self.slots[index];
        slot.pid = process.pid();
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
        self.supervisor.ended(index, Ending::Unknown, Instant::now());
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
            let is_running = self.supervisor.state(index) == State::Running;
            let progress = if is_running { Progress::read(&planned.progress) } else { Progress::default() };
            let state = match self.supervisor.state(index) {
                State::Running => progress.state.unwrap_or_else(|| "running".into()),
                State::Paused(_) => "restarting".into(),
                State::Ended(ending) if ending.is_success() => "done".into(),
                State::Ended(ending) => ending.to_string(),
            };
            let process_name = ProcessName { role: planned.role, rank: planned.rank };
            Row { process_name, pid: self.slots[index].pid, state, samples_per_second: progress.samples_per_second }
        };
        let rows: Vec<Row> = (0..self.slots.len()).map(row).collect();
        self.screen.show(&rows, self.started.elapsed());
    }

    /// Turns the outcome into an exit code and an error.
    fn judge(&mut self, plan: &LaunchPlan, outcome: Outcome) -> Result<Ended> {
        let failed = |index: usize, exit_code, error| {
            let last_words = Some((plan.processes[index].log.clone(), self.slots[index].last.get()));
            Ended { exit_code, failure: Some(Failure { error, last_words }) }
        };
        Ok(match outcome {
            Outcome::Done => Ended { exit_code: 0, failure: None },
            Outcome::Failed(index, cause) => {
                let (planned, pid) = (&plan.processes[index], self.slots[index].pid);
                let (role, rank) = (planned.role, planned.rank);
                let killed = Ending::Signal(Ending::KILL).exit_code();
                match cause {
                    Cause::Ended(ending) => {
                        failed(index, ending.exit_code(), Error::Failed { role, rank, pid, ending })
                    }
                    Cause::Silent(time) => {
                        failed(index, killed, Error::Silent { role, rank, pid, seconds: time.as_secs() })
                    }
                    Cause::EndedEarly => failed(index, 1, Error::ServerEndedEarly { rank, pid }),
                    Cause::NotKilled => failed(index, killed, Error::NotKilled { role, rank, pid }),
                }
            }
            Outcome::RemoteSilent { role, rank, silent } => {
                let host = plan.host(role, rank).unwrap_or_default().to_owned();
                let error = Error::RemoteSilent { role, rank, host, seconds: silent.as_secs() };
                Ended { exit_code: 1, failure: Some(Failure { error, last_words: None }) }
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

/// The exit code of the shell's `timeout`.
const TIMED_OUT: u8 = 124;

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
