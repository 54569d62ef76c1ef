//! The models: their parameters, that they learn, and that evaluation sees what training computes.

use std::collections::HashMap;

use openfleet_core::Schema;
use openfleet_core::metrics::exact_auc;
use openfleet_engine::dataset::{Criteo, WordsConfig, WordsDataset};
use openfleet_engine::models::{
    CtrDnn, CtrInputs, CtrOutputs, Dcn, DeepFm, WideDeep, Word2Vec, ctr_dnn, dcn, deepfm, fit_a_line, wide_deep,
    word2vec,
};
use openfleet_engine::synthetic::{
    CriteoFormat, CriteoGenerator, CriteoRow, CriteoSpec, Split, WordsGenerator, WordsSpec,
};
use openfleet_engine::synthetic::{criteo, words};
use openfleet_engine::{BatchView, DType, Error, Feed, Minimize, Net, RunOptions};
use openfleet_table::{Adam, Optimizer, Sgd};
use std::sync::Mutex;
use tempfile::TempDir;

use crate::{Numbers, dense, loaded, multislot, started};

fn schema() -> Schema {
    Criteo::default().schema()
}

const CLICK_MODELS: [&str; 5] = ["ctr_dnn", "wide_deep", "wide_deep with ids", "deepfm", "dcn"];

fn build(model: &str) -> (Net, CtrOutputs) {
    let mut net = Net::with_seed(1);
    let inputs = CtrInputs::declare(&mut net, &schema()).unwrap();
    let outputs = match model {
        "ctr_dnn" => ctr_dnn(&mut net, &inputs, &CtrDnn::default()),
        "wide_deep" => wide_deep(&mut net, &inputs, &WideDeep::default()),
        "wide_deep with ids" => wide_deep(&mut net, &inputs, &WideDeep { wide_ids: true, ..WideDeep::default() }),
        "deepfm" => deepfm(&mut net, &inputs, &DeepFm::default()),
        _ => dcn(&mut net, &inputs, &Dcn::default()),
    };
    (net, outputs.unwrap())
}

fn feed(rows: &[CriteoRow]) -> Feed {
    let labels: Vec<i64> = rows.iter().map(|row| i64::from(row.label)).collect();
    let dense = rows.iter().flat_map(|row| row.dense).collect();
    let mut feed = Feed::new().ints("label", 1, &labels).unwrap().floats("dense", 13, dense).unwrap();
    for slot in 0..criteo::SLOTS {
        let ids: Vec<&[u64]> = rows.iter().map(|row| &row.ids[slot..=slot]).collect();
        feed = feed.slot(&format!("C{}", slot + 1), &ids).unwrap();
    }
    feed
}

fn click_rows(count: u64) -> Vec<CriteoRow> {
    let spec = CriteoSpec { rows: count, test_rows: 1, ids: 2000, ..CriteoSpec::default() };
    CriteoGenerator::new(&spec).unwrap().rows(Split::Train).collect()
}

/// Dense parameters with their shapes, and tables with their dims, in order of creation.
fn parameters(net: &Net) -> Vec<(String, String)> {
    let shapes = net.main.parameters().chain(net.main.tables());
    shapes.map(|(_, variable)| (variable.name.clone(), variable.shape.to_string())).collect()
}

