//! A job whose processes another program starts, signals and waits for, such as a driver with actors in a cluster.
//!
//! It has the environment, the rules and the words of `fleetrun`. The other program reports what happens to the processes,
//! performs the returned actions, and places the processes. It has no clock: callers pass the time.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use openfleet_core::Endpoint;
use openfleet_core::topology::{JobId, Role};

use super::control::Control;
use super::environment::{Job, Variable, attempt_variables, variables};
use super::error::Error;
use super::options::{CommandWords, RunMode};
use super::plan::{Policy, new_name, restart_limit, run_identity};
use super::process::Ending;
use super::program::Program;
use super::screen::{ProcessName, prefixed};
use super::secret::Secret;
use super::supervise;
use crate::cli::output::plural;
use crate::error::{Error as OptionError, Result};
use crate::job_file::JobFile;
use crate::variables::RUN;

/// What a job consists of.
#[derive(Debug, Default)]
pub struct ExternalOptions {
    /// The command of every process.
    pub command: CommandWords,
    /// The number of servers; 0 for a collective job.
    pub servers: usize,
    /// The number of workers, or of ranks of a collective job.
    pub workers: usize,
    /// The name of the job; `None` for the script's name and random digits.
    pub job: Option<String>,
    /// The most restarts, as `--max-restarts`: negative for no limit.
    pub max_restarts: i64,
    /// The job is ended after this time.
    pub timeout: Option<Duration>,
}

/// A job whose processes another program starts. Processes are numbered from 0, servers first.
#[derive(Debug)]
pub struct ExternalJob {
    mode: RunMode,
    name: JobId,
    run: String,
    secret: Secret,
    policy: Policy,
    servers: Vec<Endpoint>,
    workers: Vec<Endpoint>,
    rendezvous: Option<Endpoint>,
    counts: (usize, usize),
    control: Control,
}

/// What the caller must do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExternalAction {
    /// Replace the job file of every process. Before later actions: a process reads there why it is signalled.
    WriteJobFile(JobFile),
    /// Start process `.0`; `.1` is the attempt, counted from 1.
    Start(usize, u64),
    /// Send process `.0` the signal of this number.
    Signal(usize, i32),
    /// Tell the user this line.
    Tell(String),
}

/// How a job ended.
#[derive(Debug)]
pub struct ExternalOutcome {
    /// The exit code that `fleetrun` would have.
    pub exit_code: u8,
    /// Why it failed; `None` if it succeeded, was interrupted, or if a process could not be started.
    pub error: Option<Error>,
    /// The process that failed or could not be started.
    pub process: Option<usize>,
}

impl ExternalJob {
    /// Checks the options. Nothing is supervised before [`ExternalJob::begin`].
    ///
    /// # Errors
    ///
    /// If there is no worker, the command is contradictory or the name of the job is not valid.
    pub fn new(options: &ExternalOptions) -> Result<Self> {
        let program = Program::elsewhere(&options.command, None)?;
        let bad_count = |option, got: usize| {
            Err(OptionError::BadOption { option, expected: "a number from 1 to 65536", got: got.to_string() })
        };
        if !(1..=65536).contains(&options.workers) {
            return bad_count("workers", options.workers);
        }
        if options.servers > 65536 {
            return bad_count("servers", options.servers);
        }
        let mode = if options.servers == 0 { RunMode::Collective } else { RunMode::Ps };
        let policy = Policy {
            max_restarts: restart_limit(Some(options.max_restarts)),
            timeout: options.timeout,
            has_all_workers: true,
            restarts_together: mode == RunMode::Collective,
        };
        let counts = (options.servers, options.workers);
        Ok(ExternalJob {
            mode,
            name: options.job.as_ref().map_or_else(|| new_name(&program), |name| Ok(JobId::new(name.as_str())?))?,
            run: run_identity(false),
            secret: Secret::find(None, true, false)?,
            policy,
            servers: vec![],
            workers: vec![],
            rendezvous: None,
            counts,
            control: Control::new(names(counts), counts, policy, Instant::now()),
        })
    }

