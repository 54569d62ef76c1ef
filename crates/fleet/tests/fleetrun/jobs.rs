//! Jobs that train: `openfleet train` as servers and workers under `fleetrun`, under `mpirun`, and by variables alone.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::clicks::{BATCH, Clicks, last_json, number};
use crate::workspace::{Ran, Workspace, all_end, eventually, free_ports, signal_to};

/// Sync sees the same joined batches as one process, and trains the same model.
#[test]
fn sync_two_by_two_is_as_good_as_one_process() {
    let clicks = Clicks::new(40_000);
    let alone = clicks.alone(2 * BATCH, "--lr 0.005");
    let summary = clicks.job(2, 2, "--lr 0.005 --mode sync");
    let (expected, auc) = (number(&alone, "test_auc"), number(&summary, "test_auc"));
    println!("sync: AUC {auc:.5}, alone {expected:.5}");
    assert!(expected > 0.8 && (expected - auc).abs() < 0.0005, "AUC {auc}, alone {expected}");
    assert_eq!(summary["rows_in_tables"], alone["rows_in_tables"]);
}

/// In the other modes each step has one worker's batch, like one process with such batches. The dense steps of hybrid are joint,
/// and geo averages the dense steps of the workers: both are like one process with batches of all workers. Every job ends
/// (story 3).
#[test]
fn every_mode_trains_two_by_two_and_ends() {
    let clicks = Clicks::new(60_000);
    let rule = "--epochs 2 --lr 0.001";
    let (alone, joined) = (clicks.alone(BATCH, rule), clicks.alone(2 * BATCH, rule));
    for mode in [
        "sync --strategy wire_bits=16",
        "half_async",
        "async",
        "async --strategy row_staleness=2",
        "hybrid",
        "geo --k-steps 2",
    ] {
        let summary = clicks.job(2, 2, &format!("{rule} --mode {mode}"));
        let auc = number(&summary, "test_auc");
        let has_joint_steps = ["sync", "hybrid", "geo"].iter().any(|joint| mode.starts_with(joint));
        let expected = number(if has_joint_steps { &joined } else { &alone }, "test_auc");
        println!("{mode}: AUC {auc:.5}, alone {expected:.5}");
        assert!(expected > 0.8 && expected - auc < 0.005, "{mode}: AUC {auc}, alone {expected}");
        // The figures are those of all workers.
        assert_eq!(summary["samples"], 120_000, "{mode}");
        assert_eq!(summary["test_rows"], 16_000, "{mode}");
        assert_eq!(summary["worker_samples_per_second"].as_array().unwrap().len(), 2, "{mode}");
        assert_eq!(summary["rows_in_tables"], alone["rows_in_tables"], "{mode}");
        assert!(number(&summary, "bytes_sent") > 0.0 && number(&summary, "bytes_received") > 0.0);
        let shares = &summary["phase_shares"];
        let sum: f64 = ["data", "pull", "compute", "push", "barrier"].iter().map(|phase| number(shares, phase)).sum();
        assert!((sum - 1.0).abs() < 1e-6 && number(shares, "pull") > 0.0 && number(shares, "push") > 0.0, "{shares}");
    }
}

#[test]
fn one_by_one_three_by_one_and_one_by_two_end_well() {
    let clicks = Clicks::new(4000);
    for (servers, workers) in [(1, 1), (3, 1), (1, 2)] {
        let summary = clicks.job(servers, workers, "--lr 0.005");
        assert_eq!(summary["samples"], 4000, "{servers} servers, {workers} workers");
        assert!(number(&summary, "test_auc") > 0.6, "{summary}");
    }
    // Four workers for two files: two of them have no data.
    for mode in ["sync", "async", "geo"] {
        let ran = clicks.start(1, 4, &format!("--mode {mode}")).end();
        assert_eq!(last_json(&ran.succeeded().stdout)["samples"], 4000, "{mode}");
        assert_eq!((ran.stdout + &ran.stderr).matches("has no rows in this pass").count(), 2, "{mode}");
    }
}

#[test]
fn one_server_serves_four_workers() {
    let clicks = Clicks::new(4000);
    let lines: Vec<String> = clicks.workspace.read("all.txt").lines().map(|line| format!("{line}\n")).collect();
    for (at, part) in lines.chunks(1000).enumerate() {
        clicks.workspace.write(&format!("parts/{at}.txt"), &part.concat());
    }
    let summary = clicks.job(1, 4, "--mode sync");
    assert_eq!((summary["samples"].as_u64(), summary["test_rows"].as_u64()), (Some(4000), Some(16_000)));
    assert_eq!(summary["worker_samples_per_second"].as_array().unwrap().len(), 4);
}

