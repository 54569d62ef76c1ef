//! `openfleet train`, model by model and format by format.

use crate::data::{SMALL, Workspace, number};

#[test]
fn every_click_model_learns_and_says_how_well() {
    let workspace = Workspace::with_clicks(6000);
    for model in ["ctr_dnn", "wide_deep", "deepfm", "dcn"] {
        let summary = workspace.train(model, &["--epochs", "3"]);
        assert_eq!(summary["model"], model);
        assert_eq!((summary["samples"].as_u64(), summary["epochs"].as_u64()), (Some(18_000), Some(3)));
        assert_eq!(summary["test_rows"], 1000);
        assert!(number(&summary, "train_auc") > 0.7, "{summary}");
        assert!(number(&summary, "test_auc") > 0.65, "{summary}");
        assert!((0.1..0.7).contains(&number(&summary, "test_logloss")), "{summary}");
        assert!(number(&summary, "seconds") > 0.0 && number(&summary, "samples_per_second") > 0.0);
        assert!(number(&summary, "rows_in_tables") > 100.0);
        assert_eq!(summary["skipped_lines"], 0);
        if cfg!(target_os = "linux") {
            assert!(number(&summary, "peak_rss_bytes") > 1e6);
        }
    }
}

#[test]
fn one_thread_gives_the_same_figures_twice() {
    let workspace = Workspace::with_clicks(1500);
    for options in [&["--threads", "1"][..], &["--threads", "1", "--in-memory", "--epochs", "2", "--seed", "9"]] {
        let (first, second) = (workspace.train("deepfm", options), workspace.train("deepfm", options));
        for figure in ["train_auc", "test_auc", "test_logloss", "train_loss"] {
            assert_eq!(number(&first, figure).to_bits(), number(&second, figure).to_bits(), "{figure}");
        }
    }
}

#[test]
fn criteo_files_train_with_ids_modulo_a_number() {
    let workspace = Workspace::with_clicks(1500);
    let files = ["--train", "clicks/train/*.tsv", "--test", "clicks/test/*.tsv", "--format", "criteo", "--ids", "50"];
    let train = [["train", "--model", "ctr_dnn", "--json"].as_slice(), &files, SMALL].concat();
    let ran = workspace.run(&train);
    let summary = ran.json();
    assert_eq!(summary["samples"], 1500);
    let rows = number(&summary, "rows_in_tables");
    assert!(rows > 50.0 && rows <= 26.0 * 50.0, "up to 50 in each of 26 slots: {summary}");
    let shared = workspace.run(&[&train[..], &["--share-ids"]].concat()).json();
    assert!(number(&shared, "rows_in_tables") <= 50.0, "{shared}");
    assert!(ran.stderr().contains("train: 2 files of criteo"), "{}", ran.stderr());
}

#[test]
fn every_optimizer_and_schedule_trains() {
    let workspace = Workspace::with_clicks(500);
    for optimizer in [
        "sgd",
        "momentum",
        "adagrad",
        "rowwise_adagrad",
        "rmsprop",
        "ftrl",
        "adam",
        "adamw",
        "adamax",
        "adadelta",
        "decayed_adagrad",
        "lamb",
    ] {
        let options =
            ["--optimizer", optimizer, "--l2", "1e-4", "--lr-decay", "exponential:10:0.9", "--clip-norm", "5"];
        let summary = workspace.train("wide_deep", &[options.as_slice(), &["--wide-ids", "--lr-warmup", "3"]].concat());
        assert_eq!(summary["optimizer"].as_str().unwrap().replace('_', ""), optimizer.replace('_', ""));
        assert!(number(&summary, "test_logloss").is_finite());
    }
}

const PEOPLE: &str = "names = [\"age\", \"job\", \"rich\"]\n\
    label = { column = \"rich\", positive = [\"yes\"], negative = [\"no\"] }\n\
    dense = [{ column = \"age\", mean = 40.0, std = 10.0 }]\n\
    categorical = [{ column = \"job\" }]\n";

#[test]
fn csv_files_train_with_a_column_description() {
    let workspace = Workspace::new();
    workspace.write("people.toml", PEOPLE);
    let rows: String = (0..600)
        .map(|i| format!("{}, {}, {}\n", 20 + i % 50, ["baker", "banker"][i % 2], ["no", "yes"][i % 2]))
        .collect();
    workspace.write("people.csv", &rows);
    let arguments = ["train", "--model", "dcn", "--format", "csv", "--columns", "people.toml", "--train", "people.csv"];
    let ran = workspace.run(&[&arguments, SMALL, &["--test", "people.csv", "--epochs", "5", "--json"]].concat());
    let summary = ran.json();
    assert_eq!(summary["rows_in_tables"], 2);
    assert!(number(&summary, "test_auc") > 0.95, "{summary}");
}

