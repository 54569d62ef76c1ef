//! Collective jobs under a real `mpirun`, without other variables: over TCP, and by MPI in a build with the feature `mpi`.
//!
//! `make test-mpi` runs these tests with that feature.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use openfleet::fleet::{Fleet, ProcessContext};
use openfleet::role::UserDefinedCollective;
use openfleet_core::error::report;
use openfleet_core::strategy::Mode;
use openfleet_dist::Reduce;
use openfleet_engine::Scope;

use crate::mpirun::{end, mpirun, this_test};
use crate::{feed, free_endpoints, model};

const BACKEND: &str = "OPENFLEET_COLLECTIVE_BACKEND";
/// Where rank 0 saves.
const SAVE_TO: &str = "OPENFLEET_TEST_SAVE_TO";
const STEPS: u64 = 20;
/// Far more than MPI libraries send before the receiver is ready: two ranks that only sent first would wait for each other.
const LARGE: usize = 3_000_000;

fn backends() -> &'static [&'static str] {
    if cfg!(feature = "mpi") { &["tcp", "mpi"] } else { &["tcp"] }
}

/// The program of every rank.
fn program(fleet: &Fleet, save_to: &str) {
    let model = model(fleet, Mode::Collective);
    fleet.init_worker().unwrap();
    let mut executor = fleet.executor(Arc::new(Scope::new())).unwrap();
    executor.run_startup(&model.net.startup).unwrap();
    let (rank, size) = (fleet.worker_index().unwrap() as u64, fleet.worker_num() as u64);
    for step in 0..STEPS {
        executor.run(&model.net.main, feed(step, rank), &[model.loss]).unwrap();
    }
    let mut sum = vec![rank as f64 + 1.0; LARGE];
    fleet.all_reduce(Reduce::Sum, &mut sum).unwrap();
    assert!(sum.iter().all(|&sum| sum == (size * (size + 1) / 2) as f64));
    let blocks = fleet.all_gather(&vec![rank as u8; 1_000_000 * rank as usize]).unwrap();
    for (rank, block) in blocks.iter().enumerate() {
        assert!(block.len() == 1_000_000 * rank && block.iter().all(|&byte| byte == rank as u8));
    }
    fleet.barrier_worker().unwrap();
    fleet.save_persistables(&mut executor, &model.net.main, save_to).unwrap();
    fleet.stop_worker().unwrap();
}

#[test]
#[ignore = "a process of the tests below"]
fn one_rank() {
    let fleet = Fleet::init_collective(ProcessContext::default()).unwrap();
    program(&fleet, &std::env::var(SAVE_TO).unwrap());
    println!("{} has ended", fleet.topology());
}

/// The same job as threads of this process.
fn in_threads(size: usize, save_to: &str) {
    let worker_endpoints = free_endpoints(size);
    std::thread::scope(|scope| {
        for rank in 0..size {
            let role_maker =
                UserDefinedCollective { current_id: rank as i64, worker_endpoints: worker_endpoints.clone() };
            scope.spawn(move || {
                program(&Fleet::init_in(Some(&role_maker), ProcessContext::quiet([])).unwrap(), save_to);
            });
        }
    });
}

/// Fails unless two checkpoints have the same bits.
fn assert_equal(directory: &Path, one: &str, other: &str) {
    let mut diff = Command::new(env!("CARGO_BIN_EXE_openfleet"));
    diff.args(["diff", one, other, "--json"]).current_dir(directory);
    let (succeeded, text) = end(diff);
    assert!(succeeded, "{text}");
    let difference: serde_json::Value = serde_json::from_str(&text).unwrap();
    for list in ["tables", "parameters"] {
        let compared = difference[list].as_array().unwrap();
        assert!(!compared.is_empty(), "{text}");
        assert!(compared.iter().all(|one| one["changed"] == 0), "{one} and {other}: {text}");
    }
}

#[test]
fn ranks_of_a_real_mpirun_train_the_same_bits_with_every_backend() {
    let temporary = tempfile::tempdir().unwrap();
    for size in [2, 3] {
        let threads = format!("threads-{size}");
        in_threads(size, temporary.path().join(&threads).to_str().unwrap());
        for backend in backends() {
            let saved = format!("{backend}-{size}");
            let Some(mut job) = mpirun(temporary.path()) else { return };
            job.args(["-n", &size.to_string()]).args(this_test("mpirun_collective::one_rank"));
            job.env(BACKEND, backend).env(SAVE_TO, temporary.path().join(&saved));
            let (succeeded, text) = end(job);
            assert!(succeeded, "{text}");
            for rank in 0..size {
                let name = format!("worker {rank} of {size} (collective)");
                assert!(text.contains(&format!("{name}: rank from MPI's OMPI_COMM_WORLD_RANK")), "{text}");
                assert!(text.contains(&format!("{name} has ended")), "{text}");
            }
            assert_eq!(text.contains(" by MPI"), *backend == "mpi", "{text}");
            assert_equal(temporary.path(), &threads, &saved);
        }
    }
}

