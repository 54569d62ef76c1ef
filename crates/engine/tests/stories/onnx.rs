//! A saved model as an ONNX file. What the file computes is compared with onnxruntime in `python/tests/test_predictor.py`; this
//! file tests which files are written and removed.

use std::path::Path;

use openfleet_core::error::report;
use openfleet_engine::onnx::{OnnxOptions, write};
use openfleet_engine::op::{Activation, EmbeddingOptions};
use openfleet_engine::{DType, Error, Executor, Feed, Net, Predictor, Var};

use crate::started;

/// A network over a slot and floats, its table with two rows.
fn model() -> (Executor, Net, Var) {
    let mut net = Net::with_seed(2);
    let slot = net.slot("s").unwrap();
    let dense = net.data("x", &[-1, 2], DType::F32).unwrap();
    let rows = net.embedding(slot, 4, &EmbeddingOptions::default()).unwrap();
    let joined = net.concat(&[rows, dense], 1).unwrap();
    let y = net.fc(joined, 1, Activation::Tanh).unwrap();
    let loss = net.mean(y).unwrap();
    openfleet_engine::Minimize::new(openfleet_table::Optimizer::Sgd(Default::default()), 0.1)
        .minimize(&mut net.main, loss)
        .unwrap();
    let mut executor = started(&net);
    executor.run(&net.main, feed(), &[]).unwrap();
    (executor, net, y)
}

fn feed() -> Feed {
    Feed::new().slot("s", &[&[7], &[u64::MAX]]).unwrap().floats("x", 2, vec![0.5; 4]).unwrap()
}

fn save(executor: &mut Executor, net: &Net, y: Var, address: &str) {
    executor.save_inference_model(&net.main, &["s".to_owned(), "x".to_owned()], &[y], address).unwrap();
}

/// The only directory of a model's files.
fn data(address: &str) -> std::path::PathBuf {
    let entries = std::fs::read_dir(address).unwrap().map(|entry| entry.unwrap().path());
    entries.into_iter().find(|path| path.is_dir()).unwrap()
}

#[test]
fn large_tables_go_into_a_separate_file_and_small_ones_do_not() {
    let directory = tempfile::tempdir().unwrap();
    let address = directory.path().join("model").to_str().unwrap().to_owned();
    let (mut executor, net, y) = model();
    save(&mut executor, &net, y, &address);
    write(&address, &OnnxOptions::default()).unwrap();
    let inside = std::fs::read(Path::new(&address).join("model.onnx")).unwrap();
    assert!(!data(&address).join("model.onnx.data").exists());
    write(&address, &OnnxOptions { inline_bytes: 0, ..OnnxOptions::default() }).unwrap();
    let outside = std::fs::read(Path::new(&address).join("model.onnx")).unwrap();
    let rows = std::fs::read(data(&address).join("model.onnx.data")).unwrap();
    assert_eq!(rows.len(), 3 * 4 * 4, "two rows and the default row");
    assert_eq!(rows[2 * 4 * 4..], [0; 16]);
    let has = |file: &[u8], bytes: &[u8]| file.windows(bytes.len()).any(|window| window == bytes);
    assert!(has(&inside, &rows) && !has(&outside, &rows));
    // Neither of them disturbs the model.
    assert_eq!(Predictor::open(&address).unwrap().predict(feed()).unwrap().len(), 1);
}

#[test]
fn saving_another_model_removes_the_old_onnx_files() {
    let directory = tempfile::tempdir().unwrap();
    let address = directory.path().join("model").to_str().unwrap().to_owned();
    let (mut executor, net, y) = model();
    save(&mut executor, &net, y, &address);
    write(&address, &OnnxOptions { inline_bytes: 0, ..OnnxOptions::default() }).unwrap();
    save(&mut executor, &net, y, &address);
    let files: Vec<_> = std::fs::read_dir(&address).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files.len(), 2, "a manifest and its data: {files:?}");
    assert!(!data(&address).join("model.onnx.data").exists());
}

#[test]
fn an_op_without_an_onnx_form_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let address = directory.path().join("model").to_str().unwrap().to_owned();
    let mut net = Net::with_seed(2);
    let x = net.data("x", &[-1, 3], DType::F32).unwrap();
    let norm = net.l2_normalize(x, -1).unwrap();
    started(&net).save_inference_model(&net.main, &["x".to_owned()], &[norm], &address).unwrap();
    let error = write(&address, &OnnxOptions::default()).unwrap_err();
    assert!(matches!(error, Error::NoOnnxForm { op: "l2_normalize" }), "{error}");
    assert!(report(&error).contains("hint: ") && !Path::new(&address).join("model.onnx").exists());
    let error = write(directory.path().join("nothing").to_str().unwrap(), &OnnxOptions::default()).unwrap_err();
    assert!(report(&error).contains("nothing"), "{error}");
}
