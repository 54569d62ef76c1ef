//! Counters of metrics, such as those of `auc`: a program and its copy for test share their names, but not what they count.
//!
//! While the copy for test runs, its counts stand under the names, so that whoever reads or resets them by name finds them, and
//! those of training are kept aside. They come back when training goes on, unless somebody has set the counters meanwhile.

use crate::graph::{Program, VariableKind};
use crate::memory::{CounterBackup, Scope, State};
use crate::value::{DType, Elements, Tensor};

impl Scope {
    /// A copy for test is about to run: its counters are zero at first, and at the start of every pass.
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

    /// A copy for test has run.
    pub(crate) fn end_test(&self, program: &Program) {
        let mut backups = self.counter_backups.lock();
        for (name, state) in self.counters(program) {
            if let Some(backup) = backups.get_mut(name) {
                backup.left_by_test.clone_from(&state.lock());
            }
        }
    }

    /// Training goes on: it counts on from where it was.
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
