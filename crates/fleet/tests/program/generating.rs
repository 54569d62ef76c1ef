//! `openfleet gen`.

use crate::data::Workspace;

#[test]
fn the_same_seed_gives_the_same_clicks() {
    let workspace = Workspace::new();
    for (directory, seed) in [("one", "7"), ("again", "7"), ("other", "8")] {
        let sizes = ["--rows", "300", "--test-rows", "100", "--ids", "200", "--parts", "1"];
        let ran = workspace.run(&[&["gen", "criteo", "--seed", seed, "--out", directory], sizes.as_slice()].concat());
        let stdout = ran.succeeded().stdout();
        assert!(stdout.contains("train: 300 rows") && stdout.contains("Bayes AUC 0."), "{stdout}");
    }
    for file in ["train/part-0.txt", "train/part-0.tsv", "test/part-0.txt", "meta.json"] {
        let read = |directory: &str| workspace.read(&format!("{directory}/{file}"));
        assert_eq!(read("one"), read("again"), "{file}");
        assert_ne!(read("one"), read("other"), "{file}");
    }
    let meta: serde_json::Value = serde_json::from_str(&workspace.read("one/meta.json")).unwrap();
    assert_eq!(meta["train"]["files"][0], "train/part-0.txt");
    assert!(meta["bayes_auc"].as_f64().unwrap() > 0.6);
}

#[test]
fn underscores_do_as_well_as_hyphens() {
    let workspace = Workspace::new();
    let ran = workspace.run(&[
        "gen",
        "criteo",
        "--rows",
        "50",
        "--test_rows",
        "60",
        "--ids",
        "200",
        "--click_rate",
        "0.5",
        "--out",
        "x",
    ]);
    assert!(ran.succeeded().stdout().contains("test: 60 rows"));
}

#[test]
fn too_few_ids_are_refused_with_a_hint() {
    let ran = Workspace::new().run(&["gen", "criteo", "--ids", "3", "--out", "x"]);
    let expected = "error: expected `ids` from 104 to 4294967295, got 3\n\n\
                    hint: 26 slots with at least 4 ids each need 104\n";
    assert_eq!(ran.failed(1), expected);
}

#[test]
fn words_come_with_their_similarities() {
    let workspace = Workspace::new();
    let sizes = ["--words", "500", "--vocabulary", "100", "--topics", "5"];
    workspace.run(&[["gen", "words", "--out", "text"].as_slice(), &sizes].concat()).succeeded();
    assert_eq!(workspace.read("text/words.txt").split_whitespace().count(), 500);
    assert_eq!(workspace.read("text/pairs.tsv").lines().next().unwrap().split('\t').count(), 3);
    assert!(workspace.read("text/meta.json").contains("\"text\": \"words.txt\""));
}
