//! How jobs end: successfully, or with the last lines of the process that failed.

use openfleet::job_file::JobFile;

use crate::workspace::{Workspace, all_end, eventually};

const TWO_BY_TWO: &str = "--server_num=2 --worker_num=2";

/// Servers that stay until all workers have connected and left, as OpenFleet's do.
const SERVERS_WAIT: &str = "if [ $role = server ]; then
  until [ -e left.0 ] && [ -e left.1 ]; do sleep 0.02; done
  echo served
  exit 0
fi";

#[test]
fn a_job_ends_when_its_workers_are_done_and_servers_have_left() {
    let workspace = Workspace::with_job(&format!("{SERVERS_WAIT}\necho trained; mark left.$rank x"));
    let ran = workspace.job(TWO_BY_TWO);
    ran.succeeded();
    assert_eq!(ran.sorted(), ["[server 0] served", "[server 1] served", "[worker 0] trained", "[worker 1] trained"]);
    assert!(ran.stderr.starts_with("job sh-"), "{}", ran.stderr);
    assert!(ran.stderr.contains(": 2 servers and 2 workers; logs in `log`\n"), "{}", ran.stderr);
}

/// Story 3: PaddlePaddle's servers never end, and its launcher with them.
#[test]
fn servers_that_do_not_leave_are_asked_and_the_job_still_ends_well() {
    let workspace = Workspace::with_job(
        "[ $role = server ] || exit 0
        trap 'echo asked; exit 143' TERM
        mark server.pid $$
        while :; do sleep 0.02; done",
    );
    let ran = workspace.job("--server_num=1 --worker_num=1");
    ran.succeeded();
    assert!(ran.stdout.contains("[server 0] asked\n"), "{}", ran.stdout);
    assert!(ran.stderr.contains("the workers are done; 1 server to end"), "{}", ran.stderr);
    all_end(&[workspace.pid("server.pid")]);
}

#[test]
fn a_failing_script_ends_the_job_with_its_code_and_its_last_thirty_lines_last() {
    let workspace = Workspace::with_job(
        "if [ $role$rank = worker1 ]; then
          for i in $(seq 100); do echo line $i; done
          echo 'ValueError: no such column' >&2
          exit 3
        fi
        mark pid.$role.$rank $$
        exec sleep 1000",
    );
    let ran = workspace.job(TWO_BY_TWO);
    let stderr = ran.failed(3);
    let (before, last) = stderr.split_once("the last 30 lines of `log/workerlog.1`:\n").unwrap();
    assert!(before.contains("worker 1 exited with code 3; the job ends\n"), "{stderr}");
    assert!(before.contains("error: worker 1 (pid "), "{stderr}");
    let mut expected: Vec<String> = (72..=100).map(|i| format!("line {i}")).collect();
    expected.push("ValueError: no such column".into());
    assert_eq!(last.lines().collect::<Vec<_>>(), expected);
    let started = ["server.0", "server.1", "worker.0"].map(|who| format!("pid.{who}"));
    let pids: Vec<u32> =
        started.iter().filter(|name| workspace.path(name).exists()).map(|name| workspace.pid(name)).collect();
    all_end(&pids);
}

#[test]
fn a_python_script_that_raises_shows_its_traceback_last() {
    let workspace = Workspace::new();
    let script = "import os, time\n\
                  print('before')\n\
                  if os.environ['TRAINING_ROLE'] == 'TRAINER': raise KeyError('clicks')\n\
                  time.sleep(1000)\n";
    workspace.write("train.py", script);
    let ran = workspace.run(&["--server_num=1", "--worker_num=1", "train.py"]);
    let stderr = ran.failed(1);
    assert!(stderr.ends_with("\nKeyError: 'clicks'\n"), "{stderr}");
    let traceback = stderr.split_once("lines of `log/workerlog.0`:\n").unwrap().1;
    assert!(traceback.starts_with("before\nTraceback"), "{stderr}");
}

