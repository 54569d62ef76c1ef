//! Variables as typed values that remember their variable, so that errors can name it.

use openfleet_core::{Endpoint, Hint};

use super::error::{Error, Result};
use crate::variables::Variables;

/// A value, the variable it was read from, and its text.
#[derive(Debug, Clone)]
pub(super) struct Read<T> {
    pub(super) name: &'static str,
    pub(super) text: String,
    pub(super) value: T,
}

impl<T> Read<T> {
    /// The error that this value is not what was expected.
    pub(super) fn wrong(&self, expected: impl Into<String>, hint: Option<Hint>) -> Error {
        Error::Value { name: self.name, value: self.text.clone(), expected: expected.into(), hint }
    }

    /// The error that this value and another contradict each other.
    pub(super) fn contradicts<U>(&self, other: &Read<U>, hint: impl Into<Hint>) -> Error {
        Error::Contradiction {
            name: self.name,
            value: self.text.clone(),
            other: other.name,
            other_value: other.text.clone(),
            hint: hint.into(),
        }
    }
}

/// Reads a variable; `None` if it is not set.
pub(super) fn read<T>(
    variables: &Variables,
    name: &'static str,
    parse: impl FnOnce(&str) -> std::result::Result<T, String>,
) -> Result<Option<Read<T>>> {
    let Some(text) = variables.get(name) else { return Ok(None) };
    match parse(text) {
        Ok(value) => Ok(Some(Read { name, text: text.to_owned(), value })),
        Err(expected) => Err(Error::Value { name, value: text.to_owned(), expected, hint: None }),
    }
}

/// Reads the first of several spellings of one fact; those that are set must agree.
pub(super) fn agreed<T: PartialEq>(spellings: impl IntoIterator<Item = Option<Read<T>>>) -> Result<Option<Read<T>>> {
    let mut spellings = spellings.into_iter().flatten();
    let Some(first) = spellings.next() else { return Ok(None) };
    match spellings.find(|other| other.value != first.value) {
        Some(other) => Err(first.contradicts(&other, "set one of them, or both to the same")),
        None => Ok(Some(first)),
    }
}

/// Parses an integer of at least 0.
pub(super) fn number(text: &str) -> std::result::Result<usize, String> {
    // `usize::from_str` would accept `+2`.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits).ok_or_else(|| "a whole number from 0 up".into())
}

/// Parses an integer of at least 1.
pub(super) fn count(text: &str) -> std::result::Result<usize, String> {
    number(text).ok().filter(|&number| number > 0).ok_or_else(|| "a whole number from 1 up".into())
}

/// Parses `host:port,host:port,...` without duplicates.
pub(super) fn endpoints(text: &str) -> std::result::Result<Vec<Endpoint>, String> {
    let mut list: Vec<Endpoint> = Vec::new();
    for part in text.split(',') {
        if part.trim().is_empty() {
            return Err("`host:port,host:port,...`, but an element is empty".into());
        }
        let endpoint = match part.trim().parse() {
            Ok(endpoint) => endpoint,
            Err(openfleet_core::Error::Endpoint { text, reason }) => {
                return Err(format!("`host:port,host:port,...`, but in `{text}` {reason}"));
            }
            Err(error) => return Err(format!("`host:port,host:port,...`, but {error}")),
        };
        if list.contains(&endpoint) {
            return Err(format!("each endpoint once, but `{endpoint}` is listed twice"));
        }
        list.push(endpoint);
    }
    Ok(list)
}

/// Parses `host:port`.
pub(super) fn endpoint(text: &str) -> std::result::Result<Endpoint, String> {
    text.parse().map_err(|error| match error {
        openfleet_core::Error::Endpoint { reason, .. } => format!("`host:port`, but {reason}"),
        other => format!("`host:port`, but {other}"),
    })
}
