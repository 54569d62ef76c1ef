//! Collective jobs: `openfleet train` as ranks without servers.

use crate::clicks::{BATCH, Clicks, last_json, number};
use crate::workspace::{all_end, eventually, free_ports, signal_to};

/// Two ranks see the same joined batches as one process, and train the same model.
#[test]
fn two_ranks_are_as_good_as_one_process() {
    let clicks = Clicks::new(40_000);
    let alone = clicks.alone(2 * BATCH, "--lr 0.005");
    let ran = clicks.start_ranks(&["--nproc_per_node=2"], "--lr 0.005 --mode collective").end();
    let summary = last_json(&ran.succeeded().stdout);
    let (expected, auc) = (number(&alone, "test_auc"), number(&summary, "test_auc"));
    println!("collective: AUC {auc:.5}, alone {expected:.5}");
    assert!(expected > 0.8 && (expected - auc).abs() < 0.0005, "AUC {auc}, alone {expected}");
    assert_eq!(summary["rows_in_tables"], alone["rows_in_tables"]);
    assert_eq!((summary["samples"].as_u64(), summary["test_rows"].as_u64()), (Some(40_000), Some(16_000)));
}

/// The same bits whether ranks are processes or threads, and in a second run.
#[test]
fn ranks_in_processes_and_in_threads_train_the_same_bits() {
    let clicks = Clicks::new(3000);
    let options = "--epochs 2 --mode collective";
    for address in ["first", "second"] {
        clicks.start_ranks(&["--nproc_per_node=2"], &format!("{options} --save {address}")).end().succeeded();
    }
    clicks.alone_with(&format!("--train 'parts/*.txt' --batch {BATCH} {options} --worker-num 2 --save threads"));
    assert!(clicks.are_equal("first", "second") && clicks.are_equal("first", "threads"));
}

/// More ranks than files: the third has no data and takes part without it.
#[test]
fn a_rank_without_data_takes_part() {
    let clicks = Clicks::new(3000);
    let two = clicks.start_ranks(&["--nproc_per_node=2"], "--save two").end();
    let three = clicks.start_ranks(&["--nproc_per_node=3"], "--save three").end();
    assert!(three.succeeded().stdout.contains("worker 2 has no rows in this pass"), "{}", three.stdout);
    assert_eq!(last_json(&two.succeeded().stdout)["test_auc"], last_json(&three.stdout)["test_auc"]);
    assert!(clicks.are_equal("two", "three"), "the divisor is the number of ranks with data");
}

#[test]
fn a_killed_rank_ends_the_job_and_is_named_by_all() {
    let clicks = Clicks::new(2000);
    let running = clicks.start_ranks(&["--nproc_per_node=3"], "--epochs 1000000");
    let pids = clicks.pids(0, 3);
    eventually("training has begun", || {
        let log = std::fs::read_to_string(clicks.workspace.path("log/workerlog.1")).unwrap_or_default();
        log.contains("connected to 2 other ranks")
    });
    signal_to(pids[1], "-KILL");
    let ran = running.end();
    assert!(ran.failed(137).contains("error: worker 1 (pid "), "{}", ran.stderr);
    all_end(&pids);
}

/// Without a launcher nobody ends the others: they find out by themselves, and name the rank that was killed.
#[test]
fn ranks_without_a_launcher_name_the_one_that_was_killed() {
    let clicks = Clicks::new(2000);
    let port = free_ports(3);
    let endpoints: Vec<String> = (0..3).map(|rank| format!("127.0.0.1:{}", port + rank)).collect();
    let rank = |rank: usize| {
        let mut command = std::process::Command::new("sh");
        command.arg("job.sh").current_dir(clicks.workspace.path("")).env_remove("OPENFLEET_SECRET");
        command.env("options", format!("--train 'parts/*.txt' --batch {BATCH} --epochs 1000000"));
        command.env("role", "worker").env("rank", rank.to_string());
        command.env("PADDLE_TRAINER_ID", rank.to_string()).env("PADDLE_TRAINERS_NUM", "3");
        command.env("PADDLE_TRAINER_ENDPOINTS", endpoints.join(",")).env("PADDLE_CURRENT_ENDPOINT", &endpoints[rank]);
        clicks.workspace.start_command(command)
    };
    let ranks = [rank(0), rank(1), rank(2)];
    eventually("training has begun", || ranks[0].stderr().contains("connected to 2 other ranks"));
    ranks[2].signal("-KILL");
    let [first, second, _] = ranks.map(crate::workspace::Running::end);
    for ran in [first, second] {
        assert!(ran.failed(1).contains("rank 2 is lost"), "{}", ran.stderr);
    }
}

