//! Jobs that are interrupted and resume from their checkpoint: every sample is trained exactly once.
//!
//! Each sample pushes -1 to each of its ids with SGD at rate 1, so a row of the table counts its id.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use openfleet_core::strategy::{Mode, Strategy, StrategyOptions};
use openfleet_core::{Field, FieldKind, Schema};
use openfleet_dist::communicator::Worker;
use openfleet_dist::{Cluster, Link, LoadOptions, Resume, SaveOptions, State};
use openfleet_engine::dataset::{DatasetConfig, Format, MultiSlot, QueueDataset, RoundRobinDataset};
use openfleet_engine::op::EmbeddingOptions;
use openfleet_engine::{DType, Executor, Feed, Minimize, Net, ParamAttr, Pause, RowLife, RunOptions, Scope, Var};
use openfleet_table::{Accessor, CtrOptions, Initializer, Optimizer, Sgd};
use tempfile::TempDir;

use crate::harness::{Transport, on_cluster, trained_values};

const WORKERS: u32 = 2;
const ROWS: u64 = 200;
const BATCH: usize = 5;
const EPOCHS: u64 = 2;

/// A table whose rows count their ids.
fn counter() -> Net {
    let mut net = Net::with_seed(1);
    let slot = net.slot("id").unwrap();
    let zeros = ParamAttr { name: Some("count".into()), ..ParamAttr::init(Initializer::Constant(0.0)) };
    let rows = net.embedding(slot, 1, &EmbeddingOptions { table: zeros, ..EmbeddingOptions::default() }).unwrap();
    let all = net.reduce_sum(rows, &[], false).unwrap();
    let loss = net.scale(all, -1.0, 0.0).unwrap();
    Minimize::new(Optimizer::Sgd(Sgd::default()), 1.0).minimize(&mut net.main, loss).unwrap();
    net
}

/// One file per worker, and how often each id occurs in all of them.
fn data(directory: &TempDir) -> (Vec<PathBuf>, BTreeMap<u64, u64>) {
    let mut counts = BTreeMap::new();
    let files = (0..WORKERS).map(|rank| {
        let lines: String = (0..ROWS)
            .map(|row| {
                let ids: Vec<u64> = (0..row % 3).map(|at| (row * 7 + at * 11 + u64::from(rank)) % 23).collect();
                ids.iter().for_each(|&id| *counts.entry(id).or_insert(0) += 1);
                let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
                format!("{} {}\n", ids.len(), ids.join(" "))
            })
            .collect();
        let path = directory.path().join(format!("{rank}.txt"));
        std::fs::write(&path, lines).unwrap();
        path
    });
    let files = files.collect();
    (files, counts)
}

/// One run of the job between two interruptions.
struct JobRun<'a> {
    files: &'a [PathBuf],
    threads: u32,
    strategy: Strategy,
    checkpoint: &'a Path,
    resume: bool,
    /// Stops without leaving after this many saves; 0 means at the end of the data.
    saves: u64,
}

impl JobRun<'_> {
    fn run(&self) -> Vec<Arc<State>> {
        let states: Vec<Arc<State>> = (0..2).map(|_| Arc::new(State::new())).collect();
        if self.resume {
            states
                .iter()
                .for_each(|state| drop(state.resume_from(self.checkpoint.to_str().unwrap(), Resume::Run).unwrap()));
        }
        let (stop, saved) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for rank in 0..WORKERS {
                let (states, stop, saved) = (&states, &stop, &saved);
                scope.spawn(move || self.work(rank, states, stop, saved));
            }
        });
        states
    }

    fn work(&self, rank: u32, states: &[Arc<State>], stop: &AtomicBool, saved: &AtomicU64) {
        let link =
            |(server, state): (usize, &Arc<State>)| Link::in_process(&format!("server {server}"), state.clone(), rank);
        let links = states.iter().enumerate().map(link).collect();
        let worker = Worker { rank, count: WORKERS, threads: self.threads };
        let cluster = Arc::new(Cluster::new(links, worker, self.strategy));
        let net = counter();
        let mut executor = Executor::on_cluster(Arc::new(Scope::new()), cluster.clone());
        executor.run_startup(&net.startup).unwrap();
        let schema = Schema::new(vec![Field::new("id", FieldKind::Ids)]).unwrap();
        let config = DatasetConfig::new(schema, Format::MultiSlot(MultiSlot::default()))
            .files([self.files[rank as usize].clone()])
            .batch_size(BATCH)
            .thread_num(1);
        let dataset = QueueDataset::new(config).unwrap();
        let on_pause = |pause: &Pause<'_>| {
            pause.save(self.checkpoint.to_str().unwrap(), &SaveOptions::default())?;
            if saved.fetch_add(1, Ordering::Relaxed) + 1 == self.saves {
                stop.store(true, Ordering::Relaxed);
            }
            Ok(())
        };
        for _ in 0..EPOCHS {
            let options = RunOptions {
                threads: self.threads as usize,
                stop: Some(stop),
                resume: true,
                pause_every: if rank == 0 { 4 } else { 0 },
                on_pause: Some(&on_pause),
                ..RunOptions::default()
            };
            executor
                .train_from_dataset(&net.main, &RoundRobinDataset::new(&dataset, self.threads as usize), &options)
                .unwrap();
        }
        cluster.close().unwrap();
    }
}

