//! What this machine starts, resolved and checked once: from options to processes with their environments.
//!
//! A plan is checked when it is made: the lists agree, the script exists, the ports are free and stay reserved until their
//! processes start. It starts nothing itself; `--dry-run` prints it.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use openfleet_core::Endpoint;
use openfleet_core::error::Error as CoreError;
use openfleet_core::topology::{JobId, Role, Topology};

use super::environment::{Job, Variable, attempt_variables, variables};
use super::error::Error;
use super::hosts::Machine;
use super::layout::{HostPort, JobLayout, NumberedMachines, endpoints, workers_per_machine};
use super::options::{JobOptions, RunMode, RunOptions};
use super::ports::PortReservation;
use super::program::Program;
use super::schedulers::shell::quoted;
use super::secret::Secret;
use super::without_effect;
use crate::cli::output::plural;
use crate::error::{Error as OptionError, Result};
use crate::variables::{BIND, JOB_FILE, LOG, PROGRESS_FILE, RUN, SECRET};

/// What this machine starts, and the policy for restarting and ending.
#[derive(Debug)]
pub(crate) struct LaunchPlan {
    pub job: JobId,
    pub program: Program,
    /// The processes of this machine, servers first.
    pub processes: Vec<PlannedProcess>,
    pub secret: Secret,
    pub log_dir: PathBuf,
    /// Whether output is added to the logs of an older job.
    pub keeps_logs: bool,
    /// A line for each option that has no effect in this job.
    pub notes: Vec<String>,
    pub policy: Policy,
    /// The file in which the launcher tells its processes the state of the job.
    pub job_file: PathBuf,
    /// All servers of the job, in rank order.
    servers: Vec<Endpoint>,
    /// All workers of the job, in rank order; empty if their addresses are not known here.
    workers: Vec<Endpoint>,
    worker_count: usize,
    mode: RunMode,
    /// The workers were asked to use GPUs.
    wants_gpus: bool,
}

/// One process of the plan.
#[derive(Debug)]
pub(crate) struct PlannedProcess {
    pub role: Role,
    pub rank: usize,
    /// `None` if the ranks meet at the rendezvous and listen on free ports.
    pub endpoint: Option<Endpoint>,
    /// Without the variables of [`LaunchPlan::extra`].
    pub variables: Vec<Variable>,
    pub log: PathBuf,
    pub progress: PathBuf,
    /// Holds the port until the process starts.
    pub reserved: Option<PortReservation>,
}

/// The limits for restarting and ending a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Policy {
    /// The most restarts of the job; `None` for no limit.
    pub max_restarts: Option<u64>,
    pub timeout: Option<Duration>,
    /// Whether all workers of the job are on this machine. Only then may servers be asked to end after the workers.
    pub has_all_workers: bool,
    /// Whether a failed worker restarts all processes: the ranks of a collective job have to begin together.
    pub restarts_together: bool,
}

/// The most restarts of a job, from what the user wrote: none by default, `None` (no limit) for a negative number.
pub(crate) fn restart_limit(written: Option<i64>) -> Option<u64> {
    u64::try_from(written.unwrap_or(0)).ok()
}

/// PaddlePaddle's default of `--max_restart`, which counts where processes are restarted at all.
const ELASTIC_RESTARTS: i64 = 3;

impl RunOptions {
    /// The most restarts that the user wants, by `--max-restarts` or by PaddlePaddle's `--elastic-level`.
    fn restarts(&self) -> Option<i64> {
        match self.elastic_level {
            Some(-1) => Some(0),
            Some(1) => Some(self.max_restarts.unwrap_or(ELASTIC_RESTARTS)),
            _ => self.max_restarts,
        }
    }
}

