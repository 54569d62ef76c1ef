//! Error messages of the program, compared as a whole.

use crate::data::{SMALL, Workspace};

#[test]
fn a_missing_file_is_named() {
    let stderr = Workspace::new().run(&["train", "--model", "dcn", "--train", "nowhere.txt"]).failed(1);
    let expected = "error: data file `nowhere.txt` does not exist\n\n\
                    hint: check the path; relative paths start at the working directory\n";
    assert_eq!(stderr, expected);
}

#[test]
fn a_pattern_without_files_is_named() {
    let workspace = Workspace::with_clicks(100);
    let train = ["train", "--model", "dcn", "--train", "clicks/train/*.txt,clicks/train/*.csv"];
    let expected = "error: no file matches `clicks/train/*.csv`\n\n\
                    hint: check the pattern, and quote it so that the shell does not expand it\n";
    assert_eq!(workspace.run(&train).failed(1), expected);
}

#[test]
fn a_bad_line_is_named_with_its_slot() {
    let workspace = Workspace::new();
    workspace.write("bad.txt", "1 1 1 7\n1 0 1 seven\n");
    let train = ["train", "--model", "ctr_dnn", "--train", "bad.txt", "--slots", "1", "--dense", "0", "-q"];
    let stderr = workspace.run(&[train.as_slice(), SMALL].concat()).failed(1);
    assert!(stderr.starts_with("error: `bad.txt` line 2, slot `C1`: expected "), "{stderr}");
    assert!(stderr.contains("got `seven`"), "{stderr}");
    assert!(stderr.contains("\n\nhint: ") && stderr.contains("`--skip-bad-lines`"), "{stderr}");
}

#[test]
fn an_unknown_model_lists_the_known_ones() {
    let stderr = Workspace::new().run(&["train", "--model", "deepfn", "--train", "x"]).failed(2);
    assert!(stderr.contains("invalid value 'deepfn' for '--model <MODEL>'"), "{stderr}");
    assert!(stderr.contains("ctr_dnn, wide_deep, deepfm, dcn, word2vec, fit_a_line, counter"), "{stderr}");
}

#[test]
fn a_column_description_with_a_wrong_word_shows_where() {
    let workspace = Workspace::new();
    workspace.write("bad.toml", "separator = \",\"\nlabels = 3\n");
    workspace.write("x.csv", "");
    let train = ["train", "--model", "dcn", "--format", "csv", "--columns", "bad.toml", "--train", "x.csv"];
    let stderr = workspace.run(&train).failed(1);
    assert!(stderr.starts_with("error: `bad.toml` is not a column description for CSV\n  because: "), "{stderr}");
    assert!(stderr.contains("line 2") && stderr.contains("unknown field `labels`"), "{stderr}");
}

#[test]
fn csv_without_a_description_says_what_to_write() {
    let workspace = Workspace::new();
    workspace.write("x.csv", "");
    let stderr = workspace.run(&["train", "--model", "dcn", "--format", "csv", "--train", "x.csv"]).failed(1);
    assert!(stderr.starts_with("error: `--format csv` needs `--columns`\n\nhint: describe the label"), "{stderr}");
}

#[test]
fn options_that_mean_nothing_are_refused() {
    let workspace = Workspace::new();
    let table: [(&[&str], &str); 12] = [
        (
            &["--model", "dcn", "--window", "3"],
            "`--window` cannot be used with dcn\n\nhint: leave `--window` out; it is for word2vec",
        ),
        (&["--model", "fit_a_line", "--dim", "3"], "`--dim` cannot be used with fit_a_line"),
        (&["--model", "dcn", "--scale", "3"], "`--scale` cannot be used with dcn"),
        (&["--model", "counter", "--scale", "0"], "`--scale`: expected from 1 to 1,000,000, got `0`"),
        (&["--model", "dcn", "--dim", "1000000000"], "`--dim`: expected from 1 to 1,000,000, got `1000000000`"),
        (&["--model", "counter", "--test", "x"], "`--test` cannot be used with counter"),
        (&["--model", "dcn", "--vectors", "v"], "`--vectors` cannot be used with dcn"),
        (&["--model", "word2vec", "--test", "x"], "`--test` cannot be used with word2vec"),
        (&["--model", "dcn", "--ids", "3"], "`--ids` cannot be used with `--format multislot`"),
        (&["--model", "dcn", "--l1", "1", "--l2", "1"], "`--l1` and `--l2` contradict each other"),
        (&["--model", "dcn", "--learning-rate", "0"], "`--learning-rate`: expected a number above 0, got `0`"),
        (&["--model", "dcn", "--format", "text"], "`--format`: expected a format of rows, got `text`"),
    ];
    for (options, expected) in table {
        let stderr = workspace.run(&[["train", "--train", "x"].as_slice(), options].concat()).failed(1);
        assert!(stderr.starts_with(&format!("error: {expected}")), "{options:?}: {stderr}");
    }
}

