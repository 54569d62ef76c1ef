//! The command line: what is passed on, what is parsed, and the errors for the rest.

use std::os::unix::ffi::OsStrExt;

use crate::workspace::Workspace;

#[test]
fn everything_after_the_script_is_passed_on_untouched() {
    let workspace = Workspace::with_job(
        "[ $role = worker ] && for word in \"$@\"; do printf '<%s>' \"$word\"; done > words; exit 0",
    );
    // Options of `fleetrun`, the end-of-options mark, an empty word, blanks, shell expansions, a line end.
    let words = ["--server_num", "7", "--", "-m", "", "two words", "$HOME", "*", "a\nb", "--help", "-h", "--", "é"];
    let arguments = [["--server_num=1", "--worker_num=1", "sh", "job.sh"].as_slice(), &words].concat();
    let mut command = workspace.command(&arguments);
    command.arg(std::ffi::OsStr::from_bytes(b"\xff"));
    workspace.start_command(command).end().succeeded();
    let expected: String = words.iter().map(|word| format!("<{word}>")).collect();
    let got = std::fs::read(workspace.path("words")).unwrap();
    assert_eq!(got, [expected.as_bytes(), b"<\xff>"].concat());
}

#[test]
fn hyphens_underscores_equals_signs_and_old_names_all_do() {
    let workspace = Workspace::with_job("echo $OPENFLEET_WORKER_NUM");
    for options in [
        "--server_num=1 --worker_num=2",
        "--server-num 1 --worker-num 2",
        "--server_num 1 --trainer_num 2",
        "--run_mode ps --server-num=1 --trainer-num=2 --worker_num=2",
    ] {
        let ran = workspace.job(options);
        assert_eq!(ran.succeeded().sorted(), ["[server 0] 2", "[worker 0] 2", "[worker 1] 2"], "{options}");
    }
}

#[test]
fn scripts_modules_and_programs_are_run() {
    let workspace = Workspace::new();
    workspace.write("train.py", "import sys; print('script', sys.argv[1:])\n");
    workspace.write("steps.py", "import sys; print('module', __name__, sys.argv[1:])\n");
    let one = |rest: &[&str]| {
        let ran = workspace.run(&[&["--nproc_per_node=1"], rest].concat());
        ran.succeeded().stdout.clone()
    };
    assert_eq!(one(&["train.py", "-m", "1"]), "[worker 0] script ['-m', '1']\n");
    assert_eq!(one(&["-m", "steps", "--lr", "1"]), "[worker 0] module __main__ ['--lr', '1']\n");
    assert_eq!(one(&["echo", "program"]), "[worker 0] program\n");
    // The `openfleet` of this build, although none is on the PATH.
    assert!(one(&["openfleet", "--version"]).starts_with("[worker 0] openfleet "));
    assert_eq!(one(&["--python", "/bin/echo", "train.py", "x"]), "[worker 0] train.py x\n");
    assert_eq!(one(&["--python", "/bin/echo", "--compat", "train.py"]), "[worker 0] -m openfleet.compat train.py\n");
}

#[test]
fn python_prints_at_once() {
    let workspace = Workspace::new();
    // The script is killed without flushing: an unbuffered line is still printed.
    workspace.write("train.py", "import os, signal; print('said'); os.kill(os.getpid(), signal.SIGKILL)\n");
    let ran = workspace.run(&["--nproc_per_node=1", "train.py"]);
    assert!(ran.failed(137).ends_with("`log/workerlog.0`:\nsaid\n"), "{}", ran.stderr);
}

