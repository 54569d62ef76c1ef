//! Reads the values of variables after a step.

use openfleet_core::{Batch, Column, FieldKind};

use super::Plan;
use crate::error::{Error, Result};
use crate::graph::Var;
use crate::memory::{Arena, GradientLocation, ValueLocation};
use crate::value::Tensor;

/// Where the value of a fetched variable is.
enum FetchSource {
    Gradient(GradientLocation),
    State(usize),
    Dense(usize),
    Buffer(usize),
    Feed(usize),
}

impl Plan {
    /// Fails if a variable cannot be fetched; call it before the step.
    pub(crate) fn check_fetch(&self, var: Var) -> Result<()> {
        self.fetch_source(var).map(drop)
    }

    /// A copy of a variable's value after a step. A ragged slot returns the ids of all rows in order.
    pub fn fetch(&self, arena: &Arena, batch: &Batch, var: Var) -> Result<Tensor> {
        let location = self.fetch_source(var)?;
        let (_, _, dtype) = &self.shapes[var.index()];
        let sizes = self.sizes_of(var, arena, batch);
        let ints = |values: &[u64]| values.iter().map(|&v| v as i64).collect();
        match location {
            FetchSource::Gradient(location) => Tensor::from_f32(&sizes, arena.gradient(location).to_vec()),
            FetchSource::State(i) => Ok(arena.states[i].lock().clone()),
            FetchSource::Dense(i) => Tensor::from_f32(&sizes, arena.dense[i].values.clone()),
            FetchSource::Buffer(i) if dtype.is_float() => Tensor::from_f32(&sizes, arena.buffers[i].floats.clone()),
            FetchSource::Buffer(i) => Tensor::from_i64(&sizes, ints(&arena.buffers[i].ints)),
            FetchSource::Feed(i) => match &batch.columns[arena.feeds[i]] {
                Column::Floats { values, .. } => Tensor::from_f32(&sizes, values.clone()),
                Column::Ids { keys, .. } if self.feeds[i].kind == FieldKind::Ids => {
                    Tensor::from_i64(&[keys.len()], ints(keys))
                }
                Column::Ids { keys, .. } => Tensor::from_i64(&sizes, ints(keys)),
            },
        }
    }

    fn fetch_source(&self, var: Var) -> Result<FetchSource> {
        let Some((name, ..)) = self.shapes.get(var.index()) else {
            let name = format!("variable {}", var.index());
            return Err(Error::NotFetchable { name, reason: "it is a variable of another program" });
        };
        let not = |reason| Err(Error::NotFetchable { name: name.clone(), reason });
        match (self.gradient_locations[var.index()], self.locations[var.index()]) {
            (Some(GradientLocation::Rows { .. }), _) => not("it is the gradient of a sparse table"),
            (Some(location), _) => Ok(FetchSource::Gradient(location)),
            (None, None) => not("no op of this program computes or reads it"),
            (None, Some(ValueLocation::Rows { .. })) => not("it is a sparse table"),
            (None, Some(ValueLocation::State(i))) => Ok(FetchSource::State(i)),
            (None, Some(ValueLocation::Dense(i))) => Ok(FetchSource::Dense(i)),
            (None, Some(ValueLocation::Buffer(i))) => Ok(FetchSource::Buffer(i)),
            (None, Some(ValueLocation::Feed(i))) => Ok(FetchSource::Feed(i)),
        }
    }

    /// The value of a variable that holds one float, without allocating.
    pub fn scalar(&self, arena: &Arena, var: Var) -> Option<f32> {
        match (*self.locations.get(var.index())?)? {
            ValueLocation::Buffer(i) => match arena.buffers[i].floats.as_slice() {
                [value] => Some(*value),
                _ => None,
            },
            _ => None,
        }
    }
}
