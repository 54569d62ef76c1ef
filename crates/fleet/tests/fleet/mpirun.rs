//! A real `mpirun -n 4` without other variables: two servers and two workers find each other, train and end.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use openfleet::Fleet;
use openfleet_core::strategy::Mode;

use crate::job::program;

/// `mpirun` on this machine alone; `None`, with the reason printed, if there is none.
#[allow(clippy::print_stdout, reason = "a skipped test says why")]
pub(crate) fn mpirun(temporary: &Path) -> Option<Command> {
    if Command::new("mpirun").arg("--version").output().is_err() {
        println!("skipped: there is no `mpirun` on this machine (Debian and Ubuntu: `apt-get install openmpi-bin`)");
        return None;
    }
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe"]).env("TMPDIR", temporary);
    command.env("OPENFLEET_WAIT_SECONDS", "60");
    // Open MPI: nothing but loopback.
    command.envs([("OMPI_MCA_oob_tcp_if_include", "lo"), ("OMPI_MCA_btl_tcp_if_include", "lo")]);
    Some(command)
}

/// The command that runs one ignored test of this program.
pub(crate) fn this_test(name: &str) -> Vec<OsString> {
    let program = std::env::current_exe().unwrap().into_os_string();
    [program].into_iter().chain(["--exact", name, "--ignored", "--nocapture"].map(OsString::from)).collect()
}

/// Whether the job succeeded, and all that it printed.
pub(crate) fn end(mut job: Command) -> (bool, String) {
    let output = job.output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

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
    let temporary = tempfile::tempdir().unwrap();
    let Some(mut job) = mpirun(temporary.path()) else { return };
    job.args(["-n", "4"]).args(this_test("mpirun::one_process_of_the_job"));
    let (succeeded, text) = end(job);
    assert!(succeeded, "{text}");
    for process in ["server 0 of 2 (2 workers)", "server 1 of 2 (2 workers)", "worker 0 of 2 (2 servers)"] {
        assert!(text.contains(&format!("{process}: role from MPI's OMPI_COMM_WORLD_RANK")), "{text}");
        assert!(text.contains(&format!("{process} has ended")), "{text}");
    }
}
