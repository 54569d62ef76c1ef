//! The errors between a command line and the end of a job, each with its hint.
//!
//! Errors of options alone are in [`crate::Error`], as for the other programs.

use std::path::PathBuf;

use openfleet_core::topology::Role;
use openfleet_core::{Endpoint, Hint, Hinted};

use super::process::Ending;
use crate::job_file::RESTART_EXIT_CODE;

const RESTARTS: i32 = RESTART_EXIT_CODE as i32;

/// The errors between a command line and the end of a job.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    // Before processes start
    /// None of the listed processes runs on this machine.
    #[error("no listed process runs on this machine: it is {own}, the lists have {listed}")]
    NoOwnProcess {
        /// Its addresses and its name, or the value of `--host`.
        own: String,
        /// The hosts of the lists.
        listed: String,
    },
    /// A job on several machines without a shared secret.
    #[error("a job on several machines needs a shared secret, and none is set")]
    NoSecret,
    /// A port that is already in use.
    #[error("{role} {rank} cannot listen on `{endpoint}`")]
    PortInUse {
        /// The role of its process.
        role: Role,
        /// The rank of its process.
        rank: usize,
        /// The endpoint.
        endpoint: Endpoint,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// No port is free.
    #[error("no free port was found on `{host}`")]
    NoPort {
        /// The host.
        host: String,
        /// The last error of the operating system.
        source: std::io::Error,
    },
    /// The port numbers would exceed 65535.
    #[error("{count} ports from {start} on end beyond 65535")]
    PortRange {
        /// The first port.
        start: u32,
        /// The number of ports.
        count: usize,
    },
    /// A script that does not exist.
    #[error("script `{}` does not exist", path.display())]
    NoScript {
        /// The path as written.
        path: PathBuf,
    },
    /// A program that was not found.
    #[error("program `{name}` was not found {looked}")]
    NoProgram {
        /// The name as written.
        name: String,
        /// Where it was searched.
        looked: String,
        /// Whether the working directory has a file of this name.
        here: bool,
    },
    /// A process could not be started.
    #[error("{role} {rank} could not be started: `{program}`")]
    Start {
        /// Its role.
        role: Role,
        /// Its rank within the role.
        rank: usize,
        /// The command's program.
        program: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The handler for signals cannot be installed.
    #[error("cannot install signal handlers")]
    Signals {
        /// The error of the operating system.
        source: std::io::Error,
    },

    // While the job runs
    /// A process failed.
    #[error("{role} {rank} (pid {pid}) {ending}")]
    Failed {
        /// Its role.
        role: Role,
        /// Its rank within the role.
        rank: usize,
        /// Its process id.
        pid: u32,
        /// How it ended.
        ending: Ending,
    },
    /// A server exited with 0 while workers still needed it.
    #[error("server {rank} (pid {pid}) ended with exit code 0 while workers were still running")]
    ServerEndedEarly {
        /// Its rank.
        rank: usize,
        /// Its process id.
        pid: u32,
    },
    /// A peer had not heard from a process for too long, and it was killed.
    #[error("{role} {rank} (pid {pid}) did not answer for {seconds} s; it was killed")]
    Silent {
        /// Its role.
        role: Role,
        /// Its rank within the role.
        rank: usize,
        /// Its process id.
        pid: u32,
        /// How long it had been silent.
        seconds: u64,
    },
    /// A process did not end although it was killed.
    #[error("{role} {rank} (pid {pid}) was killed and did not end")]
    NotKilled {
        /// Its role.
        role: Role,
        /// Its rank within the role.
        rank: usize,
        /// Its process id.
        pid: u32,
    },
    /// A process of another machine did not answer for too long.
    #[error("{role} {rank} on `{host}` did not answer for {seconds} s")]
    RemoteSilent {
        /// Its role.
        role: Role,
        /// Its rank within the role.
        rank: usize,
        /// Its machine.
        host: String,
        /// How long it has been silent.
        seconds: u64,
    },
    /// The timeout expired.
    #[error("the job did not end within its `--timeout` of {limit}")]
    TimedOut {
        /// The timeout as text.
        limit: String,
    },
}

impl Hinted for Error {
    fn hint(&self) -> Option<Hint> {
        match self {
            Error::NoOwnProcess { .. } => {
                Some("correct the lists, or name this machine's host with `--host`".into())
            }
            Error::NoSecret => Some(
                "create one with `openssl rand -hex 16`, and set the same on every machine in `OPENFLEET_SECRET` or by \
                 `--secret-file`"
                    .into(),
            ),
            Error::PortInUse { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => Some(
                "another process listens there, perhaps one of an earlier job (`ss -ltnp` names it): end it, or choose \
                 another port"
                    .into(),
            ),
            Error::PortInUse { .. } => Some("a server listens at an address of its own machine".into()),
            Error::PortRange { .. } => Some("choose a lower `--start-port`".into()),
            Error::NoScript { .. } => Some("check the path; relative paths start at the working directory".into()),
            Error::NoProgram { name, here: true, .. } => {
                Some(format!("there is one in the working directory: write `./{name}`").into())
            }
            Error::NoProgram { .. } => Some("check the spelling, or write its path; a Python script ends in `.py`".into()),
            Error::Failed { ending: Ending::Signal(Ending::KILL), .. } => Some(
                "only another process or the kernel sends this signal; `dmesg` tells whether memory had run out".into(),
            ),
            Error::Failed { ending: Ending::Code(RESTARTS), .. } => Some(
                "a worker exits with code 101 to be started again after another process failed, which `--max-restarts` \
                 allows; a Rust program that panics exits with it too"
                    .into(),
            ),
            Error::Failed { .. } => None,
            Error::ServerEndedEarly { .. } => Some(
                "a server stays in `run_server()` until every worker has called `stop_worker()`: does the script call it?"
                    .into(),
            ),
            Error::Silent { .. } => Some(
                "it was stopped, or something kept all of its threads busy or waiting; `--max-restarts` starts it again".into(),
            ),
            Error::NotKilled { .. } => {
                Some("it hangs in the kernel, often in a read from a disk or a network file system; see `dmesg`".into())
            }
            Error::RemoteSilent { .. } => Some(
                "look at `fleetrun` and the process's log on that machine; with `--max-restarts` the job waits 120 s for it"
                    .into(),
            ),
            Error::Start { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                Some("the file is there, but the interpreter that its first line names may not be".into())
            }
            Error::Start { .. } | Error::NoPort { .. } | Error::Signals { .. } | Error::TimedOut { .. } => None,
        }
    }
}