#[test]
fn libsvm_files_train_with_and_without_a_description() {
    let workspace = Workspace::new();
    let rows: String = (0..400).map(|i| format!("{} {}:1 9:0.5\n", i % 2 * 2 - 1, 1 + i % 2)).collect();
    workspace.write("rows.svm", &rows.replace(" 9:0.5", ""));
    workspace.write("dense.svm", &rows);
    workspace.write("dense.toml", "dense = [9, 9]\n");
    let both = [("rows.svm", &[][..]), ("dense.svm", &["--columns", "dense.toml"][..])];
    for (file, options) in both {
        let arguments = ["train", "--model", "ctr_dnn", "--format", "libsvm", "--train", file, "--test", file];
        let summary = workspace.run(&[&arguments, SMALL, &["--epochs", "8", "--json"], options].concat()).json();
        assert!(number(&summary, "test_auc") > 0.95, "{summary}");
    }
}

#[test]
fn multislot_files_of_another_layout_are_described_by_options_or_a_file() {
    let workspace = Workspace::new();
    workspace.write("small.txt", "1 1 2 5 6 1 7\n1 0 0 1 8\n");
    let train = ["train", "--model", "ctr_dnn", "--train", "small.txt", "--json"];
    let summary = workspace.run(&[&train, SMALL, &["--dense", "0", "--slots", "2"]].concat()).json();
    assert_eq!((summary["samples"].as_u64(), summary["rows_in_tables"].as_u64()), (Some(2), Some(4)));
    let fields = "[[fields]]\nkind = \"label\"\n[[fields]]\nkind = \"ignored\"\nname = \"a\"\n\
                  [[fields]]\nkind = \"ids\"\nname = \"b\"\n";
    workspace.write("fields.toml", fields);
    let summary = workspace.run(&[&train, SMALL, &["--columns", "fields.toml"]].concat()).json();
    assert_eq!(summary["rows_in_tables"], 2);
}

#[test]
fn a_line_is_fitted_and_judged_by_its_errors() {
    let workspace = Workspace::new();
    workspace.write(
        "line.toml",
        "label = { column = \"y\", regression = true }\ndense = [{ column = \"a\" }, { column = \"b\" }]\n",
    );
    let rows: String = (0..200)
        .map(|i| (f64::from(i % 10) / 10.0, f64::from(i % 7) / 7.0))
        .map(|(a, b)| format!("{a},{b},{}\n", 2.0 * a - 3.0 * b + 1.0))
        .collect();
    workspace.write("line.csv", &format!("a,b,y\n{rows}"));
    let arguments = ["train", "--model", "fit_a_line", "--columns", "line.toml", "--train", "line.csv"];
    let options = ["--test", "line.csv", "--epochs", "60", "--learning-rate", "0.1", "--threads", "1", "--json"];
    let summary = workspace.run(&[arguments.as_slice(), &options].concat()).json();
    assert!(number(&summary, "test_mse") < 1e-3, "{summary}");
    assert!(number(&summary, "test_mae") < 0.05, "{summary}");
    assert!(summary["test_auc"].is_null() && summary["train_auc"].is_null());
}

#[test]
fn a_counter_counts_every_occurrence_of_every_id() {
    let workspace = Workspace::with_clicks(1500);
    // A MultiSlot line: for each field a count and then that many values; the label and the floats are the first two fields.
    let mut expected = std::collections::BTreeMap::<u64, f64>::new();
    for part in std::fs::read_dir(workspace.path("clicks/train")).unwrap().map(|entry| entry.unwrap().path()) {
        if part.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        for line in std::fs::read_to_string(part).unwrap().lines() {
            let mut cells = line.split_whitespace();
            let mut field = 0;
            while let Some(count) = cells.next() {
                for cell in cells.by_ref().take(count.parse().unwrap()) {
                    if field >= 2 {
                        *expected.entry(cell.parse().unwrap()).or_default() -= 2.0;
                    }
                }
                field += 1;
            }
        }
    }
    let train =
        ["train", "--model", "counter", "--train", "clicks/train/*.txt", "--batch-size", "50", "--threads", "1"];
    let counted = |options: &[&str]| {
        let summary = workspace.run(&[train.as_slice(), &["--save", "counts", "--json"], options].concat()).json();
        assert!(summary["train_auc"].is_null() && summary["parameters"] == 0, "{summary}");
        workspace.run(&["export", "counts", "--out", "counts.txt"]).succeeded();
        let rows = workspace.read("counts.txt");
        let row = |line: &str| {
            let (key, weight) = line.split_once('\t').unwrap();
            (key.parse::<u64>().unwrap(), weight.parse::<f64>().unwrap())
        };
        rows.lines().map(row).collect::<std::collections::BTreeMap<u64, f64>>()
    };
    assert_eq!(counted(&["--epochs", "2"]), expected);
    assert_eq!(counted(&["--scale", "2"]), expected);
    // Sync averages the gradients of two workers with 15 batches each.
    let sync = ["--mode", "sync", "--server-num", "2", "--worker-num", "2", "--scale", "2", "--epochs", "2"];
    assert_eq!(counted(&sync), expected);
}

