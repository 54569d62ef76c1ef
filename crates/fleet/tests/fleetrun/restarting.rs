//! `--max-restarts`: a failed worker restarts alone, a failed server restarts all processes from the newest checkpoint.

use openfleet::job_file::JobFile;

use crate::workspace::{Running, Workspace, all_end, eventually, is_alive, signal_to};

const TWO_BY_TWO: &str = "--server_num=2 --worker_num=2";
const ALL: [&str; 4] = ["server.0", "server.1", "worker.0", "worker.1"];

/// Each attempt prints a line, writes its process id to `pid.ROLE.RANK.ATTEMPT` and stays until `go` appears.
const STAYS: &str = "attempt=$OPENFLEET_INCARNATION
echo attempt $attempt at $PADDLE_PORT of run $OPENFLEET_RUN from ${OPENFLEET_RESUME-nothing}
mark pid.$role.$rank.$attempt $$";
const UNTIL_GO: &str = "until [ -e go ]; do sleep 0.02; done";

/// The process ids of one attempt of all four processes.
fn pids(workspace: &Workspace, attempt: u64) -> [u32; 4] {
    ALL.map(|who| workspace.pid(&format!("pid.{who}.{attempt}")))
}

/// Restarts charged to the budget.
fn charged(stderr: &str) -> usize {
    stderr.matches("(restart ").count()
}

fn departed(workspace: &Workspace) -> Vec<usize> {
    JobFile::read(&workspace.path("log/progress/job.json")).departed
}

/// Lets all processes exit with 0.
fn succeed(workspace: &Workspace, running: Running) -> String {
    workspace.write("go", "");
    let ran = running.end();
    ran.succeeded();
    ran.stderr
}

#[test]
fn a_killed_worker_comes_back_alone_as_the_next_incarnation() {
    let workspace = Workspace::with_job(&format!("{STAYS}\n{UNTIL_GO}"));
    let running = workspace.start_job(&format!("{TWO_BY_TWO} --max-restarts 3"));
    let first = pids(&workspace, 1);
    let killed = first[3];
    signal_to(killed, "-KILL");
    workspace.pid("pid.worker.1.2");
    assert!(first[..3].iter().all(|pid| is_alive(*pid)), "the others were left alone");
    let stderr = succeed(&workspace, running);
    let said = format!(
        "worker 1 (pid {killed}) was killed by signal 9 (SIGKILL); it is restarted (restart 1 of 3) and resumes where \
         it was\n"
    );
    assert!(stderr.contains(&said), "{stderr}");
    // Both attempts have the same log, port and run.
    let log = workspace.read("log/workerlog.1");
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 2, "{log}");
    assert_eq!(lines[0].replace("attempt 1", "attempt 2"), lines[1]);
}

#[test]
fn a_killed_server_starts_all_processes_again_for_one_restart() {
    // The second worker has finished when the server dies: its work after the checkpoint would be lost.
    let workspace = Workspace::with_job(&format!("{STAYS}\n[ $role$rank$attempt = worker11 ] && exit 0\n{UNTIL_GO}"));
    let running = workspace.start_job(&format!("{TWO_BY_TWO} --max-restarts 3"));
    let first = pids(&workspace, 1);
    eventually("the worker has departed", || departed(&workspace) == [1]);
    signal_to(first[0], "-KILL");
    pids(&workspace, 2);
    all_end(&first);
    assert_eq!(departed(&workspace), Vec::<usize>::new(), "it works again");
    let stderr = succeed(&workspace, running);
    let said = format!(
        "server 0 (pid {}) was killed by signal 9 (SIGKILL); all 4 processes restart (restart 1 of 3) from the beginning: \
         this run has no checkpoint\n",
        first[0]
    );
    assert!(stderr.contains(&said), "{stderr}");
    assert_eq!(charged(&stderr), 1, "{stderr}");
    // All processes and attempts have the same run.
    let logs = ["log/serverlog.0", "log/serverlog.1", "log/workerlog.0", "log/workerlog.1"];
    let text: String = logs.map(|log| workspace.read(log)).concat();
    let runs: Vec<&str> = text.lines().map(|line| line.split(' ').nth(6).unwrap()).collect();
    assert_eq!(runs.len(), 8, "{text}");
    assert!(runs.iter().all(|run| *run == runs[0]), "{text}");
    assert!(runs[0].len() == 16 && runs[0].bytes().all(|byte| byte.is_ascii_hexdigit()), "{text}");
    assert!(text.lines().all(|line| line.ends_with(" from nothing")), "{text}");
}