impl LaunchPlan {
    /// Resolves the options on this machine.
    pub(crate) fn resolve(job: &JobOptions, run: &RunOptions, program: Program, machine: &Machine) -> Result<Self> {
        let mut layout = JobLayout::resolve(job)?;
        let mut notes = job.notes();
        if layout.is_local && run.host.is_some() {
            let reason = "all processes of a job on one machine talk over 127.0.0.1";
            notes.push(without_effect::line("--host", reason));
        }
        if run.elastic_level == Some(0) {
            let reason = "machines do not join a running job, so the others do not wait for one";
            notes.push(without_effect::line("--elastic-level 0", reason));
        }
        if run.elastic_level == Some(-1) && run.max_restarts.is_some_and(|most| most != 0) {
            let reason = "`--elastic-level -1` ends the job when a process fails";
            notes.push(without_effect::line("--max-restarts", reason));
        }
        let owned = OwnRanks::of(&layout, machine)?;
        let mut reserved = Ports::reserve(&mut layout, &owned, run.dry_run)?;
        let servers = endpoints(&layout.servers)?;
        let workers = if layout.numbered.is_some() { Vec::new() } else { endpoints(&layout.workers)? };
        check_distinct(&layout, &servers, &workers)?;
        let rendezvous = endpoints(layout.rendezvous.as_slice())?.pop();
        let worker_count = layout.workers.len() * layout.numbered.map_or(1, |machines| machines.count);
        let is_whole = owned.servers.len() + owned.workers.len() == servers.len() + worker_count;
        let secret = Secret::find(run.secret_file.as_deref(), is_whole, run.dry_run)?;
        let name = match &job.job {
            Some(name) => JobId::new(name.as_str())?,
            None => {
                let first = servers.first().or(workers.first()).or(rendezvous.as_ref());
                default_name(&layout, &program, first)?
            }
        };
        let workers_per_machine = if layout.is_local { worker_count } else { workers_per_machine(job)? };
        let context = Job {
            mode: layout.mode,
            name: &name,
            servers: &servers,
            workers: &workers,
            worker_count,
            rendezvous: rendezvous.as_ref(),
            workers_per_machine,
        };
        let log_dir = run.log_dir.clone();
        let absolute = std::path::absolute(&log_dir).map_err(crate::Error::io("resolve", &log_dir))?;
        let job_file = absolute.join("progress").join("job.json");
        // Launchers do not talk to each other. On several machines, the one that starts the first server, or the first rank of a
        // collective job, makes the identity of the run, and the other processes get it from that process.
        let has_first = match layout.mode {
            RunMode::Ps => owned.servers.contains(&0),
            RunMode::Collective => owned.workers.contains(&0),
        };
        let run_id = (is_whole || has_first).then(|| run_identity(run.dry_run));
        let own = |role: Role, rank: usize, endpoint: Option<&Endpoint>, reserved: Option<Port>| {
            let (reserved, bind) = reserved.map_or((None, None), |port| (Some(port.reserved), port.bind));
            let progress = absolute.join("progress").join(format!("{role}.{rank}.json"));
            let mut variables = variables(&context, role, rank);
            variables.extend(bind.map(|bind| (BIND, bind)));
            variables.extend(run.log_level.map(|level| (LOG, level.to_string().to_ascii_lowercase())));
            variables.extend(run_id.clone().map(|run_id| (RUN, run_id)));
            variables.push((PROGRESS_FILE, progress.display().to_string()));
            variables.push((JOB_FILE, job_file.display().to_string()));
            if layout.mode == RunMode::Collective && workers_per_machine > 1 && std::env::var_os(THREADS).is_none() {
                // As torchrun does: processes that share a machine should not each start one thread per core.
                variables.push((THREADS, "1".to_owned()));
            }
            let log = log_dir.join(format!("{role}log.{rank}"));
            PlannedProcess { role, rank, endpoint: endpoint.cloned(), variables, log, progress, reserved }
        };
        let mut processes = Vec::with_capacity(owned.servers.len() + owned.workers.len());
        for &rank in &owned.servers {
            processes.push(own(Role::Server, rank, servers.get(rank), reserved.servers.remove(&rank)));
        }
        for &rank in &owned.workers {
            processes.push(own(Role::Worker, rank, workers.get(rank), reserved.workers.remove(&rank)));
        }
        let policy = Policy {
            max_restarts: restart_limit(run.restarts()),
            timeout: run.timeout,
            has_all_workers: owned.workers.len() == worker_count,
            restarts_together: layout.mode == RunMode::Collective,
        };
        Ok(LaunchPlan {
            job: name,
            program,
            processes,
            secret,
            log_dir,
            keeps_logs: !run.log_overwrite,
            notes,
            policy,
            job_file,
            servers,
            workers,
            worker_count,
            mode: layout.mode,
            wants_gpus: job.gpus.is_some(),
        })
    }

