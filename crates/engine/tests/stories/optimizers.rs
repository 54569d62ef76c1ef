//! `minimize`: the first two steps of each rule against its formula in double precision, on dense parameters and on sparse rows,
//! and everything that changes a gradient or a learning rate on its way to the rule.

use openfleet_core::error::report;
use openfleet_engine::op::EmbeddingOptions;
use openfleet_engine::{DType, Error, Exception, Executor, Feed, Minimize, Net, ParamAttr, Var};
use openfleet_table::{
    Adadelta, Adagrad, Adam, AdamW, Adamax, Clip, DecayedAdagrad, Ftrl, Initializer, Lamb, Momentum, Optimizer,
    Regularizer, RmsProp, RowwiseAdagrad, Schedule, Sgd,
};

use crate::{dense, row, started};

const FIRST: f32 = 0.5;

/// loss = sum over rows of w . x + row(id) . c: the gradient of `w` is the sum of x over the rows of the batch, that of
/// a table's row the sum of c over the rows with its id. All weights start from `FIRST`.
fn linear(w: ParamAttr, rows: ParamAttr) -> (Net, Var) {
    let mut net = Net::new();
    let attr = |attr: ParamAttr, name: &str| ParamAttr {
        name: Some(name.into()),
        initializer: Some(Initializer::Constant(FIRST)),
        ..attr
    };
    let x = net.data("x", &[-1, 2], DType::F32).unwrap();
    let c = net.data("c", &[-1, 2], DType::F32).unwrap();
    let id = net.slot("id").unwrap();
    let w = net.create_parameter(&[2], &attr(w, "w")).unwrap();
    let options = EmbeddingOptions { table: attr(rows, "rows"), ..EmbeddingOptions::default() };
    let row = net.embedding(id, 2, &options).unwrap();
    let dense = net.multiply(x, w).unwrap();
    let sparse = net.multiply(row, c).unwrap();
    let both = net.add(dense, sparse).unwrap();
    let loss = net.reduce_sum(both, &[], false).unwrap();
    (net, loss)
}

/// One row: the gradient of `w`, an id, and the gradient of its row.
fn step(executor: &mut Executor, net: &Net, w: [f32; 2], id: u64, c: [f32; 2]) {
    let feed = Feed::new()
        .floats("x", 2, w.to_vec())
        .and_then(|feed| feed.floats("c", 2, c.to_vec()))
        .and_then(|feed| feed.slot("id", &[&[id]]))
        .unwrap();
    executor.run(&net.main, feed, &[]).unwrap();
}

fn trained(minimize: &Minimize) -> (Net, Executor) {
    let (mut net, loss) = linear(ParamAttr::default(), ParamAttr::default());
    minimize.minimize(&mut net.main, loss).unwrap();
    let executor = started(&net);
    (net, executor)
}

fn sgd(rate: f64) -> Minimize {
    Minimize::new(Optimizer::Sgd(Sgd::default()), rate)
}

#[track_caller]
fn close(got: &[f32], expected: [f64; 2]) {
    for (got, expected) in got.iter().zip(expected) {
        let got = f64::from(*got);
        assert!((got - expected).abs() <= 1e-6 + 1e-5 * expected.abs(), "got {got}, expected {expected}");
    }
}