/// A rank is killed, all restart from the newest checkpoint, and the result is that of a job without a failure.
#[test]
fn a_killed_rank_restarts_all_from_the_checkpoint_and_the_result_is_the_same() {
    let clicks = Clicks::new(6400);
    for (name, saves) in [("saving", "--save-every 5"), ("start", "")] {
        let options = |address: &str| format!("--epochs 40 --save {name}-{address} {saves}");
        let straight = clicks.start_ranks(&["--nproc_per_node=2"], &options("straight")).end();
        let expected = last_json(&straight.succeeded().stdout);
        // What the first job has left.
        std::fs::remove_file(clicks.workspace.path("pid.worker.1")).unwrap();
        std::fs::remove_dir_all(clicks.workspace.path("log")).unwrap();
        let running = clicks.start_ranks(&["--nproc_per_node=2", "--max_restarts=2"], &options("broken"));
        match saves {
            "" => eventually("training has begun", || {
                let log = std::fs::read_to_string(clicks.workspace.path("log/workerlog.1")).unwrap_or_default();
                log.contains("connected to 1 other rank")
            }),
            _ => {
                let manifest = clicks.workspace.path(&format!("{name}-broken")).join("manifest.json");
                eventually("a checkpoint is saved", || manifest.exists());
            }
        }
        let killed = clicks.workspace.pid("pid.worker.1");
        signal_to(killed, "-KILL");
        let ran = running.end();
        let got = last_json(&ran.succeeded().stdout);
        let restart = format!(
            "worker 1 (pid {killed}) was killed by signal 9 (SIGKILL); all 2 processes restart (restart 1 of 2)"
        );
        assert!(ran.stderr.contains(&restart), "{}", ran.stderr);
        assert_eq!(ran.stdout.contains("returns to the checkpoint"), !saves.is_empty(), "{}", ran.stdout);
        assert_eq!(got["test_auc"], expected["test_auc"], "{name}");
        assert!(clicks.are_equal(&format!("{name}-straight"), &format!("{name}-broken")), "{name}");
    }
}

/// All processes are killed; the resumed job ends with the same result.
#[test]
fn a_killed_collective_job_resumes() {
    let clicks = Clicks::new(6400);
    let options = |address: &str| format!("--epochs 6 --save {address} --save-every 5 --resume");
    clicks.start_ranks(&["--nproc_per_node=2"], &options("straight")).end().succeeded();
    let running = clicks.start_ranks(&["--nproc_per_node=2"], &options("broken"));
    let manifest = clicks.workspace.path("broken").join("manifest.json");
    eventually("a checkpoint is saved", || manifest.exists());
    let pids = clicks.pids(0, 2);
    running.signal("-KILL");
    pids.iter().for_each(|&pid| signal_to(pid, "-KILL"));
    all_end(&pids);
    drop(running);
    let resumed = clicks.start_ranks(&["--nproc_per_node=2"], &options("broken")).end();
    assert!(last_json(&resumed.succeeded().stdout)["samples"].as_u64().unwrap() < 6 * 6400, "{}", resumed.stdout);
    assert!(clicks.are_equal("straight", "broken"));
}

#[test]
fn options_of_modes_with_servers_are_refused() {
    let clicks = Clicks::new(1000);
    for (options, message) in [
        ("--mode async", "`--mode`: expected collective: this job has no servers, got `async`"),
        ("--mode collective --staleness 2", "`--staleness` cannot be used with mode collective"),
        ("--strategy gradient_merge=1 --strategy localsgd=1", "`gradient_merge` = true contradicts `localsgd` = true"),
    ] {
        let ran = clicks.start_ranks(&["--nproc_per_node=1"], options).end();
        assert!(ran.failed(1).contains(message), "{options}: {}", ran.stderr);
    }
}
