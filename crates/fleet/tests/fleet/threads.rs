//! Workers with several training threads: as many as the servers were told.

use std::sync::Arc;

use openfleet_core::error::report;
use openfleet_core::strategy::Mode;
use openfleet_core::{Field, FieldKind, Role, Schema};
use openfleet_engine::dataset::{DatasetConfig, Format, MultiSlot, QueueDataset};
use openfleet_engine::{RunOptions, Scope};

use crate::{free_endpoints, model, process};

#[test]
fn a_worker_trains_on_the_threads_it_connected_with() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("part-0");
    let rows: String = (0..256).map(|row| format!("1 {} 1 {}\n", row % 11, (row % 11 + 1) % 2)).collect();
    std::fs::write(&file, rows).unwrap();
    let fields = vec![Field::new("ids", FieldKind::Ids), Field::new("label", FieldKind::FixedIds { length: 1 })];
    let config = DatasetConfig::new(Schema::new(fields).unwrap(), Format::MultiSlot(MultiSlot::default()));
    let dataset = QueueDataset::new(config.files([file]).batch_size(16)).unwrap();
    let servers = free_endpoints(1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let server = process(Role::Server, 0, 1, &servers);
            server.init_server(None).unwrap();
            server.run_server().unwrap();
        });
        let worker = process(Role::Worker, 0, 1, &servers).threads(2);
        let model = model(&worker, Mode::Sync);
        worker.init_worker().unwrap();
        let mut executor = worker.executor(Arc::new(Scope::new())).unwrap();
        executor.run_startup(&model.net.startup).unwrap();
        let mut train = |threads| {
            let options = RunOptions { threads, ..RunOptions::default() };
            executor.train_from_dataset(&model.net.main, &dataset, &options)
        };
        assert_eq!(train(2).unwrap().samples, 256);
        // More threads would count as another worker's; with fewer, every step would wait.
        let errors = [3, 1].map(|threads| report(&train(threads).unwrap_err()));
        worker.stop_worker().unwrap();
        for (got, error) in [3, 1].into_iter().zip(errors) {
            let expected = format!(
                "{got} training threads, but the servers know of 2 on this worker\n\nhint: train with 2 threads, or \
                 connect every worker with {got} (`CPU_NUM`, or `Fleet::threads`)"
            );
            assert_eq!(error, expected);
        }
    });
}
