//! `inspect`, `lookup`, `diff`, `reshard`, `export` and `verify` on checkpoints that `train --save` wrote.

use serde_json::Value;

use crate::data::{Workspace, number};

fn json(workspace: &Workspace, arguments: &[&str]) -> Value {
    workspace.run(&[arguments, &["--json"]].concat()).json()
}

#[test]
fn a_checkpoint_tells_what_it_holds() {
    let workspace = Workspace::with_clicks(600);
    let trained = workspace.train("ctr_dnn", &["--save", "a", "--threads", "1"]);
    let summary = json(&workspace, &["inspect", "a", "--hottest", "3"]);
    let table = &summary["tables"][0];
    assert_eq!(table["rows"].as_u64().unwrap() as f64, number(&trained, "rows_in_tables"));
    assert_eq!((&table["dim"], &table["optimizer"]), (&Value::from(4), &Value::from("adam")));
    assert_eq!(summary["step"], 10, "600 rows in batches of 64");
    let hottest: Vec<f64> = table["hottest"].as_array().unwrap().iter().map(|hot| number(hot, "norm")).collect();
    assert_eq!(hottest.len(), 3);
    assert!(hottest.is_sorted_by(|a, b| a >= b) && hottest[0] == number(table, "largest_norm"), "{hottest:?}");
    let parameters: Vec<&str> =
        summary["parameters"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert!(parameters.contains(&"fc_0.w_0"), "{parameters:?}");

    let key = table["hottest"][0]["key"].to_string();
    let found = json(&workspace, &["lookup", "a", &key]);
    assert_eq!(found["key"].to_string(), key);
    assert_eq!(found["weights"].as_array().unwrap().len(), 4);
    assert_eq!(found["state"].as_array().unwrap().len(), 2, "Adam keeps two moments");
    let absent = workspace.run(&["lookup", "a", "18446744073709551615"]);
    assert!(absent.succeeded().stderr().contains("has no row of key 18446744073709551615"), "{}", absent.stderr());
    let wrong = workspace.run(&["lookup", "a", "1", "--table", "nothing"]).failed(1);
    assert!(wrong.contains("`nothing`") && wrong.contains("`SparseFeatFactors`"), "{wrong}");
    assert!(workspace.run(&["inspect", "a"]).succeeded().stdout().contains("table `SparseFeatFactors`"));
}

#[test]
fn what_two_checkpoints_have_in_common_is_counted() {
    let workspace = Workspace::with_clicks(600);
    workspace.train("ctr_dnn", &["--save", "a", "--threads", "1"]);
    workspace.train("ctr_dnn", &["--save", "b", "--threads", "1", "--epochs", "2"]);
    let same = json(&workspace, &["diff", "a", "a"]);
    assert_eq!((&same["tables"][0]["changed"], &same["parameters"][0]["changed"]), (&Value::from(0), &Value::from(0)));
    let other = json(&workspace, &["diff", "a", "b"]);
    let table = &other["tables"][0];
    assert!(number(table, "changed") > 0.0 && number(table, "largest_change") > 0.0, "{other}");
    assert_eq!((&table["added"], &table["removed"]), (&Value::from(0), &Value::from(0)), "the same rows of data");
    workspace.train("dcn", &["--save", "c"]);
    let other = json(&workspace, &["diff", "a", "c"]);
    assert!(!other["only_after"].as_array().unwrap().is_empty(), "{other}");
}

#[test]
fn a_checkpoint_in_other_parts_is_the_same_checkpoint() {
    let workspace = Workspace::with_clicks(600);
    workspace.train("deepfm", &["--save", "a"]);
    for servers in ["1", "3", "5"] {
        workspace.run(&["reshard", "a", "--out", "b", "--servers", servers, "--replace"]).succeeded();
        let same = json(&workspace, &["diff", "a", "b"]);
        let changed = |list: &str| same[list].as_array().unwrap().iter().any(|one| number(one, "changed") > 0.0);
        assert!(!changed("tables") && !changed("parameters"), "{same}");
        assert_eq!(json(&workspace, &["inspect", "b"])["servers"].to_string(), servers);
        assert!(workspace.run(&["verify", "b"]).succeeded().stdout().contains("intact"));
    }
    let infer = |model: &str| workspace.run(&["infer", model, "--data", "clicks/test/*.txt", "--json"]).json();
    assert_eq!(number(&infer("a"), "auc").to_bits(), number(&infer("b"), "auc").to_bits());
    let refused = workspace.run(&["reshard", "a", "--out", "b", "--servers", "2"]).failed(1);
    assert!(refused.contains("`b`") && refused.contains("hint:"), "{refused}");
}

#[test]
fn a_table_is_exported_for_other_tools() {
    let workspace = Workspace::with_clicks(300);
    let trained = workspace.train("ctr_dnn", &["--save", "a"]);
    let rows = number(&trained, "rows_in_tables") as usize;
    for format in ["text", "npz", "parquet"] {
        workspace.run(&["export", "a", "--format", format, "--out", format]).succeeded();
    }
    let text = workspace.read("text");
    let lines: Vec<(u64, Vec<f32>)> = text
        .lines()
        .map(|line| {
            let (key, weights) = line.split_once('\t').unwrap();
            (key.parse().unwrap(), weights.split(' ').map(|weight| weight.parse().unwrap()).collect())
        })
        .collect();
    assert_eq!(lines.len(), rows);
    assert!(lines.iter().all(|(_, weights)| weights.len() == 4));
    // `python/tests/test_io.py` reads the second with NumPy; of the third only the beginning is checked.
    let key = lines[0].0.to_string();
    let found = json(&workspace, &["lookup", "a", &key]);
    let weights: Vec<f32> = found["weights"].as_array().unwrap().iter().map(|w| w.as_f64().unwrap() as f32).collect();
    assert_eq!(weights, lines[0].1);
    assert!(std::fs::read(workspace.path("npz")).unwrap().starts_with(b"PK"));
    assert!(std::fs::read(workspace.path("parquet")).unwrap().starts_with(b"PAR1"));
    workspace.train("wide_deep", &["--save", "b", "--wide-ids"]);
    let which = workspace.run(&["export", "b", "--out", "x"]).failed(1);
    assert!(which.contains("--table"), "{which}");
}

#[test]
fn damage_is_found_and_named() {
    let workspace = Workspace::with_clicks(300);
    workspace.train("ctr_dnn", &["--save", "a"]);
    let data = std::fs::read_dir(workspace.path("a")).unwrap().map(|entry| entry.unwrap().path());
    let data = data.into_iter().find(|path| path.is_dir()).unwrap().join("dense.safetensors");
    let mut bytes = std::fs::read(&data).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 4;
    std::fs::write(&data, bytes).unwrap();
    let stderr = workspace.run(&["verify", "a"]).failed(1);
    assert!(stderr.contains("dense.safetensors") && stderr.contains(&at.to_string()), "{stderr}");
}
