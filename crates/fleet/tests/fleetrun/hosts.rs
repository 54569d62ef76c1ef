//! Jobs across machines: each starts its own part. Loopback has many addresses, and network namespaces are as good as machines.

use std::net::TcpListener;
use std::process::Command;

use crate::place::{Place, free_ports};

/// Two hosts; a server and a worker on the first, a server and two workers on the second.
fn lists(port: u16) -> [String; 2] {
    let last = port + 1;
    [format!("--servers=127.0.0.1:{port},127.0.0.2:{port}"), format!("--workers=127.0.0.1,127.0.0.2,127.0.0.2:{last}")]
}

#[test]
fn each_simulated_host_starts_its_own_part_of_the_same_lists() {
    let place = Place::with_job(
        "echo at $POD_IP:$PADDLE_PORT of $PADDLE_PSERVERS_IP_PORT_LIST, $PADDLE_TRAINERS_NUM workers, $OPENFLEET_JOB",
    );
    let port = free_ports(2);
    let (lists, last) = (lists(port), port + 1);
    let of = format!("of 127.0.0.1:{port},127.0.0.2:{port}, 3 workers, job-127.0.0.1-{port}");
    // Workers without a port are numbered from 6170 on, behind the servers.
    let first = vec![format!("[server 0] at 127.0.0.1:{port}"), "[worker 0] at 127.0.0.1:6172".into()];
    let second = vec![
        format!("[server 1] at 127.0.0.2:{port}"),
        "[worker 1] at 127.0.0.2:6173".into(),
        format!("[worker 2] at 127.0.0.2:{last}"),
    ];
    for (host, expected) in [("127.0.0.1", first), ("127.0.0.2", second)] {
        let mut command = place.command(&[&lists[0], &lists[1], "--host", host, "sh", "job.sh"]);
        command.env("OPENFLEET_SECRET", "swordfish");
        let ran = place.start_command(command).end();
        let expected: Vec<String> = expected.into_iter().map(|begin| format!("{begin} {of}")).collect();
        assert_eq!(ran.succeeded().sorted(), expected);
        let here = format!("; {} of these 5 processes here;", expected.len());
        assert!(ran.stderr.contains(&here), "{}", ran.stderr);
    }
}

