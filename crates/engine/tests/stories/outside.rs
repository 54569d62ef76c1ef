//! Training for another library: rows are looked up, and gradients that were computed elsewhere are pushed.

use openfleet_core::error::report;
use openfleet_engine::op::EmbeddingOptions;
use openfleet_engine::{Exception, Executor, Minimize, Net, OutsideGradients, ParamAttr, Returned, Var};
use openfleet_table::{Adagrad, Adam, Initializer, Optimizer, Sgd};

use crate::{constant, row, started};

/// A program whose layers are elsewhere: a table of rows of 2 floats, and a parameter of 3.
struct Model {
    net: Net,
    rows: Var,
    parameter: Var,
}

fn model(minimize: Minimize) -> Model {
    let mut net = Net::with_seed(1);
    let slot = net.slot("ids").unwrap();
    let table = ParamAttr { name: Some("rows".into()), ..ParamAttr::init(Initializer::Constant(0.5)) };
    let options = EmbeddingOptions { table, vocabulary: Some(100), ..EmbeddingOptions::default() };
    let vectors = net.embedding(slot, 2, &options).unwrap();
    let parameter = constant(&mut net, "parameter", &[3], 1.0);
    let terms = [net.mean(vectors).unwrap(), net.mean(parameter).unwrap()];
    let loss = net.add(terms[0], terms[1]).unwrap();
    minimize.minimize(&mut net.main, loss).unwrap();
    let rows = net.main.find("rows").unwrap();
    Model { net, rows, parameter }
}

impl Model {
    fn push(&self, executor: &mut Executor, rate_factor: f32, ids: &[u64], rows: &[f32], dense: &[f32]) {
        let gradients =
            OutsideGradients { rate_factor, rows: vec![(self.rows, ids, rows)], dense: vec![(self.parameter, dense)] };
        executor.push_gradients(&self.net.main, &gradients).unwrap();
    }
}

#[test]
fn rows_are_those_of_the_distinct_ids_and_only_training_creates_them() {
    let model = model(Minimize::new(Optimizer::Sgd(Sgd {}), 1.0));
    let mut executor = started(&model.net);
    for (for_training, created) in [(false, 0), (true, 2)] {
        let found = executor.look_up(&model.net.main, &[(model.rows, &[7, 3, 7])], for_training).unwrap();
        assert_eq!((&found[0].keys[..], &found[0].positions[..]), (&[7, 3][..], &[0, 1, 0][..]));
        assert_eq!((found[0].dim, &found[0].rows[..]), (2, &[0.5; 4][..]));
        assert_eq!(executor.scope().sparse("rows").unwrap().len(), created);
    }
    assert!(executor.look_up(&model.net.main, &[(model.rows, &[])], true).unwrap()[0].rows.is_empty());
}

#[test]
fn gradients_of_equal_ids_add_up_and_the_rate_has_a_factor() {
    let model = model(Minimize::new(Optimizer::Sgd(Sgd {}), 1.0));
    let mut executor = started(&model.net);
    model.push(&mut executor, 1.0, &[7, 3, 7], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[1.0, 2.0, 3.0]);
    assert_eq!([row(&executor, "rows", 7), row(&executor, "rows", 3)].concat(), [-5.5, -7.5, -2.5, -3.5]);
    let values = executor.parameters(&model.net.main, Returned::All).unwrap();
    assert_eq!(values, [("parameter".to_owned(), vec![0.0, -1.0, -2.0])]);
    // Half the rate; a step without rows.
    model.push(&mut executor, 0.5, &[], &[], &[2.0, 2.0, 2.0]);
    assert_eq!(executor.parameters(&model.net.main, Returned::All).unwrap()[0].1, [-1.0, -2.0, -3.0]);
    // The next step of the program itself has the whole rate again.
    model.push(&mut executor, 1.0, &[3], &[1.0, 1.0], &[0.0; 3]);
    assert_eq!(row(&executor, "rows", 3), [-3.5, -4.5]);
}

#[test]
fn what_has_no_gradient_in_a_step_rests() {
    let model = model(Minimize::new(Optimizer::Adam(Adam::default()), 0.1));
    let mut executor = started(&model.net);
    model.push(&mut executor, 1.0, &[7], &[1.0, 1.0], &[1.0; 3]);
    let (first, rows) = (executor.parameters(&model.net.main, Returned::All).unwrap(), row(&executor, "rows", 7));
    let nothing = OutsideGradients { rate_factor: 1.0, rows: vec![], dense: vec![] };
    executor.push_gradients(&model.net.main, &nothing).unwrap();
    assert_eq!(
        (executor.parameters(&model.net.main, Returned::All).unwrap(), row(&executor, "rows", 7)),
        (first, rows)
    );
    assert_eq!(executor.scope().sparse("rows").unwrap().step(), 1);
    // The next gradient is the second step of both.
    model.push(&mut executor, 1.0, &[7], &[1.0, 1.0], &[1.0; 3]);
    assert!(
        executor.parameters(&model.net.main, Returned::All).unwrap()[0]
            .1
            .iter()
            .all(|value| (value - 0.8).abs() < 1e-6)
    );
    assert!(row(&executor, "rows", 7).iter().all(|value| (value - 0.3).abs() < 1e-6));
}

