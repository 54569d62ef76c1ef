//! What the dense table promises, one sentence per test.

use openfleet_table::{Adam, DenseSpec, DenseTable, Error, Momentum, NonFinite, Optimizer, Regularizer, Schedule, Sgd};

fn table(shape: &[usize], optimizer: Optimizer, rate: f64, regularizer: Option<Regularizer>) -> DenseTable {
    let schedule = Schedule::Constant(rate);
    DenseTable::new(DenseSpec { shape: shape.to_vec(), optimizer, schedule, regularizer, non_finite: NonFinite::Skip })
        .expect("the specification is sound")
}

#[test]
fn push_applies_the_rule_and_refreshes_the_callers_copy_in_one_call() {
    // Longer than the blocks of a push, and not a multiple of any register.
    let len = 5003;
    let table = table(&[len], Optimizer::Adam(Adam::default()), 0.01, None);
    let start: Vec<f32> = (0..len).map(|i| i as f32 * 0.001).collect();
    table.assign(&start).unwrap();
    let (mut weights, mut state) = (start, vec![0.0; 2 * len]);
    let mut copy = vec![0.0; len];
    for step in 1..=3 {
        let gradient: Vec<f32> = (0..len).map(|i| ((i * 31 + step as usize) % 17) as f32 - 8.0).collect();
        Optimizer::Adam(Adam::default()).apply(0.01, step, &mut weights, &mut state, &gradient);
        table.push_and_pull(&gradient, &mut 0, &mut copy).unwrap();
        assert_eq!(copy, weights);
    }
    let mut pulled = vec![0.0; len];
    table.pull(&mut pulled).unwrap();
    assert_eq!(pulled, weights);
    assert_eq!(table.read_all(|_, kept, step| (kept.to_vec(), step)), (state, 3));
}

#[test]
fn weight_decay_is_added_before_the_rule_and_not_to_the_callers_gradient() {
    let table = table(&[2], Optimizer::Sgd(Sgd {}), 0.5, Some(Regularizer::L2(0.1)));
    table.assign(&[10.0, -20.0]).unwrap();
    let gradient = [1.0, 1.0];
    table.push(&gradient).unwrap();
    // 10 - 0.5 * (1 + 0.1 * 10) and -20 - 0.5 * (1 - 0.1 * 20)
    assert_eq!(table.read(<[f32]>::to_vec), [9.0, -19.5]);
    assert_eq!(gradient, [1.0, 1.0]);
}

#[test]
fn pull_if_newer_copies_only_after_a_change() {
    let table = table(&[2], Optimizer::Sgd(Sgd {}), 1.0, None);
    let (mut seen, mut out) = (0, [7.0, 7.0]);
    assert!(table.pull_if_newer(&mut seen, &mut out).unwrap());
    assert_eq!(out, [0.0, 0.0]);
    out = [7.0, 7.0];
    assert!(!table.pull_if_newer(&mut seen, &mut out).unwrap());
    assert_eq!(out, [7.0, 7.0]);
    table.push(&[1.0, 2.0]).unwrap();
    assert!(table.pull_if_newer(&mut seen, &mut out).unwrap());
    assert_eq!(out, [-1.0, -2.0]);
    assert_eq!(seen, table.version());
}

#[test]
fn a_gradient_that_is_not_finite_is_refused_whole() {
    let table = table(&[2], Optimizer::Sgd(Sgd {}), 1.0, None);
    table.assign(&[1.0, 2.0]).unwrap();
    let mut out = [0.0; 2];
    let report = table.push_and_pull(&[1.0, f32::NAN], &mut 0, &mut out).unwrap();
    assert_eq!((report.applied, report.non_finite, table.non_finite()), (0, 1, 1));
    assert_eq!(out, [1.0, 2.0]);
    assert_eq!(table.step(), 0);
}

#[test]
fn added_differences_pass_the_rule_by() {
    let table = table(&[2], Optimizer::Adam(Adam::default()), 1.0, None);
    table.add(&[0.5, -0.5]).unwrap();
    assert_eq!(
        table.read_all(|values, state, step| (values.to_vec(), state.to_vec(), step)),
        (vec![0.5, -0.5], vec![0.0; 4], 0)
    );
}

