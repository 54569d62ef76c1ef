//! Building programs: names, guards, sharing, copies, and errors.

use openfleet_core::error::report;
use openfleet_engine::op::{Activation, EmbeddingOptions, FcOptions};
use openfleet_engine::{DType, Error, Feed, Minimize, Net, ParamAttr, Program, RowLife, Var};
use openfleet_table::{Initializer, Momentum, Optimizer, Sgd};

use crate::{dense, started};

fn sgd(rate: f64) -> Minimize {
    Minimize::new(Optimizer::Sgd(Sgd::default()), rate)
}

/// Two dense layers on `x`; returns their output and its mean.
fn network(net: &mut Net) -> (Var, Var) {
    let x = net.data("x", &[-1, 2], DType::F32).unwrap();
    let hidden = net.fc(x, 3, Activation::Tanh).unwrap();
    let y = net.fc(hidden, 1, Activation::Linear).unwrap();
    let loss = net.mean(y).unwrap();
    (y, loss)
}

fn feed() -> Feed {
    Feed::new().floats("x", 2, vec![1.0, 2.0, 3.0, -4.0]).unwrap()
}

fn parameter_names(program: &Program) -> Vec<String> {
    program.parameters().map(|(_, variable)| variable.name.clone()).collect()
}

#[test]
fn a_second_network_with_new_name_counters_finds_the_parameters_of_the_first() {
    let mut net = Net::with_seed(3);
    let (y, loss) = network(&mut net);
    sgd(0.1).minimize(&mut net.main, loss).unwrap();
    let (mut main, mut startup) = (Program::new(), Program::new());
    let (second_y, _) = net.program_guard(&mut main, &mut startup, |net| net.unique_name_guard(network));
    let names = ["fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0"];
    assert_eq!(parameter_names(&net.main), names);
    assert_eq!(parameter_names(&main), names);

    let mut executor = started(&net);
    executor.run(&net.main, feed(), &[]).unwrap();
    let first = executor.run(&net.main.clone_for_test(), feed(), &[y]).unwrap();
    assert_eq!(executor.run(&main, feed(), &[second_y]).unwrap(), first);
}

#[test]
fn name_counters_continue_after_a_guard() {
    let mut net = Net::new();
    assert_eq!(net.unique_name("fc"), "fc_0");
    assert_eq!(net.unique_name_guard(|net| net.unique_name("fc")), "fc_0");
    assert_eq!(net.unique_name("fc"), "fc_1");
}

#[test]
fn program_guard_restores_the_outer_programs_even_after_an_error() {
    let mut net = Net::new();
    network(&mut net);
    let (outer_main, outer_startup) = (net.main.clone(), net.startup.clone());
    let (mut main, mut startup) = (Program::new(), Program::new());
    let built = net.program_guard(&mut main, &mut startup, |net| {
        let x = net.data("x", &[-1, 2], DType::F32)?;
        net.fc(x, 7, Activation::Linear)?;
        net.data("x", &[-1, 2], DType::F32)
    });
    assert!(matches!(built, Err(Error::NameTaken { .. })));
    assert_eq!((&net.main, &net.startup), (&outer_main, &outer_startup));
    assert_eq!(main.parameters().count(), 2, "what was built stays in the inner program");
    assert_eq!(startup.nodes().len(), 2);
}

#[test]
fn a_copy_for_test_has_no_backward_and_no_update_and_keeps_the_handles() {
    let mut net = Net::with_seed(3);
    let (y, loss) = network(&mut net);
    let w = net.main.find("fc_0.w_0").unwrap();
    sgd(0.1).minimize(&mut net.main, loss).unwrap();
    let test = net.main.clone_for_test();
    assert!(net.main.is_trained() && !net.main.is_for_test());
    assert!(!test.is_trained() && test.is_for_test());
    assert!(net.main.gradient_of(w).is_some() && test.gradient_of(w).is_none());
    assert_eq!(test.find("fc_0.w_0").unwrap(), w);

    let mut executor = started(&net);
    let before = dense(&executor, "fc_0.w_0");
    let evaluated = executor.run(&test, feed(), &[y, loss]).unwrap();
    assert_eq!(dense(&executor, "fc_0.w_0"), before);
    // The forward of a training step sees the parameters before its own update.
    assert_eq!(executor.run(&net.main, feed(), &[y, loss]).unwrap(), evaluated);
    assert_ne!(dense(&executor, "fc_0.w_0"), before);
    let gradient = net.main.gradient_of(w).unwrap();
    let error = executor.run(&test, feed(), &[gradient]).unwrap_err();
    assert_eq!(error.to_string(), "`fc_0.w_0@GRAD` cannot be fetched: no op of this program computes or reads it");
}

#[test]
fn two_variables_of_one_name_are_an_error_with_a_hint() {
    let mut net = Net::new();
    net.data("x", &[-1, 2], DType::F32).unwrap();
    let error = net.data("x", &[-1, 3], DType::F32).unwrap_err();
    assert_eq!(
        report(&error),
        "a variable named `x` already exists with shape [-1, 2], expected [-1, 3]\n\nhint: give one of them another \
         name, or build the second network under a new name generator"
    );
}

#[test]
fn an_unknown_variable_error_suggests_the_nearest_name() {
    let mut net = Net::new();
    network(&mut net);
    let error = net.main.find("fc_0.w").unwrap_err();
    assert!(report(&error).starts_with("the program has no variable named `fc_0.w`\n\nhint: did you mean `fc_0."));
}