#[test]
fn a_table_can_have_a_rule_of_its_own() {
    let adagrad = Optimizer::Adagrad(Adagrad { epsilon: 1e-10, ..Adagrad::default() });
    let of_rows = Exception { optimizer: Some(adagrad), learning_rate: 0.25, ..Exception::default() };
    let model = model(Minimize::new(Optimizer::Sgd(Sgd {}), 1.0).exception("rows", of_rows));
    let mut executor = started(&model.net);
    model.push(&mut executor, 1.0, &[7], &[4.0, -2.0], &[1.0, 1.0, 1.0]);
    // Adagrad's first step is the rate itself.
    assert_eq!(row(&executor, "rows", 7), [0.25, 0.75]);
    assert_eq!(executor.parameters(&model.net.main, Returned::All).unwrap()[0].1, [0.0; 3]);
}

#[test]
fn tables_of_one_slot_take_gradients_of_different_ids() {
    let mut net = Net::with_seed(1);
    let slot = net.slot("ids").unwrap();
    let vectors = ["one", "other"].map(|name| {
        let table = ParamAttr { name: Some(name.into()), ..ParamAttr::init(Initializer::Constant(0.5)) };
        let vectors = net.embedding(slot, 1, &EmbeddingOptions { table, ..EmbeddingOptions::default() }).unwrap();
        net.mean(vectors).unwrap()
    });
    let loss = net.add(vectors[0], vectors[1]).unwrap();
    Minimize::new(Optimizer::Sgd(Sgd {}), 1.0).minimize(&mut net.main, loss).unwrap();
    let tables = ["one", "other"].map(|name| net.main.find(name).unwrap());
    let mut executor = started(&net);
    let rows: Vec<(Var, &[u64], &[f32])> = vec![(tables[0], &[1], &[1.0]), (tables[1], &[1, 2], &[2.0, 3.0])];
    executor.push_gradients(&net.main, &OutsideGradients { rate_factor: 1.0, rows, dense: vec![] }).unwrap();
    let rows = [("one", 1), ("one", 2), ("other", 1), ("other", 2)].map(|(table, key)| row(&executor, table, key)[0]);
    assert_eq!(rows, [-0.5, 0.5, -1.5, -2.5]);
}

#[test]
fn what_does_not_fit_is_named_and_changes_nothing() {
    let model = model(Minimize::new(Optimizer::Sgd(Sgd {}), 1.0));
    let mut executor = started(&model.net);
    let error = executor.look_up(&model.net.main, &[(model.rows, &[100])], true).unwrap_err();
    assert!(
        report(&error).contains("an id of slot `ids` must be below the vocabulary's size 100"),
        "{}",
        report(&error)
    );
    let error = executor.look_up(&model.net.main, &[(model.parameter, &[1])], true).unwrap_err();
    assert!(report(&error).contains("a sparse table of the program, got `parameter`"), "{}", report(&error));
    let mut push = |rows, dense| {
        let gradients = OutsideGradients { rate_factor: 1.0, rows, dense };
        report(&executor.push_gradients(&model.net.main, &gradients).unwrap_err())
    };
    let error = push(vec![(model.rows, &[1, 2], &[1.0; 3])], vec![]);
    assert!(error.contains("4 numbers as the gradient of `rows`, got 3"), "{error}");
    let error = push(vec![], vec![(model.parameter, &[1.0])]);
    assert!(error.contains("3 numbers as the gradient of `parameter`, got 1"), "{error}");
    let mut put =
        |ids: &[u64], rows: &[f32]| report(&executor.put_rows(&model.net.main, model.rows, ids, rows).unwrap_err());
    let error = put(&[1, 2], &[1.0; 3]);
    assert!(error.contains("2 rows of 2 floats of `rows`, got 3 floats"), "{error}");
    let error = put(&[1, 2], &[1.0, 1.0, f32::NAN, 1.0]);
    assert!(error.contains("finite weights of `rows`, got NaN in the row of id 2"), "{error}");
    let error = put(&[1, 1], &[1.0; 4]);
    assert!(error.contains("distinct ids of `rows`, got 2 ids, 1 of them distinct"), "{error}");
    assert!(executor.scope().sparse("rows").unwrap().is_empty());
    assert_eq!(executor.parameters(&model.net.main, Returned::All).unwrap()[0].1, [1.0; 3]);
}