#[test]
fn click_models_have_paddlepaddles_sizes_by_default() {
    let cases: [(&str, &[(&str, &str)]); 5] = [
        (
            "ctr_dnn",
            &[
                // 26 slots of 10 floats and 13 floats.
                ("fc_0.w_0", "[273, 400]"),
                ("fc_0.b_0", "[400]"),
                ("fc_1.w_0", "[400, 400]"),
                ("fc_1.b_0", "[400]"),
                ("fc_2.w_0", "[400, 400]"),
                ("fc_2.b_0", "[400]"),
                ("fc_3.w_0", "[400, 2]"),
                ("fc_3.b_0", "[2]"),
                ("SparseFeatFactors", "[0, 10]"),
            ],
        ),
        (
            "wide_deep",
            &[
                // 26 slots of 9 floats and 13 floats.
                ("fc_0.w_0", "[247, 512]"),
                ("fc_0.b_0", "[512]"),
                ("fc_1.w_0", "[512, 256]"),
                ("fc_1.b_0", "[256]"),
                ("fc_2.w_0", "[256, 128]"),
                ("fc_2.b_0", "[128]"),
                ("fc_3.w_0", "[128, 32]"),
                ("fc_3.b_0", "[32]"),
                ("fc_4.w_0", "[32, 1]"),
                ("fc_4.b_0", "[1]"),
                ("fc_5.w_0", "[13, 1]"),
                ("fc_5.b_0", "[1]"),
                ("embedding", "[0, 9]"),
            ],
        ),
        ("wide_deep with ids", &[("embedding", "[0, 9]"), ("wide", "[0, 1]")]),
        (
            "deepfm",
            &[
                ("fc_0.w_0", "[13, 1]"),
                ("dense_vectors.w_0", "[13, 9]"),
                // 26 slots and 13 floats of 9 floats each.
                ("fc_1.w_0", "[351, 512]"),
                ("fc_5.w_0", "[32, 1]"),
                ("first_order", "[0, 1]"),
                ("embedding", "[0, 9]"),
            ],
        ),
        (
            "dcn",
            &[
                ("cross_0.w_0", "[247]"),
                ("cross_0.b_0", "[247]"),
                ("cross_1.w_0", "[247]"),
                ("cross_1.b_0", "[247]"),
                ("fc_0.w_0", "[247, 512]"),
                ("fc_3.w_0", "[128, 32]"),
                // The crosses and the last dense layer, side by side.
                ("fc_4.w_0", "[279, 1]"),
                ("embedding", "[0, 9]"),
            ],
        ),
    ];
    for (model, expected) in cases {
        let (net, outputs) = build(model);
        let parameters = parameters(&net);
        for (name, shape) in expected {
            let found = parameters.iter().find(|(known, _)| known == name);
            assert_eq!(found.map(|(_, shape)| shape.as_str()), Some(*shape), "`{name}` of {model}");
        }
        let classes = if model == "ctr_dnn" { "[-1, 2]" } else { "[-1, 1]" };
        assert_eq!(net.shape(outputs.probability).to_string(), classes, "{model}");
        if matches!(model, "ctr_dnn" | "wide_deep") {
            assert_eq!(parameters.len(), expected.len(), "{model} has nothing else");
        }
    }
}

#[test]
fn every_click_model_can_overfit_a_small_batch() {
    let rows = click_rows(24);
    for model in CLICK_MODELS {
        let (mut net, outputs) = build(model);
        Minimize::new(Optimizer::Adam(Adam::default()), 2e-3).minimize(&mut net.main, outputs.loss).unwrap();
        let mut executor = started(&net);
        let losses: Vec<f64> = (0..30)
            .map(|_| executor.run(&net.main, feed(&rows), &[outputs.loss]).unwrap()[0].scalar().unwrap())
            .collect();
        assert!(losses[29] < 0.5 * losses[0], "{model}: from {} to {}", losses[0], losses[29]);
    }
}

#[test]
fn the_evaluation_copy_gives_the_probability_that_training_computes() {
    let rows = click_rows(20);
    for model in CLICK_MODELS {
        let (mut net, outputs) = build(model);
        Minimize::new(Optimizer::Adam(Adam::default()), 1e-3).minimize(&mut net.main, outputs.loss).unwrap();
        let test = net.main.clone_for_test();
        let mut executor = started(&net);
        for _ in 0..3 {
            let fetch = [outputs.probability, outputs.loss];
            let evaluated = executor.run(&test, feed(&rows), &fetch).unwrap();
            assert_eq!(executor.run(&net.main, feed(&rows), &fetch).unwrap(), evaluated, "{model}");
        }
    }
}

#[test]
fn a_schema_without_a_label_is_refused_by_name() {
    let fields = schema().fields()[1..].to_vec();
    let error = CtrInputs::declare(&mut Net::new(), &Schema::new(fields).unwrap()).unwrap_err();
    assert!(matches!(error, Error::NotFed { ref name, .. } if name == "label"), "{error}");
}

