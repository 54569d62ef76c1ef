//! A training step allocates nothing after warm-up: the part of that promise that `core` is responsible for. Allocations are
//! counted per thread, because the test runner's own thread allocates too.

use openfleet_core::metrics::{Accuracy, Auc, LogLoss, Mean};
use openfleet_core::placement::{Buckets, Grouping};
use openfleet_core::{Key, Unique, key::mix};
use openfleet_testkit::allocation::{CountingAllocator, allocations};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn warm_metrics_deduplication_and_grouping_allocate_nothing() {
    let labels: Vec<u64> = (0..512).map(|row| mix(row) % 2).collect();
    let probabilities: Vec<f32> = (0..512).map(|row| (mix(row + 512) % 1000) as f32 / 1000.0).collect();
    let slots: Vec<Vec<Key>> = (0..26).map(|slot| (0..512).map(|row| mix(row % 170 + slot * 170)).collect()).collect();
    let (mut auc, mut logloss, mut accuracy, mut mean) =
        (Auc::with(4095, 3), LogLoss::new(), Accuracy::new(), Mean::new());
    let mut unique = Unique::new();
    let (buckets, mut grouping) = (Buckets::new(5).unwrap(), Grouping::new());
    let (mut pushed, mut rows) = (Vec::new(), Vec::new());
    let mut step = || {
        auc.update(&labels, &probabilities).unwrap();
        logloss.update(&labels, &probabilities).unwrap();
        accuracy.update_binary(&labels, &probabilities).unwrap();
        mean.update(&probabilities);
        unique.start(26 * 512);
        slots.iter().for_each(|ids| unique.add(ids));
        grouping.group(buckets, unique.keys());
        rows.resize(unique.keys().len() * 10, 0.0_f32);
        for server in 0..buckets.server_count() {
            pushed.clear();
            grouping.scatter(server, 10, &rows, &mut pushed).unwrap();
            grouping.gather(server, 10, &pushed, &mut rows).unwrap();
        }
        auc.batch_value() + auc.value() + logloss.value() + unique.keys().len() as f64
    };
    (0..8).for_each(|_| {
        step();
    });
    let mut sum = 0.0;
    assert_eq!(allocations(|| (0..20).for_each(|_| sum += step())), 0);
    assert!(sum > 0.0);
}
