//! Async: one worker that merges nothing and waits for its values trains exactly like one process.

use std::sync::Arc;

use openfleet_core::strategy::{Mode, StrategyOptions};
use openfleet_engine::op::Activation;
use openfleet_engine::{DType, Executor, Feed, Minimize, Net, Scope};
use openfleet_table::{Adagrad, Adam, Optimizer, Sgd};

use crate::harness::{Transport, alone, on_cluster, together};

#[test]
fn async_with_one_worker_and_no_merging_equals_one_process_to_the_bit() {
    let mut options = StrategyOptions::for_mode(Mode::Async);
    options.independent_recv_thread = Some(false);
    let rules = [
        (Optimizer::Sgd(Sgd::default()), 0.1),
        (Optimizer::Adagrad(Adagrad::default()), 0.05),
        (Optimizer::Adam(Adam::default()), 0.01),
    ];
    for (optimizer, rate) in rules {
        let minimize = Minimize::new(optimizer, rate);
        let expected = alone(&minimize, 1, 60);
        for (servers, transport) in [(1, Transport::InProcess), (2, Transport::Tcp)] {
            let got = together(&options, &minimize, (1, servers), transport, |_| 60);
            assert_eq!(got, expected, "{optimizer:?}, {servers} servers");
        }
    }
}

/// A parameter is split into blocks on several servers. Each block has its own step counter, by which Adam corrects its moments.
#[test]
fn a_gradient_refused_in_one_block_is_skipped_in_all_blocks() {
    for mode in [Mode::Sync, Mode::Async, Mode::Hybrid] {
        let states = on_cluster(&StrategyOptions::for_mode(mode), (1, 2), Transport::InProcess, |cluster| {
            let mut net = Net::with_seed(1);
            let x = net.data("x", &[-1, 200], DType::F32).unwrap();
            let y = net.fc(x, 200, Activation::Linear).unwrap();
            let loss = net.mean(y).unwrap();
            Minimize::new(Optimizer::Adam(Adam::default()), 0.01).minimize(&mut net.main, loss).unwrap();
            let mut executor = Executor::on_cluster(Arc::new(Scope::new()), cluster);
            executor.run_startup(&net.startup).unwrap();
            for step in 0..10 {
                let mut row = vec![1.0; 200];
                row[0] = if step == 4 { 1e30 } else { 1.0 };
                executor.run(&net.main, Feed::new().floats("x", 200, row).unwrap(), &[]).unwrap();
            }
        });
        let blocks: Vec<_> = states.iter().flat_map(|state| state.status().dense).collect();
        let of_weights: Vec<_> = blocks.iter().filter(|(name, ..)| name.starts_with("fc_0.w_0")).collect();
        assert!(of_weights.len() > 1, "{blocks:?}");
        assert!(of_weights.iter().all(|(_, _, step)| *step == 9), "{mode}: {blocks:?}");
    }
}
