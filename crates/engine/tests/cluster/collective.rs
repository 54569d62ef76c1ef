//! Collective equals local: N ranks get the same parameters as one process on the N batches together, and each other's bits.

use std::sync::Arc;

use openfleet_core::strategy::{CollectiveSettings, ModeSettings, OptionValue, Strategy, StrategyOptions};
use openfleet_dist::collective::{InProcess, RankGroup};
use openfleet_engine::op::Activation;
use openfleet_engine::{DType, Executor, Feed, Minimize, Net, Scope};
use openfleet_table::{Adagrad, Adam, Clip, Lamb, Momentum, Optimizer, RowwiseAdagrad, Sgd};

use crate::harness::{TrainedValues, alone, alone_on, feed, model, values_of};

/// The settings of a strategy with these options.
fn settings(options: &[(&str, i64)]) -> CollectiveSettings {
    let mut strategy = StrategyOptions::distributed_strategy();
    for &(name, value) in options {
        strategy.set(name, OptionValue::Int(value)).unwrap();
    }
    match *Strategy::resolve_collective(&strategy).unwrap().settings() {
        ModeSettings::Collective(settings) => settings,
        other => panic!("{other:?}"),
    }
}

/// What every rank has after it has trained `steps(rank)` steps and departed.
fn ranks(
    minimize: &Minimize,
    size: usize,
    settings: CollectiveSettings,
    steps: impl Fn(u64) -> u64 + Sync,
) -> Vec<TrainedValues> {
    std::thread::scope(|scope| {
        let steps = &steps;
        let train = |transport| {
            scope.spawn(move || {
                let group = Arc::new(RankGroup::new(transport));
                let rank = group.rank() as u64;
                let model = model(minimize);
                let mut executor = Executor::in_group(Arc::new(Scope::new()), group.clone(), settings);
                executor.run_startup(&model.net.startup).unwrap();
                for step in 0..steps(rank) {
                    executor.run(&model.net.main, feed(step, rank..rank + 1), &[model.loss]).unwrap();
                }
                group.depart().unwrap();
                values_of(executor.scope())
            })
        };
        let running: Vec<_> = InProcess::group(size).into_iter().map(train).collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn check_equal(all: &[TrainedValues], expected: &TrainedValues, case: &str) {
    assert!(all.iter().all(|other| *other == all[0]), "{case}: ranks differ");
    let (whole, single) = (all[0].relative_difference(expected), all[0].distance(expected));
    // A parameter that is nearly zero has a large relative difference, although no value of it differs.
    assert!((whole < 1e-6 && single < 1e-5) || single < 1e-6, "{case}: {whole:e}, {single:e}");
}

#[test]
fn ranks_equal_one_process_on_the_joined_batches() {
    let rules = [
        (Optimizer::Sgd(Sgd::default()), 0.1),
        (Optimizer::Momentum(Momentum::default()), 0.05),
        (Optimizer::Adagrad(Adagrad::default()), 0.05),
        (Optimizer::RowwiseAdagrad(RowwiseAdagrad::default()), 0.05),
        (Optimizer::Adam(Adam::default()), 0.01),
    ];
    for (optimizer, rate) in rules {
        for clip in
            [None, Some(Clip::GlobalNorm(0.05)), Some(Clip::Norm(0.02)), Some(Clip::Value { min: -0.01, max: 0.02 })]
        {
            let minimize = Minimize { clip, ..Minimize::new(optimizer, rate) };
            for size in [2, 3, 4] {
                let expected = alone(&minimize, size as u64, 100);
                let got = ranks(&minimize, size, CollectiveSettings::default(), |_| 100);
                check_equal(&got, &expected, &format!("{optimizer:?}, {clip:?}, {size} ranks"));
            }
        }
    }
}

/// Every rank has all rows, so it can move all of them, and whole parameters, so it has their norms.
#[test]
fn ranks_equal_one_process_under_rules_that_need_all_rows_or_whole_parameters() {
    for optimizer in [Optimizer::Adam(Adam { lazy_mode: false, ..Adam::default() }), Optimizer::Lamb(Lamb::default())] {
        let minimize = Minimize::new(optimizer, 0.01);
        for size in [2, 3] {
            let expected = alone(&minimize, size as u64, 100);
            let got = ranks(&minimize, size, CollectiveSettings::default(), |_| 100);
            assert!(got.iter().all(|other| *other == got[0]), "{optimizer:?}: ranks differ");
            // Up to 1.1e-6: gradients are divided by their own size, and the order of a sum decides its last digits.
            let whole = got[0].relative_difference(&expected);
            assert!(whole < 1e-5, "{optimizer:?}, {size} ranks: {whole:e}");
        }
        let lazy = alone(&Minimize::new(optimizer.lazily(), 0.01), 2, 100);
        assert_eq!(lazy != alone(&minimize, 2, 100), optimizer.moves_every_row(), "{optimizer:?}: rows rest");
    }
}

#[test]
fn buckets_of_any_size_give_the_same_bits() {
    let minimize = Minimize::new(Optimizer::Adam(Adam::default()), 0.01);
    let whole = ranks(&minimize, 3, CollectiveSettings::default(), |_| 30);
    for bytes in [1, 40, 100] {
        let small = CollectiveSettings { bucket_bytes: bytes, last_bucket_bytes: 1, ..CollectiveSettings::default() };
        assert_eq!(ranks(&minimize, 3, small, |_| 30), whole, "buckets of {bytes} bytes");
    }
}

#[test]
fn a_rank_that_runs_out_takes_part_without_data_and_the_divisor_is_right() {
    let minimize = Minimize::new(Optimizer::Momentum(Momentum::default()), 0.05);
    // Ranks 0, 1 and 2 have 20, 40 and 60 batches.
    let expected = alone_on(&minimize, 60, |step| u64::from(step >= 20) + u64::from(step >= 40)..3);
    let got = ranks(&minimize, 3, CollectiveSettings::default(), |rank| 20 * (rank + 1));
    check_equal(&got, &expected, "uneven");
}

#[test]
fn merged_gradients_equal_one_larger_batch() {
    let minimize = Minimize::new(Optimizer::Adam(Adam::default()), 0.01);
    let merged = settings(&[("gradient_merge", 1), ("gradient_merge_k_steps", 4)]);
    // One rank that merges four batches, and one process that joins them.
    let model = model(&minimize);
    let mut executor = Executor::new(Arc::new(Scope::new()));
    executor.run_startup(&model.net.startup).unwrap();
    let joined = |step: u64| feed_of_steps(4 * step..4 * step + 4, 0..1);
    for step in 0..10 {
        executor.run(&model.net.main, joined(step), &[model.loss]).unwrap();
    }
    check_equal(&ranks(&minimize, 1, merged, |_| 40), &values_of(executor.scope()), "one rank");
    let mut executor = Executor::new(Arc::new(Scope::new()));
    executor.run_startup(&model.net.startup).unwrap();
    for step in 0..10 {
        executor.run(&model.net.main, feed_of_steps(4 * step..4 * step + 4, 0..2), &[model.loss]).unwrap();
    }
    check_equal(&ranks(&minimize, 2, merged, |_| 40), &values_of(executor.scope()), "two ranks");
}

fn feed_of_steps(steps: std::ops::Range<u64>, ranks: std::ops::Range<u64>) -> Feed {
    crate::harness::joined(steps.flat_map(|step| ranks.clone().map(move |rank| (step, rank))))
}

/// A net of dense layers only: local SGD has no sparse tables.
fn dense_net(minimize: &Minimize) -> (Net, openfleet_engine::Var) {
    let mut net = Net::with_seed(3);
    let x = net.data("x", &[-1, 2], DType::F32).unwrap();
    let label = net.data("label", &[-1, 1], DType::I64).unwrap();
    let hidden = net.fc(x, 5, Activation::Tanh).unwrap();
    let logit = net.fc(hidden, 1, Activation::Linear).unwrap();
    let target = net.cast(label, DType::F32).unwrap();
    let losses = net.sigmoid_cross_entropy_with_logits(logit, target).unwrap();
    let loss = net.mean(losses).unwrap();
    minimize.minimize(&mut net.main, loss).unwrap();
    (net, loss)
}

/// Like [`ranks`], for the dense net; returns the first layer of every rank.
fn dense_ranks(minimize: &Minimize, size: usize, settings: CollectiveSettings, steps: u64) -> Vec<Vec<f32>> {
    std::thread::scope(|scope| {
        let train = |transport| {
            scope.spawn(move || {
                let group = Arc::new(RankGroup::new(transport));
                let rank = group.rank() as u64;
                let (net, loss) = dense_net(minimize);
                let mut executor = Executor::in_group(Arc::new(Scope::new()), group.clone(), settings);
                executor.run_startup(&net.startup).unwrap();
                for step in 0..steps {
                    executor.run(&net.main, feed(step, rank..rank + 1), &[loss]).unwrap();
                }
                group.depart().unwrap();
                executor.scope().get("fc_0.w_0").unwrap().f32s().unwrap().to_vec()
            })
        };
        let running: Vec<_> = InProcess::group(size).into_iter().map(train).collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn local_sgd_with_one_step_equals_an_all_reduce() {
    for optimizer in [Optimizer::Sgd(Sgd::default()), Optimizer::Momentum(Momentum::default())] {
        let minimize = Minimize::new(optimizer, 0.1);
        let reduced = dense_ranks(&minimize, 3, CollectiveSettings::default(), 50);
        let local = dense_ranks(&minimize, 3, settings(&[("localsgd", 1)]), 50);
        for (rank, values) in local.iter().enumerate() {
            let close = values.iter().zip(&reduced[0]).all(|(a, b)| (a - b).abs() < 1e-5);
            assert!(close, "{optimizer:?}, rank {rank}: {values:?} and {:?}", reduced[0]);
        }
    }
}

#[test]
fn local_sgd_averages_every_k_steps_and_adapts_to_the_loss() {
    let minimize = Minimize::new(Optimizer::Sgd(Sgd::default()), 0.1);
    let every_five = settings(&[("localsgd", 1), ("localsgd_k_steps", 5)]);
    let averaged = dense_ranks(&minimize, 2, every_five, 50);
    assert_eq!(averaged[0], averaged[1], "50 steps end with an average");
    let between = dense_ranks(&minimize, 2, every_five, 48);
    assert_ne!(between[0], between[1], "three steps alone");
    let later = settings(&[("localsgd", 1), ("localsgd_k_steps", 5), ("localsgd_begin_step", 100)]);
    let early = dense_ranks(&minimize, 2, later, 48);
    assert_eq!(early[0], early[1], "before the first step alone, every step ends with an average");
    let adaptive = settings(&[("adaptive_localsgd", 1), ("localsgd_k_steps", 4)]);
    let adapted = dense_ranks(&minimize, 2, adaptive, 50);
    assert!(adapted.iter().flatten().all(|value| value.is_finite()));
}

#[test]
fn sixteen_bits_train_nearly_the_same() {
    let minimize = Minimize::new(Optimizer::Sgd(Sgd::default()), 0.1);
    let exact = alone(&minimize, 2, 50);
    let narrow = ranks(&minimize, 2, settings(&[("fp16_allreduce", 1)]), |_| 50);
    assert_eq!(narrow[0], narrow[1]);
    let difference = narrow[0].relative_difference(&exact);
    assert!(difference < 0.02 && difference > 0.0, "{difference}");
}

#[test]
fn a_sparse_table_is_refused_by_local_sgd() {
    let minimize = Minimize::new(Optimizer::Sgd(Sgd::default()), 0.1);
    let group = Arc::new(RankGroup::new(InProcess::group(1).pop().unwrap()));
    let model = model(&minimize);
    let mut executor = Executor::in_group(Arc::new(Scope::new()), group, settings(&[("localsgd", 1)]));
    executor.run_startup(&model.net.startup).unwrap();
    let error = executor.run(&model.net.main, feed(0, 0..1), &[]).unwrap_err();
    assert_eq!(error.to_string(), "`localsgd` cannot train the sparse table `table`");
}

/// Ranks that begin with different parameters get those of rank 0; different rows are an error.
#[test]
fn all_ranks_begin_with_the_parameters_of_rank_0() {
    let minimize = Minimize::new(Optimizer::Sgd(Sgd::default()), 0.1);
    let begin = |different_rows: bool| {
        std::thread::scope(|scope| {
            let minimize = &minimize;
            let train = |transport| {
                scope.spawn(move || {
                    let group = Arc::new(RankGroup::new(transport));
                    let rank = group.rank() as u64;
                    let model = model(minimize);
                    let own = Arc::new(Scope::new());
                    let mut alone = Executor::new(own.clone());
                    alone.run_startup(&model.net.startup).unwrap();
                    if different_rows || rank == 1 {
                        own.replace(
                            "fc_0.b_0",
                            openfleet_engine::Tensor::from_f32(&[5], vec![rank as f32; 5]).unwrap(),
                        );
                    }
                    if different_rows {
                        alone.run(&model.net.main, feed(rank, rank..rank + 1), &[]).unwrap();
                    }
                    let mut executor = Executor::in_group(own, group.clone(), CollectiveSettings::default());
                    executor.run(&model.net.main, feed(0, rank..rank + 1), &[])?;
                    group.depart().unwrap();
                    Ok(values_of(executor.scope()))
                })
            };
            let running: Vec<_> = InProcess::group(2).into_iter().map(train).collect();
            let outcomes = running.into_iter().map(|rank| rank.join().unwrap());
            outcomes.collect::<Vec<openfleet_engine::Result<TrainedValues>>>()
        })
    };
    let same: Vec<_> = begin(false).into_iter().map(Result::unwrap).collect();
    assert_eq!(same[0], same[1]);
    for outcome in begin(true) {
        assert_eq!(outcome.unwrap_err().to_string(), "table `table` differs between rank 0 and rank 1");
    }
}