#[test]
fn ctr_dnn_on_two_threads_learns_to_rank_generated_clicks() {
    let folder = TempDir::new().unwrap();
    let spec = CriteoSpec {
        rows: 3000,
        test_rows: 100,
        ids: 2000,
        parts: 2,
        formats: vec![CriteoFormat::MultiSlot],
        ..CriteoSpec::default()
    };
    let facts = criteo::write(&spec, folder.path()).unwrap();
    let dataset = loaded(multislot(&schema(), facts.train.files).batch_size(64).thread_num(2));
    let mut net = Net::with_seed(1);
    let inputs = CtrInputs::declare(&mut net, &schema()).unwrap();
    let outputs = ctr_dnn(&mut net, &inputs, &CtrDnn { dim: 8, hidden: vec![32, 32] }).unwrap();
    Minimize::new(Optimizer::Adam(Adam::default()), 3e-3).minimize(&mut net.main, outputs.loss).unwrap();
    let mut executor = started(&net);
    for _ in 0..4 {
        let report = executor.train_from_dataset(&net.main, &dataset, &RunOptions::default()).unwrap();
        assert_eq!(report.samples, 3000);
    }
    let judged = Mutex::new((Vec::new(), Vec::new()));
    let each_batch = |view: &BatchView<'_>| {
        let (labels, scores) = (view.fetch(inputs.label)?, view.fetch(outputs.probability)?);
        let mut judged = judged.lock().unwrap();
        judged.0.extend_from_slice(labels.i64s().unwrap());
        judged.1.extend(scores.f32s().unwrap().chunks(2).map(|classes| classes[1]));
        Ok(())
    };
    let options = RunOptions { each_batch: Some(&each_batch), ..RunOptions::default() };
    executor.infer_from_dataset(&net.main, &dataset, &options).unwrap();
    let (labels, scores) = judged.into_inner().unwrap();
    assert_eq!(labels.len(), 3000);
    let auc = exact_auc(&labels, &scores).unwrap();
    assert!(auc > 0.75, "{auc}");
}

#[test]
fn fit_a_line_finds_the_line() {
    let mut net = Net::with_seed(1);
    let x = net.data("x", &[-1, 2], DType::F32).unwrap();
    let y = net.data("y", &[-1, 1], DType::F32).unwrap();
    let line = fit_a_line(&mut net, x, y).unwrap();
    Minimize::new(Optimizer::Sgd(Sgd::default()), 0.1).minimize(&mut net.main, line.loss).unwrap();
    let mut executor = started(&net);
    let mut numbers = Numbers(9);
    for _ in 0..400 {
        let x: Vec<f32> = (0..32).map(|_| numbers.uniform() * 2.0 - 1.0).collect();
        let y = x.chunks(2).map(|x| 2.0 * x[0] - 3.0 * x[1] + 0.5).collect();
        executor.run(&net.main, Feed::new().floats("x", 2, x).unwrap().floats("y", 1, y).unwrap(), &[]).unwrap();
    }
    let (w, b) = (dense(&executor, "fc_0.w_0"), dense(&executor, "fc_0.b_0"));
    for (got, expected) in w.iter().chain(&b).zip([2.0, -3.0, 0.5]) {
        assert!((got - expected).abs() < 1e-3, "{w:?} x + {b:?}");
    }
    let test = Feed::new().floats("x", 2, vec![1.0, 1.0]).unwrap().floats("y", 1, vec![0.0]).unwrap();
    let prediction = executor.run(&net.main.clone_for_test(), test, &[line.prediction]).unwrap()[0].scalar().unwrap();
    assert!((prediction + 0.5).abs() < 3e-3, "{prediction}");
}

