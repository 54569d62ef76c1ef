//! What can go wrong while values travel between a worker and its tables.

use std::time::Duration;

use openfleet_core::topology::Incarnation;
use openfleet_core::{Hint, Hinted};
use openfleet_table::checkpoint::StorageError;

use crate::frame::MAGIC;
use crate::server::Collective;

/// `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong while values travel between a worker and its tables.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The table refused the request.
    #[error("{action} table `{table}` failed")]
    Table {
        /// Pull or push.
        action: &'static str,
        /// The table's name.
        table: String,
        /// What the table said.
        source: openfleet_table::Error,
    },

    /// A push to tables that are only read.
    #[error("table `{table}` is a file that is only read")]
    ReadOnly {
        /// The first of them.
        table: String,
    },

    // Frames.
    /// The other side speaks something else.
    #[error("expected a frame that begins with {MAGIC:#010x}, got {got:#010x}")]
    NotOurs {
        /// The first four bytes.
        got: u32,
    },
    /// The other side speaks another version.
    #[error("this side speaks protocol version {expected}, the other side version {got}")]
    Version {
        /// Ours.
        expected: u16,
        /// Theirs.
        got: u16,
    },
    /// A checksum or a length does not fit.
    #[error("a damaged {what}")]
    Damaged {
        /// Which part.
        what: &'static str,
    },
    /// A payload longer than allowed here.
    #[error("a payload of {length} bytes, at most {cap} are allowed here")]
    TooLong {
        /// What the header says.
        length: u64,
        /// What is allowed.
        cap: u64,
    },
    /// A kind of frame that has no meaning here.
    #[error("a frame of unknown kind {kind}")]
    UnknownKind {
        /// The kind.
        kind: u16,
    },

    // Sessions.
    /// The other side does not know the job's secret.
    #[error("the other side does not know the secret of this job")]
    WrongSecret,
    /// The server closed the door.
    #[error("server `{endpoint}` refused worker {rank}: {reason}")]
    Refused {
        /// The server.
        endpoint: String,
        /// Who asked.
        rank: u32,
        /// In the server's words.
        reason: String,
    },
    /// A process that was started again speaks for the worker now.
    #[error("incarnation {incarnation} of worker {rank} was replaced by a newer one")]
    Replaced {
        /// The worker.
        rank: u32,
        /// The older one.
        incarnation: Incarnation,
    },
    /// Binding beyond loopback without a secret.
    #[error("refusing to listen on `{endpoint}` without a secret: anybody could read and change the tables")]
    OpenDoor {
        /// The address.
        endpoint: String,
    },
    /// A server that is not to be trusted, or does not speak TLS at all.
    #[error("no TLS with server `{endpoint}`, trusting `{authorities}`: {reason}")]
    Tls {
        /// The server.
        endpoint: String,
        /// The file of authorities.
        authorities: String,
        /// In the words of TLS.
        reason: String,
    },
    /// A file of certificates or keys that cannot be used.
    #[error("`{path}` cannot be used for TLS: {reason}")]
    TlsFile {
        /// The file.
        path: String,
        /// Why not.
        reason: String,
    },
    /// TLS was asked for.
    #[error("TLS is configured, and this build of OpenFleet has none")]
    NoTls,
    /// A socket failed.
    #[error("{action} `{endpoint}` failed")]
    Socket {
        /// Connecting to, reading from, ...
        action: &'static str,
        /// The other side.
        endpoint: String,
        /// The system's words.
        source: std::io::Error,
    },
    /// No answer in time.
    #[error("server `{endpoint}` did not answer `{request}` within {} s", waited.as_secs_f64())]
    Deadline {
        /// The server.
        endpoint: String,
        /// What was asked.
        request: &'static str,
        /// How long.
        waited: Duration,
    },
    /// The server answered with an error.
    #[error("server `{endpoint}` could not do `{request}`: {message}")]
    Server {
        /// The server.
        endpoint: String,
        /// What was asked.
        request: &'static str,
        /// In the server's words.
        message: String,
    },
    /// The connection or runtime is gone for good.
    #[error("the connection to server `{endpoint}` has ended")]
    Closed {
        /// The server.
        endpoint: String,
    },

    // Requests.
    /// A request about a table that does not exist.
    #[error("{}", no_such_table(*table, *count))]
    UnknownTable {
        /// The number.
        table: u32,
        /// How many there are.
        count: usize,
    },
    /// A factor for a step that nobody has measured.
    #[error("stream {stream} scales its step {step}, which was not measured")]
    NotMeasured {
        /// The stream.
        stream: u32,
        /// Its step.
        step: u64,
    },
    /// Nobody to train, or absurdly many.
    #[error("{workers} workers of {threads} threads: expected from 1 to {most} training threads in all")]
    Streams {
        /// Workers of the job.
        workers: u32,
        /// Threads of each.
        threads: u32,
        /// The bound.
        most: u32,
    },
    /// A request about a stream that no worker has.
    #[error("no stream has number {stream}; there are {count}")]
    UnknownStream {
        /// The number.
        stream: u32,
        /// How many there are.
        count: u32,
    },
    /// A request in another worker's name.
    #[error("worker {worker} may not speak for stream {stream}, which is worker {owner}'s")]
    NotYours {
        /// Who asked.
        worker: u32,
        /// The stream it named.
        stream: u32,
        /// Whose that is.
        owner: u32,
    },
    /// A worker that the job does not have.
    #[error("no worker has rank {worker}; there are {count}")]
    UnknownWorker {
        /// The rank.
        worker: u32,
        /// How many there are.
        count: u32,
    },
    /// Two workers came to one collective for different things.
    #[error("worker {worker} came for {wanted}, worker {other} for {other_wanted}")]
    Disagreement {
        /// One.
        worker: u32,
        /// What it came for.
        wanted: Collective,
        /// Another.
        other: u32,
        /// What that came for.
        other_wanted: Collective,
    },
    /// A worker that left, or is out of step with the others.
    #[error("worker {worker} came to collective {number}, where nobody meets any more: the next is {expected}")]
    NotMeeting {
        /// Who.
        worker: u32,
        /// Where.
        number: u64,
        /// Where the others are.
        expected: u64,
    },
    /// Something was for a worker that is gone.
    #[error("something was sent to worker {worker}, which has left the job")]
    Undeliverable {
        /// Who left.
        worker: u32,
    },
    /// Workers that did not come.
    #[error("{} did not come to the {what} within {} s", listed(workers), waited.as_secs_f64())]
    Missed {
        /// Barrier, all-reduce or all-to-all.
        what: &'static str,
        /// Who did not come.
        workers: Vec<u32>,
        /// How long they were waited for.
        waited: Duration,
    },
    /// A table that does not exist, by name.
    #[error("no sparse table is named `{table}`; there are: {names}")]
    NoSuchTable {
        /// The name asked for.
        table: String,
        /// The names there are.
        names: String,
    },
    /// Two workers describe one table differently.
    #[error("table `{table}` exists with other settings: {existing}, asked for {wanted}")]
    TableMismatch {
        /// The table.
        table: String,
        /// What it was made from.
        existing: String,
        /// What was asked for.
        wanted: String,
    },
    /// An array that does not fit its table.
    #[error("{what}: expected {expected} values, got {got}")]
    Length {
        /// Which array.
        what: String,
        /// What fits.
        expected: usize,
        /// What came.
        got: usize,
    },
    /// Another kind of work than the mode has.
    #[error("{what} does not fit mode `{mode}`")]
    WrongMode {
        /// The request.
        what: &'static str,
        /// The job's mode.
        mode: String,
    },
    /// Work that overlaps what was applied, without being it.
    #[error("work {first}..={last} of stream {stream} was applied in part")]
    Overlap {
        /// The stream.
        stream: u32,
        /// First step of the push.
        first: u64,
        /// Last step of the push.
        last: u64,
    },
    /// A stream's steps come one after the other.
    #[error("stream {stream} pushed its step {got}, and {expected} is the next")]
    StepOutOfOrder {
        /// The stream.
        stream: u32,
        /// Its next step.
        expected: u64,
        /// What came.
        got: u64,
    },
    /// The servers did not settle on one generation.
    #[error("worker {rank} could not enter the job: its servers kept returning to an earlier moment")]
    NotEntered {
        /// The worker.
        rank: u32,
    },
    /// Servers that would begin from different moments.
    #[error("one server begins from `{first}`, another from `{other}`")]
    OtherCheckpoint {
        /// One.
        first: String,
        /// Another.
        other: String,
    },
    /// A restarted script that does something else than before.
    #[error("{kind} {number} of this script was `{before}` before it was restarted, and is `{now}` now")]
    OtherAction {
        /// What kind of action.
        kind: &'static str,
        /// Which one, from 1.
        number: u64,
        /// Before the restart.
        before: String,
        /// After it.
        now: String,
    },
    /// A restarted script whose collectives come in another order.
    #[error("collective {number} of worker {worker} was {before} before it was restarted, and is {now} now")]
    OtherCollective {
        /// The worker.
        worker: u32,
        /// Which one, from 0.
        number: u64,
        /// Before the restart.
        before: Collective,
        /// After it.
        now: Collective,
    },
    /// Actions are complete one after the other.
    #[error("{kind} {got} came before {kind} {expected}")]
    ActionOutOfOrder {
        /// What kind of action.
        kind: &'static str,
        /// The next one.
        expected: u64,
        /// What came.
        got: u64,
    },
    /// The worker has to start again: the job returned to a checkpoint, or all workers have to repeat something together.
    #[error("worker {rank} has to start again: the job returned to an earlier moment because of another process")]
    Recalled {
        /// The worker.
        rank: u32,
    },
    /// A checkpoint could not be written or read.
    #[error("{action} the checkpoint `{address}` failed")]
    Checkpoint {
        /// Saving or loading.
        action: &'static str,
        /// Where it is.
        address: Box<str>,
        /// What the table room said.
        source: openfleet_table::Error,
    },
    /// An address of a kind that is not known here.
    #[error("`{address}` is not a place that a checkpoint could be in")]
    NoSuchStorage {
        /// The address.
        address: String,
    },
    /// An address of a kind that was left out when this was built.
    #[error("`{address}` is in a bucket of a kind that this build of OpenFleet leaves out")]
    NotBuilt {
        /// The address.
        address: Box<str>,
        /// What it is built with.
        feature: &'static str,
    },
    /// An object store that cannot even be asked.
    #[error("the object store of `{address}` could not be set up")]
    StorageSetup {
        /// The address.
        address: Box<str>,
        /// What is wrong.
        source: Box<StorageError>,
    },
    /// No tables yet.
    #[error("there are no tables that could be saved")]
    NothingToSave,
    /// The servers could not be brought to one moment.
    #[error("the servers did not come to one moment within {} s: {because}", waited.as_secs())]
    NoCut {
        /// How long it was tried.
        waited: Duration,
        /// What was in the way last.
        because: String,
    },
    /// A part of a save that was given up.
    #[error("this save was given up: pushes go on")]
    CutOver,
    /// Tables cannot be exchanged under those who train on them.
    #[error("a checkpoint cannot be loaded while workers train")]
    LoadWhileTraining,
    /// A checkpoint that is to be loaded while workers train on copies of the tables.
    #[error("in geo mode a checkpoint cannot be loaded once workers have copies of the tables")]
    LoadOverCopies,
    /// What geo mode cannot do.
    #[error("{what} is not possible in geo mode, where workers keep copies of the rows that they train")]
    NotInGeo {
        /// What was asked for.
        what: String,
    },
    /// A plain value was wrong.
    #[error(transparent)]
    Core(#[from] openfleet_core::Error),
    /// A worker's background thread failed.
    #[error("the communicator's background thread failed: {message}")]
    Background {
        /// What it said.
        message: String,
    },
}

