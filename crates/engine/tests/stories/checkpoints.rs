//! Saving and loading checkpoints of a single process.

use std::path::Path;
use std::sync::Arc;

use openfleet_dist::storage::Directory;
use openfleet_dist::{LoadOptions, SaveOptions};
use openfleet_engine::op::{Activation, EmbeddingOptions};
use openfleet_engine::{DType, Executor, Feed, Minimize, Net, ParamAttr, Scope, Var};
use openfleet_table::checkpoint::read_manifest;
use openfleet_table::{Adam, Initializer, Optimizer, Sgd};

use crate::started;

struct Model {
    net: Net,
    loss: Var,
    probability: Var,
    auc: Var,
}

/// Embedding, batch norm (with running statistics), a dense layer and AUC counters.
fn model(width: usize, optimizer: Optimizer) -> Model {
    let mut net = Net::with_seed(3);
    let slot = net.slot("id").unwrap();
    let label = net.data("label", &[-1, 1], DType::I64).unwrap();
    let embedded = net.embedding(slot, 4, &EmbeddingOptions::default()).unwrap();
    let normal = net.batch_norm(embedded, &Default::default()).unwrap();
    let hidden = net.fc(normal, width, Activation::Relu).unwrap();
    let logit = net.fc(hidden, 1, Activation::Linear).unwrap();
    let target = net.cast(label, DType::F32).unwrap();
    let losses = net.sigmoid_cross_entropy_with_logits(logit, target).unwrap();
    let loss = net.mean(losses).unwrap();
    let probability = net.sigmoid(logit).unwrap();
    let auc = net.auc(probability, label).unwrap().auc;
    Minimize::new(optimizer, 0.05).minimize(&mut net.main, loss).unwrap();
    Model { net, loss, probability, auc }
}

fn adam() -> Optimizer {
    Optimizer::Adam(Adam::default())
}

fn feed(step: u64) -> Feed {
    let ids = [[step % 5], [step % 3 + 7], [u64::MAX - step % 2], [step]];
    let rows: Vec<&[u64]> = ids.iter().map(|row| row.as_slice()).collect();
    Feed::new().slot("id", &rows).unwrap().ints("label", 1, &[1, 0, 1, (step % 2) as i64]).unwrap()
}

fn steps(executor: &mut Executor, model: &Model, steps: std::ops::Range<u64>) -> Vec<(f64, f64)> {
    let step = |step| {
        let values = executor.run(&model.net.main, feed(step), &[model.loss, model.auc]).unwrap();
        (values[0].scalar().unwrap(), values[1].scalar().unwrap())
    };
    steps.map(step).collect()
}

fn begun(model: &Model) -> Executor {
    started(&model.net)
}

fn save(executor: &mut Executor, model: &Model, path: &Path) {
    executor.save(&model.net.main, path.to_str().unwrap(), &SaveOptions::default()).unwrap();
}

const STRICT: LoadOptions = LoadOptions { partial: false, tables_only: false };

#[test]
fn training_resumes_from_a_checkpoint_as_if_never_interrupted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model");
    let model = model(6, adam());
    let mut straight = begun(&model);
    let expected = steps(&mut straight, &model, 0..20);

    let mut first = begun(&model);
    steps(&mut first, &model, 0..8);
    save(&mut first, &model, &path);
    // No startup program: everything comes from the checkpoint, including the AUC counters.
    let mut second = Executor::new(Arc::new(Scope::new()));
    second.load(&model.net.main, path.to_str().unwrap(), STRICT).unwrap();
    assert_eq!(steps(&mut second, &model, 8..20), expected[8..], "to the bit");
    // A save changes nothing, and a load discards what was trained since.
    assert_eq!(steps(&mut first, &model, 8..20), expected[8..]);
    first.load(&model.net.main, path.to_str().unwrap(), STRICT).unwrap();
    assert_eq!(steps(&mut first, &model, 8..20), expected[8..]);
}

#[test]
fn a_program_that_only_predicts_loads_what_it_needs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model");
    let model = model(6, adam());
    let mut trained = begun(&model);
    steps(&mut trained, &model, 0..10);
    save(&mut trained, &model, &path);
    let test = model.net.main.clone_for_test();
    let expected = trained.run(&test, feed(2), &[model.probability]).unwrap();
    let mut other = Executor::new(Arc::new(Scope::new()));
    other.load(&test, path.to_str().unwrap(), STRICT).unwrap();
    assert_eq!(other.run(&test, feed(2), &[model.probability]).unwrap(), expected);
    // If the tables belong to a program that trains, the optimizer state is loaded too.
    other.load(&model.net.main, path.to_str().unwrap(), STRICT).unwrap();
    other.load(&test, path.to_str().unwrap(), STRICT).unwrap();
    // The prediction above was counted in the AUC of one of the two.
    let losses =
        |executor: &mut Executor| steps(executor, &model, 10..12).iter().map(|(loss, _)| *loss).collect::<Vec<_>>();
    assert_eq!(losses(&mut other), losses(&mut trained));
}