#[test]
fn a_label_that_is_a_number_does_not_fit_a_click_model() {
    let workspace = Workspace::new();
    workspace.write("line.toml", "label = { column = \"y\", regression = true }\ncategorical = [{ column = \"x\" }]\n");
    workspace.write("line.csv", "x,y\n1,2\n");
    let train = ["train", "--model", "dcn", "--format", "csv", "--columns", "line.toml", "--train", "line.csv"];
    let stderr = workspace.run(&train).failed(1);
    assert!(stderr.starts_with("error: dcn expects a `label` that is 0 or 1, got one that is a number"), "{stderr}");
    assert!(stderr.contains("hint: leave `regression` out of the description, or train `fit_a_line`"), "{stderr}");
}

#[test]
fn a_loss_that_explodes_ends_the_run() {
    let workspace = Workspace::new();
    workspace.write("line.toml", "label = { column = \"y\", regression = true }\ndense = [{ column = \"x\" }]\n");
    let rows: String = (0..500).map(|i| format!("{},{}\n", 1000 * i, i)).collect();
    workspace.write("line.csv", &format!("x,y\n{rows}"));
    let arguments = ["train", "--model", "fit_a_line", "--columns", "line.toml", "--train", "line.csv", "-q"];
    let stderr = workspace.run(&[arguments.as_slice(), &["--learning-rate", "10", "--epochs", "5"]].concat()).failed(1);
    assert!(stderr.contains("\nerror: the loss `") && stderr.contains("` became "), "{stderr}");
    // The cause was logged before, once per parameter.
    assert_eq!(stderr.matches("the gradient of `fc_0.w_0` is not finite").count(), 1, "{stderr}");
    assert!(stderr.contains("hint: lower the learning rate"), "{stderr}");
}

#[test]
fn a_label_that_is_no_click_is_named_with_file_and_line() {
    let workspace = Workspace::new();
    workspace.write("ratings.txt", "1 1 1 7\n1 0 1 8\n1 5 1 9\n");
    let train = ["train", "--model", "ctr_dnn", "--train", "ratings.txt", "--slots", "1", "--dense", "0", "-q"];
    let stderr = workspace.run(&[train.as_slice(), SMALL].concat()).failed(1);
    assert!(stderr.starts_with("error: `ratings.txt` line 3, slot `label`: expected 0 or 1, got 5"), "{stderr}");
}

#[test]
fn nothing_to_train_on_is_an_error() {
    let workspace = Workspace::new();
    for (text, options, said) in
        [("", &[][..], "0 bad lines"), ("\n\n", &[], "0 bad lines"), ("x\ny\n", &["--skip-bad-lines"], "2 bad lines")]
    {
        workspace.write("rows.txt", text);
        let train = ["train", "--model", "ctr_dnn", "--train", "rows.txt", "--slots", "1", "--dense", "0", "-q"];
        let stderr = workspace.run(&[train.as_slice(), SMALL, options].concat()).failed(1);
        assert!(stderr.contains("error: the dataset has no rows") && stderr.contains(said), "{stderr}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_place_that_cannot_be_written_is_found_before_training() {
    let workspace = Workspace::with_clicks(100);
    let train = ["train", "--model", "ctr_dnn", "--train", "clicks/train/*.txt", "--save", "/proc/openfleet"];
    let stderr = workspace.run(&[train.as_slice(), SMALL].concat()).failed(1);
    assert!(stderr.contains("/proc/openfleet") && !stderr.contains("epoch"), "{stderr}");
}

/// The directory becomes a file during training: saves fail, training continues, and the end reports it.
#[test]
fn saves_that_fail_do_not_end_training() {
    let workspace = Workspace::with_clicks(4000);
    // A reader that waits for the first save, and then replaces the directory by a file.
    workspace.write(
        "spoil.sh",
        "until [ -e model/manifest.json ]; do sleep 0.01; done\n\
         until [ -f model ]; do i=$((i + 1)); mv model gone.$i; (set -C; : > model); done 2>/dev/null\n",
    );
    let spoil = "awk 'NR == 1000 { fflush(); system(\"sh spoil.sh\") } { print }'";
    let train = ["train", "--model", "ctr_dnn", "--train", "clicks/train/part-0.txt", "--save", "model"];
    let ran = workspace
        .run(&[train.as_slice(), SMALL, &["--save-every", "5", "--pipe-command", spoil, "--threads", "1"]].concat());
    let stderr = ran.failed(1);
    assert!(stderr.contains("saved step") && stderr.contains("warning: "), "{stderr}");
    assert!(stderr.contains("epoch 1/1: 2,000 samples"), "training came to its end: {stderr}");
}
