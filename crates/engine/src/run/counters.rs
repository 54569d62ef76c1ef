//! Metric counters, such as those of `auc`: a program and its test copy share the counters' names but not the counts.
//!
//! While the test copy runs, its counts are stored under the names, so that callers can read and reset them by name. The counts
//! of training are set aside and restored when training continues, unless the counters were set in between.

use crate::graph::{Program, VariableKind};
use crate::memory::{CounterBackup, Scope, State};
use crate::value::{DType, Elements, Tensor};

impl Scope {
    /// Call before a test copy runs. Its counters start from zero, and again at the start of every pass.
    pub(crate) fn begin_test(&self, program: &Program, is_new_pass: bool) {
        let mut backups = self.counter_backups.lock();
        for (name, state) in self.counters(program) {
            let mut state = state.lock();
            let is_first = !backups.contains_key(name);
            if is_first {
                backups.insert(name.to_owned(), CounterBackup { training: state.clone(), left_by_test: state.clone() });
            }
            if is_first || is_new_pass {
                set_zero(&mut state);
            }
        }
    }

    /// Call after a test copy has run.
    pub(crate) fn end_test(&self, program: &Program) {
        let mut backups = self.counter_backups.lock();
        for (name, state) in self.counters(program) {
            if let Some(backup) = backups.get_mut(name) {
                backup.left_by_test.clone_from(&state.lock());
            }
        }
    }

    /// Call before training continues: restores the counts of training.
    pub(crate) fn begin_training(&self, program: &Program) {
        let mut backups = self.counter_backups.lock();
        if backups.is_empty() {
            return;
        }
        for (name, state) in self.counters(program) {
            let mut state = state.lock();
            if let Some(CounterBackup { training, left_by_test }) = backups.remove(name)
                && *state == left_by_test
            {
                *state = training;
            }
        }
    }

    fn counters<'p>(&self, program: &'p Program) -> Vec<(&'p str, State)> {
        let states = program.variables().iter().filter(|variable| variable.kind == VariableKind::State);
        let counters = states.filter(|variable| variable.dtype == DType::I64);
        counters.filter_map(|variable| Some((variable.name.as_str(), self.state(&variable.name).ok()?))).collect()
    }
}

fn set_zero(tensor: &mut Tensor) {
    match tensor.elements_mut() {
        Elements::I64(counts) => counts.fill(0),
        Elements::F32(values) => values.fill(0.0),
    }
}
