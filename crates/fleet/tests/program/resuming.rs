//! `openfleet train --save DIR --save-every N --resume`: a killed and resumed run gives the same result.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::data::{SMALL, Workspace, number};

const TRAIN: &[&str] = &["train", "--model", "ctr_dnn", "--json", "--epochs", "3"];
const FILES: &[&str] = &["--train", "clicks/train/*.txt", "--test", "clicks/test/*.txt"];

fn arguments<'a>(workspace: &[&'a str], directory: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [TRAIN, FILES, SMALL, workspace, &["--save", directory, "--save-every", "5"], more].concat()
}

/// Kills the program with SIGKILL once the directory has a checkpoint.
fn killed(workspace: &Workspace, arguments: &[&str], directory: &str) {
    let mut child = workspace.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let manifest = workspace.path(directory).join("manifest.json");
    let began = Instant::now();
    while !manifest.exists() && child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < Duration::from_secs(120), "no checkpoint");
        std::thread::sleep(Duration::from_millis(1));
    }
    kill(&mut child);
}

fn kill(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The number of rows and parameters that differ between two models.
fn difference(workspace: &Workspace, a: &str, b: &str) -> Value {
    workspace.run(&["diff", a, b, "--json"]).json()
}

fn assert_same(difference: &Value) {
    for list in ["tables", "parameters"] {
        for one in difference[list].as_array().unwrap() {
            assert_eq!(number(one, "changed"), 0.0, "{one}");
        }
    }
    let table = &difference["tables"][0];
    assert_eq!((number(table, "added"), number(table, "removed")), (0.0, 0.0));
}

#[test]
fn a_killed_run_ends_as_if_it_had_not_been_killed() {
    let workspace = Workspace::with_clicks(4000);
    let modes: [&[&str]; 4] = [
        &["--threads", "1"],
        &["--mode", "sync", "--server-num", "2", "--worker-num", "2", "--threads", "4"],
        &["--mode", "sync", "--servers", "1", "--workers", "1", "--threads", "1", "--in-memory"],
        &["--threads", "1", "--storage", "bfloat16", "--optimizer", "rowwise_adagrad"],
    ];
    for (number_of, mode) in modes.into_iter().enumerate() {
        let (straight, broken) = (format!("straight-{number_of}"), format!("broken-{number_of}"));
        let expected = workspace.run(&arguments(mode, &straight, &[])).json();
        killed(&workspace, &arguments(mode, &broken, &[]), &broken);
        let resumed = workspace.run(&arguments(mode, &broken, &["--resume"])).json();
        assert_same(&difference(&workspace, &straight, &broken));
        assert_eq!(number(&resumed, "test_auc").to_bits(), number(&expected, "test_auc").to_bits(), "{mode:?}");
        assert!(number(&resumed, "samples") <= number(&expected, "samples"));
    }
}

#[test]
fn what_cannot_be_gone_on_from_is_named() {
    let workspace = Workspace::with_clicks(300);
    let none = workspace.run(&arguments(&["--threads", "1"], "model", &["--resume"]));
    assert!(none.succeeded().stderr().contains("no checkpoint to resume from in `model`"), "{}", none.stderr());
    let other_seed = workspace.run(&arguments(&["--threads", "1"], "model", &["--resume", "--seed", "7"])).failed(1);
    assert!(other_seed.contains("`--resume`") && other_seed.contains("seed 1"), "{other_seed}");
    let other_mode = workspace.run(&arguments(&["--mode", "sync"], "model", &["--resume"])).failed(1);
    assert!(other_mode.contains("mode local"), "{other_mode}");
    let other_threads = workspace.run(&arguments(&["--threads", "3"], "model", &["--resume"])).failed(1);
    assert!(other_threads.contains('3') && other_threads.contains('1'), "{other_threads}");
    let alone = workspace.run(&[TRAIN, FILES, &["--resume"]].concat()).failed(2);
    assert!(alone.contains("--save"), "{alone}");
}
