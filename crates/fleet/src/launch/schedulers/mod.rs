//! The same job for another scheduler: one file each, from the same options to a text for it.
//!
//! The text is self-contained: it needs neither `fleetrun` nor this machine. The scheduler starts, supervises and ends the
//! processes; the text gives each its role and rank in the variables that role makers read.

pub(crate) mod kubernetes;
pub(crate) mod mpi;
pub(crate) mod shell;
pub(crate) mod slurm;
mod yaml;

use super::layout::{HostPort, JobLayout, LOOPBACK};
use super::options::{JobOptions, RunMode};
use crate::error::{Error, Result};

/// The first port of servers if none is given, as in PaddlePaddle's cluster guides.
const SERVER_PORT: u16 = 36000;

/// The numbers of servers and workers, for a scheduler that chooses the machines itself. A collective job has no servers.
fn counts(job: &JobOptions, owner: &str) -> Result<(usize, usize)> {
    let lists = [
        ("--servers", job.servers.is_some()),
        ("--workers", job.workers.is_some()),
        ("--ips", job.ips.is_some()),
        ("--nproc-per-node", job.nproc_per_node.is_some()),
        ("--nnodes", job.nnodes.is_some()),
        ("--master", job.master.is_some()),
        ("--rank", job.rank.is_some()),
        ("--gpus", job.gpus.is_some()),
    ];
    if let Some((option, _)) = lists.into_iter().find(|(_, given)| *given) {
        let takers = "machines that are known beforehand; here say how many processes there are, by `--server-num` and \
                      `--worker-num`, or by `--run-mode collective` and `--worker-num`";
        return Err(Error::MeaninglessOption { option, owner: owner.to_owned(), takers });
    }
    let layout = layout(job)?;
    Ok((layout.servers.len(), layout.workers.len()))
}

/// The layout of a job. Unlike `fleetrun` itself, schedulers count the ranks of a collective job by `--worker-num`: they know no
/// machines.
fn layout(job: &JobOptions) -> Result<JobLayout> {
    let machines = job.server_num.is_some() || job.servers.is_some() || job.workers.is_some();
    let machines = machines || job.ips.is_some() || job.nproc_per_node.is_some();
    let ranks = match (job.run_mode, job.worker_num.or(job.trainer_num)) {
        (Some(RunMode::Collective), Some(ranks)) if !machines => ranks,
        // Reports the options that contradict each other.
        _ => return JobLayout::resolve(job),
    };
    if job.trainer_num.is_some_and(|trainer_num| trainer_num != ranks) {
        let remedy = "they are two names of one option: give one of them";
        return Err(Error::Contradiction { first: "--worker-num", second: "--trainer-num", remedy });
    }
    let here = HostPort { host: LOOPBACK.into(), port: None, written: false };
    let workers = vec![here; ranks as usize];
    Ok(JobLayout {
        mode: RunMode::Collective,
        servers: vec![],
        workers,
        rendezvous: None,
        is_local: true,
        numbered: None,
    })
}

/// Fails if so many ports from the first on do not exist.
fn check_ports(start: u16, count: usize) -> Result<()> {
    match usize::from(start) + count > usize::from(u16::MAX) + 1 {
        true => Err(super::Error::PortRange { start: start.into(), count }.into()),
        false => Ok(()),
    }
}
