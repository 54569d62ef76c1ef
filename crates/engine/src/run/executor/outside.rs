//! Training for another library, which computes the layers: it looks rows up, and pushes gradients once a step.

use openfleet_core::{Key, WorkId};
use openfleet_dist::communicator::{Missing, Step};
use openfleet_table::PushReport;

use super::{CompiledProgram, Executor, check_threads};
use crate::error::Result;
use crate::graph::{Program, Var};
use crate::run::{LookedUp, OutsideGradients, Returned};

impl Executor {
    /// Pulls the rows of the ids of some tables of a program, in one request to each server.
    ///
    /// For training, missing rows are created. Otherwise no row is created, a missing one has its first values, and everything that
    /// was pushed before is seen.
    pub fn look_up(
        &mut self,
        program: &Program,
        wanted: &[(Var, &[Key])],
        for_training: bool,
    ) -> Result<Vec<LookedUp>> {
        let position = self.prepared_at(program, 1)?;
        let CompiledProgram { plan, outside, .. } = &mut self.prepared[position];
        if !for_training {
            plan.communicator().flush()?;
        }
        // On ranks without servers a row is created by the step that trains it, which all ranks apply.
        let missing = match for_training && plan.replicated().is_none() {
            true => Missing::Create,
            false => Missing::Initial,
        };
        plan.look_up(&mut outside.lookups, wanted, missing)
    }

    /// Says what a later batch will look up in training, so that its rows are on their way while this one is computed. They are as
    /// new as the mode promises: in sync they come with the push of this batch's step. Where rows are in this process it has no
    /// effect.
    pub fn look_ahead(&mut self, program: &Program, wanted: &[(Var, &[Key])]) -> Result<()> {
        let position = self.prepared_at(program, 1)?;
        let CompiledProgram { plan, outside, .. } = &mut self.prepared[position];
        plan.look_ahead(&mut outside.lookups, wanted)
    }

    /// Sets the weights of ids of a table that have no row yet, such as those of an embedding that was trained elsewhere. Rows that
    /// exist keep their values. On ranks without servers every rank puts the same rows.
    ///
    /// # Errors
    /// If an id is there twice, or a weight is not finite.
    pub fn put_rows(&mut self, program: &Program, table: Var, ids: &[Key], rows: &[f32]) -> Result<()> {
        let position = self.prepared_at(program, 1)?;
        self.prepared[position].plan.put_rows(table, ids, rows)
    }

    /// The ids of a table that have a row, sorted as unsigned numbers; everything that was pushed before is seen.
    pub fn ids(&mut self, program: &Program, table: Var) -> Result<Vec<Key>> {
        let position = self.prepared_at(program, 1)?;
        let plan = &self.prepared[position].plan;
        plan.communicator().flush()?;
        plan.ids(table)
    }

    /// Runs one training step of a program whose gradients were computed elsewhere. The step is numbered like any other: a restarted
    /// worker repeats its steps, and those that the servers have applied are not pushed again.
    pub fn push_gradients(&mut self, program: &Program, gradients: &OutsideGradients<'_>) -> Result<PushReport> {
        let known = self.known_threads();
        let (scope, is_numbered) = (self.scope.clone(), self.cluster.is_some());
        let prepared = self.prepared_for_step(program)?;
        let CompiledProgram { plan, threads, outside, .. } = prepared;
        let thread = &mut threads[0];
        check_threads(plan, 1, known)?;
        scope.begin_training(program);
        let step = match is_numbered || plan.replicated().is_some() {
            true => plan.communicator().next_step(0)?,
            false => Step { number: thread.steps, is_applied: false },
        };
        plan.forget_returned(outside, gradients);
        let report = match step.is_applied {
            true => PushReport::default(),
            false => plan.push_gradients(&mut thread.arena, outside, gradients, WorkId::step(0, step.number))?,
        };
        thread.steps = step.number + 1;
        Ok(report)
    }

    /// The newest values of parameters of a program, by name.
    pub fn parameters(&mut self, program: &Program, which: Returned) -> Result<Vec<(String, Vec<f32>)>> {
        let CompiledProgram { plan, threads, outside, .. } = self.prepared_for_step(program)?;
        plan.parameters(&mut threads[0].arena, outside, which)
    }

    /// The compiled program. If another one ran in between, its copies of dense values are pulled anew.
    fn prepared_for_step(&mut self, program: &Program) -> Result<&mut CompiledProgram> {
        let position = self.prepared_at(program, 1)?;
        let prepared = &mut self.prepared[position];
        if self.cluster.as_ref().is_some_and(|cluster| !cluster.is_next_turn_of(prepared.turn)) {
            prepared.threads[0].invalidate_dense();
        }
        Ok(prepared)
    }
}
