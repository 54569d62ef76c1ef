//! What each worker's script has done so far, in numbers that a restarted script comes to again.
//!
//! A script is replayed after a restart: it passes over its data, saves, loads and shrinks in the same order as before. Each
//! such action is recorded when it is complete, under its kind and its number among the actions of that kind. A restarted
//! worker that comes to a recorded action skips it and gets the recorded result; one that does something else under the same
//! number gets an error that says what differs. The first server keeps the journals of all workers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// What a worker's script has done.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Journal {
    /// Complete actions, by kind, in the order of the script.
    pub actions: BTreeMap<Kind, Vec<Action>>,
    /// The action of each kind that has begun and is not complete, by what it is.
    #[serde(default)]
    pub open: BTreeMap<Kind, String>,
    /// What the worker's programs keep beside their tables, as of a complete action: kind, number and bytes.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "hexadecimal")]
    pub states: Option<(Kind, u64, Vec<u8>)>,
}

/// A kind of action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A pass over a dataset that trains.
    Train,
    /// A pass over a dataset that changes nothing.
    Evaluate,
    /// A checkpoint or a model was saved.
    Save,
    /// Tables were loaded.
    Load,
    /// Rows were removed.
    Shrink,
}

impl Kind {
    /// As messages spell it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Train => "training pass",
            Kind::Evaluate => "evaluation pass",
            Kind::Save => "save",
            Kind::Load => "load",
            Kind::Shrink => "shrink",
        }
    }
}

/// A complete action.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Action {
    /// What it was, in words that two runs of a script share.
    pub what: String,
    /// What came of it.
    pub result: serde_json::Value,
}

/// The most bytes of states that are kept of a worker.
pub(crate) const MOST_STATES: usize = 1 << 20;

impl Journal {
    /// An action begins. The recorded result, if it is complete already.
    pub fn begin(&mut self, kind: Kind, number: u64, what: &str) -> Result<Option<Action>> {
        let actions = self.actions.entry(kind).or_default();
        let differs = |before: &str| Error::OtherAction {
            kind: kind.name(),
            number: number + 1,
            before: before.to_owned(),
            now: what.to_owned(),
        };
        match actions.get(usize::try_from(number).unwrap_or(usize::MAX)) {
            Some(action) if action.what == what => return Ok(Some(action.clone())),
            Some(action) => return Err(differs(&action.what)),
            None if number > actions.len() as u64 => {
                return Err(Error::ActionOutOfOrder { kind: kind.name(), expected: actions.len() as u64, got: number });
            }
            None => {}
        }
        match self.open.insert(kind, what.to_owned()) {
            Some(before) if before != what => {
                self.open.insert(kind, before.clone());
                Err(differs(&before))
            }
            _ => Ok(None),
        }
    }

    /// An action is complete. Idempotent.
    pub fn complete(&mut self, kind: Kind, number: u64, action: Action, states: Vec<u8>) -> Result<()> {
        let actions = self.actions.entry(kind).or_default();
        let known = actions.len() as u64;
        if number > known {
            return Err(Error::ActionOutOfOrder { kind: kind.name(), expected: known, got: number });
        }
        if number == known {
            actions.push(action);
            self.open.remove(&kind);
            self.states = (states.len() <= MOST_STATES).then_some((kind, number, states));
        }
        Ok(())
    }

    /// What another run, which continues from this one's checkpoint, needs of it: which passes are done.
    pub(crate) fn passes_only(mut self) -> Self {
        self.actions.retain(|kind, _| *kind == Kind::Train);
        self.open.clear();
        self
    }
}

/// Bytes as text in JSON.
mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Kind;

    type States = Option<(Kind, u64, Vec<u8>)>;

    pub(super) fn serialize<S: Serializer>(states: &States, serializer: S) -> Result<S::Ok, S::Error> {
        let text = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        states.as_ref().map(|(kind, number, bytes)| (kind, number, text(bytes))).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<States, D::Error> {
        let Some((kind, number, text)) = Option::<(Kind, u64, String)>::deserialize(deserializer)? else {
            return Ok(None);
        };
        let digit = |at: usize| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
        let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(digit).collect();
        let bytes = bytes.ok_or_else(|| serde::de::Error::custom("states are not pairs of hexadecimal digits"))?;
        Ok(Some((kind, number, bytes)))
    }
}
