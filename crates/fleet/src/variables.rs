//! The names of the environment variables that tell a process its role.
//!
//! There is one list for both sides: role makers read them and the launcher writes them. Role makers know what a value means
//! and which values are valid. [`Variables`] is the environment they are read from; it is passed in, so that several processes
//! of a job fit into one test.

use std::collections::BTreeMap;

/// `PSERVER` or `TRAINER`.
pub const TRAINING_ROLE: &str = "TRAINING_ROLE";
/// All servers of the job, `ip:port,ip:port,...`, in rank order.
pub const SERVERS: &str = "PADDLE_PSERVERS_IP_PORT_LIST";
/// The number of workers.
pub const WORKER_COUNT: &str = "PADDLE_TRAINERS_NUM";
/// The same, as one Kubernetes operator spells it.
pub const WORKER_COUNT_OTHER: &str = "PADDLE_TRAINER_NUM";
/// The rank of a worker. Some launchers set it on servers too; it does not make a process a worker.
pub const WORKER_RANK: &str = "PADDLE_TRAINER_ID";
/// The endpoints of all workers, in rank order.
pub const WORKER_ENDPOINTS: &str = "PADDLE_TRAINER_ENDPOINTS";
/// The address of this server; with [`PORT`] an element of [`SERVERS`].
pub const POD_IP: &str = "POD_IP";
/// The port of this server.
pub const PORT: &str = "PADDLE_PORT";
/// The endpoint of this collective worker, an element of [`WORKER_ENDPOINTS`].
pub const CURRENT_ENDPOINT: &str = "PADDLE_CURRENT_ENDPOINT";
/// The index of this collective worker on its machine.
pub const RANK_IN_NODE: &str = "PADDLE_RANK_IN_NODE";

/// `server` or `worker`: OpenFleet's own spelling.
pub const OWN_ROLE: &str = "OPENFLEET_ROLE";
/// The rank of this process within its role.
pub const OWN_RANK: &str = "OPENFLEET_RANK";
/// All servers of the job.
pub const OWN_SERVERS: &str = "OPENFLEET_SERVERS";
/// The number of workers.
pub const OWN_WORKER_COUNT: &str = "OPENFLEET_WORKER_NUM";
/// The endpoints of all workers.
pub const OWN_WORKERS: &str = "OPENFLEET_WORKERS";
/// Where the workers of a collective job meet, if their endpoints are not listed: `host:port` on the machine of rank 0.
pub const OWN_MASTER: &str = "OPENFLEET_MASTER";
/// The same, as PaddlePaddle's launcher spells it.
pub const MASTER: &str = "PADDLE_MASTER";
/// The name of the job; processes of other jobs are refused.
pub const JOB: &str = "OPENFLEET_JOB";
/// The shared secret of the job. It is never logged.
pub const SECRET: &str = "OPENFLEET_SECRET";
/// The attempt of this rank, counted from 1; an older process of the same rank is refused.
pub const INCARNATION: &str = "OPENFLEET_INCARNATION";
/// The address that a server binds to, if it differs from its endpoint's host.
pub const BIND: &str = "OPENFLEET_BIND";
/// The seconds that a worker waits for its servers.
pub const WAIT_SECONDS: &str = "OPENFLEET_WAIT_SECONDS";
/// The file in which a process reports its progress to the launcher (one line, replaced atomically).
pub const PROGRESS_FILE: &str = "OPENFLEET_PROGRESS_FILE";
/// The identity of a run: 16 hexadecimal digits, made once per launch, the same for all processes and restarts.
pub const RUN: &str = "OPENFLEET_RUN";
/// The newest checkpoint that this run has committed. Only restarted servers have it.
pub const RESUME: &str = "OPENFLEET_RESUME";
/// The file in which the launcher tells processes the state of the job ([`JobFile`](crate::job_file::JobFile)).
pub const JOB_FILE: &str = "OPENFLEET_JOB_FILE";
/// Where the processes of an MPI job on several machines meet: `host:port` on the machine of rank 0.
pub const RENDEZVOUS: &str = "OPENFLEET_RENDEZVOUS";
/// How the ranks of a collective job exchange data: `tcp` or `mpi`.
pub const COLLECTIVE_BACKEND: &str = "OPENFLEET_COLLECTIVE_BACKEND";
/// The certificate of a server that uses TLS, a PEM file.
pub const TLS_CERTIFICATE: &str = "OPENFLEET_TLS_CERTIFICATE";
/// The private key of [`TLS_CERTIFICATE`], a PEM file.
pub const TLS_KEY: &str = "OPENFLEET_TLS_KEY";
/// The authorities that a worker trusts, a PEM file; the worker then uses TLS.
pub const TLS_AUTHORITY: &str = "OPENFLEET_TLS_AUTHORITY";
/// The log level: `error`, `warn`, `info`, `debug`, `trace` or `off`.
pub const LOG: &str = "OPENFLEET_LOG";
/// `PSERVER` or `TRAINER`, as collective launchers spell it.
pub const TRAINING_ROLE_OTHER: &str = "PADDLE_TRAINING_ROLE";
/// Training threads per worker.
pub const THREADS: &str = "CPU_NUM";

/// torchrun: the rank of this process.
pub const TORCH_RANK: &str = "RANK";
/// torchrun: the number of processes.
pub const TORCH_WORLD_SIZE: &str = "WORLD_SIZE";
/// torchrun: the machine of rank 0.
pub const TORCH_MASTER_ADDR: &str = "MASTER_ADDR";
/// torchrun: a port on that machine.
pub const TORCH_MASTER_PORT: &str = "MASTER_PORT";

/// Slurm: the number of this task within its step.
pub const SLURM_RANK: &str = "SLURM_PROCID";
/// Slurm: the number of tasks of the step.
pub const SLURM_STEP_TASKS: &str = "SLURM_STEP_NUM_TASKS";
/// Slurm: the same, or the tasks of the whole allocation outside a step.
pub const SLURM_TASKS: &str = "SLURM_NTASKS";
/// Slurm: the name of the job; `bash` or `interactive` in an interactive session.
pub const SLURM_JOB_NAME: &str = "SLURM_JOB_NAME";
/// Slurm: the number of machines of the step.
pub const SLURM_STEP_NODES: &str = "SLURM_STEP_NUM_NODES";
/// Slurm: the number of machines of the allocation.
pub const SLURM_NODES: &str = "SLURM_NNODES";

/// The environment of a process, or a test's replacement for it.
///
/// An empty variable counts as not set, because launchers pass empty strings for "nothing".
#[derive(Clone, Default)]
pub struct Variables(BTreeMap<String, String>);

impl Variables {
    /// The variables of this process. Text that is not Unicode is read with replacement characters, which no valid value
    /// contains.
    pub fn of_process() -> Self {
        std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
            .collect()
    }

    /// The trimmed value of a variable; `None` if it is empty or not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// Whether any of these is set.
    pub fn any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.get(name).is_some())
    }

    /// Sets a variable.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }
}

/// Prints names only, because a value may be a secret.
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
