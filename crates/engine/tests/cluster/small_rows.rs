//! Rows with weights of 16 bits and one float of state: servers give the rows of one process, to the bit.

use std::sync::Arc;

use openfleet_core::error::report;
use openfleet_core::strategy::{Mode, StrategyOptions};
use openfleet_engine::{Executor, Minimize, Scope};
use openfleet_table::{Optimizer, RowStorage, RowwiseAdagrad};

use crate::harness::{TrainedValues, Transport, feed, model_with_rows, on_cluster, trained_values, values_of};

fn minimize() -> Minimize {
    Minimize::new(Optimizer::RowwiseAdagrad(RowwiseAdagrad::default()), 0.05)
}

/// One process.
fn alone(storage: RowStorage, steps: u64) -> TrainedValues {
    let model = model_with_rows(&minimize(), storage);
    let mut executor = Executor::new(Arc::new(Scope::new()));
    executor.run_startup(&model.net.startup).unwrap();
    (0..steps).for_each(|step| drop(executor.run(&model.net.main, feed(step, 0..1), &[model.loss]).unwrap()));
    values_of(executor.scope())
}

/// Workers and servers; each worker has its own batches.
fn together(mode: Mode, workers: u32, servers: usize, transport: Transport, steps: u64) -> TrainedValues {
    let states = on_cluster(&StrategyOptions::for_mode(mode), (workers, servers), transport, |cluster| {
        let batch = u64::from(cluster.worker().rank);
        let model = model_with_rows(&minimize(), RowStorage::Bfloat16);
        let mut executor = Executor::on_cluster(Arc::new(Scope::new()), cluster);
        executor.run_startup(&model.net.startup).unwrap();
        for step in 0..steps {
            executor.run(&model.net.main, feed(step, batch..batch + 1), &[model.loss]).unwrap();
        }
    });
    trained_values(&states)
}

#[test]
fn one_worker_in_sync_mode_has_the_bits_of_one_process_whatever_the_number_of_servers() {
    let expected = alone(RowStorage::Bfloat16, 50);
    assert!(expected.rows.values().flatten().all(|weight| weight.to_bits() & 0xffff == 0), "16 bits");
    assert_ne!(expected.rows, alone(RowStorage::Float32, 50).rows);
    for (servers, transport) in [(1, Transport::InProcess), (3, Transport::Tcp)] {
        assert_eq!(together(Mode::Sync, 1, servers, transport, 50), expected, "{servers} servers");
    }
}

#[test]
fn workers_in_sync_mode_get_the_same_bits_in_every_run_and_from_any_number_of_servers() {
    let first = together(Mode::Sync, 3, 2, Transport::InProcess, 40);
    assert_eq!(first, together(Mode::Sync, 3, 2, Transport::Tcp, 40));
    assert_eq!(first, together(Mode::Sync, 3, 5, Transport::InProcess, 40));
}

#[test]
fn every_mode_with_servers_but_geo_trains_16_bit_rows() {
    for mode in [Mode::HalfAsync, Mode::Async, Mode::Hybrid] {
        let trained = together(mode, 2, 2, Transport::InProcess, 30);
        let initial = alone(RowStorage::Bfloat16, 1);
        assert!(trained.rows.len() > 20, "{mode:?}");
        let moved = initial.rows.iter().filter(|(key, row)| trained.rows.get(key) != Some(row)).count();
        assert!(moved > 3, "{mode:?}: {moved} rows changed");
        assert!(trained.rows.values().flatten().all(|weight| weight.to_bits() & 0xffff == 0), "{mode:?}");
    }
}

#[test]
fn geo_mode_refuses_16_bit_rows_by_name() {
    on_cluster(&StrategyOptions::for_mode(Mode::Geo), (1, 1), Transport::InProcess, |cluster| {
        let model = model_with_rows(&minimize(), RowStorage::Bfloat16);
        let mut executor = Executor::on_cluster(Arc::new(Scope::new()), cluster);
        executor.run_startup(&model.net.startup).unwrap();
        let error = report(&executor.run(&model.net.main, feed(0, 0..1), &[model.loss]).unwrap_err());
        assert!(error.contains("table `table`: rows stored as `bfloat16`"), "{error}");
        assert!(error.contains("hint: ") && error.contains("async"), "{error}");
    });
}
