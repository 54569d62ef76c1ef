//! Entering a job, and skipping what a restarted worker's script has already done.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use openfleet_core::key::mix;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::warn;

use super::Cluster;
use crate::communicator::{Streams, wait_all};
use crate::error::{Error, Result};
use crate::handshake::Nonce;
use crate::request::action::{self, ActionRequest, ScriptStep};
use crate::request::enter::{self, EnterRequest};
use crate::request::inspect::{self, Inspect};
use crate::server::{Action, ActionKind, Entered, Journal, ResumePoint, Team, agree};

/// What the servers told this process when it entered the job.
pub(super) struct Entry {
    pub(super) streams: Arc<Streams>,
    journal: Journal,
    /// Number of collectives that the job had completed.
    pub(super) collectives: u64,
    /// Per kind: how many actions this process has completed or skipped, and whether another one has begun.
    actions: Mutex<BTreeMap<ActionKind, (u64, bool)>>,
}

/// An action of the script that has begun, such as a save or a training pass.
#[derive(Debug)]
pub struct ScriptAction {
    kind: ActionKind,
    number: u64,
    what: String,
    recorded: Option<serde_json::Value>,
}

impl ScriptAction {
    /// The recorded result, if the action was complete before this process started.
    pub fn recorded<T: DeserializeOwned>(&self) -> Option<T> {
        self.recorded.clone().and_then(|result| serde_json::from_value(result).ok())
    }
}

/// How often to retry when other workers make the servers return to a checkpoint at the same time.
const ATTEMPTS: u32 = 100;
/// Delay between two attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// Time limit for returning to a checkpoint, which reads its manifest.
const RETURNING: Duration = Duration::from_secs(600);

impl Cluster {
    /// Enters the job: joins the servers' generation, or makes all servers return to the same checkpoint. Idempotent.
    pub(super) fn enter(&self) -> Result<Arc<Entry>> {
        let mut entry = self.entry.lock();
        if let Some(entry) = &*entry {
            return Ok(entry.clone());
        }
        let entered = Arc::new(self.enter_now()?);
        *entry = Some(entered.clone());
        Ok(entered)
    }

    fn enter_now(&self) -> Result<Entry> {
        let team = Team { mode: self.strategy.mode(), workers: self.worker.count, threads: self.worker.threads };
        let mut disagreement = None;
        for _ in 0..ATTEMPTS {
            let asked = self.links.iter().map(|link| link.send(&Inspect)).collect::<Result<_>>()?;
            let answers = wait_all(asked)?;
            let views = answers.iter().map(|answer| inspect::decode(answer.bytes())).collect::<Result<Vec<_>>>()?;
            let (agreed, returns) = match agree(team, &views) {
                Ok(agreed) => agreed,
                Err(error) => {
                    disagreement = Some(error);
                    std::thread::sleep(PAUSE);
                    continue;
                }
            };
            if returns {
                match &agreed.cut {
                    Some(cut) => warn!("the servers return to checkpoint `{}` of step {}", cut.address, cut.step),
                    None => warn!("the servers return to the beginning"),
                }
            }
            let enter = EnterRequest(agreed);
            let asked = self.links.iter().map(|link| link.send_within(&enter, RETURNING)).collect::<Result<_>>()?;
            let answers = wait_all(asked)?;
            let entered = answers.iter().map(|answer| enter::decode(answer.bytes())).collect::<Result<Vec<_>>>()?;
            let resume_points: Option<Vec<ResumePoint>> = entered
                .into_iter()
                .map(|entered| match entered {
                    Entered::In(resume_point) => Some(*resume_point),
                    Entered::Stale => None,
                })
                .collect();
            if let Some(resume_points) = resume_points {
                return Ok(self.entry(resume_points));
            }
            std::thread::sleep(PAUSE);
        }
        Err(disagreement.unwrap_or(Error::NotEntered { rank: self.worker.rank }))
    }

