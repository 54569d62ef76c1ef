//! The command line of `fleetrun`, as written.
//!
//! Only single values are checked here. [`super::plan`] and the schedulers check which options go together and resolve them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::log::LevelFilter;

/// Start, supervise and end every process of a job.
///
/// Everything after SCRIPT is passed to it unchanged. Options may be written with hyphens or underscores.
#[derive(Debug, Parser)]
#[command(name = "fleetrun", version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Examples:
  fleetrun --server_num=2 --worker_num=2 train.py --epochs 3
  fleetrun --servers=10.0.0.1:36000,10.0.0.2:36000 --workers=10.0.0.1,10.0.0.2 train.py
  fleetrun --nproc_per_node=4 train.py
  fleetrun --nproc_per_node=4 --nnodes=2 --master=10.0.0.1:6170 train.py
  fleetrun --server_num=2 --worker_num=2 openfleet train --mode async ...
  fleetrun k8s --server_num=2 --worker_num=8 --image=me/train train.py | kubectl create -f -
  fleetrun slurm --run_mode=collective --worker_num=8 --nodes=4 train.py > job.sbatch")]
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
    /// Print a Slurm job script: servers and workers as two steps of one allocation, or the ranks of a collective job as one.
    Slurm(SlurmArgs),
    /// Print an `mpirun` script, servers first.
    Mpi(MpiArgs),
}

/// The number of processes and their hosts.
#[derive(Debug, Default, Args)]
pub(crate) struct JobOptions {
    /// Servers to start on this machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = "Job")]
    pub server_num: Option<u32>,
    /// Workers to start on this machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536), help_heading = "Job")]
    pub worker_num: Option<u32>,
    /// Alias of `--worker-num`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536), help_heading = "Job")]
    pub trainer_num: Option<u32>,
    /// All servers of the job, in rank order; each machine starts its own
    #[arg(long, value_name = "IP:PORT,...", help_heading = "Job")]
    pub servers: Option<String>,
    /// All workers of the job, in rank order; each machine starts its own
    #[arg(long, value_name = "IP[:PORT],...", alias = "trainers", help_heading = "Job")]
    pub workers: Option<String>,
    /// Collective workers to start on each machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = "Job")]
    pub nproc_per_node: Option<u32>,
    /// All machines of a collective job, in rank order
    #[arg(long, value_name = "IP,...", alias = "cluster-node-ips", help_heading = "Job")]
    pub ips: Option<String>,
    /// Machines of a collective job that meet at `--master`; of a range, as in `2:4`, the first number, because machines do not
    /// join or leave while a job runs
    #[arg(long, value_name = "N", help_heading = "Job")]
    pub nnodes: Option<MachineCount>,
    /// Where the ranks of a collective job meet: the first machine and a free port on it (default port: 6170)
    #[arg(long, value_name = "IP[:PORT]", help_heading = "Job")]
    pub master: Option<String>,
    /// Number of this machine among `--nnodes`, from 0 (default, or -1: found for the machine of `--master`, and for the other
    /// of two)
    #[arg(long, value_name = "N", alias = "node-rank", allow_negative_numbers = true, help_heading = "Job")]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..=4096))]
    pub rank: Option<i64>,
    /// PaddlePaddle's list of devices: as many collective workers per machine, which train on CPUs; alias: `--devices`
    #[arg(long, value_name = "N,...", help_heading = "Job")]
    #[arg(aliases = ["devices", "npus", "xpus", "selected-gpus", "selected-npus", "selected-xpus"])]
    pub gpus: Option<String>,
    /// First of the ports that are not given (default: free ports on one machine, 6170 across machines)
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Job")]
    #[arg(alias = "started-port")]
    pub start_port: Option<u16>,
    /// Kind of job, if the other options leave it open
    #[arg(long, value_name = "KIND", help_heading = "Job")]
    pub run_mode: Option<RunMode>,
    /// Name of the job; processes of other jobs are refused
    #[arg(long, value_name = "NAME", alias = "job-id", help_heading = "Job")]
    pub job: Option<String>,
}

/// Whether the job has servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunMode {
    /// Servers keep the tables
    #[value(aliases = ["ps-heter", "ps_heter"])]
    Ps,
    /// Workers reduce gradients among themselves
    Collective,
}

