//! What each worker's script has done so far, under numbers that a restarted script reaches again.
//!
//! A script is replayed after a restart: it trains, saves, loads and shrinks in the same order as before. Each such action is
//! recorded when it is complete, under its kind and its number among the actions of that kind. A restarted worker that reaches
//! a recorded action skips it and gets the recorded result. One that does something else under the same number gets an error
//! that tells the difference. The first server keeps the journals of all workers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// What a worker's script has done.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Journal {
    /// Complete actions, by kind, in the order of the script.
    pub actions: BTreeMap<Kind, Vec<Action>>,
    /// Per kind: the description of the action that has begun and is not complete.
    #[serde(default)]
    pub open: BTreeMap<Kind, String>,
    /// The programs' own state, outside of their tables, after a complete action: kind, number and bytes.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "hexadecimal")]
    pub states: Option<(Kind, u64, Vec<u8>)>,
}

/// A kind of action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A training pass over a dataset.
    Train,
    /// An evaluation pass over a dataset.
    Evaluate,
    /// Saving a checkpoint or a model.
    Save,
    /// Loading tables.
    Load,
    /// Removing rows.
    Shrink,
}

impl Kind {
    /// The name in messages.
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
    /// Description of the action, the same in every replay of the script.
    pub what: String,
    /// Its result.
    pub result: serde_json::Value,
}

/// Maximum bytes of state that are kept per worker.
pub(crate) const MOST_STATES: usize = 1 << 20;

impl Journal {
    /// Begins an action. Returns the recorded action if it is already complete.
    ///
    /// # Errors
    ///
    /// If the script did something else under this number before, or skipped a number.
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

    /// Records a complete action. Idempotent.
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

    /// What another run that continues from this one's checkpoint needs: which training passes are done.
    pub(crate) fn passes_only(mut self) -> Self {
        self.actions.retain(|kind, _| *kind == Kind::Train);
        self.open.clear();
        self
    }
}

/// Encodes bytes as hexadecimal text in JSON.
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