/// Options, and the beginning of the error message.
const REFUSED: &[(&str, &str)] = &[
    // No job at all.
    (
        "x.py",
        "a job needs `--server-num`\n\nhint: give the numbers of processes, as in `--server-num 2 --worker-num 2`",
    ),
    ("--run_mode ps x.py", "a job needs `--server-num`"),
    // Half of a job.
    ("--server_num 2 x.py", "`--server-num` needs `--worker-num`\n\nhint: give the numbers, as in"),
    ("--worker_num 2 x.py", "`--worker-num` needs `--server-num`"),
    ("--trainer_num 2 x.py", "`--trainer-num` needs `--server-num`"),
    ("--servers a:1 x.py", "`--servers` needs `--workers`\n\nhint: list the workers too, as in"),
    ("--workers a x.py", "`--workers` needs `--servers`\n\nhint: list the servers too, as in"),
    ("--servers a:1 --worker_num 2 x.py", "`--servers` needs `--workers`"),
    // Two kinds of job at once.
    (
        "--server_num 2 --nproc_per_node 2 x.py",
        "`--server-num` and `--nproc-per-node` contradict each other\n\nhint: a job has servers",
    ),
    ("--worker_num 2 --ips a,b x.py", "`--worker-num` and `--ips` contradict each other"),
    ("--servers a:1 --workers a --nproc_per_node 1 x.py", "`--servers` and `--nproc-per-node` contradict each other"),
    (
        "--run_mode collective --server_num 1 --worker_num 1 x.py",
        "`--run-mode collective` and `--server-num` contradict each other",
    ),
    ("--run_mode ps --nproc_per_node 1 x.py", "`--run-mode ps` and `--nproc-per-node` contradict each other"),
    // Two numbers for the same thing.
    ("--server_num 1 --worker_num 2 --trainer_num 3 x.py", "`--worker-num` and `--trainer-num` contradict each other"),
    (
        "--server_num 2 --servers a:1 --workers a x.py",
        "`--server-num` and `--servers` contradict each other\n\nhint: the list already gives the number",
    ),
    ("--worker_num 2 --servers a:1 --workers a x.py", "`--worker-num` and `--workers` contradict each other"),
    ("--trainer_num 2 --servers a:1 --workers a x.py", "`--trainer-num` and `--workers` contradict each other"),
    // Options that cannot be used here.
    // Several machines of a job with servers, which launchers that do not talk to each other cannot find.
    (
        "--server_num 1 --worker_num 1 --nnodes 2 --master a:1 x.py",
        "`--server-num` and `--nnodes` contradict each other\n\nhint: list the processes of a job with servers on several \
         machines, the same on each: `--servers IP:PORT,...` and `--workers IP,...`",
    ),
    ("--nnodes 2:3 --master etcd://a:1 x.py", "`--master`: expected the address of the first machine"),
    (
        "--servers a:1 --workers a:2 --start_port 9 x.py",
        "`--start-port` cannot be used with lists in which every port is written",
    ),
    ("--server_num 1 --worker_num 1 --python python3 sh", "`--python` cannot be used with the program `sh`"),
    (
        "--server_num 1 --worker_num 1 --compat sh",
        "`--compat` cannot be used with the program `sh`\n\nhint: leave `--compat` out; it is for Python scripts and modules",
    ),
    ("--server_num 1 --worker_num 1 -m x.py", "`-m`: expected the name of a module, as in `package.train`, got `x.py`"),
    // Malformed lists.
    ("--servers a --workers a x.py", "`a` is not an endpoint: the port is missing\n\nhint: write `host:port`"),
    (
        "--servers a:1,,b:1 --workers a x.py",
        "`--servers`: expected addresses with a comma between any two, got `a:1,,b:1`",
    ),
    (
        "--servers 127.0.0.1:7400 --workers 127.0.0.1:x x.py",
        "`127.0.0.1:x` is not an endpoint: the port is a number from 1 to 65535",
    ),
    (
        "--servers 127.0.0.1:7400,127.0.0.1:7400 --workers 127.0.0.1 --dry-run x.py",
        "endpoint `127.0.0.1:7400` is listed twice\n\nhint: give every process",
    ),
    ("--servers 127.0.0.1:7400 --workers 127.0.0.1:7400 --dry-run x.py", "endpoint `127.0.0.1:7400` is listed twice"),
    ("--ips 127.0.0.1:80 x.py", "`--ips`: expected addresses without ports, got `127.0.0.1:80`"),
    ("--ips 127.0.0.1,127.0.0.1 x.py", "`--ips`: expected every machine once, got `127.0.0.1`"),
    // Malformed numbers.
    (
        "--server_num 1 --worker_num 1 --start_port 65535 x.py",
        "2 ports from 65535 on end beyond 65535\n\nhint: choose a lower `--start-port`",
    ),
    ("--server_num 1 --worker_num 1 --job a/b x.py", "`a/b` cannot name a job"),
    // Scripts and programs that do not exist.
    ("--server_num 1 --worker_num 1 none.py", "script `none.py` does not exist\n\nhint: check the path"),
    (
        "--server_num 1 --worker_num 1 no-such-program",
        "program `no-such-program` was not found beside `fleetrun` or on the PATH\n\nhint: check the spelling",
    ),
    ("--server_num 1 --worker_num 1 ./x.sh", "program `./x.sh` was not found at this path"),
    (
        "--server_num 1 --worker_num 1 ./x.py.txt",
        "program `./x.py.txt` was not found as something that may be executed",
    ),
    ("--server_num 1 --worker_num 1 --python nopython x.py", "program `nopython` was not found"),
    ("--server_num 1 --worker_num 1 --secret-file none x.py", "cannot read the secret `none`\n  because: "),
];

#[test]
fn what_cannot_be_is_refused_before_anything_is_started() {
    let workspace = Workspace::new();
    workspace.write("x.py", "open('started', 'w')\n");
    workspace.write("x.py.txt", "");
    for (options, expected) in REFUSED {
        let ran = workspace.run(&options.split_whitespace().collect::<Vec<_>>());
        let stderr = ran.failed(1);
        assert!(stderr.starts_with(&format!("error: {expected}")), "{options}: {stderr}");
    }
    assert!(!workspace.path("started").exists());
}

