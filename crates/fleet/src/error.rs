//! What can go wrong between the options and the result, each with its remedy.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use openfleet_core::{Endpoint, Hint, Hinted, Role};
use openfleet_engine::{dataset, synthetic};

/// `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong between the options and the result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    // Options
    /// An option that the chosen model or format does not have.
    #[error("`{option}` cannot be used with {owner}")]
    MeaninglessOption {
        /// The option as the user writes it.
        option: &'static str,
        /// What was chosen, in words.
        owner: String,
        /// Who takes it.
        takers: &'static str,
    },
    /// An option without which the choice cannot be made.
    #[error("{owner} needs `{option}`")]
    MissingOption {
        /// The option as the user writes it.
        option: &'static str,
        /// What was chosen, in words.
        owner: String,
        /// What to write.
        remedy: &'static str,
    },
    /// An option with a value it cannot have.
    #[error("`{option}`: expected {expected}, got `{got}`")]
    BadOption {
        /// The option as the user writes it.
        option: &'static str,
        /// What it takes.
        expected: &'static str,
        /// What was written.
        got: String,
    },
    /// Two options of which one makes the other senseless.
    #[error("`{first}` and `{second}` contradict each other")]
    Contradiction {
        /// One of them.
        first: &'static str,
        /// The other.
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
        /// The fields it reads, in words.
        expected: &'static str,
        /// What the data has.
        got: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A file pattern that is not one.
    #[error("`{pattern}` is not a file pattern")]
    Pattern {
        /// As given.
        pattern: String,
        /// What is wrong with it.
        source: glob::PatternError,
    },
    /// A column description that is no TOML, or has other words than ours.
    #[error("`{}` is not a column description for {format}", path.display())]
    Columns {
        /// The file.
        path: PathBuf,
        /// The format it should describe.
        format: &'static str,
        /// Where in the file, and what was expected there.
        source: Box<toml::de::Error>,
    },
    /// The operating system refused.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// What it answered.
        source: std::io::Error,
    },

    // Saved models
    /// Something in the way that we did not write.
    #[error("`{address}` exists and is not a saved model")]
    NotOurs {
        /// The directory, or where in a bucket.
        address: String,
    },
    /// A file of a saved model does not hold what it should.
    #[error("`{file}`: expected {expected}, got {got}")]
    Damaged {
        /// The file.
        file: String,
        /// What should be there.
        expected: String,
        /// What is there.
        got: String,
    },

    // From the rooms below
    /// Data could not be made.
    #[error(transparent)]
    Synthetic(#[from] synthetic::Error),
    /// Training or reading failed.
    #[error(transparent)]
    Engine(#[from] openfleet_engine::Error),
    /// Servers could not be started or reached.
    #[error(transparent)]
    Dist(#[from] openfleet_dist::Error),
    /// A job could not be started, or did not end well.
    #[cfg(unix)]
    #[error(transparent)]
    Launch(#[from] crate::launch::Error),

    /// All workers are gone, and not all have departed.
    #[error("all workers have been disconnected for 600 s, and not all of them had finished")]
    Deserted,

    // Roles
    /// The process does not know what it is.
    #[error(transparent)]
    Role(#[from] crate::role::Error),
    /// A call for processes of the other role.
    #[error("`{call}` is for a {expected}, this is {got}")]
    WrongRole {
        /// What was called.
        call: &'static str,
        /// Whom it is for.
        expected: Role,
        /// What this process is.
        got: String,
    },
    /// A call before another that it needs.
    #[error("`{call}` was called before `{missing}`")]
    TooEarly {
        /// What was called.
        call: &'static str,
        /// What should have been.
        missing: &'static str,
    },
    /// A call after another that ended what it needs.
    #[error("`{call}` was called after `{after}`")]
    TooLate {
        /// What was called.
        call: &'static str,
        /// What had been.
        after: &'static str,
    },
    /// Something that this version cannot do.
    #[error("{what} is not available yet")]
    Unavailable {
        /// What was asked for.
        what: &'static str,
    },
    /// Servers that were waited for in vain.
    #[error("{} did not answer within {} s", servers(endpoints), waited.as_secs_f64())]
    ServersAbsent {
        /// Which.
        endpoints: Vec<String>,
        /// How long.
        waited: Duration,
    },
    /// A server that answered and said no.
    #[error("this worker cannot join the job")]
    Unwelcome {
        /// What it said.
        source: openfleet_dist::Error,
    },
    /// Servers beyond this machine without a secret.
    #[error("refusing to train with server `{endpoint}` without a secret: anybody could read and change the tables")]
    NoSecret {
        /// The server.
        endpoint: Endpoint,
    },
    /// Somebody did not want to wait any longer.
    #[error("interrupted while waiting for servers")]
    WaitInterrupted,

    // The machine
    /// An address that cannot be listened on.
    #[error("cannot listen on `{address}`")]
    Listen {
        /// As the user gave it.
        address: SocketAddr,
        /// What the system answered.
        source: std::io::Error,
    },
    /// The threads that servers run on could not be started.
    #[error("cannot start the servers' threads")]
    Runtime {
        /// What the system answered.
        source: std::io::Error,
    },
    /// A worker's thread panicked: a bug of ours.
    #[error("worker {rank} panicked")]
    WorkerPanicked {
        /// Which worker.
        rank: usize,
    },
}

impl Error {
    /// For `map_err` on calls to the operating system.
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
    /// Whether the worker has to start again, because the job returned to an earlier moment.
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
            Error::Deserted => Some("look into the logs of the workers; start the job again to continue it".into()),
            Error::Pattern { .. } => Some("`*` and `?` stand for any text and any character, `[ab]` for a or b".into()),
            Error::NotOurs { .. } => Some("choose another place, or remove what is there first".into()),
            Error::Damaged { .. } => Some("the model was not written by this version, or was changed since".into()),
            // The engine does not know how its setting is spelled on a command line.
            Error::Engine(openfleet_engine::Error::Dataset(dataset::Error::BadLine { .. })) => Some(
                "correct the line or the description of the fields, or leave bad lines out and count them with \
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
            Error::Unavailable { .. } | Error::WaitInterrupted => None,
            Error::Runtime { .. } | Error::WorkerPanicked { .. } => None,
            Error::BadOption { .. } | Error::Columns { .. } | Error::Io { .. } => None,
        }
    }
}

/// Servers, as messages spell them.
fn servers(endpoints: &[String]) -> String {
    let names: Vec<String> = endpoints.iter().map(|endpoint| format!("`{endpoint}`")).collect();
    format!("server{} {}", if names.len() == 1 { "" } else { "s" }, names.join(", "))
}
