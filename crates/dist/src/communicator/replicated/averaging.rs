//! Local SGD: ranks train by themselves and average their parameters from time to time.
//!
//! With the parameters `s` of the last average and `p` of a rank now, the average is `s - mean(s - p)` over the ranks that have
//! trained. Adaptive local SGD chooses the next number of steps from the loss and the learning rate, as PaddlePaddle does:
//! `sqrt(rate0 * loss / (rate * loss0) * k0)`, rounded up, from 1 to 16.

use std::sync::Arc;

use openfleet_core::strategy::CollectiveUpdate;
use openfleet_table::DenseTable;

use super::{Replicated, StepState, StepValues};
use crate::collective::{Call, algorithms, any_is_new};
use crate::error::{Error, Result};
use crate::server::Reduce;

/// Maximum number of steps between two averages that the adaptive rule chooses.
const MOST_ADAPTED: f64 = 16.0;

/// Where a rank is between two averages.
#[derive(Default)]
pub(super) struct Averaging {
    /// Parameters after the last average, per table.
    snapshot: Vec<Vec<f32>>,
    /// Steps since the first one.
    steps: u64,
    /// Steps since the last average.
    since: u64,
    /// Steps between two averages, if the loss has changed it.
    adapted: Option<u64>,
    /// Loss and learning rate of the first average.
    first: Option<(f64, f64)>,
    /// Batches that each rank has trained since the last average, in rank order; empty if this step is not followed by an
    /// average.
    trained: Vec<u64>,
}

impl Averaging {
    /// All ranks have the same parameters now.
    pub(super) fn begin(&mut self, tables: &[(String, Arc<DenseTable>)]) {
        self.snapshot = tables.iter().map(|(_, table)| table.read(<[f32]>::to_vec)).collect();
        self.since = 0;
    }

    /// These ranks average once this step is applied.
    pub(super) fn set_ranks(&mut self, calls: &[Call]) {
        self.trained = calls.iter().map(|call| if call.trains() { call.length() as u64 } else { 0 }).collect();
    }

    /// Whether the parameters are averaged once this step is applied.
    pub(super) fn is_due(&self) -> bool {
        !self.trained.is_empty()
    }
}

impl Replicated {
    /// Counts a step of local SGD. If it is followed by an average, waits for the other ranks and averages the statistics.
    pub(super) fn begin_average(&self, step: &mut StepState, values: StepValues<'_>) -> Result<bool> {
        let CollectiveUpdate::Local { steps, begin_step, adapts } = self.settings.update else { return Ok(true) };
        let state = &mut step.averaging;
        (state.steps, state.since) = (state.steps + 1, state.since + 1);
        let every = if state.steps < begin_step { 1 } else { state.adapted.unwrap_or(steps) };
        if state.since >= every {
            self.meet(step)?;
            let loss = self.average_statistics(values)?;
            if adapts {
                self.adapt(step, steps, loss);
            }
        }
        Ok(true)
    }

    /// This rank has no more data: averages what it has trained since the last average.
    pub(super) fn flush_average(&self, step: &mut StepState) -> Result<()> {
        if step.averaging.since == 0 {
            return Ok(());
        }
        self.meet(step)?;
        self.average_statistics(StepValues { loss: None, statistics: &mut [] })?;
        self.average(step)
    }

    /// Waits until all ranks average.
    fn meet(&self, step: &mut StepState) -> Result<()> {
        loop {
            let calls = self.group.agree(Call::average(self.program, false, step.averaging.since))?;
            match any_is_new(&calls) {
                true => self.synchronize(step)?,
                false => {
                    step.averaging.set_ranks(&calls);
                    return Ok(());
                }
            }
        }
    }

    /// Averages running statistics, and returns the mean loss. A rank that flushes has statistics that are left as they are.
    pub(super) fn average_statistics(&self, values: StepValues<'_>) -> Result<f64> {
        let count = self.statistics;
        let mut sums = vec![0.0f32; count + 2];
        if let Some(loss) = values.loss {
            sums[..count].copy_from_slice(values.statistics);
            (sums[count], sums[count + 1]) = (loss, 1.0);
        }
        let sums = self.group.submit(move |transport| {
            algorithms::all_reduce(transport, Reduce::Sum, &mut sums)?;
            Ok(sums)
        });
        let sums = sums.wait()?;
        let divisor = sums[count + 1].max(1.0);
        values.statistics.iter_mut().zip(&sums).for_each(|(to, sum)| *to = sum / divisor);
        Ok(f64::from(sums[count] / divisor))
    }

    /// Averages the parameters of the ranks that have trained.
    pub(super) fn average(&self, step: &mut StepState) -> Result<()> {
        let state = &mut step.averaging;
        let batches = std::mem::take(&mut state.trained);
        let divisor = batches.iter().filter(|&&batches| batches > 0).count().max(1) as f32;
        let trained = state.since > 0;
        for ((name, table), snapshot) in self.tables.dense().iter().zip(&mut state.snapshot) {
            let mut differences = vec![0.0; snapshot.len()];
            if trained {
                table.read(|values| {
                    let pairs = snapshot.iter().zip(values);
                    differences.iter_mut().zip(pairs).for_each(|(to, (before, now))| *to = before - now);
                });
            }
            let differences = self.group.submit(move |transport| {
                algorithms::all_reduce(transport, Reduce::Sum, &mut differences)?;
                Ok(differences)
            });
            let differences = differences.wait()?;
            snapshot.iter_mut().zip(&differences).for_each(|(value, sum)| *value -= sum / divisor);
            let failed = |source| Error::Table { action: "averaging", table: name.clone(), source };
            table.assign(snapshot).map_err(failed)?;
        }
        state.since = 0;
        self.group.apply_batches(self.program, &batches);
        Ok(())
    }

    fn adapt(&self, step: &mut StepState, first_steps: u64, loss: f64) {
        let Some((_, table)) = self.tables.dense().first() else { return };
        let rate = table.spec().schedule.rate(table.step());
        let state = &mut step.averaging;
        let &mut (first_loss, first_rate) = state.first.get_or_insert((loss, rate));
        let ideal = (first_rate * loss / (rate * first_loss) * first_steps as f64).sqrt().ceil();
        state.adapted = Some(if ideal.is_finite() { ideal.clamp(1.0, MOST_ADAPTED) as u64 } else { 1 });
    }
}
