//! Servers in this process with a checkpoint in memory, and workers with hand-filled stages.

use std::collections::BTreeMap;
use std::sync::Arc;

use openfleet_core::WorkId;
use openfleet_core::placement::BUCKET_COUNT;
use openfleet_core::strategy::{Mode, Strategy, StrategyOptions};
use openfleet_dist::communicator::{Communicator, Missing, Worker};
use openfleet_dist::server::ActionKind;
use openfleet_dist::stage::{DenseStage, Lookup, SparseStage};
use openfleet_dist::{Cluster, Link, State};
use openfleet_table::checkpoint::{Manifest, Storage, Work, each_row, read_dense, read_manifest};
use openfleet_table::{
    Accessor, Adagrad, Adam, CtrOptions, DenseSpec, Initializer, Optimizer, Schedule, Sgd, SparseSpec,
};
use openfleet_testkit::storage::OneStorage;

/// Values of the dense parameter: enough to be split into blocks.
pub(crate) const DENSE: usize = 3 * 8192;

pub(crate) type Tables = (Vec<(String, SparseSpec)>, Vec<(String, DenseSpec, Vec<f32>)>);

pub(crate) fn sparse(dim: usize, optimizer: Optimizer, accessor: Accessor) -> SparseSpec {
    SparseSpec {
        dim,
        optimizer,
        schedule: Schedule::Constant(0.1),
        regularizer: None,
        initializer: Initializer::Uniform { low: -1.0, high: 1.0 },
        seed: 3,
        shards: 4,
        accessor,
        admission: Default::default(),
        capacity: None,
        non_finite: Default::default(),
        salted: false,
        storage: Default::default(),
    }
}

pub(crate) fn dense(shape: &[usize], optimizer: Optimizer) -> DenseSpec {
    let schedule = Schedule::Constant(0.1);
    DenseSpec { shape: shape.to_vec(), optimizer, schedule, regularizer: None, non_finite: Default::default() }
}

/// Two tables with state, one of them with shows and clicks, and two parameters.
pub(crate) fn tables() -> Tables {
    let adam = Optimizer::Adam(Adam::default());
    let ctr = Accessor::Ctr(CtrOptions { embedx_threshold: 0.15, ..CtrOptions::default() });
    let sparse = vec![
        ("emb/wide".to_owned(), sparse(3, adam, Accessor::Plain)),
        ("ctr".to_owned(), sparse(2, Optimizer::Adagrad(Adagrad::default()), ctr)),
    ];
    let dense = vec![
        ("fc.w".to_owned(), dense(&[DENSE / 4, 4], adam), (0..DENSE).map(|at| at as f32 / 1e4).collect()),
        ("fc.b".to_owned(), dense(&[4], Optimizer::Sgd(Sgd::default())), vec![0.5; 4]),
    ];
    (sparse, dense)
}

/// A table that counts.
pub(crate) fn counters() -> Tables {
    let mut counts = sparse(1, Optimizer::Sgd(Sgd::default()), Accessor::Plain);
    (counts.schedule, counts.initializer) = (Schedule::Constant(1.0), Initializer::Constant(0.0));
    let mut steps = dense(&[5], Optimizer::Sgd(Sgd::default()));
    steps.schedule = Schedule::Constant(1.0);
    (vec![("counts".to_owned(), counts)], vec![("steps".to_owned(), steps, vec![0.0; 5])])
}

pub(crate) fn servers(count: usize, storage: &Arc<dyn Storage>) -> Vec<Arc<State>> {
    (0..count).map(|_| Arc::new(State::with_stores(Arc::new(OneStorage(storage.clone()))))).collect()
}

pub(crate) fn strategy(mode: Mode) -> Strategy {
    Strategy::resolve(&StrategyOptions::for_mode(mode)).unwrap()
}

pub(crate) fn cluster(states: &[Arc<State>], rank: u32, count: u32, mode: Mode) -> Cluster {
    let links = states.iter().map(|state| Link::in_process("server", state.clone(), rank)).collect();
    Cluster::new(links, Worker { rank, count, threads: 1 }, strategy(mode))
}

/// One training thread.
pub(crate) struct Thread {
    sparse: Vec<SparseStage>,
    dense: Vec<DenseStage>,
}

