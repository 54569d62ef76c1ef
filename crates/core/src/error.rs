//! Errors with hints.
//!
//! A message says what failed, on what, expected and got; the hint is separate data ([`Hint`]), so that a program can show it,
//! drop it or test it. Each library crate has one error enum that implements [`Hinted`]; `report` is the one place that turns
//! an error, its causes and its hint into text.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::strategy::Mode;
use crate::topology::{Endpoint, Role};

/// What the user can do about an error.
pub type Hint = Cow<'static, str>;

/// An error that may have a hint.
pub trait Hinted: std::error::Error {
    /// The hint, or `None` if there is nothing to add to the message.
    fn hint(&self) -> Option<Hint> {
        None
    }
}

/// `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of the core crate.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// Two fields of a schema share a name.
    #[error("field `{name}` is declared twice")]
    DuplicateField {
        /// The repeated name.
        name: String,
    },
    /// A field name that the schema does not have.
    #[error("no field is named `{name}`")]
    UnknownField {
        /// The requested name.
        name: String,
        /// The names that exist.
        known: Vec<String>,
    },
    /// A metric was given a value outside its domain.
    #[error("{metric} expects {expected}, got {got} at row {row}")]
    MetricInput {
        /// The metric's name.
        metric: &'static str,
        /// What it expects, in words.
        expected: &'static str,
        /// The invalid value.
        got: f64,
        /// Its row in the input.
        row: usize,
    },
    /// Two arrays must have the same length and do not.
    #[error("{what}: expected {expected} values, got {got}")]
    Length {
        /// What was measured.
        what: &'static str,
        /// The length required.
        expected: usize,
        /// The length given.
        got: usize,
    },

    // Placement
    /// A number of servers that the buckets cannot be divided among.
    #[error("a job has between 1 and 4096 servers, got {got}")]
    ServerCount {
        /// The number given.
        got: usize,
    },
    /// Two dense parameters share a name.
    #[error("parameter `{name}` is placed twice")]
    DuplicateParameter {
        /// The repeated name.
        name: String,
    },
    /// A dense parameter without elements, or with more than can be counted.
    #[error("parameter `{name}` of shape {shape:?} cannot be placed")]
    ParameterShape {
        /// Its name.
        name: String,
        /// Its dimensions.
        shape: Vec<usize>,
    },

    // Options of a strategy
    /// An option outside its range.
    #[error("`{name}` expects {expected}, got {got}")]
    OptionRange {
        /// The option.
        name: &'static str,
        /// What it accepts, in words.
        expected: &'static str,
        /// The given value.
        got: String,
    },
    /// A value that is not one of an option's choices.
    #[error("`{name}` cannot be `{got}`")]
    OptionChoice {
        /// The option.
        name: &'static str,
        /// The given value.
        got: String,
        /// The allowed values.
        choices: &'static [&'static str],
    },
    /// An option name that does not exist.
    #[error("no option is named `{name}`")]
    UnknownOption {
        /// The given name.
        name: String,
        /// The names that exist.
        known: &'static [&'static str],
    },
    /// An option of the other configuration object.
    #[error("`{name}` is not an option of `{front}`")]
    ForeignOption {
        /// The option.
        name: &'static str,
        /// The object that it was set on.
        front: &'static str,
        /// What to set there instead.
        hint: &'static str,
    },
    /// Two options that contradict each other.
    #[error("`{name}` = {value} contradicts `{other}` = {other_value}")]
    Contradiction {
        /// One of them.
        name: &'static str,
        /// Its value.
        value: String,
        /// The other.
        other: &'static str,
        /// The other's value.
        other_value: String,
        /// How to resolve the contradiction.
        hint: &'static str,
    },
    /// An option that the chosen mode does not use.
    #[error("`{name}` = {value} has no effect in mode {mode} (chosen by {because})")]
    IgnoredOption {
        /// The option.
        name: &'static str,
        /// The given value.
        value: String,
        /// The mode.
        mode: Mode,
        /// The option that chose the mode.
        because: String,
        /// The modes that use the option.
        modes: &'static [Mode],
    },

    // Topology
    /// Text that is not `host:port`.
    #[error("`{text}` is not an endpoint: {reason}")]
    Endpoint {
        /// The given text.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Two processes cannot listen at the same endpoint.
    #[error("endpoint `{endpoint}` is listed twice")]
    DuplicateEndpoint {
        /// The repeated endpoint.
        endpoint: Endpoint,
    },
    /// A job without workers.
    #[error("a job has at least one worker, got none")]
    NoWorkers,
    /// Some workers have an endpoint and others do not.
    #[error("{worker_count} workers have {got} endpoints")]
    WorkerEndpoints {
        /// Number of workers.
        worker_count: usize,
        /// Number of endpoints.
        got: usize,
    },
    /// A rank that does not exist.
    #[error("{role} {rank} does not exist: there are {count}, counted from 0")]
    Rank {
        /// The role.
        role: Role,
        /// The rank given.
        rank: usize,
        /// Number of processes of the role.
        count: usize,
    },
    /// A job name that could not be a file name.
    #[error("`{name}` cannot name a job")]
    JobId {
        /// The given name.
        name: String,
    },
}

