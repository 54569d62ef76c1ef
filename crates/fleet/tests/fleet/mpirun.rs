//! A real `mpirun -n 4` without other variables: two servers and two workers find each other, train and end.

use std::process::Command;

use openfleet::Fleet;
use openfleet_core::strategy::Mode;

use crate::job::program;

/// The program of each of the four processes. It expects to be one of two workers, or a server.
#[test]
#[ignore = "a process of the test below"]
fn one_process_of_the_job() {
    let fleet = Fleet::init(None).unwrap();
    program(&fleet, Mode::Sync);
    println!("{} has ended", fleet.topology());
}

#[test]
fn four_processes_of_a_real_mpirun_find_each_other_train_and_end() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        println!("skipped: there is no `mpirun` on this machine (Debian and Ubuntu: `apt-get install openmpi-bin`)");
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let output = Command::new("mpirun")
        .args(["--allow-run-as-root", "--oversubscribe", "-n", "4"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "mpirun::one_process_of_the_job", "--ignored", "--nocapture"])
        .env("TMPDIR", temporary.path())
        .env("OPENFLEET_WAIT_SECONDS", "60")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{text}");
    for process in ["server 0 of 2 (2 workers)", "server 1 of 2 (2 workers)", "worker 0 of 2 (2 servers)"] {
        assert!(text.contains(&format!("{process}: role from MPI's OMPI_COMM_WORLD_RANK")), "{text}");
        assert!(text.contains(&format!("{process} has ended")), "{text}");
    }
}