    /// The name of the job.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The identity of the run.
    pub fn run(&self) -> &str {
        &self.run
    }

    /// Role and rank of every process: `worker 0`.
    pub fn process_names(&self) -> Vec<String> {
        names(self.counts).map(|name| name.to_string()).collect()
    }

    /// One line about the job.
    pub fn headline(&self) -> String {
        let (servers, workers) = self.counts;
        let workers = plural(workers, "worker");
        match self.mode {
            RunMode::Ps => format!("job {}: {} and {workers}", self.name, plural(servers, "server")),
            RunMode::Collective => format!("job {}: {workers}, collective", self.name),
        }
    }

    /// A line of a process as the user sees it.
    pub fn prefixed(&self, index: usize, line: &str, has_colour: bool) -> String {
        prefixed(self.control.name(index), line, has_colour)
    }

    /// Begins to supervise processes at these endpoints, one for each process. `rendezvous` is where the processes of torch meet
    /// in a collective job.
    ///
    /// # Errors
    ///
    /// If the number of endpoints is not that of the processes.
    pub fn begin(
        &mut self,
        endpoints: Vec<Endpoint>,
        rendezvous: Option<Endpoint>,
        now: Instant,
    ) -> Result<Vec<ExternalAction>> {
        let (servers, workers) = self.counts;
        if endpoints.len() != servers + workers {
            return Err(OptionError::BadOption {
                option: "endpoints",
                expected: "one endpoint for each process",
                got: plural(endpoints.len(), "endpoint"),
            });
        }
        self.servers = endpoints;
        self.workers = self.servers.split_off(servers);
        self.rendezvous = rendezvous.filter(|_| self.mode == RunMode::Collective);
        self.control = Control::new(names(self.counts), self.counts, self.policy, now);
        let starts = (0..servers + workers).map(|index| supervise::Action::Start(index, 1)).collect();
        Ok(self.actions(starts))
    }

    /// Moves a process to another endpoint. Processes that are started later see it there.
    pub fn place(&mut self, index: usize, endpoint: Endpoint) {
        let servers = self.servers.len();
        let known = if index < servers { self.servers.get_mut(index) } else { self.workers.get_mut(index - servers) };
        if let Some(known) = known {
            *known = endpoint;
        }
    }

    /// Moves the place where the processes of torch meet in a collective job.
    pub fn meet_at(&mut self, rendezvous: Endpoint) {
        self.rendezvous = Some(rendezvous).filter(|_| self.mode == RunMode::Collective);
    }

    /// The variables of an attempt of a process, except those that name files of its machine ([`super::ChildProcess`] adds
    /// them). Call this once per attempt, when it is started.
    pub fn environment(&mut self, index: usize, attempt: u64) -> Vec<Variable> {
        let ProcessName { role, rank } = self.control.name(index);
        let job = Job {
            mode: self.mode,
            name: &self.name,
            servers: &self.servers,
            workers: &self.workers,
            rendezvous: self.rendezvous.as_ref(),
            worker_count: self.workers.len(),
            workers_per_machine: 0,
        };
        let mut all = variables(&job, role, rank);
        all.push((RUN, self.run.clone()));
        let resume = self.control.starting(index, attempt);
        all.extend(attempt_variables(attempt, &self.secret, resume));
        all
    }

    /// Reports that a process was started.
    pub fn started(&mut self, index: usize, pid: u32) {
        self.control.started(index, pid);
    }

    /// Reports that a process could not be started. This ends the job.
    pub fn not_started(&mut self, index: usize, now: Instant) -> Vec<ExternalAction> {
        let actions = self.control.supervisor.not_started(index, now);
        self.actions(actions)
    }

    /// Reports that a process is not started because the job is ending.
    pub fn skipped(&mut self, index: usize, now: Instant) -> Vec<ExternalAction> {
        let actions = self.control.supervisor.ended(index, Ending::Unknown, now);
        self.actions(actions)
    }

