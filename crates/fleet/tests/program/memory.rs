//! Sizes that exceed the memory: errors that name what is too large, never a failed allocation or a panic.
#![cfg(target_os = "linux")]

use std::process::Command;

use crate::data::{Ran, Workspace};
use crate::own_model;

/// The program with at most two gigabytes of address space, so that the test does not depend on the machine.
fn limited(workspace: &Workspace, arguments: &[&str]) -> Ran {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 2000000 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_openfleet")]).args(arguments);
    Ran { output: command.current_dir(workspace.path(".")).output().unwrap() }
}

#[test]
fn a_network_too_large_for_the_memory_is_refused_with_the_layer_and_its_size() {
    let workspace = Workspace::with_clicks(100);
    for (sizes, layer) in [
        (["--hidden", "1000000,1000000"], "[1000000, 1000000] need 4000000000000 bytes"),
        (["--dim", "1000000"], "dimensions ["),
    ] {
        let train = ["train", "--model", "deepfm", "--train", "clicks/train/part-0.txt", "--threads", "1", "--quiet"];
        let error = limited(&workspace, &[train.as_slice(), &sizes].concat()).failed(1);
        assert!(error.starts_with("error: not enough memory for `fc_"), "{sizes:?}: {error}");
        assert!(error.contains(layer) && error.contains("\n\nhint: make layers"), "{sizes:?}: {error}");
    }
}

#[test]
fn a_batch_larger_than_the_data_is_all_of_it() {
    let workspace = Workspace::with_clicks(100);
    let train = ["train", "--model", "deepfm", "--train", "clicks/train/part-0.txt", "--threads", "1", "--quiet"];
    for batch in ["100000000000", "18446744073709551615"] {
        let ran =
            limited(&workspace, &[train.as_slice(), &["--batch-size", batch, "--hidden", "8", "--dim", "4"]].concat());
        ran.succeeded();
    }
}

#[test]
fn more_threads_than_a_machine_has_are_refused() {
    let workspace = Workspace::with_clicks(100);
    own_model::saved(&workspace);
    for arguments in [
        ["train", "--model=deepfm", "--train=clicks/train/part-0.txt", "--threads=1000000000"].as_slice(),
        &["serve", "own", "--threads=100000"],
        &["serve", "own", "--threads=18446744073709551616"],
    ] {
        let error = limited(&workspace, arguments).failed(2);
        assert!(error.contains("--threads <THREADS>"), "{error}");
        assert!(error.contains("expected a whole number from 0 to 1024"), "{error}");
    }
}

#[test]
fn data_of_absurd_sizes_is_refused() {
    let workspace = Workspace::new();
    for (option, expected) in [
        ("--ids=18446744073709551615", "expected `ids` from 104 to 4294967295, got 18446744073709551615"),
        ("--parts=1000000000000", "expected `parts` from 1 to 100000, got 1000000000000"),
    ] {
        let error =
            limited(&workspace, &["gen", "criteo", "--rows=10", "--test-rows=10", "--out=clicks", option]).failed(1);
        assert!(error.contains(expected), "{error}");
    }
}
