//! What can go wrong with tables, said with expected and got.
//!
//! Everything here is a caller's mistake found before any state changed. A gradient that is not finite is a count in
//! [`PushReport`](crate::PushReport), and an error only where the table was asked to stop at it.

use openfleet_core::{Hint, Hinted, Key};

use crate::checkpoint::{Flip, StorageError};

/// `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with tables and the rules that change them.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    // --- requests ---
    /// An array of a request has the wrong length; the table is as it was.
    #[error("{what}: expected {expected} values, got {got}")]
    Length {
        /// Which array.
        what: &'static str,
        /// The length required.
        expected: usize,
        /// The length given.
        got: usize,
    },
    /// A request names more keys than the 32-bit positions of a request can count.
    #[error("a request takes at most {limit} keys, got {got}")]
    TooManyKeys {
        /// The most keys one request may name.
        limit: usize,
        /// How many were given.
        got: usize,
    },
    /// A sparse push holds a gradient that is not finite, and the table stops at those; it is as it was.
    #[error("the gradient of key {key} is not finite")]
    NonFiniteRow {
        /// The key of the first such gradient.
        key: Key,
    },
    /// A dense push holds a number that is not finite, and the table stops at those; it is as it was.
    #[error("the gradient of a dense table is not finite at element {index}")]
    NonFiniteElement {
        /// Where the first such number stands.
        index: usize,
    },

    // --- steps taken together ---
    /// A contribution to a step that is complete already: its sender was thought to have left.
    #[error("rank {rank} contributes to step {step}, but the group is at step {current}")]
    Late {
        /// Who sent it.
        rank: u32,
        /// The step it is for.
        step: u64,
        /// The step being collected.
        current: u64,
    },
    /// A contribution to a step that nobody may have reached.
    #[error("rank {rank} contributes to step {step}, but the group is still at step {current}")]
    Early {
        /// Who sent it.
        rank: u32,
        /// The step it is for.
        step: u64,
        /// The step being collected.
        current: u64,
    },
    /// A contribution from a rank that has not joined, or has left.
    #[error("rank {rank} is not a member of the group at step {current}")]
    NotAMember {
        /// Who sent it.
        rank: u32,
        /// The step being collected.
        current: u64,
    },

    // --- checkpoints ---
    /// A cut while another one is read out.
    #[error("the table is being saved already")]
    CutTwice,
    /// A storage failed; the checkpoint that was there before still is.
    #[error("cannot {action} `{file}` of the checkpoint")]
    Storage {
        /// What was tried.
        action: &'static str,
        /// On what.
        file: String,
        /// What the storage said.
        source: Box<StorageError>,
    },
    /// A save of which nobody here knows what has changed since.
    #[error("it is not known here what has changed since the save {save}")]
    UnknownSave {
        /// Its id.
        save: String,
    },
    /// A save of changes without what they need.
    #[error("a save of what has changed has to have {what}")]
    DeltaWithout {
        /// What.
        what: &'static str,
    },
    /// Somebody else wrote to the same place.
    #[error("the checkpoint in `{name}` was replaced meanwhile: expected save {expected}, got {got}")]
    ReplacedMeanwhile {
        /// Where.
        name: String,
        /// The save that stood there.
        expected: Box<str>,
        /// The one that stands there now.
        got: Box<str>,
    },
    /// No manifest.
    #[error("`{name}` is not a checkpoint: it has no `manifest.json`")]
    NotACheckpoint {
        /// Where it was looked for.
        name: String,
    },
    /// A checkpoint that was not to be replaced.
    #[error("there is a checkpoint in `{name}` already")]
    CheckpointExists {
        /// Where.
        name: String,
    },
    /// A checkpoint of another time.
    #[error("`{file}` has format version {got}, expected {expected}")]
    FormatVersion {
        /// The manifest.
        file: String,
        /// What this version of OpenFleet writes.
        expected: u32,
        /// What it says.
        got: u32,
    },
    /// A file that the manifest names.
    #[error("`{file}` of the checkpoint is missing")]
    MissingFile {
        /// Which.
        file: String,
    },
    /// A file of another length.
    #[error("`{file}` of the checkpoint: expected {expected} bytes, got {got}")]
    FileLength {
        /// Which.
        file: String,
        /// What the manifest says.
        expected: u64,
        /// What there is.
        got: u64,
    },
    /// Bytes that are not those that were written.
    #[error("`{file}` of the checkpoint is damaged at {}", place(*offset, *length, flip))]
    DamagedBlock {
        /// Which file.
        file: String,
        /// Where the block begins.
        offset: u64,
        /// Bytes of the block.
        length: u64,
        /// Which bit, if it is just one.
        flip: Option<Flip>,
    },
    /// A file that is what was written, but makes no sense.
    #[error("`{file}` of the checkpoint makes no sense: {reason}")]
    DamagedManifest {
        /// Which file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Servers that have not saved the same thing.
    #[error("the servers do not agree on {what}")]
    PartsDisagree {
        /// On what.
        what: String,
    },
    /// Something the program has and the checkpoint has not.
    #[error("the checkpoint has no {kind} `{name}`")]
    NotSaved {
        /// Sparse table or parameter.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// Something the checkpoint has and the program has not.
    #[error("the checkpoint has a {kind} `{name}`, which the program has not")]
    NotWanted {
        /// Sparse table or parameter.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// Another shape.
    #[error("`{name}`: expected {expected}, the checkpoint has {got}")]
    SavedShape {
        /// Table or parameter.
        name: String,
        /// What the program has.
        expected: Box<str>,
        /// What was saved.
        got: Box<str>,
    },
    /// Ids that would not find the rows of the checkpoint.
    #[error("keys of sparse table `{name}` are {expected}, in the checkpoint {got}")]
    SavedKeys {
        /// Table.
        name: String,
        /// What the program has.
        expected: &'static str,
        /// What was saved.
        got: &'static str,
    },
    /// Another rule.
    #[error("`{name}` is trained by `{expected}`, in the checkpoint by `{got}`")]
    SavedOptimizer {
        /// Table or parameter.
        name: String,
        /// What the program has.
        expected: &'static str,
        /// What was saved.
        got: &'static str,
    },

    // --- settings ---
    /// A number in a specification, a rule, a schedule or an initializer is outside its domain.
    #[error("`{field}` of {owner} must be {expected}, got {got}")]
    Setting {
        /// The thing being built, as the manual calls it.
        owner: &'static str,
        /// The field's name.
        field: &'static str,
        /// The domain, in words.
        expected: &'static str,
        /// The value given.
        got: String,
    },
    /// An initializer that scales with the number of rows was given to a table, which has no such number.
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
            Error::TooManyKeys { .. } => Some("split the request".into()),
            Error::NonFiniteRow { .. } | Error::NonFiniteElement { .. } => Some(
                "lower the learning rate or clip gradients; the policy `skip` leaves such gradients out and counts them"
                    .into(),
            ),
            Error::Late { .. } | Error::NotAMember { .. } => Some(
                "the rank was taken for dead or left early; it may join again and go on from the current step".into(),
            ),
            Error::FansUnknown { .. } => Some(
                "give the fans, or take them from the declared size with `with_fans_of(&[vocabulary, dim])`".into(),
            ),
            Error::Storage { source, .. } if source.hint.is_some() => source.hint.clone().map(Hint::from),
            Error::Storage { source, .. } if source.kind == std::io::ErrorKind::StorageFull => {
                Some("make room and save again; the checkpoint before this one is as it was".into())
            }
            Error::UnknownSave { .. } => Some(
                "save the whole once in this place: changes are known since a save or a load of this very job, among its last \
                 48, unless most rows were removed since"
                    .into(),
            ),
            Error::DeltaWithout { .. } => Some("save the whole, or leave that option out".into()),
            Error::ReplacedMeanwhile { .. } => Some("let one job or tool at a time write to a place".into()),
            Error::CheckpointExists { .. } => Some("choose another name, or allow it to be replaced".into()),
            Error::FormatVersion { .. } => Some("read it with the version of OpenFleet that wrote it".into()),
            Error::MissingFile { .. } => Some(
                "every server must see the same directory: use a shared file system or a bucket where they run on several \
                 machines; and two jobs must not save to one address at the same time"
                    .into(),
            ),
            Error::DamagedBlock { .. } | Error::FileLength { .. } => {
                Some("go on from another checkpoint, or fetch this one again from where it was copied".into())
            }
            Error::NotSaved { .. }
            | Error::NotWanted { .. }
            | Error::SavedShape { .. }
            | Error::SavedOptimizer { .. } => {
                Some("load with `partial` to take what fits and begin the rest afresh".into())
            }
            Error::SavedKeys { .. } => Some(
                "build the model as it was trained: with `share_ids` equal ids of different slots are one feature and keys \
                 are plain ids, which is also how models were trained before there were salts"
                    .into(),
            ),
            _ => None,
        }
    }
}

impl Error {
    /// Wraps what a storage said: what was tried, and on which file.
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

/// Ok where `holds`, otherwise the error that names the field and its domain.
pub(crate) fn require(
    holds: bool,
    owner: &'static str,
    field: &'static str,
    expected: &'static str,
    got: impl ToString,
) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Setting { owner, field, expected, got: got.to_string() }) }
}

/// Ok where the two lengths agree.
pub(crate) fn same_length(what: &'static str, expected: usize, got: usize) -> Result<()> {
    if expected == got { Ok(()) } else { Err(Error::Length { what, expected, got }) }
}