    /// Reports processes that were found to have ended at the same moment, with the contents of their progress files.
    pub fn ended(&mut self, mut ended: Vec<(usize, Ending, String)>, now: Instant) -> Vec<ExternalAction> {
        let mut order: Vec<(usize, Ending)> = ended.iter().map(|&(index, ending, _)| (index, ending)).collect();
        self.control.sort(&mut order);
        let mut actions = Vec::new();
        for (index, ending) in order {
            let report =
                ended.iter_mut().find(|(other, ..)| *other == index).map(|(_, _, report)| std::mem::take(report));
            let more = self.control.ended(index, ending, report.unwrap_or_default(), now);
            actions.extend(self.actions(more));
        }
        actions
    }

    /// Reports the content of a process's progress file.
    pub fn reported(&mut self, index: usize, report: String, now: Instant) -> Vec<ExternalAction> {
        let actions = self.control.reported(index, report, now);
        self.actions(actions)
    }

    /// Reports that the user asked to end the job. The second request kills the processes.
    pub fn interrupted(&mut self, now: Instant) -> Vec<ExternalAction> {
        let actions = self.control.supervisor.interrupted(Signal::SIGINT, now);
        self.actions(actions)
    }

    /// Handles the passing of time.
    pub fn tick(&mut self, now: Instant) -> Vec<ExternalAction> {
        let actions = self.control.supervisor.tick(now);
        self.actions(actions)
    }

    /// When [`ExternalJob::tick`] has something to do next.
    pub fn next_tick(&self) -> Option<Instant> {
        self.control.supervisor.next_tick()
    }

    /// Whether the job is being ended early. Processes are no longer started then.
    pub fn is_stopping(&self) -> bool {
        self.control.supervisor.stopping().is_some()
    }

    /// Whether a process has ended and will restart.
    pub fn is_paused(&self, index: usize) -> bool {
        matches!(self.control.supervisor.state(index), supervise::State::Paused(_))
    }

    /// Restarts charged to the budget.
    pub fn restarts(&self) -> u64 {
        self.control.supervisor.restarts()
    }

    /// How the job ended; `None` while it runs.
    pub fn outcome(&self) -> Option<ExternalOutcome> {
        let outcome = self.control.supervisor.outcome()?;
        let verdict = self.control.judge(outcome, |role, rank| {
            let endpoints = if role == Role::Server { &self.servers } else { &self.workers };
            endpoints.get(rank).map(|endpoint| endpoint.host().to_owned()).unwrap_or_default()
        });
        Some(ExternalOutcome { exit_code: verdict.exit_code, error: verdict.error, process: verdict.process })
    }

    /// Adds what changes with these actions.
    fn actions(&mut self, actions: Vec<supervise::Action>) -> Vec<ExternalAction> {
        let mut all: Vec<ExternalAction> =
            self.control.changed_job_file().map(ExternalAction::WriteJobFile).into_iter().collect();
        all.extend(actions.into_iter().map(|action| match action {
            supervise::Action::Start(index, attempt) => ExternalAction::Start(index, attempt),
            supervise::Action::Signal(index, signal) => ExternalAction::Signal(index, signal as i32),
            supervise::Action::Notify(notice) => ExternalAction::Tell(self.control.line(notice)),
        }));
        all.extend(self.control.announce().into_iter().map(ExternalAction::Tell));
        all
    }
}

