//! Layers of another library: rows are looked up, also ahead, and gradients are pushed, with servers and among ranks.

use std::sync::Arc;

use openfleet_core::strategy::{Mode, Strategy, StrategyOptions};
use openfleet_dist::Cluster;
use openfleet_engine::op::EmbeddingOptions;
use openfleet_engine::{Executor, Minimize, Net, OutsideGradients, ParamAttr, Returned, Scope, Var};
use openfleet_table::{Initializer, Optimizer, Sgd};
use parking_lot::Mutex;

use crate::harness::{Transport, on_cluster};

const STEPS: u64 = 20;

/// Two tables of rows of 2 floats, and no parameters.
struct Model {
    net: Net,
    tables: [Var; 2],
}

fn model() -> Model {
    let mut net = Net::with_seed(1);
    let vectors = ["wide", "deep"].map(|name| {
        let slot = net.slot(&format!("{name}.ids")).unwrap();
        let table = ParamAttr { name: Some(name.into()), ..ParamAttr::init(Initializer::Constant(0.5)) };
        let vectors = net.embedding(slot, 2, &EmbeddingOptions { table, ..EmbeddingOptions::default() }).unwrap();
        net.mean(vectors).unwrap()
    });
    let loss = net.add(vectors[0], vectors[1]).unwrap();
    Minimize::new(Optimizer::Sgd(Sgd {}), 0.1).minimize(&mut net.main, loss).unwrap();
    let tables = ["wide", "deep"].map(|name| net.main.find(name).unwrap());
    Model { net, tables }
}

fn ids(step: u64, table: u64) -> [u64; 3] {
    [0, 1, 2].map(|draw| openfleet_core::key::mix(step << 16 | table << 8 | draw) % 5)
}

/// Trains with gradients that depend on the rows, and returns the rows that every step saw.
fn train(executor: &mut Executor, looks_ahead: bool) -> Vec<Vec<f32>> {
    let Model { net, tables } = model();
    executor.run_startup(&net.startup).unwrap();
    let mut seen = Vec::new();
    let look_ahead = |executor: &mut Executor, step: u64| {
        let wanted = [0, 1].map(|table| ids(step, table));
        if looks_ahead {
            executor.look_ahead(&net.main, &[(tables[0], &wanted[0]), (tables[1], &wanted[1])]).unwrap();
        }
    };
    look_ahead(executor, 0);
    for step in 0..STEPS {
        look_ahead(executor, step + 1);
        // Each table by a forward of its own.
        let found = [0, 1].map(|table| {
            let ids = ids(step, table as u64);
            executor.look_up(&net.main, &[(tables[table], &ids)], true).unwrap().remove(0)
        });
        let gradients = found.each_ref().map(|found| found.rows.iter().map(|weight| weight * 2.0).collect::<Vec<_>>());
        let rows = (0..2).map(|table| (tables[table], &found[table].keys[..], &gradients[table][..])).collect();
        executor.push_gradients(&net.main, &OutsideGradients { rate_factor: 1.0, rows, dense: vec![] }).unwrap();
        seen.extend(found.map(|found| found.rows));
    }
    seen
}

fn on_one_worker(options: &StrategyOptions, work: impl Fn(&mut Executor) + Sync) {
    on_cluster(options, (1, 2), Transport::Tcp, |cluster: Arc<Cluster>| {
        let mut executor = Executor::on_cluster(Arc::new(Scope::new()), cluster.clone());
        work(&mut executor);
        drop(executor);
        cluster.close().unwrap();
    });
}

#[test]
fn rows_that_are_looked_up_ahead_are_as_new_as_the_mode_promises() {
    let expected = train(&mut Executor::new(Arc::new(Scope::new())), true);
    let geo = StrategyOptions { k_steps: Some(5), ..StrategyOptions::for_mode(Mode::Geo) };
    let exact = [StrategyOptions::for_mode(Mode::Sync), StrategyOptions::for_mode(Mode::HalfAsync), geo];
    for options in exact {
        for looks_ahead in [false, true] {
            let seen = Mutex::new(Vec::new());
            on_one_worker(&options, |executor| *seen.lock() = train(executor, looks_ahead));
            let seen = seen.into_inner().concat();
            // GEO adds the progress of a worker to the server's rows, which rounds.
            let mode = Strategy::resolve(&options).unwrap();
            let is_equal = seen.iter().zip(expected.concat()).all(|(seen, expected)| (seen - expected).abs() < 1e-6);
            assert!(is_equal && seen.len() == expected.concat().len(), "{mode}, {looks_ahead}: {seen:?} {expected:?}");
        }
    }
    // Modes without such a promise push every gradient all the same.
    for mode in [Mode::Async, Mode::Hybrid] {
        let (options, model) = (StrategyOptions::for_mode(mode), model());
        on_one_worker(&options, |executor| {
            train(executor, true);
            let newest = executor.look_up(&model.net.main, &[(model.tables[0], &[0, 1, 2, 3, 4])], false).unwrap();
            assert!(newest[0].rows.iter().all(|weight| weight.abs() < 0.5), "{newest:?}");
        });
    }
}