#[test]
fn servers_stay_for_the_workers_of_other_machines() {
    // This machine's worker is done at once; the server ends only when the other's has been there.
    let place = Place::with_job(
        "[ $role = worker ] && mark mine x && exit 0; until [ -e other ]; do sleep 0.02; done; echo served",
    );
    let mut command = place.command(&[
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
    let running = place.start_command(command);
    crate::place::eventually("the worker is done", || place.path("mine").exists());
    let said = "the workers of this machine are done; 1 server here until those of others are";
    crate::place::eventually("it says what it waits for", || running.stderr().contains(said));
    place.write("other", "");
    assert_eq!(running.end().succeeded().stdout, "[server 0] served\n");
}

/// Launchers do not talk to each other: one of them makes the run's identity.
#[test]
fn the_machine_of_the_first_server_makes_the_identity_of_the_run() {
    let place = Place::with_job("echo ${OPENFLEET_RUN:+made}");
    let lists = lists(free_ports(2));
    for (host, expected) in [("127.0.0.1", "made"), ("127.0.0.2", "")] {
        let mut command = place.command(&[&lists[0], &lists[1], "--host", host, "sh", "job.sh"]);
        command.env("OPENFLEET_SECRET", "swordfish");
        let ran = place.start_command(command).end();
        let said = |line: &&str| line.split_once("] ").unwrap().1 == expected;
        assert!(ran.succeeded().stdout.lines().all(|line| said(&line)), "{}", ran.stdout);
    }
}

#[test]
fn a_silent_process_of_another_machine_ends_the_job_and_is_named() {
    let place = Place::with_job(
        "report='{\"silent\": [{\"role\": \"worker\", \"rank\": 1, \"seconds\": 10.5}]}'
        [ $role = server ] && mark \"$OPENFLEET_PROGRESS_FILE\" \"$report\"
        exec sleep 1000",
    );
    let mut command = place.command(&[
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
    let ran = place.start_command(command).end();
    let stderr = ran.failed(1);
    assert!(stderr.contains("error: worker 1 on `127.0.0.2` did not answer for 10 s\n\nhint: look at"), "{stderr}");
}

#[test]
fn a_machine_that_owns_nothing_lists_its_addresses_and_the_lists() {
    let place = Place::with_job("exit 0");
    let ran = place.job("--servers 192.0.2.1:7500 --workers 192.0.2.1,node7.invalid");
    let stderr = ran.failed(1);
    assert!(
        stderr.starts_with("error: no process of the lists is to be started here: this machine is `127.0.0.1`"),
        "{stderr}"
    );
    assert!(stderr.contains(", the lists have `192.0.2.1`, `node7.invalid`\n\nhint: "), "{stderr}");
    assert!(stderr.contains("with `--host`"), "{stderr}");
    let ran = place.job("--servers 127.0.0.1:7500 --workers 127.0.0.1 --host 127.0.0.9");
    assert!(
        ran.failed(1).contains("this machine is `127.0.0.9` (`--host`), the lists have `127.0.0.1`\n"),
        "{}",
        ran.stderr
    );
}

#[test]
fn several_machines_need_a_secret_that_all_of_them_know() {
    let place = Place::with_job("exit 0");
    let lists = lists(free_ports(2));
    let ran = place.run(&[&lists[0], &lists[1], "--host", "127.0.0.1", "sh", "job.sh"]);
    let stderr = ran.failed(1);
    assert!(stderr.starts_with("error: a job on several machines needs a secret that all of them know"), "{stderr}");
    assert!(stderr.contains("`OPENFLEET_SECRET` or by `--secret-file`"), "{stderr}");
}

#[test]
fn a_port_in_use_is_named_before_anything_is_started() {
    let place = Place::with_job("mark started x");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let listed = format!("--servers 127.0.0.1:{port} --workers 127.0.0.1");
    let counted = format!("--server_num 1 --worker_num 1 --start_port {port}");
    for options in [listed, counted] {
        let ran = place.job(&options);
        let stderr = ran.failed(1);
        assert!(
            stderr.starts_with(&format!("error: server 0 cannot have `127.0.0.1:{port}`\n  because: Address")),
            "{stderr}"
        );
        assert!(stderr.contains("\n\nhint: another process listens there"), "{stderr}");
    }
    assert!(!place.path("started").exists());
}

/// As behind address translation: nobody here has the address by which the others know us.
#[test]
fn a_server_whose_address_is_not_on_this_machine_is_told_to_bind_to_all() {
    let place = Place::with_job("echo ${OPENFLEET_BIND-none}");
    let server = format!("192.0.2.1:{}", free_ports(1));
    let ran = place.job(&format!("--servers {server} --workers 192.0.2.1 --host 192.0.2.1"));
    assert_eq!(ran.succeeded().sorted(), ["[server 0] 0.0.0.0", "[worker 0] none"]);
}

/// Two namespaces joined by a cable, gone with the test.
struct Namespaces {
    names: [String; 2],
}

impl Namespaces {
    /// `None`, with the reason printed, where they are not permitted.
    fn new() -> Option<Self> {
        let id = std::process::id();
        let names = [format!("fleet-{id}-a"), format!("fleet-{id}-b")];
        let namespaces = Namespaces { names };
        let [a, b] = &namespaces.names;
        let (left, right) = (format!("fl{id}a"), format!("fl{id}b"));
        let steps = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("link add {left} netns {a} type veth peer name {right} netns {b}"),
            format!("-n {a} addr add 10.77.0.1/24 dev {left}"),
            format!("-n {b} addr add 10.77.0.2/24 dev {right}"),
            format!("-n {a} link set {left} up"),
            format!("-n {b} link set {right} up"),
            format!("-n {a} link set lo up"),
            format!("-n {b} link set lo up"),
        ];
        for step in steps {
            let output = match Command::new("ip").args(step.split(' ')).output() {
                Ok(output) if output.status.success() => continue,
                Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
                Err(error) => error.to_string(),
            };
            println!("skipped: network namespaces cannot be made here: `ip {step}`: {output}");
            return None;
        }
        Some(namespaces)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            // The cable goes with either end. A namespace that was never made is no matter.
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

#[test]
fn two_machines_with_the_same_lists_start_one_job() {
    let Some(namespaces) = Namespaces::new() else { return };
    // Servers on one, workers on the other; a worker talks to each server, and then the servers end.
    let script = "import os, socket
role = os.environ['OPENFLEET_ROLE']
servers = os.environ['OPENFLEET_SERVERS'].split(',')
if role == 'server':
    listener = socket.create_server((os.environ['POD_IP'], int(os.environ['PADDLE_PORT'])))
    for _ in range(int(os.environ['OPENFLEET_WORKER_NUM'])):
        listener.accept()[0].sendall(os.environ['OPENFLEET_RANK'].encode())
else:
    import time
    heard = ''
    for server in servers:
        host, port = server.rsplit(':', 1)
        for _ in range(1000):
            try:
                heard += socket.create_connection((host, int(port)), 5).recv(1).decode()
                break
            except OSError:
                time.sleep(0.05)
    print('heard', heard)
";
    let place = Place::new();
    place.write("talk.py", script);
    place.write("secret", "swordfish");
    let lists = [
        "--servers=10.77.0.1:36000,10.77.0.1:36001",
        "--workers=10.77.0.2,10.77.0.2",
        "--secret-file=secret",
        "talk.py",
    ];
    let starts: Vec<_> = (namespaces.names.iter())
        .map(|name| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", name, env!("CARGO_BIN_EXE_fleetrun"), "--log-dir", name]).args(lists);
            command.current_dir(place.path("."));
            place.start_command(command)
        })
        .collect();
    let ends: Vec<_> = starts.into_iter().map(crate::place::Running::end).collect();
    ends.iter().for_each(|ran| {
        ran.succeeded();
    });
    assert!(ends[0].stderr.contains("2 servers and 2 workers; 2 of these 4 processes here;"), "{}", ends[0].stderr);
    assert_eq!(ends[0].stdout, "");
    assert_eq!(ends[1].sorted(), ["[worker 0] heard 01", "[worker 1] heard 01"]);
}