#[test]
fn every_launch_is_another_run() {
    let workspace = Workspace::with_job("[ $role = server ] || mark run $OPENFLEET_RUN");
    let run = || {
        workspace.job("--server_num=1 --worker_num=1").succeeded();
        workspace.read("run")
    };
    assert_ne!(run(), run());
}

#[test]
fn restarted_servers_are_told_the_newest_checkpoint_of_the_run() {
    let reports = "if [ $role$attempt = server1 ]; then
      [ $rank = 0 ] && report='{\"checkpoint\": \"older\", \"checkpoint_step\": 100, \"step\": 155}'
      [ $rank = 1 ] && report='{\"checkpoint\": \"the model\", \"checkpoint_step\": 120, \"step\": 150}'
      mark \"$OPENFLEET_PROGRESS_FILE\" \"$report\"
    fi
    mark ready.$role.$rank.$attempt x";
    let workspace = Workspace::with_job(&format!("{STAYS}\n{reports}\n{UNTIL_GO}"));
    let running = workspace.start_job(&format!("{TWO_BY_TWO} --max-restarts 3"));
    // Twice: the second time no running server knows the checkpoint.
    for attempt in 1..=2 {
        let pids = pids(&workspace, attempt);
        let are_ready = || ALL.iter().all(|who| workspace.path(&format!("ready.{who}.{attempt}")).exists());
        eventually("all have reported", are_ready);
        signal_to(pids[attempt as usize - 1], "-KILL");
    }
    pids(&workspace, 3);
    let stderr = succeed(&workspace, running);
    let first =
        "; all 4 processes restart (restart 1 of 3) from checkpoint `the model` of step 120; 35 steps are repeated\n";
    let second = "; all 4 processes restart (restart 2 of 3) from checkpoint `the model` of step 120\n";
    assert!(stderr.contains(first) && stderr.contains(second), "{stderr}");
    for (log, resumed) in [("serverlog.0", "the model"), ("serverlog.1", "the model"), ("workerlog.0", "nothing")] {
        let log = workspace.read(&format!("log/{log}"));
        let from: Vec<&str> = log.lines().map(|line| line.split_once(" from ").unwrap().1).collect();
        assert_eq!(from, ["nothing", resumed, resumed], "{log}");
    }
}

#[test]
fn an_earlier_job_in_the_same_directory_leaves_no_checkpoint_behind() {
    let workspace = Workspace::with_job(&format!("{STAYS}\n{UNTIL_GO}"));
    std::fs::create_dir_all(workspace.path("log/progress")).unwrap();
    workspace.write("log/progress/server.1.json", "{\"checkpoint\": \"yesterday\", \"checkpoint_step\": 9}");
    let running = workspace.start_job(&format!("{TWO_BY_TWO} --max-restarts 1"));
    signal_to(pids(&workspace, 1)[0], "-KILL");
    pids(&workspace, 2);
    let stderr = succeed(&workspace, running);
    assert!(stderr.contains("from the beginning"), "{stderr}");
}

#[test]
fn a_server_that_leaves_early_starts_all_processes_again() {
    let workspace = Workspace::with_job(&format!("{STAYS}\n[ $role$rank$attempt = server11 ] && exit 0\n{UNTIL_GO}"));
    let running = workspace.start_job(&format!("{TWO_BY_TWO} --max-restarts 1"));
    pids(&workspace, 2);
    let stderr = succeed(&workspace, running);
    let said =
        ") ended with exit code 0 while workers were still running; all 4 processes restart (restart 1 of 1) from";
    assert!(stderr.contains(said), "{stderr}");
}

