//! The same job for somebody else's scheduler: one file each, from the same options to a text to be handed to it.
//!
//! What is printed stands by itself: it needs neither `fleetrun` nor this machine. The scheduler starts, watches and ends the
//! processes; the text tells each its role and rank by the variables that role makers read.

pub(crate) mod kubernetes;
pub(crate) mod mpi;
pub(crate) mod shell;
pub(crate) mod slurm;
mod yaml;

use super::layout::JobLayout;
use super::options::{JobOptions, RunMode};
use crate::error::{Error, Result};

/// The first port of servers where none was written, as in the original's cluster guides.
const SERVER_PORT: u16 = 36000;

/// How many servers and workers, for a scheduler that finds the machines itself.
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

/// The layout of a job with servers; others are not printed yet.
fn with_servers(job: &JobOptions, owner: &str) -> Result<JobLayout> {
    let layout = JobLayout::resolve(job)?;
    if layout.mode == RunMode::Collective {
        let option = if job.nproc_per_node.is_some() { "--nproc-per-node" } else { "--run-mode collective" };
        let takers = "`fleetrun` itself, on each machine with the same `--ips`";
        return Err(Error::MeaninglessOption { option, owner: owner.to_owned(), takers });
    }
    Ok(layout)
}
