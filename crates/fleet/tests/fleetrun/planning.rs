//! `--dry-run`, and the environment of the processes.

use crate::workspace::{Workspace, free_ports};

#[test]
fn a_dry_run_prints_the_whole_plan_and_starts_nothing() {
    let workspace = Workspace::with_job("mark started x");
    let ran = workspace.run(&[
        "--server-num",
        "1",
        "--worker-num",
        "2",
        "--start-port",
        "7100",
        "--job",
        "clicks",
        "--dry-run",
        "/bin/sh",
        "job.sh",
        "two words",
        "--dry-run",
    ]);
    let directory = workspace.path(".").canonicalize().unwrap().display().to_string();
    let golden = "\
job clicks: 1 server and 2 workers; logs in `log`

# server 0 at 127.0.0.1:7100, output in `log/serverlog.0`
OPENFLEET_JOB=clicks \\
OPENFLEET_ROLE=server \\
OPENFLEET_RANK=0 \\
OPENFLEET_WORKER_NUM=2 \\
OPENFLEET_WORKERS=127.0.0.1:7101,127.0.0.1:7102 \\
OPENFLEET_SERVERS=127.0.0.1:7100 \\
PADDLE_PSERVERS_IP_PORT_LIST=127.0.0.1:7100 \\
TRAINING_ROLE=PSERVER \\
PADDLE_TRAINERS_NUM=2 \\
PADDLE_TRAINER_ENDPOINTS=127.0.0.1:7101,127.0.0.1:7102 \\
POD_IP=127.0.0.1 \\
PADDLE_PORT=7100 \\
OPENFLEET_RUN='(made at start)' \\
OPENFLEET_PROGRESS_FILE=HERE/log/progress/server.0.json \\
OPENFLEET_JOB_FILE=HERE/log/progress/job.json \\
OPENFLEET_INCARNATION=1 \\
OPENFLEET_SECRET='(hidden)' \\
/bin/sh job.sh 'two words' --dry-run

# worker 0 at 127.0.0.1:7101, output in `log/workerlog.0`
OPENFLEET_JOB=clicks \\
OPENFLEET_ROLE=worker \\
OPENFLEET_RANK=0 \\
OPENFLEET_WORKER_NUM=2 \\
OPENFLEET_WORKERS=127.0.0.1:7101,127.0.0.1:7102 \\
OPENFLEET_SERVERS=127.0.0.1:7100 \\
PADDLE_PSERVERS_IP_PORT_LIST=127.0.0.1:7100 \\
TRAINING_ROLE=TRAINER \\
PADDLE_TRAINERS_NUM=2 \\
PADDLE_TRAINER_ENDPOINTS=127.0.0.1:7101,127.0.0.1:7102 \\
POD_IP=127.0.0.1 \\
PADDLE_PORT=7101 \\
PADDLE_TRAINER_ID=0 \\
OPENFLEET_RUN='(made at start)' \\
OPENFLEET_PROGRESS_FILE=HERE/log/progress/worker.0.json \\
OPENFLEET_JOB_FILE=HERE/log/progress/job.json \\
OPENFLEET_INCARNATION=1 \\
OPENFLEET_SECRET='(hidden)' \\
/bin/sh job.sh 'two words' --dry-run
";
    let shown = ran.succeeded().stdout.replace(&directory, "HERE");
    let (shown, second) = shown.split_once("\n# worker 1").unwrap();
    assert_eq!(shown, golden);
    assert!(second.contains("PADDLE_TRAINER_ID=1 \\\n"), "{second}");
    assert!(!workspace.path("started").exists() && !workspace.path("log").exists());
}