    /// The numbers of servers and workers of the whole job.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.servers.len(), self.worker_count)
    }

    /// The host of any process of the job; `None` if the job has no such process.
    pub(crate) fn host(&self, role: Role, rank: usize) -> Option<&str> {
        let endpoints = match role {
            Role::Server => &self.servers,
            Role::Worker => &self.workers,
        };
        endpoints.get(rank).map(Endpoint::host)
    }

    /// One line about the job and this machine's part of it.
    pub(crate) fn headline(&self) -> String {
        let workers = plural(self.worker_count, "worker");
        let job = match self.mode {
            RunMode::Ps => format!("{} and {workers}", plural(self.servers.len(), "server")),
            RunMode::Collective => format!("{workers}, collective"),
        };
        let all = self.servers.len() + self.worker_count;
        let here = self.processes.len();
        let part = if here == all { String::new() } else { format!("; {here} of these {all} processes here") };
        let cpus = if self.wants_gpus { "; there is no GPU support here, so they train on CPUs" } else { "" };
        format!("job {}: {job}{part}; logs in `{}`{cpus}", self.job, self.log_dir.display())
    }

    /// The output of `--dry-run`: each process as a shell command. The secret is hidden.
    pub(crate) fn describe(&self) -> String {
        let mut text = format!("{}\n", self.headline());
        let words: Vec<String> = self.program.words.iter().map(|word| quoted(&word.to_string_lossy())).collect();
        for process in &self.processes {
            let PlannedProcess { role, rank, endpoint, .. } = process;
            let at = endpoint.as_ref().map(|endpoint| format!(" at {endpoint}")).unwrap_or_default();
            let _ = write!(text, "\n# {role} {rank}{at}, output in `{}`\n", process.log.display());
            let extra =
                self.extra(1, None).into_iter().map(|(name, value)| (name, value.to_string_lossy().into_owned()));
            for (name, value) in process.variables.iter().cloned().chain(extra) {
                let value = if name == SECRET { "(hidden)".to_owned() } else { value };
                let _ = writeln!(text, "{name}={} \\", quoted(&value));
            }
            let _ = writeln!(text, "{}", words.join(" "));
        }
        text
    }

    /// The variables that change with every attempt of a process, and those that are hidden. `resume` is the checkpoint that a
    /// restarted server, or a restarted rank of a collective job, loads.
    pub(crate) fn extra(&self, attempt: u64, resume: Option<&str>) -> Vec<(&'static str, OsString)> {
        let mut extra = attempt_variables(attempt, &self.secret, resume);
        extra.extend(self.program.unbuffered());
        extra.into_iter().map(|(name, value)| (name, value.into())).collect()
    }
}

/// The number of threads of numeric libraries.
const THREADS: &str = "OMP_NUM_THREADS";

/// The ranks that this machine starts.
struct OwnRanks {
    servers: Vec<usize>,
    workers: Vec<usize>,
}

impl OwnRanks {
    fn of(layout: &JobLayout, machine: &Machine) -> Result<Self> {
        let own = |hosts: &[HostPort]| -> Vec<usize> {
            let here = |rank: &usize| layout.is_local || machine.owns(&hosts[*rank].host);
            (0..hosts.len()).filter(here).collect()
        };
        if let Some(numbered) = layout.numbered {
            let each = layout.workers.len();
            let first = each * own_number(&numbered, layout.rendezvous.as_ref(), machine)?;
            return Ok(OwnRanks { servers: Vec::new(), workers: (first..first + each).collect() });
        }
        let owned = OwnRanks { servers: own(&layout.servers), workers: own(&layout.workers) };
        if owned.servers.is_empty() && owned.workers.is_empty() {
            let mut listed: Vec<String> = Vec::new();
            for host_port in layout.servers.iter().chain(&layout.workers) {
                let host = format!("`{}`", host_port.host);
                if !listed.contains(&host) {
                    listed.push(host);
                }
            }
            return Err(Error::NoOwnProcess { own: machine.describe(), listed: listed.join(", ") }.into());
        }
        Ok(owned)
    }
}

/// The number of this machine among those that meet at the master.
fn own_number(numbered: &NumberedMachines, master: Option<&HostPort>, machine: &Machine) -> Result<usize> {
    match numbered.own {
        Some(own) => Ok(own),
        None if numbered.count == 1 || master.is_some_and(|master| machine.owns(&master.host)) => Ok(0),
        None if numbered.count == 2 => Ok(1),
        None => Err(OptionError::MissingOption {
            option: "--rank",
            owner: "a machine other than that of `--master`, of more than two,".into(),
            remedy: "number the machines: `--rank 0` on that of `--master`, then 1, 2, ...",
        }),
    }
}

/// The reserved ports of this machine's processes, by rank.
struct Ports {
    servers: std::collections::HashMap<usize, Port>,
    workers: std::collections::HashMap<usize, Port>,
}

