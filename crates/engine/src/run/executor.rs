//! Runs programs: one batch at a time, or a whole dataset on several threads.
//!
//! An executor compiles each program once and keeps the plan and the threads' memory for the next call. What the threads do
//! with a dataset is in `pass.rs`. Nothing is printed here: whoever asks for progress hands in a function.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use openfleet_core::WorkId;
use openfleet_dist::Cluster;
use openfleet_dist::communicator::Step;
use openfleet_dist::server::ActionKind;
use serde::{Deserialize, Serialize};

use crate::dataset::{Dataset, RoundRobinDataset};
use crate::error::{Error, Result};
use crate::graph::op::Op;
use crate::graph::{Program, Var};
use crate::memory::Scope;
use crate::run::pass::{self, TrainingThread};
use crate::run::{Pause, Plan, RunOptions, RunReport, states};
use crate::value::{Feed, Tensor, can_allocate, check_memory_for};

/// Runs programs on the values of one scope.
pub struct Executor {
    scope: Arc<Scope>,
    /// Where the tables are, unless in the scope.
    cluster: Option<Arc<Cluster>>,
    prepared: Vec<CompiledProgram>,
    /// Batches that each thread had done when the checkpoint was saved that was loaded last.
    pub(crate) loaded_positions: Vec<u64>,
    /// Whether those, or the servers', were gone on from: once is enough.
    pub(crate) resumed: bool,
    /// The program whose tables the servers make, unless another one that trains comes first.
    table_program: Option<Arc<Program>>,
}

/// A compiled program with the memory of its threads.
struct CompiledProgram {
    fingerprint: u64,
    scope_generation: u64,
    plan: Arc<Plan>,
    threads: Vec<TrainingThread>,
    /// Whose turn it is at the servers ([`Cluster::is_next_turn_of`]).
    turn: u64,
}

