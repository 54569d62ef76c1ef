//! The rank of a collective job from MPI's or Slurm's variables: every process is a worker, and any number of them is fine.
//!
//! The variables contain no addresses. On one machine rank 0 chooses a port and the others learn it, with a new secret, at the
//! [rendezvous](super::rendezvous); on several machines `OPENFLEET_RENDEZVOUS` is where the ranks meet. If they exchange data by
//! MPI, the library knows the addresses.

use openfleet_core::Topology;
use openfleet_dist::handshake::Secret;

use super::error::{Error, Result};
use super::read::Read;
use super::rendezvous::{self, MeetingPoint, Participant};
use super::{Assignment, CollectiveBackend, RoleMaker, Settings, mpi, slurm};
use crate::variables::{self as names, Variables};

/// The rank of a collective job from MPI's or Slurm's variables.
#[derive(Debug, Clone, Copy, Default)]
pub struct SchedulerRanks;

/// Whether there are several processes of MPI, or several tasks of a Slurm step.
pub(super) fn applies(variables: &Variables) -> bool {
    mpi::applies(variables) || slurm::applies(variables)
}

/// Rank and size: MPI's, else Slurm's.
fn rank_and_size(variables: &Variables) -> Result<Option<(Read<usize>, Read<usize>)>> {
    match mpi::rank_and_size(variables)? {
        None => slurm::rank_and_size(variables),
        found => Ok(found),
    }
}

impl RoleMaker for SchedulerRanks {
    fn source(&self, variables: &Variables) -> String {
        match rank_and_size(variables) {
            Ok(Some((rank, _))) if rank.name == names::SLURM_RANK => format!("rank from Slurm's {}", rank.name),
            Ok(Some((rank, _))) => format!("rank from MPI's {}", rank.name),
            _ => "rank from MPI or Slurm".into(),
        }
    }

    fn assign(&self, variables: &Variables, settings: &Settings) -> Result<Assignment> {
        let Some((rank, size)) = rank_and_size(variables)? else {
            return Err(Error::Missing {
                name: "OMPI_COMM_WORLD_RANK",
                needed: "a process of an MPI job needs its rank".into(),
                hint: "start the processes with `mpirun` or `srun`".into(),
            });
        };
        let collective = |meeting| Topology::collective(rank.value, size.value, Vec::new(), meeting);
        if settings.collective_backend == CollectiveBackend::Mpi {
            return Ok(collective(None)?.into());
        }
        let place = mpi::place(variables, settings, &size)?;
        if let MeetingPoint::Address(at) = place {
            return Ok(collective(Some(at))?.into());
        }
        let reserved = if rank.value == 0 { Some(mpi::reserve(&place.bind())?) } else { None };
        let (reserved, port) = reserved.unzip();
        // Not the name of the job: a proof of this handshake is not valid where the ranks connect.
        let job = format!("{} rendezvous", settings.job);
        let participant = Participant { rank: rank.value, size: size.value, job, port };
        let met = rendezvous::meet(&participant, &place, &settings.secret, settings.wait_limit)?;
        let secret = if settings.secret.is_empty() { met.secret } else { settings.secret.clone() };
        let topology = collective(met.servers.into_iter().next())?;
        let secret = Some(secret).filter(|secret| !Secret::is_empty(secret));
        Ok(Assignment { secret, reserved, ..topology.into() })
    }
}
