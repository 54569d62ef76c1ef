//! The settings of a process besides its role: its job, the job's secret and certificates, its incarnation, the address to
//! bind, the time limit of waits and how collective ranks exchange data.

use std::path::PathBuf;
use std::time::Duration;

use openfleet_core::{Endpoint, Hinted, Incarnation, JobId};
use openfleet_dist::ServerConfig;
use openfleet_dist::handshake::Secret;
use openfleet_dist::tls::{ClientTls, ServerTls};

use super::error::{Error, Result};
use super::read::{count, number, read};
use crate::variables::{self, Variables};

/// The settings of a process besides its role.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The job; processes of other jobs are refused.
    pub job: JobId,
    /// The secret of the job; empty for none.
    pub secret: Secret,
    /// Larger each time this rank is restarted.
    pub incarnation: Incarnation,
    /// The address that a server binds to, if it differs from the host in the list of servers.
    pub bind: Option<String>,
    /// The time limit for waiting for servers, and for other ranks at a rendezvous.
    pub wait_limit: Duration,
    /// Training threads per worker.
    pub threads: u32,
    /// How the ranks of a collective job exchange data.
    pub collective_backend: CollectiveBackend,
    /// The file in which the process reports its progress to the launcher.
    pub progress_file: Option<PathBuf>,
    /// The identity of the run, if the launcher made one.
    pub run: Option<String>,
    /// The newest checkpoint of the run, for a restarted server.
    pub resume: Option<String>,
    /// The file in which the launcher reports the state of the job.
    pub job_file: Option<PathBuf>,
    /// The certificate of a server that uses TLS.
    pub server_tls: Option<ServerTls>,
    /// The authorities that a worker trusts, if its servers use TLS.
    pub worker_tls: Option<ClientTls>,
}

/// How the ranks of a collective job exchange data. The results have the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CollectiveBackend {
    /// Our own connections, with the job's secret.
    #[default]
    Tcp,
    /// The MPI library that this build was linked with (feature `mpi`).
    Mpi,
}

/// The default time limit.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(900);

impl Settings {
    /// Reads and checks the variables; each has a default.
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
        let collective_backend = read(variables, variables::COLLECTIVE_BACKEND, |text| match text {
            "tcp" => Ok(CollectiveBackend::Tcp),
            "mpi" => Ok(CollectiveBackend::Mpi),
            _ => Err("`tcp` or `mpi`".into()),
        })?;
        Ok(Settings {
            job,
            secret: Secret::new(variables.get(variables::SECRET).unwrap_or_default()),
            incarnation: Incarnation(incarnation.map_or_else(started, |read| read.value as u64)),
            bind: read(variables, variables::BIND, address)?.map(|read| read.value),
            wait_limit: wait_seconds.map_or(WAIT_LIMIT, |read| Duration::from_secs(read.value as u64)),
            threads: threads.map_or(1, |read| read.value),
            collective_backend: collective_backend.map(|read| read.value).unwrap_or_default(),
            progress_file: variables.get(variables::PROGRESS_FILE).map(PathBuf::from),
            run: variables.get(variables::RUN).map(str::to_owned),
            resume: variables.get(variables::RESUME).map(str::to_owned),
            job_file: variables.get(variables::JOB_FILE).map(PathBuf::from),
            server_tls: server_tls(variables)?,
            worker_tls: variables.get(variables::TLS_AUTHORITY).map(|file| ClientTls { authorities: file.into() }),
        })
    }
}

/// Without a launcher that counts, the process that started later has the larger incarnation.
fn started() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| now.as_millis() as u64)
}

/// A certificate with its key; `None` if neither is set.
fn server_tls(variables: &Variables) -> Result<Option<ServerTls>> {
    let missing = |name, other| Error::Missing {
        name,
        needed: format!("`{other}` is set, and both are needed"),
        hint: "set both to PEM files, or neither".into(),
    };
    match (variables.get(variables::TLS_CERTIFICATE), variables.get(variables::TLS_KEY)) {
        (None, None) => Ok(None),
        (Some(certificates), Some(key)) => Ok(Some(ServerTls { certificates: certificates.into(), key: key.into() })),
        (Some(_), None) => Err(missing(variables::TLS_KEY, variables::TLS_CERTIFICATE)),
        (None, Some(_)) => Err(missing(variables::TLS_CERTIFICATE, variables::TLS_KEY)),
    }
}

/// Checks a host name or an address without a port.
fn address(text: &str) -> std::result::Result<String, String> {
    Endpoint::new(text, 1).map(|endpoint| endpoint.host().to_owned()).map_err(|_| "an address without a port".into())
}