#[test]
fn openfleet_train_in_collective_mode_takes_its_ranks_from_mpirun() {
    let temporary = tempfile::tempdir().unwrap();
    let mut generate = Command::new(env!("CARGO_BIN_EXE_openfleet"));
    generate.args("gen criteo --rows 600 --test-rows 100 --ids 200 --parts 3 --out clicks".split(' '));
    generate.current_dir(temporary.path());
    assert!(generate.output().unwrap().status.success());
    let train = |saved: &str, variables: &[(&str, &str)]| {
        let mut job = mpirun(temporary.path())?;
        job.args(["-n", "3", env!("CARGO_BIN_EXE_openfleet"), "train", "--train", "clicks/train/*.txt"]);
        job.args("--model ctr_dnn --hidden 8 --dim 4 --batch 50 --mode collective --save".split(' ')).arg(saved);
        job.current_dir(temporary.path()).envs(variables.iter().copied());
        let (succeeded, text) = end(job);
        assert!(succeeded, "{text}");
        assert!(text.contains("worker 2 of 3 (collective): rank from MPI's OMPI_COMM_WORLD_RANK"), "{text}");
        Some(())
    };
    for backend in backends() {
        if train(backend, &[(BACKEND, backend)]).is_none() {
            return;
        }
        assert_equal(temporary.path(), "tcp", backend);
    }
    // As on several machines: nothing but an address and a secret.
    let meeting = free_endpoints(1).remove(0);
    train("met", &[("OPENFLEET_RENDEZVOUS", &meeting), ("OPENFLEET_SECRET", "swordfish"), ("TMPDIR", "nowhere")]);
    assert_equal(temporary.path(), "tcp", "met");
}

#[test]
#[cfg(not(feature = "mpi"))]
fn a_build_without_mpi_says_so() {
    let variables = [("OPENFLEET_WORKERS", "127.0.0.1:1,127.0.0.1:2"), ("OPENFLEET_RANK", "0"), (BACKEND, "mpi")];
    let fleet = Fleet::init_collective(ProcessContext::quiet(variables)).unwrap();
    assert_eq!(
        report(&fleet.init_worker().unwrap_err()),
        "this build of OpenFleet does not support MPI between ranks\n\nhint: build with the feature `mpi` of `openfleet`, \
         which needs an MPI library and libclang, or set `OPENFLEET_COLLECTIVE_BACKEND` to `tcp`"
    );
}

/// Only a build with MPI has these.
#[cfg(feature = "mpi")]
mod by_mpi {
    use std::time::Duration;

    use super::*;

    /// Rank 1 leaves the job without departing, as `OPENFLEET_TEST_ENDING` says; the others wait for it.
    #[test]
    #[ignore = "a process of the tests below"]
    fn a_rank_that_is_left() {
        let fleet = Fleet::init_collective(ProcessContext::default()).unwrap();
        fleet.init_worker().unwrap();
        if fleet.worker_index().unwrap() == 1 {
            match std::env::var("OPENFLEET_TEST_ENDING").unwrap().as_str() {
                "fails" => panic!("the data of this rank is missing"),
                "stays" => {
                    drop(fleet);
                    return std::thread::sleep(Duration::from_secs(600));
                }
                // The process ends with code 0, and nothing tells the library.
                _ => return std::mem::forget(fleet),
            }
        }
        fleet.barrier_worker().unwrap();
        println!("nobody noticed");
    }

    fn left(ending: &str) -> Option<String> {
        let temporary = tempfile::tempdir().unwrap();
        let mut job = mpirun(temporary.path())?;
        job.args(["-n", "3"]).args(this_test("mpirun_collective::by_mpi::a_rank_that_is_left"));
        job.env(BACKEND, "mpi").env("OPENFLEET_TEST_ENDING", ending);
        let (succeeded, text) = end(job);
        assert!(!succeeded && !text.contains("nobody noticed"), "{text}");
        Some(text)
    }

    #[test]
    fn a_rank_that_fails_says_why_and_ends_the_job() {
        let Some(text) = left("fails") else { return };
        assert!(text.contains("the data of this rank is missing"), "{text}");
    }

    #[test]
    fn a_rank_that_leaves_without_departing_ends_the_job() {
        let Some(text) = left("stays") else { return };
        assert!(text.contains("rank 1 ends the job: its process has left the job without departing"), "{text}");
    }

    #[test]
    fn a_rank_that_exits_without_departing_ends_the_job() {
        left("exits");
    }

    #[test]
    fn a_job_whose_ranks_are_not_those_of_mpi_is_refused() {
        let temporary = tempfile::tempdir().unwrap();
        let Some(mut job) = mpirun(temporary.path()) else { return };
        job.env(BACKEND, "mpi").env(SAVE_TO, "nowhere").env("OPENFLEET_WORKERS", "127.0.0.1:1,127.0.0.1:2");
        // The last process of MPI is the first of the job.
        job.args(["-n", "1", "-x", "OPENFLEET_RANK=1"]).args(this_test("mpirun_collective::one_rank"));
        job.args([":", "-n", "1", "-x", "OPENFLEET_RANK=0"]).args(this_test("mpirun_collective::one_rank"));
        let (succeeded, text) = end(job);
        assert!(!succeeded, "{text}");
        assert!(text.contains("MpiRank { rank: 1, size: 2, mpi_rank: 0, mpi_size: 2 }"), "{text}");
    }

    #[test]
    fn a_process_without_mpirun_is_a_job_of_one_in_mpi() {
        if mpirun(Path::new(".")).is_none() {
            return;
        }
        let mut alone = Command::new(std::env::current_exe().unwrap());
        alone.args(&this_test("mpirun_collective::by_mpi::alone")[1..]);
        let (succeeded, text) = end(alone);
        assert!(succeeded, "{text}");
    }

    #[test]
    #[ignore = "a process of the test above"]
    fn alone() {
        let variables = [("OPENFLEET_WORKERS", "127.0.0.1:1,127.0.0.1:2"), ("OPENFLEET_RANK", "0"), (BACKEND, "mpi")];
        let fleet = Fleet::init_collective(ProcessContext::quiet(variables)).unwrap();
        assert_eq!(
            report(&fleet.init_worker().unwrap_err()),
            "this process is rank 0 of 2 in the job, and rank 0 of 1 in MPI\n\nhint: start all processes of the job, and \
             nothing else, with one `mpirun`; unset variables that give another rank"
        );
    }
}
