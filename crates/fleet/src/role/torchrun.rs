//! The rank from torchrun's variables: a collective job, whose workers meet at `MASTER_ADDR:MASTER_PORT`.

use openfleet_core::{Endpoint, Topology};

use super::error::{Error, Result};
use super::read::{Read, count, number, read};
use super::{Assignment, RoleMaker, Settings, mpi};
use crate::variables::{self as names, Variables};

/// The rank from torchrun's variables.
#[derive(Debug, Clone, Copy, Default)]
pub struct Torchrun;

/// `RANK` alone is a common name; with `WORLD_SIZE` it is torchrun's.
pub(super) fn applies(variables: &Variables) -> bool {
    variables.get(names::TORCH_RANK).is_some() && variables.get(names::TORCH_WORLD_SIZE).is_some()
}

impl RoleMaker for Torchrun {
    fn source(&self, _variables: &Variables) -> String {
        "rank from torchrun's RANK and WORLD_SIZE".into()
    }

    fn assign(&self, variables: &Variables, _settings: &Settings) -> Result<Assignment> {
        let required = |name, what| Error::Missing {
            name,
            needed: format!("a collective worker needs {what}"),
            hint: "start the workers with `fleetrun --nproc_per_node` or `torchrun`".into(),
        };
        let rank = read(variables, names::TORCH_RANK, number)?;
        let rank = rank.ok_or_else(|| required(names::TORCH_RANK, "its rank"))?;
        let size = read(variables, names::TORCH_WORLD_SIZE, count)?;
        let size = size.ok_or_else(|| required(names::TORCH_WORLD_SIZE, "the number of workers"))?;
        if rank.value >= size.value {
            let expected = format!("a rank from 0 to {} because of `{}` = `{}`", size.value - 1, size.name, size.text);
            return Err(rank.wrong(expected, Some("ranks begin at 0".into())));
        }
        if let Some((mpi_rank, mpi_size)) = mpi::rank_and_size(variables)? {
            let hint = "unset one family of variables, or start the job with one launcher";
            if mpi_size.value != size.value {
                return Err(size.contradicts(&mpi_size, hint));
            }
            if mpi_rank.value != rank.value {
                return Err(rank.contradicts(&mpi_rank, hint));
            }
        }
        let meet = "the place where workers meet";
        let address = variables.get(names::TORCH_MASTER_ADDR);
        let address = address.ok_or_else(|| required(names::TORCH_MASTER_ADDR, meet))?;
        let port = read(variables, names::TORCH_MASTER_PORT, |text| {
            let port = number(text).ok().and_then(|port| u16::try_from(port).ok());
            port.filter(|&port| port > 0).ok_or_else(|| "a port from 1 to 65535".into())
        })?;
        let port = port.ok_or_else(|| required(names::TORCH_MASTER_PORT, meet))?;
        let rendezvous = Endpoint::new(address, port.value).map_err(|_| Error::Value {
            name: names::TORCH_MASTER_ADDR,
            value: address.to_owned(),
            expected: "an address without a port".into(),
            hint: None,
        })?;
        let topology = Topology::collective(rank.value, size.value, Vec::new(), Some(rendezvous))?;
        // Jobs of torchrun were written for closed networks and know no secrets.
        Ok(Assignment { trusts_private_network: true, ..topology.into() })
    }
}

/// Fails if torchrun's variables are also set and disagree: both describe the same collective job.
pub(super) fn check_same(variables: &Variables, rank: &Read<usize>, workers: &Read<Vec<Endpoint>>) -> Result<()> {
    let hint = "unset one family of variables, or start the job with one launcher";
    if !applies(variables) {
        return Ok(());
    }
    match read(variables, names::TORCH_WORLD_SIZE, count)? {
        Some(size) if size.value != workers.value.len() => return Err(workers.contradicts(&size, hint)),
        _ => {}
    }
    match read(variables, names::TORCH_RANK, number)? {
        Some(other) if other.value != rank.value => Err(rank.contradicts(&other, hint)),
        _ => Ok(()),
    }
}
