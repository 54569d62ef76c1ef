//! The role from the rank of an MPI job: even ranks are servers, odd ranks are workers, the index is half the rank.
//!
//! Rank and size come from the variables of `mpirun`; no MPI library is needed. Those variables contain no addresses, so the
//! ranks exchange addresses once, at a [rendezvous](super::rendezvous) that rank 0 hosts. On one machine it is found through a
//! file in the user's temporary directory that is named after the job, so `mpirun -n 4 program` needs nothing else. On several
//! machines `OPENFLEET_RENDEZVOUS` gives its address. [`SchedulerRanks`](super::SchedulerRanks) is for collective jobs.

use std::path::PathBuf;

use openfleet_core::{Endpoint, Role, Topology};
use openfleet_dist::handshake::Secret;
use tokio::net::TcpSocket;

use super::error::{Error, Result};
use super::read::{Read, count, endpoint, number, read};
use super::rendezvous::{self, MeetingPoint, Participant};
use super::{Assignment, ReservedPort, RoleMaker, Settings, own_file};
use crate::variables::{self as names, Variables};

/// The role from the rank of an MPI job.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mpi;

/// Rank and size: Open MPI, then PMI (MPICH, Intel MPI, Slurm), then MVAPICH.
const FAMILIES: [(&str, &str); 3] = [
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
];

/// PMIx has a rank but no size; Slurm, which may be its launcher, has the size.
const PMIX_RANK: &str = "PMIX_RANK";

/// Processes of the job on this machine.
const LOCAL_SIZES: [&str; 3] = ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE"];

/// Variables that distinguish one `mpirun` from another on the same machine, best first.
const JOB_NAMES: [&str; 4] = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid", "PMI_JOBID"];

/// Whether there are several MPI processes. A single process trains locally.
pub(super) fn applies(variables: &Variables) -> bool {
    match rank_and_size(variables) {
        Ok(found) => found.is_some_and(|(_, size)| size.value > 1),
        // `assign` reports the error.
        Err(_) => true,
    }
}

/// Rank and size; families of variables that are both set must agree.
pub(super) fn rank_and_size(variables: &Variables) -> Result<Option<(Read<usize>, Read<usize>)>> {
    let mut found: Option<(Read<usize>, Read<usize>)> = None;
    for (rank_name, size_name) in FAMILIES {
        let (rank, size) = match (read(variables, rank_name, number)?, read(variables, size_name, count)?) {
            (None, None) => continue,
            (Some(rank), Some(size)) => (rank, size),
            (rank, _) => {
                let (name, other) = if rank.is_some() { (size_name, rank_name) } else { (rank_name, size_name) };
                return Err(Error::Missing {
                    name,
                    needed: format!("`{other}` is set, and both are needed"),
                    hint: "start the processes with `mpirun`, or unset both".into(),
                });
            }
        };
        if rank.value >= size.value {
            let expected = format!("a rank from 0 to {} because of `{}` = `{}`", size.value - 1, size.name, size.text);
            return Err(rank.wrong(expected, None));
        }
        match &found {
            None => found = Some((rank, size)),
            Some((first_rank, first_size)) => {
                let hint = "start the job with one `mpirun`, not inside another";
                if first_size.value != size.value {
                    return Err(first_size.contradicts(&size, hint));
                }
                if first_rank.value != rank.value {
                    return Err(first_rank.contradicts(&rank, hint));
                }
            }
        }
    }
    if found.is_none()
        && let Some(rank) = read(variables, PMIX_RANK, number)?
    {
        let size = match read(variables, names::SLURM_STEP_TASKS, count)? {
            Some(size) => Some(size),
            None => read(variables, names::SLURM_TASKS, count)?,
        };
        found = size.filter(|size| rank.value < size.value).map(|size| (rank, size));
    }
    Ok(found)
}

impl RoleMaker for Mpi {
    fn source(&self, variables: &Variables) -> String {
        let name = rank_and_size(variables).ok().flatten().map_or("OMPI_COMM_WORLD_RANK", |(rank, _)| rank.name);
        format!("role from MPI's {name}")
    }