/// A weight after one and after two steps, from its two gradients, by the formula in the rule's file.
fn by_formula(rule: &Optimizer, r: f64, g1: f64, g2: f64) -> [f64; 2] {
    let w0 = f64::from(FIRST);
    match *rule {
        Optimizer::Sgd(_) => [w0 - r * g1, w0 - r * g1 - r * g2],
        Optimizer::Momentum(Momentum { momentum: mu, nesterov: false }) => {
            let w1 = w0 - r * g1;
            [w1, w1 - r * (mu * g1 + g2)]
        }
        Optimizer::Momentum(Momentum { momentum: mu, nesterov: true }) => {
            let w1 = w0 - r * (g1 + mu * g1);
            [w1, w1 - r * (g2 + mu * (mu * g1 + g2))]
        }
        Optimizer::Adagrad(Adagrad { epsilon, initial_accumulator: start }) => {
            let w1 = w0 - r * g1 / ((start + g1 * g1).sqrt() + epsilon);
            [w1, w1 - r * g2 / ((start + g1 * g1 + g2 * g2).sqrt() + epsilon)]
        }
        // On dense parameters.
        Optimizer::RowwiseAdagrad(rule) => by_formula(&Optimizer::Adagrad(rule.for_dense()), r, g1, g2),
        // As in the paper, with corrected moments; the rule's file has the same without the divisions.
        Optimizer::Adam(Adam { beta1, beta2, epsilon, .. }) => {
            let (m1, v1) = ((1.0 - beta1) * g1, (1.0 - beta2) * g1 * g1);
            let (m2, v2) = (beta1 * m1 + (1.0 - beta1) * g2, beta2 * v1 + (1.0 - beta2) * g2 * g2);
            let moved = |m: f64, v: f64, t: i32| {
                r * (m / (1.0 - beta1.powi(t))) / ((v / (1.0 - beta2.powi(t))).sqrt() + epsilon)
            };
            let w1 = w0 - moved(m1, v1, 1);
            [w1, w1 - moved(m2, v2, 2)]
        }
        Optimizer::AdamW(AdamW { beta1, beta2, epsilon, weight_decay }) => {
            let adam = Optimizer::Adam(Adam { beta1, beta2, epsilon, ..Adam::default() });
            let [after_1, after_2] = by_formula(&adam, r, g1, g2);
            let w1 = after_1 - r * weight_decay * w0;
            [w1, w1 + (after_2 - after_1) - r * weight_decay * w1]
        }
        Optimizer::Adamax(Adamax { beta1, beta2, epsilon }) => {
            let (m1, u1) = ((1.0 - beta1) * g1, g1.abs().max(epsilon));
            let (m2, u2) = (beta1 * m1 + (1.0 - beta1) * g2, g2.abs().max(beta2 * u1 + epsilon));
            let w1 = w0 - r / (1.0 - beta1) * m1 / u1;
            [w1, w1 - r / (1.0 - beta1 * beta1) * m2 / u2]
        }
        Optimizer::Adadelta(Adadelta { epsilon, rho }) => {
            let s1 = (1.0 - rho) * g1 * g1;
            let d1 = (epsilon / (s1 + epsilon)).sqrt() * g1;
            let (s2, u1) = (rho * s1 + (1.0 - rho) * g2 * g2, (1.0 - rho) * d1 * d1);
            let d2 = ((u1 + epsilon) / (s2 + epsilon)).sqrt() * g2;
            [w0 - r * d1, w0 - r * d1 - r * d2]
        }
        Optimizer::DecayedAdagrad(DecayedAdagrad { decay, epsilon }) => {
            let s1 = (1.0 - decay) * g1 * g1;
            let s2 = decay * s1 + (1.0 - decay) * g2 * g2;
            let w1 = w0 - r * g1 / (s1.sqrt() + epsilon);
            [w1, w1 - r * g2 / (s2.sqrt() + epsilon)]
        }
        // Its weights depend on each other: see the test of its own.
        Optimizer::Lamb(_) => unreachable!(),
        Optimizer::RmsProp(RmsProp { rho, epsilon, momentum, centered }) => {
            let (s1, a1) = ((1.0 - rho) * g1 * g1, (1.0 - rho) * g1);
            let (s2, a2) = (rho * s1 + (1.0 - rho) * g2 * g2, rho * a1 + (1.0 - rho) * g2);
            let root = |s: f64, a: f64| (if centered { s - a * a } else { s } + epsilon).sqrt();
            let u1 = r * g1 / root(s1, a1);
            let u2 = momentum * u1 + r * g2 / root(s2, a2);
            [w0 - u1, w0 - u1 - u2]
        }
        Optimizer::Ftrl(Ftrl { l1, l2, .. }) => {
            let leader = |z: f64, n: f64| {
                if z.abs() <= l1 { 0.0 } else { (l1 * z.signum() - z) / (n.sqrt() / r + 2.0 * l2) }
            };
            let n1 = g1 * g1;
            let z1 = g1 - n1.sqrt() / r * w0;
            let w1 = leader(z1, n1);
            let n2 = n1 + g2 * g2;
            let z2 = z1 + g2 - (n2.sqrt() - n1.sqrt()) / r * w1;
            [w1, leader(z2, n2)]
        }
    }
}

