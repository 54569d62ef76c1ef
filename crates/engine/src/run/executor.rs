//! Runs programs: one batch at a time, or a whole dataset on several threads.
//!
//! An executor compiles each program once and keeps the plan and the threads' memory for the next call. `pass.rs` runs the
//! threads over a dataset. Nothing is printed here: callers that want progress pass an observer.

mod outside;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use openfleet_core::WorkId;
use openfleet_core::strategy::CollectiveSettings;
use openfleet_dist::Cluster;
use openfleet_dist::LoadOptions;
use openfleet_dist::collective::{RankGroup, StepOfOthers};
use openfleet_dist::communicator::Step;
use openfleet_dist::server::ActionKind;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::dataset::{Dataset, RoundRobinDataset};
use crate::error::{Error, Result};
use crate::graph::op::Op;
use crate::graph::{Program, Var};
use crate::memory::Scope;
use crate::run::batch_threads::BatchThreads;
use crate::run::pass::{self, Job, TrainingThread};
use crate::run::plan::{OutsideState, StepsWithoutData};
use crate::run::{Pause, Plan, RunOptions, RunReport, states};
use crate::value::{Feed, Tensor, can_allocate, check_memory_for};

/// Runs programs on the values of one scope.
pub struct Executor {
    scope: Arc<Scope>,
    /// The servers that hold the tables; `None` if the scope holds them.
    cluster: Option<Arc<Cluster>>,
    /// The other ranks of a collective job.
    ranks: Option<(Arc<RankGroup>, CollectiveSettings)>,
    prepared: Vec<CompiledProgram>,
    /// Batches that each thread, or each rank of a collective job, had done at the time of the checkpoint that was loaded last.
    pub(crate) loaded_positions: Vec<u64>,
    /// Whether training has resumed from those positions; it does so once per load.
    pub(crate) resumed: bool,
    /// The checkpoint that a restarted collective job resumes from, until its first training program is compiled. The executors
    /// of a job share it.
    resume_from: Arc<Mutex<Option<String>>>,
    /// The program that the servers create their tables for, unless another training program runs first.
    table_program: Option<Arc<Program>>,
    /// The threads of [`run`](Executor::run).
    batch_threads: BatchThreads,
}

/// A compiled program with the memory of its threads.
struct CompiledProgram {
    fingerprint: u64,
    scope_generation: u64,
    plan: Arc<Plan>,
    threads: Vec<TrainingThread>,
    /// For layers that another library computes.
    outside: OutsideState,
    /// Identifies this program to [`Cluster::is_next_turn_of`].
    turn: u64,
    /// In a collective job: takes part in the steps of other ranks. The group has a weak reference to it.
    _steps: Option<Arc<dyn StepOfOthers>>,
}

impl CompiledProgram {
    /// Makes memory for as many threads.
    fn add_threads(&mut self, threads: usize) {
        while self.threads.len() < threads {
            self.threads.push(TrainingThread::new(&self.plan));
        }
    }

    /// Batches that each thread, or each rank of a collective job, has done.
    fn positions(&self) -> Vec<u64> {
        match self.plan.replicated() {
            Some(replicated) => replicated.group().batches(self.fingerprint),
            None => self.threads.iter().map(|thread| thread.steps).collect(),
        }
    }
}

