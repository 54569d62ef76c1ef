//! The role from explicit variables: PaddlePaddle's `PADDLE_*` and `TRAINING_ROLE`, and OpenFleet's own `OPENFLEET_*`.
//!
//! The two families are spellings of the same facts. They may be mixed; if both state a fact, they must agree. An error about a
//! missing fact uses the spelling that the user has started with.
//!
//! A server is identified by `POD_IP` and `PADDLE_PORT` (or by `OPENFLEET_RANK`), never by `PADDLE_TRAINER_ID`, which some
//! operators set on every process. A worker needs neither `POD_IP` nor `PADDLE_PORT`.

use openfleet_core::{Endpoint, Role, Topology};

use super::error::{Error, Result};
use super::read::{Read, agreed, count, endpoint, endpoints, number, read};
use super::{Assignment, RoleMaker, Settings};
use crate::variables::{self as names, Variables};

/// The role from `OPENFLEET_*` and `PADDLE_*`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Environment {
    /// Whether workers train with each other, without servers. Detected if workers are listed and servers are not.
    pub collective: bool,
}

const OWN: [&str; 6] = [
    names::OWN_ROLE,
    names::OWN_RANK,
    names::OWN_SERVERS,
    names::OWN_WORKER_COUNT,
    names::OWN_WORKERS,
    names::OWN_MASTER,
];

const PADDLE: [&str; 8] = [
    names::TRAINING_ROLE,
    names::TRAINING_ROLE_OTHER,
    names::SERVERS,
    names::WORKER_COUNT,
    names::WORKER_COUNT_OTHER,
    names::WORKER_RANK,
    names::WORKER_ENDPOINTS,
    names::CURRENT_ENDPOINT,
];

/// Whether any of these variables is set. `POD_IP` and `PADDLE_PORT` alone do not describe a job.
pub(super) fn applies(variables: &Variables) -> bool {
    variables.any(&OWN) || variables.any(&PADDLE)
}

impl RoleMaker for Environment {
    fn source(&self, variables: &Variables) -> String {
        let families = match (variables.any(&OWN), variables.any(&PADDLE)) {
            (true, true) => "OPENFLEET_* and PADDLE_*",
            (true, false) => "OPENFLEET_*",
            _ => "PADDLE_*",
        };
        format!("role from {families}")
    }

    fn assign(&self, variables: &Variables, _settings: &Settings) -> Result<Assignment> {
        let raw = Raw::read(variables)?;
        let topology = if self.collective || raw.is_collective() { raw.collective(variables)? } else { raw.servers()? };
        Ok(Assignment { trusts_private_network: !variables.any(&OWN), ..topology.into() })
    }
}

/// The variables, each parsed, not yet compared.
pub(super) struct Raw {
    pub(super) spelling: Spelling,
    pub(super) role: Option<Read<Role>>,
    pub(super) servers: Option<Read<Vec<Endpoint>>>,
    pub(super) worker_count: Option<Read<usize>>,
    workers: Option<Read<Vec<Endpoint>>>,
    own_rank: Option<Read<usize>>,
    /// Read for workers only.
    trainer_id: Option<Read<usize>>,
    pod_ip: Option<String>,
    port: Option<Read<u16>>,
    current: Option<Read<Endpoint>>,
    /// Where the workers of a collective job meet, if they are not listed.
    master: Option<Read<Endpoint>>,
}

/// The variable names for errors about missing facts.
pub(super) struct Spelling {
    pub(super) role: &'static str,
    pub(super) roles: &'static str,
    pub(super) servers: &'static str,
    pub(super) worker_count: &'static str,
    worker_rank: &'static str,
    workers: &'static str,
}

const OWN_SPELLING: Spelling = Spelling {
    role: names::OWN_ROLE,
    roles: "`server` or `worker`",
    servers: names::OWN_SERVERS,
    worker_count: names::OWN_WORKER_COUNT,
    worker_rank: names::OWN_RANK,
    workers: names::OWN_WORKERS,
};

