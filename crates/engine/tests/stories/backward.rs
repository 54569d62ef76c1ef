//! `append_backward`: which variables get a gradient, and what it is.

use openfleet_core::error::report;
use openfleet_engine::op::EmbeddingOptions;
use openfleet_engine::{DType, Error, Executor, Feed, Minimize, Net, ParamAttr, Var};
use openfleet_table::{Initializer, Optimizer, Regularizer, Sgd};

use crate::{bits, constant, dense, started};

fn sgd(rate: f64) -> Minimize {
    Minimize::new(Optimizer::Sgd(Sgd::default()), rate)
}

/// A batch that nothing reads.
fn nothing() -> Feed {
    Feed::new().floats("nothing", 1, vec![0.0]).unwrap()
}

fn fetched(executor: &mut Executor, net: &Net, var: Var) -> Vec<f32> {
    executor.run(&net.main, nothing(), &[var]).unwrap()[0].f32s().unwrap().to_vec()
}

#[test]
fn a_diamond_adds_up_the_gradients_of_both_its_sides() {
    let mut net = Net::new();
    let w = constant(&mut net, "w", &[1], 2.0);
    let left = net.square(w).unwrap();
    let right = net.scale(w, 3.0, 0.0).unwrap();
    let product = net.multiply(left, right).unwrap();
    let loss = net.mean(product).unwrap();
    let pairs = net.main.append_backward(loss, None, &[]).unwrap();
    let mut executor = started(&net);
    // 3 w^3: 9 w^2 = 36.
    assert_eq!(pairs.len(), 1);
    assert_eq!(fetched(&mut executor, &net, pairs[0].1), [36.0]);
    // d/d left = 3 w = 6, d/d right = w^2 = 4, and 1 for the loss itself.
    for (var, expected) in [(left, 6.0), (right, 4.0), (loss, 1.0)] {
        let gradient = net.main.gradient_of(var).unwrap();
        assert_eq!(fetched(&mut executor, &net, gradient), [expected]);
    }
}

#[test]
fn a_variable_used_twice_by_one_op_gets_both_gradients() {
    let mut net = Net::new();
    let w = constant(&mut net, "w", &[2], 3.0);
    let squared = net.multiply(w, w).unwrap();
    let loss = net.reduce_sum(squared, &[], false).unwrap();
    let pairs = net.main.append_backward(loss, None, &[]).unwrap();
    let mut executor = started(&net);
    assert_eq!(fetched(&mut executor, &net, pairs[0].1), [6.0, 6.0]);
}

#[test]
fn a_branch_that_the_loss_does_not_use_gets_no_gradient_and_is_not_trained() {
    let mut net = Net::new();
    let w = constant(&mut net, "w", &[1], 1.0);
    let unused = constant(&mut net, "unused", &[1], 5.0);
    let both = net.add(w, unused).unwrap();
    net.square(both).unwrap();
    let loss = net.mean(w).unwrap();
    let pairs = sgd(0.5).regularizer(Regularizer::L2(0.5)).minimize(&mut net.main, loss).unwrap();
    assert_eq!(pairs, [(w, net.main.find("w@GRAD").unwrap())]);
    assert!(net.main.gradient_of(unused).is_none() && net.main.gradient_of(both).is_none());
    let mut executor = started(&net);
    executor.run(&net.main, nothing(), &[]).unwrap();
    assert_eq!(dense(&executor, "w"), [1.0 - 0.5 * (1.0 + 0.5)]);
    assert_eq!(dense(&executor, "unused"), [5.0], "no decay without a gradient");
}

/// loss = mean((w1 * w2) * w3), with w1 = 2, w2 = 3, w3 = 5.
fn chain() -> (Net, [Var; 3], Var, Var) {
    let mut net = Net::new();
    let w1 = constant(&mut net, "w1", &[1], 2.0);
    let w2 = constant(&mut net, "w2", &[1], 3.0);
    let w3 = constant(&mut net, "w3", &[1], 5.0);
    let inner = net.multiply(w1, w2).unwrap();
    let outer = net.multiply(inner, w3).unwrap();
    let loss = net.mean(outer).unwrap();
    (net, [w1, w2, w3], inner, loss)
}

