//! A saved model that many threads predict with, with its rows mapped into memory.

use std::path::Path;
use std::sync::Arc;

use openfleet_core::error::report;
use openfleet_core::{Field, FieldKind, Key, Schema};
use openfleet_engine::models::{CtrDnn, CtrInputs, CtrOutputs, Dcn, DeepFm, WideDeep, ctr_dnn, dcn, deepfm, wide_deep};
use openfleet_engine::op::Activation;
use openfleet_engine::{DType, Executor, Feed, InferenceModel, Minimize, Net, Predictor, Scope, Tensor, Var};
use openfleet_table::{Adam, Optimizer};

use crate::{Numbers, started};

const ROWS: usize = 24;

type Build = fn(&mut Net, &CtrInputs) -> CtrOutputs;

/// The models, with small sizes.
const MODELS: [(&str, Build); 4] = [
    ("ctr-dnn", |net, inputs| ctr_dnn(net, inputs, &CtrDnn { dim: 5, hidden: vec![16, 8] }).unwrap()),
    ("wide-deep", |net, inputs| {
        wide_deep(net, inputs, &WideDeep { dim: 5, hidden: vec![16, 8], wide_ids: true }).unwrap()
    }),
    ("deepfm", |net, inputs| deepfm(net, inputs, &DeepFm { dim: 4, hidden: vec![16, 8] }).unwrap()),
    ("dcn", |net, inputs| dcn(net, inputs, &Dcn { dim: 4, crosses: 2, hidden: vec![16, 8] }).unwrap()),
];

fn schema() -> Schema {
    let slots = (0..4).map(|slot| Field::new(format!("C{slot}"), FieldKind::Ids));
    let label = Field::new("label", FieldKind::FixedIds { length: 1 });
    Schema::new(slots.chain([Field::new("dense", FieldKind::Floats { dim: 3 }), label]).collect()).unwrap()
}

/// Rows with zero, one or several ids per slot; ids use all 64 bits.
fn batch(seed: u64, vocabulary: u64) -> Feed {
    let mut numbers = Numbers(seed);
    let mut feed = Feed::new();
    for slot in 0..4 {
        let ids: Vec<Vec<Key>> = (0..ROWS)
            .map(|_| {
                let count = numbers.below(4);
                (0..count).map(|_| numbers.below(vocabulary).wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect()
            })
            .collect();
        let rows: Vec<&[Key]> = ids.iter().map(Vec::as_slice).collect();
        feed = feed.slot(&format!("C{slot}"), &rows).unwrap();
    }
    feed.floats("dense", 3, (0..3 * ROWS).map(|_| numbers.uniform()).collect()).unwrap()
}

fn labelled(seed: u64) -> Feed {
    let mut numbers = Numbers(!seed);
    let labels: Vec<i64> = (0..ROWS).map(|_| numbers.below(2) as i64).collect();
    batch(seed, 50).ints("label", 1, &labels).unwrap()
}

/// Trains a model a little and saves an inference model; returns the executor that trained it and the target.
fn saved(build: Build, address: &str) -> (Executor, Net, Var) {
    let mut net = Net::with_seed(11);
    let inputs = CtrInputs::declare(&mut net, &schema()).unwrap();
    let outputs = build(&mut net, &inputs);
    Minimize::new(Optimizer::Adam(Adam::default()), 0.05).minimize(&mut net.main, outputs.loss).unwrap();
    let mut executor = started(&net);
    for step in 0..5 {
        executor.run(&net.main, labelled(step), &[]).unwrap();
    }
    let feeds = ["C0", "C1", "C2", "C3", "dense"].map(str::to_owned);
    executor.save_inference_model(&net.main, &feeds, &[outputs.probability], address).unwrap();
    (executor, net, outputs.probability)
}

fn path(directory: &tempfile::TempDir) -> String {
    Path::new(directory.path()).join("model").to_str().unwrap().to_owned()
}

fn bits(tensors: &[Tensor]) -> Vec<u32> {
    tensors.iter().flat_map(|tensor| tensor.f32s().unwrap().iter().map(|value| value.to_bits())).collect()
}

#[test]
fn a_predictor_agrees_with_the_executor_to_the_bit() {
    for (name, build) in MODELS {
        let directory = tempfile::tempdir().unwrap();
        let address = path(&directory);
        let (mut trained, net, probability) = saved(build, &address);
        let predictor = Predictor::open(&address).unwrap();
        assert_eq!(predictor.feeds(), ["C0", "C1", "C2", "C3", "dense"]);
        assert_eq!(predictor.targets(), [net.main.variable(probability).name.as_str()]);
        let mut executor = Executor::new(Arc::new(Scope::new()));
        let model = executor.load_inference_model(&address).unwrap();
        let test = net.main.clone_for_test();
        // Ids that were trained, and then ids that were not.
        for (seed, vocabulary) in [(100, 50), (101, 50), (102, 5000), (103, u64::MAX)] {
            let got = predictor.predict(batch(seed, vocabulary)).unwrap();
            let expected = executor.run(&model.program, batch(seed, vocabulary), &model.targets).unwrap();
            assert_eq!(bits(&got), bits(&expected), "{name}");
            assert_eq!(got[0].dims(), expected[0].dims());
            let label = batch(seed, vocabulary).ints("label", 1, &[0; ROWS]).unwrap();
            assert_eq!(bits(&got), bits(&trained.run(&test, label, &[probability]).unwrap()), "{name}, as trained");
        }
    }
}

#[test]
fn a_training_checkpoint_can_predict_with_a_pruned_program() {
    for (name, build) in MODELS {
        let directory = tempfile::tempdir().unwrap();
        let address = path(&directory);
        let (mut trained, net, probability) = saved(build, &address);
        trained.save(&net.main, &address, &Default::default()).unwrap();
        let model = InferenceModel::leading_to(&net.main, &[probability]);
        assert_eq!(model.feeds, ["C0", "C1", "C2", "C3", "dense"], "and no label");
        let predictor = Predictor::of(model, &address).unwrap();
        let test = net.main.clone_for_test();
        for (seed, vocabulary) in [(100, 50), (103, u64::MAX)] {
            let label = batch(seed, vocabulary).ints("label", 1, &[0; ROWS]).unwrap();
            let expected = trained.run(&test, label, &[probability]).unwrap();
            assert_eq!(bits(&predictor.predict(batch(seed, vocabulary)).unwrap()), bits(&expected), "{name}");
        }
    }
}

#[test]
fn many_threads_predict_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let address = path(&directory);
    saved(MODELS[2].1, &address);
    let predictor = Predictor::open(&address).unwrap();
    let expected: Vec<_> = (0..8).map(|seed| bits(&predictor.predict(batch(seed, 200)).unwrap())).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (predictor, expected) = (&predictor, &expected);
            scope.spawn(move || {
                for round in 0..40 {
                    let seed = (thread * 3 + round) % 8;
                    let got = predictor.predict(batch(seed, 200)).unwrap();
                    assert_eq!(bits(&got), expected[seed as usize]);
                }
            });
        }
    });
}

