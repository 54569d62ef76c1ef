//! Async: one worker that merges nothing and waits for its values trains exactly as one process.

use openfleet_core::strategy::{Mode, StrategyOptions};
use openfleet_engine::Minimize;
use openfleet_table::{Adagrad, Adam, Optimizer, Sgd};

use crate::harness::{Road, alone, together};

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
        for (servers, road) in [(1, Road::InProcess), (2, Road::Tcp)] {
            let got = together(&options, &minimize, (1, servers), road, |_| 60);
            assert_eq!(got, expected, "{optimizer:?}, {servers} servers");
        }
    }
}
