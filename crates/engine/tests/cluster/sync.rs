//! Sync equals local: N workers give the same parameters as one process on the N batches together.

use openfleet_core::strategy::{Mode, StrategyOptions};
use openfleet_engine::Minimize;
use openfleet_table::{Adagrad, Adam, Clip, Momentum, Optimizer, Sgd};

use crate::harness::{Road, alone, alone_on, together};

#[test]
fn sync_equals_one_process_on_the_joined_batches() {
    // A parameter or table as a whole is within 3.5e-7 of its length after 100 steps. Single values can be further away, up to
    // 5.1e-6: where the terms of a gradient nearly cancel, their order decides its last digits, and AdaGrad and Adam divide by
    // its size. The number of servers changes nothing.
    let rules = [
        (Optimizer::Sgd(Sgd::default()), 0.1),
        (Optimizer::Momentum(Momentum::default()), 0.05),
        (Optimizer::Adagrad(Adagrad::default()), 0.05),
        (Optimizer::Adam(Adam::default()), 0.01),
    ];
    for (optimizer, rate) in rules {
        for workers in [2, 3, 4] {
            let minimize = Minimize::new(optimizer, rate);
            let expected = alone(&minimize, u64::from(workers), 100);
            for servers in [1, 2, 5] {
                let options = StrategyOptions::for_mode(Mode::Sync);
                let got = together(&options, &minimize, (workers, servers), Road::InProcess, |_| 100);
                let (whole, single) = (got.relative_difference(&expected), got.distance(&expected));
                let case = format!("{optimizer:?}, {workers} workers, {servers} servers: {whole:e}, {single:e}");
                assert!(whole < 1e-6 && single < 1e-5, "{case}");
            }
        }
    }
}

/// The norm is that of the mean gradient of all workers, which no worker has and no server has whole.
#[test]
fn sync_clips_by_the_global_norm_as_one_process_does() {
    for (norm, clips) in [(0.05, true), (1e6, false)] {
        let minimize = Minimize::new(Optimizer::Sgd(Sgd::default()), 0.5).clip(Clip::GlobalNorm(norm));
        let expected = alone(&minimize, 3, 60);
        let unclipped = alone(&Minimize { clip: None, ..minimize.clone() }, 3, 60);
        assert_eq!(expected != unclipped, clips, "the norm {norm} matters");
        for (servers, road) in [(1, Road::InProcess), (2, Road::Tcp), (5, Road::InProcess)] {
            let options = StrategyOptions::for_mode(Mode::Sync);
            let got = together(&options, &minimize, (3, servers), road, |_| 60);
            let (whole, single) = (got.relative_difference(&expected), got.distance(&expected));
            assert!(whole < 1e-6 && single < 1e-5, "norm {norm}, {servers} servers: {whole:e}, {single:e}");
        }
    }
}

#[test]
fn two_sync_runs_are_equal_to_the_bit_whatever_the_road() {
    let run = |road| {
        let options = StrategyOptions::for_mode(Mode::Sync);
        let minimize = Minimize::new(Optimizer::Adam(Adam::default()), 0.01);
        together(&options, &minimize, (3, 2), road, |_| 50)
    };
    let first = run(Road::InProcess);
    assert_eq!(first, run(Road::InProcess));
    assert_eq!(first, run(Road::Tcp));
    assert_eq!(first, run(Road::Tcp));
}

/// A worker that has run out of data leaves the group; the others go on with the right divisor (design, section 6).
#[test]
fn a_worker_that_leaves_early_keeps_the_divisor_right() {
    let minimize = Minimize::new(Optimizer::Sgd(Sgd::default()), 0.1);
    let expected = alone_on(&minimize, 60, |step| u64::from(step >= 20) + u64::from(step >= 40)..3);
    for road in [Road::InProcess, Road::Tcp] {
        let options = StrategyOptions::for_mode(Mode::Sync);
        let got = together(&options, &minimize, (3, 2), road, |rank| 20 * (u64::from(rank) + 1));
        let distance = got.distance(&expected);
        assert!(distance < 1e-6, "{road:?}: {distance}");
    }
}