    fn assign(&self, variables: &Variables, settings: &Settings) -> Result<Assignment> {
        let Some((rank, size)) = rank_and_size(variables)? else {
            return Err(Error::Missing {
                name: FAMILIES[0].0,
                needed: "a process of an MPI job needs its rank".into(),
                hint: "start the processes with `mpirun -n 4`, or any other even number".into(),
            });
        };
        if !size.value.is_multiple_of(2) {
            return Err(Error::OddSize { name: size.name, size: size.value });
        }
        let place = place(variables, settings, &size)?;
        let role = if rank.value.is_multiple_of(2) { Role::Server } else { Role::Worker };
        let bind = place.bind();
        let reserved = match role {
            Role::Server => Some(reserve(&bind)?),
            Role::Worker => None,
        };
        let (reserved, port) = reserved.unzip();
        let participant = Participant {
            rank: rank.value,
            size: size.value,
            // Not the job name that servers use: a proof of this handshake is not valid there.
            job: format!("{} rendezvous", settings.job),
            port,
        };
        let met = rendezvous::meet(&participant, &place, &settings.secret, settings.wait_limit)?;
        let secret = if settings.secret.is_empty() { met.secret } else { settings.secret.clone() };
        let topology = Topology::new(role, rank.value / 2, met.servers, size.value / 2, Vec::new())?;
        let secret = Some(secret).filter(|s| !Secret::is_empty(s));
        Ok(Assignment { bind: Some(bind), secret, reserved, ..topology.into() })
    }
}

/// The meeting point of the ranks.
pub(super) fn place(variables: &Variables, settings: &Settings, size: &Read<usize>) -> Result<MeetingPoint> {
    if let Some(at) = read(variables, names::RENDEZVOUS, endpoint)? {
        let rendezvous: Endpoint = at.value;
        if settings.secret.is_empty() && !rendezvous::is_loopback(rendezvous.host()) {
            return Err(Error::NoSecret { rendezvous });
        }
        return Ok(MeetingPoint::Address(rendezvous));
    }
    let mut here = None;
    for name in LOCAL_SIZES {
        here = match here {
            None => read(variables, name, count)?,
            found => found,
        };
    }
    let elsewhere = match &here {
        Some(here) => here.value < size.value,
        None => {
            let nodes = match read(variables, names::SLURM_STEP_NODES, count)? {
                Some(nodes) => Some(nodes),
                None => read(variables, names::SLURM_NODES, count)?,
            };
            nodes.is_some_and(|nodes| nodes.value > 1)
        }
    };
    if elsewhere {
        return Err(Error::Missing {
            name: names::RENDEZVOUS,
            needed: "the processes are on several machines and must exchange their addresses".into(),
            hint: match size.name {
                names::SLURM_STEP_TASKS | names::SLURM_TASKS => {
                    "choose a free port on the machine of rank 0, and export `OPENFLEET_RENDEZVOUS=node1:36000` and \
                     `OPENFLEET_SECRET=...` in the job script"
                }
                _ => {
                    "choose a free port on the machine of rank 0, as in `mpirun -x OPENFLEET_RENDEZVOUS=node1:36000 -x \
                     OPENFLEET_SECRET=...`"
                }
            }
            .into(),
        });
    }
    let temporary = variables.get("TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
    Ok(MeetingPoint::File { temporary, name: job_name(variables, settings) })
}

/// A file name that only the processes of this `mpirun` share.
fn job_name(variables: &Variables, settings: &Settings) -> String {
    let step = || {
        let (job, step) = (variables.get("SLURM_JOB_ID")?, variables.get("SLURM_STEP_ID")?);
        Some(format!("slurm-{job}-{step}"))
    };
    let named = JOB_NAMES.iter().find_map(|name| variables.get(name)).map(str::to_owned).or_else(step);
    // MPICH has no job name, but its processes on one machine have the same parent process.
    let named = named.unwrap_or_else(|| format!("child-of-{}", own_file::parent_id()));
    let letters = named.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' });
    format!("mpi-{}-{}", settings.job, letters.take(100).collect::<String>())
}

/// Reserves a free port on an address.
pub(super) fn reserve(address: &str) -> Result<(ReservedPort, u16)> {
    let reserve = || {
        let address = std::net::SocketAddr::new(address.parse().map_err(std::io::Error::other)?, 0);
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.bind(address)?;
        let port = socket.local_addr()?.port();
        Ok((ReservedPort(socket), port))
    };
    reserve().map_err(|source| Error::Io { action: "find a free port on", place: format!("`{address}`"), source })
}
