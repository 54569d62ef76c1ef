//! Small networks trained end to end in one process.

use std::sync::Arc;

use openfleet_engine::op::{Activation, EmbeddingOptions};
use openfleet_engine::{DType, Executor, Feed, Minimize, Net, ParamAttr, Scope, Tensor};
use openfleet_table::{Adam, Initializer, Optimizer, Sgd};

#[test]
fn a_click_model_with_one_slot_learns_which_ids_are_clicked() {
    let mut net = Net::with_seed(1);
    let slot = net.slot("id").unwrap();
    let label = net.data("label", &[-1, 1], DType::I64).unwrap();
    let embedded = net.embedding(slot, 4, &EmbeddingOptions::default()).unwrap();
    let hidden = net.fc(embedded, 8, Activation::Relu).unwrap();
    let logit = net.fc(hidden, 1, Activation::Linear).unwrap();
    let target = net.cast(label, DType::F32).unwrap();
    let losses = net.sigmoid_cross_entropy_with_logits(logit, target).unwrap();
    let loss = net.mean(losses).unwrap();
    let probability = net.sigmoid(logit).unwrap();
    let auc = net.auc(probability, label).unwrap();
    Minimize::new(Optimizer::Adam(Adam::default()), 0.05).minimize(&mut net.main, loss).unwrap();

    let mut executor = Executor::new(Arc::new(Scope::new()));
    executor.run_startup(&net.startup).unwrap();
    let feed =
        || Feed::new().slot("id", &[&[0], &[1, 2], &[], &[u64::MAX]]).unwrap().ints("label", 1, &[1, 0, 0, 1]).unwrap();
    let mut last = Vec::new();
    for _ in 0..100 {
        last = executor.run(&net.main, feed(), &[loss, auc.batch_auc]).unwrap();
    }
    assert!(last[0].scalar().unwrap() < 0.1, "{:?}", last[0]);
    assert_eq!(last[1].scalar().unwrap(), 1.0);

    // Evaluation creates no rows and changes no parameter.
    let test = net.main.clone_for_test();
    let rows = executor.scope().sparse("embedding_0.w_0").unwrap().len();
    assert_eq!(rows, 4);
    let before = executor.scope().get("fc_0.w_0").unwrap();
    let unseen = Feed::new().slot("id", &[&[77]]).unwrap().ints("label", 1, &[1]).unwrap();
    executor.run(&test, unseen, &[loss]).unwrap();
    assert_eq!(executor.scope().sparse("embedding_0.w_0").unwrap().len(), rows);
    assert_eq!(executor.scope().get("fc_0.w_0").unwrap(), before);
}

#[test]
fn one_sgd_step_of_a_linear_layer_agrees_with_the_formula() {
    let mut net = Net::new();
    let x = net.data("x", &[-1, 2], DType::F32).unwrap();
    let constant = ParamAttr::init(Initializer::Constant(0.5));
    let options = openfleet_engine::op::FcOptions { weight: constant, ..Default::default() };
    let y = net.fc_with(x, 1, options).unwrap();
    let loss = net.mean(y).unwrap();
    Minimize::new(Optimizer::Sgd(Sgd::default()), 0.1).minimize(&mut net.main, loss).unwrap();
    let mut executor = Executor::new(Arc::new(Scope::new()));
    executor.run_startup(&net.startup).unwrap();
    let feed = Feed::new().floats("x", 2, vec![1.0, 2.0, 3.0, 4.0]).unwrap();
    executor.run(&net.main, feed, &[loss]).unwrap();
    // d mean(x w + b) / dw = mean of x over rows = [2, 3]; / db = 1.
    let w = executor.scope().get("fc_0.w_0").unwrap();
    let b = executor.scope().get("fc_0.b_0").unwrap();
    assert_eq!(w, Tensor::from_f32(&[2, 1], vec![0.5 - 0.2, 0.5 - 0.3]).unwrap());
    assert_eq!(b, Tensor::from_f32(&[1], vec![-0.1]).unwrap());
}
