//! Dense tables: one array of parameters with its optimizer state.
//!
//! A dense table is small enough to be pulled as a whole and changes with every step, so it has one lock and is updated in one
//! pass. Placement decides how a large parameter is split into tables, and which server has them.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use crate::clip;
use crate::error::{Error, Result, require, same_length};
use crate::optimizer::{Optimizer, Sgd};
use crate::push::{NonFinite, PushReport};
use crate::regularizer::Regularizer;
use crate::schedule::Schedule;

/// What a dense table is made from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DenseSpec {
    /// Shape of the array; `[]` is a single number.
    pub shape: Vec<usize>,
    /// The update rule.
    pub optimizer: Optimizer,
    /// The learning rate over the table's steps.
    pub schedule: Schedule,
    /// Added to each gradient before the update rule.
    pub regularizer: Option<Regularizer>,
    /// What happens to gradients that are not finite.
    #[serde(default)]
    pub non_finite: NonFinite,
}

impl DenseSpec {
    /// The same spec without optimizer state: for a table that only has differences added to it.
    pub fn without_state(&self) -> Self {
        DenseSpec { optimizer: Optimizer::Sgd(Sgd::default()), ..self.clone() }
    }

    /// Bytes of the values and of the optimizer's state.
    pub fn bytes(&self) -> u64 {
        let floats = self.shape.iter().product::<usize>() * (1 + self.optimizer.state_slots());
        (floats * size_of::<f32>()) as u64
    }
}

/// An array of parameters that many threads pull and push.
#[derive(Debug)]
pub struct DenseTable {
    spec: DenseSpec,
    parameters: RwLock<Parameters>,
    /// A copy of `Parameters::version`, written under the lock, so that checking for new values needs no lock.
    version: AtomicU64,
    non_finite: AtomicU64,
}

#[derive(Debug)]
struct Parameters {
    values: Vec<f32>,
    /// Slot-major, see `Optimizer`.
    state: Vec<f32>,
    step: u64,
    version: u64,
}

/// Floats updated and copied at a time: three arrays of this length fit into the first-level cache. A rule that needs the norm of
/// the parameter updates all of it at once.
const BLOCK: usize = 1024;

impl DenseTable {
    /// A table of zeros; set initial values with [`assign`](Self::assign). Fails if the spec is invalid or its rule is row-wise.
    pub fn new(spec: DenseSpec) -> Result<Self> {
        spec.optimizer.validate()?;
        if spec.optimizer.is_rowwise() {
            return Err(Error::RowwiseDense { optimizer: spec.optimizer.name() });
        }
        spec.schedule.validate()?;
        spec.regularizer.as_ref().map_or(Ok(()), Regularizer::validate)?;
        spec.non_finite.validate()?;
        let len = spec.shape.iter().try_fold(1usize, |len, side| len.checked_mul(*side)).filter(|len| *len > 0);
        let sane = "dimensions of at least 1 whose product fits into `usize`";
        require(len.is_some(), "a dense table", "shape", sane, format!("{:?}", spec.shape))?;
        let len = len.unwrap_or_default();
        let mut state = vec![0.0; spec.optimizer.state_slots() * len];
        spec.optimizer.init_state(len, &mut state);
        let parameters = RwLock::new(Parameters { values: vec![0.0; len], state, step: 0, version: 1 });
        Ok(DenseTable { spec, parameters, version: AtomicU64::new(1), non_finite: AtomicU64::new(0) })
    }

    /// Copies the values to `out`.
    pub fn pull(&self, out: &mut [f32]) -> Result<()> {
        let parameters = self.parameters.read();
        same_length("values", parameters.values.len(), out.len())?;
        out.copy_from_slice(&parameters.values);
        Ok(())
    }

    /// Copies the values to `out` if they changed since `seen_version`, updates `seen_version`, and returns whether it did. A
    /// reader without values starts at 0.
    pub fn pull_if_newer(&self, seen_version: &mut u64, out: &mut [f32]) -> Result<bool> {
        same_length("values", self.len(), out.len())?;
        if self.version.load(Ordering::Acquire) == *seen_version {
            return Ok(false);
        }
        let parameters = self.parameters.read();
        out.copy_from_slice(&parameters.values);
        *seen_version = parameters.version;
        Ok(true)
    }

    /// Applies `gradient`: one step.
    ///
    /// A gradient that is not finite is handled by the table's policy; a refused gradient is reported and does not count as a
    /// step.
    pub fn push(&self, gradient: &[f32]) -> Result<PushReport> {
        self.push_at(gradient, 1.0)
    }

    /// [`push`](Self::push) at the rate of the schedule multiplied by a factor.
    pub fn push_at(&self, gradient: &[f32], rate_factor: f32) -> Result<PushReport> {
        self.step_with(gradient, rate_factor, None)
    }

    /// Applies a gradient and brings a worker's copy up to date in the same pass, including what others pushed in between.
    pub fn push_and_pull(&self, gradient: &[f32], seen_version: &mut u64, out: &mut [f32]) -> Result<PushReport> {
        self.push_and_pull_at(gradient, 1.0, seen_version, out)
    }

    /// [`push_and_pull`](Self::push_and_pull) at the rate of the schedule multiplied by a factor.
    pub fn push_and_pull_at(
        &self,
        gradient: &[f32],
        rate_factor: f32,
        seen_version: &mut u64,
        out: &mut [f32],
    ) -> Result<PushReport> {
        same_length("values", self.len(), out.len())?;
        let report = self.step_with(gradient, rate_factor, Some((&mut *seen_version, &mut *out)))?;
        if report.non_finite > 0 {
            self.pull_if_newer(seen_version, out)?;
        }
        Ok(report)
    }