impl Hinted for Error {
    fn hint(&self) -> Option<Hint> {
        match self {
            Error::UnknownField { name, known } => Some(did_you_mean(name, known.iter().map(String::as_str))),
            Error::MetricInput { metric: "auc", .. } => {
                Some("feed probabilities: put a sigmoid or a softmax before `auc`".into())
            }
            Error::ServerCount { got: 0 } => Some("list at least one server endpoint".into()),
            Error::ServerCount { .. } => Some("keys live in 4096 buckets and a server owns at least one".into()),
            Error::DuplicateParameter { .. } => {
                Some("give it another name, or build the second network under `unique_name.guard()`".into())
            }
            Error::ParameterShape { .. } => Some("every dimension of a parameter is a number above 0".into()),
            Error::OptionRange { name: "min_block_size", .. } => {
                Some("leave it out for 8192, or set `slice_var_up` to false to keep parameters whole".into())
            }
            Error::OptionChoice { got, choices, .. } => Some(did_you_mean(got, choices.iter().copied())),
            Error::OptionRange { name: "staleness", .. } => {
                Some("0 = sync, n = hybrid with at most n batches in flight, -1 = async".into())
            }
            Error::OptionRange { name: "k_steps", .. } => {
                Some("n = geo with a push every n batches, 0 = sync or async as `a_sync` says".into())
            }
            Error::UnknownOption { name, known } => Some(did_you_mean(name, known.iter().copied())),
            Error::ForeignOption { hint, .. } | Error::Contradiction { hint, .. } => Some((*hint).into()),
            Error::IgnoredOption { modes, .. } => {
                let modes: Vec<&str> = modes.iter().map(|mode| mode.name()).collect();
                Some(format!("leave it out, or choose mode {}", modes.join(" or ")).into())
            }
            Error::Endpoint { .. } => Some("write `host:port`, as in `10.0.0.2:36000` or `[::1]:36000`".into()),
            Error::DuplicateEndpoint { .. } => {
                Some("give every process of a machine its own port, and list each server once".into())
            }
            Error::NoWorkers => Some("set the number of workers to 1 or more, the same on every machine".into()),
            Error::WorkerEndpoints { .. } => Some("list one endpoint for each worker, or none at all".into()),
            Error::Rank { role, count, .. } => {
                Some(format!("the last {role} has rank {}; check the counts on every machine", count - 1).into())
            }
            Error::JobId { .. } => {
                Some("use at most 128 letters, digits, `-`, `_` and `.`, beginning with a letter or a digit".into())
            }
            _ => None,
        }
    }
}

/// A sentence that lists the choices, or suggests the nearest one if it is close.
pub fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Hint {
    let mut known: Vec<&str> = known.collect();
    if known.is_empty() {
        return "nothing of this kind exists yet".into();
    }
    known.sort_by_key(|candidate| edit_distance(name, candidate));
    let nearest = known[0];
    if edit_distance(name, nearest) <= 1 + name.len() / 4 {
        return format!("did you mean `{nearest}`?").into();
    }
    let shown: Vec<String> = known.iter().take(12).map(|k| format!("`{k}`")).collect();
    let rest = known.len().saturating_sub(12);
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    format!("choose one of {}{more}", shown.join(", ")).into()
}

/// An error with its causes, one per line, then a blank line and `hint: ...` if there is a hint.
pub fn report(error: &dyn Hinted) -> String {
    let mut text = format!("{error}");
    let mut cause = error.source();
    while let Some(inner) = cause {
        // A transparent wrapper repeats its cause verbatim: print it once.
        let said = inner.to_string();
        if !text.ends_with(&said) {
            let _ = write!(text, "\n  because: {said}");
        }
        cause = inner.source();
    }
    if let Some(hint) = error.hint() {
        let _ = write!(text, "\n\nhint: {hint}");
    }
    text
}

fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_prints_the_message_then_a_blank_line_then_the_hint() {
        let error = Error::UnknownField { name: "lable".into(), known: vec!["label".into(), "C1".into()] };
        assert_eq!(report(&error), "no field is named `lable`\n\nhint: did you mean `label`?");
    }

    #[test]
    fn hint_lists_the_choices_when_none_is_near() {
        let hint = did_you_mean("zebra", ["sgd", "adam"].into_iter());
        assert_eq!(hint, "choose one of `sgd`, `adam`");
    }

    #[test]
    fn edit_distance_counts_insertions_deletions_and_substitutions() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("same", "same"), 0);
    }
}
