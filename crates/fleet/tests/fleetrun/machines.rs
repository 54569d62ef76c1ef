//! Jobs on several machines, which are network namespaces joined by a virtual cable: with real addresses, and without seeing
//! each other's processes.

use std::fmt::Write as _;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::clicks::{BATCH, Clicks};
use crate::workspace::{Running, Workspace, eventually, signal_to};

/// Two namespaces joined by a cable, removed with the test.
struct Namespaces {
    names: [String; 2],
}

/// Their addresses.
const A: &str = "10.77.0.1";
const B: &str = "10.77.0.2";

impl Namespaces {
    /// `None`, with the reason printed, if namespaces are not permitted.
    fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = format!("{}{}", std::process::id(), char::from(b'g' + NEXT.fetch_add(1, Ordering::Relaxed) as u8));
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

    /// Runs `fleetrun` on each of them, with its own logs.
    fn start(&self, workspace: &Workspace, arguments: &[&str]) -> [Running; 2] {
        self.start_with(workspace, arguments, "")
    }

    /// The same with a variable that the script reads.
    fn start_with(&self, workspace: &Workspace, arguments: &[&str], options: &str) -> [Running; 2] {
        self.names.each_ref().map(|name| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", name, env!("CARGO_BIN_EXE_fleetrun"), "--log-dir", name]).args(arguments);
            command.current_dir(workspace.path(".")).env("options", options);
            workspace.start_command(command)
        })
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            // The cable is removed with either end. A namespace that was never created is not an error.
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

#[test]
fn two_machines_with_the_same_lists_start_one_job() {
    let Some(namespaces) = Namespaces::new() else { return };
    // Servers on one machine, workers on the other. Workers connect to each server, and then the servers end.
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
    let workspace = Workspace::new();
    workspace.write("talk.py", script);
    workspace.write("secret", "swordfish");
    let lists = [
        "--servers=10.77.0.1:36000,10.77.0.1:36001",
        "--workers=10.77.0.2,10.77.0.2",
        "--secret-file=secret",
        "talk.py",
    ];
    let ends = namespaces.start(&workspace, &lists).map(Running::end);
    for ran in &ends {
        ran.succeeded();
    }
    assert!(ends[0].stderr.contains("2 servers and 2 workers; 2 of these 4 processes here;"), "{}", ends[0].stderr);
    assert_eq!(ends[0].stdout, "");
    assert_eq!(ends[1].sorted(), ["[worker 0] heard 01", "[worker 1] heard 01"]);
}

/// The ranks of two machines, found by a list of the machines or by a place to meet.
const PLACES: [[&str; 2]; 2] = [["--ips=10.77.0.1,10.77.0.2", "--nnodes=2"], ["--nnodes=2", "--master=10.77.0.1:6300"]];

#[test]
fn ranks_of_two_machines_train_the_same_bits_as_those_of_one() {
    let Some(namespaces) = Namespaces::new() else { return };
    let clicks = Clicks::new(2000);
    clicks.workspace.write("secret", "swordfish");
    clicks.start_ranks(&["--nproc_per_node=4"], "--save one").end().succeeded();
    for (number, [first, second]) in PLACES.into_iter().enumerate() {
        let arguments = [first, second, "--nproc_per_node=2", "--secret-file=secret", "sh", "job.sh"];
        let options = format!("--train 'parts/*.txt' --batch {BATCH} --save several-{number}");
        let ends = namespaces.start_with(&clicks.workspace, &arguments, &options).map(Running::end);
        for ran in &ends {
            ran.succeeded();
        }
        assert!(ends[1].stderr.contains("4 workers, collective; 2 of these 4 processes here"), "{}", ends[1].stderr);
        assert!(clicks.are_equal("one", &format!("several-{number}")), "{first} {second}");
    }
}

#[test]
fn a_rank_that_is_killed_on_one_machine_is_named_on_both() {
    let Some(namespaces) = Namespaces::new() else { return };
    let clicks = Clicks::new(2000);
    clicks.workspace.write("secret", "swordfish");
    let [first, second] = PLACES[1];
    let arguments = [first, second, "--nproc_per_node=2", "--secret-file=secret", "sh", "job.sh"];
    let options = format!("--train 'parts/*.txt' --batch {BATCH} --epochs 1000000");
    let [here, there] = namespaces.start_with(&clicks.workspace, &arguments, &options);
    let log = clicks.workspace.path(&namespaces.names[0]).join("workerlog.0");
    eventually("training has begun", || {
        std::fs::read_to_string(&log).unwrap_or_default().contains("connected to 3 other ranks")
    });
    signal_to(clicks.workspace.pid("pid.worker.3"), "-KILL");
    let (here, there) = (here.end(), there.end());
    assert!(there.failed(137).contains("error: worker 3 (pid "), "{}", there.stderr);
    assert!(here.failed(1).contains("rank 3 is lost"), "{}", here.stderr);
}

/// The launchers of two machines do not talk to each other; their ranks find out that one is lost, and meet again.
#[test]
fn ranks_of_two_machines_return_to_the_checkpoint_when_one_is_killed() {
    let Some(namespaces) = Namespaces::new() else { return };
    let clicks = Clicks::new(6400);
    clicks.workspace.write("secret", "swordfish");
    let options = |address: &str| format!("--epochs 40 --save {address} --save-every 5");
    clicks.start_ranks(&["--nproc_per_node=4"], &options("straight")).end().succeeded();
    std::fs::remove_file(clicks.workspace.path("pid.worker.3")).unwrap();
    let [first, second] = PLACES[1];
    let restarts = "--max-restarts=2";
    let arguments = [first, second, "--nproc_per_node=2", restarts, "--secret-file=secret", "sh", "job.sh"];
    let options = format!("--train 'parts/*.txt' --batch {BATCH} {}", options("broken"));
    let running = namespaces.start_with(&clicks.workspace, &arguments, &options);
    let manifest = clicks.workspace.path("broken").join("manifest.json");
    eventually("a checkpoint is saved", || manifest.exists());
    signal_to(clicks.workspace.pid("pid.worker.3"), "-KILL");
    let ends = running.map(Running::end);
    for ran in &ends {
        assert!(ran.succeeded().stderr.contains("all 2 processes restart (restart 1 of 2)"), "{}", ran.stderr);
    }
    assert!(ends[1].stdout.contains("returns to the checkpoint"), "{}", ends[1].stdout);
    assert!(clicks.are_equal("straight", "broken"));
}

/// Rows per file; there are two files.
const ROWS: usize = 12_000;

/// A job of two machines with one server and one worker each, which counts how often every id is trained.
fn start_counting(namespaces: &Namespaces, workspace: &Workspace, restarts: &str, options: &str) -> [Running; 2] {
    let openfleet = env!("CARGO_BIN_EXE_openfleet");
    let train = format!(
        "exec {openfleet} train --model counter --dense 0 --slots 1 --train 'part-*.txt' --batch 4 --threads 1"
    );
    let script =
        format!("echo $$ > pid.$OPENFLEET_ROLE.$OPENFLEET_RANK\n{train} --print-period 100 --save final {options}\n");
    workspace.write("job.sh", &script);
    workspace.write("secret", "swordfish");
    for part in 0..2 {
        let mut text = String::new();
        (0..ROWS).for_each(|row| writeln!(text, "1 0 1 {}", row % 10).unwrap());
        workspace.write(&format!("part-{part}.txt"), &text);
    }
    let servers = format!("--servers={A}:36000,{B}:36000");
    let workers = format!("--workers={A},{B}");
    namespaces.start(workspace, &[&servers, &workers, "--secret-file=secret", restarts, "sh", "job.sh"])
}

/// Every id was trained as often as it occurs.
fn check_counts(workspace: &Workspace) {
    let mut export = Command::new(env!("CARGO_BIN_EXE_openfleet"));
    export.args(["export", "final", "--out", "counts.txt"]).current_dir(workspace.path("."));
    assert!(export.output().unwrap().status.success());
    let counts = workspace.read("counts.txt");
    let mut lines: Vec<&str> = counts.lines().collect();
    lines.sort_unstable();
    let expected: Vec<String> = (0..10).map(|id| format!("{id}\t-{}", 2 * ROWS / 10)).collect();
    assert_eq!(lines, expected);
}

fn wait_for_training(running: &Running) {
    let is_told = |text: String| text.contains("epoch 1/1 ");
    eventually("training has begun", || is_told(running.stdout()) || is_told(running.stderr()));
}

fn a_process_of_the_other_machine_is_lost(victim: &str, signal: &str, mode: &str) {
    let Some(namespaces) = Namespaces::new() else { return };
    let workspace = Workspace::new();
    let running = start_counting(&namespaces, &workspace, "--max-restarts=3", mode);
    wait_for_training(&running[0]);
    signal_to(workspace.pid(victim), signal);
    for ran in running.map(Running::end) {
        ran.succeeded();
    }
    check_counts(&workspace);
}

#[test]
fn a_worker_of_another_machine_that_is_killed_comes_back_and_every_row_is_trained_once() {
    a_process_of_the_other_machine_is_lost("pid.worker.1", "-KILL", "--mode sync --scale 2");
}

#[test]
fn a_server_of_another_machine_that_is_killed_comes_back_and_every_row_is_trained_once() {
    a_process_of_the_other_machine_is_lost("pid.server.1", "-KILL", "--mode async");
}

#[test]
fn a_worker_of_another_machine_that_is_frozen_is_replaced_and_every_row_is_trained_once() {
    a_process_of_the_other_machine_is_lost("pid.worker.1", "-STOP", "--mode sync --scale 2");
}

/// With restarts, the other machine would wait for two minutes; without, it ends its part and names the missing process.
#[test]
fn a_machine_that_is_frozen_ends_the_job_and_is_named() {
    let Some(namespaces) = Namespaces::new() else { return };
    let workspace = Workspace::new();
    let [here, there] = start_counting(&namespaces, &workspace, "--max-restarts=0", "--mode sync --scale 2");
    wait_for_training(&here);
    let frozen = [there.pid(), workspace.pid("pid.server.1"), workspace.pid("pid.worker.1")];
    frozen.iter().for_each(|&pid| signal_to(pid, "-STOP"));
    let ran = here.end();
    let stderr = ran.failed(1);
    assert!(stderr.contains(&format!("on `{B}` did not answer for")), "{stderr}");
    frozen.iter().for_each(|&pid| signal_to(pid, "-KILL"));
}
