//! Sync equals local: N workers get the same parameters as one process on the N batches together.

use std::sync::Arc;

use openfleet_core::strategy::{Mode, StrategyOptions};
use openfleet_engine::{Executor, Minimize, Scope};
use openfleet_table::{
    Adadelta, Adagrad, Adam, AdamW, Adamax, Clip, DecayedAdagrad, Lamb, Momentum, Optimizer, RowwiseAdagrad, Sgd,
};

use crate::harness::{
    Transport, alone, alone_on, feed, model, model_of_width, on_cluster, together, trained_values, values_of,
};

#[test]
fn sync_equals_one_process_on_the_joined_batches() {
    // A parameter or table as a whole is within 3.5e-7 of its norm after 100 steps. Single values can differ more, up to 5.1e-6:
    // if the terms of a gradient nearly cancel, their order decides its last digits, and AdaGrad and Adam divide by its size. The
    // number of servers changes nothing.
    let rules = [
        (Optimizer::Sgd(Sgd::default()), 0.1),
        (Optimizer::Momentum(Momentum::default()), 0.05),
        (Optimizer::Adagrad(Adagrad::default()), 0.05),
        (Optimizer::RowwiseAdagrad(RowwiseAdagrad::default()), 0.05),
        (Optimizer::DecayedAdagrad(DecayedAdagrad::default()), 0.01),
        (Optimizer::Adadelta(Adadelta::default()), 1.0),
        (Optimizer::Adam(Adam::default()), 0.01),
        (Optimizer::AdamW(AdamW::default()), 0.01),
        (Optimizer::Adamax(Adamax::default()), 0.01),
        (Optimizer::Lamb(Lamb::default()), 0.01),
    ];
    for (optimizer, rate) in rules {
        for workers in [2, 3, 4] {
            let minimize = Minimize::new(optimizer, rate);
            let expected = alone(&minimize, u64::from(workers), 100);
            for servers in [1, 2, 5] {
                let options = StrategyOptions::for_mode(Mode::Sync);
                let got = together(&options, &minimize, (workers, servers), Transport::InProcess, |_| 100);
                let (whole, single) = (got.relative_difference(&expected), got.distance(&expected));
                let case = format!("{optimizer:?}, {workers} workers, {servers} servers: {whole:e}, {single:e}");
                assert!(whole < 1e-6 && single < 1e-5, "{case}");
            }
        }
    }
}

/// A matrix of 8 x 5000 would be four blocks on five servers.
#[test]
fn sync_keeps_a_parameter_whole_whose_norm_the_optimizer_needs() {
    let train = |executor: &mut Executor, batches: &dyn Fn(u64) -> std::ops::Range<u64>, minimize: &Minimize| {
        let model = model_of_width(minimize, 5000);
        executor.run_startup(&model.net.startup).unwrap();
        (0..5).for_each(|step| {
            executor.run(&model.net.main, feed(step, batches(step)), &[model.loss]).unwrap();
        });
    };
    for (optimizer, blocks) in [(Optimizer::Lamb(Lamb::default()), 1), (Optimizer::Adam(Adam::default()), 4)] {
        let minimize = Minimize::new(optimizer, 0.01);
        let mut executor = Executor::new(Arc::new(Scope::new()));
        train(&mut executor, &|_| 0..2, &minimize);
        let expected = values_of(executor.scope());
        let states = on_cluster(&StrategyOptions::for_mode(Mode::Sync), (2, 5), Transport::InProcess, |cluster| {
            let rank = u64::from(cluster.worker().rank);
            train(&mut Executor::on_cluster(Arc::new(Scope::new()), cluster), &|_| rank..rank + 1, &minimize);
        });
        let mut found = 0;
        states.iter().for_each(|state| state.each_block(|name, _| found += usize::from(name.starts_with("fc_0.w_0"))));
        assert_eq!(found, blocks, "{optimizer:?}");
        // 2.6e-6: the order of the sums of a gradient decides its last digits.
        let whole = trained_values(&states).relative_difference(&expected);
        assert!(whole < 1e-5, "{optimizer:?}: {whole:e}");
    }
}

