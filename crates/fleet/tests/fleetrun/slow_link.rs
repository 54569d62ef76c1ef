//! Jobs whose workers reach the servers over a slow link: a relay in this process that delivers everything late.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::workspace::{Workspace, free_ports};

const DELAY: Duration = Duration::from_millis(60);

/// Connects every client of a new port to `server`, with [`DELAY`] in both directions. Returns the port.
fn relay_to(server: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            // The server may not listen yet: then the client connects again.
            let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
            [&client, &server].into_iter().for_each(|stream| stream.set_nodelay(true).unwrap());
            deliver_late(client.try_clone().unwrap(), server.try_clone().unwrap());
            deliver_late(server, client);
        }
    });
    port
}

fn deliver_late(mut from: TcpStream, mut to: TcpStream) {
    let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let _ = sender.send((Instant::now() + DELAY, buffer[..length].to_vec()));
        }
    });
    std::thread::spawn(move || {
        for (due, bytes) in receiver {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

/// Two servers and two workers that train as `arguments` say, on the files `clicks`.
struct Job {
    workspace: Workspace,
}

impl Job {
    fn new(rows: &str) -> Self {
        let job = Job { workspace: Workspace::new() };
        job.run(&["gen", "criteo", "--rows", rows, "--parts", "2", "--ids", "5000", "--out", "clicks"]);
        job
    }

    fn run(&self, arguments: &[&str]) {
        let mut openfleet = Command::new(env!("CARGO_BIN_EXE_openfleet"));
        let output = openfleet.args(arguments).current_dir(self.workspace.path("")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Returns what the job has printed. If the link is slow, workers are told the addresses of relays.
    fn train(&self, is_slow: bool, arguments: &str) -> String {
        let first = free_ports(4);
        let (ports, workers) = ([first, first + 1], [first + 2, first + 3]);
        let list = |ports: &[u16]| ports.iter().map(|port| format!("127.0.0.1:{port}")).collect::<Vec<_>>().join(",");
        let servers = if is_slow { list(&ports.map(relay_to)) } else { list(&ports) };
        let openfleet = env!("CARGO_BIN_EXE_openfleet");
        self.workspace.write(
            "job.sh",
            &format!(
                "[ \"$OPENFLEET_ROLE\" = worker ] && export OPENFLEET_SERVERS={servers} PADDLE_PSERVERS_IP_PORT_LIST={servers}\n\
                 OPENFLEET_LOG=debug exec '{openfleet}' train --train 'clicks/train/*.txt' --epochs 2 --json {arguments}\n"
            ),
        );
        let (servers, workers) = (format!("--servers={}", list(&ports)), format!("--workers={}", list(&workers)));
        let ran = self.workspace.run(&[&servers, &workers, "sh", "job.sh"]);
        format!("{}{}", ran.succeeded().stdout, ran.stderr)
    }

    /// The rows of a saved model as text.
    fn exported(&self, model: &str) -> String {
        self.run(&["export", model, "--out", "exported.txt"]);
        self.workspace.read("exported.txt")
    }
}

/// On a slow link async requests rows ahead and merges gradients. It says so, and still trains every row exactly once.
#[test]
fn async_on_a_slow_link_says_what_it_does_and_counts_every_id_once() {
    let job = Job::new("1600");
    let shown = job.train(true, "--model counter --mode async --batch-size 20 --threads 2 --save counts");
    assert_eq!(shown.matches("slow link: a pull takes").count(), 2, "once per worker: {shown}");
    assert_eq!(shown.matches("slow link: a push takes").count(), 2, "once per worker: {shown}");

    let alone = "train --model counter --train clicks/train/*.txt --epochs 2 --threads 1 --batch-size 20 --save alone";
    job.run(&alone.split(' ').collect::<Vec<_>>());
    let rows = |model: &str| {
        let row =
            |line: &str| line.split_once('\t').map(|(key, count)| (key.to_owned(), count.parse::<f64>().unwrap()));
        let text = job.exported(model);
        text.lines().map(|line| row(line).unwrap()).collect::<BTreeMap<String, f64>>()
    };
    assert_eq!(rows("counts"), rows("alone"));
}

/// Sync tries whether it is faster to send large gradients while it computes the others, and the model is the same to the bit.
#[test]
fn sync_that_sends_gradients_early_trains_the_same_model() {
    let job = Job::new("1152");
    let arguments = "--model ctr_dnn --hidden 300,300 --mode sync --batch-size 16 --threads 1";
    let shown = job.train(true, &format!("{arguments} --save early"));
    let tried = "if it sends large gradients while it computes the others";
    assert_eq!(shown.matches(tried).count(), 2, "once per worker: {shown}");
    // Clipping by a norm needs all gradients first. This norm is never reached.
    let shown = job.train(false, &format!("{arguments} --clip-norm 1e9 --save late"));
    assert_eq!(shown.matches(tried).count(), 0, "{shown}");
    let rows = |model| {
        let mut rows = job.exported(model).lines().map(str::to_owned).collect::<Vec<_>>();
        rows.sort();
        rows
    };
    assert!(rows("early") == rows("late"), "the rows differ");
}
