//! `--max-restarts`: a dead process comes back alone.

use crate::place::{Place, is_alive, signal_to};

#[test]
fn a_killed_worker_or_server_comes_back_alone_as_the_next_incarnation() {
    for who in ["worker", "server"] {
        let place = Place::with_job(
            "echo life $OPENFLEET_INCARNATION of $role at $PADDLE_PORT
            mark pid.$role.$OPENFLEET_INCARNATION $$
            until [ -e go ]; do sleep 0.02; done",
        );
        let running = place.start_job("--server_num=1 --worker_num=1 --max-restarts 1");
        let (server, worker) = (place.pid("pid.server.1"), place.pid("pid.worker.1"));
        let (killed, other) = if who == "worker" { (worker, server) } else { (server, worker) };
        signal_to(killed, "-KILL");
        place.pid(&format!("pid.{who}.2"));
        assert!(is_alive(other), "the other was left alone");
        place.write("go", "");
        let ran = running.end();
        let stderr = &ran.succeeded().stderr;
        let said =
            format!("{who} 0 (pid {killed}) was killed by signal 9 (SIGKILL); it is started again (restart 1 of 1)");
        assert!(stderr.contains(&said), "{stderr}");
        // One log for both lives, and the same port.
        let log = place.read(&format!("log/{who}log.0"));
        let lines: Vec<&str> = log.lines().collect();
        assert_eq!(lines.len(), 2, "{log}");
        assert_eq!(lines[0].replace("life 1", "life 2"), lines[1]);
    }
}

#[test]
fn when_no_restart_is_left_the_job_ends_with_the_last_words() {
    let place = Place::with_job("[ $role = server ] && exec sleep 1000; echo life $OPENFLEET_INCARNATION; exit 5");
    let ran = place.job("--server_num=1 --worker_num=1 --max_restarts=2");
    let stderr = ran.failed(5);
    assert!(stderr.contains("(restart 1 of 2)") && stderr.contains("(restart 2 of 2)"), "{stderr}");
    assert!(stderr.ends_with("the last 3 lines of `log/workerlog.0`:\nlife 1\nlife 2\nlife 3\n"), "{stderr}");
}

#[test]
fn restarts_without_limit_go_on_until_it_works() {
    let place = Place::with_job("[ $role = server ] && exit 0; [ $OPENFLEET_INCARNATION = 4 ] || exit 1");
    // The server is done at once, and says so.
    let script = place
        .read("job.sh")
        .replace("&& exit 0", "&& mark \"$OPENFLEET_PROGRESS_FILE\" '{\"state\":\"done\"}' && exit 0");
    place.write("job.sh", &script);
    let ran = place.job("--server_num=1 --worker_num=1 --max-restarts -1");
    assert!(ran.succeeded().stderr.contains("(restart 3)"), "{}", ran.stderr);
}