/// One file, three workers: all number its words equally, and each trains a part of it.
#[test]
fn workers_that_learn_words_have_one_vocabulary() {
    let openfleet = env!("CARGO_BIN_EXE_openfleet");
    // Gradients add up over a batch, so with fourteen words only small batches and steps converge.
    let options = "--model word2vec --train text.txt --min-count 1 --subsample 0 --dim 8 --threads 1 --mode async \
                   --batch-size 16 --learning-rate 0.005";
    let workspace = Workspace::with_job(&format!("exec {openfleet} train {options} --quiet --json --save words"));
    let text: String = (0..2000).map(|line| format!("every line ends with word{}\n", line % 10)).collect();
    workspace.write("text.txt", &text);
    let ran = workspace.job("--server_num=2 --worker_num=3");
    let summary = last_json(&ran.succeeded().stdout);
    assert_eq!(summary["vocabulary"], 14);
    assert_eq!(summary["words"], 10_000, "the parts add up to the text");
    assert_eq!(summary["rows_in_tables"], 28, "a row of each word in two tables");
}

/// The vectors of a text file, by word.
fn vectors(text: &str) -> Vec<(String, Vec<f32>)> {
    let word = |line: &str| {
        let mut cells = line.split(' ');
        (cells.next().unwrap().to_owned(), cells.map(|cell| cell.parse().unwrap()).collect())
    };
    text.lines().skip(1).map(word).collect()
}

/// Parts of different lengths, two epochs, more workers than some parts have batches: in every mode the first worker writes the
/// vectors of the checkpoint, including those of words that only other workers saw.
#[test]
fn the_first_worker_writes_the_vectors_of_all_words_in_every_mode() {
    let openfleet = env!("CARGO_BIN_EXE_openfleet");
    let options =
        "--model word2vec --train text.txt --min-count 1 --subsample 0 --dim 4 --threads 1 --epochs 2 --batch 10";
    let files = "--vectors vectors.txt --save words --quiet --json";
    let job = format!("eval \"exec {openfleet} train {options} {files} $options\"");
    // Each line has its own words, so that every worker sees words that no other worker sees.
    let text: String = (0..61).map(|line| format!("a{line} b{line} c{line} a{line} b{line}\n")).collect();
    for (mode, workers) in [("sync", 2), ("half_async", 3), ("async", 3), ("hybrid", 2), ("geo", 3)] {
        let workspace = Workspace::with_job(&job);
        workspace.write("text.txt", &text);
        let workers_option = format!("--worker_num={workers}");
        let mut command = workspace.command(&["--server_num=2", &workers_option, "sh", "job.sh"]);
        // 32-bit rows, because the checkpoint is compared with what the worker pulled.
        let wire = if mode == "geo" { "--strategy k_steps=3" } else { "" };
        command.env("options", format!("--mode {mode} --strategy wire_bits=32 {wire}"));
        let ran = workspace.start_command(command).end();
        let summary = last_json(&ran.succeeded().stdout);
        assert_eq!((&summary["vocabulary"], &summary["words"]), (&183.into(), &610.into()), "{mode}");
        assert_eq!(summary["samples"], 610, "{mode}: each word of the text twice, those at the borders of parts too");
        let written = vectors(&workspace.read("vectors.txt"));
        let manifest: Value = serde_json::from_str(&workspace.read("words/manifest.json")).unwrap();
        let words: Vec<&str> = written.iter().map(|(word, _)| word.as_str()).collect();
        let saved = manifest["data"]["vocabulary"].as_array().unwrap();
        assert_eq!(words, saved.iter().map(|word| word.as_str().unwrap()).collect::<Vec<_>>(), "{mode}");
        let mut export = Command::new(openfleet);
        export
            .args(["export", "words", "--table", "word_vectors", "--out", "rows.txt"])
            .current_dir(workspace.path(""));
        assert!(export.stdout(Stdio::null()).status().unwrap().success());
        let rows = workspace.read("rows.txt");
        assert_eq!(rows.lines().count(), 183, "{mode}: every word was trained");
        for line in rows.lines() {
            let (key, floats) = line.split_once('\t').unwrap();
            let (word, vector) = &written[key.parse::<usize>().unwrap()];
            let floats: Vec<f32> = floats.split(' ').map(|float| float.parse().unwrap()).collect();
            let near = floats.iter().zip(vector).all(|(a, b)| (a - b).abs() <= 1e-6);
            assert!(near, "{mode}: `{word}` is {vector:?}, in the checkpoint {floats:?}");
        }
    }
}

