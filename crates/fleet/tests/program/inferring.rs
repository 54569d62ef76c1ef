//! `openfleet train --save` and `openfleet infer`.

use openfleet_engine::Feed;

use crate::data::{Workspace, number};
use crate::own_model;

#[test]
fn a_saved_model_judges_as_it_did_when_it_was_trained() {
    let workspace = Workspace::with_clicks(1000);
    for model in ["ctr_dnn", "wide_deep", "deepfm", "dcn"] {
        let trained = workspace.train(model, &["--save", model]);
        let ran = workspace.run(&["infer", model, "--data", "clicks/test/*.txt", "--batch-size", "64", "--json"]);
        let judged = ran.json();
        for (before, after) in [("test_auc", "auc"), ("test_logloss", "logloss"), ("test_accuracy", "accuracy")] {
            let (before, after) = (number(&trained, before), number(&judged, after));
            assert!((before - after).abs() < 1e-9, "{model} {before} {after}");
        }
    }
}

#[test]
fn predictions_come_in_the_order_of_the_rows_with_and_without_labels() {
    let workspace = Workspace::with_clicks(1000);
    workspace.train("wide_deep", &["--save", "model", "--wide-ids"]);
    let infer = ["infer", "model", "--out", "with.txt", "--data"];
    workspace.run(&[infer.as_slice(), &["clicks/test/part-0.txt", "clicks/test/part-1.txt"]].concat()).succeeded();
    let with = workspace.read("with.txt");
    assert_eq!(with.lines().count(), 1000);
    assert!(with.lines().all(|line| (0.0..=1.0).contains(&line.parse::<f32>().unwrap())));

    for part in ["part-0.txt", "part-1.txt"] {
        let labelled = workspace.read(&format!("clicks/test/{part}"));
        let unlabelled: String = labelled.lines().map(|line| format!("{}\n", &line[4..])).collect();
        workspace.write(part, &unlabelled);
    }
    let infer =
        ["infer", "--model_dir", "model", "--out", "without.txt", "--no_label", "--data", "part-*.txt", "--json"];
    let summary = workspace.run(&infer).json();
    assert!(summary["auc"].is_null());
    assert_eq!(workspace.read("without.txt"), with);
}

#[test]
fn a_fitted_line_is_saved_and_predicts() {
    let workspace = Workspace::new();
    workspace.write("line.toml", "label = { column = \"y\", regression = true }\ndense = [{ column = \"x\" }]\n");
    let rows: String = (0..100).map(|i| format!("{},{}\n", i % 10, 2 * (i % 10))).collect();
    workspace.write("line.csv", &format!("x,y\n{rows}"));
    let arguments =
        ["train", "--model", "fit_a_line", "--columns", "line.toml", "--train", "line.csv", "--save", "line"];
    workspace.run(&[arguments.as_slice(), &["--epochs", "200", "--threads", "1"]].concat()).succeeded();
    workspace.write("new.csv", "x\n3\n");
    workspace.run(&["infer", "line", "--data", "new.csv", "--no-label", "--out", "y.txt"]).succeeded();
    let y: f32 = workspace.read("y.txt").trim().parse().unwrap();
    assert!((y - 6.0).abs() < 0.2, "{y}");
}

#[test]
fn an_inference_model_predicts_the_rows_of_a_file() {
    let workspace = Workspace::new();
    let predictor = own_model::saved(&workspace);
    workspace.write("rows.txt", "1 1 2 7 8 1 9 2 0.5 -1\n1 0 0 2 9 18446744073709551615 2 0.25 2\n");
    let infer = ["infer", "own", "--data", "rows.txt", "--out", "p.txt", "--json"];
    let judged = workspace.run(&infer).json();
    assert_eq!((&judged["rows"], &judged["model"]), (&2.into(), &"model".into()));
    let feed = Feed::new().slot("user", &[&[7, 8], &[]]).unwrap().slot("item", &[&[9], &[9, u64::MAX]]).unwrap();
    let p = &predictor.predict(feed.floats("dense", 2, vec![0.5, -1.0, 0.25, 2.0]).unwrap()).unwrap()[0];
    let p = p.f32s().unwrap();
    assert_eq!(workspace.read("p.txt"), format!("{}\n{}\n", p[1], p[3]), "the last column of the first output");
    assert_eq!(number(&judged, "auc"), f64::from(u8::from(p[1] > p[3])));

    // Other files are described, with or without the label.
    workspace.write("new.txt", "2 7 8 1 9 2 0.5 -1\n");
    let infer = ["infer", "own", "--data", "new.txt", "--out", "q.txt", "--no-label"];
    workspace.run(&infer).succeeded();
    assert_eq!(workspace.read("q.txt"), format!("{}\n", p[1]));
    let fields = "[[fields]]\nkind = \"floats\"\nname = \"dense\"\ndim = 2\n\n[[fields]]\nkind = \"ids\"\nname = \"item\"\n\n\
                  [[fields]]\nkind = \"ignored\"\nname = \"weight\"\n\n[[fields]]\nkind = \"ids\"\nname = \"user\"\n";
    workspace.write("fields.toml", fields);
    workspace.write("other.txt", "2 0.5 -1 1 9 1 3 2 7 8\n");
    let infer = ["infer", "own", "--data", "other.txt", "--columns", "fields.toml", "--no-label"];
    workspace.run(&[infer.as_slice(), &["--out", "r.txt"]].concat()).succeeded();
    assert_eq!(workspace.read("r.txt"), format!("{}\n", p[1]));
}