#[test]
fn two_steps_of_every_rule_follow_its_formula_on_dense_parameters_and_on_rows() {
    let rules = [
        Optimizer::Sgd(Sgd::default()),
        Optimizer::Momentum(Momentum::default()),
        Optimizer::Momentum(Momentum { momentum: 0.8, nesterov: true }),
        Optimizer::Adagrad(Adagrad::default()),
        Optimizer::Adagrad(Adagrad { initial_accumulator: 0.1, ..Adagrad::default() }),
        Optimizer::Adam(Adam::default()),
        Optimizer::Adam(Adam { beta1: 0.5, beta2: 0.9, epsilon: 0.1, ..Adam::default() }),
        Optimizer::AdamW(AdamW { weight_decay: 0.3, ..AdamW::default() }),
        Optimizer::Adamax(Adamax::default()),
        Optimizer::Adamax(Adamax { beta1: 0.5, beta2: 0.9, epsilon: 0.1 }),
        Optimizer::Adadelta(Adadelta::default()),
        Optimizer::Adadelta(Adadelta { epsilon: 0.1, rho: 0.5 }),
        Optimizer::DecayedAdagrad(DecayedAdagrad::default()),
        Optimizer::RmsProp(RmsProp::default()),
        Optimizer::RmsProp(RmsProp { momentum: 0.9, centered: true, ..RmsProp::default() }),
        Optimizer::Ftrl(Ftrl::default()),
        Optimizer::Ftrl(Ftrl { l1: 0.3, l2: 0.2, ..Ftrl::default() }),
    ];
    let (g1, g2) = ([2.0f32, -0.75], [-1.0f32, 0.5]);
    let rate = 0.1;
    for rule in rules {
        let (net, mut executor) = trained(&Minimize::new(rule, rate));
        let expected = [0, 1].map(|i| by_formula(&rule, rate, f64::from(g1[i]), f64::from(g2[i])));
        for (number, gradient) in [g1, g2].into_iter().enumerate() {
            step(&mut executor, &net, gradient, 7, gradient);
            let expected = expected.map(|weight| weight[number]);
            close(&dense(&executor, "w"), expected);
            close(&row(&executor, "rows", 7), expected);
        }
    }
}

#[test]
fn row_wise_adagrad_has_one_sum_per_row_and_trains_dense_parameters_as_adagrad_does() {
    let (g1, g2, rate) = ([2.0f32, -0.75], [-1.0f32, 0.5], 0.1);
    let rule = RowwiseAdagrad { initial_accumulator: 0.1, epsilon: 0.01 };
    let (net, mut executor) = trained(&Minimize::new(Optimizer::RowwiseAdagrad(rule), rate));
    let (mut sum, mut weights) = (0.1f64, [f64::from(FIRST); 2]);
    let adagrad =
        [0, 1].map(|i| by_formula(&Optimizer::Adagrad(rule.for_dense()), rate, f64::from(g1[i]), f64::from(g2[i])));
    for (number, gradient) in [g1, g2].into_iter().enumerate() {
        step(&mut executor, &net, gradient, 7, gradient);
        let gradient = gradient.map(f64::from);
        sum += (gradient[0] * gradient[0] + gradient[1] * gradient[1]) / 2.0;
        weights = [0, 1].map(|i| weights[i] - rate * gradient[i] / (sum.sqrt() + 0.01));
        close(&row(&executor, "rows", 7), weights);
        close(&dense(&executor, "w"), adagrad.map(|weight| weight[number]));
    }
    assert_eq!(executor.scope().sparse("rows").unwrap().read(7, |_, state| state.len()), Some(1));
}

