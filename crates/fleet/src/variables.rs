//! The names of the environment variables by which a launcher tells a process what it is.
//!
//! One list for both sides: role makers read them, the launcher writes them, and nobody else touches either. What a value
//! means, and what is wrong with one, is the role makers' affair. [`Variables`] is where they are read from: handed in, so
//! that several processes of a job fit into one test.

use std::collections::BTreeMap;

/// `PSERVER` or `TRAINER`.
pub const TRAINING_ROLE: &str = "TRAINING_ROLE";
/// Every server of the job, `ip:port,ip:port,...`, in rank order.
pub const SERVERS: &str = "PADDLE_PSERVERS_IP_PORT_LIST";
/// How many workers the job has.
pub const WORKER_COUNT: &str = "PADDLE_TRAINERS_NUM";
/// The same, as one operator spells it.
pub const WORKER_COUNT_OTHER: &str = "PADDLE_TRAINER_NUM";
/// A worker's rank. Some launchers set it on servers too: it does not make a worker.
pub const WORKER_RANK: &str = "PADDLE_TRAINER_ID";
/// Every worker's own endpoint, in rank order.
pub const WORKER_ENDPOINTS: &str = "PADDLE_TRAINER_ENDPOINTS";
/// A server's own address; with [`PORT`] an element of [`SERVERS`].
pub const POD_IP: &str = "POD_IP";
/// A server's own port.
pub const PORT: &str = "PADDLE_PORT";
/// A collective worker's own endpoint, an element of [`WORKER_ENDPOINTS`].
pub const CURRENT_ENDPOINT: &str = "PADDLE_CURRENT_ENDPOINT";
/// A collective worker's index on its machine.
pub const RANK_IN_NODE: &str = "PADDLE_RANK_IN_NODE";

/// `server` or `worker`: our own spelling of the variables above.
pub const OWN_ROLE: &str = "OPENFLEET_ROLE";
/// This process's rank within its role.
pub const OWN_RANK: &str = "OPENFLEET_RANK";
/// Every server of the job.
pub const OWN_SERVERS: &str = "OPENFLEET_SERVERS";
/// How many workers the job has.
pub const OWN_WORKER_COUNT: &str = "OPENFLEET_WORKER_NUM";
/// Every worker's own endpoint.
pub const OWN_WORKERS: &str = "OPENFLEET_WORKERS";
/// The job's name: processes of another job are refused.
pub const JOB: &str = "OPENFLEET_JOB";
/// The job's shared secret. It never reaches a log.
pub const SECRET: &str = "OPENFLEET_SECRET";
/// How often this process was started before, from 1 on: an older one of the same rank is refused.
pub const INCARNATION: &str = "OPENFLEET_INCARNATION";
/// The address a server binds to, where it is not the one the others reach it by.
pub const BIND: &str = "OPENFLEET_BIND";
/// How many seconds a worker waits for its servers.
pub const WAIT_SECONDS: &str = "OPENFLEET_WAIT_SECONDS";
/// The file in which a process tells the launcher how it is doing (one line, replaced whole).
pub const PROGRESS_FILE: &str = "OPENFLEET_PROGRESS_FILE";
/// The identity of a run: 16 hexadecimal digits, made once per launch, the same for every process and every restart.
pub const RUN: &str = "OPENFLEET_RUN";
/// The newest checkpoint that this run has committed. Only servers that are started again have it.
pub const RESUME: &str = "OPENFLEET_RESUME";
/// The file in which the launcher tells processes what it knows of the job ([`JobFile`](crate::job_file::JobFile)).
pub const JOB_FILE: &str = "OPENFLEET_JOB_FILE";
/// Where processes of an MPI job on several machines find each other: `host:port` on the machine of rank 0.
pub const RENDEZVOUS: &str = "OPENFLEET_RENDEZVOUS";
/// A server's certificate, a PEM file: it then speaks TLS.
pub const TLS_CERTIFICATE: &str = "OPENFLEET_TLS_CERTIFICATE";
/// The private key of [`TLS_CERTIFICATE`], a PEM file.
pub const TLS_KEY: &str = "OPENFLEET_TLS_KEY";
/// The authorities whose certificates a worker trusts, a PEM file: it then expects TLS.
pub const TLS_AUTHORITY: &str = "OPENFLEET_TLS_AUTHORITY";
/// What the program `openfleet` logs: `error`, `warn`, `info`, `debug`, `trace` or `off`.
pub const LOG: &str = "OPENFLEET_LOG";
/// `PSERVER` or `TRAINER`, as collective launchers spell it.
pub const TRAINING_ROLE_OTHER: &str = "PADDLE_TRAINING_ROLE";
/// Training threads of a worker.
pub const THREADS: &str = "CPU_NUM";

/// torchrun: this process's rank.
pub const TORCH_RANK: &str = "RANK";
/// torchrun: how many processes there are.
pub const TORCH_WORLD_SIZE: &str = "WORLD_SIZE";
/// torchrun: the machine of rank 0.
pub const TORCH_MASTER_ADDR: &str = "MASTER_ADDR";
/// torchrun: a port on it.
pub const TORCH_MASTER_PORT: &str = "MASTER_PORT";

/// Slurm: this task's number within its step.
pub const SLURM_RANK: &str = "SLURM_PROCID";
/// Slurm: how many tasks the step has.
pub const SLURM_STEP_TASKS: &str = "SLURM_STEP_NUM_TASKS";
/// Slurm: the same, or the tasks of the whole allocation outside a step.
pub const SLURM_TASKS: &str = "SLURM_NTASKS";
/// Slurm: the job's name; `bash` or `interactive` where a person sits before it.
pub const SLURM_JOB_NAME: &str = "SLURM_JOB_NAME";
/// Slurm: how many machines the step has.
pub const SLURM_STEP_NODES: &str = "SLURM_STEP_NUM_NODES";
/// Slurm: how many machines the allocation has.
pub const SLURM_NODES: &str = "SLURM_NNODES";

/// The environment of a process, or what a test takes for it.
///
/// A variable without text counts as one that is not set: launchers hand down empty strings for "nothing".
#[derive(Clone, Default)]
pub struct Variables(BTreeMap<String, String>);

impl Variables {
    /// Those of this process, as they are now. Text that is not Unicode is read with replacement characters, which no
    /// value of ours has.
    pub fn of_process() -> Self {
        std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
            .collect()
    }

    /// The text of a variable without blanks around it, if it has any.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// Whether any of these has text.
    pub fn any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.get(name).is_some())
    }

    /// With one more variable, or another value for it.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }
}

/// Names only: a value may be a secret.
impl std::fmt::Debug for Variables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Variables {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Variables(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}
