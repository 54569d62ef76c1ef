//! The rank from Slurm: two `srun` steps in one allocation, one of servers and one of workers.
//!
//! `SLURM_PROCID` numbers the tasks of a step, so it is the rank within the role. Slurm does not know the roles of steps: the
//! script sets `OPENFLEET_ROLE` (or `TRAINING_ROLE`) and lists the servers. `fleetrun slurm` prints such a script. The step of a
//! collective job needs none of that ([`SchedulerRanks`](super::SchedulerRanks)).

use openfleet_core::Role;

use super::environment::Raw;
use super::error::{Error, Result};
use super::read::{Read, count, number, read};
use super::{Assignment, RoleMaker, Settings};
use crate::variables::{self as names, Variables};

/// The rank from Slurm, the role from the script.
#[derive(Debug, Clone, Copy, Default)]
pub struct Slurm;

/// Whether a step of several tasks runs that is not an interactive session.
pub(super) fn applies(variables: &Variables) -> bool {
    in_step(variables) && matches!(tasks(variables), Ok(Some(tasks)) if tasks.value > 1)
}

/// Whether a role is set without a rank, in a step: then the task number is the rank.
pub(super) fn numbers(variables: &Variables) -> bool {
    let role = variables.any(&[names::OWN_ROLE, names::TRAINING_ROLE]);
    let server = variables.any(&[names::POD_IP, names::PORT]);
    role && in_step(variables) && !server && !variables.any(&[names::OWN_RANK, names::WORKER_RANK])
}

/// In an interactive session the variables belong to the session, not to the processes started from it.
fn in_step(variables: &Variables) -> bool {
    let interactive = matches!(variables.get(names::SLURM_JOB_NAME), Some("bash" | "interactive"));
    variables.get(names::SLURM_RANK).is_some() && !interactive
}

/// The number of tasks of the step.
fn tasks(variables: &Variables) -> Result<Option<Read<usize>>> {
    Ok(match read(variables, names::SLURM_STEP_TASKS, count)? {
        Some(tasks) => Some(tasks),
        None => read(variables, names::SLURM_TASKS, count)?,
    })
}

/// The number of this task within its step, and the number of tasks.
pub(super) fn rank_and_size(variables: &Variables) -> Result<Option<(Read<usize>, Read<usize>)>> {
    let (Some(rank), Some(tasks)) = (read(variables, names::SLURM_RANK, number)?, tasks(variables)?) else {
        return Ok(None);
    };
    check_range(&rank, &tasks)?;
    Ok(Some((rank, tasks)))
}

fn check_range(rank: &Read<usize>, tasks: &Read<usize>) -> Result<()> {
    if rank.value >= tasks.value {
        let (last, name, text) = (tasks.value - 1, tasks.name, &tasks.text);
        return Err(rank.wrong(format!("a number from 0 to {last} because of `{name}` = `{text}`"), None));
    }
    Ok(())
}

impl RoleMaker for Slurm {
    fn source(&self, variables: &Variables) -> String {
        let role = if variables.get(names::OWN_ROLE).is_some() { names::OWN_ROLE } else { names::TRAINING_ROLE };
        format!("role from {role}, rank from Slurm's {}", names::SLURM_RANK)
    }

    fn assign(&self, variables: &Variables, _settings: &Settings) -> Result<Assignment> {
        let rank = read(variables, names::SLURM_RANK, number)?.ok_or_else(|| Error::Missing {
            name: names::SLURM_RANK,
            needed: "a task of Slurm needs its number".into(),
            hint: "start the processes with `srun`".into(),
        })?;
        let tasks = tasks(variables)?;
        let mut raw = Raw::read(variables)?;
        let Some(role) = raw.role.as_ref().map(|role| role.value) else {
            let of = tasks.as_ref().map_or_else(|| "several".to_owned(), |tasks| tasks.text.clone());
            return Err(Error::Missing {
                name: names::OWN_ROLE,
                needed: format!("Slurm says that this is task {} of {of}, but not what it is", rank.text),
                hint: "start servers and workers with one `srun` each, with `OPENFLEET_ROLE` set to `server` or \
                       `worker` (`fleetrun slurm` prints such a script); to train in one process, use `srun -n 1`"
                    .into(),
            });
        };
        if role == Role::Worker && raw.worker_count.is_none() {
            raw.worker_count = tasks.clone();
        }
        if let Some(tasks) = &tasks {
            check_range(&rank, tasks)?;
            let hint = "start as many tasks as the job has processes of this role";
            match (&raw.worker_count, &raw.servers) {
                (Some(count), _) if role == Role::Worker && count.value != tasks.value => {
                    return Err(tasks.contradicts(count, hint));
                }
                (_, Some(servers)) if role == Role::Server && servers.value.len() != tasks.value => {
                    return Err(tasks.contradicts(servers, hint));
                }
                _ => {}
            }
        }
        Ok(raw.with_rank(role, rank.value)?.into())
    }
}
