//! The errors of this crate, each with its hint.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use openfleet_core::{Endpoint, Hint, Hinted, Role};
use openfleet_engine::{dataset, synthetic};

/// `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The errors of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    // Options
    /// An option that the chosen model or format does not have.
    #[error("`{option}` cannot be used with {owner}")]
    MeaninglessOption {
        /// The option as the user writes it.
        option: &'static str,
        /// The choice that excludes it, as text.
        owner: String,
        /// What it can be used with.
        takers: &'static str,
    },
    /// An option that the choice requires.
    #[error("{owner} needs `{option}`")]
    MissingOption {
        /// The option as the user writes it.
        option: &'static str,
        /// The choice that requires it, as text.
        owner: String,
        /// What to write.
        remedy: &'static str,
    },
    /// An option with an invalid value.
    #[error("`{option}`: expected {expected}, got `{got}`")]
    BadOption {
        /// The option as the user writes it.
        option: &'static str,
        /// The valid values.
        expected: &'static str,
        /// What was written.
        got: String,
    },
    /// Two options that contradict each other.
    #[error("`{first}` and `{second}` contradict each other")]
    Contradiction {
        /// The first option.
        first: &'static str,
        /// The second option.
        second: &'static str,
        /// What to do about it.
        remedy: &'static str,
    },

    // Data
    /// A model was given fields it cannot train on.
    #[error("{model} expects {expected}, got {got}")]
    Fields {
        /// The kind of model.
        model: &'static str,
        /// The fields it reads, as text.
        expected: &'static str,
        /// What the data has.
        got: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// An invalid file pattern.
    #[error("`{pattern}` is not a file pattern")]
    Pattern {
        /// The pattern as given.
        pattern: String,
        /// What is wrong with it.
        source: glob::PatternError,
    },
    /// A column description that is not valid TOML or has unknown keys.
    #[error("`{}` is not a column description for {format}", path.display())]
    Columns {
        /// The file.
        path: PathBuf,
        /// The format it should describe.
        format: &'static str,
        /// The position in the file and what was expected there.
        source: Box<toml::de::Error>,
    },
    /// An error of the operating system.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// The attempted action, as a verb.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },

    // Saved models
    /// An address that exists and that OpenFleet did not write.
    #[error("`{address}` exists and is not a saved model")]
    NotOurs {
        /// The directory, or the address in a bucket.
        address: String,
    },
    /// A file of a saved model with unexpected content.
    #[error("`{file}`: expected {expected}, got {got}")]
    Damaged {
        /// The file.
        file: String,
        /// The expected content.
        expected: String,
        /// The actual content.
        got: String,
    },

    /// A file of another program that is damaged, or not what it should be.
    #[error("`{}` at offset {offset}: expected {expected}, got {got}", file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
        /// Offset in bytes; of compressed files, after decompression.
        offset: usize,
        /// The expected content.
        expected: String,
        /// The actual content.
        got: String,
    },

    // From other crates
    /// Synthetic data could not be written.
    #[error(transparent)]
    Synthetic(#[from] synthetic::Error),
    /// Training or reading failed.
    #[error(transparent)]
    Engine(#[from] openfleet_engine::Error),
    /// Servers could not be started or reached, or a request failed.
    #[error(transparent)]
    Dist(#[from] openfleet_dist::Error),
    /// A job could not be started, or failed.
    #[cfg(unix)]
    #[error(transparent)]
    Launch(#[from] crate::launch::Error),

    /// All workers have been disconnected, and not all have departed.
    #[error("all workers have been disconnected for 600 s, and not all of them had finished")]
    Deserted,

    // Roles
    /// The role of this process could not be determined.
    #[error(transparent)]
    Role(#[from] crate::role::Error),
    /// A call for processes of the other role.
    #[error("`{call}` is for a {expected}, this is {got}")]
    WrongRole {
        /// The method.
        call: &'static str,
        /// The role that it is for.
        expected: Role,
        /// The role of this process.
        got: String,
    },
    /// A call before another call that it needs.
    #[error("`{call}` was called before `{missing}`")]
    TooEarly {
        /// The method.
        call: &'static str,
        /// The missing call.
        missing: &'static str,
    },
    /// A call after another call that ended the process's work.
    #[error("`{call}` was called after `{after}`")]
    TooLate {
        /// The method.
        call: &'static str,
        /// The earlier call.
        after: &'static str,
    },
    /// Ranks that do not know where to meet.
    #[error("{workers} ranks, but none of them knows where to meet")]
    NoMeeting {
        /// Number of ranks.
        workers: usize,
    },
    /// A feature that this version does not have.
    #[error("{what} is not available yet")]
    Unavailable {
        /// The feature.
        what: &'static str,
    },
    /// A part that this program was built without.
    #[error("{what} is not part of this build")]
    NotBuilt {
        /// The part.
        what: &'static str,
        /// The cargo feature that contains it.
        feature: &'static str,
    },
    /// Servers that did not answer within the limit.
    #[error("{} did not answer within {} s", servers(endpoints), waited.as_secs_f64())]
    ServersAbsent {
        /// The servers.
        endpoints: Vec<String>,
        /// The limit.
        waited: Duration,
    },
    /// A server that refused this worker.
    #[error("this worker cannot join the job")]
    Unwelcome {
        /// The reason.
        source: openfleet_dist::Error,
    },
    /// Servers on other machines without a secret.
    #[error("refusing to train with server `{endpoint}` without a secret: anyone could read and change the tables")]
    NoSecret {
        /// The server.
        endpoint: Endpoint,
    },
    /// The wait for servers was interrupted.
    #[error("interrupted while waiting for servers")]
    WaitInterrupted,

    // The machine
    /// An address that cannot be listened on.
    #[error("cannot listen on `{address}`")]
    Listen {
        /// The address as given.
        address: SocketAddr,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The threads of the network runtime could not be started.
    #[error("cannot start the servers' threads")]
    Runtime {
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A thread of a worker panicked: a bug in OpenFleet.
    #[error("worker {rank} panicked")]
    WorkerPanicked {
        /// The rank of the worker.
        rank: usize,
    },
}

impl Error {
    /// Wraps an I/O error, for `map_err`.
    pub fn io(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.as_ref().to_owned();
        move |source| Error::Io { action, path, source }
    }
}

impl From<dataset::Error> for Error {
    fn from(error: dataset::Error) -> Self {
        Error::Engine(error.into())
    }
}

impl From<openfleet_core::Error> for Error {
    fn from(error: openfleet_core::Error) -> Self {
        Error::Engine(error.into())
    }
}

impl From<openfleet_table::Error> for Error {
    fn from(error: openfleet_table::Error) -> Self {
        Error::Engine(error.into())
    }
}

impl Error {
    /// Whether the worker must restart, because the job returned to an earlier checkpoint.
    pub fn is_recall(&self) -> bool {
        let dist = match self {
            Error::Dist(error) | Error::Engine(openfleet_engine::Error::Communicator(error)) => error,
            Error::Unwelcome { source } => source,
            _ => return false,
        };
        dist.recalled().is_some()
    }
}

impl Hinted for Error {
    fn hint(&self) -> Option<Hint> {
        match self {
            Error::MeaninglessOption { option, takers, .. } => {
                Some(format!("leave `{option}` out; it is for {takers}").into())
            }
            Error::MissingOption { remedy, .. }
            | Error::Contradiction { remedy, .. }
            | Error::Fields { remedy, .. } => Some((*remedy).into()),
            Error::Deserted => Some("read the logs of the workers; start the job again to resume it".into()),
            Error::Pattern { .. } => Some("`*` and `?` stand for any text and any character, `[ab]` for a or b".into()),
            Error::NotOurs { .. } => Some("choose another address, or remove what is there first".into()),
            Error::Damaged { .. } => Some("the model was not written by this version, or was changed since".into()),
            Error::Foreign { .. } => Some(
                "check that PaddlePaddle 2.x has saved it and that it was copied completely; docs/guide/from-paddlepaddle.md \
                 lists the files that are read"
                    .into(),
            ),
            // The engine does not know the name of its setting on a command line.
            Error::Engine(openfleet_engine::Error::Dataset(dataset::Error::BadLine { .. })) => Some(
                "correct the line or the description of the fields, or skip and count malformed lines with \
                 `--skip-bad-lines`"
                    .into(),
            ),
            Error::Synthetic(error) => error.hint(),
            Error::Engine(error) => error.hint(),
            Error::Dist(openfleet_dist::Error::OpenDoor { .. }) => Some(
                "set `OPENFLEET_SECRET` to the same text for every process of the job, or start it with `fleetrun`, which \
                 makes one; without a secret a server listens on 127.0.0.1 only, and with the role in `PADDLE_*` variables \
                 alone on private addresses too"
                    .into(),
            ),
            Error::NoSecret { .. } => Some(
                "set `OPENFLEET_SECRET` to the same text for every process of the job, or start it with `fleetrun`, which \
                 makes one; without a secret servers are on 127.0.0.1 only, and with the role in `PADDLE_*` variables alone \
                 on private addresses too"
                    .into(),
            ),
            Error::Dist(openfleet_dist::Error::Socket { action: "listening on", source, .. }) => match source.kind() {
                ErrorKind::AddrInUse => Some("another program has this port: end it, or choose another port".into()),
                ErrorKind::AddrNotAvailable => Some(
                    "the address is not this machine's: correct the list of servers, or set `OPENFLEET_BIND` to an \
                     address of this machine or to `0.0.0.0`"
                        .into(),
                ),
                _ => None,
            },
            Error::Dist(error) => error.hint(),
            #[cfg(unix)]
            Error::Launch(error) => error.hint(),
            Error::Role(error) => error.hint(),
            Error::WrongRole { expected, .. } => Some(format!("call it where `is_{expected}()` is true").into()),
            Error::TooEarly { missing, .. } => Some(format!("call `{missing}` first").into()),
            Error::TooLate { after, .. } => Some(format!("call it before `{after}`").into()),
            Error::ServersAbsent { .. } => Some(
                "check that they are running and that the list of servers (`PADDLE_PSERVERS_IP_PORT_LIST` or \
                 `OPENFLEET_SERVERS`) is the same on every machine; `OPENFLEET_WAIT_SECONDS` is the limit"
                    .into(),
            ),
            Error::Unwelcome { .. } => Some(
                "check that `OPENFLEET_SECRET` and `OPENFLEET_JOB` are the same for every process of the job, and that no \
                 other job uses these servers"
                    .into(),
            ),
            Error::Listen { address, source } => Some(match source.kind() {
                ErrorKind::AddrInUse => format!(
                    "another program has port {}: end it, or choose another one with `--listen`, where port 0 is any free one",
                    address.port()
                )
                .into(),
                ErrorKind::AddrNotAvailable => "the address is not this machine's".into(),
                _ => "choose another address with `--listen`".into(),
            }),
            Error::NotBuilt { feature, .. } => {
                Some(format!("build with the feature `{feature}`, which is on by default").into())
            }
            Error::NoMeeting { .. } => Some(
                "set `PADDLE_TRAINER_ENDPOINTS`, or `MASTER_ADDR` and `MASTER_PORT`; `fleetrun --nproc_per_node` does".into(),
            ),
            Error::Unavailable { .. } | Error::WaitInterrupted => None,
            Error::Runtime { .. } | Error::WorkerPanicked { .. } => None,
            Error::BadOption { .. } | Error::Columns { .. } | Error::Io { .. } => None,
        }
    }
}

/// Servers as messages name them.
fn servers(endpoints: &[String]) -> String {
    let names: Vec<String> = endpoints.iter().map(|endpoint| format!("`{endpoint}`")).collect();
    format!("server{} {}", if names.len() == 1 { "" } else { "s" }, names.join(", "))
}
