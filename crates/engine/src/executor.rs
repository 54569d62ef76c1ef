//! Runs programs: one batch at a time, or a whole dataset on several threads.
//!
//! An executor compiles each program once and keeps the plan and the threads' memory for the next call. What the threads do
//! with a dataset is in `pass.rs`. Nothing is printed here: whoever asks for progress hands in a function.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use openfleet_core::{Batch, WorkId};
use openfleet_dist::Cluster;
use openfleet_dist::communicator::Step;
use openfleet_dist::server::ActionKind;
use serde::{Deserialize, Serialize};

use crate::arena::Arena;
use crate::checkpoint::{set_states, states};
use crate::dataset::{Dataset, Dealt, Progress};
use crate::error::{Error, Result};
use crate::feed::Feed;
use crate::op::Op;
use crate::pass::{self, Thread};
use crate::plan::Plan;
use crate::program::{Program, Var};
use crate::scope::Scope;
use crate::tensor::{Tensor, can_be_had, room_for};

/// Runs programs on the values of one scope.
pub struct Executor {
    scope: Arc<Scope>,
    /// Where the tables are, unless in the scope.
    cluster: Option<Arc<Cluster>>,
    prepared: Vec<Prepared>,
    /// Batches that each thread had done when the checkpoint was saved that was loaded last.
    pub(crate) loaded_positions: Vec<u64>,
    /// Whether those, or the servers', were gone on from: once is enough.
    pub(crate) resumed: bool,
    /// The program whose tables the servers make, unless another one that trains comes first.
    defining: Option<Arc<Program>>,
}

/// A compiled program with the memory of its threads.
struct Prepared {
    fingerprint: u64,
    scope_generation: u64,
    plan: Arc<Plan>,
    threads: Vec<Thread>,
    /// Whose turn it is at the servers ([`Cluster::is_next_turn_of`]).
    turn: u64,
}

/// A number that no other compiled program of this process has.
fn fresh_turn() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What `train_from_dataset` and `infer_from_dataset` should do beside training.
#[derive(Clone, Copy, Default)]
pub struct RunOptions<'a> {
    /// Training threads; 0 takes the dataset's.
    pub threads: usize,
    /// Variables to show.
    pub fetch: &'a [Var],
    /// What to call them, one text each; their names where it is shorter than the list.
    pub fetch_info: &'a [&'a str],
    /// Show them each time the first thread has done this many batches; 0 never.
    pub print_period: u64,
    /// Who looks at them.
    pub observer: Option<&'a (dyn Fn(&Observation) + Sync)>,
    /// Who looks at every batch, on the thread that ran it.
    pub each_batch: Option<&'a EachBatch<'a>>,
    /// Ends the run between two batches.
    pub stop: Option<&'a AtomicBool>,
    /// Measures each op.
    pub debug: bool,
    /// In one process: skips the batches that the checkpoint which was loaded last has learnt from. The dataset has to give its
    /// batches as it did before ([`Dealt`]). With servers this needs no option: a restarted worker
    /// skips what they have applied.
    pub resume: bool,
    /// All threads pause each time every one of them has done this many batches more; 0 never.
    pub pause_every: u64,
    /// What is done in a pause.
    pub on_pause: Option<&'a OnPause<'a>>,
}

/// A function that is called while no thread of this worker trains.
pub type OnPause<'a> = dyn Fn(&Pause<'_>) -> Result<()> + Sync + 'a;

/// No thread of this worker trains: what it has done can be saved.
pub struct Pause<'a> {
    pub(crate) program: &'a Program,
    pub(crate) scope: &'a Scope,
    pub(crate) cluster: Option<Arc<Cluster>>,
    /// Batches that each thread has done, over the life of what it trains.
    pub positions: Vec<u64>,
}

/// A function that is shown every batch.
pub type EachBatch<'a> = dyn Fn(&BatchView<'_>) -> Result<()> + Sync + 'a;

/// What an observer sees.
#[derive(Debug, Clone)]
pub struct Observation {
    /// Batches done by the first thread.
    pub step: u64,
    /// The fetched values of its last batch.
    pub values: Vec<Tensor>,
    /// What to call them: the texts of `fetch_info`, or their names.
    pub info: Vec<String>,
    /// Rows done by all threads.
    pub samples: u64,
    /// Since the run began.
    pub elapsed: Duration,
    /// Time all threads together have waited for data, and for servers.
    pub waited: Duration,
    /// How far the reading is.
    pub progress: Progress,
}