fn no_such_table(table: u32, count: usize) -> String {
    match count {
        0 => "the server has no tables: it was started again without them, or no worker has made them yet".into(),
        _ => format!("no table has number {table}; there are {count}"),
    }
}

impl Hinted for Error {
    fn hint(&self) -> Option<Hint> {
        match self {
            Error::Table { source, .. } => source.hint(),
            Error::NotOurs { .. } => Some("check that the address is that of an OpenFleet server".into()),
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
                "a restarted script has to do what it did before, in the same order; start the job anew to do something else"
                    .into(),
            ),
            Error::NotEntered { .. } => {
                Some("look into the logs of the servers and of the other workers: some of them keep being restarted".into())
            }
            Error::OtherCheckpoint { .. } => Some("give all servers the same checkpoint to begin from".into()),
            Error::Missed { .. } => {
                Some("look into the logs of these workers: they may have failed, or be slow".into())
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
                Some("begin from it with `init_server`, or load it before the first program is run".into())
            }
            Error::NotInGeo { .. } => Some("leave it out, or train in another mode: in async, for example".into()),
            Error::Core(error) => error.hint(),
            _ => None,
        }
    }
}

impl Error {
    /// The worker that has to start again, if that is what this says.
    pub fn recalled(&self) -> Option<u32> {
        match self {
            Error::Recalled { rank } => Some(*rank),
            _ => None,
        }
    }

    /// Wraps what the table room said of the checkpoint at an address. `action` is `saving to`, `loading`, `reading`.
    pub fn checkpoint(action: &'static str, address: &str) -> impl Fn(openfleet_table::Error) -> Error + use<> {
        let address: Box<str> = address.into();
        move |source| Error::Checkpoint { action, address: address.clone(), source }
    }
}

/// Workers, as messages spell them.
fn listed(workers: &[u32]) -> String {
    let ranks: Vec<String> = workers.iter().map(u32::to_string).collect();
    format!("{} {}", if workers.len() == 1 { "worker" } else { "workers" }, ranks.join(", "))
}