/// A number that no other compiled program of this process has.
fn next_turn() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Executor {
    /// An executor on a scope.
    pub fn new(scope: Arc<Scope>) -> Self {
        Executor {
            scope,
            cluster: None,
            prepared: Vec::new(),
            loaded_positions: Vec::new(),
            resumed: false,
            table_program: None,
        }
    }

    /// An executor whose tables stand on servers; the scope has first values and states.
    pub fn on_cluster(scope: Arc<Scope>, cluster: Arc<Cluster>) -> Self {
        Executor { cluster: Some(cluster), ..Executor::new(scope) }
    }

    /// The program that the job trains: the servers make their tables for it, even if another one is evaluated first.
    #[must_use]
    pub fn with_tables_of(self, program: Arc<Program>) -> Self {
        Executor { table_program: Some(program), ..self }
    }

    /// The values it works on.
    pub fn scope(&self) -> &Arc<Scope> {
        &self.scope
    }

    /// Where the tables are, unless in the scope.
    pub(crate) fn cluster(&self) -> Option<Arc<Cluster>> {
        self.cluster.clone()
    }

    /// Makes parameters and tables of the scope what a program wants them to be, and says how many batches each thread has
    /// done.
    pub(crate) fn compile(&mut self, program: &Program) -> Result<Vec<u64>> {
        let trained = self.prepare(program, 1)?.threads.iter().map(|thread| thread.steps).collect::<Vec<_>>();
        // Nothing was trained since it was loaded.
        Ok(if trained.iter().all(|&steps| steps == 0) { self.loaded_positions.clone() } else { trained })
    }

    /// Gives every variable of a startup program its first value, whatever it had before. Sparse tables are left without
    /// rows: each row gets its first value when it is next seen.
    pub fn run_startup(&mut self, startup: &Program) -> Result<()> {
        check_memory_for_all(startup)?;
        for (_, table) in startup.tables() {
            self.scope.remove(&table.name);
        }
        for node in startup.nodes() {
            if let Op::Initialize(initialize) = &node.op {
                for &output in &node.outputs {
                    self.scope.replace(&startup.variable(output).name, initialize.value(startup, output)?);
                }
            }
        }
        Ok(())
    }

    /// One step on one batch: a program that is trained updates its parameters, any other only computes. What cannot be
    /// fed or fetched is refused before the step.
    pub fn run(&mut self, program: &Program, feed: Feed, fetch: &[Var]) -> Result<Vec<Tensor>> {
        let (schema, batch) = feed.into_parts()?;
        let known = self.cluster.as_ref().map(|cluster| cluster.worker().threads as usize);
        let (scope, cluster) = (self.scope.clone(), self.cluster.clone());
        let prepared = self.prepare(program, 1)?;
        let (plan, thread, turn) = (&prepared.plan, &mut prepared.threads[0], prepared.turn);
        check_threads(plan, 1, known)?;
        fetch.iter().try_for_each(|&var| plan.check_fetch(var))?;
        plan.bind(&mut thread.arena, &schema)?;
        if let Some(cluster) = &cluster {
            let is_next = cluster.is_next_turn_of(turn);
            if !plan.trains() {
                // Whoever evaluates sees all that was pushed.
                plan.communicator().flush()?;
            }
            if !is_next || !plan.trains() {
                // Its copies of dense values are as old as its own last step.
                thread.forget_dense();
            }
        }
        if program.is_for_test() {
            scope.begin_test(program, false);
        } else {
            scope.begin_training(program);
        }
        let step = match known.filter(|_| plan.trains()) {
            Some(_) => plan.communicator().next_step(0)?,
            None => Step { number: thread.steps, is_applied: false },
        };
        let work = WorkId::step(0, step.number);
        match step.is_applied {
            true => plan.repeat(&mut thread.arena, &batch, work)?,
            false => drop(plan.step(&mut thread.arena, &batch, work)?),
        }
        if program.is_for_test() {
            scope.end_test(program);
        }
        thread.steps += 1;
        fetch.iter().map(|&var| plan.fetch(&thread.arena, &batch, var)).collect()
    }

    /// One pass of training over a dataset.
    pub fn train_from_dataset(
        &mut self,
        program: &Program,
        dataset: &dyn Dataset,
        options: &RunOptions<'_>,
    ) -> Result<RunReport> {
        if program.minimize.is_none() || program.is_for_test() {
            return Err(Error::NotMinimized);
        }
        self.pass(program, dataset, options)
    }

    /// One pass over a dataset that changes nothing but states such as AUC counters; creates no rows.
    pub fn infer_from_dataset(
        &mut self,
        program: &Program,
        dataset: &dyn Dataset,
        options: &RunOptions<'_>,
    ) -> Result<RunReport> {
        if program.is_for_test() {
            return self.pass(program, dataset, options);
        }
        self.pass(&program.clone_for_test(), dataset, options)
    }

    /// A pass; on a cluster it is an action of the script, which a restarted worker that had completed it skips.
    fn pass(&mut self, program: &Program, dataset: &dyn Dataset, options: &RunOptions<'_>) -> Result<RunReport> {
        let trains = program.minimize.is_some() && !program.is_for_test();
        // What a caller learns from each batch of an evaluation is not recorded: it is evaluated again.
        let is_recorded = trains || options.each_batch.is_none();
        let Some(cluster) = self.cluster.clone().filter(|_| is_recorded) else {
            return self.pass_over(program, dataset, options);
        };
        let kind = if trains { ActionKind::Train } else { ActionKind::Evaluate };
        let threads = if options.threads == 0 { dataset.thread_num() } else { options.threads }.max(1);
        let what = format!("program {:016x}, {threads} threads, {}", program.fingerprint(), dataset.describe());
        // Tables are there before the pass counts as begun: what is wrong with them is told first.
        self.prepare(program, threads)?;
        let begun = cluster.begin_action(kind, what)?;
        if let Some(complete) = begun.recorded::<CompletePass>() {
            if trains {
                cluster.skip_pass(&complete.ends)?;
                dataset.skip_pass();
            }
            match trains {
                true => self.scope.begin_training(program),
                false => self.scope.begin_test(program, true),
            }
            if let Some(saved) = cluster.recorded_states(&begun)? {
                let saved = openfleet_table::checkpoint::decode_states(&saved)
                    .map_err(|source| Error::checkpoint("loading", "the states of a worker", source))?;
                states::set(program, &self.scope, saved)?;
            }
            if !trains {
                self.scope.end_test(program);
            }
            let CompletePass { samples, steps, .. } = complete;
            return Ok(RunReport { samples, steps, skipped: true, ..RunReport::default() });
        }
        let report = match trains {
            // Which thread gets a batch must not depend on chance, or a restarted worker could not tell what it has done.
            true if !dataset.is_round_robin() => {
                self.pass_over(program, &RoundRobinDataset::new(dataset, threads), options)?
            }
            _ => self.pass_over(program, dataset, options)?,
        };
        if !report.stopped {
            let ends = if trains { cluster.thread_positions()? } else { Vec::new() };
            let (samples, steps) = (report.samples + report.skipped_samples, report.steps + report.skipped_steps);
            let saved = openfleet_table::checkpoint::encode_states(&states::of(program, &self.scope, &[]))
                .map_err(|source| Error::checkpoint("saving to", "the states of a worker", source))?;
            cluster.complete_action(begun, &CompletePass { ends, samples, steps }, saved)?;
        }
        Ok(report)
    }

    fn pass_over(&mut self, program: &Program, dataset: &dyn Dataset, options: &RunOptions<'_>) -> Result<RunReport> {
        let threads = if options.threads == 0 { dataset.thread_num() } else { options.threads }.max(1);
        let known = self.cluster.as_ref().map(|cluster| cluster.worker().threads as usize);
        let (scope, cluster) = (self.scope.clone(), self.cluster.clone());
        let resume = options.resume
            && cluster.is_none()
            && program.minimize.is_some()
            && !std::mem::replace(&mut self.resumed, true);
        let loaded = if resume { std::mem::take(&mut self.loaded_positions) } else { Vec::new() };
        let prepared = self.prepare(program, threads)?;
        let plan = prepared.plan.clone();
        if let Some(cluster) = &cluster {
            cluster.is_next_turn_of(prepared.turn);
        }
        check_threads(&plan, threads, known)?;
        options.fetch.iter().try_for_each(|&var| plan.check_fetch(var))?;
        if !plan.trains() {
            // What others have changed since the last pass is here before it is judged; GEO would not look otherwise.
            plan.communicator().flush()?;
        }
        for thread in &mut prepared.threads[..threads] {
            thread.make_ready(&plan, dataset.schema(), options)?;
        }
        if !loaded.is_empty() && loaded.len() != threads {
            // Batches were dealt to other threads.
            return Err(Error::Threads { got: threads, known: loaded.len() });
        }
        if resume {
            for (stream, thread) in prepared.threads[..threads].iter_mut().enumerate() {
                let position = loaded.get(stream).copied().unwrap_or(0);
                (thread.steps, thread.skip) = (position, position);
            }
        }
        if program.is_for_test() {
            scope.begin_test(program, true);
        } else {
            scope.begin_training(program);
        }
        let servers = cluster.as_deref();
        let ran = pass::run(&plan, &mut prepared.threads[..threads], dataset, options, servers, &|positions| {
            let pause = Pause { program, scope: &scope, cluster: cluster.clone(), positions };
            options.on_pause.map_or(Ok(()), |on_pause| on_pause(&pause))
        });
        if program.is_for_test() {
            scope.end_test(program);
        }
        if matches!(ran, Err(Error::ThreadPanicked { .. })) {
            // The op that panicked had buffers of its arena on loan: none of this is used again.
            self.prepared.clear();
        }
        ran
    }

    /// The plan of a program, compiled unless it is known and the scope's tables are the same.
    /// A program that only evaluates does not say by which rule its tables are trained: where it comes first, the servers make
    /// them for the one that trains.
    fn define_tables(&self, program: &Program) -> Result<()> {
        let (Some(cluster), Some(table_program)) = (&self.cluster, &self.table_program) else { return Ok(()) };
        if !cluster.is_connected() && (program.minimize.is_none() || program.is_for_test()) {
            Plan::compile_on(table_program, &self.scope, cluster)?;
        }
        Ok(())
    }

    fn prepare(&mut self, program: &Program, threads: usize) -> Result<&mut CompiledProgram> {
        let (fingerprint, generation) = (program.fingerprint(), self.scope.generation());
        self.prepared.retain(|prepared| prepared.scope_generation == generation);
        let position = match self.prepared.iter().position(|prepared| prepared.fingerprint == fingerprint) {
            Some(position) => position,
            None => {
                self.define_tables(program)?;
                let plan = Arc::new(match &self.cluster {
                    Some(cluster) => Plan::compile_on(program, &self.scope, cluster)?,
                    None => Plan::compile(program, &self.scope)?,
                });
                let scope_generation = self.scope.generation();
                self.prepared.retain(|prepared| prepared.scope_generation == scope_generation);
                self.prepared.push(CompiledProgram {
                    fingerprint,
                    scope_generation,
                    plan,
                    threads: Vec::new(),
                    turn: next_turn(),
                });
                self.prepared.len() - 1
            }
        };
        let prepared = &mut self.prepared[position];
        while prepared.threads.len() < threads {
            prepared.threads.push(TrainingThread::new(&prepared.plan));
        }
        Ok(prepared)
    }
}

