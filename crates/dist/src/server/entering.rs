//! Entering a job on the server: a worker joins the current generation, or begins the next one from a checkpoint.
//!
//! What worker and servers agree on is in [`entry`](super::entry).

use openfleet_table::checkpoint::{Manifest, Work};
use openfleet_table::ledger::Ledger;
use tracing::{info, warn};

use super::coordinator::Position;
use super::description::Team;
use super::entry::{Enter, Entered, ResumePoint, ServerView};
use super::saving::Load;
use super::state::{Caller, Job, State};
use crate::error::{Error, Result};
use crate::storage::Opened;

impl State {
    /// What a worker has to know about this server before it enters.
    pub(crate) fn view_for(&self, caller: Caller) -> ServerView {
        let geo = self.tables.geo();
        let must_return = geo.is_some_and(|geo| geo.is_incomplete(caller.rank));
        let job = self.job.lock();
        let Job { run, generation, instances, began, cut } = &*job;
        ServerView {
            run: run.clone(),
            instance: self.instance(),
            generation: *generation,
            instances: instances.clone(),
            began: began.clone(),
            cut: cut.clone(),
            must_return,
        }
    }

    /// Lets a worker enter: it joins the current generation, or begins the next one.
    pub(crate) fn enter(&self, caller: Caller, enter: &Enter) -> Result<Entered> {
        enter.team.check()?;
        let _making = self.making.lock();
        let generation = self.job.lock().generation;
        if enter.generation < generation {
            return Ok(Entered::Stale);
        }
        if enter.generation > generation {
            self.begin(caller, enter)?;
        }
        let mut control = self.control.lock();
        if let Some(team) = control.coordinator.team().filter(|team| *team != enter.team) {
            let text = |team: Team| format!("mode {}, {} workers of {} threads", team.mode, team.workers, team.threads);
            return Err(Error::TableMismatch { table: "all".into(), existing: text(team), wanted: text(enter.team) });
        }
        control.coordinator.enter(caller.rank);
        let streams = enter.team.streams_of(caller.rank);
        let exchanges = enter.team.second_stream(streams.start);
        if !enter.team.duties().runs_optimizers {
            self.tables.forget_exchanges(caller.rank, exchanges);
        }
        let second = enter.team.second_stream(streams.start)..enter.team.second_stream(streams.end);
        let mut positions = control.coordinator.stream_positions(streams.clone());
        let own = |stream: u32| streams.contains(&stream) || second.contains(&stream);
        for (_, ledger) in self.tables.applied().by_stream().filter(|(stream, _)| own(*stream)) {
            positions.applied.merge(&ledger);
        }
        let (_, _, _, collectives) = control.coordinator.waits();
        let journal = control.coordinator.journal(caller.rank).clone();
        drop(control);
        self.let_in(caller);
        Ok(Entered::In(Box::new(ResumePoint { streams: positions, journal, collectives })))
    }

    /// Begins a generation: from a checkpoint, or without tables.
    fn begin(&self, caller: Caller, enter: &Enter) -> Result<()> {
        let manifest = match &enter.cut {
            None => None,
            Some(cut) => {
                let Opened { manifest, .. } = Opened::new(self.saving.stores.as_ref(), &cut.address, "loading")?;
                if manifest.id != cut.id {
                    return Err(Error::OtherCheckpoint { first: cut.id.clone(), other: manifest.id });
                }
                Some((cut, manifest))
            }
        };
        let is_return = self.job.lock().generation > 0;
        self.recall_others(caller);
        let (mut work, mut position) = (None, None);
        if let Some((cut, manifest)) = &manifest {
            let counts = cut.adopted || manifest.run == enter.run;
            let team = enter.team;
            let is_same = manifest.mode == team.mode.to_string()
                && (manifest.workers, manifest.threads) == (team.workers, team.threads);
            if counts && !is_same {
                warn!(
                    "the checkpoint is of mode {} with {} workers of {} threads: its positions are ignored, and the data \
                     is read from the start",
                    manifest.mode, manifest.workers, manifest.threads
                );
            } else if counts {
                (work, position) = positions_of(manifest, cut.adopted)?;
            }
        }
        *self.saving.resume.lock() =
            manifest.as_ref().map(|(cut, _)| Load { address: cut.address.clone(), partial: false });
        self.tables.begin(work.as_ref());
        let mut control = self.control.lock();
        if is_return {
            control.coordinator.forget_departures();
        }
        control.coordinator.begin(enter.team, work.as_ref(), position);
        control.forget_answered();
        drop(control);
        *self.saving.marked.lock() = None;
        let mut job = self.job.lock();
        job.generation = enter.generation;
        job.run.clone_from(&enter.run);
        if let Some((cut, manifest)) = &manifest
            && cut.adopted
            && !manifest.run.is_empty()
        {
            job.run.clone_from(&manifest.run);
        }
        job.instances.clone_from(&enter.instances);
        job.began.clone_from(&enter.cut);
        job.cut.clone_from(&enter.cut);
        if is_return {
            match &enter.cut {
                Some(cut) => {
                    info!(
                        "returned to step {} of checkpoint `{}` (generation {})",
                        cut.step, cut.address, job.generation
                    )
                }
                None => info!("returned to the beginning (generation {})", job.generation),
            }
        }
        Ok(())
    }

    /// Makes every worker but the caller restart, because the caller needs a collective that only all of them can repeat.
    /// Returns whether that was necessary.
    pub(crate) fn recall(&self, caller: Caller, number: u64) -> bool {
        if !self.control.lock().coordinator.needs_all(number) {
            return false;
        }
        self.recall_others(caller);
        self.control.lock().coordinator.recall();
        true
    }
}

/// The positions in a checkpoint. Another run that adopts them keeps what was applied and which passes are done, and starts
/// everything else from zero.
fn positions_of(manifest: &Manifest, adopted: bool) -> Result<(Option<Work>, Option<Position>)> {
    let mut work = manifest.work.clone();
    if manifest.position.is_null() {
        // Written by an older version, or while workers in geo mode had unsent differences.
        let is_older = manifest.run.is_empty() && manifest.mode != "geo";
        return Ok((is_older.then_some(work), None));
    }
    let mut position: Position = serde_json::from_value(manifest.position.clone())
        .map_err(|_| Error::Damaged { what: "position in the checkpoint" })?;
    if manifest.mode == "geo" {
        // Every process numbers its exchanges from zero.
        let streams = manifest.workers.saturating_mul(manifest.threads);
        let mut steps = Ledger::new();
        work.streams.by_stream().filter(|(stream, _)| *stream < streams).for_each(|(_, ledger)| steps.merge(&ledger));
        work.streams = steps;
    }
    if adopted {
        position.collectives.clear();
        let journals = std::mem::take(&mut position.journals);
        position.journals = journals.into_iter().map(|(rank, journal)| (rank, journal.passes_only())).collect();
    }
    Ok((Some(work), Some(position)))
}