#[test]
fn a_lookup_of_other_ids_than_those_ahead_pulls_them() {
    let Model { net, tables } = model();
    on_one_worker(&StrategyOptions::for_mode(Mode::Sync), |executor| {
        executor.run_startup(&net.startup).unwrap();
        for step in 0..5 {
            executor.look_ahead(&net.main, &[(tables[0], &[step, 99])]).unwrap();
            let found = executor.look_up(&net.main, &[(tables[0], &[step])], true).unwrap();
            let rows = vec![(tables[0], &found[0].keys[..], &[1.0, 1.0][..])];
            executor.push_gradients(&net.main, &OutsideGradients { rate_factor: 1.0, rows, dense: vec![] }).unwrap();
            let after = executor.look_up(&net.main, &[(tables[0], &[step])], true).unwrap();
            assert_eq!(after[0].rows, [0.4, 0.4]);
        }
    });
}

#[test]
fn rows_that_were_pulled_ahead_are_pulled_again_after_a_step() {
    let Model { net, tables } = model();
    on_one_worker(&StrategyOptions::for_mode(Mode::Sync), |executor| {
        executor.run_startup(&net.startup).unwrap();
        executor.look_ahead(&net.main, &[(tables[0], &[1]), (tables[1], &[1])]).unwrap();
        executor.look_up(&net.main, &[(tables[0], &[1])], true).unwrap();
        // The rows of both tables have arrived; this step changes that of the other.
        let rows = vec![(tables[1], &[1][..], &[1.0, 1.0][..])];
        executor.push_gradients(&net.main, &OutsideGradients { rate_factor: 1.0, rows, dense: vec![] }).unwrap();
        let found = executor.look_up(&net.main, &[(tables[1], &[1])], true).unwrap();
        assert_eq!(found[0].rows, [0.4, 0.4]);
    });
}

#[test]
fn rows_are_put_where_there_are_none() {
    let weights: Vec<f32> = (0..200).map(|at| at as f32).collect();
    let all: Vec<u64> = (0..100).collect();
    let modes = [Mode::Sync, Mode::HalfAsync, Mode::Async, Mode::Hybrid, Mode::Geo];
    for options in modes.map(StrategyOptions::for_mode) {
        let Model { net, tables } = model();
        on_one_worker(&options, |executor| {
            executor.run_startup(&net.startup).unwrap();
            // Rows that exist keep their values.
            executor.look_up(&net.main, &[(tables[0], &[3])], true).unwrap();
            for _ in 0..2 {
                executor.put_rows(&net.main, tables[0], &all, &weights).unwrap();
            }
            let found = executor.look_up(&net.main, &[(tables[0], &all), (tables[1], &[7])], false).unwrap();
            let mut expected = weights.clone();
            expected[6..8].fill(0.5);
            assert_eq!(found[0].rows, expected, "{options:?}");
            assert_eq!(found[1].rows, [0.5, 0.5]);
            assert_eq!(executor.ids(&net.main, tables[0]).unwrap(), all);
            assert!(executor.ids(&net.main, tables[1]).unwrap().is_empty());
            // They train like any others.
            executor.look_up(&net.main, &[(tables[0], &[9])], true).unwrap();
            let rows = vec![(tables[0], &[9][..], &[10.0, 20.0][..])];
            executor.push_gradients(&net.main, &OutsideGradients { rate_factor: 1.0, rows, dense: vec![] }).unwrap();
            let found = executor.look_up(&net.main, &[(tables[0], &[9])], false).unwrap();
            assert_eq!(found[0].rows, [17.0, 17.0], "{options:?}");
        });
    }
}

#[test]
fn only_parameters_that_changed_are_returned() {
    let mut net = Net::with_seed(1);
    let parts = ["one", "other"].map(|name| {
        let attr = ParamAttr { name: Some(name.into()), ..ParamAttr::default() };
        let part = net.parameter("part", &[2], &attr, Initializer::Constant(1.0)).unwrap();
        (part, net.mean(part).unwrap())
    });
    let loss = net.add(parts[0].1, parts[1].1).unwrap();
    Minimize::new(Optimizer::Sgd(Sgd {}), 0.5).minimize(&mut net.main, loss).unwrap();
    for mode in [None, Some(Mode::Sync), Some(Mode::Geo)] {
        let check = |executor: &mut Executor| {
            executor.run_startup(&net.startup).unwrap();
            let names = |executor: &mut Executor, which| {
                let values = executor.parameters(&net.main, which).unwrap();
                values.into_iter().map(|(name, values)| (name, values[0])).collect::<Vec<_>>()
            };
            assert_eq!(names(executor, Returned::Newer).len(), 2, "{mode:?}");
            assert_eq!(names(executor, Returned::Newer), [], "{mode:?}");
            let dense = vec![(parts[1].0, &[1.0, 1.0][..])];
            executor.push_gradients(&net.main, &OutsideGradients { rate_factor: 1.0, rows: vec![], dense }).unwrap();
            assert_eq!(names(executor, Returned::Newer), [("other".to_owned(), 0.5)], "{mode:?}");
            assert_eq!(names(executor, Returned::All).len(), 2, "{mode:?}");
        };
        match mode {
            None => check(&mut Executor::new(Arc::new(Scope::new()))),
            Some(mode) => on_one_worker(&StrategyOptions::for_mode(mode), check),
        }
    }
}
