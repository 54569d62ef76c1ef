//! What the launcher prints while a job runs: which process is restarted, why, from where it resumes, and why the job ends.

use openfleet_core::topology::Role;

use super::plan::Policy;
use super::position::Position;
use super::screen::ProcessName;
use super::supervise::{Notice, Outcome, REMOTE_SILENCE_LIMIT, Supervisor};
use crate::cli::output::plural;

/// The line for a notice. `name` gives the role, rank and process id of a process: "worker 1 (pid 123)".
pub(crate) fn notice(
    notice: Notice,
    name: impl Fn(usize) -> String,
    processes: usize,
    restarts: u64,
    policy: Policy,
    position: &Position,
) -> String {
    let most = policy.max_restarts.map(|most| format!(" of {most}")).unwrap_or_default();
    match notice {
        Notice::WorkerRestart(index, cause) => {
            format!("{} {cause}; it is restarted (restart {restarts}{most}) and resumes where it was", name(index))
        }
        Notice::Return(index, cause) => format!(
            "{} {cause}; all {processes} processes restart (restart {restarts}{most}) {}",
            name(index),
            position.describe()
        ),
        Notice::FreeRestart(index) => {
            format!("{} returns to the checkpoint with the others; it is restarted", name(index))
        }
        Notice::WaitForRemote { role, rank, silent } => format!(
            "{role} {rank} of another machine has not answered for {} s; the job waits for it and ends when it has been \
             silent for {} s",
            silent.as_secs(),
            REMOTE_SILENCE_LIMIT.as_secs()
        ),
    }
}

/// Lines that are printed once per job.
#[derive(Debug, Default)]
pub(crate) struct Announcements {
    leaving: bool,
    stopping: bool,
}

impl Announcements {
    /// The lines about what has become true since the last call.
    pub(crate) fn update(&mut self, supervisor: &Supervisor, names: &[ProcessName], policy: Policy) -> Vec<String> {
        let mut lines = Vec::new();
        if supervisor.is_leaving() && !self.leaving {
            self.leaving = true;
            let servers = plural(supervisor.unfinished(Role::Server), "server");
            lines.push(format!("the workers are done; {servers} to end"));
        }
        let is_left_to_others = !policy.has_all_workers
            && names.iter().any(|name| name.role == Role::Worker)
            && supervisor.unfinished(Role::Worker) == 0
            && supervisor.stopping().is_none();
        if is_left_to_others && supervisor.unfinished(Role::Server) > 0 && !self.leaving {
            self.leaving = true;
            let servers = plural(supervisor.unfinished(Role::Server), "server");
            lines.push(format!("the workers of this machine are done; {servers} here until those of others are"));
        }
        let Some(outcome) = supervisor.stopping().filter(|_| !self.stopping) else { return lines };
        self.stopping = true;
        let why = match outcome {
            Outcome::Done => return lines,
            Outcome::Failed(index, cause) => format!("{} {cause}", names[index]),
            Outcome::NotStarted(index) => format!("{} could not be started", names[index]),
            Outcome::RemoteSilent { role, rank, silent } => {
                format!("{role} {rank} of another machine has not answered for {} s", silent.as_secs())
            }
            Outcome::Interrupted(signal) => format!("{signal} was received (send it again to end at once)"),
            Outcome::TimedOut => "the time is over".to_owned(),
        };
        lines.push(format!("{why}; the job ends"));
        lines
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::process::Ending;
    use super::super::supervise::Cause;
    use super::*;
    use crate::progress::Progress;

    fn line(said: Notice, max_restarts: Option<u64>) -> String {
        let policy = Policy { max_restarts, timeout: None, has_all_workers: true, restarts_together: false };
        let name = |index: usize| ["server 0 (pid 99)", "worker 1 (pid 123)"][index].to_owned();
        let mut position = Position::default();
        let (checkpoint, checkpoint_step, step) = (Some("model".to_owned()), Some(120), Some(155));
        position.note(&Progress { checkpoint, checkpoint_step, step, ..Progress::default() });
        notice(said, name, 4, 1, policy, &position)
    }

    #[test]
    fn every_restart_says_what_why_and_from_where() {
        let killed = Cause::Ended(Ending::Signal(9));
        assert_eq!(
            line(Notice::WorkerRestart(1, killed), Some(3)),
            "worker 1 (pid 123) was killed by signal 9 (SIGKILL); it is restarted (restart 1 of 3) and resumes \
             where it was"
        );
        assert_eq!(
            line(Notice::Return(0, killed), Some(3)),
            "server 0 (pid 99) was killed by signal 9 (SIGKILL); all 4 processes restart (restart 1 of 3) from \
             checkpoint `model` of step 120; 35 steps are repeated"
        );
        assert_eq!(
            line(Notice::FreeRestart(1), None),
            "worker 1 (pid 123) returns to the checkpoint with the others; it is restarted"
        );
        let frozen = Cause::Silent(Duration::from_millis(8900));
        assert_eq!(
            line(Notice::WorkerRestart(1, frozen), None),
            "worker 1 (pid 123) did not answer for 8 s; it was killed; it is restarted (restart 1) and resumes \
             where it was"
        );
    }

    #[test]
    fn a_process_of_another_machine_is_waited_for_until_a_limit_that_is_said() {
        let silent = Duration::from_secs(10);
        assert_eq!(
            line(Notice::WaitForRemote { role: Role::Worker, rank: 5, silent }, Some(3)),
            "worker 5 of another machine has not answered for 10 s; the job waits for it and ends when it has been silent \
             for 120 s"
        );
    }
}
