//! What the user wrote on `fleetrun`'s command line, as written.
//!
//! Nothing is judged here beyond the shape of a single value: which options go together, and what they come to, is
//! [`super::plan`]'s and the schedulers' affair.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Start, watch and end every process of a job.
///
/// Everything after SCRIPT is passed to it untouched. Options may be written with hyphens or underscores.
#[derive(Debug, Parser)]
#[command(name = "fleetrun", version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Examples:
  fleetrun --server_num=2 --worker_num=2 train.py --epochs 3
  fleetrun --servers=10.0.0.1:36000,10.0.0.2:36000 --workers=10.0.0.1,10.0.0.2 train.py
  fleetrun --nproc_per_node=4 train.py
  fleetrun --server_num=2 --worker_num=2 openfleet train --mode async ...
  fleetrun k8s --server_num=2 --worker_num=8 --image=me/train train.py | kubectl create -f -")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub scheduler: Option<Scheduler>,
    #[command(flatten)]
    pub job: JobOptions,
    #[command(flatten)]
    pub run: RunOptions,
    #[command(flatten)]
    pub words: CommandWords,
}

/// Print what another scheduler needs to run the same job.
#[derive(Debug, Subcommand)]
pub(crate) enum Scheduler {
    /// Print a Kubernetes manifest: a JobSet, or plain Indexed Jobs.
    K8s(Box<KubernetesArgs>),
    /// Print a Slurm job script: servers and workers as two steps of one allocation.
    Slurm(SlurmArgs),
    /// Print an `mpirun` script, servers first.
    Mpi(MpiArgs),
}

/// How many processes, and where.
#[derive(Debug, Default, Args)]
pub(crate) struct JobOptions {
    /// Servers to start on this machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = "Job")]
    pub server_num: Option<u32>,
    /// Workers to start on this machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536), help_heading = "Job")]
    pub worker_num: Option<u32>,
    /// Another name of `--worker-num`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536), help_heading = "Job")]
    pub trainer_num: Option<u32>,
    /// Every server of the job, in rank order; each machine starts its own
    #[arg(long, value_name = "IP:PORT,...", help_heading = "Job")]
    pub servers: Option<String>,
    /// Every worker of the job, in rank order; each machine starts its own
    #[arg(long, value_name = "IP[:PORT],...", alias = "trainers", help_heading = "Job")]
    pub workers: Option<String>,
    /// Collective workers to start on each machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = "Job")]
    pub nproc_per_node: Option<u32>,
    /// Every machine of a collective job, in rank order
    #[arg(long, value_name = "IP,...", help_heading = "Job")]
    pub ips: Option<String>,
    /// The first of the ports that were not written out (default: free ones here, 6170 across machines)
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Job")]
    pub start_port: Option<u16>,
    /// The kind of job, where the other options leave it open
    #[arg(long, value_name = "KIND", help_heading = "Job")]
    pub run_mode: Option<RunMode>,
    /// The job's name: processes of another job are refused
    #[arg(long, value_name = "NAME", alias = "job-id", help_heading = "Job")]
    pub job: Option<String>,
}

/// With servers, or among workers only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunMode {
    /// Servers keep the tables
    Ps,
    /// Workers reduce gradients among themselves
    Collective,
}

impl RunMode {
    /// As the user writes it.
    pub(crate) fn flag(self) -> &'static str {
        match self {
            RunMode::Ps => "--run-mode ps",
            RunMode::Collective => "--run-mode collective",
        }
    }
}

/// How the processes are run here.
#[derive(Debug, Default, Args)]
pub(crate) struct RunOptions {
    /// Which machine of the lists this is, where its own addresses do not tell
    #[arg(long, value_name = "HOST", help_heading = "Run")]
    pub host: Option<String>,
    /// Where the processes' output is kept, one file each
    #[arg(long, value_name = "DIR", default_value = "log", help_heading = "Run")]
    pub log_dir: PathBuf,
    /// How many restarts the job may use: a failed worker starts again alone, a failed server takes all processes back to the
    /// newest checkpoint; -1: no limit
    #[arg(long, value_name = "N", allow_negative_numbers = true, alias = "max-restart", help_heading = "Run")]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..))]
    pub max_restarts: Option<i64>,
    /// End the job with exit code 124 after so long: `90`, `90s`, `15m`, `2h`
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Run")]
    pub timeout: Option<Duration>,
    /// A file with the job's secret; without it `OPENFLEET_SECRET`, or a fresh one on one machine
    #[arg(long, value_name = "FILE", help_heading = "Run")]
    pub secret_file: Option<PathBuf>,
    /// Print what would be started, with its environment, and start nothing
    #[arg(long, help_heading = "Run")]
    pub dry_run: bool,
}