/// Rows on servers are updated when they are pushed, whatever the optimizer says.
#[test]
fn servers_update_rows_lazily_without_lazy_mode_too() {
    let adam = |lazy_mode| Minimize::new(Optimizer::Adam(Adam { lazy_mode, ..Adam::default() }), 0.01);
    let train = |minimize: &Minimize| {
        together(&StrategyOptions::for_mode(Mode::Sync), minimize, (2, 2), Transport::InProcess, |_| 20)
    };
    assert_eq!(train(&adam(false)), train(&adam(true)));
}

/// The norm is that of the mean gradient of all workers. No worker has this gradient, and no server has all of it.
#[test]
fn sync_clips_by_the_global_norm_as_one_process_does() {
    for (norm, clips) in [(0.05, true), (1e6, false)] {
        let minimize = Minimize::new(Optimizer::Sgd(Sgd::default()), 0.5).clip(Clip::GlobalNorm(norm));
        let expected = alone(&minimize, 3, 60);
        let unclipped = alone(&Minimize { clip: None, ..minimize.clone() }, 3, 60);
        assert_eq!(expected != unclipped, clips, "the norm {norm} matters");
        for (servers, transport) in [(1, Transport::InProcess), (2, Transport::Tcp), (5, Transport::InProcess)] {
            let options = StrategyOptions::for_mode(Mode::Sync);
            let got = together(&options, &minimize, (3, servers), transport, |_| 60);
            let (whole, single) = (got.relative_difference(&expected), got.distance(&expected));
            assert!(whole < 1e-6 && single < 1e-5, "norm {norm}, {servers} servers: {whole:e}, {single:e}");
        }
    }
}

#[test]
fn two_sync_runs_are_equal_to_the_bit_on_every_transport() {
    let run = |transport| {
        let options = StrategyOptions::for_mode(Mode::Sync);
        let minimize = Minimize::new(Optimizer::Adam(Adam::default()), 0.01);
        together(&options, &minimize, (3, 2), transport, |_| 50)
    };
    let first = run(Transport::InProcess);
    assert_eq!(first, run(Transport::InProcess));
    assert_eq!(first, run(Transport::Tcp));
    assert_eq!(first, run(Transport::Tcp));
}

/// A worker that has run out of data leaves the group; the others continue with the right divisor.
#[test]
fn a_worker_that_leaves_early_keeps_the_divisor_right() {
    let minimize = Minimize::new(Optimizer::Sgd(Sgd::default()), 0.1);
    let expected = alone_on(&minimize, 60, |step| u64::from(step >= 20) + u64::from(step >= 40)..3);
    for transport in [Transport::InProcess, Transport::Tcp] {
        let options = StrategyOptions::for_mode(Mode::Sync);
        let got = together(&options, &minimize, (3, 2), transport, |rank| 20 * (u64::from(rank) + 1));
        let distance = got.distance(&expected);
        assert!(distance < 1e-6, "{transport:?}: {distance}");
    }
}

/// A worker without a step between two barriers is not waited for, and counts its passes like the others.
#[test]
fn a_worker_without_data_between_two_barriers_is_not_waited_for() {
    let minimize = Minimize::new(Optimizer::Sgd(Sgd::default()), 0.1);
    // Which workers have data in each interval of ten steps.
    let intervals = [1..2, 0..2, 0..1, 0..2];
    let expected = alone_on(&minimize, 40, |step| intervals[step as usize / 10].clone());
    for mode in [Mode::Sync, Mode::Hybrid] {
        let states = on_cluster(&StrategyOptions::for_mode(mode), (2, 2), Transport::Tcp, |cluster| {
            let rank = u64::from(cluster.worker().rank);
            let model = model(&minimize);
            let mut executor = Executor::on_cluster(Arc::new(Scope::new()), cluster.clone());
            executor.run_startup(&model.net.startup).unwrap();
            for (interval, workers) in (0..).zip(&intervals) {
                for step in (interval * 10..(interval + 1) * 10).filter(|_| workers.contains(&rank)) {
                    executor.run(&model.net.main, feed(step, rank..rank + 1), &[model.loss]).unwrap();
                }
                cluster.barrier().unwrap();
            }
        });
        let distance = trained_values(&states).distance(&expected);
        // Hybrid applies the gradients of rows as they come.
        assert!(mode == Mode::Hybrid || distance < 1e-6, "{distance}");
    }
}
