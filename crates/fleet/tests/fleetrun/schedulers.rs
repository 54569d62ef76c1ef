//! `fleetrun k8s`, `slurm` and `mpi`: what they print is valid, and runs where that is possible here.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::workspace::Workspace;

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
    let options = ["slurm", "--server_num=2", "--worker_num=2", "--start_port=7600", "--cpu=2", "--time=01:00:00"];
    let printed = workspace.run(&[&options[..], &["sh", "job.sh", "two words"]].concat());
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

#[test]
fn an_mpi_script_starts_servers_first() {
    let workspace = Workspace::with_job(JOB);
    let options = ["mpi", "--server_num=2", "--worker_num=2", "--start_port=7600", "sh", "job.sh", "two words"];
    workspace.write("mpi.sh", &workspace.run(&options).succeeded().stdout.clone());
    let checked = Command::new("bash").arg("-n").arg(workspace.path("mpi.sh")).status().unwrap();
    assert!(checked.success());
    if Command::new("mpirun").arg("--version").output().is_err() {
        println!("skipped: there is no `mpirun` to run the script with (openmpi-bin)");
        return;
    }
    let mut command = Command::new("bash");
    command.current_dir(workspace.path(".")).arg("mpi.sh").env_remove("PADDLE_TRAINER_ID");
    command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    workspace.start_command(command).end().succeeded();
    check_what_was_said(&workspace);
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
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fleetrun/validate_kubernetes.py");
    let Some(python) = python_with_validator() else { return };
    let mut command = Command::new(&python);
    command.current_dir(workspace.path(".")).args([script, "jobset.yaml", "plain.yaml"]);
    let ran = workspace.start_command(command).end();
    let shown = &ran.succeeded().stdout;
    assert_eq!(shown.lines().last(), Some("7 objects are valid"), "{shown}");
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
        ("k8s --image i --name Clicks --server_num 1 --worker_num 1 x.py", "`--name`: expected at most 48 lower-case"),
        ("k8s --image i --worker_num 1 x.py", "`--worker-num` needs `--server-num`"),
        ("slurm --servers a:1 --workers a x.py", "`--servers` cannot be used with `fleetrun slurm`"),
        ("slurm --server_num 9 --worker_num 1 --start_port 65530 x.py", "9 ports from 65530 on end beyond 65535"),
        ("mpi --nproc_per_node 2 x.py", "`--nproc-per-node` cannot be used with `fleetrun mpi`"),
        ("mpi --servers a:1,a:1 --workers a x.py", "endpoint `a:1` is listed twice"),
    ];
    let workspace = Workspace::new();
    for (options, expected) in rows {
        let ran = workspace.run(&options.split_whitespace().collect::<Vec<_>>());
        assert!(ran.failed(1).starts_with(&format!("error: {expected}")), "{options}: {}", ran.stderr);
    }
}
