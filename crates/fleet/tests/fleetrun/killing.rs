//! Whichever process is killed, no process is left behind.

use crate::workspace::{Workspace, all_end, eventually, is_alive, signal_to};

/// Every process writes its process id and that of a child.
const STAYS: &str = "sleep 1000 & mark child.$role.$rank $!; mark pid.$role.$rank $$; wait";
const ALL: [&str; 4] = ["server.0", "server.1", "worker.0", "worker.1"];
const TWO_BY_TWO: &str = "--server_num=2 --worker_num=2";

fn pids(workspace: &Workspace) -> Vec<u32> {
    let numbers = ALL.iter().flat_map(|who| [format!("pid.{who}"), format!("child.{who}")]);
    numbers.map(|name| workspace.pid(&name)).collect()
}

#[test]
fn a_killed_worker_or_server_ends_the_job_and_is_named() {
    for who in ["worker.1", "server.0"] {
        let workspace = Workspace::with_job(&format!("echo from $role $rank; {STAYS}"));
        let running = workspace.start_job(TWO_BY_TWO);
        let pids = pids(&workspace);
        let killed = workspace.pid(&format!("pid.{who}"));
        signal_to(killed, "-KILL");
        let ran = running.end();
        let (role, rank) = who.split_once('.').unwrap();
        let stderr = ran.failed(137);
        let error = format!("error: {role} {rank} (pid {killed}) was killed by signal 9 (SIGKILL)\n\nhint: ");
        assert!(stderr.contains(&error), "{stderr}");
        assert!(
            stderr.ends_with(&format!("the last 1 line of `log/{role}log.{rank}`:\nfrom {role} {rank}\n")),
            "{stderr}"
        );
        all_end(&pids);
    }
}

#[test]
fn interrupting_fleetrun_ends_everything_with_the_code_that_a_shell_expects() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let workspace = Workspace::with_job(&format!("trap 'echo asked; exit 0' INT TERM HUP; {STAYS}"));
        let running = workspace.start_job(TWO_BY_TWO);
        let pids = pids(&workspace);
        running.signal(signal);
        let ran = running.end();
        assert!(
            ran.failed(code).contains("was received (send it again to end at once); the job ends"),
            "{}",
            ran.stderr
        );
        assert_eq!(ran.stdout.matches("asked").count(), 4, "{}", ran.stdout);
        all_end(&pids);
    }
}

/// Background jobs of scripts, `nohup` and `cron` start programs with signals ignored.
#[test]
fn processes_hear_signals_that_fleetrun_was_started_to_ignore() {
    let workspace = Workspace::with_job("grep SigIgn /proc/self/status");
    let mut command = std::process::Command::new("env");
    command.args(["--ignore-signal=INT,HUP,QUIT,TERM", env!("CARGO_BIN_EXE_fleetrun"), "--server_num=1"]);
    command.args(["--worker_num=1", "sh", "job.sh"]).current_dir(workspace.path("."));
    let ran = workspace.start_command(command).end();
    for line in ran.succeeded().sorted() {
        let (_, mask) = line.split_once("SigIgn:").unwrap();
        let ignored = u64::from_str_radix(mask.trim(), 16).unwrap();
        // HUP, INT, QUIT and TERM are signals 1, 2, 3 and 15.
        assert_eq!(ignored & 0b0100_0000_0000_0111, 0, "{line}");
    }
}

#[test]
fn a_process_that_does_not_want_to_end_is_killed() {
    let workspace = Workspace::with_job("trap '' INT TERM; mark pid.$role $$; while :; do sleep 0.1; done");
    let running = workspace.start_job("--server_num=1 --worker_num=1");
    let pids = [workspace.pid("pid.server"), workspace.pid("pid.worker")];
    running.signal("-TERM");
    running.end().failed(143);
    all_end(&pids);
}

#[test]
fn a_process_that_is_stopped_is_killed_too() {
    let workspace = Workspace::with_job("mark pid.$role $$; exec sleep 1000");
    let running = workspace.start_job("--server_num=1 --worker_num=1");
    let pids = [workspace.pid("pid.server"), workspace.pid("pid.worker")];
    signal_to(pids[0], "-STOP");
    signal_to(pids[1], "-KILL");
    running.end().failed(137);
    all_end(&pids);
}

