//! The counter table: every sample pushes -1 to each of its ids, with SGD at rate 1. The final table must be exactly the
//! histogram of the data (floats count exactly below 2^24), otherwise an update was lost or applied twice. Promise P4: one
//! reply in ten is lost, requests are repeated and overtake each other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use openfleet_core::WorkId;
use openfleet_core::strategy::{GeoScale, Mode, ModeSettings, Strategy, StrategyOptions};
use openfleet_dist::communicator::{Communicator, Missing, Remote, Worker, for_mode};
use openfleet_dist::handshake::Secret;
use openfleet_dist::stage::{DenseStage, Lookup, SparseStage};
use openfleet_dist::{Link, ServerConfig, State};
use openfleet_table::{DenseSpec, Initializer, Optimizer, Schedule, Sgd, SparseSpec};
use openfleet_testkit::network::{Faults, Network, Random};

/// Values of the one dense parameter.
const DENSE: usize = 5;
const WORKERS: u32 = 2;
const SERVERS: usize = 2;

pub(crate) fn config() -> ServerConfig {
    ServerConfig { secret: Secret::new("a test's secret"), ..ServerConfig::default() }
}

pub(crate) fn states(count: usize) -> Vec<Arc<State>> {
    (0..count).map(|_| Arc::new(State::new())).collect()
}

/// A table that counts, and a dense parameter that does.
#[allow(clippy::type_complexity)]
pub(crate) fn tables() -> (Vec<(String, SparseSpec)>, Vec<(String, DenseSpec, Vec<f32>)>) {
    let (optimizer, schedule) = (Optimizer::Sgd(Sgd::default()), Schedule::Constant(1.0));
    let sparse = SparseSpec {
        dim: 1,
        optimizer,
        schedule: schedule.clone(),
        regularizer: None,
        initializer: Initializer::Constant(0.0),
        seed: 1,
        shards: 4,
        accessor: Default::default(),
        admission: Default::default(),
        capacity: None,
        non_finite: Default::default(),
        salted: false,
        storage: Default::default(),
    };
    let dense =
        DenseSpec { shape: vec![DENSE], optimizer, schedule, regularizer: None, non_finite: Default::default() };
    (vec![("counts".to_owned(), sparse)], vec![("steps".to_owned(), dense, vec![0.0; DENSE])])
}

/// The counting tables on servers.
pub(crate) fn remote(links: Vec<Link>, worker: Worker, mode: Mode) -> openfleet_dist::Result<Remote> {
    let rule = Strategy::resolve(&StrategyOptions::for_mode(mode)).unwrap().placement();
    let (sparse, dense) = tables();
    Remote::create(links, worker, mode, rule, &sparse, &dense)
}

/// The ids of one sample.
pub(crate) fn sample(seed: u64, worker: u32, step: u64) -> Vec<u64> {
    let mut chance = Random(seed << 40 ^ u64::from(worker) << 32 ^ step);
    let count = 1 + chance.below(6);
    (0..count).map(|_| chance.below(50)).collect()
}

/// One training thread with hand-filled stages.
pub(crate) struct Thread {
    pub sparse: Vec<SparseStage>,
    pub dense: Vec<DenseStage>,
    /// Clips by the global norm.
    pub norm: Option<f32>,
}

impl Thread {
    pub(crate) fn new() -> Self {
        let lookup = Lookup { dim: 1, trained: true, ..Lookup::default() };
        let dense =
            DenseStage { values: vec![0.0; DENSE], gradient: vec![0.0; DENSE], trained: true, ..DenseStage::default() };
        let sparse = SparseStage { lookups: vec![lookup], ..SparseStage::default() };
        Thread { sparse: vec![sparse], dense: vec![dense], norm: None }
    }

    /// Pulls and pushes one sample. The scales undo the division by the number of streams, if there is one.
    pub(crate) fn step(
        &mut self,
        communicator: &dyn Communicator,
        ids: &[u64],
        scales: (f32, f32),
    ) -> openfleet_dist::Result<()> {
        self.fill(ids, scales);
        communicator.pull_sparse(&mut self.sparse, Missing::Create)?;
        communicator.pull_dense(&mut self.dense)?;
        self.push(communicator)
    }

    /// Computes the gradients of one sample.
    pub(crate) fn fill(&mut self, ids: &[u64], (sparse_scale, dense_scale): (f32, f32)) {
        let stage = &mut self.sparse[0];
        stage.unique.start(ids.len());
        stage.unique.add(ids);
        let count = stage.unique.keys().len();
        let lookup = &mut stage.lookups[0];
        lookup.rows.resize(count, 0.0);
        lookup.gradients.clear();
        lookup.gradients.resize(count, 0.0);
        for &at in stage.unique.inverse() {
            lookup.gradients[at as usize] -= sparse_scale;
        }
        self.dense[0].gradient.fill(-dense_scale);
    }