#[test]
fn a_restored_table_trains_like_the_original() {
    let make = || table(&[3], Optimizer::Momentum(Momentum::default()), 0.1, None);
    let (first, second) = (make(), make());
    first.push(&[1.0, 2.0, 3.0]).unwrap();
    first.read_all(|values, state, step| second.restore(values, state, step)).unwrap();
    first.push(&[0.1, 0.2, 0.3]).unwrap();
    second.push(&[0.1, 0.2, 0.3]).unwrap();
    assert_eq!(first.read(<[f32]>::to_vec), second.read(<[f32]>::to_vec));
    assert_eq!(first.step(), second.step());
}

#[test]
fn concurrent_pushes_lose_nothing() {
    let table = table(&[3000], Optimizer::Sgd(Sgd {}), 1.0, None);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut copy = vec![0.0; 3000];
                for _ in 0..100 {
                    table.push_and_pull(&[-1.0; 3000], &mut 0, &mut copy).unwrap();
                    assert!(copy.iter().all(|value| *value == copy[0]), "a push is seen whole or not at all");
                }
            });
        }
    });
    assert_eq!(table.read(<[f32]>::to_vec), [400.0; 3000]);
}

#[test]
fn wrong_lengths_and_shapes_are_errors() {
    let table = table(&[2, 3], Optimizer::Sgd(Sgd {}), 1.0, None);
    assert_eq!(table.len(), 6);
    assert_eq!(table.push(&[0.0; 5]), Err(Error::Length { what: "gradient", expected: 6, got: 5 }));
    assert!(table.pull(&mut [0.0; 7]).is_err());
    assert!(table.push_and_pull(&[0.0; 6], &mut 0, &mut [0.0; 7]).is_err());
    assert_eq!(table.step(), 0);
    let spec = DenseSpec { shape: vec![2, 0], ..table.spec().clone() };
    assert_eq!(
        DenseTable::new(spec).unwrap_err().to_string(),
        "`shape` of a dense table must be dimensions of at least 1 whose product fits into `usize`, got [2, 0]"
    );
}

#[test]
fn the_policy_decides_about_gradients_that_are_not_finite() {
    let make = |non_finite| {
        let (optimizer, schedule) = (Optimizer::Sgd(Sgd {}), Schedule::Constant(1.0));
        DenseTable::new(DenseSpec { shape: vec![4], optimizer, schedule, regularizer: None, non_finite }).unwrap()
    };
    let gradient = [1.0, f32::NAN, f32::INFINITY, -9.0];

    let skips = make(NonFinite::Skip);
    assert_eq!(skips.push(&gradient).unwrap().non_finite, 1);
    assert_eq!(skips.push(&[1e38, 0.0, 0.0, 0.0]).unwrap().non_finite, 1, "its square would be infinite");
    assert_eq!((skips.read(<[f32]>::to_vec), skips.step(), skips.non_finite()), (vec![0.0; 4], 0, 2));

    let clips = make(NonFinite::Clip(2.0));
    let report = clips.push(&gradient).unwrap();
    assert_eq!((report.applied, report.clipped), (1, 1));
    assert_eq!(clips.push(&[0.0, 2.0, -2.0, 0.0]).unwrap().clipped, 0);
    assert_eq!((clips.read(<[f32]>::to_vec), clips.step()), (vec![-1.0, -2.0, 0.0, 2.0], 2));
    assert_eq!(clips.add(&gradient).unwrap().clipped, 1);

    let stops = make(NonFinite::Stop);
    let error = stops.push(&gradient).unwrap_err();
    assert_eq!(error, Error::NonFiniteElement { index: 1 });
    assert_eq!(error.to_string(), "the gradient of a dense table is not finite at element 1");
    assert_eq!((stops.read(<[f32]>::to_vec), stops.step()), (vec![0.0; 4], 0));
}
