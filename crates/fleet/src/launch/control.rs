//! What a launcher decides while a job runs, wherever its processes are: the rules of the [`Supervisor`], the checkpoint that
//! restarted processes load, the content of the job file, and the words for the user.
//!
//! [`super::run`] uses it for processes of this machine, [`super::external`] for processes that another program starts. It starts
//! nothing, reads no file and has no clock: callers report events with their time and perform the returned actions.

use std::time::Instant;

use openfleet_core::topology::Role;

use super::announcements::{self, Announcements};
use super::error::Error;
use super::plan::Policy;
use super::position::Position;
use super::process::Ending;
use super::screen::ProcessName;
use super::supervise::{Action, Cause, Notice, Outcome, Supervisor};
use crate::cli::output::duration;
use crate::job_file::JobFile;
use crate::progress::Progress;

/// The exit code of the shell's `timeout`.
const TIMED_OUT: u8 = 124;

/// The decisions about a running job.
#[derive(Debug)]
pub(crate) struct Control {
    pub supervisor: Supervisor,
    processes: Vec<ControlledProcess>,
    policy: Policy,
    /// The number of servers of the whole job.
    servers: usize,
    /// The number of workers of the whole job.
    workers: usize,
    position: Position,
    /// The content of the job file; `None` before it is first written.
    job_file: Option<JobFile>,
    announcements: Announcements,
}

#[derive(Debug)]
struct ControlledProcess {
    name: ProcessName,
    pid: u32,
    /// Its last report, as text.
    report: String,
}

/// How a job ended, for the user.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// The exit code of the launcher.
    pub exit_code: u8,
    /// `None` if the job succeeded, was interrupted, or could not start a process: the caller knows why it could not.
    pub error: Option<Error>,
    /// The process whose last lines explain the error.
    pub process: Option<usize>,
}

impl Control {
    /// Starts to control processes that are being started. The whole job has this many servers and workers.
    pub(crate) fn new(
        names: impl IntoIterator<Item = ProcessName>,
        (servers, workers): (usize, usize),
        policy: Policy,
        now: Instant,
    ) -> Self {
        let controlled = |name| ControlledProcess { name, pid: 0, report: String::new() };
        let processes: Vec<ControlledProcess> = names.into_iter().map(controlled).collect();
        let supervised = processes.iter().map(|process| (process.name.role, process.name.rank));
        Control {
            supervisor: Supervisor::new(supervised, policy, now),
            processes,
            policy,
            servers,
            workers,
            position: Position::default(),
            job_file: None,
            announcements: Announcements::default(),
        }
    }

    /// Prepares an attempt of a process. Returns the checkpoint that it loads: only restarted servers and restarted ranks of a
    /// collective job load one.
    pub(crate) fn starting(&mut self, index: usize, attempt: u64) -> Option<&str> {
        let process = &mut self.processes[index];
        process.report.clear();
        let returns = attempt > 1 && (process.name.role == Role::Server || self.policy.restarts_together);
        if returns {
            self.position.return_to_checkpoint();
        }
        self.position.resume().filter(|_| returns)
    }

    /// Takes in the process id of the current attempt.
    pub(crate) fn started(&mut self, index: usize, pid: u32) {
        self.processes[index].pid = pid;
    }

    pub(crate) fn pid(&self, index: usize) -> u32 {
        self.processes[index].pid
    }

    pub(crate) fn name(&self, index: usize) -> ProcessName {
        self.processes[index].name
    }

    /// Sorts processes that were found to have ended at the same moment. A success cannot be undone by a failure, and the failure
    /// of a server is more often the cause of a worker's failure than its effect.
    pub(crate) fn sort(&self, ended: &mut [(usize, Ending)]) {
        ended.sort_by_key(|&(index, ending)| match self.processes[index].name.role {
            Role::Worker if ending.is_success() => (0, index),
            Role::Server => (1, index),
            Role::Worker => (2, index),
        });
    }