#[test]
fn a_model_that_knows_its_data_is_not_told_how_to_read_it() {
    let workspace = Workspace::with_clicks(100);
    workspace.train("ctr_dnn", &["--save", "model"]);
    let infer = ["infer", "model", "--data", "clicks/test/*.txt", "--format", "criteo"];
    let expected = "error: `--format` cannot be used with a model that records the format of its data\n\n\
                    hint: leave `--format` out; it is for models of `save_inference_model`\n";
    assert_eq!(workspace.run(&infer).failed(1), expected);
}

#[test]
fn tables_are_plain_arrays_and_the_directory_is_replaced_whole() {
    let workspace = Workspace::with_clicks(300);
    let summary = workspace.train("ctr_dnn", &["--save", "model"]);
    let rows = number(&summary, "rows_in_tables") as u64;
    let data = data_directory(&workspace);
    let array = |name: &str| {
        std::fs::read(workspace.path(&format!("{data}/00-SparseFeatFactors/0000-4095.{name}.npy"))).unwrap()
    };
    let (keys, weights) = (array("keys"), array("weights"));
    assert!(String::from_utf8_lossy(&keys[..128]).contains(&format!("'shape': ({rows},)")));
    assert!(String::from_utf8_lossy(&weights[..128]).contains(&format!("'shape': ({rows}, 4)")));
    assert_eq!((keys.len() as u64 % 64, weights.len() as u64 % 64), (8 * rows % 64, 16 * rows % 64));
    workspace.train("dcn", &["--save", "model"]);
    assert_ne!(data_directory(&workspace), data, "the older one is gone");
    let mut names: Vec<String> = std::fs::read_dir(workspace.path("."))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["clicks", "model"]);
}

#[test]
fn a_damaged_model_says_which_file_is_wrong() {
    let workspace = Workspace::with_clicks(300);
    workspace.train("ctr_dnn", &["--save", "model"]);
    let infer = ["infer", "model", "--data", "clicks/test/*.txt"];
    let data = data_directory(&workspace);
    workspace.write(&format!("{data}/00-SparseFeatFactors/0000-4095.keys.npy"), "short");
    let stderr = workspace.run(&infer).failed(1);
    assert!(
        stderr.contains("0000-4095.keys.npy` of the checkpoint: expected ") && stderr.contains(" bytes, got 5"),
        "{stderr}"
    );
    workspace.write(&format!("{data}/dense.safetensors"), "");
    let stderr = workspace.run(&infer).failed(1);
    assert!(stderr.contains(".npy") || stderr.contains("dense.safetensors"), "{stderr}");

    let other = workspace.read("model/manifest.json").replace("\"version\": 1", "\"version\": 99");
    workspace.write("model/manifest.json", &other);
    let stderr = workspace.run(&infer).failed(1);
    assert!(stderr.contains("version 99") && stderr.contains("\n\nhint: "), "{stderr}");

    let stderr = workspace.run(&["infer", "nowhere", "--data", "clicks/test/*.txt"]).failed(1);
    assert!(stderr.contains("`nowhere` is not a checkpoint: it has no `manifest.json`"), "{stderr}");
}

/// The only directory with values of the model.
fn data_directory(workspace: &Workspace) -> String {
    let names = std::fs::read_dir(workspace.path("model")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names = names.map(|name| name.into_string().unwrap()).filter(|name| name.starts_with("data-"));
    let name = names.next().unwrap();
    assert_eq!(names.next(), None);
    format!("model/{name}")
}

#[test]
fn a_directory_that_is_no_model_is_not_overwritten() {
    let workspace = Workspace::with_clicks(300);
    let train = ["train", "--model", "dcn", "--train", "clicks/train/*.txt", "--save", "clicks"];
    let stderr = workspace.run(&train).failed(1);
    let expected = "error: `clicks` exists and is not a saved model\n\n\
                    hint: choose another address, or remove what is there first\n";
    assert_eq!(stderr, expected);
}
