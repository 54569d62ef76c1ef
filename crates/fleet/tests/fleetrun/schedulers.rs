//! `fleetrun k8s`, `slurm` and `mpi`: what they print is valid, and runs where that is possible here.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use openfleet::role::{self, Settings};
use openfleet::variables::Variables;

use crate::clicks::{BATCH, Clicks, last_json};
use crate::workspace::{Running, Workspace, free_ports};

/// Writes the variables of the process, and lets servers wait for the workers.
const JOB: &str =
    "echo $role $rank of $OPENFLEET_SERVERS $TRAINING_ROLE ${PADDLE_TRAINER_ID-none} $POD_IP:$PADDLE_PORT \
    $OPENFLEET_WORKER_NUM ${#OPENFLEET_SECRET} \"$1\" > said.$role.$rank
[ $role = worker ] && exit ${CODE:-0}
until [ -e said.worker.0 ] && [ -e said.worker.1 ]; do sleep 0.02; done";

const SERVERS: &str = "127.0.0.1:7600,127.0.0.1:7601";

fn check_what_was_said(workspace: &Workspace) {
    for rank in 0..2 {
        let server = format!("server {rank} of {SERVERS} PSERVER none 127.0.0.1:760{rank} 2 64 two words\n");
        assert_eq!(workspace.read(&format!("said.server.{rank}")), server);
        let worker = format!("worker {rank} of {SERVERS} TRAINER {rank} : 2 64 two words\n");
        assert_eq!(workspace.read(&format!("said.worker.{rank}")), worker);
    }
}

/// A stand-in for Slurm on one machine: `srun` starts its tasks and fails if one of them does.
const SRUN: &str = r#"#!/bin/bash
output=/dev/null tasks=1
while :; do
  case $1 in
    --ntasks=*) tasks=${1#*=} ;;
    --output=*) output=${1#*=} ;;
    --*) ;;
    *) break ;;
  esac
  shift
done
for (( i = 0; i < tasks; i++ )); do
  SLURM_PROCID=$i "$@" > "${output/\%t/$i}" 2>&1 &
  pids+=($!)
done
trap 'kill "${pids[@]}" 2> /dev/null; exit 143' TERM
code=0
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
exit $code
"#;

fn slurm(workspace: &Workspace, code: &str) -> crate::workspace::Ran {
    slurm_of(workspace, &["--server_num=2", "--worker_num=2"], code)
}

fn slurm_of(workspace: &Workspace, processes: &[&str], code: &str) -> crate::workspace::Ran {
    let options = ["--start_port=7600", "--cpu=2", "--time=01:00:00", "sh", "job.sh", "two words"];
    let printed = workspace.run(&[&["slurm"], processes, &options].concat());
    workspace.write("job.sbatch", &printed.succeeded().stdout);
    workspace.program("srun", SRUN);
    workspace.program("scontrol", "#!/bin/sh\necho 127.0.0.1\n");
    let mut command = Command::new("bash");
    let path = format!("{}:{}", workspace.path(".").display(), std::env::var("PATH").unwrap());
    command.current_dir(workspace.path(".")).arg("job.sbatch").env("PATH", path).env("CODE", code);
    command.env("SLURM_JOB_ID", "11").env("SLURM_JOB_NODELIST", "node").env_remove("PADDLE_TRAINER_ID");
    workspace.start_command(command).end()
}

#[test]
fn a_slurm_script_runs_servers_and_workers_as_two_steps() {
    let workspace = Workspace::with_job(JOB);
    slurm(&workspace, "0").succeeded();
    check_what_was_said(&workspace);
    let script = workspace.read("job.sbatch");
    for line in ["#SBATCH --nodes=1", "#SBATCH --ntasks=4", "#SBATCH --cpus-per-task=2", "#SBATCH --time=01:00:00"] {
        assert!(script.lines().any(|found| found == line), "`{line}` in {script}");
    }
    assert!(workspace.path("log/serverlog.1").exists() && workspace.path("log/workerlog.1").exists());
}

#[test]
fn a_slurm_script_passes_on_the_code_of_failing_workers() {
    let workspace = Workspace::with_job(JOB);
    let ran = slurm(&workspace, "9");
    assert!(ran.failed(9).contains("a step failed with exit code 9: see log"), "{}", ran.stderr);
}

/// Writes the variables of a rank.
const RANK: &str =
    "echo $role $rank of $OPENFLEET_WORKERS $PADDLE_TRAINER_ENDPOINTS $TRAINING_ROLE $PADDLE_TRAINER_ID \
    $OPENFLEET_WORKER_NUM ${#OPENFLEET_SECRET} ${OPENFLEET_SERVERS-none} \"$1\" > said.$role.$rank