impl RunMode {
    /// The option as the user writes it.
    pub(crate) fn flag(self) -> &'static str {
        match self {
            RunMode::Ps => "--run-mode ps",
            RunMode::Collective => "--run-mode collective",
        }
    }
}

impl JobOptions {
    /// The number of this machine, if it was given.
    pub(crate) fn machine_number(&self) -> Option<usize> {
        self.rank.and_then(|rank| usize::try_from(rank).ok())
    }

    /// The number of machines, if it was given.
    pub(crate) fn machine_count(&self) -> Option<u32> {
        self.nnodes.map(|machines| machines.count)
    }
}

/// The value of `--nnodes`: a number of machines, or PaddlePaddle's range of an elastic job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MachineCount {
    /// The number, or the first one of the range.
    pub count: u32,
    pub is_range: bool,
}

impl From<u32> for MachineCount {
    fn from(count: u32) -> Self {
        MachineCount { count, is_range: false }
    }
}

impl FromStr for MachineCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|number| (1..=4096).contains(number));
        let parsed = match text.split_once(':') {
            None => number(text).map(MachineCount::from),
            Some((least, most)) => match (number(least), number(most)) {
                (Some(least), Some(most)) if least <= most => {
                    Some(MachineCount { count: least, is_range: least < most })
                }
                _ => None,
            },
        };
        parsed.ok_or_else(|| "expected a number of machines from 1 to 4096, or a range as in `2:4`".to_owned())
    }
}

/// How the processes run on this machine.
#[derive(Debug, Default, Args)]
pub(crate) struct RunOptions {
    /// Host of this machine in the lists, if its addresses do not tell
    #[arg(long, value_name = "HOST", alias = "node-ip", help_heading = "Run")]
    pub host: Option<String>,
    /// Directory for the output of the processes, one file each
    #[arg(long, value_name = "DIR", default_value = "log", help_heading = "Run")]
    pub log_dir: PathBuf,
    /// Whether a new job replaces the logs of an older one, or adds to them
    #[arg(long, value_name = "BOOL", value_parser = boolean, default_value = "true", help_heading = "Run")]
    #[arg(action = clap::ArgAction::Set)]
    pub log_overwrite: bool,
    /// Log level of OpenFleet in every process, as `OPENFLEET_LOG` sets it: `debug`, `info`, `warning`, `error`
    #[arg(long, value_name = "LEVEL", value_parser = log_level, help_heading = "Run")]
    pub log_level: Option<LevelFilter>,
    /// Most restarts of the job: a failed worker restarts alone; a failed server, or a failed rank of a collective job, restarts
    /// all processes from the newest checkpoint; -1 for no limit
    #[arg(long, value_name = "N", allow_negative_numbers = true, alias = "max-restart", help_heading = "Run")]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..))]
    pub max_restarts: Option<i64>,
    /// PaddlePaddle's choice of what a failed process does: -1 ends the job, 1 restarts processes, at most `--max-restarts` times
    /// (then 3 by default); 0 has no effect, because machines do not join a running job
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = "Run")]
    #[arg(value_parser = clap::value_parser!(i8).range(-1..=1))]
    pub elastic_level: Option<i8>,
    /// End the job with exit code 124 after this time: `90`, `90s`, `15m`, `2h`
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Run")]
    pub timeout: Option<Duration>,
    /// File with the job's secret (default: `OPENFLEET_SECRET`, or a new secret on one machine)
    #[arg(long, value_name = "FILE", help_heading = "Run")]
    pub secret_file: Option<PathBuf>,
    /// Print every process with its environment, and start nothing
    #[arg(long, help_heading = "Run")]
    pub dry_run: bool,
}