/// The two weights of a parameter and of a row have one norm each.
#[test]
fn lamb_moves_a_parameter_and_a_row_in_proportion_to_their_norms() {
    let (gradients, rate) = ([[2.0f32, -0.75], [-1.0f32, 0.5]], 0.1);
    let rule = Lamb { weight_decay: 0.3, ..Lamb::default() };
    let (net, mut executor) = trained(&Minimize::new(Optimizer::Lamb(rule), rate));
    let (mut w, mut m, mut v) = ([f64::from(FIRST); 2], [0.0f64; 2], [0.0f64; 2]);
    let norm = |values: [f64; 2]| values[0].hypot(values[1]);
    for (t, gradient) in (1..).zip(gradients) {
        let g = gradient.map(f64::from);
        m = [0, 1].map(|i| rule.beta1 * m[i] + (1.0 - rule.beta1) * g[i]);
        v = [0, 1].map(|i| rule.beta2 * v[i] + (1.0 - rule.beta2) * g[i] * g[i]);
        let direction = [0, 1].map(|i| {
            let root = (v[i] / (1.0 - rule.beta2.powi(t))).sqrt();
            m[i] / (1.0 - rule.beta1.powi(t)) / (root + rule.epsilon) + rule.weight_decay * w[i]
        });
        let ratio = norm(w) / norm(direction);
        w = [0, 1].map(|i| w[i] - rate * ratio * direction[i]);
        step(&mut executor, &net, gradient, 7, gradient);
        close(&dense(&executor, "w"), w);
        close(&row(&executor, "rows", 7), w);
    }
}

#[test]
fn a_parameter_can_be_excluded_from_the_decay_of_its_rule_and_have_a_rate_of_its_own() {
    let rule = Optimizer::AdamW(AdamW { weight_decay: 0.5, ..AdamW::default() });
    let minimize = Minimize::new(rule, 0.1)
        .exception("w", Exception { weight_decay: false, ..Exception::default() })
        .exception("rows", Exception { learning_rate: 2.0, ..Exception::default() });
    let (net, mut executor) = trained(&minimize);
    step(&mut executor, &net, [1.0, -1.0], 7, [1.0, -1.0]);
    close(&dense(&executor, "w"), [0.4, 0.6]);
    // 0.5 * (1 - 0.2 * 0.5), then Adam's first step, which is the rate.
    close(&row(&executor, "rows", 7), [0.25, 0.65]);
    let (mut net, loss) = linear(ParamAttr::default(), ParamAttr::default());
    let unknown = Minimize::new(rule, 0.1).exception("v", Exception::default());
    assert!(unknown.minimize(&mut net.main, loss).unwrap_err().to_string().contains("`v`"));
}

#[test]
fn without_lazy_mode_adam_moves_every_row_of_a_table_with_bounded_ids_as_it_moves_dense_parameters() {
    let rule = Optimizer::Adam(Adam { lazy_mode: false, ..Adam::default() });
    let trained = |vocabulary: Option<u64>| {
        let mut net = Net::new();
        let c = net.data("c", &[-1, 2], DType::F32).unwrap();
        let id = net.slot("id").unwrap();
        let initializer = Some(Initializer::Constant(FIRST));
        let table = ParamAttr { name: Some("rows".into()), initializer, ..ParamAttr::default() };
        let options = EmbeddingOptions { table, vocabulary, ..EmbeddingOptions::default() };
        let row = net.embedding(id, 2, &options).unwrap();
        let product = net.multiply(row, c).unwrap();
        let loss = net.reduce_sum(product, &[], false).unwrap();
        Minimize::new(rule, 0.1).minimize(&mut net.main, loss).unwrap();
        let mut executor = started(&net);
        for (id, c) in [(1, [2.0, -1.0]), (2, [1.0, 1.0]), (1, [0.5, 3.0])] {
            let feed = Feed::new().floats("c", 2, c.to_vec()).and_then(|feed| feed.slot("id", &[&[id]])).unwrap();
            executor.run(&net.main, feed, &[]).unwrap();
        }
        [1, 2].map(|key| self::row(&executor, "rows", key))
    };
    // What one parameter of these gradients would be.
    let dense = |gradients: [[f32; 2]; 3]| {
        let (mut weights, mut state) = ([FIRST; 2], [0.0; 4]);
        (1..).zip(gradients).for_each(|(step, g)| rule.apply(0.1, step, &mut weights, &mut state, &g));
        weights.to_vec()
    };
    let [first, second] = trained(Some(4));
    assert_eq!(first, dense([[2.0, -1.0], [0.0; 2], [0.5, 3.0]]));
    assert_eq!(second, dense([[0.0; 2], [1.0, 1.0], [0.0; 2]]));
    let [lazy_first, lazy_second] = trained(None);
    assert!(lazy_first != first && lazy_second != second, "a table without a bound stays lazy");
}