exit ${CODE:-0}";

const COLLECTIVE: [&str; 2] = ["--run_mode=collective", "--worker_num=3"];

fn check_what_ranks_said(workspace: &Workspace) {
    let ranks = "127.0.0.1:7600,127.0.0.1:7601,127.0.0.1:7602";
    for rank in 0..3 {
        let said = format!("worker {rank} of {ranks} {ranks} TRAINER {rank} 3 64 none two words\n");
        assert_eq!(workspace.read(&format!("said.worker.{rank}")), said);
    }
}

#[test]
fn a_slurm_script_runs_a_collective_job_as_one_step() {
    let workspace = Workspace::with_job(RANK);
    slurm_of(&workspace, &[&COLLECTIVE[..], &["--nodes=2"]].concat(), "0").succeeded();
    check_what_ranks_said(&workspace);
    let script = workspace.read("job.sbatch");
    for line in ["#SBATCH --nodes=2", "#SBATCH --ntasks=3", "#SBATCH --ntasks-per-node=2"] {
        assert!(script.lines().any(|found| found == line), "`{line}` in {script}");
    }
    assert!(workspace.path("log/workerlog.2").exists());
    let ran = slurm_of(&workspace, &COLLECTIVE, "9");
    assert!(ran.failed(9).contains("the step failed with exit code 9: see log"), "{}", ran.stderr);
}

#[test]
fn an_mpi_script_starts_servers_first() {
    let workspace = Workspace::with_job(JOB);
    let options = ["--server_num=2", "--worker_num=2", "--start_port=7600", "sh", "job.sh", "two words"];
    if let Some(running) = mpi(&workspace, &options, None) {
        running.end().succeeded();
        check_what_was_said(&workspace);
    }
}

#[test]
fn an_mpi_script_starts_the_ranks_of_a_collective_job() {
    let workspace = Workspace::with_job(RANK);
    let options = [&COLLECTIVE[..], &["--start_port=7600", "sh", "job.sh", "two words"]].concat();
    if let Some(running) = mpi(&workspace, &options, None) {
        running.end().succeeded();
        check_what_ranks_said(&workspace);
    }
}

/// The ranks find each other by what the script tells them.
#[test]
fn an_mpi_script_trains_a_collective_job() {
    let clicks = Clicks::new(1000);
    let start_port = format!("--start_port={}", free_ports(3));
    let options = [&COLLECTIVE[..], &[&start_port, "sh", "job.sh"]].concat();
    let train = format!("--train 'parts/*.txt' --batch {BATCH}");
    if let Some(running) = mpi(&clicks.workspace, &options, Some(&train)) {
        let ran = running.end();
        assert_eq!(last_json(&ran.succeeded().stdout)["samples"], 1000, "{}", ran.stdout);
        assert!(ran.stderr.contains("worker 2 of 3: connected to 2 other ranks"), "{}", ran.stderr);
    }
}

/// Prints a script and runs it, with these options of `job.sh`; `None`, with the reason printed, if there is no `mpirun`.
fn mpi(workspace: &Workspace, options: &[&str], of_job: Option<&str>) -> Option<Running> {
    workspace.write("mpi.sh", &workspace.run(&[&["mpi"], options].concat()).succeeded().stdout.clone());
    let checked = Command::new("bash").arg("-n").arg(workspace.path("mpi.sh")).status().unwrap();
    assert!(checked.success());
    if Command::new("mpirun").arg("--version").output().is_err() {
        println!("skipped: there is no `mpirun` to run the script with (openmpi-bin)");
        return None;
    }
    let mut command = Command::new("bash");
    command.current_dir(workspace.path(".")).arg("mpi.sh").env_remove("PADDLE_TRAINER_ID");
    command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    command.envs(of_job.map(|options| ("options", options)));
    Some(workspace.start_command(command))
}

