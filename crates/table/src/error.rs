//! Errors of tables, with expected and actual values.
//!
//! Every error is a mistake of the caller that was found before any state changed. A gradient that is not finite is counted in
//! [`PushReport`](crate::PushReport), and is an error only if the table's policy says so.

use openfleet_core::{Hint, Hinted, Key};

use crate::checkpoint::{Flip, StorageError};

/// `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of tables, update rules and checkpoints.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    // --- requests ---
    /// An array of a request has the wrong length; the table is unchanged.
    #[error("{what}: expected {expected} values, got {got}")]
    Length {
        /// The array.
        what: &'static str,
        /// The length required.
        expected: usize,
        /// The length given.
        got: usize,
    },
    /// A request has more keys than its 32-bit positions can count.
    #[error("a request takes at most {limit} keys, got {got}")]
    TooManyKeys {
        /// Maximum number of keys per request.
        limit: usize,
        /// The number of keys.
        got: usize,
    },
    /// A sparse push has a gradient that is not finite, and the table's policy is to stop; the table is unchanged.
    #[error("the gradient of key {key} is not finite")]
    NonFiniteRow {
        /// The key of the first such gradient.
        key: Key,
    },
    /// A dense push has a number that is not finite, and the table's policy is to stop; the table is unchanged.
    #[error("the gradient of a dense table is not finite at element {index}")]
    NonFiniteElement {
        /// Index of the first such number.
        index: usize,
    },

    /// Differences were sent to a table whose weights are rounded; the table is unchanged.
    #[error("differences cannot be added to rows stored as `{storage}`")]
    NarrowSum {
        /// How the table stores weights.
        storage: &'static str,
    },

    // --- steps taken together ---
    /// A contribution to a step that is already complete: its sender was considered gone.
    #[error("rank {rank} contributed to step {step}, but the group is at step {current}")]
    Late {
        /// The sender.
        rank: u32,
        /// Its step.
        step: u64,
        /// The current step of the group.
        current: u64,
    },
    /// A contribution to a step that the group has not reached yet.
    #[error("rank {rank} contributed to step {step}, but the group is still at step {current}")]
    Early {
        /// The sender.
        rank: u32,
        /// Its step.
        step: u64,
        /// The current step of the group.
        current: u64,
    },
    /// A contribution from a rank that has not joined, or has left.
    #[error("rank {rank} is not a member of the group at step {current}")]
    NotAMember {
        /// The sender.
        rank: u32,
        /// The current step of the group.
        current: u64,
    },

    // --- checkpoints ---
    /// A cut while another one is being read.
    #[error("the table is already being saved")]
    CutTwice,
    /// The storage failed; an existing checkpoint is unchanged.
    #[error("cannot {action} `{file}` of the checkpoint")]
    Storage {
        /// The operation.
        action: &'static str,
        /// The file.
        file: String,
        /// The storage's error.
        source: Box<StorageError>,
    },
    /// A delta since a save that the table does not know.
    #[error("cannot save a delta: no change history since save `{save}`")]
    UnknownSave {
        /// Id of the save.
        save: String,
    },
    /// A delta save without something that it needs.
    #[error("a delta save must have {what}")]
    DeltaWithout {
        /// What is missing.
        what: &'static str,
    },
    /// Another job or tool wrote to the same address.
    #[error("the checkpoint in `{name}` was replaced meanwhile: expected save {expected}, got {got}")]
    ReplacedMeanwhile {
        /// The address.
        name: String,
        /// The save that was there.
        expected: Box<str>,
        /// The save that is there now.
        got: Box<str>,
    },
    /// There is no manifest.
    #[error("`{name}` is not a checkpoint: it has no `manifest.json`")]
    NotACheckpoint {
        /// The address.
        name: String,
    },
    /// A checkpoint exists and may not be replaced.
    #[error("`{name}` already has a checkpoint")]
    CheckpointExists {
        /// The address.
        name: String,
    },
    /// A checkpoint in another format version.
    #[error("`{file}` has format version {got}, expected {expected}")]
    FormatVersion {
        /// The manifest.
        file: String,
        /// The version that this build writes.
        expected: u32,
        /// The version in the manifest.
        got: u32,
    },
    /// A file that the manifest names does not exist.
    #[error("`{file}` of the checkpoint is missing")]
    MissingFile {
        /// The file.
        file: String,
    },
    /// A file has the wrong length.
    #[error("`{file}` of the checkpoint: expected {expected} bytes, got {got}")]
    FileLength {
        /// The file.
        file: String,
        /// The length in the manifest.
        expected: u64,
        /// The actual length.
        got: u64,
    },
    /// A checksum does not match.
    #[error("`{file}` of the checkpoint is damaged at {}", place(*offset, *length, flip))]
    DamagedBlock {
        /// The file.
        file: String,
        /// Offset of the block.
        offset: u64,
        /// Bytes of the block.
        length: u64,
        /// The flipped bit, if it is exactly one.
        flip: Option<Flip>,
    },
    /// A file has the right checksum, but its content is invalid.
    #[error("`{file}` of the checkpoint is invalid: {reason}")]
    DamagedManifest {
        /// The file.
        file: String,
        /// What is invalid.
        reason: String,
    },
    /// Servers have saved different things.
    #[error("the servers do not agree on {what}")]
    PartsDisagree {
        /// What differs.
        what: String,
    },
    /// The program has something that the checkpoint does not have.
    #[error("the checkpoint has no {kind} `{name}`")]
    NotSaved {
        /// Sparse table or parameter.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The checkpoint has something that the program does not have.
    #[error("the checkpoint has a {kind} `{name}`, which the program does not have")]
    NotWanted {
        /// Sparse table or parameter.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The shape differs.
    #[error("`{name}`: expected {expected}, the checkpoint has {got}")]
    SavedShape {
        /// Table or parameter.
        name: String,
        /// The program's shape.
        expected: Box<str>,
        /// The saved shape.
        got: Box<str>,
    },
    /// The program computes other keys from ids than the checkpoint has.
    #[error("keys of sparse table `{name}` are {expected}, in the checkpoint {got}")]
    SavedKeys {
        /// Name of the table.
        name: String,
        /// The program's kind of keys.
        expected: &'static str,
        /// The saved kind of keys.
        got: &'static str,
    },
    /// The optimizer differs.
    #[error("`{name}` is trained by `{expected}`, in the checkpoint by `{got}`")]
    SavedOptimizer {
        /// Table or parameter.
        name: String,
        /// The program's optimizer.
        expected: &'static str,
        /// The saved optimizer.
        got: &'static str,
    },

    // --- settings ---
    /// A number in a spec, a rule, a schedule or an initializer is out of range.
    #[error("`{field}` of {owner} must be {expected}, got {got}")]
    Setting {
        /// What is being built, in the words of the manual.
        owner: &'static str,
        /// The field's name.
        field: &'static str,
        /// The allowed range, in words.
        expected: &'static str,
        /// The given value.
        got: String,
    },
    /// Rows of the ctr accessor are only stored as floats.
    #[error("ctr rows cannot be stored as `{storage}`")]
    NarrowCtr {
        /// How the weights were to be stored.
        storage: &'static str,
    },
    /// A rule for rows was chosen for a dense table.
    #[error("`{optimizer}` cannot train a dense table, which has no rows")]
    RowwiseDense {
        /// The rule.
        optimizer: &'static str,
    },
    /// A rule that moves all rows in every step was chosen for a table whose rows are evicted or count shows and clicks.
    #[error("`{optimizer}` without `lazy_mode` needs a sparse table of plain rows without a limit")]
    MovesEveryRow {
        /// The rule.
        optimizer: &'static str,
    },
    /// An initializer that depends on the number of rows was given to a sparse table, which has no fixed number of rows.
    #[error("initializer `{initializer}` needs `{field}`: a sparse table has no fixed number of rows")]
    FansUnknown {
        /// The initializer's name.
        initializer: &'static str,
        /// The missing field.
        field: &'static str,
    },
}

impl Hinted for Error {
    fn hint(&self) -> Option<Hint> {
        match self {
            Error::Length { what: "rows" | "gradients" | "deltas", .. } => {
                Some("a sparse request carries `keys.len() * dim` floats, in the order of its keys".into())
            }
            Error::NarrowSum { .. } => {
                Some("geo mode needs rows stored as `float32`; all other modes train rows of either storage".into())
            }
            Error::NarrowCtr { .. } => Some("use the storage `float32`, or the plain accessor".into()),
            Error::RowwiseDense { .. } => {
                Some("use `adagrad` with the same settings (`Optimizer::for_dense`), as programs do".into())
            }
            Error::MovesEveryRow { .. } => Some("set `lazy_mode`: rows that are not pushed stay as they are".into()),
            Error::TooManyKeys { .. } => Some("split the request".into()),
            Error::NonFiniteRow { .. } | Error::NonFiniteElement { .. } => Some(
                "lower the learning rate or clip gradients; the policy `skip` leaves such gradients out and counts them"
                    .into(),
            ),
            Error::Late { .. } | Error::NotAMember { .. } => Some(
                "the rank was considered dead or left early; it can join again at the current step".into(),
            ),
            Error::FansUnknown { .. } => Some(
                "give the fans, or derive them from the declared size with `with_fans_of(&[vocabulary, dim])`".into(),
            ),
            Error::Storage { source, .. } if source.hint.is_some() => source.hint.clone().map(Hint::from),
            Error::Storage { source, .. } if source.kind == std::io::ErrorKind::StorageFull => {
                Some("free some space and save again; the previous checkpoint is unchanged".into())
            }
            Error::UnknownSave { .. } => Some(
                "make one full save to this address first: changes are known since saves and loads of this job, the last \
                 48 of them, unless most rows were removed since"
                    .into(),
            ),
            Error::DeltaWithout { .. } => Some("make a full save, or remove that option".into()),
            Error::ReplacedMeanwhile { .. } => Some("only one job or tool at a time may write to an address".into()),
            Error::CheckpointExists { .. } => Some("choose another address, or allow replacing it".into()),
            Error::FormatVersion { .. } => Some("read it with the version of OpenFleet that wrote it".into()),
            Error::MissingFile { .. } => Some(
                "every server must see the same directory: use a shared file system or a bucket if they run on several \
                 machines; and two jobs must not save to one address at the same time"
                    .into(),
            ),
            Error::DamagedBlock { .. } | Error::FileLength { .. } => {
                Some("resume from another checkpoint, or copy this one again from its source".into())
            }
            Error::NotSaved { .. }
            | Error::NotWanted { .. }
            | Error::SavedShape { .. }
            | Error::SavedOptimizer { .. } => {
                Some("load with `partial` to take what fits and initialize the rest".into())
            }
            Error::SavedKeys { .. } => Some(
                "build the model as it was trained: with `share_ids` equal ids of different slots are one feature and keys \
                 are plain ids, as in models trained before salts were introduced"
                    .into(),
            ),
            _ => None,
        }
    }
}

impl Error {
    /// Wraps an error of the storage, with the operation and the file.
    pub fn storage(action: &'static str, file: &str) -> impl FnOnce(std::io::Error) -> Error {
        let file = file.to_owned();
        move |error| Error::Storage { action, file, source: Box::new(error.into()) }
    }
}

fn place(offset: u64, length: u64, flip: &Option<Flip>) -> String {
    match flip {
        Some(Flip { offset, bit }) => format!("offset {offset}: bit {bit} is flipped"),
        None => format!("offset {offset}, within {length} bytes"),
    }
}

/// Fails with an error that names the field and its range unless `holds`.
pub(crate) fn require(
    holds: bool,
    owner: &'static str,
    field: &'static str,
    expected: &'static str,
    got: impl ToString,
) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Setting { owner, field, expected, got: got.to_string() }) }
}

/// Fails unless the two lengths are equal.
pub(crate) fn same_length(what: &'static str, expected: usize, got: usize) -> Result<()> {
    if expected == got { Ok(()) } else { Err(Error::Length { what, expected, got }) }
}