#[test]
fn adam_is_lazy_on_rows_and_counts_the_steps_of_the_table() {
    let (beta1, beta2, epsilon, rate) = (0.9f64, 0.999f64, 1e-8, 0.1);
    let rule = Optimizer::Adam(Adam { beta1, beta2, epsilon, ..Adam::default() });
    let (net, mut executor) = trained(&Minimize::new(rule, rate));
    step(&mut executor, &net, [0.0; 2], 1, [2.0, -1.0]);
    let after_one = row(&executor, "rows", 1);
    step(&mut executor, &net, [0.0; 2], 2, [1.0, 1.0]);
    assert_eq!(row(&executor, "rows", 1), after_one, "a row that is not in the batch does not move");
    step(&mut executor, &net, [0.0; 2], 1, [0.5, 3.0]);
    let expected = [(2.0f64, 0.5f64), (-1.0, 3.0)].map(|(g1, g3)| {
        let w1 = f64::from(FIRST) - rate * g1.signum();
        let m = beta1 * (1.0 - beta1) * g1 + (1.0 - beta1) * g3;
        let v = beta2 * (1.0 - beta2) * g1 * g1 + (1.0 - beta2) * g3 * g3;
        w1 - rate * (m / (1.0 - beta1.powi(3))) / ((v / (1.0 - beta2.powi(3))).sqrt() + epsilon)
    });
    close(&row(&executor, "rows", 1), expected);
}

#[test]
fn a_parameter_can_have_its_own_learning_rate() {
    let slow = ParamAttr { learning_rate: Some(0.25), ..ParamAttr::default() };
    let fast = ParamAttr { learning_rate: Some(3.0), ..ParamAttr::default() };
    let (mut net, loss) = linear(slow, fast);
    sgd(0.5).minimize(&mut net.main, loss).unwrap();
    let mut executor = started(&net);
    step(&mut executor, &net, [1.0, 2.0], 7, [1.0, 2.0]);
    assert_eq!(dense(&executor, "w"), [FIRST - 0.125, FIRST - 0.25]);
    assert_eq!(row(&executor, "rows", 7), [FIRST - 1.5, FIRST - 3.0]);
}

#[test]
fn a_frozen_parameter_never_changes_not_even_by_decay() {
    for frozen_table in [false, true] {
        let frozen = |frozen| ParamAttr { frozen, ..ParamAttr::default() };
        let (mut net, loss) = linear(frozen(!frozen_table), frozen(frozen_table));
        let minimize = Minimize::new(Optimizer::Momentum(Momentum::default()), 0.1).regularizer(Regularizer::L2(0.5));
        minimize.minimize(&mut net.main, loss).unwrap();
        let mut executor = started(&net);
        (0..3).for_each(|_| step(&mut executor, &net, [1.0, 2.0], 7, [1.0, 2.0]));
        assert_eq!(dense(&executor, "w") == [FIRST; 2], !frozen_table);
        assert_eq!(row(&executor, "rows", 7) == [FIRST; 2], frozen_table);
    }
}

#[test]
fn a_parameters_regularizer_replaces_the_global_one() {
    let own = || ParamAttr { regularizer: Some(Regularizer::L2(0.5)), ..ParamAttr::default() };
    for (w, rows) in [(own(), ParamAttr::default()), (ParamAttr::default(), own())] {
        let (w_has_own, rows_has_own) = (w.regularizer.is_some(), rows.regularizer.is_some());
        let (mut net, loss) = linear(w, rows);
        sgd(1.0).regularizer(Regularizer::L1(0.125)).minimize(&mut net.main, loss).unwrap();
        let mut executor = started(&net);
        step(&mut executor, &net, [1.0, 2.0], 7, [1.0, 2.0]);
        // L2 adds 0.5 w = 0.25 to the gradient, L1 adds 0.125 sign(w).
        let penalty = |has_own: bool| if has_own { 0.25 } else { 0.125 };
        let expected = |has_own: bool| [FIRST - 1.0 - penalty(has_own), FIRST - 2.0 - penalty(has_own)];
        assert_eq!(dense(&executor, "w"), expected(w_has_own));
        assert_eq!(row(&executor, "rows", 7), expected(rows_has_own));
    }
}