#[test]
fn when_no_restart_is_left_the_job_ends_with_the_last_words() {
    let workspace =
        Workspace::with_job("[ $role = server ] && exec sleep 1000; echo attempt $OPENFLEET_INCARNATION; exit 5");
    let ran = workspace.job("--server_num=1 --worker_num=1 --max_restarts=2");
    let stderr = ran.failed(5);
    assert!(stderr.contains("(restart 1 of 2)") && stderr.contains("(restart 2 of 2)"), "{stderr}");
    assert!(stderr.ends_with("the last 3 lines of `log/workerlog.0`:\nattempt 1\nattempt 2\nattempt 3\n"), "{stderr}");
}

#[test]
fn when_no_restart_is_left_a_failed_server_is_named() {
    let workspace = Workspace::with_job(&format!("{STAYS}\n[ $role$rank = server1 ] && exit 7; exec sleep 1000"));
    let ran = workspace.job(&format!("{TWO_BY_TWO} --max-restarts 1"));
    let stderr = ran.failed(7);
    assert_eq!(charged(stderr), 1, "{stderr}");
    let error = format!("error: server 1 (pid {}) exited with code 7\n", workspace.pid("pid.server.1.2"));
    assert!(stderr.contains(&error), "{stderr}");
    let started = ALL.iter().map(|who| format!("pid.{who}.2")).filter(|name| workspace.path(name).exists());
    all_end(&started.map(|name| workspace.pid(&name)).collect::<Vec<_>>());
}

#[test]
fn restarts_without_limit_go_on_until_it_works() {
    let workspace =
        Workspace::with_job("[ $role = server ] && exec sleep 1000; [ $OPENFLEET_INCARNATION = 4 ] || exit 1");
    let ran = workspace.job("--server_num=1 --worker_num=1 --max-restarts -1");
    assert!(ran.succeeded().stderr.contains("(restart 3) and resumes"), "{}", ran.stderr);
}

#[test]
fn a_worker_that_asks_to_be_started_again_uses_no_restart() {
    let workspace =
        Workspace::with_job("[ $role = server ] && exec sleep 1000; [ $OPENFLEET_INCARNATION = 3 ] || exit 101");
    let ran = workspace.job("--server_num=1 --worker_num=1 --max-restarts 1");
    let stderr = &ran.succeeded().stderr;
    let said = ") returns to the checkpoint with the others; it is restarted\n";
    assert_eq!((stderr.matches(said).count(), charged(stderr)), (2, 0), "{stderr}");
    // Without restarts it is a failure.
    let ran = workspace.job("--server_num=1 --worker_num=1");
    let stderr = ran.failed(101);
    assert!(stderr.contains(") exited with code 101\n\nhint: "), "{stderr}");
}

/// The worker stops itself; its server reports the seconds of silence, as OpenFleet's do.
const FREEZES: &str = "if [ $role = worker ]; then
  mark pid.$OPENFLEET_INCARNATION $$
  [ $OPENFLEET_INCARNATION = 1 ] && kill -STOP $$
  exit 0
fi
seconds=0
while :; do
  mark \"$OPENFLEET_PROGRESS_FILE\" \"{\\\"silent\\\": [{\\\"role\\\": \\\"worker\\\", \\\"rank\\\": 0, \\\"seconds\\\": $seconds}]}\"
  sleep 1
  seconds=$((seconds + 1))
done";

#[test]
fn a_frozen_worker_is_killed_and_started_again() {
    let workspace = Workspace::with_job(FREEZES);
    let ran = workspace.job("--server_num=1 --worker_num=1 --max-restarts 1");
    let stderr = &ran.succeeded().stderr;
    let pid = workspace.pid("pid.1");
    assert!(stderr.contains(&format!("worker 0 (pid {pid}) did not answer for ")), "{stderr}");
    assert!(stderr.contains(" s; it was killed; it is restarted (restart 1 of 1) and resumes"), "{stderr}");
    all_end(&[pid]);
}

#[test]
fn without_restarts_a_frozen_worker_ends_the_job_and_is_named() {
    let workspace = Workspace::with_job(FREEZES);
    let ran = workspace.job("--server_num=1 --worker_num=1");
    let stderr = ran.failed(137);
    let pid = workspace.pid("pid.1");
    let (_, error) = stderr.split_once(&format!("error: worker 0 (pid {pid}) did not answer for ")).unwrap();
    assert!(error.contains(" s; it was killed\n\nhint: "), "{stderr}");
    all_end(&[pid]);
}