#[test]
fn no_gradient_flows_through_a_variable_that_stops_it() {
    let (mut net, [w1, w2, w3], inner, loss) = chain();
    net.stop_gradient(inner);
    let pairs = net.main.append_backward(loss, None, &[]).unwrap();
    assert_eq!(pairs.iter().map(|pair| pair.0).collect::<Vec<_>>(), [w3]);
    assert!([w1, w2, inner].iter().all(|&var| net.main.gradient_of(var).is_none()));
    let mut executor = started(&net);
    assert_eq!(fetched(&mut executor, &net, pairs[0].1), [6.0]);
}

#[test]
fn a_frozen_list_stops_gradients_for_one_backward_only() {
    let (net, [w1, w2, w3], inner, loss) = chain();
    for (frozen, trained) in [(vec![inner], vec![w3]), (vec![w2], vec![w1, w3]), (vec![], vec![w1, w2, w3])] {
        let mut program = net.main.clone();
        let pairs = program.append_backward(loss, None, &frozen).unwrap();
        assert_eq!(pairs.iter().map(|pair| pair.0).collect::<Vec<_>>(), trained);
    }
}

#[test]
fn a_parameter_list_restricts_what_is_differentiated() {
    let (mut net, [w1, _, _], _, loss) = chain();
    let pairs = net.main.append_backward(loss, Some(&[w1]), &[]).unwrap();
    assert_eq!(pairs.iter().map(|pair| pair.0).collect::<Vec<_>>(), [w1]);
    sgd(0.1).minimize(&mut net.main, loss).unwrap();
    let mut executor = started(&net);
    assert_eq!(fetched(&mut executor, &net, pairs[0].1), [15.0]);
    assert_eq!(dense(&executor, "w1"), [2.0 - 0.1 * 15.0]);
    assert_eq!((dense(&executor, "w2"), dense(&executor, "w3")), (vec![3.0], vec![5.0]));
}

#[test]
fn a_loss_with_several_elements_is_refused_with_a_hint() {
    let mut net = Net::new();
    let x = net.data("x", &[-1, 1], DType::F32).unwrap();
    let w = constant(&mut net, "w", &[1], 1.0);
    let losses = net.multiply(x, w).unwrap();
    let variables = net.main.variables().len();
    let name = net.main.variable(losses).name.clone();
    let error = sgd(1.0).minimize(&mut net.main, losses).unwrap_err();
    assert_eq!(
        report(&error),
        format!(
            "the loss `{name}` must be a single float, got shape [-1, 1]\n\nhint: take the `mean` of a loss per sample \
             before `minimize`"
        )
    );
    assert_eq!((net.main.variables().len(), net.main.is_trained()), (variables, false));
}

#[test]
fn a_loss_without_trainable_parameters_is_refused_with_a_hint() {
    let mut net = Net::new();
    let x = net.data("x", &[-1, 1], DType::F32).unwrap();
    let frozen = ParamAttr { frozen: true, ..ParamAttr::named("w") };
    let w = net.create_parameter(&[1], &frozen).unwrap();
    let scaled = net.multiply(x, w).unwrap();
    let loss = net.mean(scaled).unwrap();
    let name = net.main.variable(loss).name.clone();
    let error = sgd(1.0).minimize(&mut net.main, loss).unwrap_err();
    assert_eq!(
        report(&error),
        format!(
            "no trainable parameter leads to the loss `{name}`\n\nhint: check that the loss is computed from a layer \
             with parameters and that they are trainable"
        )
    );
}

#[test]
fn gradients_are_variables_named_after_what_they_are_the_gradient_of() {
    let mut net = Net::new();
    let x = net.data("x", &[-1, 3], DType::F32).unwrap();
    let w = constant(&mut net, "w", &[3], 1.0);
    let product = net.multiply(x, w).unwrap();
    let loss = net.reduce_sum(product, &[], false).unwrap();
    net.main.append_backward(loss, None, &[]).unwrap();
    let of_w = net.main.find("w@GRAD").unwrap();
    let of_product = net.main.find(&format!("{}@GRAD", net.main.variable(product).name)).unwrap();
    let mut executor = started(&net);
    let feed = Feed::new().floats("x", 3, vec![1.0, 2.0, 3.0, 10.0, 20.0, 30.0]).unwrap();
    let values = executor.run(&net.main, feed, &[of_w, of_product]).unwrap();
    assert_eq!((values[0].dims(), values[0].f32s().unwrap()), (&[3][..], &[11.0, 22.0, 33.0][..]));
    assert_eq!((values[1].dims(), values[1].f32s().unwrap()), (&[2, 3][..], &[1.0; 6][..]));
    assert!(net.main.gradient_of(x).is_none(), "data has no gradient");
}

