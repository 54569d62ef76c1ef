//! What a process is told beside its role: which job it belongs to, the job's secret and certificates, which life of its
//! rank this is, where to bind and how long to wait.

use std::path::PathBuf;
use std::time::Duration;

use openfleet_core::{Endpoint, Hinted, Incarnation, JobId};
use openfleet_dist::ServerConfig;
use openfleet_dist::handshake::Secret;
use openfleet_dist::tls::{ClientTls, ServerTls};

use super::error::{Error, Result};
use super::read::{count, number, read};
use crate::variables::{self, Variables};

/// What a process is told beside its role.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The job; processes of another are refused.
    pub job: JobId,
    /// Shared by all processes of the job; empty for none.
    pub secret: Secret,
    /// Grows each time this rank is started again.
    pub incarnation: Incarnation,
    /// The address a server binds to, where it is not the one in the list of servers.
    pub bind: Option<String>,
    /// How long to wait for servers, and for other ranks at a rendezvous.
    pub wait_limit: Duration,
    /// Training threads of a worker.
    pub threads: u32,
    /// The file in which the process tells its launcher how it is doing.
    pub progress_file: Option<PathBuf>,
    /// The identity of the run, where the launcher made one.
    pub run: Option<String>,
    /// The newest checkpoint of the run, for a server that is started again.
    pub resume: Option<String>,
    /// The file in which the launcher tells processes how the job is doing.
    pub job_file: Option<PathBuf>,
    /// What a server shows of itself, where it speaks TLS.
    pub server_tls: Option<ServerTls>,
    /// Whom a worker trusts, where its servers speak TLS.
    pub worker_tls: Option<ClientTls>,
}

/// How long to wait unless told otherwise.
pub const WAIT_LIMIT: Duration = Duration::from_secs(900);

impl Settings {
    /// Reads and checks them; each has a default.
    pub fn read(variables: &Variables) -> Result<Self> {
        let job = match variables.get(variables::JOB) {
            None => JobId::new(ServerConfig::default().job)?,
            Some(name) => JobId::new(name).map_err(|error| Error::Value {
                name: variables::JOB,
                value: name.to_owned(),
                expected: "a name that could be a file's".into(),
                hint: error.hint(),
            })?,
        };
        let incarnation = read(variables, variables::INCARNATION, number)?;
        let wait_seconds = read(variables, variables::WAIT_SECONDS, number)?;
        let threads = read(variables, variables::THREADS, |text| {
            count(text)
                .ok()
                .and_then(|count| u32::try_from(count).ok())
                .ok_or_else(|| "a whole number from 1 up".into())
        })?;
        Ok(Settings {
            job,
            secret: Secret::new(variables.get(variables::SECRET).unwrap_or_default()),
            incarnation: Incarnation(incarnation.map_or_else(started, |read| read.value as u64)),
            bind: read(variables, variables::BIND, address)?.map(|read| read.value),
            wait_limit: wait_seconds.map_or(WAIT_LIMIT, |read| Duration::from_secs(read.value as u64)),
            threads: threads.map_or(1, |read| read.value),
            progress_file: variables.get(variables::PROGRESS_FILE).map(PathBuf::from),
            run: variables.get(variables::RUN).map(str::to_owned),
            resume: variables.get(variables::RESUME).map(str::to_owned),
            job_file: variables.get(variables::JOB_FILE).map(PathBuf::from),
            server_tls: server_tls(variables)?,
            worker_tls: variables.get(variables::TLS_AUTHORITY).map(|file| ClientTls { authorities: file.into() }),
        })
    }
}

/// Without a launcher that counts, a process that is started later is the newer one.
fn started() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| now.as_millis() as u64)
}

/// A certificate and its key, or neither.
fn server_tls(variables: &Variables) -> Result<Option<ServerTls>> {
    let missing = |name, other| Error::Missing {
        name,
        needed: format!("`{other}` is set, and one is of no use without the other"),
        hint: "set both to PEM files, or neither".into(),
    };
    match (variables.get(variables::TLS_CERTIFICATE), variables.get(variables::TLS_KEY)) {
        (None, None) => Ok(None),
        (Some(certificates), Some(key)) => Ok(Some(ServerTls { certificates: certificates.into(), key: key.into() })),
        (Some(_), None) => Err(missing(variables::TLS_KEY, variables::TLS_CERTIFICATE)),
        (None, Some(_)) => Err(missing(variables::TLS_CERTIFICATE, variables::TLS_KEY)),
    }
}

/// A host name or an address, without a port.
fn address(text: &str) -> std::result::Result<String, String> {
    Endpoint::new(text, 1).map(|endpoint| endpoint.host().to_owned()).map_err(|_| "an address without a port".into())
}