    /// Handles the end of a process, with the content of its progress file.
    pub(crate) fn ended(&mut self, index: usize, ending: Ending, report: String, now: Instant) -> Vec<Action> {
        if let Some(mut progress) = self.note(index, report) {
            // Ignore what an ended process says about its peers.
            progress.silent.clear();
            self.supervisor.reported(index, &progress, now);
        }
        self.supervisor.ended(index, ending, now)
    }

    /// Handles the content of a process's progress file.
    pub(crate) fn reported(&mut self, index: usize, report: String, now: Instant) -> Vec<Action> {
        match self.note(index, report) {
            Some(progress) => self.supervisor.reported(index, &progress, now),
            None => vec![],
        }
    }

    /// Parses a report if it has changed, and notes the checkpoint. An unchanged report says nothing: its writer may be frozen.
    pub(crate) fn note(&mut self, index: usize, report: String) -> Option<Progress> {
        let process = &mut self.processes[index];
        if report == process.report {
            return None;
        }
        let mut progress = Progress::parse(&report);
        process.report = report;
        progress.silent.retain(|silent| match silent.role {
            Role::Server => silent.rank < self.servers,
            Role::Worker => silent.rank < self.workers,
        });
        if process.name.role == Role::Server || self.policy.restarts_together {
            self.position.note(&progress);
        }
        Some(progress)
    }

    /// The new content of the job file, if it has changed. Processes must be able to read it before they are signalled.
    pub(crate) fn changed_job_file(&mut self) -> Option<JobFile> {
        let file = JobFile { ending: self.supervisor.stopping().is_some(), departed: self.supervisor.departed() };
        if self.job_file.as_ref() == Some(&file) {
            return None;
        }
        self.job_file = Some(file.clone());
        Some(file)
    }

    /// The line for a notice.
    pub(crate) fn line(&self, notice: Notice) -> String {
        let name = |index: usize| format!("{} (pid {})", self.name(index), self.pid(index));
        let (count, restarts) = (self.processes.len(), self.supervisor.restarts());
        announcements::notice(notice, name, count, restarts, self.policy, &self.position)
    }

    /// The lines about what has become true since the last call.
    pub(crate) fn announce(&mut self) -> Vec<String> {
        let names: Vec<ProcessName> = self.processes.iter().map(|process| process.name).collect();
        self.announcements.update(&self.supervisor, &names, self.policy)
    }

    /// Turns the outcome into an exit code and an error. `host` gives the host of a process of another machine.
    pub(crate) fn judge(&self, outcome: Outcome, host: impl Fn(Role, usize) -> String) -> Verdict {
        let killed = Ending::Signal(Ending::KILL).exit_code();
        match outcome {
            Outcome::Done => Verdict { exit_code: 0, error: None, process: None },
            Outcome::Failed(index, cause) => {
                let (ProcessName { role, rank }, pid) = (self.name(index), self.pid(index));
                let (exit_code, error) = match cause {
                    Cause::Ended(ending) => (ending.exit_code(), Error::Failed { role, rank, pid, ending }),
                    Cause::Silent(time) => (killed, Error::Silent { role, rank, pid, seconds: time.as_secs() }),
                    Cause::EndedEarly => (1, Error::ServerEndedEarly { rank, pid }),
                    Cause::NotKilled => (killed, Error::NotKilled { role, rank, pid }),
                };
                Verdict { exit_code, error: Some(error), process: Some(index) }
            }
            Outcome::RemoteSilent { role, rank, silent } => {
                let error = Error::RemoteSilent { role, rank, host: host(role, rank), seconds: silent.as_secs() };
                Verdict { exit_code: 1, error: Some(error), process: None }
            }
            Outcome::NotStarted(index) => Verdict { exit_code: 1, error: None, process: Some(index) },
            Outcome::Interrupted(signal) => {
                Verdict { exit_code: Ending::Signal(signal as i32).exit_code(), error: None, process: None }
            }
            Outcome::TimedOut => {
                let limit = duration(self.policy.timeout.unwrap_or_default());
                Verdict { exit_code: TIMED_OUT, error: Some(Error::TimedOut { limit }), process: None }
            }
        }
    }
}