const PADDLE_SPELLING: Spelling = Spelling {
    role: names::TRAINING_ROLE,
    roles: "`PSERVER` or `TRAINER`",
    servers: names::SERVERS,
    worker_count: names::WORKER_COUNT,
    worker_rank: names::WORKER_RANK,
    workers: names::WORKER_ENDPOINTS,
};

impl Raw {
    pub(super) fn read(variables: &Variables) -> Result<Self> {
        let role = agreed([
            read(variables, names::OWN_ROLE, own_role)?,
            read(variables, names::TRAINING_ROLE, training_role)?,
            read(variables, names::TRAINING_ROLE_OTHER, training_role)?,
        ])?;
        let is_server = role.as_ref().is_some_and(|role| role.value == Role::Server);
        Ok(Raw {
            spelling: if variables.any(&OWN) { OWN_SPELLING } else { PADDLE_SPELLING },
            servers: agreed([
                read(variables, names::OWN_SERVERS, endpoints)?,
                read(variables, names::SERVERS, endpoints)?,
            ])?,
            worker_count: agreed([
                read(variables, names::OWN_WORKER_COUNT, count)?,
                read(variables, names::WORKER_COUNT, count)?,
                read(variables, names::WORKER_COUNT_OTHER, count)?,
            ])?,
            workers: agreed([
                read(variables, names::OWN_WORKERS, endpoints)?,
                read(variables, names::WORKER_ENDPOINTS, endpoints)?,
            ])?,
            own_rank: read(variables, names::OWN_RANK, number)?,
            trainer_id: if is_server { None } else { read(variables, names::WORKER_RANK, number)? },
            pod_ip: variables.get(names::POD_IP).filter(|_| is_server).map(str::to_owned),
            port: if is_server { read(variables, names::PORT, port)? } else { None },
            current: read(variables, names::CURRENT_ENDPOINT, endpoint)?,
            master: agreed([read(variables, names::OWN_MASTER, endpoint)?, read(variables, names::MASTER, endpoint)?])?,
            role,
        })
    }

    /// Whether workers are listed, or have a place to meet, servers are not, and this process does not claim to be a server.
    fn is_collective(&self) -> bool {
        let worker = self.role.as_ref().is_none_or(|role| role.value == Role::Worker);
        self.servers.is_none() && (self.workers.is_some() || self.master.is_some()) && worker
    }

    /// A job with servers.
    fn servers(self) -> Result<Topology> {
        let role = self.role()?;
        let rank = match role {
            Role::Worker => self.worker_rank()?,
            Role::Server => self.server_rank()?,
        };
        self.with_rank(role, rank)
    }

    /// The role, or an error if it is missing.
    pub(super) fn role(&self) -> Result<Role> {
        let Spelling { role, roles, .. } = self.spelling;
        let hint = format!(
            "set `{role}` to {roles}, or start the job with `fleetrun`; to train in one process, unset the other role \
             variables"
        );
        let missing = || Error::Missing {
            name: role,
            needed: "other variables describe a job, but not what this process is in it".into(),
            hint: hint.into(),
        };
        self.role.as_ref().map(|role| role.value).ok_or_else(missing)
    }

    /// The topology of the job, for a known rank.
    pub(super) fn with_rank(self, role: Role, rank: usize) -> Result<Topology> {
        let worker_count = self.worker_count(role)?;
        let servers = self.server_list(role)?.value.clone();
        let workers = self.workers.map(|workers| workers.value).unwrap_or_default();
        Ok(Topology::new(role, rank, servers, worker_count, workers)?)
    }

    fn server_list(&self, role: Role) -> Result<&Read<Vec<Endpoint>>> {
        let missing = || Error::Missing {
            name: self.spelling.servers,
            needed: format!("a {role} needs the endpoints of all servers"),
            hint: format!(
                "set `{}` to `host:port,host:port,...`, the same on every machine, or start the job with `fleetrun`",
                self.spelling.servers
            )
            .into(),
        };
        self.servers.as_ref().ok_or_else(missing)
    }