    fn step_with(
        &self,
        gradient: &[f32],
        rate_factor: f32,
        mut copy: Option<(&mut u64, &mut [f32])>,
    ) -> Result<PushReport> {
        same_length("gradient", self.len(), gradient.len())?;
        let (gradient, report) = self.inspect(gradient)?;
        if report.applied == 0 {
            return Ok(report);
        }
        let mut guard = self.parameters.write();
        let parameters = &mut *guard;
        let rate = self.spec.schedule.rate(parameters.step) * f64::from(rate_factor);
        parameters.step += 1;
        let update = self.spec.optimizer.at(rate as f32, parameters.step);
        let regularizer = self.spec.regularizer.as_ref();
        let stride = parameters.values.len();
        let block = if self.spec.optimizer.needs_whole_parameters() { stride } else { BLOCK };
        for (i, (values, gradient)) in parameters.values.chunks_mut(block).zip(gradient.chunks(block)).enumerate() {
            let offset = i * block;
            update.apply_part(regularizer, values, &mut parameters.state, stride, offset, gradient);
            if let Some((_, out)) = &mut copy {
                out[offset..offset + values.len()].copy_from_slice(values);
            }
        }
        self.changed(parameters);
        if let Some((seen_version, _)) = copy {
            *seen_version = parameters.version;
        }
        Ok(report)
    }

    /// Adds `delta` to the values directly, without the optimizer: how differences of geo mode are applied.
    pub fn add(&self, delta: &[f32]) -> Result<PushReport> {
        same_length("delta", self.len(), delta.len())?;
        let (delta, report) = self.inspect(delta)?;
        if report.applied == 0 {
            return Ok(report);
        }
        let mut parameters = self.parameters.write();
        for (value, difference) in parameters.values.iter_mut().zip(delta.iter()) {
            *value += difference;
        }
        self.changed(&mut parameters);
        Ok(report)
    }

    /// Replaces the values; state and step are unchanged.
    pub fn assign(&self, values: &[f32]) -> Result<()> {
        same_length("values", self.len(), values.len())?;
        let mut parameters = self.parameters.write();
        parameters.values.copy_from_slice(values);
        self.changed(&mut parameters);
        Ok(())
    }

    /// Calls `look` with the values, without copying; pushes wait meanwhile.
    pub fn read<T>(&self, look: impl FnOnce(&[f32]) -> T) -> T {
        look(&self.parameters.read().values)
    }

    /// Calls `look` with values, optimizer state (slot-major) and step, consistently, for a checkpoint.
    pub fn read_all<T>(&self, look: impl FnOnce(&[f32], &[f32], u64) -> T) -> T {
        let parameters = self.parameters.read();
        look(&parameters.values, &parameters.state, parameters.step)
    }

    /// Restores what [`read_all`](Self::read_all) returned.
    pub fn restore(&self, values: &[f32], state: &[f32], step: u64) -> Result<()> {
        let mut parameters = self.parameters.write();
        same_length("values", parameters.values.len(), values.len())?;
        same_length("optimizer state", parameters.state.len(), state.len())?;
        parameters.values.copy_from_slice(values);
        parameters.state.copy_from_slice(state);
        parameters.step = step;
        self.changed(&mut parameters);
        Ok(())
    }

    /// How many numbers the array has.
    #[allow(clippy::len_without_is_empty, reason = "a dense table is never empty")]
    pub fn len(&self) -> usize {
        self.spec.shape.iter().product()
    }

    /// Number of updates so far.
    pub fn step(&self) -> u64 {
        self.parameters.read().step
    }

    /// Increases with every change of the values.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Gradients refused or clipped so far because they were not finite.
    pub fn non_finite(&self) -> u64 {
        self.non_finite.load(Ordering::Relaxed)
    }

    /// The array's shape.
    pub fn shape(&self) -> &[usize] {
        &self.spec.shape
    }

    /// The spec of the table.
    pub fn spec(&self) -> &DenseSpec {
        &self.spec
    }

    /// What to apply of a gradient or a difference, and what to report about it.
    fn inspect<'a>(&self, gradient: &'a [f32]) -> Result<(Cow<'a, [f32]>, PushReport)> {
        let sound = PushReport { applied: 1, ..PushReport::default() };
        let mut out = (Cow::Borrowed(gradient), sound);
        match self.spec.non_finite {
            NonFinite::Clip(limit) if !clip::is_within(gradient, limit) => {
                clip::mend(out.0.to_mut(), limit);
                out.1.clipped = 1;
            }
            NonFinite::Skip if !clip::is_usable(gradient) => {
                out.1 = PushReport { non_finite: 1, ..PushReport::default() };
            }
            NonFinite::Stop if !clip::is_usable(gradient) => {
                self.non_finite.fetch_add(1, Ordering::Relaxed);
                let index = gradient.iter().position(|g| !clip::is_usable(&[*g])).unwrap_or(0);
                return Err(Error::NonFiniteElement { index });
            }
            _ => return Ok(out),
        }
        self.non_finite.fetch_add(1, Ordering::Relaxed);
        Ok(out)
    }

    fn changed(&self, parameters: &mut Parameters) {
        parameters.version += 1;
        self.version.store(parameters.version, Ordering::Release);
    }
}
