//! A Slurm job script: servers and workers as two steps of one allocation, or the ranks of a collective job as one step.
//!
//! `SLURM_PROCID` counts from 0 in each step, so it is the rank within the role. A host file (`--distribution=arbitrary`)
//! assigns servers, or ranks, to nodes, because every process must know their host names before any of them runs.

use std::fmt::Write as _;

use super::super::options::SlurmArgs;
use super::super::program::Program;
use super::shell::quoted;
use super::{SERVER_PORT, check_ports, counts};
use crate::error::{Error, Result};

/// The script, to be passed to `sbatch`.
pub(crate) fn script(arguments: &SlurmArgs) -> Result<String> {
    let (servers, workers) = counts(&arguments.job, "`fleetrun slurm`")?;
    let program = Program::elsewhere(&arguments.words, None)?;
    let port = arguments.job.start_port.unwrap_or(SERVER_PORT);
    let is_collective = servers == 0;
    check_ports(port, if is_collective { workers } else { servers })?;
    let words: Vec<String> = program.words.iter().map(|word| quoted(&word.to_string_lossy())).collect();
    let words = words.join(" ");
    let log_dir = arguments.log_dir.to_string_lossy();
    let tasks = servers + workers;
    let cpu = arguments.cpu;
    let mut head = String::from("#!/bin/bash\n");
    let mut option = |name: &'static str, value: &str| match value.contains(char::is_whitespace) {
        // Slurm reads these lines itself, without a shell.
        true => Err(Error::BadOption { option: name, expected: "a word without blanks", got: value.to_owned() }),
        false => {
            let name = if name == "--memory" { "--mem" } else { name };
            let name = if name == "--name" { "--job-name" } else { name };
            let _ = writeln!(head, "#SBATCH {name}={value}");
            Ok(())
        }
    };
    option("--name", &arguments.name)?;
    option("--nodes", &arguments.nodes.to_string())?;
    option("--ntasks", &tasks.to_string())?;
    if is_collective {
        option("--ntasks-per-node", &workers.div_ceil(arguments.nodes as usize).to_string())?;
    }
    option("--cpus-per-task", &cpu.to_string())?;
    let optional =
        [("--memory", &arguments.memory), ("--partition", &arguments.partition), ("--time", &arguments.time)];
    for (name, value) in optional {
        if let Some(value) = value {
            option(name, value)?;
        }
    }
    let logs = quoted(&log_dir);
    let job = match &arguments.job.job {
        Some(job) => quoted(openfleet_core::topology::JobId::new(job.as_str())?.as_str()),
        None => "slurm-$SLURM_JOB_ID".to_owned(),
    };
    if is_collective {
        return Ok(head + &collective_body(workers, port, &logs, &job, cpu, &words));
    }
    let body = format!(
        r#"
# {servers} servers and {workers} workers: two steps that share the allocation.
set -euo pipefail
logs={logs}
mkdir -p "$logs"

# Server i runs on node i, counted round, at port {port} + i.
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
server_nodes=$(( {servers} < ${{#nodes[@]}} ? {servers} : ${{#nodes[@]}} ))
hosts=$(mktemp)
endpoints=
for (( i = 0; i < {servers}; i++ )); do
  node=${{nodes[i % ${{#nodes[@]}}]}}
  echo "$node" >> "$hosts"
  endpoints+=${{endpoints:+,}}$node:$(( {port} + i ))
done

export OPENFLEET_JOB={job}
export OPENFLEET_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export OPENFLEET_INCARNATION=$(( ${{SLURM_RESTART_COUNT:-0}} + 1 ))
export OPENFLEET_SERVERS=$endpoints PADDLE_PSERVERS_IP_PORT_LIST=$endpoints
export OPENFLEET_WORKER_NUM={workers} PADDLE_TRAINERS_NUM={workers}
export PYTHONUNBUFFERED=1

# SLURM_PROCID counts from 0 in each step: it is the rank within the role.
server='export OPENFLEET_ROLE=server TRAINING_ROLE=PSERVER OPENFLEET_RANK=$SLURM_PROCID
own=$(echo "$OPENFLEET_SERVERS" | cut -d, -f$(( SLURM_PROCID + 1 )))
export POD_IP=${{own%:*}} PADDLE_PORT=${{own##*:}}
exec "$@"'
worker='export OPENFLEET_ROLE=worker TRAINING_ROLE=TRAINER OPENFLEET_RANK=$SLURM_PROCID PADDLE_TRAINER_ID=$SLURM_PROCID
exec "$@"'

shared=(--overlap --cpus-per-task={cpu} --kill-on-bad-exit=1)
SLURM_HOSTFILE=$hosts srun "${{shared[@]}}" --nodes="$server_nodes" --ntasks={servers} --distribution=arbitrary \
  --output="$logs/serverlog.%t" bash -c "$server" server {words} &
servers=$!
srun "${{shared[@]}}" --ntasks={workers} --output="$logs/workerlog.%t" bash -c "$worker" worker {words} &
workers=$!
trap 'kill "$servers" "$workers" 2> /dev/null || true; rm -f "$hosts"' EXIT

# Whichever step ends first; servers that fail take the workers with them.
code=0
wait -n || code=$?
if [ "$code" != 0 ]; then
  echo "a step failed with exit code $code: see $logs" >&2
  exit "$code"
fi
code=0
wait "$workers" || code=$?
# Servers end by themselves when all workers have left; after half a minute they are asked.
for (( i = 0; i < 30; i++ )); do
  kill -0 "$servers" 2> /dev/null || break
  sleep 1
done
exit "$code"
"#
    );
    Ok(head + &body)
}

/// The ranks of a collective job as one step.
fn collective_body(ranks: usize, port: u16, logs: &str, job: &str, cpu: u32, words: &str) -> String {
    format!(
        r#"
# {ranks} ranks of a collective job: one step.
set -euo pipefail
logs={logs}
mkdir -p "$logs"

# Rank i runs on node i, counted round, at port {port} + i.
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
hosts=$(mktemp)
trap 'rm -f "$hosts"' EXIT
endpoints=
for (( i = 0; i < {ranks}; i++ )); do
  node=${{nodes[i % ${{#nodes[@]}}]}}
  echo "$node" >> "$hosts"
  endpoints+=${{endpoints:+,}}$node:$(( {port} + i ))
done

export OPENFLEET_JOB={job}
export OPENFLEET_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export OPENFLEET_INCARNATION=$(( ${{SLURM_RESTART_COUNT:-0}} + 1 ))
export OPENFLEET_WORKERS=$endpoints PADDLE_TRAINER_ENDPOINTS=$endpoints
export OPENFLEET_WORKER_NUM={ranks} PADDLE_TRAINERS_NUM={ranks}
export PYTHONUNBUFFERED=1

rank='export OPENFLEET_ROLE=worker TRAINING_ROLE=TRAINER OPENFLEET_RANK=$SLURM_PROCID PADDLE_TRAINER_ID=$SLURM_PROCID
exec "$@"'

# The ranks cannot continue without one of them: a failed one ends all.
code=0
SLURM_HOSTFILE=$hosts srun --cpus-per-task={cpu} --kill-on-bad-exit=1 --ntasks={ranks} --distribution=arbitrary \
  --output="$logs/workerlog.%t" bash -c "$rank" worker {words} || code=$?
if [ "$code" != 0 ]; then
  echo "the step failed with exit code $code: see $logs" >&2
fi
exit "$code"
"#
    )
}