#[test]
fn an_mpi_script_names_the_hosts_of_lists() {
    let workspace = Workspace::new();
    let lists = ["mpi", "--servers=10.0.0.1:36000,[fd00::1]:36000", "--workers=10.0.0.1,10.0.0.2", "train.py"];
    let script = workspace.run(&lists).succeeded().stdout.clone();
    let hosts: Vec<&str> = script.split("-host ").skip(1).filter_map(|rest| rest.split(' ').next()).collect();
    assert_eq!(hosts, ["10.0.0.1", "fd00::1", "10.0.0.1", "10.0.0.2"]);
    workspace.write("mpi.sh", &script);
    assert!(Command::new("bash").arg("-n").arg(workspace.path("mpi.sh")).status().unwrap().success());
    assert!(!script.split_once("exec mpirun").unwrap().1.contains("SECRET"), "only by environment: {script}");
    let script = workspace.run(&["mpi", "--ips=10.0.0.1,10.0.0.2", "--nproc_per_node=2", "train.py"]);
    let script = script.succeeded().stdout.clone();
    let hosts: Vec<&str> = script.split("-host ").skip(1).filter_map(|rest| rest.split(' ').next()).collect();
    assert_eq!(hosts, ["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2"]);
    assert!(script.contains("OPENFLEET_WORKERS=10.0.0.1:6170,10.0.0.1:6171,10.0.0.2:6170,10.0.0.2:6171"), "{script}");
}

const KUBERNETES: [&str; 6] =
    ["k8s", "--server_num=2", "--worker_num=4", "--image=registry.example/train:1", "--namespace=ads", "--name=clicks"];

/// A virtual environment that stays in the target directory; `None`, with the reason printed, if it cannot be created.
fn python_with_validator() -> Option<PathBuf> {
    let environment = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kubernetes-validate");
    let python = environment.join("bin/python");
    let is_ready =
        || Command::new(&python).args(["-c", "import kubernetes_validate, yaml"]).output().is_ok_and(succeeded);
    if is_ready() {
        return Some(python);
    }
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "kubernetes-validate", "PyYAML"];
    let made = Command::new("python3").args(["-m", "venv"]).arg(&environment).output();
    let why = match made.and_then(|_| Command::new(&python).args(install).output()) {
        Ok(_) if is_ready() => return Some(python),
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    println!("skipped: kubernetes-validate cannot be installed: {why}");
    None
}

fn succeeded(output: Output) -> bool {
    output.status.success()
}

