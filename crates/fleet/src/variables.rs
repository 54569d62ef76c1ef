//! The names of the environment variables by which a launcher tells a process what it is.
//!
//! One list for both sides: role makers read them, the launcher writes them, and nobody else touches either. What a value
//! means, and what is wrong with one, is the role makers' affair.

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