#[test]
fn an_open_predictor_keeps_its_model_when_the_files_are_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let address = path(&directory);
    saved(MODELS[0].1, &address);
    let predictor = Predictor::open(&address).unwrap();
    let before = bits(&predictor.predict(batch(7, 50)).unwrap());
    saved(MODELS[1].1, &address);
    assert_eq!(bits(&predictor.predict(batch(7, 50)).unwrap()), before);
    assert_ne!(bits(&Predictor::open(&address).unwrap().predict(batch(7, 50)).unwrap()), before);
}

#[test]
fn running_statistics_are_those_that_were_saved() {
    let directory = tempfile::tempdir().unwrap();
    let address = path(&directory);
    let mut net = Net::with_seed(5);
    let x = net.data("x", &[-1, 3], DType::F32).unwrap();
    let normal = net.batch_norm(x, &Default::default()).unwrap();
    let y = net.fc(normal, 1, Activation::Tanh).unwrap();
    let loss = net.mean(y).unwrap();
    Minimize::new(Optimizer::Adam(Adam::default()), 0.05).minimize(&mut net.main, loss).unwrap();
    let mut executor = started(&net);
    let feed = || Feed::new().floats("x", 3, vec![1.0, 2.0, 3.0, -4.0, 5.0, 9.0]).unwrap();
    for _ in 0..3 {
        executor.run(&net.main, feed(), &[]).unwrap();
    }
    executor.save_inference_model(&net.main, &["x".to_owned()], &[y], &address).unwrap();
    let expected = executor.run(&net.main.clone_for_test(), feed(), &[y]).unwrap();
    let predictor = Predictor::open(&address).unwrap();
    for _ in 0..2 {
        assert_eq!(predictor.predict(feed()).unwrap(), expected);
    }
}

#[test]
fn a_bad_feed_is_named_and_does_not_affect_the_next_prediction() {
    let directory = tempfile::tempdir().unwrap();
    let address = path(&directory);
    saved(MODELS[3].1, &address);
    let predictor = Predictor::open(&address).unwrap();
    let expected = bits(&predictor.predict(batch(3, 50)).unwrap());
    let refused = |feed: Feed| report(&predictor.predict(feed).unwrap_err());
    let slots = || (0..4).fold(Feed::new(), |feed, slot| feed.slot(&format!("C{slot}"), &[&[1], &[2, 3]]).unwrap());
    let error = refused(slots());
    assert!(error.contains("reads `dense`"), "{error}");
    let error = refused(slots().floats("dense", 2, vec![0.0; 4]).unwrap());
    assert!(error.contains("`dense`") && error.contains('3') && error.contains('2'), "{error}");
    let error = refused(Feed::new().floats("C0", 1, vec![0.0]).unwrap());
    assert!(error.contains("`C0`"), "{error}");
    let error = report(&slots().floats("dense", 3, vec![0.0; 9]).unwrap_err());
    assert!(error.contains("`dense`") && error.contains("2 rows"), "{error}");
    assert_eq!(bits(&predictor.predict(batch(3, 50)).unwrap()), expected);
}

#[test]
fn opening_refuses_damaged_models_and_other_checkpoints() {
    let directory = tempfile::tempdir().unwrap();
    let address = path(&directory);
    let error = report(&Predictor::open(&address).unwrap_err());
    assert!(error.contains(&address), "{error}");

    let (mut executor, net, _) = saved(MODELS[0].1, &address);
    let weights = walk(Path::new(&address)).into_iter().find(|file| file.ends_with(".weights.npy")).unwrap();
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    let error = report(&Predictor::open(&address).unwrap_err());
    assert!(error.contains(".weights.npy") && error.contains(&address), "{error}");

    executor.save(&net.main, &address, &Default::default()).unwrap();
    let error = report(&Predictor::open(&address).unwrap_err());
    assert!(error.contains("save_inference_model"), "{error}");
}

/// Every file below a directory.
fn walk(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path.to_str().unwrap().to_owned()] }).collect()
}