#[test]
fn a_failing_process_that_said_nothing_is_reported_so() {
    let workspace = Workspace::with_job("[ $role = server ] && exec sleep 1000; exit 200");
    let ran = workspace.job("--server_num=1 --worker_num=1");
    assert!(
        ran.failed(200).ends_with("exited with code 200\n\nit printed nothing (`log/workerlog.0`)\n"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_server_that_ends_while_workers_run_is_an_error_that_names_it() {
    let workspace = Workspace::with_job("echo here; [ $role$rank = server1 ] || exec sleep 1000");
    let ran = workspace.job(TWO_BY_TWO);
    let stderr = ran.failed(1);
    assert!(stderr.contains("error: server 1 (pid "), "{stderr}");
    assert!(
        stderr.contains(") ended with exit code 0 while workers were still running\n\nhint: a server stays in"),
        "{stderr}"
    );
    assert!(stderr.ends_with("the last 1 line of `log/serverlog.1`:\nhere\n"), "{stderr}");
}

/// A worker may export or evaluate after it has departed: then servers may end.
#[test]
fn servers_may_end_long_before_workers_that_say_they_are_done() {
    let workspace = Workspace::with_job(
        "mark \"$OPENFLEET_PROGRESS_FILE\" '{\"state\": \"done\"}'
        [ $role = server ] && exit 0
        sleep 6; echo exported",
    );
    let ran = workspace.job("--server_num=1 --worker_num=1");
    assert_eq!(ran.succeeded().stdout, "[worker 0] exported\n");
}

#[test]
fn a_server_that_says_done_while_a_worker_needs_it_is_an_error_that_names_it() {
    let workspace = Workspace::with_job(
        "[ $role = server ] || exec sleep 1000
        mark \"$OPENFLEET_PROGRESS_FILE\" '{\"state\": \"done\"}'",
    );
    let ran = workspace.job("--server_num=1 --worker_num=1");
    assert!(ran.failed(1).contains(") ended with exit code 0 while workers were still running\n"), "{}", ran.stderr);
}

#[test]
fn processes_are_told_who_has_departed_and_that_the_job_ends() {
    let workspace = Workspace::with_job(
        "[ $role$rank = worker1 ] && exit 0
        trap 'cp \"$OPENFLEET_JOB_FILE\" told.$role.$rank; exit 1' INT
        mark ready.$role.$rank x
        while :; do sleep 0.02; done",
    );
    let running = workspace.start_job(TWO_BY_TWO);
    let who = ["server.0", "server.1", "worker.0"];
    eventually("all are ready", || who.iter().all(|who| workspace.path(&format!("ready.{who}")).exists()));
    let file = workspace.path("log/progress/job.json");
    let departed = JobFile { ending: false, departed: vec![1] };
    eventually("the launcher has noticed the worker's end", || JobFile::read(&file) == departed);
    running.signal("-INT");
    running.end().failed(130);
    for who in who {
        // Written before the signal.
        assert_eq!(workspace.read(&format!("told.{who}")), "{\"ending\":true,\"departed\":[1]}\n");
    }
}

#[test]
fn a_new_job_begins_with_a_job_file_of_its_own() {
    let workspace = Workspace::with_job("[ $role = server ] && exec sleep 1000; cp \"$OPENFLEET_JOB_FILE\" told");
    std::fs::create_dir_all(workspace.path("log/progress")).unwrap();
    workspace.write("log/progress/job.json", "{\"ending\":true,\"departed\":[0]}");
    workspace.job("--server_num=1 --worker_num=1").succeeded();
    assert_eq!(workspace.read("told"), "{\"ending\":false,\"departed\":[]}\n");
}

#[test]
fn a_timeout_ends_the_job_with_its_own_code() {
    let workspace = Workspace::with_job("mark pid.$role $$; exec sleep 1000");
    let ran = workspace.job("--server_num=1 --worker_num=1 --timeout 0.5");
    let stderr = ran.failed(124);
    assert!(stderr.ends_with("error: the job did not end within its `--timeout` of 0.5 s\n"), "{stderr}");
    all_end(&[workspace.pid("pid.server"), workspace.pid("pid.worker")]);
}

#[test]
fn an_output_that_nobody_reads_any_more_ends_nothing() {
    let workspace =
        Workspace::with_job("for i in $(seq 2000); do echo line $i; done; [ $role = worker ] && mark done x; exit 0");
    let binary = env!("CARGO_BIN_EXE_fleetrun");
    let pipe =
        format!("{binary} --server_num=1 --worker_num=1 sh job.sh 2>/dev/null | head -n 1; echo ${{PIPESTATUS[0]}}");
    let mut command = std::process::Command::new("bash");
    command.current_dir(workspace.path(".")).args(["-c", &pipe]);
    let ran = workspace.start_command(command).end();
    assert!(ran.stdout.ends_with("\n0\n"), "{}", ran.stdout);
    assert_eq!(workspace.read("log/workerlog.0").lines().count(), 2000);
}