#[test]
fn kubernetes_manifests_are_valid() {
    let workspace = Workspace::new();
    for (file, option) in [("jobset.yaml", "--timeout=2h"), ("plain.yaml", "--plain-jobs")] {
        let printed = workspace.run(&[&KUBERNETES[..], &[option, "train.py", "--lr", "0.1", "$(NOT) ours"]].concat());
        workspace.write(file, &printed.succeeded().stdout.clone());
    }
    for (file, option) in [("ranks.yaml", "--timeout=2h"), ("plain-ranks.yaml", "--plain-jobs")] {
        let printed = workspace.run(&[&KUBERNETES_COLLECTIVE[..], &[option, "train.py"]].concat());
        workspace.write(file, &printed.succeeded().stdout.clone());
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fleetrun/validate_kubernetes.py");
    let Some(python) = python_with_validator() else { return };
    let mut command = Command::new(&python);
    command.current_dir(workspace.path(".")).arg(script);
    command.args(["jobset.yaml", "plain.yaml", "ranks.yaml", "plain-ranks.yaml"]);
    let ran = workspace.start_command(command).end();
    let shown = &ran.succeeded().stdout;
    assert_eq!(shown.lines().last(), Some("12 objects are valid"), "{shown}");
}

const KUBERNETES_COLLECTIVE: [&str; 5] =
    ["k8s", "--run_mode=collective", "--worker_num=2", "--image=registry.example/train:1", "--name=clicks"];

#[test]
fn kubernetes_replaces_all_pods_of_a_collective_job_together() {
    let workspace = Workspace::new();
    let print = |option| {
        let printed = workspace.run(&[&KUBERNETES_COLLECTIVE[..], &[option, "train.py"]].concat());
        printed.succeeded().stdout.clone()
    };
    let (manifest, plain) = (print("--max-restarts=5"), print("--plain-jobs"));
    assert!(manifest.starts_with("# 2 ranks of collective job clicks, for Kubernetes"), "{manifest}");
    for part in ["failurePolicy:\n    maxRestarts: 5\n", "backoffLimit: 0\n", "publishNotReadyAddresses: true"] {
        assert!(manifest.contains(part), "`{part}` in {manifest}");
    }
    let timed = print("--timeout=90");
    for part in ["activeDeadlineSeconds: 90", "action: FailJobSet", "- DeadlineExceeded"] {
        assert!(timed.contains(part), "`{part}` in {timed}");
    }
    for part in ["backoffLimitPerIndex: 3", "podReplacementPolicy: Failed", "clusterIP: None", "subdomain: clicks"] {
        assert!(plain.contains(part), "`{part}` in {plain}");
    }
    // What a role maker reads of it.
    for (manifest, first) in [(&manifest, "clicks-worker-0-0.clicks:36000"), (&plain, "clicks-worker-0.clicks:36000")] {
        assert!(!manifest.contains("server"), "{manifest}");
        let value = |name: &str| {
            let (_, after) = manifest.split_once(&format!("name: {name}\n")).unwrap();
            after.split_once("value: ").unwrap().1.lines().next().unwrap().trim_matches('"').to_owned()
        };
        let names = ["OPENFLEET_ROLE", "OPENFLEET_WORKERS", "OPENFLEET_WORKER_NUM", "PADDLE_TRAINER_ENDPOINTS"];
        let variables: Variables = names.into_iter().map(|name| (name, value(name))).collect();
        let variables = variables.with("OPENFLEET_RANK", "1");
        let found = role::choose(&variables).assign(&variables, &Settings::read(&variables).unwrap()).unwrap();
        assert_eq!(found.topology.to_string(), "worker 1 of 2 (collective)");
        assert_eq!(found.topology.worker_endpoints()[0].to_string(), first);
    }
}

#[test]
fn kubernetes_servers_have_names_that_stay_and_workers_decide() {
    let workspace = Workspace::new();
    let manifest = workspace.run(&[&KUBERNETES[..], &["train.py"]].concat()).succeeded().stdout.clone();
    for part in [
        "\"clicks-server-0-0.clicks:36000,clicks-server-0-1.clicks:36000\"",
        "value: \"clicks-server-0-$(OPENFLEET_RANK).clicks\"",
        "podReplacementPolicy: Failed",
        "successPolicy:\n    operator: All\n    targetReplicatedJobs:\n      - worker\n",
        "publishNotReadyAddresses: true",
    ] {
        assert!(manifest.contains(part), "`{part}` in {manifest}");
    }
    let plain = workspace.run(&[&KUBERNETES[..], &["--plain-jobs", "train.py"]].concat()).succeeded().stdout.clone();
    assert!(plain.contains("\"clicks-server-0.clicks:36000,clicks-server-1.clicks:36000\""), "{plain}");
    assert!(plain.contains("clusterIP: None") && plain.contains("subdomain: clicks"), "{plain}");
}

#[test]
fn what_a_scheduler_does_not_take_is_refused() {
    let rows = [
        ("k8s --image i --servers a:1 --workers a x.py", "`--servers` cannot be used with `fleetrun k8s`"),
        ("k8s --image i --nproc_per_node 2 x.py", "`--nproc-per-node` cannot be used with `fleetrun k8s`"),
        (
            "k8s --image i --run_mode collective --worker_num 2 --server_cpu 1 x.py",
            "`--server-cpu` cannot be used with a collective job",
        ),
        (
            "k8s --image i --run_mode collective --server_num 1 --worker_num 2 x.py",
            "`--run-mode collective` and `--server-num` contradict each other",
        ),
        (
            "slurm --run_mode collective --worker_num 2 --trainer_num 3 x.py",
            "`--worker-num` and `--trainer-num` contradict each other",
        ),
        (
            "slurm --run_mode collective --worker_num 9 --start_port 65530 x.py",
            "9 ports from 65530 on end beyond 65535",
        ),
        ("k8s --image i --name Clicks --server_num 1 --worker_num 1 x.py", "`--name`: expected at most 48 lower-case"),
        ("k8s --image i --worker_num 1 x.py", "`--worker-num` needs `--server-num`"),
        ("slurm --servers a:1 --workers a x.py", "`--servers` cannot be used with `fleetrun slurm`"),
        ("slurm --server_num 9 --worker_num 1 --start_port 65530 x.py", "9 ports from 65530 on end beyond 65535"),
        ("mpi --run_mode collective --worker_num 9 --start_port 65530 x.py", "9 ports from 65530 on end beyond 65535"),
        ("mpi --worker_num 2 --ips a,b x.py", "`--worker-num` and `--ips` contradict each other"),
        ("mpi --servers a:1,a:1 --workers a x.py", "endpoint `a:1` is listed twice"),
    ];
    let workspace = Workspace::new();
    for (options, expected) in rows {
        let ran = workspace.run(&options.split_whitespace().collect::<Vec<_>>());
        assert!(ran.failed(1).starts_with(&format!("error: {expected}")), "{options}: {}", ran.stderr);
    }
}
