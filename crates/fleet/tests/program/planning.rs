//! `openfleet plan`.

use crate::data::{Workspace, number};
use serde_json::Value;

/// A plan without measuring anything.
fn plan(options: &[&str]) -> Value {
    let fixed = ["plan", "--no-calibrate", "--json"];
    Workspace::new().run(&[fixed.as_slice(), options].concat()).json()
}

const CTR_DNN: &[&str] = &["--model", "ctr_dnn", "--compute-ms", "20"];

#[test]
fn parameters_and_keys_are_those_of_the_model() {
    let planned = plan(&[CTR_DNN, &["--dim", "4", "--hidden", "8", "--slots", "3", "--dense", "2"]].concat());
    // 3 x 4 + 2 inputs, 8 hidden units, 2 outputs, each with a bias.
    assert_eq!(number(&planned, "dense_parameters"), f64::from((14 + 1) * 8 + (8 + 1) * 2));
    // 39 % of 512 x 3 ids.
    assert_eq!(number(&planned, "keys_per_batch"), 599.0);
    assert_eq!(planned["costs_are"], "documented");
}

#[test]
fn bytes_of_a_batch_are_those_of_its_messages() {
    let numbers = ["--dense-parameters", "1000", "--dim", "10", "--compute-ms", "1", "--keys", "100"];
    let asynchronous = plan(&[numbers.as_slice(), &["--server-num", "1"]].concat());
    // Frame header 32; head 16, tables and dimensions 8 + 8 + 8, keys 8 each. Push: head 64, 16-bit gradients, a block's head 8.
    let pull = 32 + 16 + 24 + 100 * 8;
    let push = 32 + 64 + 24 + 100 * 8 + 100 * 10 * 2 + 8 + 1000 * 2;
    assert_eq!(number(&asynchronous, "worker_sent_bytes_per_batch"), f64::from(pull + push));
    // Rows of 32 bits; number and kind of the changes 16, four scales, 8 bits per parameter.
    let received = 32 + 100 * 10 * 4 + 32 + 16 + 4 * 4 + 1000;
    assert_eq!(number(&asynchronous, "worker_received_bytes_per_batch"), f64::from(received));

    let sync = plan(&[numbers.as_slice(), &["--server-num", "1", "--mode", "sync"]].concat());
    let push = 32 + 64 + 24 + 100 * 8 + 100 * 10 * 4 + 8 + 1000 * 4;
    assert_eq!(number(&sync, "worker_sent_bytes_per_batch"), f64::from(pull + push));
    // Values of 32 bits, and how long the step waited.
    let received = 32 + 100 * 10 * 4 + 32 + 1000 * 4 + 4;
    assert_eq!(number(&sync, "worker_received_bytes_per_batch"), f64::from(received));
}

#[test]
fn rows_need_the_memory_of_their_weights_state_and_index() {
    let rows = |optimizer: &str, servers: &str| {
        let options = ["--rows", "8000000", "--optimizer", optimizer, "--server-num", servers];
        number(&plan(&[CTR_DNN, &options].concat()), "server_row_bytes")
    };
    // A header of 12 bytes, 10 weights, two more floats per weight with Adam; 8 bytes of index per row at 67 to 75 % use.
    for (optimizer, slots) in [("adam", 3.0), ("adagrad", 2.0), ("sgd", 1.0)] {
        let per_row = rows(optimizer, "1") / 8e6;
        let floats = 12.0 + 40.0 * slots;
        assert!((floats + 8.0 / 0.75..floats + 8.0 / 0.66).contains(&per_row), "{optimizer}: {per_row}");
    }
    let quarter = rows("adam", "4") / rows("adam", "1");
    assert!((0.24..0.26).contains(&quarter), "{quarter}");
}

#[test]
fn as_many_servers_are_needed_as_their_memory_requires() {
    let options = ["--rows", "50000000", "--server-memory", "2"];
    let planned = plan(&[CTR_DNN, &options].concat());
    // 50 M rows of 143 to 145 bytes.
    assert_eq!(number(&planned, "servers_needed"), 4.0, "{planned}");
    assert_eq!(planned["servers_needed_for"], "memory");
    assert_eq!(planned["server_num"], planned["servers_needed"], "it plans with the servers that are needed");
    assert!(number(&planned, "server_memory_bytes") < 2e9);
    let given = plan(&[CTR_DNN, &options, &["--server-num", "3"]].concat());
    assert!(number(&given, "server_memory_bytes") > 2e9, "{given}");
    assert_eq!(number(&given, "servers_needed"), 4.0);
}