#[test]
fn word_vectors_of_one_topic_are_neighbours() {
    let folder = TempDir::new().unwrap();
    let spec = WordsSpec { words: 60_000, vocabulary: 300, topics: 5, pairs: 400, seed: 1 };
    let facts = words::write(&spec, folder.path()).unwrap();
    let config = WordsConfig {
        files: vec![facts.text],
        subsample: 1e-3,
        batch_size: 64,
        thread_num: 2,
        seed: 1,
        ..WordsConfig::default()
    };
    let corpus = WordsDataset::load(config).unwrap();
    let mut net = Net::with_seed(1);
    let vars = word2vec(&mut net, &Word2Vec { dim: 16, ..Word2Vec::default() }).unwrap();
    assert_eq!(
        parameters(&net),
        [("word_vectors", "[0, 16]"), ("output_vectors", "[0, 16]")]
            .map(|(name, shape)| (name.to_owned(), shape.to_owned()))
    );
    Minimize::new(Optimizer::Sgd(Sgd::default()), 0.025).minimize(&mut net.main, vars.loss).unwrap();
    let mut executor = started(&net);
    for _ in 0..5 {
        executor.train_from_dataset(&net.main, &corpus, &RunOptions::default()).unwrap();
    }
    let number_of: HashMap<&str, u64> = corpus.words().iter().map(String::as_str).zip(0..).collect();
    let table = executor.scope().sparse("word_vectors").unwrap();
    let vector = |word: u32| {
        let number = number_of.get(format!("w{word}").as_str())?;
        table.read(*number, |vector, _| vector.to_vec())
    };
    let (mut truth, mut similarities) = (Vec::new(), Vec::new());
    for (a, b, similarity) in WordsGenerator::new(&spec).unwrap().pairs() {
        if let (Some(a), Some(b)) = (vector(a), vector(b)) {
            truth.push(similarity);
            similarities.push(cosine(&a, &b));
        }
    }
    assert!(truth.len() > 200, "{} pairs", truth.len());
    let correlation = spearman(&truth, &similarities);
    assert!(correlation > 0.6, "{correlation}");
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The rank correlation; ties share their mean rank.
fn spearman(a: &[f64], b: &[f64]) -> f64 {
    let ranks = |values: &[f64]| -> Vec<f64> {
        let rank = |value: f64| {
            let below = values.iter().filter(|&&other| other < value).count();
            let tied = values.iter().filter(|&&other| other == value).count();
            below as f64 + (tied - 1) as f64 / 2.0
        };
        values.iter().map(|&value| rank(value)).collect()
    };
    let (a, b) = (ranks(a), ranks(b));
    let mean = (a.len() - 1) as f64 / 2.0;
    let covariance = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| (x - mean) * (y - mean)).sum::<f64>();
    covariance(&a, &b) / (covariance(&a, &a) * covariance(&b, &b)).sqrt()
}

/// Two slots with the ids 1, 2 and 3 each.
fn two_slots(share_ids: bool) -> (Net, Feed) {
    let mut net = Net::with_seed(1);
    let slots = ["a", "b"].map(|name| net.slot(name).unwrap()).to_vec();
    let label = net.data("label", &[-1, 1], DType::I64).unwrap();
    let inputs = CtrInputs { slots, dense: None, label, share_ids, storage: Default::default() };
    let shape = WideDeep { dim: 2, hidden: vec![4], wide_ids: true };
    let outputs = wide_deep(&mut net, &inputs, &shape).unwrap();
    Minimize::new(Optimizer::Sgd(Sgd::default()), 0.1).minimize(&mut net.main, outputs.loss).unwrap();
    let ids: [&[u64]; 3] = [&[1], &[2], &[3]];
    let feed = Feed::new().slot("a", &ids).unwrap().slot("b", &ids).unwrap();
    (net, feed.ints("label", 1, &[0, 1, 0]).unwrap())
}

#[test]
fn equal_ids_of_two_slots_have_separate_rows_unless_shared() {
    for (share_ids, rows) in [(false, 6), (true, 3)] {
        let (net, feed) = two_slots(share_ids);
        let mut executor = started(&net);
        executor.run(&net.main, feed, &[]).unwrap();
        for table in ["embedding", "wide"] {
            assert_eq!(executor.scope().sparse(table).unwrap().len(), rows, "{table}");
        }
    }
}

#[test]
fn a_table_of_plain_ids_is_refused_where_salted_ids_are_expected() {
    let directory = TempDir::new().unwrap();
    for saved_shared in [true, false] {
        let address = directory.path().join(saved_shared.to_string());
        let address = address.to_str().unwrap();
        let (net, feed) = two_slots(saved_shared);
        let mut executor = started(&net);
        executor.run(&net.main, feed, &[]).unwrap();
        executor.save(&net.main, address, &Default::default()).unwrap();
        let (same, _) = two_slots(saved_shared);
        started(&same).load(&same.main, address, Default::default()).unwrap();
        let (other, _) = two_slots(!saved_shared);
        for program in [other.main.clone(), other.main.clone_for_test()] {
            let error = started(&other).load(&program, address, Default::default()).unwrap_err();
            let told = openfleet_core::error::report(&error);
            assert!(told.contains("keys of sparse table `embedding` are") && told.contains("`share_ids`"), "{told}");
        }
    }
}
