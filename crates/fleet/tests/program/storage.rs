//! Addresses that cannot be written: found before training where possible, and never the end of a run before its last batch.
//!
//! Small file systems in memory act as full disks. If they may not be mounted, a test prints that and is skipped.
#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout, reason = "a test that is skipped says why")]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::data::{Ran, SMALL, Workspace};

/// A file system in memory, unmounted with the test.
struct Disk(PathBuf);

impl Disk {
    /// `None`, with the reason printed, if mounting is not permitted.
    fn mount(workspace: &Workspace, name: &str, options: &str) -> Option<Self> {
        let path = workspace.path(name);
        std::fs::create_dir(&path).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&path).output();
        let why = match mounted {
            Ok(output) if output.status.success() => return Some(Disk(path)),
            Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        println!("skipped: a file system in memory cannot be mounted here: {why}");
        None
    }

    /// Fills it up to this many bytes.
    fn fill(&self, size: usize, but_for: usize) -> PathBuf {
        let ballast = self.0.join("ballast");
        std::fs::write(&ballast, vec![1; size - but_for]).unwrap();
        ballast
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}

fn arguments<'a>(save: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let files = ["--train", "clicks/train/*.txt", "--test", "clicks/test/*.txt", "--threads", "1"];
    [["train", "--model", "deepfm", "--json", "--save", save].as_slice(), &files, SMALL, more].concat()
}

/// The names in a directory, not recursive.
fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_place_that_cannot_be_written_is_found_before_training() {
    let workspace = Workspace::with_clicks(600);
    workspace.write("file", "not a directory");
    let mut cases = vec![("file/model", "Not a directory")];
    let read_only = Disk::mount(&workspace, "read_only", "size=64k,ro");
    cases.extend(read_only.is_some().then_some(("read_only/model", "Read-only file system")));
    let full = Disk::mount(&workspace, "full", "size=64k");
    if let Some(full) = &full {
        full.fill(64 << 10, 0);
        cases.push(("full/model", "No space left on device"));
    }
    for (address, reason) in cases {
        let ran = workspace.run(&arguments(address, &["--print-period", "1"]));
        let error = ran.failed(1);
        assert!(error.contains(address) && error.contains(reason), "{address}: {error}");
        assert!(!error.contains("epoch") && ran.stdout().is_empty(), "{address}: trained first: {error}");
    }
    if let Some(full) = &full {
        assert!(names(&full.0.join("model")).is_empty(), "what a probe has begun is removed");
    }
}

#[test]
fn a_disk_too_small_for_the_model_costs_the_saves_and_not_the_training() {
    let workspace = Workspace::with_clicks(600);
    let Some(_disk) = Disk::mount(&workspace, "small", "size=64k") else { return };
    let ran = workspace.run(&arguments("small/model", &["--save-every", "3", "--epochs", "2", "--print-period", "1"]));
    let error = ran.failed(1);
    let failed = "saving to the checkpoint `small/model` failed";
    // Some saves in each epoch, and the last one is tried twice: after the last epoch there is one warning and one error.
    let (training, after) = error.rsplit_once("epoch 2/2: ").unwrap_or_else(|| panic!("training ended early: {error}"));
    assert!(training.matches(&format!("warning: {failed}")).count() >= 2, "{error}");
    assert_eq!(after.matches(&format!("\nwarning: {failed}")).count(), 1, "{error}");
    assert_eq!(after.matches(&format!("\nerror: {failed}")).count(), 1, "{error}");
    assert_eq!(after.matches("No space left on device").count(), 2, "{error}");
}

#[test]
fn a_save_that_fails_is_made_up_for_by_the_next_one() {
    let workspace = Workspace::with_clicks(600);
    let Some(disk) = Disk::mount(&workspace, "disk", "size=16m") else { return };
    let ballast = disk.fill(16 << 20, 32 << 10);
    let arguments = arguments("disk/model", &["--save-every", "3", "--epochs", "3"]);
    let mut child = workspace.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("warning: saving to the checkpoint `disk/model` failed") {
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "it ended without a warning");
    }
    std::fs::remove_file(ballast).unwrap();
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{rest}");
    workspace
        .run(&["infer", "--model-dir", "disk/model", "--data", "clicks/test/*.txt", "--out", "predictions.txt"])
        .succeeded();
    assert_eq!(names(&disk.0.join("model")).iter().filter(|name| name.starts_with(".saving")).count(), 0);
}

/// A job of two servers, which write, and two workers, that fails; returns the output of all processes.
fn launched(workspace: &Workspace, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleetrun"));
    command.args(["--server_num", "2", "--worker_num", "2", env!("CARGO_BIN_EXE_openfleet")]).args(arguments);
    let ran = Ran { output: command.current_dir(workspace.path(".")).env_remove("OPENFLEET_SECRET").output().unwrap() };
    let stderr = ran.failed(1);
    ran.stdout() + &stderr
}

#[test]
fn servers_find_a_place_that_they_cannot_write_before_training() {
    let workspace = Workspace::with_clicks(600);
    workspace.write("file", "not a directory");
    let mut cases = vec![("file/model", "Not a directory")];
    let full = Disk::mount(&workspace, "full", "size=64k");
    if let Some(full) = &full {
        full.fill(64 << 10, 0);
        cases.push(("full/model", "No space left on device"));
    }
    for (address, reason) in cases {
        let said = launched(&workspace, &arguments(address, &["--print-period", "1"]));
        assert!(said.contains(address) && said.contains(reason), "{address}: {said}");
        assert!(!said.contains("epoch 1"), "{address}: trained first: {said}");
    }
}

#[test]
fn servers_that_cannot_save_train_to_the_end_and_the_job_fails_with_the_reason() {
    let workspace = Workspace::with_clicks(600);
    for mode in ["sync", "async", "geo"] {
        let disk = format!("small-{mode}");
        let Some(_disk) = Disk::mount(&workspace, &disk, "size=64k") else { return };
        let address = format!("{disk}/model");
        let more = ["--save-every", "2", "--epochs", "2", "--print-period", "1", "--mode", mode];
        let said = launched(&workspace, &arguments(&address, &more));
        assert!(said.contains("[worker 0] epoch 2/2: "), "{mode}: ended early: {said}");
        // One of the saves during training, whenever it is reported, and the first attempt of the last save.
        let warnings = said.lines().filter(|line| line.contains("] warning: server `") && line.contains("`save`"));
        assert!(warnings.count() >= 2, "{mode}: {said}");
        let (_, last) = said.split_once("] error: server `").unwrap_or_else(|| panic!("{mode}: no error: {said}"));
        assert!(last.contains("No space left on device"), "{mode}: {said}");
    }
}