/// The command that each process runs.
#[derive(Debug, Default, Args)]
pub struct CommandWords {
    /// SCRIPT is the name of a Python module
    #[arg(short = 'm', long, help_heading = "Script")]
    pub module: bool,
    /// Python interpreter for scripts and modules (default: `python3` on the PATH)
    #[arg(long, value_name = "PROGRAM", help_heading = "Script")]
    pub python: Option<PathBuf>,
    /// Run a PaddlePaddle script: `import paddle` finds OpenFleet's compatibility package
    #[arg(long, help_heading = "Script")]
    pub compat: bool,
    /// A Python script, a module after `-m`, or any program, and its arguments
    #[arg(value_name = "SCRIPT", required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

/// `fleetrun k8s`.
#[derive(Debug, Args)]
pub(crate) struct KubernetesArgs {
    /// Container image that holds the script
    #[arg(long, help_heading = "Kubernetes")]
    pub image: String,
    /// Name of the objects
    #[arg(long, default_value = "openfleet", help_heading = "Kubernetes")]
    pub name: String,
    /// Namespace of the objects
    #[arg(long, help_heading = "Kubernetes")]
    pub namespace: Option<String>,
    /// CPUs per worker
    #[arg(long, default_value = "1", help_heading = "Kubernetes")]
    pub cpu: String,
    /// Memory per worker
    #[arg(long, default_value = "2Gi", help_heading = "Kubernetes")]
    pub memory: String,
    /// CPUs per server (default: as a worker)
    #[arg(long, help_heading = "Kubernetes")]
    pub server_cpu: Option<String>,
    /// Memory per server (default: as a worker)
    #[arg(long, help_heading = "Kubernetes")]
    pub server_memory: Option<String>,
    /// Port that servers, or the ranks of a collective job, listen on
    #[arg(long, default_value_t = 36000, value_parser = clap::value_parser!(u16).range(1..), help_heading = "Kubernetes")]
    pub port: u16,
    /// Working directory inside the container
    #[arg(long, value_name = "DIR", help_heading = "Kubernetes")]
    pub workdir: Option<String>,
    /// Most restarts of a failed pod per rank; in a collective job, of all pods together
    #[arg(long, value_name = "N", default_value_t = 3, help_heading = "Kubernetes")]
    pub max_restarts: u32,
    /// End the job after this time: `90`, `90s`, `15m`, `2h`
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Kubernetes")]
    pub timeout: Option<Duration>,
    /// Print Indexed Jobs and a Service, for clusters without JobSet
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
    /// Name of the job
    #[arg(long, default_value = "openfleet", help_heading = "Slurm")]
    pub name: String,
    /// Machines to request
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Slurm")]
    pub nodes: u32,
    /// CPUs per process
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Slurm")]
    pub cpu: u32,
    /// Memory per machine, in Slurm's notation: `16G`
    #[arg(long, help_heading = "Slurm")]
    pub memory: Option<String>,
    /// Partition to run in
    #[arg(long, help_heading = "Slurm")]
    pub partition: Option<String>,
    /// Time limit of the job, in Slurm's notation: `02:00:00`
    #[arg(long, help_heading = "Slurm")]
    pub time: Option<String>,
    /// Directory for the output of the processes, one file each
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

/// Parses a truth value in the spellings that PaddlePaddle's launcher accepts.
fn boolean(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" | "on" => Ok(true),
        "0" | "false" | "f" | "no" | "n" | "off" => Ok(false),
        _ => Err("expected `true` or `false`".to_owned()),
    }
}

/// Parses a level by OpenFleet's name or by that of Python's `logging`.
fn log_level(text: &str) -> Result<LevelFilter, String> {
    match text.to_ascii_lowercase().as_str() {
        "fatal" | "critical" | "error" => Ok(LevelFilter::ERROR),
        "warn" | "warning" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        "off" => Ok(LevelFilter::OFF),
        _ => Err("expected `debug`, `info`, `warning`, `error` or `off`".to_owned()),
    }
}

/// Parses `90`, `90s`, `15m` or `2h`.
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
    fn a_number_of_machines_may_be_a_range() {
        for (text, count, is_range) in [("2", 2, false), ("2:4", 2, true), ("3:3", 3, false)] {
            assert_eq!(text.parse(), Ok(MachineCount { count, is_range }), "{text}");
        }
        for text in ["", "0", "2:", ":2", "4:2", "1:2:3", "two", "-1", "5000"] {
            assert!(text.parse::<MachineCount>().is_err(), "{text}");
        }
    }

    #[test]
    fn truth_values_and_levels_have_the_spellings_of_python() {
        assert_eq!(
            ["True", "1", "y", "False", "0", "OFF"].map(boolean),
            [true, true, true, false, false, false].map(Ok)
        );
        assert!(boolean("2").is_err());
        assert_eq!(log_level("WARNING"), Ok(LevelFilter::WARN));
        assert_eq!(log_level("critical"), Ok(LevelFilter::ERROR));
        assert!(log_level("10").is_err());
    }

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
