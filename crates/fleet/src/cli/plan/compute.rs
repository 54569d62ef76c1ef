//! How long forward and backward of a batch take on this machine, measured by training the model on generated rows.
//!
//! The tables are in this process, so their updates are part of the time: a tenth of it for the default CTR-DNN.

use std::sync::Arc;
use std::time::{Duration, Instant};

use openfleet_core::key::mix;
use openfleet_core::{Batch, Column, WorkId};
use openfleet_engine::{Executor, Plan, Scope};

use super::job::PlannedJob;
use crate::error::{Error, Result};

/// How long the model is trained.
const TIME: Duration = Duration::from_secs(1);
/// Different batches.
const BATCHES: u64 = 8;

/// The median time of a training step, in seconds.
pub(super) fn measure(job: &PlannedJob) -> Result<f64> {
    // Only click models predict a click.
    let click_model = job.network.as_ref().filter(|(network, _)| network.auc.is_some());
    let Some((network, schema)) = click_model else {
        let (option, owner) = ("--measure", "this job".to_owned());
        return Err(Error::MeaninglessOption { option, owner, takers: "click models: give `--compute-ms`" });
    };
    let scope = Arc::new(Scope::new());
    Executor::new(scope.clone()).run_startup(&network.net.startup)?;
    let plan = Plan::compile(&network.net.main, &scope)?;
    let mut arena = plan.arena();
    plan.bind(&mut arena, schema)?;
    let batches: Vec<Batch> = (0..BATCHES).map(|seed| batch(job, schema, seed)).collect();
    let started = Instant::now();
    let mut times = Vec::new();
    for (step, batch) in batches.iter().cycle().enumerate() {
        let begun = Instant::now();
        plan.step(&mut arena, batch, WorkId::step(0, step as u64))?;
        // The first round grows buffers.
        if step >= batches.len() {
            times.push(begun.elapsed().as_secs_f64());
        }
        if started.elapsed() >= TIME && !times.is_empty() {
            break;
        }
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Rows with one id per slot: a few ids are frequent and most are rare.
fn batch(job: &PlannedJob, schema: &openfleet_core::Schema, seed: u64) -> Batch {
    let mut state = mix(seed);
    let mut uniform = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(state) >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut batch = Batch::new(schema);
    batch.rows = job.batch_size;
    for (field, column) in batch.columns.iter_mut().enumerate() {
        let is_label = schema.fields()[field].name == "label";
        let floats = match schema.fields()[field].kind {
            openfleet_core::FieldKind::Floats { dim } => dim,
            _ => 0,
        };
        for _ in 0..job.batch_size {
            match column {
                Column::Ids { .. } if is_label => column.push_ids(&[u64::from(uniform() < 0.25)]),
                Column::Ids { .. } => column.push_ids(&[(uniform().powi(8) * job.load.rows as f64) as u64]),
                Column::Floats { .. } => column.push_floats(&(0..floats).map(|_| uniform() as f32).collect::<Vec<_>>()),
            }
        }
    }
    batch
}