    /// The stated number of workers, or the length of the list.
    fn worker_count(&self, role: Role) -> Result<usize> {
        match (&self.worker_count, &self.workers) {
            (Some(count), Some(workers)) if count.value != workers.value.len() => {
                Err(count.contradicts(workers, "list one endpoint for each worker, or none at all"))
            }
            (Some(count), _) => Ok(count.value),
            (None, Some(workers)) => Ok(workers.value.len()),
            (None, None) => Err(Error::Missing {
                name: self.spelling.worker_count,
                needed: format!("a {role} needs the number of workers"),
                hint: format!("set `{}`, the same on every machine", self.spelling.worker_count).into(),
            }),
        }
    }

    /// The stated rank of a worker.
    fn worker_rank(&self) -> Result<usize> {
        let count = self.worker_count(Role::Worker)?;
        let Some(rank) = agreed([self.own_rank.clone(), self.trainer_id.clone()])? else {
            return Err(Error::Missing {
                name: self.spelling.worker_rank,
                needed: format!("a worker needs its rank among the {count}"),
                hint: format!("set `{}` to a number from 0 to {}", self.spelling.worker_rank, count - 1).into(),
            });
        };
        if rank.value < count {
            return Ok(rank.value);
        }
        let (name, text) = match (&self.worker_count, &self.workers) {
            (Some(said), _) => (said.name, &said.text),
            (None, Some(workers)) => (workers.name, &workers.text),
            (None, None) => (self.spelling.worker_count, &rank.text),
        };
        Err(rank.wrong(
            format!("a rank from 0 to {} because of `{name}` = `{text}`", count - 1),
            Some("ranks begin at 0; check the number of workers on every machine".into()),
        ))
    }

    /// The stated rank of a server, or the position of its own endpoint in the list.
    fn server_rank(&self) -> Result<usize> {
        let servers = self.server_list(Role::Server)?;
        let last = servers.value.len() - 1;
        let stated = match &self.own_rank {
            Some(rank) if rank.value > last => {
                let expected = format!("a rank from 0 to {last} because of `{}` = `{}`", servers.name, servers.text);
                return Err(rank.wrong(expected, Some("ranks begin at 0; list every server once".into())));
            }
            stated => stated.as_ref(),
        };
        let own = match (&self.pod_ip, &self.port) {
            (Some(ip), Some(port)) => Some(own_endpoint(ip, port)?),
            _ => None,
        };
        let found = own.as_ref().and_then(|own| servers.value.iter().position(|server| *server == own.value));
        match (stated, own, found) {
            (Some(rank), None, _) => Ok(rank.value),
            (Some(rank), Some(_), Some(found)) if rank.value == found => Ok(found),
            (Some(rank), Some(own), _) => Err(rank.contradicts(
                &own,
                format!("server {} of `{}` is `{}`", rank.value, servers.name, servers.value[rank.value]),
            )),
            (None, Some(_), Some(found)) => Ok(found),
            (None, Some(own), None) => Err(own.wrong(
                format!("an element of `{}` = `{}`", servers.name, servers.text),
                Some("write this server's address as it stands in the list of servers".into()),
            )),
            (None, None, _)
                if self.pod_ip.is_none() && self.port.is_none() && self.spelling.role == names::OWN_ROLE =>
            {
                Err(Error::Missing {
                    name: names::OWN_RANK,
                    needed: format!("a server needs its rank among the {}", servers.value.len()),
                    hint: format!("set `{}` to a number from 0 to {last}", names::OWN_RANK).into(),
                })
            }
            (None, None, _) => {
                let (name, other) = match (&self.pod_ip, &self.port) {
                    (Some(_), None) => (names::PORT, names::POD_IP),
                    _ => (names::POD_IP, names::PORT),
                };
                Err(Error::Missing {
                    name,
                    needed: "a server needs its own place in the list of servers".into(),
                    hint: format!(
                        "set `{name}` and `{other}` so that together they are an element of `{}`, or `{}` to this \
                         server's rank",
                        servers.name,
                        names::OWN_RANK
                    )
                    .into(),
                })
            }
        }
    }