#[test]
fn layers_that_name_one_parameter_share_it_and_its_gradient() {
    let mut net = Net::new();
    let x = net.data("x", &[-1, 2], DType::F32).unwrap();
    let shared = |value: f32| FcOptions {
        weight: ParamAttr { name: Some("shared".into()), ..ParamAttr::init(Initializer::Constant(value)) },
        bias: None,
        ..FcOptions::default()
    };
    let a = net.fc_with(x, 1, shared(0.5)).unwrap();
    let doubled = net.scale(x, 2.0, 0.0).unwrap();
    let b = net.fc_with(doubled, 1, shared(9.0)).unwrap();
    let sum = net.add(a, b).unwrap();
    let loss = net.mean(sum).unwrap();
    assert_eq!(parameter_names(&net.main), ["shared"]);
    assert_eq!(net.startup.nodes().len(), 1);
    sgd(1.0).minimize(&mut net.main, loss).unwrap();
    let mut executor = started(&net);
    executor.run(&net.main, feed(), &[]).unwrap();
    // The mean row of x is [2, -1]; the second layer sees it twice: d loss / dw = 3 [2, -1]. The first layer that names it
    // decides its first values.
    assert_eq!(dense(&executor, "shared"), [0.5 - 6.0, 0.5 + 3.0]);

    let error = net.fc_with(x, 2, shared(0.5)).unwrap_err();
    assert!(matches!(error, Error::NameTaken { ref name, .. } if name == "shared"), "{error}");
}

#[test]
fn a_plain_op_refuses_a_table_or_a_gradient_as_input() {
    let mut net = Net::new();
    let table = net
        .sparse_table("t", 4, None, &ParamAttr::named("rows"), Initializer::Constant(0.0), &RowLife::default())
        .unwrap();
    let (_, loss) = network(&mut net);
    net.main.append_backward(loss, None, &[]).unwrap();
    let gradient = net.main.find("fc_0.w_0@GRAD").unwrap();
    let nodes = net.main.nodes().len();
    for (var, got) in
        [(table, "`rows`, a sparse table"), (gradient, "`fc_0.w_0@GRAD`, a gradient, which can only be fetched")]
    {
        let error = net.relu(var).unwrap_err();
        assert_eq!(error.to_string(), format!("`relu` expects a tensor as input 0, got {got}"));
    }
    assert_eq!(net.main.nodes().len(), nodes, "a refused op leaves nothing behind");
}

#[test]
fn ids_computed_by_an_op_are_refused_by_name() {
    let mut net = Net::new();
    let ids = net.data("ids", &[-1, 2], DType::I64).unwrap();
    let copy = net.assign(ids).unwrap();
    let name = net.main.variable(copy).name.clone();
    let pooled = net.embedding(copy, 2, &EmbeddingOptions::default()).unwrap();
    let mut executor = started(&net);
    let feed = Feed::new().ints("ids", 2, &[1, 2]).unwrap();
    let error = executor.run(&net.main, feed, &[pooled]).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "`embedding` expects ids for a sparse table that come directly from the data, got `{name}`, which an op computes"
        )
    );
}

#[test]
fn a_program_survives_a_serialization_round_trip() {
    let mut net = Net::with_seed(11);
    let slot = net.slot("ids").unwrap();
    let embedded = net.embedding(slot, 2, &EmbeddingOptions::default()).unwrap();
    let x = net.data("x", &[-1, 2], DType::F32).unwrap();
    let joined = net.concat(&[embedded, x], 1).unwrap();
    let y = net.fc(joined, 1, Activation::Sigmoid).unwrap();
    let loss = net.mean(y).unwrap();
    sgd(0.3).minimize(&mut net.main, loss).unwrap();

    let text = serde_json::to_string(&net.main).unwrap();
    let mut read: Program = serde_json::from_str(&text).unwrap();
    assert!(matches!(read.find("x"), Err(Error::UnknownVariable { .. })), "names are not written twice");
    read.index_names();
    assert_eq!(read, net.main);
    assert_eq!(read.find("x").unwrap(), x);

    let feed = || feed().slot("ids", &[&[7, 8], &[]]).unwrap();
    let run = |program: &Program| {
        let mut executor = started(&net);
        let values: Vec<_> = (0..3).map(|_| executor.run(program, feed(), &[loss, y]).unwrap()).collect();
        (values, crate::bits(&executor))
    };
    assert_eq!(run(&read), run(&net.main));
}

#[test]
fn a_program_that_changed_is_compiled_again() {
    let mut net = Net::new();
    let x = net.data("x", &[-1, 2], DType::F32).unwrap();
    let doubled = net.scale(x, 2.0, 0.0).unwrap();
    let mut executor = started(&net);
    executor.run(&net.main, feed(), &[doubled]).unwrap();
    let more = net.scale(doubled, 1.0, 1.0).unwrap();
    let values = executor.run(&net.main, feed(), &[more]).unwrap();
    assert_eq!(values[0].f32s().unwrap(), [3.0, 5.0, 7.0, -7.0]);
}

#[test]
fn programs_that_differ_only_in_their_optimizer_get_separate_plans() {
    let mut net = Net::with_seed(1);
    let (_, loss) = network(&mut net);
    let mut other = net.main.clone();
    sgd(0.1).minimize(&mut net.main, loss).unwrap();
    Minimize::new(Optimizer::Momentum(Momentum::default()), 0.1).minimize(&mut other, loss).unwrap();
    let mut executor = started(&net);
    executor.run(&net.main, feed(), &[]).unwrap();
    // A parameter keeps the state of the rule that trained it: the other program gets an error and does not train it with the
    // wrong rule.
    let error = executor.run(&other, feed(), &[]).unwrap_err();
    assert!(matches!(error, Error::ScopeMismatch { .. }), "{error}");
}