#[test]
fn word_vectors_are_trained_and_written() {
    let workspace = Workspace::new();
    workspace
        .run(&["gen", "words", "--words", "60000", "--vocabulary", "420", "--topics", "10", "--out", "text"])
        .succeeded();
    let arguments = ["train", "--model", "word2vec", "--train", "text/words.txt", "--dim", "16", "--window", "3"];
    let options = ["--negative", "4", "--subsample", "0.001", "--min-count", "2", "--vectors", "vectors.txt", "--json"];
    let summary = workspace
        .run(
            &[
                arguments.as_slice(),
                &options,
                &["--epochs", "5", "--batch-size", "64", "--learning-rate", "0.1", "--save", "model"],
            ]
            .concat(),
        )
        .json();
    assert_eq!(summary["words"], 300_000);
    let vectors = workspace.read("vectors.txt");
    let vocabulary = summary["vocabulary"].as_u64().unwrap() as usize;
    assert_eq!(vectors.lines().next(), Some(format!("{vocabulary} 16").as_str()));
    assert_eq!(vectors.lines().count(), 1 + vocabulary);
    let manifest: serde_json::Value = serde_json::from_str(&workspace.read("model/manifest.json")).unwrap();
    assert_eq!(manifest["data"]["vocabulary"].as_array().unwrap().len(), vocabulary);

    // Words of one topic are closer to each other than words of two topics.
    let vector = |word: &str| -> Vec<f32> {
        let line = vectors.lines().find(|line| line.split(' ').next() == Some(word)).unwrap();
        line.split(' ').skip(1).map(|number| number.parse().unwrap()).collect()
    };
    let cosine = |a: &str, b: &str| {
        let (a, b) = (vector(a), vector(b));
        let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f32>();
        dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt()
    };
    let pairs = workspace.read("text/pairs.tsv");
    let (mut like, mut unlike) = (Vec::new(), Vec::new());
    for pair in pairs.lines() {
        let cells: Vec<&str> = pair.split('\t').collect();
        let similarity: f32 = cells[2].parse().unwrap();
        if similarity > 0.9 {
            like.push(cosine(cells[0], cells[1]));
        } else if similarity == 0.0 {
            unlike.push(cosine(cells[0], cells[1]));
        }
    }
    let mean = |values: &[f32]| values.iter().sum::<f32>() / values.len() as f32;
    assert!(mean(&like) > mean(&unlike) + 0.3, "{} and {}", mean(&like), mean(&unlike));
}

#[test]
fn bad_lines_are_counted_when_asked() {
    let workspace = Workspace::with_clicks(500);
    // A blank line is malformed too, unless it ends the file.
    workspace.write("bad.txt", "not a row\n\n1 0 nonsense\n\n");
    let summary = workspace.train("ctr_dnn", &["--train", "bad.txt", "--skip-bad-lines", "--epochs", "2"]);
    assert_eq!((summary["skipped_lines"].as_u64(), summary["samples"].as_u64()), (Some(3), Some(1000)));
}

#[test]
fn a_pipe_command_and_dropped_rests_change_what_is_trained_on() {
    let workspace = Workspace::with_clicks(500);
    let summary = workspace.train("dcn", &["--pipe-command", "head -n 100", "--drop-last"]);
    // 100 lines of each of the two files are 3 batches of 64, and 8 rows that do not fill one.
    assert_eq!((summary["samples"].as_u64(), summary["test_rows"].as_u64()), (Some(192), Some(200)));
}

#[test]
fn progress_goes_to_standard_error_and_quiet_silences_it() {
    let workspace = Workspace::with_clicks(500);
    let arguments = ["train", "--model", "ctr_dnn", "--train", "clicks/train/*.txt", "--threads", "1"];
    let ran = workspace.run(&[&arguments, SMALL, &["--print_period", "2", "--profile"]].concat());
    let stderr = ran.succeeded().stderr();
    assert!(stderr.starts_with("ctr_dnn (dim 4, hidden 16,8; "), "{stderr}");
    assert!(stderr.contains("epoch 1/1 "), "{stderr}");
    for word in
        ["samples/s", "loss 0.", "auc 0.", "compute ", " to go", "time in phases", "barrier", "time in ops", "fc #"]
    {
        assert!(stderr.contains(word), "`{word}` is not in {stderr}");
    }
    assert!(ran.stdout().starts_with("ctr_dnn: train AUC 0."), "{}", ran.stdout());
    let ran = workspace.run(&[&arguments, SMALL, &["--quiet"]].concat());
    assert_eq!(ran.succeeded().stderr(), "");
}
