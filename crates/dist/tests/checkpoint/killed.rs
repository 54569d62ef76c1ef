//! The same on a real disk: processes that are killed while they save, and a full file system.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use openfleet_core::strategy::Mode;
use openfleet_dist::storage::Directory;
use openfleet_dist::{Cluster, Resume, SaveOptions};
use openfleet_table::checkpoint::{Storage, verify};
use openfleet_testkit::storage::{FailingStorage, Fault};

use crate::harness::{Content, cluster, content, servers, tables, train};

const DIRECTORY: &str = "OPENFLEET_TEST_DIRECTORY";
const KILLED_AT: &str = "OPENFLEET_TEST_KILLED_AT";

/// Resumes from the checkpoint in a directory, if there is one, and trains two steps.
fn trained(storage: &Arc<dyn Storage>) -> Cluster {
    let states = servers(2, storage);
    let resumed = states.iter().all(|state| state.resume_from("anywhere", Resume::Run).is_ok());
    let worker = cluster(&states, 0, 1, Mode::Sync);
    train(&worker, &tables(), 0..2);
    if resumed {
        train(&worker, &tables(), 2..4);
    }
    worker
}

fn saved(directory: &Path) -> Content {
    let storage = Directory::new(directory);
    let (manifest, content) = content(&storage).unwrap();
    verify(&storage, &manifest).unwrap();
    content
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

#[test]
#[ignore = "a process of the test below"]
fn one_save() {
    let variable = |name| std::env::var(name).unwrap();
    let (directory, at) = (variable(DIRECTORY), variable(KILLED_AT));
    let fault = match at.split_once(' ') {
        Some(("before", at)) => Fault::DiesBefore(at.parse().unwrap()),
        Some(("halfway", at)) => Fault::DiesHalfway(at.parse().unwrap()),
        _ => Fault::Never,
    };
    let failing = FailingStorage::killing(Arc::new(Directory::new(&directory)), fault);
    let storage: Arc<dyn Storage> = Arc::new(failing.clone());
    trained(&storage).save("anywhere", &SaveOptions::default()).unwrap();
    println!("operations: {}", failing.operations());
}

/// The output of a process that saves and is killed unless it completes first.
fn save_in_a_process(directory: &Path, killed_at: &str) -> Option<String> {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program)
        .args(["--exact", "killed::one_save", "--ignored", "--nocapture"])
        .envs([(DIRECTORY, directory.to_str().unwrap()), (KILLED_AT, killed_at)])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    match output.status.signal() {
        Some(9) => None,
        _ if output.status.success() => Some(String::from_utf8(output.stdout).unwrap()),
        _ => panic!("{killed_at}: {:?} {}", output.status, String::from_utf8_lossy(&output.stderr)),
    }
}

#[test]
fn whenever_a_process_is_killed_in_a_save_a_whole_checkpoint_is_on_the_disk() {
    let place = tempfile::tempdir().unwrap();
    let (first, second) = (place.path().join("first"), place.path().join("second"));
    let storage: Arc<dyn Storage> = Arc::new(Directory::new(&first));
    trained(&storage).save("anywhere", &SaveOptions::default()).unwrap();
    copy(&first, &second);
    let said = save_in_a_process(&second, "never").unwrap();
    let operations =
        said.lines().find_map(|line| line.split_once("operations: ")).unwrap().1.trim().parse::<u64>().unwrap();
    let (old, new) = (saved(&first), saved(&second));
    let (mut old_ones, mut new_ones) = (0, 0);
    for at in 0..operations {
        for when in ["before", "halfway"] {
            let directory = place.path().join(format!("{when}-{at}"));
            copy(&first, &directory);
            assert_eq!(save_in_a_process(&directory, &format!("{when} {at}")), None, "{when} {at}: it was not killed");
            let got = saved(&directory);
            match got == new {
                true => new_ones += 1,
                false => {
                    assert!(got == old, "{when} {at}: neither the old one nor the new one");
                    old_ones += 1;
                }
            }
            // Its leftovers do not prevent the next save.
            if at % 8 == 0 {
                assert!(save_in_a_process(&directory, "never").is_some());
            }
            std::fs::remove_dir_all(&directory).unwrap();
        }
    }
    assert!(old_ones > 50 && new_ones > 0, "{old_ones} old, {new_ones} new: nothing was shown");
    println!("{operations} operations, {old_ones} times the old checkpoint, {new_ones} times the new one");
}

/// A small file system that exists as long as this value.
struct Small(tempfile::TempDir);

impl Small {
    fn mount(bytes: u64) -> Option<Self> {
        let small = Small(tempfile::tempdir().unwrap());
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
            .arg(small.0.path())
            .stderr(Stdio::null())
            .status();
        mounted.is_ok_and(|status| status.success()).then_some(small)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).stderr(Stdio::null()).status();
    }
}

#[test]
fn on_a_full_file_system_the_old_checkpoint_stays_and_training_continues() {
    // Space for one checkpoint, but not for a second one beside it.
    let Some(small) = Small::mount(900 << 10) else {
        println!("skipped: a small file system cannot be mounted here");
        return;
    };
    let storage: Arc<dyn Storage> = Arc::new(Directory::new(small.0.path()));
    let worker = trained(&storage);
    worker.save("anywhere", &SaveOptions::default()).unwrap();
    let old = saved(small.0.path());
    train(&worker, &tables(), 2..4);
    let error = worker.save("anywhere", &SaveOptions::default()).unwrap_err();
    let report = openfleet_core::error::report(&error);
    assert!(
        report.contains("No space left on device") && report.contains("free some space and save again"),
        "{report}"
    );
    assert!(saved(small.0.path()) == old);
    let names: Vec<_> = std::fs::read_dir(small.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "what was written of it is gone: {names:?}");
    // Training continues, and is saved once there is space.
    train(&worker, &tables(), 4..5);
    let elsewhere = tempfile::tempdir().unwrap();
    let roomy: Arc<dyn Storage> = Arc::new(Directory::new(elsewhere.path()));
    let (states, straight) = (servers(2, &roomy), tables());
    let other = cluster(&states, 0, 1, Mode::Sync);
    train(&other, &straight, 0..5);
    other.save("anywhere", &SaveOptions::default()).unwrap();
    for name in names {
        storage.remove(name.to_str().unwrap()).unwrap();
    }
    worker.save("anywhere", &SaveOptions::default()).unwrap();
    assert!(saved(small.0.path()) == saved(elsewhere.path()));
}
