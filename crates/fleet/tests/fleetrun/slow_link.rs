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

/// On a slow link async requests rows ahead and merges gradients. It says so, and still trains every row exactly once.
#[test]
fn async_on_a_slow_link_says_what_it_does_and_counts_every_id_once() {
    let workspace = Workspace::new();
    let openfleet = env!("CARGO_BIN_EXE_openfleet");
    let run = |arguments: &[&str]| {
        let output = Command::new(openfleet).args(arguments).current_dir(workspace.path("")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["gen", "criteo", "--rows", "1600", "--parts", "2", "--ids", "5000", "--out", "clicks"]);
    let first = free_ports(4);
    let (ports, workers) = ([first, first + 1], [first + 2, first + 3]);
    let relays: Vec<u16> = ports.iter().map(|&port| relay_to(port)).collect();
    let list = |ports: &[u16]| ports.iter().map(|port| format!("127.0.0.1:{port}")).collect::<Vec<_>>().join(",");
    // Workers are told the addresses of the relays.
    let servers = list(&relays);
    workspace.write(
        "job.sh",
        &format!(
            "[ \"$OPENFLEET_ROLE\" = worker ] && export OPENFLEET_SERVERS={servers} PADDLE_PSERVERS_IP_PORT_LIST={servers}\n\
             exec '{openfleet}' train --model counter --mode async --train 'clicks/train/*.txt' --batch-size 20 --epochs 2 \
             --threads 2 --save counts --json\n"
        ),
    );
    let ran = workspace.run(&[
        &format!("--servers={}", list(&ports)),
        &format!("--workers={}", list(&workers)),
        "sh",
        "job.sh",
    ]);
    let shown = format!("{}{}", ran.succeeded().stdout, ran.stderr);
    assert_eq!(shown.matches("slow link: a pull takes").count(), 2, "once per worker: {shown}");
    assert_eq!(shown.matches("slow link: a push takes").count(), 2, "once per worker: {shown}");

    run(&["export", "counts", "--out", "counted.txt"]);
    run(&[
        "train",
        "--model",
        "counter",
        "--train",
        "clicks/train/*.txt",
        "--epochs",
        "2",
        "--threads",
        "1",
        "--batch-size",
        "20",
        "--save",
        "alone",
    ]);
    run(&["export", "alone", "--out", "expected.txt"]);
    let rows = |name: &str| {
        let text = workspace.read(name);
        let row =
            |line: &str| line.split_once('\t').map(|(key, count)| (key.to_owned(), count.parse::<f64>().unwrap()));
        text.lines().map(|line| row(line).unwrap()).collect::<BTreeMap<String, f64>>()
    };
    assert_eq!(rows("counted.txt"), rows("expected.txt"));
}