    /// A job without servers.
    fn collective(self, variables: &Variables) -> Result<Topology> {
        if let Some(role) = self.role.as_ref().filter(|role| role.value == Role::Server) {
            return Err(role.wrong("a worker: a collective job has no servers", None));
        }
        let Some(workers) = &self.workers else {
            if let Some(master) = &self.master {
                let (rank, count) = (self.worker_rank()?, self.worker_count(Role::Worker)?);
                return Ok(Topology::collective(rank, count, Vec::new(), Some(master.value.clone()))?);
            }
            return match &self.worker_count {
                Some(count) if count.value > 1 => Err(Error::Missing {
                    name: self.spelling.workers,
                    needed: format!("{} workers of a collective job must reach each other", count.value),
                    hint: format!(
                        "set `{}` to one `host:port` for each worker, or `{}` to where they meet",
                        self.spelling.workers,
                        names::OWN_MASTER
                    )
                    .into(),
                }),
                _ => Ok(Topology::collective(0, 1, Vec::new(), None)?),
            };
        };
        let count = self.worker_count(Role::Worker)?;
        let placed = match &self.current {
            None => None,
            Some(current) => {
                Some(workers.value.iter().position(|worker| *worker == current.value).ok_or_else(|| {
                    current.wrong(format!("an element of `{}` = `{}`", workers.name, workers.text), None)
                })?)
            }
        };
        let stated = agreed([self.own_rank.clone(), self.trainer_id.clone()])?;
        let rank = match placed {
            Some(placed) if stated.is_none() => placed,
            None if stated.is_none() && count == 1 => 0,
            // Reports that the rank is missing or out of range.
            _ => self.worker_rank()?,
        };
        if let (Some(stated), Some(current)) = (&stated, &self.current)
            && placed != Some(rank)
        {
            let hint = format!("worker {rank} of `{}` is `{}`", workers.name, workers.value[rank]);
            return Err(stated.contradicts(current, hint));
        }
        if let Some(stated) = &stated {
            super::torchrun::check_same(variables, stated, workers)?;
        }
        Ok(Topology::collective(rank, count, workers.value.clone(), None)?)
    }
}

fn own_role(text: &str) -> std::result::Result<Role, String> {
    match text.to_ascii_lowercase().as_str() {
        "server" => Ok(Role::Server),
        "worker" => Ok(Role::Worker),
        _ => Err("`server` or `worker`".into()),
    }
}

fn training_role(text: &str) -> std::result::Result<Role, String> {
    match text.to_ascii_uppercase().as_str() {
        "PSERVER" => Ok(Role::Server),
        "TRAINER" => Ok(Role::Worker),
        "HETER_TRAINER" | "COORDINATOR" => {
            Err("`PSERVER` or `TRAINER`; heterogeneous trainers and coordinators do not exist here".into())
        }
        _ => Err("`PSERVER` or `TRAINER`".into()),
    }
}

fn port(text: &str) -> std::result::Result<u16, String> {
    let port = number(text).ok().and_then(|port| u16::try_from(port).ok());
    port.filter(|&port| port > 0).ok_or_else(|| "a port from 1 to 65535".into())
}

/// The endpoint made of `POD_IP` and `PADDLE_PORT`.
fn own_endpoint(ip: &str, port: &Read<u16>) -> Result<Read<Endpoint>> {
    let value = Endpoint::new(ip, port.value).map_err(|error| Error::Value {
        name: names::POD_IP,
        value: ip.to_owned(),
        expected: match error {
            openfleet_core::Error::Endpoint { reason, .. } => format!("an address without a port, but {reason}"),
            _ => "an address without a port".into(),
        },
        hint: None,
    })?;
    Ok(Read { name: "POD_IP:PADDLE_PORT", text: value.to_string(), value })
}
