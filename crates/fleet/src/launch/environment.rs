//! The variables that tell each process its role.
//!
//! Each fact is written in up to three spellings: OpenFleet's, PaddlePaddle's, and for collective jobs torchrun's. Role
//! variables that a process should not have, left over in the user's shell or set by a scheduler, are removed, so that a
//! process never sees two jobs. The rest of the user's environment is passed on unchanged. That includes proxies, which
//! PaddlePaddle's launcher removes: OpenFleet's connections never use one, and the script may need them to fetch data.

use openfleet_core::Endpoint;
use openfleet_core::topology::{JobId, Role};

use super::options::RunMode;
use super::secret::Secret;
use crate::variables::{
    BIND, CURRENT_ENDPOINT, INCARNATION, JOB, JOB_FILE, MASTER, OWN_MASTER, OWN_RANK, OWN_ROLE, OWN_SERVERS,
    OWN_WORKER_COUNT, OWN_WORKERS, POD_IP, PORT, PROGRESS_FILE, RANK_IN_NODE, RESUME, RUN, SECRET, SERVERS,
    TRAINING_ROLE, WORKER_COUNT, WORKER_COUNT_OTHER, WORKER_ENDPOINTS, WORKER_RANK,
};

/// `TRAINING_ROLE` as PaddlePaddle's collective launcher spells it.
const ORIGINAL_COLLECTIVE_ROLE: &str = "PADDLE_TRAINING_ROLE";

/// A variable and its value.
pub type Variable = (&'static str, String);

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
    OWN_MASTER,
    MASTER,
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
    /// Empty if the addresses of other machines are not known: the workers meet at the rendezvous.
    pub workers: &'a [Endpoint],
    pub worker_count: usize,
    /// Collective: where the processes of torch meet, and the workers if they are not listed.
    pub rendezvous: Option<&'a Endpoint>,
    /// Collective: for workers that are not listed.
    pub workers_per_machine: usize,
}

/// The variables of one process, in the order in which they are shown. The caller adds the secret, the incarnation and what
/// depends on this machine.
pub(crate) fn variables(job: &Job<'_>, role: Role, rank: usize) -> Vec<Variable> {
    let joined = |endpoints: &[Endpoint]| endpoints.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(",");
    let workers = job.worker_count.to_string();
    let mut all: Vec<Variable> = vec![
        (JOB, job.name.to_string()),
        (OWN_ROLE, role.to_string()),
        (OWN_RANK, rank.to_string()),
        (OWN_WORKER_COUNT, workers.clone()),
    ];
    let own = match role {
        Role::Server => job.servers.get(rank),
        Role::Worker => job.workers.get(rank),
    };
    // Workers that are not listed meet at the rendezvous.
    let master = job.rendezvous.filter(|_| job.workers.is_empty());
    all.push(master.map_or_else(|| (OWN_WORKERS, joined(job.workers)), |master| (OWN_MASTER, master.to_string())));
    let original_role = match role {
        Role::Server => "PSERVER",
        Role::Worker => "TRAINER",
    };
    if job.mode == RunMode::Ps {
        all.push((OWN_SERVERS, joined(job.servers)));
        all.push((SERVERS, joined(job.servers)));
    }
    all.extend([(TRAINING_ROLE, original_role.to_owned()), (WORKER_COUNT, workers.clone())]);
    all.push(master.map_or_else(|| (WORKER_ENDPOINTS, joined(job.workers)), |master| (MASTER, master.to_string())));
    if let Some(own) = own {
        all.extend([(POD_IP, own.host().to_owned()), (PORT, own.port().to_string())]);
    }
    if role == Role::Worker {
        all.push((WORKER_RANK, rank.to_string()));
    }
    if job.mode == RunMode::Collective {
        let machine = match job.workers {
            [] => MachineOfWorker::numbered(job.workers_per_machine, job.worker_count, rank),
            workers => MachineOfWorker::of(workers, rank),
        };
        all.extend(own.map(|own| (CURRENT_ENDPOINT, own.to_string())));
        all.extend([
            (ORIGINAL_COLLECTIVE_ROLE, original_role.to_owned()),
            (RANK_IN_NODE, machine.local_rank.to_string()),
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", workers.clone()),
            ("LOCAL_RANK", machine.local_rank.to_string()),
            ("LOCAL_WORLD_SIZE", machine.workers.to_string()),
            ("GROUP_RANK", machine.index.to_string()),
            ("GROUP_WORLD_SIZE", machine.machines.to_string()),
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

/// The variables that change with every attempt of a process, and the secret. `resume` is the checkpoint that a restarted server,
/// or a restarted rank of a collective job, loads.
pub(crate) fn attempt_variables(attempt: u64, secret: &Secret, resume: Option<&str>) -> Vec<Variable> {
    let mut all = vec![(INCARNATION, attempt.to_string()), (SECRET, secret.expose().to_owned())];
    all.extend(resume.map(|address| (RESUME, address.to_owned())));
    all
}

/// The machine of a worker, in the order in which the list of workers first names each machine.
#[derive(Debug, PartialEq, Eq)]
struct MachineOfWorker {
    index: usize,
    /// The number of machines of the job.
    machines: usize,
    /// The number of workers on this machine.
    workers: usize,
    /// The rank of the worker among those of its machine.
    local_rank: usize,
}

impl MachineOfWorker {
    fn of(workers: &[Endpoint], rank: usize) -> Self {
        let mut machines: Vec<&str> = Vec::new();
        for host in workers.iter().map(Endpoint::host) {
            if !machines.contains(&host) {
                machines.push(host);
            }
        }
        let own = workers[rank].host();
        let here = |workers: &[Endpoint]| workers.iter().filter(|worker| worker.host() == own).count();
        MachineOfWorker {
            index: machines.iter().position(|host| *host == own).unwrap_or_default(),
            machines: machines.len(),
            workers: here(workers),
            local_rank: here(&workers[..rank]),
        }
    }

    /// Of machines that have as many workers each.
    fn numbered(workers: usize, all: usize, rank: usize) -> Self {
        let workers = workers.max(1);
        MachineOfWorker { index: rank / workers, machines: all / workers, workers, local_rank: rank % workers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_counted_per_machine_however_they_are_spread() {
        let hosts = ["a", "b", "a", "c", "a"];
        let workers: Vec<Endpoint> = (1..).zip(hosts).map(|(port, host)| Endpoint::new(host, port).unwrap()).collect();
        let found: Vec<[usize; 4]> = (0..workers.len())
            .map(|rank| MachineOfWorker::of(&workers, rank))
            .map(|machine| [machine.index, machine.machines, machine.workers, machine.local_rank])
            .collect();
        assert_eq!(found, [[0, 3, 3, 0], [1, 3, 1, 0], [0, 3, 3, 1], [2, 3, 1, 0], [0, 3, 3, 2]]);
    }
}
