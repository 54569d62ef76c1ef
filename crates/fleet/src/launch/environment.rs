//! The variables that tell each process its role.
//!
//! Each fact is written in up to three spellings: OpenFleet's, PaddlePaddle's, and for collective jobs torchrun's. Role
//! variables that a process should not have, left over in the user's shell or set by a scheduler, are removed, so that a
//! process never sees two jobs. The rest of the user's environment is passed on unchanged. That includes proxies, which
//! PaddlePaddle's launcher removes: OpenFleet's connections never use one, and the script may need them to fetch data.

use openfleet_core::Endpoint;
use openfleet_core::topology::{JobId, Role};

use super::options::RunMode;
use crate::variables::{
    BIND, CURRENT_ENDPOINT, INCARNATION, JOB, JOB_FILE, OWN_RANK, OWN_ROLE, OWN_SERVERS, OWN_WORKER_COUNT, OWN_WORKERS,
    POD_IP, PORT, PROGRESS_FILE, RANK_IN_NODE, RESUME, RUN, SECRET, SERVERS, TRAINING_ROLE, WORKER_COUNT,
    WORKER_COUNT_OTHER, WORKER_ENDPOINTS, WORKER_RANK,
};

/// `TRAINING_ROLE` as PaddlePaddle's collective launcher spells it.
const ORIGINAL_COLLECTIVE_ROLE: &str = "PADDLE_TRAINING_ROLE";

/// A variable and its value.
pub(crate) type Variable = (&'static str, String);

/// All variables that tell a process its role. A process gets only those that were written for it.
pub(crate) const ROLE_VARIABLES: &[&str] = &[
    TRAINING_ROLE,
    SERVERS,
    WORKER_COUNT,
    WORKER_COUNT_OTHER,
    WORKER_RANK,
    WORKER_ENDPOINTS,
    POD_IP,
    PORT,
    CURRENT_ENDPOINT,
    RANK_IN_NODE,
    OWN_ROLE,
    OWN_RANK,
    OWN_SERVERS,
    OWN_WORKER_COUNT,
    OWN_WORKERS,
    JOB,
    SECRET,
    INCARNATION,
    BIND,
    PROGRESS_FILE,
    RUN,
    RESUME,
    JOB_FILE,
    ORIGINAL_COLLECTIVE_ROLE,
    // torchrun
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
];

/// What all processes of one job have in common.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub mode: RunMode,
    pub name: &'a JobId,
    pub servers: &'a [Endpoint],
    pub workers: &'a [Endpoint],
    /// Collective: where the processes of torch meet.
    pub rendezvous: Option<&'a Endpoint>,
    /// Collective: the number of machines, and the workers per machine.
    pub machines: usize,
    pub workers_per_machine: usize,
}

/// The variables of one process, in the order in which they are shown. The caller adds the secret, the incarnation and what
/// depends on this machine.
pub(crate) fn variables(job: &Job<'_>, role: Role, rank: usize) -> Vec<Variable> {
    let joined = |endpoints: &[Endpoint]| endpoints.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(",");
    let workers = job.workers.len().to_string();
    let mut all: Vec<Variable> = vec![
        (JOB, job.name.to_string()),
        (OWN_ROLE, role.to_string()),
        (OWN_RANK, rank.to_string()),
        (OWN_WORKER_COUNT, workers.clone()),
        (OWN_WORKERS, joined(job.workers)),
    ];
    let own = match role {
        Role::Server => &job.servers[rank],
        Role::Worker => &job.workers[rank],
    };
    let original_role = match role {
        Role::Server => "PSERVER",
        Role::Worker => "TRAINER",
    };
    if job.mode == RunMode::Ps {
        all.push((OWN_SERVERS, joined(job.servers)));
        all.push((SERVERS, joined(job.servers)));
    }
    all.extend([
        (TRAINING_ROLE, original_role.to_owned()),
        (WORKER_COUNT, workers.clone()),
        (WORKER_ENDPOINTS, joined(job.workers)),
        (POD_IP, own.host().to_owned()),
        (PORT, own.port().to_string()),
    ]);
    if role == Role::Worker {
        all.push((WORKER_RANK, rank.to_string()));
    }
    if job.mode == RunMode::Collective {
        let here = job.workers_per_machine.max(1);
        all.extend([
            (ORIGINAL_COLLECTIVE_ROLE, original_role.to_owned()),
            (CURRENT_ENDPOINT, own.to_string()),
            (RANK_IN_NODE, (rank % here).to_string()),
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", workers.clone()),
            ("LOCAL_RANK", (rank % here).to_string()),
            ("LOCAL_WORLD_SIZE", here.to_string()),
            ("GROUP_RANK", (rank / here).to_string()),
            ("GROUP_WORLD_SIZE", job.machines.to_string()),
            ("ROLE_RANK", rank.to_string()),
            ("ROLE_NAME", "default".to_owned()),
            ("ROLE_WORLD_SIZE", workers),
            ("TORCHELASTIC_RESTART_COUNT", "0".to_owned()),
            ("TORCHELASTIC_MAX_RESTARTS", "0".to_owned()),
            ("TORCHELASTIC_RUN_ID", job.name.to_string()),
        ]);
        if let Some(rendezvous) = job.rendezvous {
            all.push(("MASTER_ADDR", rendezvous.host().to_owned()));
            all.push(("MASTER_PORT", rendezvous.port().to_string()));
        }
    }
    all
}