fn names((servers, workers): (usize, usize)) -> impl Iterator<Item = ProcessName> {
    let servers = (0..servers).map(|rank| ProcessName { role: Role::Server, rank });
    servers.chain((0..workers).map(|rank| ProcessName { role: Role::Worker, rank }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::role::{Environment, RoleMaker, Settings};
    use crate::variables::{INCARNATION, RESUME, Variables};

    const KILLED: Ending = Ending::Signal(9);

    fn job(servers: usize, workers: usize, max_restarts: i64) -> (ExternalJob, Instant) {
        let command = CommandWords { command: vec!["train.py".into()], ..CommandWords::default() };
        let options = ExternalOptions { command, servers, workers, max_restarts, ..ExternalOptions::default() };
        let mut job = ExternalJob::new(&options).unwrap();
        let now = Instant::now();
        let ports = (1..).take(servers + workers);
        let endpoints = ports.map(|port| Endpoint::new("10.0.0.1", port).unwrap()).collect();
        let starts = job.begin(endpoints, Some(Endpoint::new("10.0.0.1", 99).unwrap()), now).unwrap();
        assert_eq!(starts[0], ExternalAction::WriteJobFile(JobFile::default()), "before the first process starts");
        let expected: Vec<ExternalAction> =
            (0..servers + workers).map(|index| ExternalAction::Start(index, 1)).collect();
        assert_eq!(starts[1..], expected);
        (job, now)
    }

    fn value(variables: &[Variable], name: &str) -> Option<String> {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
    }

    #[test]
    fn the_role_maker_reads_what_the_environment_says() {
        let (mut job, _) = job(2, 3, 0);
        for (index, name) in job.process_names().into_iter().enumerate() {
            let variables: Variables = job.environment(index, 1).into_iter().collect();
            let settings = Settings::read(&variables).unwrap();
            let topology = Environment { collective: false }.assign(&variables, &settings).unwrap().topology;
            assert_eq!(format!("{} {}", topology.role(), topology.rank()), name);
            assert_eq!((topology.server_count(), topology.worker_count()), (2, 3));
            assert_eq!((settings.run.as_deref(), settings.job.as_str()), (Some(job.run()), job.name()));
        }
    }

    #[test]
    fn a_restarted_server_resumes_from_the_checkpoint_that_was_reported_and_a_worker_gets_none() {
        let (mut job, now) = job(1, 1, 1);
        assert_eq!(value(&job.environment(0, 1), RESUME), None);
        job.reported(0, r#"{"checkpoint":"model","checkpoint_step":120,"step":155}"#.to_owned(), now);
        let actions = job.ended(vec![(0, KILLED, String::new())], now);
        let line = "server 0 (pid 0) was killed by signal 9 (SIGKILL); all 2 processes restart (restart 1 of 1) from \
                    checkpoint `model` of step 120; 35 steps are repeated";
        assert_eq!(actions, [ExternalAction::Tell(line.to_owned()), ExternalAction::Signal(1, 9)]);
        job.ended(vec![(1, KILLED, String::new())], now);
        assert!(job.is_paused(0) && job.is_paused(1));
        let start = job.next_tick().unwrap();
        assert_eq!(job.tick(start), [ExternalAction::Start(0, 2), ExternalAction::Start(1, 2)]);
        job.place(0, Endpoint::new("10.0.0.2", 7).unwrap());
        let (server, worker) = (job.environment(0, 2), job.environment(1, 2));
        assert_eq!((value(&server, RESUME), value(&worker, RESUME)), (Some("model".to_owned()), None));
        assert_eq!(value(&worker, INCARNATION).as_deref(), Some("2"));
        assert_eq!(value(&worker, "OPENFLEET_SERVERS").as_deref(), Some("10.0.0.2:7"));
    }

    #[test]
    fn a_failure_without_a_restart_left_writes_the_job_file_before_it_signals() {
        let (mut job, now) = job(0, 2, 0);
        let actions = job.ended(vec![(1, Ending::Code(3), String::new())], now);
        let file = JobFile { ending: true, departed: vec![] };
        assert_eq!(actions[..2], [ExternalAction::WriteJobFile(file), ExternalAction::Signal(0, 15)]);
        assert!(job.is_stopping() && job.outcome().is_none());
        job.ended(vec![(0, Ending::Signal(15), String::new())], now);
        let outcome = job.outcome().unwrap();
        assert_eq!((outcome.exit_code, outcome.process), (3, Some(1)));
        assert_eq!(outcome.error.unwrap().to_string(), "worker 1 (pid 0) exited with code 3");
    }
}