#[test]
fn unknown_flags_and_values_are_refused_with_the_nearest() {
    let workspace = Workspace::new();
    let rows = [
        ("--sever_num 2 x.py", "unexpected argument '--sever_num' found", "a similar argument exists: '--server_num'"),
        ("--server_num two --worker_num 1 x.py", "invalid value 'two' for '--server-num <N>'", ""),
        ("--server_num 0 --worker_num 1 x.py", "invalid value '0' for '--server-num <N>': 0 is not in 1..=4096", ""),
        ("--run_mode gpu x.py", "invalid value 'gpu' for '--run-mode <KIND>'", "ps, collective"),
        ("--server_num 1 --worker_num 1 --timeout soon x.py", "expected a time above 0, as in `90`", ""),
        ("--server_num 1 --worker_num 1 --max-restarts -2 x.py", "invalid value '-2' for '--max-restarts <N>'", ""),
        ("--server_num 1 --worker_num 1", "required arguments were not provided", "<SCRIPT>"),
        ("k8s --server_num 1 --worker_num 1 x.py", "required arguments were not provided", "--image"),
    ];
    for (options, expected, also) in rows {
        let ran = workspace.run(&options.split_whitespace().collect::<Vec<_>>());
        let stderr = ran.failed(2);
        assert!(stderr.contains(expected) && stderr.contains(also), "{options}: {stderr}");
    }
}

#[test]
fn a_program_in_the_working_directory_is_pointed_at() {
    let workspace = Workspace::new();
    workspace.program("train", "#!/bin/sh\n");
    let ran = workspace.run(&["--server_num=1", "--worker_num=1", "train"]);
    let hint = "hint: there is one in the working directory: write `./train`\n";
    assert!(ran.failed(1).ends_with(hint), "{}", ran.stderr);
}

#[test]
fn a_program_that_the_system_does_not_run_ends_the_job_with_a_hint() {
    let workspace = Workspace::new();
    workspace.program("train", "#!/no/such/interpreter\n");
    let ran = workspace.run(&["--server_num=1", "--worker_num=1", "./train"]);
    let stderr = ran.failed(1);
    let expected = "error: server 0 could not be started: `./train`\n  because: No such file or directory (os error 2)\n\n\
                    hint: the file is there, but the interpreter that its first line names may not be\n";
    assert!(stderr.ends_with(expected), "{stderr}");
}

/// Options of PaddlePaddle's launchers with values, each with a part of the one line that says why it has no effect.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("--legacy True", "`--legacy` has no effect: there is only one launcher"),
    ("--sort_ip true", "`--sort-ip` has no effect: machines are numbered by"),
    ("--enable_gpu_log False", "`--enable-gpu-log` has no effect: nothing here computes on a GPU"),
    ("--backend gloo", "`--backend` has no effect: ranks exchange gradients over TCP"),
    ("--with_gloo 1", "`--with-gloo` has no effect: Gloo is not used"),
    ("--gloo_port 6767", "`--gloo-port` has no effect: Gloo is not used"),
    ("--http_port=6767", "`--http-port` has no effect: Gloo is not used"),
    ("--auto_parallel_config a.json", "`--auto-parallel-config` has no effect: programs are not split"),
    ("--auto_tuner_json a.json", "`--auto-tuner-json` has no effect: jobs are not tuned"),
    ("--cluster_topo_path a.json", "`--cluster-topo-path` has no effect"),
    ("--rank_mapping_path a.json", "`--rank-mapping-path` has no effect"),
    ("--enable_auto_mapping True", "`--enable-auto-mapping` has no effect"),
    ("--heter_workers a:1;b:1", "`--heter-workers` has no effect: every worker computes the whole program"),
    ("--heter_worker_num 1;2", "`--heter-worker-num` has no effect: every worker computes the whole program"),
    ("--heter_devices cpu;gpu", "`--heter-devices` has no effect: every worker computes the whole program"),
    ("--coordinators a:1", "`--coordinators` has no effect: there is no federated training"),
    ("--coordinator_num 1", "`--coordinator-num` has no effect: there is no federated training"),
    ("--elastic_server a:1", "`--elastic-server` has no effect: the number of machines is fixed"),
    ("--elastic_timeout 30", "`--elastic-timeout` has no effect: the number of machines is fixed"),
    ("--elastic_pre_hook true", "`--elastic-pre-hook` has no effect: the number of machines is fixed"),
    ("--np 2", "`--np` has no effect: the number of machines is fixed"),
    ("--scale 1", "`--scale` has no effect: the number of machines is fixed"),
    ("--force True", "`--force` has no effect: the number of machines is fixed"),
    // Options that have an effect in other jobs.
    ("--elastic_level 0", "`--elastic-level 0` has no effect: machines do not join a running job"),
    ("--elastic_level=-1 --max_restart 3", "`--max-restarts` has no effect: `--elastic-level -1` ends the job"),
    ("--host 10.0.0.1", "`--host` has no effect: all processes of a job on one machine talk over 127.0.0.1"),
    ("--master 127.0.0.1:6170", "`--master` has no effect: the machines of a job with servers are those of"),
    ("--nnodes 1", "`--nnodes` has no effect: the machines of a job with servers are those of"),
    ("--rank -1", "`--rank` has no effect: the machines of a job with servers are those of"),
    ("--ips 127.0.0.1", "`--ips` has no effect: the machines of a job with servers are those of"),
];