    /// Sends the dense gradient before the rest of the step; every other time after an attempt that is given up.
    fn push_early(&mut self, communicator: &dyn Communicator, work: WorkId) -> openfleet_dist::Result<()> {
        if work.first_step % 3 == 2 {
            let right = std::mem::replace(&mut self.dense[0].gradient, vec![1e6; DENSE]);
            communicator.push_early(work, &self.dense, &[0])?;
            self.dense[0].gradient = right;
            communicator.return_step(0);
            assert_eq!(communicator.next_step(0)?.number, work.first_step);
        }
        communicator.push_early(work, &self.dense, &[0])?;
        // It was encoded: what happens to the gradient now has no effect.
        self.dense[0].gradient.fill(f32::NAN);
        Ok(())
    }

    /// Pushes what was filled in.
    pub(crate) fn push(&mut self, communicator: &dyn Communicator) -> openfleet_dist::Result<()> {
        let step = communicator.next_step(0)?;
        let work = WorkId::step(0, step.number);
        if communicator.pushes_early() && self.norm.is_none() && step.number % 3 != 0 {
            self.push_early(communicator, work)?;
        }
        match self.norm {
            Some(norm) => communicator.push_within_norm(work, &mut self.sparse, &mut self.dense, norm)?,
            None => communicator.push(work, &mut self.sparse, &mut self.dense)?,
        };
        Ok(())
    }
}

/// Fails unless the tables hold the histogram.
pub(crate) fn check(states: &[Arc<State>], samples: impl Iterator<Item = Vec<u64>>, context: &str) {
    check_scaled(states, samples, 1.0, context);
}

/// Fails unless the rows hold the histogram, and the dense parameter a share of the steps.
fn check_scaled(states: &[Arc<State>], samples: impl Iterator<Item = Vec<u64>>, dense_share: f32, context: &str) {
    let (mut expected, mut steps) = (BTreeMap::new(), 0.0);
    for ids in samples {
        ids.iter().for_each(|&id| *expected.entry(id).or_insert(0.0f32) += 1.0);
        steps += dense_share;
    }
    let (mut got, mut dense) = (BTreeMap::new(), Vec::new());
    for state in states {
        state
            .each_row(0, |key, weights, _| {
                assert!(got.insert(key, weights[0]).is_none(), "a row stands on one server");
            })
            .unwrap();
        state.each_block(|_, values| dense.extend_from_slice(values));
    }
    assert_eq!(got, expected, "{context}");
    assert_eq!(dense, [steps; DENSE], "{context}");
}

/// Every mode, with all variants of async and geo.
fn variants(steps: u64) -> Vec<(&'static str, StrategyOptions)> {
    let merged = |merge, independent| {
        let mut options = StrategyOptions::for_mode(Mode::Async);
        options.max_merge_var_num = Some(merge);
        options.independent_recv_thread = Some(independent);
        options.send_queue_size = Some(4);
        if merge > 1 {
            options.send_wait_times = Some(0);
        }
        options
    };
    let geo = |scale, windows| {
        let mut options = StrategyOptions::for_mode(Mode::Geo);
        options.geo_scale = Some(scale);
        options.k_steps = Some((steps / windows) as i64);
        options
    };
    let narrow = |mode| {
        let mut options = StrategyOptions::for_mode(mode);
        options.wire_bits = Some(16);
        options
    };
    let old_rows = |mode| {
        let mut options = StrategyOptions::for_mode(mode);
        options.row_staleness = Some(3);
        options
    };
    vec![
        ("async, old rows", old_rows(Mode::Async)),
        ("hybrid, old rows", old_rows(Mode::Hybrid)),
        ("sync", StrategyOptions::for_mode(Mode::Sync)),
        // Few ids occur often in a sample, so their counts are exact in 16 bits.
        ("sync, 16 bits", narrow(Mode::Sync)),
        ("hybrid, 16 bits", narrow(Mode::Hybrid)),
        ("sync, measured", StrategyOptions::for_mode(Mode::Sync)),
        ("half_async", StrategyOptions::for_mode(Mode::HalfAsync)),
        ("async, merge 1, receiver", merged(1, true)),
        ("async, merge 1", merged(1, false)),
        ("async, merge 3, receiver", merged(3, true)),
        ("async, merge 3", merged(3, false)),
        ("hybrid", StrategyOptions::for_mode(Mode::Hybrid)),
        ("geo, average", {
            let mut options = geo(GeoScale::Average, 4);
            (options.geo_dense_steps, options.wire_bits) = (Some(3), Some(32));
            options
        }),
        ("geo, sum", geo(GeoScale::Sum, 20)),
        // Each window of a pass halves what is left of a row, once for two workers: four of them are exact in a float.
        ("geo, mean", geo(GeoScale::Mean, 4)),
    ]
}