struct Port {
    reserved: PortReservation,
    /// The address to listen on, if it differs from the endpoint's host.
    bind: Option<String>,
}

impl Ports {
    /// Chooses the ports that were left open and reserves the given ones. A dry run does not reserve given ports, because the
    /// job may be running.
    fn reserve(layout: &mut JobLayout, owned: &OwnRanks, dry_run: bool) -> Result<Self> {
        let mut ports = Ports { servers: Default::default(), workers: Default::default() };
        if layout.numbered.is_some() {
            // Ranks take free ports themselves.
            return Ok(ports);
        }
        let is_local = layout.is_local;
        let roles = [
            (Role::Server, &mut layout.servers, &owned.servers, &mut ports.servers),
            (Role::Worker, &mut layout.workers, &owned.workers, &mut ports.workers),
        ];
        for (role, hosts, ranks, taken) in roles {
            for &rank in ranks {
                let host_port = &mut hosts[rank];
                let Some(port) = host_port.port else {
                    let (reserved, port) = PortReservation::free(&host_port.host)?;
                    host_port.port = Some(port);
                    taken.insert(rank, Port { reserved, bind: None });
                    continue;
                };
                // A worker of a list may never listen, so only a port that the user wrote is worth an error.
                if dry_run || (role == Role::Worker && !host_port.written && !is_local) {
                    continue;
                }
                let endpoint = Endpoint::new(&host_port.host, port)?;
                let (reserved, bind) = PortReservation::at_or_behind(&endpoint, role, rank)?;
                taken.insert(rank, Port { reserved, bind });
            }
        }
        if let Some(rendezvous) = layout.rendezvous.as_mut().filter(|rendezvous| rendezvous.port.is_none()) {
            // Released at once: the first worker listens there, and torch reports its own errors.
            rendezvous.port = Some(PortReservation::free(&rendezvous.host)?.1);
        }
        Ok(ports)
    }
}

fn check_distinct(layout: &JobLayout, servers: &[Endpoint], workers: &[Endpoint]) -> Result<()> {
    match layout.mode {
        RunMode::Ps => {
            Topology::new(Role::Server, 0, servers.to_vec(), workers.len(), workers.to_vec())?;
        }
        RunMode::Collective => {
            if let Some(at) = (1..workers.len()).find(|at| workers[..*at].contains(&workers[*at])) {
                return Err(CoreError::DuplicateEndpoint { endpoint: workers[at].clone() }.into());
            }
        }
    }
    Ok(())
}

/// The default name of a job. On one machine: the script's name and random digits. On several: a name that every machine
/// derives from the first endpoint.
fn default_name(layout: &JobLayout, program: &Program, first: Option<&Endpoint>) -> Result<JobId> {
    if layout.is_local {
        return new_name(program);
    }
    valid_name(&format!("job-{}", first.map(Endpoint::to_string).unwrap_or_default()))
}

/// The script's name and random digits.
pub(crate) fn new_name(program: &Program) -> Result<JobId> {
    let nonce = openfleet_dist::handshake::fresh_nonce();
    valid_name(&format!("{}-{:02x}{:02x}{:02x}", program.stem, nonce[0], nonce[1], nonce[2]))
}

/// Replaces and removes the characters that the name of a job cannot have.
fn valid_name(name: &str) -> Result<JobId> {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let name: String = name.chars().map(allowed).collect();
    let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    let start = name.len().saturating_sub(JobId::MAX_BYTES);
    Ok(JobId::new(name[start..].trim_start_matches(|c: char| !c.is_ascii_alphanumeric()))?)
}

/// The identity of a run: 16 random hexadecimal digits. A dry run has none.
pub(crate) fn run_identity(dry_run: bool) -> String {
    if dry_run {
        return "(made at start)".to_owned();
    }
    openfleet_dist::handshake::fresh_nonce()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Creates the directories of logs and progress files, and removes the reports of an earlier job.
pub(crate) fn make_directories(plan: &LaunchPlan) -> Result<()> {
    let mut directories = vec![plan.log_dir.as_path()];
    directories.extend(plan.processes.iter().filter_map(|process| process.progress.parent()).take(1));
    for directory in directories {
        std::fs::create_dir_all(directory).map_err(crate::Error::io("make the directory", directory))?;
    }
    for process in &plan.processes {
        forget_progress(&process.progress);
    }
    Ok(())
}

/// Removes the report of an earlier job or of an earlier attempt of a process.
pub(crate) fn forget_progress(path: &Path) {
    // Usually there is none.
    let _ = std::fs::remove_file(path);
}