#[test]
fn busy_servers_and_networks_need_more_servers() {
    let needed = |options: &[&str]| {
        let planned = plan(&[CTR_DNN, &["--worker-num", "200", "--cores", "2"], options].concat());
        (number(&planned, "servers_needed"), planned["servers_needed_for"].clone(), planned["limit"].clone())
    };
    let (by_processors, because, _) = needed(&["--network-gbit", "1000"]);
    assert!(by_processors > 1.0 && because == "server processors", "{by_processors} for {because}");
    let (by_network, because, _) = needed(&["--network-gbit", "1"]);
    assert!(by_network > by_processors && because == "network", "{by_network} for {because}");
    let (_, _, limit) = needed(&["--network-gbit", "1", "--server-num", "1"]);
    assert_eq!(limit, "network");
    // All requests of sync arrive at once, so its servers may be busy for half as long.
    let (in_steps, because, _) = needed(&["--network-gbit", "1000", "--mode", "sync"]);
    assert!(in_steps > by_processors && because == "server processors", "{in_steps} for {because}");
}

#[test]
fn every_model_can_be_planned() {
    for model in ["ctr_dnn", "wide_deep", "deepfm", "dcn", "word2vec", "fit_a_line", "counter"] {
        for mode in ["sync", "half_async", "async"] {
            let planned = plan(&["--model", model, "--compute-ms", "5", "--mode", mode, "--worker-num", "2"]);
            let speed = number(&planned, "samples_per_second");
            let batch = number(&planned, "batch_size");
            assert!(speed > 0.0 && speed < 2.0 * batch / 5e-3, "{model}, {mode}: {speed}");
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn costs_and_computing_are_measured_on_this_machine() {
    let small = ["--model", "ctr_dnn", "--hidden", "16", "--dim", "4", "--batch-size", "64", "--rows", "2000"];
    let ran = Workspace::new().run(&[["plan", "--measure", "--json", "--one-machine"].as_slice(), &small].concat());
    let planned = ran.json();
    assert_eq!(planned["costs_are"], "measured");
    assert!(number(&planned, "compute_ms") > 0.0);
    // Costs of messages are differences of measurements, of which noise may leave nothing.
    for part in ["pull", "push", "message"] {
        let cost = &planned["costs"][part];
        assert!(number(cost, "worker") >= 0.0 && number(cost, "server") >= 0.0, "{planned}");
    }
    let pull = &planned["costs"]["pull"];
    assert!(number(pull, "worker") + number(pull, "server") > 0.0, "{planned}");
    assert!(number(&planned, "samples_per_second") < 64.0 / number(&planned, "compute_ms") * 1e3, "{planned}");
}

#[test]
fn the_result_is_a_table_for_people() {
    let ran = Workspace::new().run(&[["plan", "--no-calibrate"].as_slice(), CTR_DNN].concat());
    let stdout = ran.succeeded().stdout();
    for line in [
        "ctr_dnn (dim 10, hidden 400,400,400), adam; 431,202 dense parameters, 1,000,000 rows per table",
        "async: 1 worker with batches of 512 rows and 5,192 distinct keys, 1 server",
        "limited by      computing and waiting on the workers",
        "servers needed  1 (one server is the least)",
    ] {
        assert!(stdout.lines().any(|got| got == line), "`{line}` is not in\n{stdout}");
    }
}

#[test]
fn bad_options_are_refused() {
    let table: [(&[&str], &str); 9] = [
        (
            &["--compute-ms", "1"],
            "`openfleet plan` needs `--model`\n\nhint: name a model, or give numbers: `--dense-parameters`, `--slots` and `--dim`",
        ),
        (
            &["--model", "dcn"],
            "`openfleet plan` needs `--compute-ms`\n\nhint: give the time of forward and backward of a batch, or measure it here \
             with `--measure`",
        ),
        (&["--model", "dcn", "--compute-ms", "-1"], "`--compute-ms`: expected a number of at least 0, got `-1`"),
        (&["--model", "dcn", "--network-gbit", "0"], "`--network-gbit`: expected a number above 0, got `0`"),
        (&["--model", "dcn", "--mode", "geo"], "`--mode`: expected sync, half_async or async, got `geo`"),
        (&["--model", "dcn", "--rows", "0"], "`--rows`: expected a number above 0, got `0`"),
        (&["--model", "word2vec", "--slots", "3"], "`--slots` cannot be used with word2vec"),
        (&["--dense-parameters", "9", "--hidden", "3"], "`--hidden` cannot be used with `--dense-parameters`"),
        (&["--model", "word2vec", "--measure"], "`--measure` cannot be used with this job"),
    ];
    for (options, expected) in table {
        let stderr = Workspace::new().run(&[["plan"].as_slice(), options].concat()).failed(1);
        assert!(stderr.starts_with(&format!("error: {expected}")), "{options:?}: {stderr}");
    }
}
