//! Equal ids of different slots: each slot has its own rows, in training and in everything that reads the model later.

use serde_json::Value;

use crate::data::{SMALL, Workspace, number};
#[cfg(unix)]
use crate::http::Server;

const TWO_COLUMNS: &str = "names = [\"a\", \"b\", \"clicked\"]\n\
    label = { column = \"clicked\" }\n\
    categorical = [{ column = \"a\", vocabulary = [\"x\", \"y\"] }, { column = \"b\", vocabulary = [\"x\", \"y\"] }]\n";

/// Two columns of three values each (the third is outside the vocabulary): the first column determines the label, the second
/// contradicts it half of the time.
fn two_columns(workspace: &Workspace) {
    workspace.write("columns.toml", TWO_COLUMNS);
    let values = ["x", "y", "z"];
    let rows: String = (0..900)
        .map(|i| format!("{},{},{}\n", values[i % 3], values[i / 3 % 3], u8::from(i % 3 == 0 || (i / 3) % 9 == 1)))
        .collect();
    workspace.write("rows.csv", &rows);
}

const CSV: &[&str] =
    &["train", "--model", "ctr_dnn", "--format", "csv", "--columns", "columns.toml", "--train", "rows.csv"];

fn train(workspace: &Workspace, options: &[&str]) -> Value {
    train_for("3", workspace, options)
}

fn train_for(epochs: &str, workspace: &Workspace, options: &[&str]) -> Value {
    let run = ["--test", "rows.csv", "--epochs", epochs, "--threads", "1", "--json"];
    workspace.run(&[CSV, SMALL, &run, options].concat()).json()
}

fn manifest(workspace: &Workspace, model: &str) -> Value {
    serde_json::from_str(&workspace.read(&format!("{model}/manifest.json"))).unwrap()
}

#[test]
fn two_columns_of_three_values_have_six_rows() {
    let workspace = Workspace::new();
    two_columns(&workspace);
    assert_eq!(train(&workspace, &[])["rows_in_tables"], 6);
    assert_eq!(train(&workspace, &["--share-ids"])["rows_in_tables"], 3);
    for model in ["wide_deep", "deepfm", "dcn"] {
        let summary = workspace.run(&[&CSV[..1], &["--model", model], &CSV[3..], SMALL, &["--json"]].concat()).json();
        let tables = if model == "deepfm" { 2 } else { 1 };
        assert_eq!(summary["rows_in_tables"], 6 * tables, "{model}");
    }
}

#[test]
fn buckets_and_raw_ids_are_of_their_slot_too() {
    let workspace = Workspace::with_clicks(300);
    let buckets = TWO_COLUMNS.replace("vocabulary = [\"x\", \"y\"]", "buckets = 1");
    two_columns(&workspace);
    workspace.write("columns.toml", &buckets);
    assert_eq!(train(&workspace, &[])["rows_in_tables"], 2);
    // Criteo's hashes include the slot until they are taken modulo a number.
    let criteo =
        ["train", "--model", "dcn", "--format", "criteo", "--train", "clicks/train/*.tsv", "--json", "--save", "m"];
    let rows = |options: &[&str]| workspace.run(&[&criteo, SMALL, options].concat()).json()["rows_in_tables"].clone();
    assert_eq!((rows(&["--ids", "1"]), rows(&["--ids", "1", "--share-ids"])), (Value::from(26), Value::from(1)));
    let hashed = rows(&[]);
    assert!(manifest(&workspace, "m")["data"].get("salt").is_none(), "hashes of 64 bits need no salt");
    assert_eq!(hashed, rows(&["--share-ids"]));
    workspace.write("raw.txt", "1 1 1 5 1 5\n1 0 1 5 1 6\n");
    let raw = ["train", "--model", "dcn", "--train", "raw.txt", "--dense", "0", "--slots", "2", "--json"];
    assert_eq!(workspace.run(&[&raw, SMALL].concat()).json()["rows_in_tables"], 3);
}

#[test]
fn whatever_reads_a_model_salts_as_training_did() {
    for options in
        [&[][..], &["--share-ids"], &["--mode", "sync", "--servers", "2", "--workers", "1"], &["--mode", "geo"]]
    {
        let workspace = Workspace::new();
        two_columns(&workspace);
        let trained = train(&workspace, &[&["--save", "model"], options].concat());
        let salted = !options.contains(&"--share-ids");
        assert_eq!(
            manifest(&workspace, "model")["data"].get("salt"),
            salted.then(|| Value::from("slot_name")).as_ref()
        );
        let infer = ["infer", "model", "--data", "rows.csv", "--out", "predictions", "--json"];
        let judged = workspace.run(&infer).json();
        assert_eq!(number(&judged, "auc"), number(&trained, "test_auc"), "{options:?}");
        // A client sends ids as numbers of the model's vocabulary.
        let first: f64 = workspace.read("predictions").lines().next().unwrap().parse().unwrap();
        let server = Server::start(&workspace, &["model"]);
        let body = serde_json::json!({ "instances": [{ "a": [0], "b": [0] }] });
        let answer: Value = serde_json::from_slice(&server.post("/v1/models/model:predict", &body).body).unwrap();
        let served = &answer["predictions"][0];
        let served = served.as_array().map_or_else(|| served.as_f64(), |both| both.last()?.as_f64()).unwrap();
        assert!((served - first).abs() < 1e-6, "{served} and {first}");
    }
}

#[test]
fn a_model_without_a_salt_goes_on_without_one() {
    let workspace = Workspace::new();
    two_columns(&workspace);
    // The behaviour of models before salts existed.
    train(&workspace, &["--save", "old", "--share-ids"]);
    assert!(!workspace.read("old/manifest.json").contains("salt"));
    let resumed = train_for("4", &workspace, &["--save", "old", "--resume"]);
    assert_eq!((&resumed["rows_in_tables"], &resumed["skipped_samples"]), (&Value::from(3), &Value::from(2700)));
    assert!(!workspace.read("old/manifest.json").contains("salt"));
    train(&workspace, &["--save", "new"]);
    let stderr = workspace.run(&[CSV, SMALL, &["--save", "new", "--resume", "--share-ids"]].concat()).failed(1);
    assert!(stderr.contains("ids are salted by slot"), "{stderr}");
}

#[test]
fn a_row_is_looked_up_by_the_id_of_a_slot() {
    let workspace = Workspace::new();
    two_columns(&workspace);
    train(&workspace, &["--save", "model"]);
    let lookup = |options: &[&str]| workspace.run(&[&["lookup", "model", "2", "--json"], options].concat()).json();
    let (a, b) = (lookup(&["--slot", "a"]), lookup(&["--slot", "b"]));
    assert!(a["weights"].is_array() && b["weights"].is_array() && a["key"] != b["key"], "{a} {b}");
    let absent = workspace.run(&["lookup", "model", "2"]);
    assert!(absent.succeeded().stderr().contains("--slot"), "{}", absent.stderr());
}
