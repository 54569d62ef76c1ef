//! Why a process does not know what it is.

use std::time::Duration;

use openfleet_core::{Endpoint, Hint, Hinted};

/// `Result` with this module's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a process does not know what it is.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A variable or an argument that somebody has to set.
    #[error("`{name}` is not set: {needed}")]
    Missing {
        /// The variable or argument.
        name: &'static str,
        /// Who needs it, and for what.
        needed: String,
        /// What to write.
        hint: Hint,
    },
    /// A variable or an argument with a value it cannot have.
    #[error("`{name}` = `{value}`: expected {expected}")]
    Value {
        /// The variable or argument.
        name: &'static str,
        /// What it says.
        value: String,
        /// What it may say.
        expected: String,
        /// What to do about it.
        hint: Option<Hint>,
    },
    /// Two variables that cannot both be right.
    #[error("`{name}` = `{value}` contradicts `{other}` = `{other_value}`")]
    Contradiction {
        /// One of them.
        name: &'static str,
        /// What it says.
        value: String,
        /// The other.
        other: &'static str,
        /// What that says.
        other_value: String,
        /// How to mean one thing.
        hint: Hint,
    },
    /// Values that are fine one by one and make no job.
    #[error(transparent)]
    Topology(#[from] openfleet_core::Error),

    // MPI
    /// Symmetric MPI jobs have a server for each worker.
    #[error("`{name}` = `{size}`: expected an even number of processes, a server and a worker each")]
    OddSize {
        /// The variable.
        name: &'static str,
        /// What it says.
        size: usize,
    },
    /// Addresses would cross the network unprotected.
    #[error("refusing to exchange addresses at `{rendezvous}` without a secret: anybody could join the job")]
    NoSecret {
        /// Where.
        rendezvous: Endpoint,
    },
    /// Some ranks did not come.
    #[error(
        "{} of {size} did not come to the rendezvous at {place} within {} s", ranks(missing), waited.as_secs_f64()
    )]
    Absent {
        /// Who.
        missing: Vec<usize>,
        /// Of how many.
        size: usize,
        /// Where they were expected, in words.
        place: String,
        /// How long.
        waited: Duration,
    },
    /// Rank 0 said no, or said nothing sensible.
    #[error("rank {rank} was turned away from the rendezvous at {place}: {reason}")]
    TurnedAway {
        /// Who was.
        rank: usize,
        /// Where.
        place: String,
        /// Why.
        reason: String,
    },
    /// The operating system refused.
    #[error("cannot {action} {place}")]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// On what, in words.
        place: String,
        /// What it answered.
        source: std::io::Error,
    },
}

/// `rank 2`, `ranks 2 and 3`, `ranks 2, 3 and 5`.
fn ranks(missing: &[usize]) -> String {
    let names: Vec<String> = missing.iter().map(usize::to_string).collect();
    match names.split_last() {
        None => "nobody".into(),
        Some((last, [])) => format!("rank {last}"),
        Some((last, others)) => format!("ranks {} and {last}", others.join(", ")),
    }
}

impl Hinted for Error {
    fn hint(&self) -> Option<Hint> {
        match self {
            Error::Missing { hint, .. } | Error::Contradiction { hint, .. } => Some(hint.clone()),
            Error::Value { hint, .. } => hint.clone(),
            Error::Topology(error) => error.hint(),
            Error::OddSize { .. } => Some("start it as `mpirun -n 2`, `-n 4`, ...".into()),
            Error::NoSecret { .. } => Some(
                "set `OPENFLEET_SECRET` to the same text everywhere, as in `mpirun -x OPENFLEET_SECRET=... -x \
                 OPENFLEET_RENDEZVOUS=...`"
                    .into(),
            ),
            Error::Absent { .. } => Some(
                "check that all of them were started by one `mpirun` and that `OPENFLEET_RENDEZVOUS` names the machine \
                 of rank 0; `OPENFLEET_WAIT_SECONDS` is the limit"
                    .into(),
            ),
            Error::TurnedAway { .. } => Some("start all processes of the job with one `mpirun`".into()),
            Error::Io { .. } => None,
        }
    }
}