/// A batch just run, for whoever wants more than fetched values now and then.
pub struct BatchView<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) arena: &'a Arena,
    /// The batch as it was fed.
    pub batch: &'a Batch,
}

impl BatchView<'_> {
    /// A copy of a variable's value.
    pub fn fetch(&self, var: Var) -> Result<Tensor> {
        self.plan.fetch(self.arena, self.batch, var)
    }
}

/// What a run over a dataset did.
#[derive(Debug, Clone, Default)]
pub struct RunReport {
    /// Rows.
    pub samples: u64,
    /// Batches.
    pub steps: u64,
    /// From the first read to the last push.
    pub elapsed: Duration,
    /// Time all threads together waited for data, and for servers.
    pub waited: Duration,
    /// Bad lines that were skipped.
    pub skipped_lines: u64,
    /// Gradients that were refused because they were not finite: a row of a sparse table, or a whole parameter.
    pub refused_gradients: u64,
    /// Whether `stop` ended it before the data did.
    pub stopped: bool,
    /// Whether the whole pass was skipped, because it was complete before this worker was restarted. `samples` and `steps`
    /// are those of the pass.
    pub skipped: bool,
    /// Batches that were skipped, because the servers had applied them before this worker was restarted.
    pub skipped_steps: u64,
    /// Rows of those batches.
    pub skipped_samples: u64,
    /// With `debug`: op and time of all threads, most first.
    pub profile: Vec<(String, Duration)>,
}

impl RunReport {
    /// Rows a second.
    pub fn samples_per_second(&self) -> f64 {
        self.samples as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
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
            defining: None,
        }
    }

    /// An executor whose tables stand on servers; the scope has first values and states.
    pub fn on_cluster(scope: Arc<Scope>, cluster: Arc<Cluster>) -> Self {
        Executor { cluster: Some(cluster), ..Executor::new(scope) }
    }

    /// The program that the job trains: the servers make their tables for it, even if another one is evaluated first.
    #[must_use]
    pub fn with_tables_of(self, program: Arc<Program>) -> Self {
        Executor { defining: Some(program), ..self }
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
        room_for_all(startup)?;
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
                    .map_err(|source| crate::checkpoint::at("loading", "the states of a worker", source))?;
                set_states(program, &self.scope, saved)?;
            }
            if !trains {
                self.scope.end_test(program);
            }
            let CompletePass { samples, steps, .. } = complete;
            return Ok(RunReport { samples, steps, skipped: true, ..RunReport::default() });
        }
        let report = match trains {
            // Which thread gets a batch must not depend on chance, or a restarted worker could not tell what it has done.
            true if !dataset.is_dealt() => self.pass_over(program, &Dealt::new(dataset, threads), options)?,
            _ => self.pass_over(program, dataset, options)?,
        };
        if !report.stopped {
            let ends = if trains { cluster.thread_positions()? } else { Vec::new() };
            let (samples, steps) = (report.samples + report.skipped_samples, report.steps + report.skipped_steps);
            let saved = openfleet_table::checkpoint::encode_states(&states(program, &self.scope, &[]))
                .map_err(|source| crate::checkpoint::at("saving to", "the states of a worker", source))?;
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
        let (Some(cluster), Some(defining)) = (&self.cluster, &self.defining) else { return Ok(()) };
        if !cluster.is_connected() && (program.minimize.is_none() || program.is_for_test()) {
            Plan::compile_on(defining, &self.scope, cluster)?;
        }
        Ok(())
    }

    fn prepare(&mut self, program: &Program, threads: usize) -> Result<&mut Prepared> {
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
                self.prepared.push(Prepared {
                    fingerprint,
                    scope_generation,
                    plan,
                    threads: Vec::new(),
                    turn: fresh_turn(),
                });
                self.prepared.len() - 1
            }
        };
        let prepared = &mut self.prepared[position];
        while prepared.threads.len() < threads {
            prepared.threads.push(Thread::new(&prepared.plan));
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
fn room_for_all(startup: &Program) -> Result<()> {
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
    room_for(name, dims, size_of::<f32>(), "")?;
    if can_be_had(total) {
        return Ok(());
    }
    let (name, dims) = ((*name).clone(), dims.clone());
    Err(Error::NoMemory { name, dims, copies: "with all other parameters its ", bytes: total.to_string() })
}
