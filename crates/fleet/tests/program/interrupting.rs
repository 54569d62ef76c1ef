//! Ctrl-C: the program stops between two batches, reports, and exits with the code that shells expect.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::data::{SMALL, Workspace, last_json, number};

#[test]
fn an_interrupted_run_reports_and_exits_with_130() {
    for signal in ["-INT", "-TERM"] {
        let workspace = Workspace::with_clicks(2000);
        let train = ["train", "--model", "ctr_dnn", "--train", "clicks/train/*.txt", "--test", "clicks/test/*.txt"];
        let endless = ["--epochs", "1000000", "--print-period", "1", "--json", "--save", "model"];
        let mut child = workspace
            .command(&[&train, SMALL, &endless].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The handler is installed before the first line of progress.
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("epoch 2/") {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "the program ended early");
        }
        let pid = child.id().to_string();
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
        let asked = Instant::now();
        let mut rest = String::new();
        stderr.read_to_string(&mut rest).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(asked.elapsed() < Duration::from_secs(20), "it took {:?} to end", asked.elapsed());

        assert_eq!(output.status.code(), Some(130), "{rest}");
        assert!(rest.contains("interrupted: training ended after the current batch"), "{rest}");
        let summary = last_json(&String::from_utf8(output.stdout).unwrap());
        assert_eq!(summary["interrupted"], true);
        assert!(number(&summary, "samples") > 2000.0 && summary["test_auc"].is_null(), "{summary}");
        assert!(workspace.read("model/manifest.json").contains("\"complete\": false"));
    }
}

#[test]
fn commands_that_have_nothing_to_finish_end_with_the_first_signal() {
    for signal in ["-INT", "-TERM"] {
        let workspace = Workspace::new();
        // More rows than any disk holds.
        let endless =
            ["gen", "criteo", "--rows", "1000000000000000000", "--ids", "200", "--parts", "1", "--out", "clicks"];
        // Restore default signal handling: a background job of a script ignores SIGINT.
        let mut command = std::process::Command::new("env");
        command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_openfleet")]).args(endless);
        let mut child = command.current_dir(workspace.path(".")).spawn().unwrap();
        let part = workspace.path("clicks/train/part-0.txt");
        while !std::fs::metadata(&part).is_ok_and(|file| file.len() > 0) {
            assert!(child.try_wait().unwrap().is_none(), "the program ended early");
            std::thread::sleep(Duration::from_millis(10));
        }
        let pid = child.id().to_string();
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
        // Fails after one minute; then the process is killed, so that it does not fill the disk.
        let ended = (0..6000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            child.try_wait().unwrap().is_some()
        });
        let _ = child.kill();
        assert!(ended && !child.wait().unwrap().success(), "{signal}");
    }
}