/// What each process runs.
#[derive(Debug, Default, Args)]
pub(crate) struct CommandWords {
    /// SCRIPT is the name of a Python module
    #[arg(short = 'm', long, help_heading = "Script")]
    pub module: bool,
    /// The Python for scripts and modules (default: `python3` on the PATH)
    #[arg(long, value_name = "PROGRAM", help_heading = "Script")]
    pub python: Option<PathBuf>,
    /// Run a script written for the original: `import paddle` finds the names it had
    #[arg(long, help_heading = "Script")]
    pub compat: bool,
    /// A Python script, a module after `-m`, or any program, and its arguments
    #[arg(value_name = "SCRIPT", required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

/// `fleetrun k8s`.
#[derive(Debug, Args)]
pub(crate) struct KubernetesArgs {
    /// The container image that holds the script
    #[arg(long, help_heading = "Kubernetes")]
    pub image: String,
    /// What the objects are called
    #[arg(long, default_value = "openfleet", help_heading = "Kubernetes")]
    pub name: String,
    /// Where they live
    #[arg(long, help_heading = "Kubernetes")]
    pub namespace: Option<String>,
    /// CPUs of a worker
    #[arg(long, default_value = "1", help_heading = "Kubernetes")]
    pub cpu: String,
    /// Memory of a worker
    #[arg(long, default_value = "2Gi", help_heading = "Kubernetes")]
    pub memory: String,
    /// CPUs of a server (default: as a worker)
    #[arg(long, help_heading = "Kubernetes")]
    pub server_cpu: Option<String>,
    /// Memory of a server (default: as a worker)
    #[arg(long, help_heading = "Kubernetes")]
    pub server_memory: Option<String>,
    /// The port servers listen on
    #[arg(long, default_value_t = 36000, value_parser = clap::value_parser!(u16).range(1..), help_heading = "Kubernetes")]
    pub port: u16,
    /// The working directory inside the container
    #[arg(long, value_name = "DIR", help_heading = "Kubernetes")]
    pub workdir: Option<String>,
    /// Start a dead pod again, alone, so many times a rank
    #[arg(long, value_name = "N", default_value_t = 3, help_heading = "Kubernetes")]
    pub max_restarts: u32,
    /// End the job after so long: `90`, `90s`, `15m`, `2h`
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Kubernetes")]
    pub timeout: Option<Duration>,
    /// Two Indexed Jobs and a Service, for clusters without JobSet
    #[arg(long, help_heading = "Kubernetes")]
    pub plain_jobs: bool,
    #[command(flatten)]
    pub job: JobOptions,
    #[command(flatten)]
    pub words: CommandWords,
}

/// `fleetrun slurm`.
#[derive(Debug, Args)]
pub(crate) struct SlurmArgs {
    /// What the job is called
    #[arg(long, default_value = "openfleet", help_heading = "Slurm")]
    pub name: String,
    /// Machines to ask for
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Slurm")]
    pub nodes: u32,
    /// CPUs of a process
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Slurm")]
    pub cpu: u32,
    /// Memory of a machine, as Slurm writes it: `16G`
    #[arg(long, help_heading = "Slurm")]
    pub memory: Option<String>,
    /// The partition to run in
    #[arg(long, help_heading = "Slurm")]
    pub partition: Option<String>,
    /// The longest the job may take, as Slurm writes it: `02:00:00`
    #[arg(long, help_heading = "Slurm")]
    pub time: Option<String>,
    /// Where the processes' output is kept, one file each
    #[arg(long, value_name = "DIR", default_value = "log", help_heading = "Slurm")]
    pub log_dir: PathBuf,
    #[command(flatten)]
    pub job: JobOptions,
    #[command(flatten)]
    pub words: CommandWords,
}

/// `fleetrun mpi`.
#[derive(Debug, Args)]
pub(crate) struct MpiArgs {
    #[command(flatten)]
    pub job: JobOptions,
    #[command(flatten)]
    pub words: CommandWords,
}

/// `90`, `90s`, `15m`, `2h`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.char_indices().last() {
        Some((at, 's')) => (&text[..at], 1.0),
        Some((at, 'm')) => (&text[..at], 60.0),
        Some((at, 'h')) => (&text[..at], 3600.0),
        _ => (text, 1.0),
    };
    let seconds = number.parse::<f64>().ok().filter(|number| *number > 0.0).map(|number| number * unit);
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "expected a time above 0, as in `90`, `90s`, `15m` or `2h`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_unless_they_say_otherwise() {
        for (text, seconds) in [("90", 90.0), ("90s", 90.0), ("0.5", 0.5), ("15m", 900.0), ("2h", 7200.0)] {
            assert_eq!(duration(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in ["", "s", "0", "-1", "1d", "soon", "inf", "NaN", "1e300"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