#[test]
fn every_sample_counts_once_however_often_the_job_is_interrupted() {
    for (mode, threads) in
        [(Mode::Sync, 1), (Mode::Sync, 2), (Mode::HalfAsync, 1), (Mode::Async, 1), (Mode::Async, 2), (Mode::Hybrid, 1)]
    {
        let directory = tempfile::tempdir().unwrap();
        let (files, counts) = data(&directory);
        let checkpoint = directory.path().join("checkpoint");
        let strategy = Strategy::resolve(&StrategyOptions::for_mode(mode)).unwrap();
        let job_run =
            |resume, saves| JobRun { files: &files, threads, strategy, checkpoint: &checkpoint, resume, saves };
        job_run(false, 1).run();
        job_run(true, 2).run();
        let rows = trained_values(&job_run(true, 0).run()).rows;
        // In sync mode a step is the mean over all streams, and all streams have the same number of steps.
        let mean = if mode == Mode::Sync { (WORKERS * threads) as f32 } else { 1.0 };
        for (id, count) in counts {
            let got = rows.get(&id).map_or(0.0, |row| row[0]) * mean;
            assert_eq!(got, (EPOCHS * count) as f32, "id {id} in {mode}, {threads} threads");
        }
    }
}

/// Shows and clicks are sent in every mode that pushes gradients, and are summed, not averaged.
#[test]
fn servers_count_the_shows_and_clicks_of_all_workers() {
    for mode in [Mode::Sync, Mode::HalfAsync, Mode::Async, Mode::Hybrid] {
        let directory = tempfile::tempdir().unwrap();
        let checkpoint = directory.path().join("checkpoint");
        let options = StrategyOptions::for_mode(mode);
        on_cluster(&options, (WORKERS, 2), Transport::InProcess, |cluster| {
            let (net, loss) = counting();
            let rank = cluster.worker().rank;
            let mut executor = Executor::on_cluster(Arc::new(Scope::new()), cluster.clone());
            executor.run_startup(&net.startup).unwrap();
            for step in 0..10u64 {
                let feed = Feed::new().slot("id", &[&[step % 3], &[100]]).unwrap();
                let feed = feed.floats("show", 1, vec![1.0, 2.0]).unwrap().ints("click", 1, &[1, 0]).unwrap();
                executor.run(&net.main, feed, &[loss]).unwrap();
            }
            // A worker sends its queued pushes before it saves, so the last save has everything.
            for saves in [1, 0] {
                if rank == saves {
                    executor.save(&net.main, checkpoint.to_str().unwrap(), &SaveOptions::default()).unwrap();
                }
                cluster.barrier().unwrap();
            }
        });
        let (net, _) = counting();
        let mut alone = Executor::new(Arc::new(Scope::new()));
        alone.load(&net.main.clone_for_test(), checkpoint.to_str().unwrap(), LoadOptions::default()).unwrap();
        let table = alone.scope().sparse("table").unwrap();
        let counted = |key| table.read_row(key, |row| row.ctr.map(|ctr| (ctr.show, ctr.click))).flatten();
        let workers = WORKERS as f32;
        assert_eq!(counted(100), Some((20.0 * workers, 0.0)), "{mode}");
        assert_eq!(counted(0), Some((4.0 * workers, 4.0 * workers)), "{mode}");
        assert_eq!(counted(2), Some((3.0 * workers, 3.0 * workers)), "{mode}");
    }
}

/// A table that counts shows and clicks.
fn counting() -> (Net, Var) {
    let mut net = Net::with_seed(3);
    let slot = net.slot("id").unwrap();
    net.data("show", &[-1, 1], DType::F32).unwrap();
    net.data("click", &[-1, 1], DType::I64).unwrap();
    let counts = Some(("show".into(), "click".into()));
    let rows = RowLife { accessor: Accessor::Ctr(CtrOptions::default()), counts, ..RowLife::default() };
    let options = EmbeddingOptions { table: ParamAttr::named("table"), rows, ..EmbeddingOptions::default() };
    let row = net.embedding(slot, 2, &options).unwrap();
    let loss = net.mean(row).unwrap();
    Minimize::new(Optimizer::Sgd(Sgd::default()), 0.1).minimize(&mut net.main, loss).unwrap();
    (net, loss)
}
