//! The errors of role makers.

use std::time::Duration;

use openfleet_core::{Endpoint, Hint, Hinted};

/// `Result` with this module's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the role of a process could not be determined.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A variable or argument that is missing.
    #[error("`{name}` is not set: {needed}")]
    Missing {
        /// The variable or argument.
        name: &'static str,
        /// The process that needs it, and for what.
        needed: String,
        /// What to set.
        hint: Hint,
    },
    /// A variable or argument with an invalid value.
    #[error("`{name}` = `{value}`: expected {expected}")]
    Value {
        /// The variable or argument.
        name: &'static str,
        /// Its value.
        value: String,
        /// The valid values.
        expected: String,
        /// What to do about it.
        hint: Option<Hint>,
    },
    /// Two variables that contradict each other.
    #[error("`{name}` = `{value}` contradicts `{other}` = `{other_value}`")]
    Contradiction {
        /// The first variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// The second variable.
        other: &'static str,
        /// Its value.
        other_value: String,
        /// How to resolve the contradiction.
        hint: Hint,
    },
    /// Values that are valid one by one but do not form a job.
    #[error(transparent)]
    Topology(#[from] openfleet_core::Error),

    // MPI
    /// An MPI job with an odd number of processes: it needs one server per worker.
    #[error("`{name}` = `{size}`: expected an even number of processes, a server and a worker each")]
    OddSize {
        /// The variable.
        name: &'static str,
        /// Its value.
        size: usize,
    },
    /// A rendezvous over the network without a secret.
    #[error("refusing to exchange addresses at `{rendezvous}` without a secret: anyone could join the job")]
    NoSecret {
        /// The address.
        rendezvous: Endpoint,
    },
    /// Some ranks did not join in time.
    #[error(
        "{} of {size} did not come to the rendezvous at {place} within {} s", ranks(missing), waited.as_secs_f64()
    )]
    Absent {
        /// The missing ranks.
        missing: Vec<usize>,
        /// The number of processes.
        size: usize,
        /// The meeting point as text.
        place: String,
        /// The time limit.
        waited: Duration,
    },
    /// Rank 0 refused this rank, or sent an invalid message.
    #[error("rank {rank} was refused at the rendezvous at {place}: {reason}")]
    TurnedAway {
        /// The refused rank.
        rank: usize,
        /// The meeting point as text.
        place: String,
        /// The reason.
        reason: String,
    },
    /// An error of the operating system.
    #[error("cannot {action} {place}")]
    Io {
        /// The attempted action, as a verb.
        action: &'static str,
        /// Its object as text.
        place: String,
        /// The error of the operating system.
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
            Error::OddSize { .. } => Some("start it as `mpirun -n 2`, `-n 4`, ...; a collective job may have any number".into()),
            Error::NoSecret { .. } => Some(
                "set `OPENFLEET_SECRET` to the same text everywhere, as in `mpirun -x OPENFLEET_SECRET=... -x \
                 OPENFLEET_RENDEZVOUS=...`"
                    .into(),
            ),
            Error::Absent { .. } => Some(
                "check that all of them were started by one `mpirun` or `srun` and that `OPENFLEET_RENDEZVOUS` names the machine \
                 of rank 0; `OPENFLEET_WAIT_SECONDS` is the limit"
                    .into(),
            ),
            Error::TurnedAway { .. } => Some("start all processes of the job with one `mpirun` or `srun`".into()),
            Error::Io { .. } => None,
        }
    }
}