    fn entry(&self, mut resume_points: Vec<ResumePoint>) -> Entry {
        let first = resume_points.first_mut();
        let (journal, collectives) =
            first.map_or_else(Default::default, |first| (std::mem::take(&mut first.journal), first.collectives));
        let applied = resume_points.into_iter().map(|resume_point| resume_point.streams).collect();
        let streams = Arc::new(Streams::new(self.worker, applied));
        Entry { streams, journal, collectives, actions: Mutex::default() }
    }

    /// What the servers know about this worker: the number of training passes it has completed, and per training thread the
    /// number of batches that every server has applied.
    pub fn progress(&self) -> Result<(u64, Vec<u64>)> {
        let entry = self.enter()?;
        let passes = entry.journal.actions.get(&ActionKind::Train).map_or(0, |passes| passes.len() as u64);
        Ok((passes, entry.streams.applied()))
    }

    /// Begins an action that a restarted script must not repeat. `what` describes it in words that are the same in every
    /// process.
    pub fn begin_action(&self, kind: ActionKind, what: String) -> Result<ScriptAction> {
        let entry = self.enter()?;
        // If an action failed and the script caught the error, the next one gets the same number.
        let (number, again) = {
            let mut actions = entry.actions.lock();
            let (done, begun) = actions.entry(kind).or_default();
            (*done, std::mem::replace(begun, true))
        };
        let known = entry.journal.actions.get(&kind).and_then(|known| known.get(number as usize)).is_some();
        let recorded = if known {
            entry.journal.clone().begin(kind, number, &what)?
        } else {
            let step = ScriptStep::Begin { kind, number, what: what.clone(), again };
            let request = ActionRequest { step, states: Vec::new() };
            action::decode(self.first()?.send(&request)?.wait()?.bytes())?
        };
        if recorded.is_some() {
            entry.actions.lock().insert(kind, (number + 1, false));
        }
        Ok(ScriptAction { kind, number, what, recorded: recorded.map(|action| action.result) })
    }

    /// Records an action as complete. `states` is the programs' own state, outside of their tables.
    pub fn complete_action(&self, begun: ScriptAction, result: &impl Serialize, states: Vec<u8>) -> Result<()> {
        let ScriptAction { kind, number, what, .. } = begun;
        let result = serde_json::to_value(result).map_err(|_| Error::Damaged { what: "result of an action" })?;
        let step = ScriptStep::Complete { kind, number, action: Action { what, result } };
        self.first()?.send(&ActionRequest { step, states })?.wait()?;
        self.enter()?.actions.lock().insert(kind, (number + 1, false));
        Ok(())
    }

    /// The programs' own state after an action, if it was recorded; only the last action has one.
    pub fn recorded_states(&self, begun: &ScriptAction) -> Result<Option<Vec<u8>>> {
        let entry = self.enter()?;
        let states = entry.journal.states.as_ref();
        Ok(states.filter(|(kind, number, _)| (*kind, *number) == (begun.kind, begun.number)).map(|(.., s)| s.clone()))
    }

    /// Skips a pass; `ends` are the positions of the threads at its end.
    pub fn skip_pass(&self, ends: &[u64]) -> Result<()> {
        self.enter()?.streams.skip_pass(ends);
        Ok(())
    }

    /// How many steps each training thread has taken or skipped.
    pub fn thread_positions(&self) -> Result<Vec<u64>> {
        Ok(self.enter()?.streams.positions())
    }

    /// An id for an action; the same for every repeat by this process or a restarted one.
    pub(super) fn action_id(&self, begun: &ScriptAction) -> Nonce {
        let seed = mix(u64::from(self.worker.rank) << 32 ^ begun.number);
        let mut id = Nonce::default();
        id[..8].copy_from_slice(&mix(seed).to_le_bytes());
        id[8..].copy_from_slice(&seed.to_le_bytes());
        id
    }

    fn first(&self) -> Result<&crate::client::Link> {
        self.links.first().ok_or(Error::NothingToSave)
    }
}
