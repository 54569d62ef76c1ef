//! The errors of building and running programs.

use openfleet_core::error::did_you_mean;
use openfleet_core::{Hint, Hinted};

use crate::dataset;

/// `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can fail while a program is built or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    // Building a program.
    /// An op was given inputs that it does not support.
    #[error("`{op}` expects {expected}, got {got}")]
    Input {
        /// The op.
        op: &'static str,
        /// The supported input, in words.
        expected: String,
        /// The actual input.
        got: String,
    },
    /// An op was given inputs that it does not support, which was known only when the program ran.
    #[error("`{op}`{} cannot run on inputs of shapes {shapes}", made_at.as_deref().map(|line| format!(" of {line}")).unwrap_or_default())]
    ShapesAtRun {
        /// The op.
        op: &'static str,
        /// The shapes of its inputs.
        shapes: String,
        /// The line of the script that added it.
        made_at: Option<String>,
        /// What is wrong with them.
        source: Box<Error>,
    },
    /// Not enough memory for a value whose size the user chose.
    #[error("not enough memory for `{name}`: {copies}dimensions {dims:?} need {bytes} bytes")]
    NoMemory {
        /// The parameter; the largest one if several are allocated together.
        name: String,
        /// Its dimensions.
        dims: Vec<usize>,
        /// What else is included in the size, in words; may be empty.
        copies: &'static str,
        /// The requested size; `more than 2^64` if it overflows.
        bytes: String,
    },
    /// Another variable has the name.
    #[error("a variable named `{name}` already exists with shape {existing}, expected {requested}")]
    NameTaken {
        /// The name.
        name: String,
        /// The shape of the existing variable.
        existing: String,
        /// The shape of the new variable.
        requested: String,
    },
    /// The program has no variable of this name.
    #[error("the program has no variable named `{name}`")]
    UnknownVariable {
        /// The requested name.
        name: String,
        /// The names that exist.
        known: Vec<String>,
    },
    /// The loss is not a single number.
    #[error("the loss `{name}` must be a single float, got shape {shape}")]
    LossShape {
        /// The loss variable.
        name: String,
        /// Its shape.
        shape: String,
    },
    /// The loss does not depend on any trainable parameter.
    #[error("no trainable parameter leads to the loss `{name}`")]
    NothingToTrain {
        /// The loss variable.
        name: String,
    },
    /// The program has no optimizer, or it is a copy for testinging.
    #[error("the program trains nothing: `minimize` was not called on it, or it is a copy for testing")]
    NotMinimized,
    /// A second `minimize` on one program.
    #[error("the program already has the optimizer `{existing}`")]
    AlreadyMinimized {
        /// The optimizer of the first `minimize`.
        existing: String,
    },
    /// A second `append_backward` on one program.
    #[error("the program already has the gradients of `{existing}`")]
    AlreadyDifferentiated {
        /// The loss of the first `append_backward`.
        existing: String,
    },

    /// A program with an op that cannot be written as ONNX.
    #[error("`{op}` has no ONNX form")]
    NoOnnxForm {
        /// The op.
        op: &'static str,
    },

    // Running a program.
    /// A variable of the program has no value in the scope.
    #[error("`{name}` has no value in the scope")]
    NotInitialized {
        /// The variable.
        name: String,
    },
    /// The value in the scope does not match the program.
    #[error("`{name}` is {got} in the scope, expected {expected}")]
    ScopeMismatch {
        /// The variable.
        name: String,
        /// What the program needs.
        expected: String,
        /// What the scope has.
        got: String,
    },
    /// The table or parameter on the servers does not match the program.
    #[error("`{name}` is {got} on the servers, expected {expected}")]
    ServerMismatch {
        /// The parameter or table.
        name: String,
        /// What the program needs.
        expected: String,
        /// What the servers have.
        got: String,
    },
    /// A data variable was not fed.
    #[error("the program reads `{name}`, but the data has no such field")]
    NotFed {
        /// The data variable.
        name: String,
        /// The fields the data has.
        known: Vec<String>,
    },
    /// A field of the data does not match its data variable.
    #[error("field `{name}` of the data does not match the program: expected {expected}, got {got}")]
    FeedMismatch {
        /// The data variable.
        name: String,
        /// What the program declares.
        expected: String,
        /// What the data has.
        got: String,
    },
    /// The variable cannot be fetched.
    #[error("`{name}` cannot be fetched: {reason}")]
    NotFetchable {
        /// The variable.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// The number of elements does not match the dimensions.
    #[error("dimensions {dims:?} need {expected} elements, got {got}")]
    ElementCount {
        /// The dimensions.
        dims: Vec<usize>,
        /// Their product.
        expected: usize,
        /// The number given.
        got: usize,
    },
    /// An op met a value at run time that it does not support.
    #[error("`{op}`: {what} must be {expected}, got {got} at row {row}")]
    Value {
        /// The op.
        op: &'static str,
        /// Which value.
        what: String,
        /// What it must be.
        expected: String,
        /// What it was.
        got: String,
        /// The row of the batch.
        row: usize,
    },
    /// A fetched value is NaN or infinite.
    #[error("the loss `{name}` became {value} at step {step}")]
    NotFinite {
        /// The variable.
        name: String,
        /// NaN or an infinity.
        value: f64,
        /// The step of the thread that saw it.
        step: u64,
    },
    /// A gradient is NaN or infinite, and the optimizer is configured to stop then.
    #[error("the gradient of {of} is not finite at step {step}: nothing of this step was applied")]
    NotFiniteGradient {
        /// The parameter, or the row of a table.
        of: String,
        /// The step of the thread that saw it.
        step: u64,
    },
    /// A training thread panicked, which is a bug in OpenFleet.
    #[error("a training thread panicked: {message}")]
    ThreadPanicked {
        /// The panic message.
        message: String,
    },
    /// The number of training threads does not match what the servers were told. With more threads, the work of the extra ones
    /// would count as another worker's. With fewer, in a mode where every step waits for every thread, all workers would wait
    /// forever.
    #[error("{got} training threads, but the servers know of {known} on this worker")]
    Threads {
        /// The number of threads that would train.
        got: usize,
        /// The number of threads that the worker connected with.
        known: usize,
    },
    /// An option is outside its range.
    #[error("`{option}` must be {expected}, got {got}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// The allowed values.
        expected: &'static str,
        /// The actual value.
        got: String,
    },

    // From the crates below.
    /// The data could not be read.
    #[error(transparent)]
    Dataset(#[from] dataset::Error),
    /// A table returned an error.
    #[error(transparent)]
    Table(#[from] openfleet_table::Error),
    /// A pull or push failed.
    #[error(transparent)]
    Communicator(#[from] openfleet_dist::Error),
    /// A value of the core crate is invalid.
    #[error(transparent)]
    Core(#[from] openfleet_core::Error),
}

impl Error {
    /// An `action` ("loading", "saving to") on the checkpoint at `address` failed.
    pub(crate) fn checkpoint(action: &'static str, address: &str, source: openfleet_table::Error) -> Self {
        openfleet_dist::Error::checkpoint(action, address)(source).into()
    }
}

impl Hinted for Error {
    fn hint(&self) -> Option<Hint> {
        match self {
            Error::NameTaken { .. } => {
                Some("give one of them another name, or build the second network under a new name generator".into())
            }
            Error::UnknownVariable { name, known } | Error::NotFed { name, known } => {
                Some(did_you_mean(name, known.iter().map(String::as_str)))
            }
            Error::NoMemory { .. } => Some(
                "make layers and embeddings smaller (`size`, `--dim`, `--hidden`), or use a machine with more memory".into(),
            ),
            Error::LossShape { .. } => Some("take the `mean` of a loss per sample before `minimize`".into()),
            Error::AlreadyDifferentiated { .. } => {
                Some("add the losses up and take the gradients of their sum, or use a second program".into())
            }
            Error::NothingToTrain { .. } => {
                Some("check that the loss is computed from a layer with parameters and that they are trainable".into())
            }
            Error::NotMinimized => {
                Some("call an optimizer's `minimize` on its loss, or evaluate it with `infer_from_dataset`".into())
            }
            Error::NoOnnxForm { .. } => {
                Some("choose targets before that op, or predict with `Predictor` or `load_inference_model`".into())
            }
            Error::NotInitialized { .. } => {
                Some("run the startup program first, and use the same scope for both programs".into())
            }
            Error::ServerMismatch { .. } => Some(
                "tables keep the rule of the program that was run first: give the programs that train a parameter the same \
                 optimizer, learning rate and regularizer"
                    .into(),
            ),
            Error::NotFinite { .. } | Error::NotFiniteGradient { .. } => Some(
                "lower the learning rate, clip the gradients, or look for extreme values in the dense inputs".into(),
            ),
            Error::Threads { got, known } => Some(
                format!("train with {known} threads, or connect every worker with {got} (`CPU_NUM`, or `Fleet::threads`)")
                    .into(),
            ),
            Error::Dataset(error) => error.hint(),
            Error::Table(error) => error.hint(),
            Error::Communicator(error) => error.hint(),
            Error::Core(error) => error.hint(),
            _ => None,
        }
    }
}