/// What is recorded of a pass that is complete.
#[derive(Serialize, Deserialize)]
struct CompletePass {
    /// How many steps each training thread had taken by then.
    ends: Vec<u64>,
    samples: u64,
    steps: u64,
}

/// Fails if so many training threads cannot go with those that the servers know of.
fn check_threads(plan: &Plan, threads: usize, known: Option<usize>) -> Result<()> {
    let misfits = |known: usize| threads > known || (threads < known && plan.communicator().steps_together());
    match known.filter(|&known| plan.trains() && misfits(known)) {
        Some(known) => Err(Error::Threads { got: threads, known }),
        None => Ok(()),
    }
}

/// Whether there is memory for all first values of a startup program together. Asked before the first is drawn, which of a
/// large layer takes a while.
fn check_memory_for_all(startup: &Program) -> Result<()> {
    let outputs =
        startup.nodes().iter().filter(|node| matches!(node.op, Op::Initialize(_))).flat_map(|node| &node.outputs);
    let sizes = outputs.map(|&output| {
        let variable = startup.variable(output);
        (variable.shape.sizes(0), &variable.name)
    });
    let bytes = |dims: &[usize]| dims.iter().fold(size_of::<f32>(), |bytes, &side| bytes.saturating_mul(side));
    let sizes: Vec<_> = sizes.collect();
    let total = sizes.iter().fold(0usize, |total, (dims, _)| total.saturating_add(bytes(dims)));
    let Some((dims, name)) = sizes.iter().max_by_key(|(dims, _)| bytes(dims)) else { return Ok(()) };
    check_memory_for(name, dims, size_of::<f32>(), "")?;
    if can_allocate(total) {
        return Ok(());
    }
    let (name, dims) = ((*name).clone(), dims.clone());
    Err(Error::NoMemory { name, dims, copies: "with all other parameters its ", bytes: total.to_string() })
}