#[test]
fn more_workers_than_words_train_the_words_there_are() {
    let openfleet = env!("CARGO_BIN_EXE_openfleet");
    let options =
        "--model word2vec --train text.txt --min-count 1 --subsample 0 --dim 4 --threads 1 --mode sync --epochs 2";
    let workspace =
        Workspace::with_job(&format!("exec {openfleet} train {options} --vectors vectors.txt --quiet --json"));
    workspace.write("text.txt", "a b\n");
    let ran = workspace.job("--server_num=1 --worker_num=5");
    let summary = last_json(&ran.succeeded().stdout);
    assert_eq!((&summary["vocabulary"], &summary["words"]), (&2.into(), &4.into()));
    assert_eq!(vectors(&workspace.read("vectors.txt")).len(), 2);
}

/// Stories 4 and 5: whichever process is killed, the job ends, names it, and leaves no process behind.
#[test]
fn a_worker_or_server_killed_while_training_ends_the_job() {
    for who in ["server.1", "worker.1"] {
        let clicks = Clicks::new(2000);
        let running = clicks.start(2, 2, "--epochs 1000000");
        let pids = clicks.pids(2, 2);
        eventually("training has begun", || {
            let log = std::fs::read_to_string(clicks.workspace.path("log/workerlog.1")).unwrap_or_default();
            log.contains("communicator started")
        });
        signal_to(clicks.workspace.pid(&format!("pid.{who}")), "-KILL");
        let ran = running.end();
        let who = who.replace('.', " ");
        assert!(ran.failed(137).contains(&format!("error: {who} (pid ")), "{}", ran.stderr);
        all_end(&pids);
    }
}

#[test]
fn interrupting_a_job_that_trains_leaves_nobody() {
    let clicks = Clicks::new(2000);
    let running = clicks.start(2, 2, "--epochs 1000000");
    let pids = clicks.pids(2, 2);
    running.signal("-INT");
    running.end().failed(130);
    all_end(&pids);
}

/// Story 6: a missing file or an empty list is an error.
#[test]
fn a_job_without_its_files_fails_and_names_them() {
    let clicks = Clicks::new(1000);
    let ran = clicks.start(1, 1, "--train 'nothing/*.txt'").end();
    let stderr = ran.failed(1);
    assert!(stderr.contains("worker 0 (pid ") && stderr.contains("nothing/*.txt"), "{stderr}");
}

/// `openfleet train` with the variables of the PaddlePaddle scripts, without a launcher.
fn by_hand(clicks: &Clicks, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new("sh");
    command.arg("job.sh").current_dir(clicks.workspace.path("")).stdin(Stdio::null());
    command.env("options", format!("--train 'parts/*.txt' --batch {BATCH}")).env_remove("OPENFLEET_SECRET");
    command.envs(variables.iter().copied());
    command
}

fn ended(clicks: &Clicks, command: Command) -> Ran {
    clicks.workspace.start_command(command).end()
}

/// Story 11: a server that does not start is named after the limit.
#[test]
fn a_server_that_never_comes_is_named() {
    let clicks = Clicks::new(1000);
    let endpoint = format!("127.0.0.1:{}", free_ports(1));
    let variables = [
        ("TRAINING_ROLE", "TRAINER"),
        ("PADDLE_PSERVERS_IP_PORT_LIST", endpoint.as_str()),
        ("PADDLE_TRAINERS_NUM", "1"),
        ("PADDLE_TRAINER_ID", "0"),
        ("OPENFLEET_WAIT_SECONDS", "1"),
    ];
    let ran = ended(&clicks, by_hand(&clicks, &variables));
    let stderr = ran.failed(1);
    assert!(stderr.contains(&endpoint) && stderr.contains("did not answer within 1 s"), "{stderr}");
}

/// Two processes started by hand, as in PaddlePaddle script 002. A worker with another secret is refused, and the right one
/// trains.
#[test]
fn a_worker_with_a_wrong_secret_is_turned_away() {
    let clicks = Clicks::new(1000);
    let port = free_ports(1).to_string();
    let list = format!("127.0.0.1:{port}");
    let common = [("PADDLE_PSERVERS_IP_PORT_LIST", list.as_str()), ("PADDLE_TRAINERS_NUM", "1")];
    let server = [("TRAINING_ROLE", "PSERVER"), ("POD_IP", "127.0.0.1"), ("PADDLE_PORT", port.as_str())];
    let worker = [("TRAINING_ROLE", "TRAINER"), ("PADDLE_TRAINER_ID", "0")];
    let right = [("OPENFLEET_SECRET", "the right one")];
    let server = clicks.workspace.start_command(by_hand(&clicks, &[common.as_slice(), &server, &right].concat()));
    let wrong = [common.as_slice(), &worker, &[("OPENFLEET_SECRET", "another")]].concat();
    let ran = ended(&clicks, by_hand(&clicks, &wrong));
    let stderr = ran.failed(1);
    assert!(stderr.contains("this worker cannot join the job") && stderr.contains("OPENFLEET_SECRET"), "{stderr}");
    assert!(!stderr.contains("another") && !stderr.contains("the right one"), "a secret is in the log: {stderr}");
    let ran = ended(&clicks, by_hand(&clicks, &[common.as_slice(), &worker, &right].concat()));
    assert_eq!(last_json(&ran.succeeded().stdout)["samples"], 1000);
    server.end().succeeded();
}

