//! All-reduces between two processes over loopback: `cargo bench -p openfleet-dist --bench all_reduce`.
//!
//! With `mpicc` and `mpirun` on the machine, Open MPI over TCP does the same in turns with ours, and the ratio is printed. The
//! best of several rounds counts on each side, and the numbers are set anew before each round. Nothing here is asserted.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench that cannot go on ends, and its lines are the result"
)]

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use openfleet_core::topology::{Endpoint, Incarnation};
use openfleet_dist::Reduce;
use openfleet_dist::collective::{Rendezvous, Transport, algorithms};
use openfleet_dist::handshake::Secret;
use openfleet_dist::session::Identity;
use openfleet_testkit::bench::size;

/// The dense gradients of a CTR-DNN (26 x 10 + 13 -> 400 -> 400 -> 400 -> 2), and a few numbers.
const LENGTHS: [usize; 3] = [431_202, 4096, 16];
const ROUNDS: usize = 50;
/// All-reduces per round.
const REPEATS: u32 = 10;

fn main() {
    if let Some(rank) = std::env::var("BENCH_RANK").ok().and_then(|rank| rank.parse().ok()) {
        rank_process(rank);
        return;
    }
    let mpi = compile_mpi();
    for length in LENGTHS {
        // In turns, twice, so that a noisy moment does not decide.
        let mut best = (f64::MAX, f64::MAX);
        for _ in 0..size(3, 1) {
            best.0 = best.0.min(ours(length));
            best.1 = best.1.min(mpi.as_ref().map_or(f64::MAX, |program| open_mpi(program, length)));
        }
        let bytes = length * size_of::<f32>();
        println!("all-reduce of {bytes} bytes, 2 processes  {:.1} us", best.0);
        if mpi.is_some() {
            println!("  Open MPI over TCP  {:.1} us; ours takes {:.2} of that", best.1, best.0 / best.1);
        }
    }
}

/// Microseconds of an all-reduce between two processes of this program.
fn ours(length: usize) -> f64 {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        // `--bench` decides how many rounds there are.
        command.args(std::env::args_os().skip(1));
        command.env("BENCH_RANK", rank.to_string()).env("BENCH_PORT", port.to_string());
        command.env("BENCH_LENGTH", length.to_string()).stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let ranks = [start(0), start(1)];
    let printed = ranks.map(|rank| String::from_utf8(rank.wait_with_output().unwrap().stdout).unwrap());
    printed[0].trim().parse().unwrap()
}

fn rank_process(rank: u32) {
    let number = |name: &str| std::env::var(name).unwrap().parse::<usize>().unwrap();
    let length = number("BENCH_LENGTH");
    let rendezvous = Rendezvous {
        identity: Identity { job: "bench".into(), secret: Secret::new("bench"), rank, incarnation: Incarnation(1) },
        size: 2,
        meeting: Endpoint::new("127.0.0.1", number("BENCH_PORT") as u16).unwrap(),
        bind: None,
        port: 0,
        host: None,
        wait_limit: Duration::from_secs(30),
        silence: Duration::from_secs(30),
        trusts_private_network: false,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let transport = runtime.block_on(rendezvous.join(&|_| {})).unwrap();
    let mut values = vec![0.0f32; length];
    let mut best = Duration::MAX;
    for _ in 0..size(ROUNDS, 1) {
        for (at, value) in values.iter_mut().enumerate() {
            *value = rank as f32 + (at % 7) as f32;
        }
        let mut all = [0; 2];
        algorithms::all_gather(&transport, &[0], &mut all).unwrap();
        let started = Instant::now();
        for _ in 0..REPEATS {
            algorithms::all_reduce(&transport, Reduce::Sum, &mut values).unwrap();
        }
        best = best.min(started.elapsed() / REPEATS);
    }
    if rank == 0 {
        println!("{:.1}", best.as_secs_f64() * 1e6);
    }
    transport.close();
}

/// The program of `comparisons/`, compiled into a temporary directory; `None` without `mpicc`.
fn compile_mpi() -> Option<std::path::PathBuf> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../comparisons/all_reduce_mpi.c");
    let program = std::env::temp_dir().join(format!("all_reduce_mpi-{}", std::process::id()));
    let compiled = Command::new("mpicc").args(["-O2", "-o"]).arg(&program).arg(source).status();
    compiled.is_ok_and(|status| status.success()).then_some(program)
}

fn open_mpi(program: &std::path::Path, length: usize) -> f64 {
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "--mca", "btl", "tcp,self", "-n", "2"]);
    command.arg(program).args([length.to_string(), size(ROUNDS, 1).to_string()]);
    let output = command.output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap_or(f64::MAX)
}
