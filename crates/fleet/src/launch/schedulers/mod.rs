//! The same job for another scheduler: one file each, from the same options to a text for it.
//!
//! The text is self-contained: it needs neither `fleetrun` nor this machine. The scheduler starts, supervises and ends the
//! processes; the text gives each its role and rank in the variables that role makers read.

pub(crate) mod kubernetes;
pub(crate) mod mpi;
pub(crate) mod shell;
pub(crate) mod slurm;
mod yaml;

use super::layout::JobLayout;
use super::options::{JobOptions, RunMode};
use crate::error::{Error, Result};

/// The first port of servers if none is given, as in PaddlePaddle's cluster guides.
const SERVER_PORT: u16 = 36000;

/// The numbers of servers and workers, for a scheduler that chooses the machines itself.
fn counts(job: &JobOptions, owner: &str) -> Result<(usize, usize)> {
    let lists =
        [("--servers", job.servers.is_some()), ("--workers", job.workers.is_some()), ("--ips", job.ips.is_some())];
    if let Some((option, _)) = lists.into_iter().find(|(_, given)| *given) {
        let takers = "machines that are known beforehand; here say how many, by `--server-num` and `--worker-num`";
        return Err(Error::MeaninglessOption { option, owner: owner.to_owned(), takers });
    }
    let layout = with_servers(job, owner)?;
    Ok((layout.servers.len(), layout.workers.len()))
}

/// The layout of a job with servers; collective jobs are not supported yet.
fn with_servers(job: &JobOptions, owner: &str) -> Result<JobLayout> {
    let layout = JobLayout::resolve(job)?;
    if layout.mode == RunMode::Collective {
        let option = if job.nproc_per_node.is_some() { "--nproc-per-node" } else { "--run-mode collective" };
        let takers = "`fleetrun` itself, on each machine with the same `--ips`";
        return Err(Error::MeaninglessOption { option, owner: owner.to_owned(), takers });
    }
    Ok(layout)
}
