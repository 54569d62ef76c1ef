//! Jobs across machines: each starts its own part. The machines are addresses of the loopback interface.

use std::net::TcpListener;

use crate::workspace::{Workspace, free_ports};

/// Two hosts; a server and a worker on the first, a server and two workers on the second.
fn lists(port: u16) -> [String; 2] {
    let last = port + 1;
    [format!("--servers=127.0.0.1:{port},127.0.0.2:{port}"), format!("--workers=127.0.0.1,127.0.0.2,127.0.0.2:{last}")]
}

#[test]
fn each_simulated_host_starts_its_own_part_of_the_same_lists() {
    let workspace = Workspace::with_job(
        "echo at $POD_IP:$PADDLE_PORT of $PADDLE_PSERVERS_IP_PORT_LIST, $PADDLE_TRAINERS_NUM workers, $OPENFLEET_JOB",
    );
    let port = free_ports(2);
    let (lists, last) = (lists(port), port + 1);
    let of = format!("of 127.0.0.1:{port},127.0.0.2:{port}, 3 workers, job-127.0.0.1-{port}");
    // Workers without a port are numbered from 6170, after the servers.
    let first = vec![format!("[server 0] at 127.0.0.1:{port}"), "[worker 0] at 127.0.0.1:6172".into()];
    let second = vec![
        format!("[server 1] at 127.0.0.2:{port}"),
        "[worker 1] at 127.0.0.2:6173".into(),
        format!("[worker 2] at 127.0.0.2:{last}"),
    ];
    for (host, expected) in [("127.0.0.1", first), ("127.0.0.2", second)] {
        let mut command = workspace.command(&[&lists[0], &lists[1], "--host", host, "sh", "job.sh"]);
        command.env("OPENFLEET_SECRET", "swordfish");
        let ran = workspace.start_command(command).end();
        let expected: Vec<String> = expected.into_iter().map(|begin| format!("{begin} {of}")).collect();
        assert_eq!(ran.succeeded().sorted(), expected);
        let here = format!("; {} of these 5 processes here;", expected.len());
        assert!(ran.stderr.contains(&here), "{}", ran.stderr);
    }
}

#[test]
fn servers_stay_for_the_workers_of_other_machines() {
    // This machine's worker ends at once; the server ends only after the other machine's worker has connected and left.
    let workspace = Workspace::with_job(
        "[ $role = worker ] && mark mine x && exit 0; until [ -e other ]; do sleep 0.02; done; echo served",
    );
    let mut command = workspace.command(&[
        "--servers",
        &format!("127.0.0.1:{}", free_ports(1)),
        "--workers",
        "127.0.0.1,127.0.0.2",
        "--host",
        "127.0.0.1",
        "sh",
        "job.sh",
    ]);
    command.env("OPENFLEET_SECRET", "swordfish");
    let running = workspace.start_command(command);
    crate::workspace::eventually("the worker is done", || workspace.path("mine").exists());
    let said = "the workers of this machine are done; 1 server here until those of others are";
    crate::workspace::eventually("it says what it waits for", || running.stderr().contains(said));
    workspace.write("other", "");
    assert_eq!(running.end().succeeded().stdout, "[server 0] served\n");
}

/// Launchers do not talk to each other: one of them makes the identity of the run.
#[test]
fn the_machine_of_the_first_server_makes_the_identity_of_the_run() {
    let workspace = Workspace::with_job("echo ${OPENFLEET_RUN:+made}");
    let lists = lists(free_ports(2));
    for (host, expected) in [("127.0.0.1", "made"), ("127.0.0.2", "")] {
        let mut command = workspace.command(&[&lists[0], &lists[1], "--host", host, "sh", "job.sh"]);
        command.env("OPENFLEET_SECRET", "swordfish");
        let ran = workspace.start_command(command).end();
        let said = |line: &&str| line.split_once("] ").unwrap().1 == expected;
        assert!(ran.succeeded().stdout.lines().all(|line| said(&line)), "{}", ran.stdout);
    }
}

#[test]
fn a_silent_process_of_another_machine_ends_the_job_and_is_named() {
    let workspace = Workspace::with_job(
        "report='{\"silent\": [{\"role\": \"worker\", \"rank\": 1, \"seconds\": 10.5}]}'
        [ $role = server ] && mark \"$OPENFLEET_PROGRESS_FILE\" \"$report\"
        exec sleep 1000",
    );
    let mut command = workspace.command(&[
        "--servers",
        &format!("127.0.0.1:{}", free_ports(1)),
        "--workers",
        "127.0.0.1,127.0.0.2",
        "--host",
        "127.0.0.1",
        "sh",
        "job.sh",
    ]);
    command.env("OPENFLEET_SECRET", "swordfish");
    let ran = workspace.start_command(command).end();
    let stderr = ran.failed(1);
    assert!(stderr.contains("error: worker 1 on `127.0.0.2` did not answer for 10 s\n\nhint: look at"), "{stderr}");
}

#[test]
fn a_machine_that_owns_nothing_lists_its_addresses_and_the_lists() {
    let workspace = Workspace::with_job("exit 0");
    let ran = workspace.job("--servers 192.0.2.1:7500 --workers 192.0.2.1,node7.invalid");
    let stderr = ran.failed(1);
    assert!(stderr.starts_with("error: no listed process runs on this machine: it is `127.0.0.1`"), "{stderr}");
    assert!(stderr.contains(", the lists have `192.0.2.1`, `node7.invalid`\n\nhint: "), "{stderr}");
    assert!(stderr.contains("with `--host`"), "{stderr}");
    let ran = workspace.job("--servers 127.0.0.1:7500 --workers 127.0.0.1 --host 127.0.0.9");
    assert!(ran.failed(1).contains("it is `127.0.0.9` (`--host`), the lists have `127.0.0.1`\n"), "{}", ran.stderr);
}

#[test]
fn several_machines_need_a_secret_that_all_of_them_know() {
    let workspace = Workspace::with_job("exit 0");
    let lists = lists(free_ports(2));
    let ran = workspace.run(&[&lists[0], &lists[1], "--host", "127.0.0.1", "sh", "job.sh"]);
    let stderr = ran.failed(1);
    assert!(stderr.starts_with("error: a job on several machines needs a shared secret"), "{stderr}");
    assert!(stderr.contains("`OPENFLEET_SECRET` or by `--secret-file`"), "{stderr}");
}

#[test]
fn a_port_in_use_is_named_before_anything_is_started() {
    let workspace = Workspace::with_job("mark started x");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let listed = format!("--servers 127.0.0.1:{port} --workers 127.0.0.1");
    let counted = format!("--server_num 1 --worker_num 1 --start_port {port}");
    for options in [listed, counted] {
        let ran = workspace.job(&options);
        let stderr = ran.failed(1);
        assert!(
            stderr.starts_with(&format!("error: server 0 cannot listen on `127.0.0.1:{port}`\n  because: Address")),
            "{stderr}"
        );
        assert!(stderr.contains("\n\nhint: another process listens there"), "{stderr}");
    }
    assert!(!workspace.path("started").exists());
}

/// As behind address translation: no interface has the address in the list.
#[test]
fn a_server_whose_address_is_not_on_this_machine_is_told_to_bind_to_all() {
    let workspace = Workspace::with_job("echo ${OPENFLEET_BIND-none}");
    let server = format!("192.0.2.1:{}", free_ports(1));
    let ran = workspace.job(&format!("--servers {server} --workers 192.0.2.1 --host 192.0.2.1"));
    assert_eq!(ran.succeeded().sorted(), ["[server 0] 0.0.0.0", "[worker 0] none"]);
}
