//! Errors of distributed training: tables, connections, requests, collectives and checkpoints.

use std::time::Duration;

use openfleet_core::topology::Incarnation;
use openfleet_core::{Hint, Hinted};
use openfleet_table::checkpoint::StorageError;

use crate::frame::MAGIC;
use crate::server::Collective;

/// `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of distributed training.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The table refused the request.
    #[error("{action} table `{table}` failed")]
    Table {
        /// What was being done, such as `pulling from`.
        action: &'static str,
        /// The table's name.
        table: String,
        /// The table's error.
        source: openfleet_table::Error,
    },

    /// A push to tables that are read-only.
    #[error("table `{table}` is read-only")]
    ReadOnly {
        /// The first such table.
        table: String,
    },

    // Frames
    /// The peer does not speak this protocol.
    #[error("expected a frame that begins with {MAGIC:#010x}, got {got:#010x}")]
    NotOurs {
        /// Its first four bytes.
        got: u32,
    },
    /// The peer uses another protocol version.
    #[error("this process uses protocol version {expected}, the peer version {got}")]
    Version {
        /// Our version.
        expected: u16,
        /// The peer's version.
        got: u16,
    },
    /// A checksum or a length does not match, or a message makes no sense.
    #[error("a damaged {what}")]
    Damaged {
        /// What is damaged.
        what: &'static str,
    },
    /// A payload that exceeds the limit.
    #[error("a payload of {length} bytes, at most {cap} are allowed here")]
    TooLong {
        /// Its length in bytes.
        length: u64,
        /// The limit in bytes.
        cap: u64,
    },
    /// An unknown kind of frame.
    #[error("a frame of unknown kind {kind}")]
    UnknownKind {
        /// The kind.
        kind: u16,
    },

    // Sessions
    /// The peer does not know the job's secret.
    #[error("the other side does not know the secret of this job")]
    WrongSecret,
    /// The server refused the worker.
    #[error("server `{endpoint}` refused worker {rank}: {reason}")]
    Refused {
        /// The server.
        endpoint: String,
        /// Rank of the worker.
        rank: u32,
        /// The server's reason.
        reason: String,
    },
    /// A restarted process has replaced this one.
    #[error("incarnation {incarnation} of worker {rank} was replaced by a newer one")]
    Replaced {
        /// The worker.
        rank: u32,
        /// The older incarnation.
        incarnation: Incarnation,
    },
    /// Listening beyond loopback without a secret.
    #[error("refusing to listen on `{endpoint}` without a secret: anyone could read and change the tables")]
    OpenDoor {
        /// The address.
        endpoint: String,
    },
    /// The server cannot be trusted, or does not use TLS.
    #[error("no TLS with server `{endpoint}`, trusting `{authorities}`: {reason}")]
    Tls {
        /// The server.
        endpoint: String,
        /// The file with the certificates of the authorities.
        authorities: String,
        /// The reason that TLS reports.
        reason: String,
    },
    /// A file of certificates or keys that cannot be used.
    #[error("`{path}` cannot be used for TLS: {reason}")]
    TlsFile {
        /// The file.
        path: String,
        /// The reason.
        reason: String,
    },
    /// TLS is configured, but this build does not support it.
    #[error("TLS is configured, but this build of OpenFleet does not support it")]
    NoTls,
    /// A socket failed.
    #[error("{action} `{endpoint}` failed")]
    Socket {
        /// What was being done, such as `connecting to`.
        action: &'static str,
        /// The peer.
        endpoint: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A request without a reply in time.
    #[error("server `{endpoint}` did not answer `{request}` within {} s", waited.as_secs_f64())]
    Deadline {
        /// The server.
        endpoint: String,
        /// Name of the request.
        request: &'static str,
        /// The time limit.
        waited: Duration,
    },
    /// The server answered with an error.
    #[error("server `{endpoint}` failed to do `{request}`: {message}")]
    Server {
        /// The server.
        endpoint: String,
        /// Name of the request.
        request: &'static str,
        /// The server's error message.
        message: String,
    },
    /// The link to the server is closed permanently.
    #[error("the connection to server `{endpoint}` is closed")]
    Closed {
        /// The server.
        endpoint: String,
    },

    // Requests
    /// A request for a table that does not exist.
    #[error("{}", no_such_table(*table, *count))]
    UnknownTable {
        /// Number of the table.
        table: u32,
        /// How many tables exist.
        count: usize,
    },
    /// A scale factor for a step that was not measured.
    #[error("stream {stream} sent a scale factor for step {step}, which was not measured")]
    NotMeasured {
        /// The stream.
        stream: u32,
        /// Its step.
        step: u64,
    },
    /// No training threads, or too many.
    #[error("{workers} workers of {threads} threads: expected from 1 to {most} training threads in all")]
    Streams {
        /// Number of workers.
        workers: u32,
        /// Threads per worker.
        threads: u32,
        /// The limit.
        most: u32,
    },
    /// A request for a stream that does not exist.
    #[error("no stream has number {stream}; there are {count}")]
    UnknownStream {
        /// Number of the stream.
        stream: u32,
        /// How many streams exist.
        count: u32,
    },
    /// A request for another worker's stream.
    #[error("worker {worker} cannot use stream {stream}, which belongs to worker {owner}")]
    NotYours {
        /// The worker that sent it.
        worker: u32,
        /// The stream it named.
        stream: u32,
        /// The worker that owns the stream.
        owner: u32,
    },
    /// A rank that does not exist.
    #[error("no worker has rank {worker}; there are {count}")]
    UnknownWorker {
        /// The rank.
        worker: u32,
        /// How many workers exist.
        count: u32,
    },
    /// Two workers called different collectives.
    #[error("worker {worker} called {wanted}, worker {other} called {other_wanted}")]
    Disagreement {
        /// One worker.
        worker: u32,
        /// What it called.
        wanted: Collective,
        /// Another worker.
        other: u32,
        /// What that one called.
        other_wanted: Collective,
    },
    /// A worker that departed, or whose collectives are out of step with the others'.
    #[error("worker {worker} called collective {number}, but the next one is {expected}")]
    NotMeeting {
        /// The worker.
        worker: u32,
        /// Number of its collective.
        number: u64,
        /// Number of the others' collective.
        expected: u64,
    },
    /// A part for a worker that has departed.
    #[error("an all-to-all has a part for worker {worker}, which has departed")]
    Undeliverable {
        /// The departed worker.
        worker: u32,
    },
    /// Workers that did not reach a collective in time.
    #[error("{} did not reach the {what} within {} s", listed(workers), waited.as_secs_f64())]
    Missed {
        /// Barrier, all-reduce or all-to-all.
        what: &'static str,
        /// The missing workers.
        workers: Vec<u32>,
        /// The time limit.
        waited: Duration,
    },
    /// A table name that does not exist.
    #[error("no sparse table is named `{table}`; existing tables: {names}")]
    NoSuchTable {
        /// The requested name.
        table: String,
        /// The existing names.
        names: String,
    },
    /// Two workers describe one table differently.
    #[error("table `{table}` exists with other settings: {existing}, requested {wanted}")]
    TableMismatch {
        /// The table.
        table: String,
        /// The spec that it was created with.
        existing: String,
        /// The requested spec.
        wanted: String,
    },
    /// An array of the wrong length.
    #[error("{what}: expected {expected} values, got {got}")]
    Length {
        /// Which array.
        what: String,
        /// The right length.
        expected: usize,
        /// Its length.
        got: usize,
    },
    /// A request that the mode does not have.
    #[error("`{what}` cannot be used in mode `{mode}`")]
    WrongMode {
        /// The request.
        what: &'static str,
        /// The job's mode.
        mode: String,
    },
    /// A push that overlaps applied work without being a repeat of it.
    #[error("steps {first}..={last} of stream {stream} were applied in part")]
    Overlap {
        /// The stream.
        stream: u32,
        /// First step of the push.
        first: u64,
        /// Last step of the push.
        last: u64,
    },
    /// A step out of order.
    #[error("stream {stream} pushed step {got}, expected step {expected}")]
    StepOutOfOrder {
        /// The stream.
        stream: u32,
        /// Its next step.
        expected: u64,
        /// The step that was pushed.
        got: u64,
    },
    /// The servers kept changing their generation.
    #[error("worker {rank} could not enter the job: its servers kept returning to a checkpoint")]
    NotEntered {
        /// The worker.
        rank: u32,
    },
    /// Servers that would begin from different checkpoints.
    #[error("one server begins from `{first}`, another from `{other}`")]
    OtherCheckpoint {
        /// One checkpoint.
        first: String,
        /// The other.
        other: String,
    },
    /// A restarted script did something else than before.
    #[error("{kind} {number} of this script was `{before}` before the restart, and is `{now}` now")]
    OtherAction {
        /// Kind of action.
        kind: &'static str,
        /// Number of the action, from 1.
        number: u64,
        /// Before the restart.
        before: String,
        /// After the restart.
        now: String,
    },
    /// The collectives of a restarted script are in another order.
    #[error("collective {number} of worker {worker} was {before} before the restart, and is {now} now")]
    OtherCollective {
        /// The worker.
        worker: u32,
        /// Number of the collective, from 0.
        number: u64,
        /// Before the restart.
        before: Collective,
        /// After the restart.
        now: Collective,
    },
    /// An action out of order.
    #[error("got {kind} {got}, expected {kind} {expected}")]
    ActionOutOfOrder {
        /// Kind of action.
        kind: &'static str,
        /// The next number.
        expected: u64,
        /// The number that was sent.
        got: u64,
    },
    /// The worker has to restart: the job returned to a checkpoint, or all workers have to repeat a collective together.
    #[error("worker {rank} has to restart: the job returned to a checkpoint because of another process")]
    Recalled {
        /// The worker.
        rank: u32,
    },
    /// A checkpoint could not be written or read.
    #[error("{action} the checkpoint `{address}` failed")]
    Checkpoint {
        /// What was being done, such as `loading`.
        action: &'static str,
        /// Address of the checkpoint.
        address: Box<str>,
        /// The table crate's error.
        source: openfleet_table::Error,
    },
    /// An address with an unknown scheme.
    #[error("`{address}` is not a valid address of a checkpoint")]
    NoSuchStorage {
        /// The address.
        address: String,
    },
    /// An address that this build does not support.
    #[error("this build of OpenFleet does not support buckets such as `{address}`")]
    NotBuilt {
        /// The address.
        address: Box<str>,
        /// The feature that supports it.
        feature: &'static str,
    },
    /// An object store that could not be set up.
    #[error("the object store of `{address}` could not be set up")]
    StorageSetup {
        /// The address.
        address: Box<str>,
        /// The reason.
        source: Box<StorageError>,
    },
    /// There are no tables to save.
    #[error("there are no tables to save")]
    NothingToSave,
    /// No consistent snapshot could be taken.
    #[error("no consistent snapshot of the servers within {} s: {because}", waited.as_secs())]
    NoCut {
        /// How long it was tried.
        waited: Duration,
        /// The last reason for a retry.
        because: String,
    },
    /// A request of a save that was aborted.
    #[error("this save was aborted")]
    CutOver,
    /// Tables cannot be loaded while workers train on them.
    #[error("a checkpoint cannot be loaded while workers train")]
    LoadWhileTraining,
    /// Tables cannot be loaded while workers have copies of them.
    #[error("in geo mode a checkpoint cannot be loaded once workers have copies of the tables")]
    LoadOverCopies,
    /// Something that geo mode does not support.
    #[error("{what} is not supported in geo mode, because workers keep copies of the rows they train")]
    NotInGeo {
        /// What was requested.
        what: String,
    },

    // Collective jobs
    /// Ranks that did not join the job in time.
    #[error("{} did not join the job at `{meeting}` within {} s", ranks(absent), waited.as_secs_f64())]
    RanksAbsent {
        /// The missing ranks.
        absent: Vec<u32>,
        /// Where the ranks meet.
        meeting: String,
        /// The time limit.
        waited: Duration,
    },
    /// A process that cannot join the job.
    #[error("this process cannot join the job at `{meeting}` as rank {rank}: {reason}")]
    RankRefused {
        /// Its rank.
        rank: u32,
        /// Where the ranks meet.
        meeting: String,
        /// The reason.
        reason: String,
    },
    /// A rank that has ended or cannot continue.
    #[error("rank {rank} is lost: {reason}")]
    RankLost {
        /// The rank.
        rank: u32,
        /// The reason.
        reason: String,
    },
    /// MPI was chosen in a build without it.
    #[error("this build of OpenFleet does not support MPI between ranks")]
    NoMpi,
    /// An MPI library that this process cannot use from its threads.
    #[error("MPI supports `{provided}` in this process: expected `{needed}` or more")]
    MpiThreads {
        /// The level that is needed.
        needed: &'static str,
        /// The level of the library.
        provided: &'static str,
    },
    /// A process whose rank in MPI is not its rank in the job.
    #[error("this process is rank {rank} of {size} in the job, and rank {mpi_rank} of {mpi_size} in MPI")]
    MpiRank {
        /// Its rank in the job.
        rank: usize,
        /// The number of ranks of the job.
        size: usize,
        /// Its rank in MPI.
        mpi_rank: usize,
        /// The number of processes of MPI.
        mpi_size: usize,
    },
    /// MPI was finalized, and cannot start again in the same process.
    #[error("MPI has already ended in this process, and cannot start again")]
    MpiEnded,
    /// Two ranks called different operations.
    #[error("rank {rank} is at {call}, rank {other} at {other_call}")]
    RanksDisagree {
        /// One rank.
        rank: u32,
        /// What it called.
        call: String,
        /// Another rank.
        other: u32,
        /// What that one called.
        other_call: String,
    },
    /// A sparse table in a job that averages parameters.
    #[error("`localsgd` cannot train the sparse table `{table}`")]
    NotInLocalSgd {
        /// The table.
        table: String,
    },
    /// Ranks whose tables differ.
    #[error("table `{table}` differs between rank 0 and rank {rank}")]
    RowsDiffer {
        /// The table.
        table: String,
        /// The rank.
        rank: u32,
    },

    /// An error of the core crate.
    #[error(transparent)]
    Core(#[from] openfleet_core::Error),
    /// A worker's background thread failed.
    #[error("the communicator's background thread failed: {message}")]
    Background {
        /// Its error message.
        message: String,
    },
}

fn no_such_table(table: u32, count: usize) -> String {
    match count {
        0 => "the server has no tables: it was restarted without them, or no worker has created them yet".into(),
        _ => format!("no table has number {table}; there are {count}"),
    }
}

impl Hinted for Error {
    fn hint(&self) -> Option<Hint> {
        match self {
            Error::Table { source, .. } => source.hint(),
            Error::NotOurs { .. } => Some("check that the address belongs to an OpenFleet server".into()),
            Error::Version { .. } => Some("install the same version of OpenFleet on every machine".into()),
            Error::WrongSecret => {
                Some("start all processes of a job with one launcher, or give them the same secret".into())
            }
            Error::Tls { .. } => Some(
                "check that TLS is configured on both sides, that the server's certificate names the host it is reached \
                 by, and that it was signed by one of these authorities"
                    .into(),
            ),
            Error::TlsFile { .. } => {
                Some("give the path of a PEM file: certificates as `CERTIFICATE`, a key as `PRIVATE KEY`".into())
            }
            Error::NoTls => {
                Some("build with the feature `tls` of `openfleet-dist`, or leave certificates out of the configuration".into())
            }
            Error::OpenDoor { .. } => Some("set a secret for the job, or listen on 127.0.0.1".into()),
            Error::Deadline { .. } | Error::Socket { .. } => Some(
                "check that the server is running and that the list of servers is the same on every machine".into(),
            ),
            Error::Disagreement { .. } => {
                Some("call the same barriers, all-reduces and shuffles in the same order on every worker".into())
            }
            Error::OtherAction { .. } | Error::OtherCollective { .. } => Some(
                "a restarted script must do the same as before, in the same order; start a new job to do something else"
                    .into(),
            ),
            Error::NotEntered { .. } => {
                Some("check the logs of the servers and of the other workers: some of them keep restarting".into())
            }
            Error::OtherCheckpoint { .. } => Some("give all servers the same checkpoint".into()),
            Error::RanksAbsent { .. } => Some(
                "check that every rank was started, with the same number of ranks and the same address of rank 0; \
                 `OPENFLEET_WAIT_SECONDS` is the limit"
                    .into(),
            ),
            Error::RankRefused { .. } => {
                Some("start all ranks of a job with one launcher, or give each its own rank and all the same number".into())
            }
            Error::RankLost { rank, .. } => Some(format!("check the log of rank {rank}").into()),
            Error::NoMpi => Some(
                "build with the feature `mpi` of `openfleet`, which needs an MPI library and libclang, or set \
                 `OPENFLEET_COLLECTIVE_BACKEND` to `tcp`"
                    .into(),
            ),
            Error::MpiThreads { .. } => Some(
                "use an MPI library that was built with support for threads; a program that initialises MPI itself has to \
                 ask for `MPI_THREAD_MULTIPLE`"
                    .into(),
            ),
            Error::MpiRank { .. } => Some(
                "start all processes of the job, and nothing else, with one `mpirun`; unset variables that give another rank"
                    .into(),
            ),
            Error::MpiEnded => Some("run one collective job per process, or choose `tcp`".into()),
            Error::RanksDisagree { .. } => {
                Some("train the same programs and call the same operations in the same order on every rank".into())
            }
            Error::NotInLocalSgd { .. } => {
                Some("leave `localsgd` out, or train with servers in geo mode, which exchanges rows from time to time".into())
            }
            Error::RowsDiffer { .. } => Some("load the same checkpoint on every rank, or on none".into()),
            Error::Missed { .. } => {
                Some("check the logs of these workers: they may have failed, or be slow".into())
            }
            Error::TableMismatch { .. } => Some("run the same program with the same options on every worker".into()),
            Error::Checkpoint { source, .. } => source.hint(),
            Error::NoSuchStorage { .. } => Some(
                "give a path, or an address that begins with `file://`, `s3://`, `gs://`, `az://` or `abfs://`".into(),
            ),
            Error::NotBuilt { feature, .. } => {
                Some(format!("build with the feature `{feature}` of `openfleet`, or save to a directory").into())
            }
            Error::StorageSetup { source, .. } => source.hint.clone().map(Hint::from),
            Error::NothingToSave => Some("save after the first program was compiled or trained".into()),
            Error::LoadWhileTraining => Some("load before training begins, or between two passes".into()),
            Error::TooLong { .. } => Some("use smaller batches, or more servers".into()),
            Error::LoadOverCopies => {
                Some("pass it to `init_server`, or load it before the first program runs".into())
            }
            Error::NotInGeo { .. } => Some("remove it, or train in another mode, such as async".into()),
            Error::Core(error) => error.hint(),
            _ => None,
        }
    }
}

impl Error {
    /// The worker that has to restart, if this is [`Error::Recalled`].
    pub fn recalled(&self) -> Option<u32> {
        match self {
            Error::Recalled { rank } => Some(*rank),
            _ => None,
        }
    }

    /// Whether every rank of a collective job finds this error itself, from what all ranks have told each other.
    pub(crate) fn is_found_by_every_rank(&self) -> bool {
        matches!(self, Error::RanksDisagree { .. } | Error::RowsDiffer { .. })
    }

    /// The same error for another caller.
    pub(crate) fn repeated(&self) -> Error {
        match self {
            Error::RankLost { rank, reason } => Error::RankLost { rank: *rank, reason: reason.clone() },
            Error::RanksDisagree { rank, call, other, other_call } => {
                Error::RanksDisagree { rank: *rank, call: call.clone(), other: *other, other_call: other_call.clone() }
            }
            Error::RowsDiffer { table, rank } => Error::RowsDiffer { table: table.clone(), rank: *rank },
            Error::Recalled { rank } => Error::Recalled { rank: *rank },
            Error::Background { message } => Error::Background { message: message.clone() },
            other => Error::Background { message: openfleet_core::error::report(other) },
        }
    }

    /// Wraps an error of the table crate about the checkpoint at an address. `action` is `saving to`, `loading`, `reading`.
    pub fn checkpoint(action: &'static str, address: &str) -> impl Fn(openfleet_table::Error) -> Error + use<> {
        let address: Box<str> = address.into();
        move |source| Error::Checkpoint { action, address: address.clone(), source }
    }
}

/// Workers, as messages spell them.
fn listed(workers: &[u32]) -> String {
    numbered("worker", workers)
}

/// Ranks, as messages spell them.
pub(crate) fn ranks(ranks: &[u32]) -> String {
    numbered("rank", ranks)
}

fn numbered(word: &str, numbers: &[u32]) -> String {
    let list: Vec<String> = numbers.iter().map(u32::to_string).collect();
    format!("{word}{} {}", if numbers.len() == 1 { "" } else { "s" }, list.join(", "))
}