impl Thread {
    pub(crate) fn new(tables: &Tables) -> Self {
        let lookups = tables.0.iter().enumerate();
        let lookups =
            lookups.map(|(table, (_, spec))| Lookup { table, dim: spec.dim, trained: true, ..Lookup::default() });
        let dense = tables.1.iter().enumerate().map(|(table, (_, _, values))| DenseStage {
            table,
            values: vec![0.0; values.len()],
            gradient: vec![0.0; values.len()],
            trained: true,
            ..DenseStage::default()
        });
        Thread {
            sparse: vec![SparseStage { lookups: lookups.collect(), ..SparseStage::default() }],
            dense: dense.collect(),
        }
    }

    /// Pulls some keys and pushes the gradient `gradient` once per occurrence of a key.
    pub(crate) fn step(&mut self, communicator: &dyn Communicator, keys: &[u64], gradient: f32) {
        let stage = &mut self.sparse[0];
        stage.unique.start(keys.len());
        stage.unique.add(keys);
        let count = stage.unique.keys().len();
        for lookup in &mut stage.lookups {
            lookup.rows.resize(count * lookup.dim, 0.0);
            lookup.gradients.clear();
            lookup.gradients.resize(count * lookup.dim, 0.0);
            for &at in stage.unique.inverse() {
                lookup.gradients[at as usize * lookup.dim..][..lookup.dim].iter_mut().for_each(|g| *g += gradient);
            }
        }
        communicator.pull_sparse(&mut self.sparse, Missing::Create).unwrap();
        communicator.pull_dense(&mut self.dense).unwrap();
        self.dense.iter_mut().for_each(|stage| stage.gradient.fill(gradient));
        let step = communicator.next_step(0).unwrap();
        communicator.push(WorkId::step(0, step.number), &mut self.sparse, &mut self.dense).unwrap();
    }
}

/// Trains alone for some steps, in sync mode. A resumed job replays its script: a complete pass is skipped.
pub(crate) fn train(cluster: &Cluster, tables: &Tables, steps: std::ops::Range<u64>) {
    let begun = cluster.begin_action(ActionKind::Train, format!("{steps:?}")).unwrap();
    if let Some(ends) = begun.recorded::<Vec<u64>>() {
        return cluster.skip_pass(&ends).unwrap();
    }
    let communicator = cluster.communicator(&tables.0, &tables.1).unwrap();
    let mut thread = Thread::new(tables);
    communicator.begin(0).unwrap();
    for step in steps {
        let keys: Vec<u64> = (0..40).map(|at| (step * 17 + at * at * 7919) % 500).collect();
        thread.step(communicator.as_ref(), &keys, 0.01 * (1 + step % 5) as f32);
    }
    communicator.finish(0).unwrap();
    cluster.complete_action(begun, &cluster.thread_positions().unwrap(), Vec::new()).unwrap();
}

type Bits = (u32, Vec<u32>, Vec<u32>, Option<(u32, u32, u32, u32, bool)>);

/// Everything in a checkpoint, bit by bit, independent of who wrote it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Content {
    pub rows: BTreeMap<(String, u64), Bits>,
    pub dense: BTreeMap<String, (Vec<u32>, Vec<u32>, u64)>,
    pub steps: Vec<u64>,
    pub work: Work,
}

pub(crate) fn content(storage: &dyn Storage) -> openfleet_table::Result<(Manifest, Content)> {
    let manifest = read_manifest(storage)?;
    let bits = |floats: &[f32]| floats.iter().map(|float| float.to_bits()).collect::<Vec<u32>>();
    let mut rows = BTreeMap::new();
    for table in &manifest.sparse {
        each_row(storage, &manifest, table, 0..BUCKET_COUNT, |row| {
            let ctr = row
                .ctr
                .map(|c| (c.show.to_bits(), c.click.to_bits(), c.delta_score.to_bits(), c.unseen_days, c.has_long));
            let row_bits = (row.stamp, bits(row.weights), bits(row.state), ctr);
            assert!(rows.insert((table.name.clone(), row.key), row_bits).is_none(), "a row is saved once");
            Ok(())
        })?;
    }
    let dense = read_dense(storage, &manifest)?;
    let dense = dense.into_iter().map(|(name, v)| (name, (bits(&v.values), bits(&v.state), v.step))).collect();
    let steps = manifest.sparse.iter().map(|table| table.step).collect();
    let mut work = manifest.work.clone();
    // The number of passes does not matter.
    work.groups.iter_mut().for_each(|group| group.left.clear());
    Ok((manifest, Content { rows, dense, steps, work }))
}
