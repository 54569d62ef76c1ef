//! The output of processes, in files and on the screen.

use std::process::Command;

use crate::workspace::Workspace;

#[test]
fn logs_hold_every_line_of_both_streams_and_the_screen_too() {
    let workspace = Workspace::with_job(
        "for i in $(seq 5000); do echo $role $rank out $i; echo $role $rank error $i >&2; done
        printf 'no line end'",
    );
    let ran = workspace.job("--server_num=1 --worker_num=2 --log_dir deep/er");
    ran.succeeded();
    for (role, rank) in [("server", 0), ("worker", 0), ("worker", 1)] {
        let mut expected: String =
            (1..=5000).map(|i| format!("{role} {rank} out {i}\n{role} {rank} error {i}\n")).collect();
        expected += "no line end";
        assert!(workspace.read(&format!("deep/er/{role}log.{rank}")) == expected, "the log of {role} {rank}");
        let prefix = format!("[{role} {rank}] ");
        let shown: Vec<&str> = ran.stdout.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
        assert!(shown == expected.lines().collect::<Vec<_>>(), "the screen of {role} {rank}");
    }
}

#[test]
fn the_last_words_of_a_killed_process_are_kept() {
    let workspace = Workspace::with_job(
        "[ $role = server ] && exec sleep 1000; for i in $(seq 3000); do echo line $i; done; kill -9 $$",
    );
    let ran = workspace.job("--server_num=1 --worker_num=1");
    assert!(ran.failed(137).ends_with("\nline 2999\nline 3000\n"), "{}", ran.stderr);
    assert_eq!(workspace.read("log/workerlog.0").lines().count(), 3000);
}

#[test]
fn a_new_job_begins_new_logs() {
    let workspace = Workspace::with_job("echo once");
    workspace.job("--server_num=1 --worker_num=1").succeeded();
    workspace.job("--server_num=1 --worker_num=1").succeeded();
    assert_eq!(workspace.read("log/workerlog.0"), "once\n");
}

#[test]
fn a_log_directory_that_cannot_be_is_named() {
    let workspace = Workspace::with_job("exit 0");
    workspace.write("taken", "");
    let ran = workspace.job("--server_num=1 --worker_num=1 --log-dir taken");
    assert!(ran.failed(1).starts_with("error: cannot make the directory `taken`\n  because: "), "{}", ran.stderr);
}

/// `script` runs a command on its own terminal.
#[test]
fn on_a_terminal_there_is_colour_and_a_status_with_speed() {
    if !Command::new("script").arg("--version").output().is_ok_and(|output| output.status.success()) {
        println!("skipped: there is no `script` of util-linux to make a terminal with");
        return;
    }
    let job = "if [ $role = server ]; then until [ -e end ]; do sleep 0.02; done; exit 0; fi
        echo hello
        mark \"$OPENFLEET_PROGRESS_FILE\" '{\"state\": \"training\", \"samples\": 5, \"samples_per_second\": 12345.0}'
        sleep 1; mark end x";
    let workspace = Workspace::with_job(job);
    let on_terminal = |environment: &str| {
        let fleetrun =
            format!("{environment} {} --server_num=1 --worker_num=1 sh job.sh", env!("CARGO_BIN_EXE_fleetrun"));
        let mut command = Command::new("script");
        command.current_dir(workspace.path(".")).env("TERM", "xterm").env_remove("NO_COLOR");
        command.args(["-q", "-e", "-c", &fleetrun, "/dev/null"]).stdin(std::process::Stdio::null());
        let _ = std::fs::remove_file(workspace.path("end"));
        let ran = workspace.start_command(command).end();
        ran.succeeded();
        ran.stdout
    };
    let shown = on_terminal("");
    assert!(shown.contains("\x1b[32m[worker 0]\x1b[0m hello"), "{shown:?}");
    assert!(shown.contains("training, 12,345 samples/s"), "{shown:?}");
    let shown = on_terminal("NO_COLOR=1");
    assert!(shown.contains("[worker 0] hello") && !shown.contains("\x1b[32m"), "{shown:?}");
}
