//! `--storage bfloat16` and `--optimizer rowwise_adagrad`: small rows, from training to every command that reads a checkpoint.

use serde_json::Value;

use crate::data::{SMALL, Workspace, number};

const SMALL_ROWS: &[&str] = &["--storage", "bfloat16", "--optimizer", "rowwise_adagrad"];

fn json(workspace: &Workspace, arguments: &[&str]) -> Value {
    workspace.run(&[arguments, &["--json"]].concat()).json()
}

fn trained(workspace: &Workspace, options: &[&str]) -> Value {
    workspace.train("ctr_dnn", &[&["--threads", "1"], options].concat())
}

fn changed(workspace: &Workspace, before: &str, after: &str) -> f64 {
    number(&json(workspace, &["diff", before, after])["tables"][0], "changed")
}

#[test]
fn small_rows_learn_and_every_command_reads_their_checkpoint() {
    let workspace = Workspace::with_clicks(4000);
    let summary = trained(&workspace, &[SMALL_ROWS, &["--epochs", "3", "--save", "small"]].concat());
    assert!(number(&summary, "test_auc") > 0.65, "{summary}");
    let table = json(&workspace, &["inspect", "small"])["tables"][0].clone();
    assert_eq!((&table["storage"], &table["optimizer"]), (&Value::from("bfloat16"), &Value::from("rowwise_adagrad")));
    assert!(workspace.run(&["inspect", "small"]).succeeded().stdout().contains("bfloat16 by rowwise_adagrad"));

    // Three servers; then text, from which the weights of a key are those that `lookup` prints.
    workspace.run(&["reshard", "small", "--out", "three", "--servers", "3"]).succeeded();
    assert_eq!(changed(&workspace, "small", "three"), 0.0);
    workspace.run(&["verify", "three"]).succeeded();
    workspace.run(&["export", "three", "--format", "text", "--out", "rows.txt"]).succeeded();
    let text = workspace.read("rows.txt");
    let (key, weights) = text.lines().next().unwrap().split_once('\t').unwrap();
    let weights: Vec<f32> = weights.split(' ').map(|weight| weight.parse().unwrap()).collect();
    assert!(weights.iter().all(|weight| weight.to_bits() & 0xffff == 0), "16 bits: {weights:?}");
    let found = json(&workspace, &["lookup", "small", key]);
    let looked_up = found["weights"].as_array().unwrap().iter().map(|weight| weight.as_f64().unwrap() as f32);
    assert!(looked_up.eq(weights));
    assert_eq!(found["state"].as_object().map_or(found["state"].as_array().map(Vec::len), |s| Some(s.len())), Some(1));

    // Prediction maps the files; ids that were never seen have the initial values that training would give them.
    for model in ["small", "three"] {
        let inferred = workspace.run(&["infer", model, "--data", "clicks/test/*.txt", "--json"]).json();
        assert_eq!(number(&inferred, "auc").to_bits(), number(&summary, "test_auc").to_bits(), "{model}");
    }
}

#[test]
fn servers_in_sync_mode_give_the_rows_of_one_process() {
    let workspace = Workspace::with_clicks(1500);
    trained(&workspace, &[SMALL_ROWS, &["--save", "alone"]].concat());
    for servers in ["1", "3"] {
        let job = ["--mode", "sync", "--server-num", servers, "--save", "servers"];
        trained(&workspace, &[SMALL_ROWS, &job].concat());
        assert_eq!(changed(&workspace, "alone", "servers"), 0.0, "{servers} servers");
    }
}

#[test]
fn training_continues_with_another_storage() {
    let workspace = Workspace::with_clicks(1500);
    let save = |storage: &'static str, epochs: &'static str, more: &[&'static str]| {
        let options = ["--optimizer", "rowwise_adagrad", "--storage", storage, "--epochs", epochs, "--save", "m"];
        trained(&workspace, &[&options, more].concat())
    };
    let storage = || json(&workspace, &["inspect", "m"])["tables"][0]["storage"].clone();
    save("float32", "1", &[]);
    assert_eq!(storage(), "float32");
    let narrow = save("bfloat16", "2", &["--resume"]);
    assert_eq!((storage(), number(&narrow, "samples")), (Value::from("bfloat16"), 1500.0), "one more epoch");
    let wide = save("float32", "3", &["--resume"]);
    assert_eq!((storage(), number(&wide, "samples")), (Value::from("float32"), 1500.0));
    assert!(number(&wide, "test_logloss").is_finite());
}

#[test]
fn what_is_not_possible_is_refused_by_name() {
    let workspace = Workspace::with_clicks(100);
    let files = ["--train", "clicks/train/*.txt"];
    let train =
        |model: &str, options: &[&str]| workspace.run(&[&["train", "--model", model], &files[..], options].concat());
    let unknown = train("ctr_dnn", &["--storage", "float16"]).failed(2);
    assert!(unknown.contains("float16") && unknown.contains("float32, bfloat16"), "{unknown}");
    let geo = train("ctr_dnn", &[SMALL, &["--storage", "bfloat16", "--mode", "geo"]].concat()).failed(1);
    assert!(geo.contains("rows stored as `bfloat16`") && geo.contains("hint:"), "{geo}");
    workspace.write("words.txt", "a b c d e f g\n");
    let words = workspace.run(&["train", "--model", "word2vec", "--train", "words.txt", "--storage", "bfloat16"]);
    assert!(words.failed(1).contains("`--storage`"));
}