#[test]
fn a_mismatch_is_named_and_skipped_only_with_partial() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model");
    let address = path.to_str().unwrap();
    let small = model(6, adam());
    let mut executor = begun(&small);
    steps(&mut executor, &small, 0..3);
    save(&mut executor, &small, &path);

    let wide = model(7, adam());
    let mut other = begun(&wide);
    let before = steps(&mut other, &wide, 0..1);
    let error = openfleet_core::error::report(&other.load(&wide.net.main, address, STRICT).unwrap_err());
    assert!(error.contains("`fc_0.w_0`") && error.contains("[4, 7]") && error.contains("[4, 6]"), "{error}");
    let mut untouched = begun(&wide);
    assert_eq!(steps(&mut untouched, &wide, 0..1), before);
    assert_eq!(steps(&mut other, &wide, 1..4), steps(&mut untouched, &wide, 1..4), "a failed load changes nothing");
    other.load(&wide.net.main, address, LoadOptions { partial: true, tables_only: false }).unwrap();
    let table = |executor: &Executor| executor.scope().sparse("embedding_0.w_0").unwrap();
    assert_eq!(table(&other).read(7, |row, _| row.to_vec()), table(&executor).read(7, |row, _| row.to_vec()));

    let sgd = model(6, Optimizer::Sgd(Sgd::default()));
    let error = begun(&sgd).load(&sgd.net.main, address, STRICT).unwrap_err();
    let error = openfleet_core::error::report(&error);
    assert!(error.contains("adam") && error.contains("sgd"), "{error}");
    let error = begun(&sgd).load(&sgd.net.main, "no/such/place", STRICT).unwrap_err();
    assert!(openfleet_core::error::report(&error).contains("no/such/place"), "{error}");
}

#[test]
fn only_what_is_named_is_saved() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("table");
    let model = model(6, adam());
    let mut executor = begun(&model);
    steps(&mut executor, &model, 0..3);
    let only = SaveOptions { only: vec!["embedding_0.w_0".into()], ..SaveOptions::default() };
    executor.save(&model.net.main, path.to_str().unwrap(), &only).unwrap();
    let manifest = read_manifest(&Directory::new(&path)).unwrap();
    assert_eq!((manifest.sparse.len(), manifest.dense.len(), manifest.states_file), (1, 0, None));
    let error = begun(&model).load(&model.net.main, path.to_str().unwrap(), STRICT).unwrap_err();
    assert!(openfleet_core::error::report(&error).contains("batch_norm_0"), "{error}");
    let mut other = begun(&model);
    other.load(&model.net.main, path.to_str().unwrap(), LoadOptions { partial: true, tables_only: false }).unwrap();
    assert_eq!(other.scope().sparse("embedding_0.w_0").unwrap().len() as u64, manifest.sparse[0].rows);
}

#[test]
fn an_inference_model_contains_only_what_prediction_needs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model");
    let address = path.to_str().unwrap();
    let model = model(6, adam());
    let mut trained = begun(&model);
    steps(&mut trained, &model, 0..10);
    let feeds = ["id".to_owned()];
    let manifest = trained.save_inference_model(&model.net.main, &feeds, &[model.probability], address).unwrap();
    assert!(manifest.sparse[0].slots.is_empty() && manifest.dense.iter().all(|entry| entry.slots.is_empty()));
    let expected = trained.run(&model.net.main.clone_for_test(), feed(2), &[model.probability]).unwrap();

    let mut other = Executor::new(Arc::new(Scope::new()));
    let loaded = other.load_inference_model(address).unwrap();
    let ops: Vec<&str> = loaded.program.nodes().iter().map(|node| node.op.operator().name()).collect();
    assert!(!ops.contains(&"auc") && !ops.contains(&"mean"), "{ops:?}");
    let ids = Feed::new().slot("id", &[&[2], &[9], &[u64::MAX], &[2]]).unwrap();
    assert_eq!(other.run(&loaded.program, ids, &loaded.targets).unwrap(), expected);
    // A key that was never seen gets the first values that training would have given it.
    let unseen = || Feed::new().slot("id", &[&[12345]]).unwrap();
    let (pruned, targets) = model.net.main.prune(&[model.probability]);
    let expected = trained.run(&pruned, unseen(), &targets).unwrap();
    assert_eq!(other.run(&loaded.program, unseen(), &loaded.targets).unwrap(), expected);

    let error = trained.save_inference_model(&model.net.main, &feeds, &[model.loss], address).unwrap_err();
    assert!(error.to_string().contains("`label` among the feeds"), "{error}");
    let error = trained.save_inference_model(&model.net.main, &[], &[model.probability], address).unwrap_err();
    assert!(error.to_string().contains("`id`"), "{error}");
}

#[test]
fn unseen_rows_use_the_initializer_of_the_training_program() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model");
    let build = |initializer: Initializer, seed: u64| {
        let mut net = Net::with_seed(seed);
        let slot = net.slot("id").unwrap();
        let table = ParamAttr { name: Some("ids".into()), ..ParamAttr::init(initializer) };
        let rows = net.embedding(slot, 2, &EmbeddingOptions { table, ..EmbeddingOptions::default() }).unwrap();
        let loss = net.mean(rows).unwrap();
        (net, rows, loss)
    };
    let (mut net, rows, loss) = build(Initializer::Uniform { low: 3.0, high: 4.0 }, 1);
    Minimize::new(adam(), 0.1).minimize(&mut net.main, loss).unwrap();
    let mut trained = started(&net);
    let ids = || Feed::new().slot("id", &[&[1], &[2]]).unwrap();
    trained.run(&net.main, ids(), &[]).unwrap();
    trained.save(&net.main, path.to_str().unwrap(), &SaveOptions::default()).unwrap();
    let unseen = || Feed::new().slot("id", &[&[1], &[77]]).unwrap();
    let expected = trained.run(&net.main.clone_for_test(), unseen(), &[rows]).unwrap();

    let (other, rows, _) = build(Initializer::Constant(0.0), 2);
    let mut predicts = started(&other);
    predicts.load(&other.main, path.to_str().unwrap(), STRICT).unwrap();
    assert_eq!(predicts.run(&other.main.clone_for_test(), unseen(), &[rows]).unwrap(), expected);
}