#[test]
fn clipping_bounds_dense_and_sparse_gradients_together() {
    // The gradient of w is (3, 4), of norm 5; the rows 1 and 2 have (0, 7.2) and (9.6, 0), of norm 12 together; all of
    // it has the norm 13.
    let cases = [
        (Clip::Value { min: -1.0, max: 3.5 }, [3.0, 3.5], [0.0, 3.5], [3.5, 0.0]),
        (Clip::Norm(2.5), [1.5, 2.0], [0.0, 7.2 * 2.5 / 12.0], [9.6 * 2.5 / 12.0, 0.0]),
        (Clip::GlobalNorm(6.5), [1.5, 2.0], [0.0, 3.6], [4.8, 0.0]),
        (Clip::GlobalNorm(14.0), [3.0, 4.0], [0.0, 7.2], [9.6, 0.0]),
    ];
    for (clip, w, row_1, row_2) in cases {
        let (net, mut executor) = trained(&sgd(1.0).clip(clip));
        let feed = Feed::new()
            .floats("x", 2, vec![1.0, 1.0, 2.0, 3.0])
            .and_then(|feed| feed.floats("c", 2, vec![0.0, 7.2, 9.6, 0.0]))
            .and_then(|feed| feed.slot("id", &[&[1], &[2]]))
            .unwrap();
        executor.run(&net.main, feed, &[]).unwrap();
        let after = |gradient: [f64; 2]| gradient.map(|g| f64::from(FIRST) - g);
        close(&dense(&executor, "w"), after(w));
        close(&row(&executor, "rows", 1), after(row_1));
        close(&row(&executor, "rows", 2), after(row_2));
    }
}

#[test]
fn a_schedule_is_followed_step_by_step() {
    let schedule = Schedule::Piecewise { boundaries: vec![1, 3], values: vec![1.0, 0.5, 0.25] };
    let (net, mut executor) = trained(&sgd(9.0).schedule(schedule));
    let mut expected = FIRST;
    for rate in [1.0, 0.5, 0.5, 0.25, 0.25] {
        step(&mut executor, &net, [1.0, -1.0], 7, [1.0, -1.0]);
        expected -= rate;
        assert_eq!(dense(&executor, "w"), [expected, 2.0 * FIRST - expected]);
        assert_eq!(row(&executor, "rows", 7), [expected, 2.0 * FIRST - expected]);
    }
}

#[test]
fn a_second_minimize_is_refused_and_names_the_first() {
    let (mut net, loss) = linear(ParamAttr::default(), ParamAttr::default());
    Minimize::new(Optimizer::Adam(Adam::default()), 0.1).minimize(&mut net.main, loss).unwrap();
    let before = net.main.clone();
    let error = sgd(1.0).minimize(&mut net.main, loss).unwrap_err();
    assert!(matches!(error, Error::AlreadyMinimized { .. }));
    assert_eq!(error.to_string(), "the program already has the optimizer `adam`");
    assert_eq!(net.main, before);
}

#[test]
fn minimize_refuses_settings_that_are_out_of_range() {
    let cases = [
        (sgd(0.1).clip(Clip::GlobalNorm(-1.0)), "`norm` of clip by global norm must be a number above 0, got -1"),
        (sgd(0.1).regularizer(Regularizer::L2(-0.5)), "`coefficient` of the regularizer must be a number not below 0"),
        (
            Minimize::new(Optimizer::Adam(Adam { beta1: 1.0, ..Adam::default() }), 0.1),
            "`beta1` of adam must be in [0, 1)",
        ),
        (sgd(f64::NAN), "`rate` of the constant schedule must be"),
    ];
    for (minimize, message) in cases {
        let (mut net, loss) = linear(ParamAttr::default(), ParamAttr::default());
        let before = net.main.clone();
        let error = minimize.minimize(&mut net.main, loss).unwrap_err();
        assert!(report(&error).starts_with(message), "{error}");
        assert_eq!(net.main, before, "a refused choice leaves the program as it was");
    }
}