/// Trains `passes` times `steps` samples per worker; returns how many pushes were made and how many were repeats.
fn count(seed: u64, name: &str, options: &StrategyOptions, (passes, steps): (u64, u64)) -> (u64, u64) {
    let strategy = Strategy::resolve(options).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let states = states(SERVERS);
    let network = Network::new(seed, Faults::BAD, config(), &states);
    // Sync divides by the workers; two of them, so that halves are exact. Hybrid's sparse part is not divided.
    let both = WORKERS as f32;
    let scales = match strategy.mode() {
        Mode::Sync => (both, both),
        Mode::Hybrid => (1.0, both),
        _ => (1.0, 1.0),
    };
    let strategy = &strategy;
    std::thread::scope(|scope| {
        for rank in 0..WORKERS {
            let links = network.links(runtime.handle(), &network.client(rank, 1));
            scope.spawn(move || {
                let worker = Worker { rank, count: WORKERS, threads: 1 };
                let remote = remote(links, worker, strategy.mode()).unwrap();
                let (sparse, dense) = tables();
                let communicator = for_mode(remote, strategy, &sparse, &dense).unwrap();
                let mut thread = Thread::new();
                // No gradient is longer: the step is measured, but not changed.
                thread.norm = name.ends_with("measured").then_some(1e6);
                for pass in 0..passes {
                    communicator.begin(0).unwrap();
                    for step in pass * steps..(pass + 1) * steps {
                        thread.step(communicator.as_ref(), &sample(seed, rank, step), scales).unwrap();
                        if name.starts_with("sync") {
                            // Both workers have counted it. Narrow replies have differences with 8 bits, so they are not exact.
                            let expected = both * (step + 1) as f32;
                            let close = |value: &f32| (value - expected).abs() < 1e-4 * expected;
                            assert!(thread.dense[0].values.iter().all(close), "{name}: {:?}", thread.dense[0].values);
                        }
                    }
                    communicator.finish(0).unwrap();
                }
                communicator.close().unwrap();
            });
        }
    });
    let samples = (0..WORKERS).flat_map(|rank| (0..passes * steps).map(move |step| sample(seed, rank, step)));
    // The average of the workers' steps: half of them all.
    let dense_share = if name == "geo, average" { 0.5 } else { 1.0 };
    check_scaled(&states, samples, dense_share, &format!("{name}, seed {seed}"));
    let events = network.events();
    for (what, event) in [("lost", &events.lost), ("twice", &events.twice), ("overtaken", &events.overtaken)] {
        assert!(event.load(Relaxed) > 0, "{name}, seed {seed}: no frame was {what}, so nothing was shown");
    }
    assert!(states.iter().all(|state| *state.stopping().borrow()), "all have left, so the servers end");
    let repeats = states.iter().map(|state| state.status().repeats).sum();
    let pushes = match strategy.settings() {
        // One exchange per window, and one at the end of each pass.
        ModeSettings::Geo(plan) => passes * (steps / plan.k_steps + 1),
        _ => passes * steps,
    };
    (u64::from(WORKERS) * pushes, repeats)
}

/// `OPENFLEET_COUNTER_SEEDS` sets the number of seeds; 200 of them are more than a million pushes.
#[test]
fn counts_equal_the_histogram_in_every_mode_whatever_the_network_does() {
    let seeds = std::env::var("OPENFLEET_COUNTER_SEEDS").ok().map(|seeds| seeds.parse::<u64>().unwrap());
    let (seeds, steps) = seeds.map_or((3, (2, 40)), |seeds| (seeds, (2, 200)));
    let (mut pushes, mut repeats) = (0, 0);
    for seed in 0..seeds {
        for (name, options) in variants(steps.1) {
            let (pushed, repeated) = count(seed, name, &options, steps);
            pushes += pushed;
            repeats += repeated;
        }
    }
    assert!(repeats > 0, "no push was ever repeated, so nothing was shown");
    println!("{pushes} pushes, {repeats} of which a server saw again");
}