/// Story 12: without a role the same command trains locally.
#[test]
fn without_a_role_the_same_command_trains_alone() {
    let clicks = Clicks::new(1000);
    let summary = clicks.alone(BATCH, "");
    assert_eq!(summary["samples"], 1000);
    assert!(summary["worker_samples_per_second"].is_null());
}

/// A port that is in use ends the job with the port in the message.
#[test]
fn a_server_whose_port_is_taken_says_so() {
    let clicks = Clicks::new(1000);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let list = format!("127.0.0.1:{port}");
    let variables = [
        ("PADDLE_PSERVERS_IP_PORT_LIST", list.as_str()),
        ("PADDLE_TRAINERS_NUM", "1"),
        ("TRAINING_ROLE", "PSERVER"),
        ("POD_IP", "127.0.0.1"),
        ("PADDLE_PORT", port.as_str()),
    ];
    let ran = ended(&clicks, by_hand(&clicks, &variables));
    let stderr = ran.failed(1);
    assert!(stderr.contains(&list) && stderr.contains("another program has this port"), "{stderr}");
}

/// Even ranks are servers, odd ranks are workers (the default role maker of PaddlePaddle script 003).
#[test]
fn mpirun_starts_a_job_by_itself() {
    if Command::new("mpirun").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: there is no `mpirun`");
        return;
    }
    let clicks = Clicks::new(2000);
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "-n", "4", "sh", "job.sh"]);
    command.current_dir(clicks.workspace.path("")).stdin(Stdio::null());
    command.env("options", format!("--train 'parts/*.txt' --batch {BATCH} --mode sync"));
    let ran = ended(&clicks, command);
    let summary = last_json(&ran.succeeded().stdout);
    assert_eq!((summary["samples"].as_u64(), summary["test_rows"].as_u64()), (Some(2000), Some(16_000)));
}

/// All processes of a job are killed in the middle; the resumed job ends with the same result.
#[test]
fn a_killed_job_goes_on_where_it_was() {
    let clicks = Clicks::new(6400);
    for mode in ["sync", "async", "geo"] {
        let (straight, broken) = (format!("straight-{mode}"), format!("broken-{mode}"));
        let options = |directory: &str| format!("--mode {mode} --epochs 3 --save {directory} --save-every 5 --resume");
        let expected = clicks.job(2, 2, &options(&straight));
        let running = clicks.start(2, 2, &options(&broken));
        let manifest = clicks.workspace.path(&broken).join("manifest.json");
        eventually("a checkpoint is saved", || manifest.exists());
        let pids = clicks.pids(2, 2);
        running.signal("-KILL");
        pids.iter().for_each(|&pid| signal_to(pid, "-KILL"));
        all_end(&pids);
        drop(running);
        let resumed = clicks.job(2, 2, &options(&broken));
        let auc = |summary: &Value| summary["test_auc"].as_f64().unwrap();
        match mode {
            "sync" => {
                assert_eq!(auc(&resumed).to_bits(), auc(&expected).to_bits());
                assert!(clicks.are_equal(&straight, &broken));
            }
            // The order of arrival decides the result of 300 batches: two runs without any failure differ by 0.02.
            _ => assert!(auc(&resumed) > auc(&expected) - 0.05, "{mode}: {resumed} {expected}"),
        }
        let (done, all) = (resumed["samples"].as_u64().unwrap(), expected["samples"].as_u64().unwrap());
        assert!(done < all, "{mode}: nothing was left out");
        if mode == "geo" {
            assert!(done.is_multiple_of(6400), "{done}: not whole epochs");
            let again = clicks.job(2, 2, &format!("--mode geo --epochs 4 --save {broken} --save-every 5 --resume"));
            assert_eq!(again["samples"], 6400, "a run that had ended goes on with one more epoch");
        }
    }
}