#[test]
fn options_of_paddlepaddle_without_effect_are_accepted_with_one_line_each() {
    let workspace = Workspace::with_job("exit 0");
    let server_job = "--server_num 1 --trainer_num 1 --run_mode ps --dry-run";
    let expected_alone = workspace.job(server_job).succeeded().stderr.clone();
    assert_eq!(expected_alone, "");
    for (options, line) in WITHOUT_EFFECT {
        let ran = workspace.job(&format!("{options} {server_job}"));
        let stderr = &ran.succeeded().stderr;
        assert!(stderr.starts_with(line) && stderr.lines().count() == 1, "{options}: {stderr}");
    }
    // Also before other kinds of jobs, and really started.
    let ran = workspace.job("--with_gloo 1 --gloo_port 6767 --http_port 1 --nproc_per_node 1");
    let stderr = &ran.succeeded().stderr;
    assert_eq!(stderr.matches("has no effect").count(), 3, "{stderr}");
}

#[test]
fn options_of_paddlepaddle_with_a_meaning_are_honoured() {
    let workspace = Workspace::with_job("echo $OPENFLEET_LOG; exit 0");
    let dry = |options: &str| workspace.job(&format!("{options} --dry-run")).succeeded().stdout.clone();
    for devices in ["--devices 0,1", "--gpus=0,1", "--npus 0,1", "--xpus 0,1", "--selected_gpus 0,1"] {
        assert!(dry(devices).contains(": 2 workers, collective;"), "{devices}");
    }
    // With servers, devices say where workers compute.
    assert!(
        dry("--gpus 0 --server_num 1 --worker_num 2")
            .contains(": 1 server and 2 workers; logs in `log`; there is no GPU")
    );
    assert!(dry("--run_mode ps-heter --server_num 1 --worker_num 1").contains(": 1 server and 1 worker;"));
    // A machine that is one of several, by number or by -1 for `find it`.
    assert!(
        dry("--master 127.0.0.1:6170 --nnodes 1 --rank -1 --nproc_per_node 2").contains(": 2 workers, collective;")
    );
    let ran = workspace.job("--master 127.0.0.1:6170 --nnodes 1:3 --nproc_per_node 2 --dry-run");
    assert!(ran.succeeded().stdout.contains(": 2 workers, collective;"));
    assert_eq!(ran.stderr.lines().count(), 1);
    assert!(ran.stderr.starts_with("the job has 1 machine, the first number of `--nnodes`"), "{}", ran.stderr);
    // The log level reaches every process.
    let ran = workspace.job("--log_level WARNING --job_id default --nproc_per_node 1");
    assert_eq!(ran.succeeded().stdout, "[worker 0] warn\n");
    // Logs are replaced, or added to.
    workspace.job("--log_level debug --log_overwrite False --nproc_per_node 1").succeeded();
    assert_eq!(workspace.read("log/workerlog.0"), "warn\ndebug\n");
    workspace.job("--log_level info --log_overwrite True --nproc_per_node 1").succeeded();
    assert_eq!(workspace.read("log/workerlog.0"), "info\n");
}

#[test]
fn elastic_level_1_restarts_processes_and_minus_1_does_not() {
    let workspace = Workspace::with_job("[ $OPENFLEET_INCARNATION -lt 3 ] && exit 3; exit 0");
    let job = "--nproc_per_node 1";
    workspace.job(&format!("--elastic_level 1 {job}")).succeeded();
    workspace.job(&format!("--elastic_level 1 --max_restart 1 {job}")).failed(3);
    workspace.job(&format!("--elastic_level -1 {job}")).failed(3);
    workspace.job(&format!("--elastic_level=-1 --max_restart 3 {job}")).failed(3);
}

#[test]
fn unknown_options_are_refused_with_a_similar_name() {
    let ran = Workspace::new().run(&["--server_nums=1", "--worker_num=1", "x.py"]);
    let stderr = ran.failed(2);
    assert!(stderr.contains("unexpected argument '--server_nums' found"), "{stderr}");
    assert!(stderr.contains("a similar argument exists"), "{stderr}");
}