/// A number that no other compiled program of this process has.
fn next_turn() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Executor {
    /// An executor on the values and tables of a scope. [`run`](Executor::run) uses all cores for a large batch.
    pub fn new(scope: Arc<Scope>) -> Self {
        Executor {
            scope,
            cluster: None,
            ranks: None,
            prepared: Vec::new(),
            loaded_positions: Vec::new(),
            resumed: false,
            resume_from: Arc::default(),
            table_program: None,
            batch_threads: BatchThreads::on_all_cores(),
        }
    }

    /// An executor whose tables are on servers; the scope has first values and states. [`run`](Executor::run) uses one thread, because
    /// other processes of the job may be on the same machine.
    pub fn on_cluster(scope: Arc<Scope>, cluster: Arc<Cluster>) -> Self {
        Executor { cluster: Some(cluster), ..Executor::new(scope) }.with_batch_threads(1)
    }

    /// An executor whose tables are in the scope and, with the same values, on every other rank of a collective job.
    /// [`run`](Executor::run) uses one thread.
    pub fn in_group(scope: Arc<Scope>, group: Arc<RankGroup>, settings: CollectiveSettings) -> Self {
        Executor { ranks: Some((group, settings)), ..Executor::new(scope) }.with_batch_threads(1)
    }

    /// Sets the number of threads that share the matrix products of a batch in [`run`](Executor::run). The result is the same to the
    /// bit for every number. Passes over datasets have threads of their own ([`RunOptions::threads`]).
    #[must_use]
    pub fn with_batch_threads(self, threads: usize) -> Self {
        Executor { batch_threads: BatchThreads::new(threads), ..self }
    }

    /// The same for an executor that is in use.
    pub fn set_batch_threads(&mut self, threads: usize) {
        self.batch_threads = BatchThreads::new(threads);
    }

    /// The first training program that any executor with this address compiles begins with the values of the checkpoint, and
    /// skips the batches that it includes: how a restarted rank of a collective job resumes.
    #[must_use]
    pub fn resuming_from(self, address: Arc<Mutex<Option<String>>>) -> Self {
        Executor { resume_from: address, ..self }
    }

    /// Compiles a training program, so that this rank can take part in the steps of other ranks without data of its own.
    pub fn prepare_to_take_part(&mut self, program: &Program) -> Result<()> {
        self.prepare(program, 1).map(drop)
    }

    /// Sets the program that the job trains. The servers create their tables for it, even if another program is evaluated first.
    #[must_use]
    pub fn with_tables_of(self, program: Arc<Program>) -> Self {
        Executor { table_program: Some(program), ..self }
    }

    /// The scope it works on.
    pub fn scope(&self) -> &Arc<Scope> {
        &self.scope
    }

    /// The servers that hold the tables; `None` if the scope holds them.
    pub(crate) fn cluster(&self) -> Option<Arc<Cluster>> {
        self.cluster.clone()
    }

    /// Rank and number of the ranks of a collective job.
    pub(crate) fn ranks(&self) -> Option<(usize, usize)> {
        self.ranks.as_ref().map(|(group, _)| (group.rank(), group.size()))
    }

    /// Compiles a program, so that the scope has the parameters and tables it needs. Returns how many batches each thread, or
    /// each rank of a collective job, has done.
    pub(crate) fn compile(&mut self, program: &Program) -> Result<Vec<u64>> {
        let trained = self.prepare(program, 1)?.positions();
        // Nothing was trained since the checkpoint was loaded.
        Ok(if trained.iter().all(|&steps| steps == 0) { self.loaded_positions.clone() } else { trained })
    }

    /// Sets every variable of a startup program to its first value, whatever it was before. Sparse tables are emptied: each row
    /// gets its first value when it is next seen.
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

    /// Runs one step on one batch and returns the fetched values. A program with an optimizer updates its parameters; any other
    /// only computes. Fails before the step if a variable cannot be fed or fetched.
    pub fn run(&mut self, program: &Program, feed: Feed, fetch: &[Var]) -> Result<Vec<Tensor>> {
        let (schema, batch, dims) = feed.into_shaped_parts()?;
        let known = self.known_threads();
        let (scope, cluster) = (self.scope.clone(), self.cluster.clone());
        let position = self.prepared_at(program, 1)?;
        let prepared = &mut self.prepared[position];
        let (plan, thread, turn) = (&prepared.plan, &mut prepared.threads[0], prepared.turn);
        check_threads(plan, 1, known)?;
        fetch.iter().try_for_each(|&var| plan.check_fetch(var))?;
        plan.bind_fed(&mut thread.arena, &schema, dims)?;
        if let Some(cluster) = &cluster {
            let is_next = cluster.is_next_turn_of(turn);
            if !plan.trains() {
                // Evaluation has to see everything that was pushed.
                plan.communicator().flush()?;
            }
            if !is_next || !plan.trains() {
                // The thread's copies of dense values may be stale: they are from its own last step.
                thread.invalidate_dense();
            }
        }
        if program.is_for_test() {
            scope.begin_test(program, false);
        } else {
            scope.begin_training(program);
        }
        let step = match plan.trains() && (cluster.is_some() || plan.replicated().is_some()) {
            true => plan.communicator().next_step(0)?,
            false => Step { number: thread.steps, is_applied: false },
        };
        let work = WorkId::step(0, step.number);
        let arena = &mut thread.arena;
        self.batch_threads.run(plan.is_small(batch.rows), || match step.is_applied {
            true => plan.repeat(arena, &batch, work),
            false => plan.step(arena, &batch, work).map(drop),
        })?;
        if program.is_for_test() {
            scope.end_test(program);
        }
        thread.steps = step.number + 1;
        fetch.iter().map(|&var| plan.fetch(&thread.arena, &batch, var)).collect()
    }

    /// Runs one training pass over a dataset.
    pub fn train_from_dataset(
        &mut self,
        program: &Program,
        dataset: &dyn Dataset,
        options: &RunOptions<'_>,
    ) -> Result<RunReport> {
        if program.minimize.is_none() || program.is_for_test() {
            return Err(Error::NotMinimized);
        }
        self.recorded_pass(program, dataset, options)
    }

    /// Runs one evaluation pass over a dataset. It creates no rows and changes only states such as AUC counters.
    pub fn infer_from_dataset(
        &mut self,
        program: &Program,
        dataset: &dyn Dataset,
        options: &RunOptions<'_>,
    ) -> Result<RunReport> {
        if program.is_for_test() {
            return self.recorded_pass(program, dataset, options);
        }
        self.recorded_pass(&program.clone_for_test(), dataset, options)
    }

    /// Runs a pass. On a cluster a pass is a recorded action: a restarted worker skips it if it was complete.
    fn recorded_pass(
        &mut self,
        program: &Program,
        dataset: &dyn Dataset,
        options: &RunOptions<'_>,
    ) -> Result<RunReport> {
        let trains = program.minimize.is_some() && !program.is_for_test();
        // What `each_batch` collects during an evaluation is not recorded, so such a pass runs again after a restart.
        let is_recorded = trains || options.each_batch.is_none();
        let Some(cluster) = self.cluster.clone().filter(|_| is_recorded) else {
            return match trains && self.ranks.is_some() && !dataset.is_round_robin() {
                // A restarted rank skips the batches of a checkpoint, so they must come in the same order.
                true => self.run_pass(program, &RoundRobinDataset::new(dataset, 1), options),
                false => self.run_pass(program, dataset, options),
            };
        };
        let kind = if trains { ActionKind::Train } else { ActionKind::Evaluate };
        let threads = if options.threads == 0 { dataset.thread_num() } else { options.threads }.max(1);
        let what = format!("program {:016x}, {threads} threads, {}", program.fingerprint(), dataset.describe());
        // Create the tables before the pass begins, so that their errors come first.
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
            // Which thread gets which batch must be deterministic, or a restarted worker could not tell what it has done.
            true if !dataset.is_round_robin() => {
                self.run_pass(program, &RoundRobinDataset::new(dataset, threads), options)?
            }
            _ => self.run_pass(program, dataset, options)?,
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

    fn run_pass(&mut self, program: &Program, dataset: &dyn Dataset, options: &RunOptions<'_>) -> Result<RunReport> {
        let threads = if options.threads == 0 { dataset.thread_num() } else { options.threads }.max(1);
        let known = self.known_threads();
        let (scope, cluster) = (self.scope.clone(), self.cluster.clone());
        let others = self.others();
        let resume = options.resume
            && cluster.is_none()
            && program.minimize.is_some()
            && !std::mem::replace(&mut self.resumed, true);
        let loaded = if resume { std::mem::take(&mut self.loaded_positions) } else { Vec::new() };
        let ranks = self.ranks();
        let prepared = self.prepare(program, threads)?;
        let plan = prepared.plan.clone();
        if let Some(cluster) = &cluster {
            cluster.is_next_turn_of(prepared.turn);
        }
        check_threads(&plan, threads, known)?;
        options.fetch.iter().try_for_each(|&var| plan.check_fetch(var))?;
        if !plan.trains() {
            // Evaluation has to see what others pushed since the last pass; in GEO mode only a flush fetches it.
            plan.communicator().flush()?;
        }
        for thread in &mut prepared.threads[..threads] {
            thread.prepare(&plan, dataset.schema(), options)?;
        }
        let expected = ranks.map_or(threads, |(_, size)| size);
        if !loaded.is_empty() && loaded.len() != expected {
            // The batches of the checkpoint were distributed over another number of threads or ranks.
            return Err(Error::Threads { got: expected, known: loaded.len() });
        }
        if let Some(replicated) = plan.replicated() {
            if !loaded.is_empty() {
                replicated.group().resume_at(prepared.fingerprint, &loaded);
            }
        } else if resume {
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
        let job = Job { servers: cluster.as_deref(), others };
        let ran = pass::run(&plan, &mut prepared.threads[..threads], dataset, options, job, &|positions| {
            let of_ranks = plan.replicated().map(|replicated| replicated.group().batches(program.fingerprint()));
            let positions = of_ranks.unwrap_or(positions);
            let pause = Pause { program, scope: &scope, cluster: cluster.clone(), positions, ranks };
            options.on_pause.map_or(Ok(()), |on_pause| on_pause(&pause))
        });
        if program.is_for_test() {
            scope.end_test(program);
        }
        if matches!(ran, Err(Error::ThreadPanicked { .. })) {
            // The op that panicked had moved buffers out of its arena, so no arena is used again.
            self.prepared.clear();
        }
        ran
    }

    /// Training threads that the rest of the job expects of this worker.
    fn known_threads(&self) -> Option<usize> {
        let of_ranks = self.ranks.as_ref().map(|_| 1);
        self.cluster.as_ref().map(|cluster| cluster.worker().threads as usize).or(of_ranks)
    }

    /// Rank and number of the workers of the job, if there are others.
    fn others(&self) -> Option<(usize, usize)> {
        let of_servers = self.cluster.as_ref().map(|cluster| cluster.worker());
        let of_ranks = self.ranks.as_ref().map(|(group, _)| (group.rank(), group.size()));
        of_servers.map(|worker| (worker.rank as usize, worker.count as usize)).or(of_ranks)
    }

    /// Creates the tables on the servers before an evaluation program runs first: such a program does not know the rule that its
    /// tables are trained with, so the servers create them for the training program.
    fn define_tables(&self, program: &Program) -> Result<()> {
        let (Some(cluster), Some(table_program)) = (&self.cluster, &self.table_program) else { return Ok(()) };
        if !cluster.is_connected() && (program.minimize.is_none() || program.is_for_test()) {
            Plan::compile_on(table_program, &self.scope, cluster)?;
        }
        Ok(())
    }

    /// The compiled program with memory for `threads` threads. It is compiled unless it was compiled before and no object of the
    /// scope has been replaced since.
    fn prepare(&mut self, program: &Program, threads: usize) -> Result<&mut CompiledProgram> {
        let position = self.prepared_at(program, threads)?;
        Ok(&mut self.prepared[position])
    }

    /// The same program by its position among the compiled ones.
    fn prepared_at(&mut self, program: &Program, threads: usize) -> Result<usize> {
        let (fingerprint, generation) = (program.fingerprint(), self.scope.generation());
        self.prepared.retain(|prepared| prepared.scope_generation == generation);
        let position = match self.prepared.iter().position(|prepared| prepared.fingerprint == fingerprint) {
            Some(position) => position,
            None => {
                self.define_tables(program)?;
                let trains = program.minimize.is_some() && !program.is_for_test();
                let resumed = if trains { self.resume_from.lock().take() } else { None };
                if let Some(address) = &resumed {
                    self.load(program, address, LoadOptions::default())?;
                }
                if let (Some(_), Some((group, _))) = (resumed, &self.ranks) {
                    group.resume_at(fingerprint, &std::mem::take(&mut self.loaded_positions));
                }
                let plan = Arc::new(match (&self.cluster, &self.ranks) {
                    (Some(cluster), _) => Plan::compile_on(program, &self.scope, cluster)?,
                    (None, Some((group, settings))) if trains => {
                        Plan::compile_in_group(program, &self.scope, group, *settings)?
                    }
                    (None, _) => Plan::compile(program, &self.scope)?,
                });
                let steps = plan.replicated().map(|replicated| {
                    let steps: Arc<dyn StepOfOthers> = Arc::new(StepsWithoutData::new(plan.clone()));
                    replicated.group().register(fingerprint, Arc::downgrade(&steps));
                    steps
                });
                let scope_generation = self.scope.generation();
                self.prepared.retain(|prepared| prepared.scope_generation == scope_generation);
                self.prepared.push(CompiledProgram {
                    fingerprint,
                    scope_generation,
                    plan,
                    threads: Vec::new(),
                    outside: OutsideState::default(),
                    turn: next_turn(),
                    _steps: steps,
                });
                self.prepared.len() - 1
            }
        };
        self.prepared[position].add_threads(threads);
        Ok(position)
    }
}

/// The record of a complete pass.
#[derive(Serialize, Deserialize)]
struct CompletePass {
    /// Steps that each training thread had taken at the end of the pass.
    ends: Vec<u64>,
    samples: u64,
    steps: u64,
}

/// Fails if this number of training threads does not match what the servers know.
fn check_threads(plan: &Plan, threads: usize, known: Option<usize>) -> Result<()> {
    let is_mismatch = |known: usize| threads > known || (threads < known && plan.communicator().steps_together());
    match known.filter(|&known| plan.trains() && is_mismatch(known)) {
        Some(known) => Err(Error::Threads { got: threads, known }),
        None => Ok(()),
    }
}

/// Fails if there is not enough memory for all first values of a startup program together. Checked before the first value is
/// drawn, because drawing a large layer takes a while.
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
