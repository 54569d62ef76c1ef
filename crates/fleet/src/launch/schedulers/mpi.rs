//! An `mpirun` script: one call with several contexts, servers first, for clusters where only MPI can start processes. The ranks
//! of a collective job are the ranks of MPI.
//!
//! Each process is its own context with its role and rank written out, so that the placement of ranks does not depend on
//! mapping rules, which differ between MPI implementations. The secret is passed in the environment, never on the command line.

use openfleet_core::Endpoint;
use openfleet_core::topology::{JobId, Role, Topology};

use super::super::layout::{HostPort, endpoints};
use super::super::options::{MpiArgs, RunMode};
use super::super::program::Program;
use super::shell::quoted;
use super::{SERVER_PORT, check_ports, layout};
use crate::error::Result;
use crate::variables::{
    COLLECTIVE_BACKEND, JOB, OWN_RANK, OWN_ROLE, OWN_SERVERS, OWN_WORKER_COUNT, OWN_WORKERS, POD_IP, PORT, SECRET,
    SERVERS, TRAINING_ROLE, WORKER_COUNT, WORKER_ENDPOINTS, WORKER_RANK,
};

/// The script, to be run by a shell on the machine that calls `mpirun`.
pub(crate) fn script(arguments: &MpiArgs) -> Result<String> {
    let mut layout = layout(&arguments.job)?;
    let is_collective = layout.mode == RunMode::Collective;
    // The job runs later, so ports are fixed numbers that the user can change.
    let start = arguments.job.start_port.unwrap_or(SERVER_PORT);
    let open = layout.servers.iter_mut().chain(&mut layout.workers).filter(|place| place.port.is_none());
    let open: Vec<&mut HostPort> = open.collect();
    check_ports(start, open.len())?;
    for (place, port) in open.into_iter().zip(start..=u16::MAX) {
        place.port = Some(port);
    }
    let (servers, workers) = (endpoints(&layout.servers)?, endpoints(&layout.workers)?);
    match is_collective {
        true => Topology::collective(0, workers.len(), workers.clone(), None)?,
        false => Topology::new(Role::Server, 0, servers.clone(), workers.len(), workers.clone())?,
    };
    let program = Program::elsewhere(&arguments.words, None)?;
    let words: Vec<String> = program.words.iter().map(|word| quoted(&word.to_string_lossy())).collect();
    let words = words.join(" ");
    let name = match &arguments.job.job {
        Some(name) => JobId::new(name.as_str())?.to_string(),
        None => format!("mpi-{}", servers.first().unwrap_or(&workers[0])).replace([':', '[', ']'], "-"),
    };
    let (own_list, list, listed) = match is_collective {
        true => (OWN_WORKERS, WORKER_ENDPOINTS, &workers),
        false => (OWN_SERVERS, SERVERS, &servers),
    };
    let listed = listed.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(",");
    let common = [
        (JOB, name),
        (own_list, listed.clone()),
        (list, listed),
        (OWN_WORKER_COUNT, workers.len().to_string()),
        (WORKER_COUNT, workers.len().to_string()),
        ("PYTHONUNBUFFERED", "1".to_owned()),
    ];
    let common: Vec<String> = common.iter().map(|(name, value)| format!("{name}={}", quoted(value))).collect();
    let context = |role: Role, rank: usize, endpoint: &Endpoint| {
        let host = if layout.is_local { String::new() } else { format!("-host {} ", endpoint.host()) };
        let own = match role {
            Role::Server => {
                format!("{TRAINING_ROLE}=PSERVER {POD_IP}={} {PORT}={}", endpoint.host(), endpoint.port())
            }
            Role::Worker => format!("{TRAINING_ROLE}=TRAINER {WORKER_RANK}={rank}"),
        };
        format!(
            "\"${{one[@]}}\" {host}env \"${{common[@]}}\" {OWN_ROLE}={role} {OWN_RANK}={rank} {own} \\\n    {words}"
        )
    };
    let servers_first = (servers.iter().enumerate().map(|(rank, endpoint)| context(Role::Server, rank, endpoint)))
        .chain(workers.iter().enumerate().map(|(rank, endpoint)| context(Role::Worker, rank, endpoint)));
    let contexts: Vec<String> = servers_first.collect();
    let processes = match is_collective {
        true => format!("{} ranks of a collective job.", workers.len()),
        false => format!("{} servers and {} workers, servers first.", servers.len(), workers.len()),
    };
    Ok(format!(
        r#"#!/bin/bash
# {processes}
set -euo pipefail
export {SECRET}=${{{SECRET}:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')}}
common=({})

# Open MPI hands on only those variables that it is told to, and no more processes than it counts cores; others do both.
one=(-n 1)
if mpirun --version 2>&1 | grep -qE 'Open MPI|OpenRTE'; then
  one+=(-x {SECRET})
  [ -z "${{{COLLECTIVE_BACKEND}:-}}" ] || one+=(-x {COLLECTIVE_BACKEND})
  export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
fi

exec mpirun \
  {}
"#,
        common.join(" "),
        contexts.join(" \\\n  : "),
    ))
}