#[test]
fn processes_see_their_own_job_and_nothing_of_another() {
    let workspace = Workspace::with_job("env > env.$role");
    let mut command = workspace.command(&["--server_num=1", "--worker_num=1", "sh", "job.sh"]);
    // What a scheduler, an older shell or a shell profile may have set.
    let leftovers = [
        ("PADDLE_TRAINER_ID", "7"),
        ("PADDLE_TRAINING_ROLE", "X"),
        ("RANK", "3"),
        ("OPENFLEET_BIND", "::"),
        ("OPENFLEET_RUN", "of an outer job"),
        ("OPENFLEET_RESUME", "of an outer job"),
    ];
    command.envs(leftovers).env("http_proxy", "http://proxy:1").env("MINE", "kept");
    workspace.start_command(command).end().succeeded();
    let value = |role: &str, name: &str| {
        let found = workspace.read(&format!("env.{role}"));
        let prefix = format!("{name}=");
        found.lines().find_map(|line| line.strip_prefix(&prefix)).map(str::to_owned)
    };
    assert_eq!(value("worker", "PADDLE_TRAINER_ID").as_deref(), Some("0"));
    assert_eq!(value("server", "PADDLE_TRAINER_ID"), None);
    for role in ["server", "worker"] {
        for gone in ["PADDLE_TRAINING_ROLE", "RANK", "OPENFLEET_BIND", "OPENFLEET_RESUME"] {
            assert_eq!(value(role, gone), None, "{role} {gone}");
        }
        assert_eq!(value(role, "http_proxy").as_deref(), Some("http://proxy:1"));
        assert_eq!(value(role, "MINE").as_deref(), Some("kept"));
    }
    for same in ["OPENFLEET_SECRET", "OPENFLEET_JOB", "OPENFLEET_SERVERS", "OPENFLEET_RUN", "OPENFLEET_JOB_FILE"] {
        assert!(value("server", same).is_some() && value("server", same) == value("worker", same), "{same}");
    }
    let secret = value("server", "OPENFLEET_SECRET").unwrap();
    assert_eq!(secret.len(), 64);
    assert_eq!(value("server", "OPENFLEET_RUN").unwrap().len(), 16);
}

#[test]
fn every_job_has_a_secret_of_its_own() {
    let workspace = Workspace::with_job("[ $role = server ] || mark secret $OPENFLEET_SECRET");
    let secret = || {
        workspace.job("--server_num=1 --worker_num=1").succeeded();
        workspace.read("secret")
    };
    assert_ne!(secret(), secret());
    workspace.write("own", "swordfish\n");
    workspace.job("--server_num=1 --worker_num=1 --secret-file own").succeeded();
    assert_eq!(workspace.read("secret"), "swordfish\n");
}

#[test]
fn collective_workers_have_the_variables_of_both_launchers() {
    let workspace = Workspace::with_job(
        "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT \
         $PADDLE_TRAINER_ID/$PADDLE_TRAINERS_NUM $PADDLE_CURRENT_ENDPOINT of $PADDLE_TRAINER_ENDPOINTS \
         $PADDLE_RANK_IN_NODE $TRAINING_ROLE $OPENFLEET_RANK/$OPENFLEET_WORKER_NUM $OMP_NUM_THREADS \
         ${OPENFLEET_SERVERS-none} ${PADDLE_PSERVERS_IP_PORT_LIST-none}",
    );
    let port = free_ports(3);
    let ran = workspace.job(&format!("--nproc_per_node 2 --start_port {port}"));
    let worker = |rank: u16| {
        format!(
            "[worker {rank}] {rank}/2 {rank}/2 0/1 127.0.0.1:{} {rank}/2 127.0.0.1:{} of 127.0.0.1:{port},127.0.0.1:{} \
             {rank} TRAINER {rank}/2 1 none none",
            port + 2,
            port + rank,
            port + 1,
        )
    };
    assert_eq!(ran.succeeded().sorted(), [worker(0), worker(1)]);
}

#[test]
fn the_second_machine_of_a_collective_job_continues_the_ranks() {
    let workspace = Workspace::with_job(
        "echo $RANK/$WORLD_SIZE $LOCAL_RANK $GROUP_RANK/$GROUP_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT",
    );
    let mut command = workspace.command(&[
        "--nproc_per_node",
        "2",
        "--ips",
        "127.0.0.1,127.0.0.2",
        "--host",
        "127.0.0.2",
        "--start_port",
        "7300",
        "sh",
        "job.sh",
    ]);
    command.env("OPENFLEET_SECRET", "swordfish");
    let ran = workspace.start_command(command).end();
    let expected = ["[worker 2] 2/4 0 1/2 127.0.0.1:7302", "[worker 3] 3/4 1 1/2 127.0.0.1:7302"];
    assert_eq!(ran.succeeded().sorted(), expected);
}