/// An embedding beside a dense parameter; the loss is the sum of their products.
fn mixed() -> (Net, Var) {
    let mut net = Net::with_seed(2);
    let slot = net.slot("ids").unwrap();
    let table = ParamAttr { name: Some("rows".into()), ..ParamAttr::init(Initializer::Constant(0.5)) };
    let embedded = net.embedding(slot, 2, &EmbeddingOptions { table, ..EmbeddingOptions::default() }).unwrap();
    let w = constant(&mut net, "w", &[2], 1.0);
    let product = net.multiply(embedded, w).unwrap();
    let loss = net.reduce_sum(product, &[], false).unwrap();
    (net, loss)
}

fn ids() -> Feed {
    Feed::new().slot("ids", &[&[1, 2], &[]]).unwrap()
}

#[test]
fn gradients_without_an_optimizer_change_nothing_and_create_no_rows() {
    let (mut net, loss) = mixed();
    let mut trained = net.main.clone();
    net.main.append_backward(loss, None, &[]).unwrap();
    sgd(1.0).minimize(&mut trained, loss).unwrap();
    let gradient = net.main.find("w@GRAD").unwrap();
    let mut executor = started(&net);
    let values = executor.run(&net.main, ids(), &[gradient]).unwrap();
    assert_eq!(values[0].f32s().unwrap(), [1.0, 1.0]);
    assert!(executor.scope().sparse("rows").unwrap().is_empty());

    // It does not block a program that trains either, and does not push with that program's rule.
    executor.run(&trained, ids(), &[]).unwrap();
    let after = bits(&executor);
    executor.run(&net.main, ids(), &[gradient]).unwrap();
    assert_eq!(bits(&executor), after);
}

#[test]
fn minimize_after_append_backward_returns_the_same_pairs() {
    let (mut net, loss) = mixed();
    let pairs = net.main.append_backward(loss, None, &[]).unwrap();
    assert_eq!(sgd(1.0).minimize(&mut net.main, loss).unwrap(), pairs);
    let names: Vec<&str> = pairs.iter().map(|&(of, _)| net.main.variable(of).name.as_str()).collect();
    assert_eq!(names, ["rows", "w"]);
}

#[test]
fn the_gradient_of_a_table_cannot_be_fetched() {
    let (mut net, loss) = mixed();
    net.main.append_backward(loss, None, &[]).unwrap();
    let gradient = net.main.find("rows@GRAD").unwrap();
    let mut executor = started(&net);
    let error = executor.run(&net.main, ids(), &[gradient]).unwrap_err();
    assert_eq!(error.to_string(), "`rows@GRAD` cannot be fetched: it is the gradient of a sparse table");
    assert!(matches!(error, Error::NotFetchable { .. }));
}

#[test]
fn two_programs_can_train_different_parameters_of_one_scope_by_different_rules() {
    // Like an adversarial pair: each program reads what the other trains.
    let (net, [w1, _, w3], _, loss) = chain();
    let (mut first, mut second) = (net.main.clone(), net.main.clone());
    first.append_backward(loss, Some(&[w1]), &[]).unwrap();
    sgd(0.1).minimize(&mut first, loss).unwrap();
    second.append_backward(loss, Some(&[w3]), &[]).unwrap();
    sgd(0.01).minimize(&mut second, loss).unwrap();
    let mut executor = started(&net);
    executor.run(&first, nothing(), &[]).unwrap();
    executor.run(&second, nothing(), &[]).unwrap();
    executor.run(&first, nothing(), &[]).unwrap();
    // w1 = 2 - 0.1 * 3 * 5 = 0.5; w3 = 5 - 0.01 * 0.5 * 3 = 4.985; w1 = 0.5 - 0.1 * 3 * 4.985.
    assert_eq!(dense(&executor, "w3"), [4.985]);
    assert!((dense(&executor, "w1")[0] - (0.5 - 0.3 * 4.985)).abs() < 1e-6);
    assert_eq!(dense(&executor, "w2"), [3.0]);
}