#[test]
fn the_second_interrupt_does_not_wait() {
    let workspace =
        Workspace::with_job("trap 'mark asked.$role x' INT; mark pid.$role $$; while :; do sleep 0.02; done");
    let running = workspace.start_job("--server_num=1 --worker_num=1");
    let pids = [workspace.pid("pid.server"), workspace.pid("pid.worker")];
    running.signal("-INT");
    eventually("the server was asked", || workspace.path("asked.server").exists());
    running.signal("-INT");
    running.end().failed(130);
    all_end(&pids);
}

#[test]
fn a_killed_fleetrun_leaves_no_process_behind() {
    // The processes and their children ignore SIGTERM: only the guard can end them.
    let workspace = Workspace::with_job(&format!("trap '' TERM INT HUP; {STAYS}"));
    let running = workspace.start_job(TWO_BY_TWO);
    let pids = pids(&workspace);
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    running.signal("-KILL");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&running.end().status), Some(9));
    all_end(&pids);
}

/// The guard knows a process before it runs.
#[test]
fn a_fleetrun_killed_while_it_starts_leaves_no_process_behind() {
    let workspace = Workspace::with_job("trap '' TERM; sleep 1000 & wait; sleep 1000");
    let token = format!("killed-early-{}", std::process::id());
    for moment in 0..20 {
        let running = workspace.start(&["--server_num=2", "--worker_num=2", "sh", "job.sh", &token]);
        std::thread::sleep(std::time::Duration::from_millis(2 * moment));
        running.signal("-KILL");
        running.end();
    }
    eventually("all of them have ended", || running_with(&token).is_empty());
}

/// The processes that have this word on their command line.
fn running_with(word: &str) -> Vec<u32> {
    let numbers =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let has_word = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).split('\0').any(|found| found == word)
    };
    numbers.filter(has_word).collect()
}

#[test]
fn a_killed_group_of_fleetrun_leaves_no_process_behind() {
    let workspace = Workspace::with_job(STAYS);
    let mut command = workspace.command(&["--server_num=2", "--worker_num=2", "sh", "job.sh"]);
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let running = workspace.start_command(command);
    let pids = pids(&workspace);
    let group = format!("-{}", running.pid());
    assert!(std::process::Command::new("kill").args(["-KILL", "--", &group]).status().unwrap().success());
    running.end();
    all_end(&pids);
}

#[test]
fn what_a_process_leaves_behind_ends_with_the_job() {
    let workspace = Workspace::with_job("sleep 1000 > /dev/null 2>&1 & mark child.$role $!; exit 0");
    workspace.job("--server_num=1 --worker_num=1").succeeded();
    all_end(&[workspace.pid("child.server"), workspace.pid("child.worker")]);
}

#[test]
fn a_daemon_that_took_pains_to_leave_does_not_hold_up_the_end() {
    let workspace =
        Workspace::with_job("[ $role = server ] || { setsid sleep 1000 & mark daemon $!; echo left; }; exit 0");
    assert_eq!(workspace.job("--server_num=1 --worker_num=1").succeeded().stdout, "[worker 0] left\n");
    signal_to(workspace.pid("daemon"), "-KILL");
}

#[test]
fn a_job_under_nohup_outlives_its_terminal() {
    let workspace =
        Workspace::with_job("[ $role = server ] && exit 0; mark here x; until [ -e go ]; do sleep 0.02; done");
    let mut command = std::process::Command::new("sh");
    let start = format!("trap '' HUP; exec {} --server_num=1 --worker_num=1 sh job.sh", env!("CARGO_BIN_EXE_fleetrun"));
    command.current_dir(workspace.path(".")).args(["-c", &start]);
    let running = workspace.start_command(command);
    eventually("the worker runs", || workspace.path("here").exists());
    running.signal("-HUP");
    workspace.write("go", "");
    running.end().succeeded();
}
