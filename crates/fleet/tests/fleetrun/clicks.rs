//! Click data, and jobs of `openfleet train` on it.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::workspace::{Running, Workspace};

/// Batch size of one worker where the order of rows matters.
pub(crate) const BATCH: usize = 64;
/// A small network.
const SMALL: &str = "--model ctr_dnn --hidden 64,32 --dim 8 --threads 1 --quiet --json";

/// A directory with click data, and `job.sh` that trains on it with the options in `$options`.
pub(crate) struct Clicks {
    pub(crate) workspace: Workspace,
}

impl Clicks {
    /// The rows in one file, `all.txt`, and the same rows in `parts/0.txt` and `parts/1.txt`, batch by batch in turns, so that
    /// two workers on the parts see together what one process sees on the whole file.
    pub(crate) fn new(rows: usize) -> Self {
        let (openfleet, files) = (env!("CARGO_BIN_EXE_openfleet"), "--test 'clicks/test/*.txt'");
        let train = format!("exec {openfleet} train {SMALL} {files} $options");
        let workspace = Workspace::with_job(&format!("mark pid.$role.$rank $$; eval \"{train}\""));
        let rows = rows.to_string();
        let options = ["--rows", &rows, "--test-rows", "16000", "--ids", "500", "--parts", "1", "--auc", "0.9"];
        let mut generate = Command::new(openfleet);
        generate.args(["gen", "criteo"]).args(options).arg("--out").arg(workspace.path("clicks"));
        assert!(generate.stderr(Stdio::null()).stdout(Stdio::null()).status().unwrap().success());
        let directory = std::fs::read_dir(workspace.path("clicks/train")).unwrap().map(|entry| entry.unwrap().path());
        let text = directory.filter(|path| path.extension().is_some_and(|end| end == "txt"));
        let text: String = text.map(|path| std::fs::read_to_string(path).unwrap()).collect();
        let lines: Vec<&str> = text.lines().collect();
        let mut parts = [String::new(), String::new()];
        for (at, batch) in lines.chunks(BATCH).enumerate() {
            batch.iter().for_each(|line| parts[at % 2].extend([*line, "\n"]));
        }
        std::fs::create_dir(workspace.path("parts")).unwrap();
        workspace.write("all.txt", &text);
        workspace.write("parts/0.txt", &parts[0]);
        workspace.write("parts/1.txt", &parts[1]);
        Clicks { workspace }
    }

    /// One process on the whole file.
    pub(crate) fn alone(&self, batch: usize, options: &str) -> Value {
        self.alone_with(&format!("--train all.txt --batch {batch} {options}"))
    }

    /// One process with these options.
    pub(crate) fn alone_with(&self, options: &str) -> Value {
        let mut command = Command::new("sh");
        command.arg("job.sh").env("options", options);
        let output = command.current_dir(self.workspace.path("")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        last_json(&String::from_utf8_lossy(&output.stdout))
    }

    /// Runs `fleetrun` with these numbers of servers and workers.
    pub(crate) fn start(&self, servers: usize, workers: usize, options: &str) -> Running {
        let (servers, workers) = (format!("--server_num={servers}"), format!("--worker_num={workers}"));
        let mut command = self.workspace.command(&[&servers, &workers, "sh", "job.sh"]);
        command.env("options", format!("--train 'parts/*.txt' --batch {BATCH} {options}"));
        self.workspace.start_command(command)
    }

    pub(crate) fn job(&self, servers: usize, workers: usize, options: &str) -> Value {
        let ran = self.start(servers, workers, options).end();
        last_json(&ran.succeeded().stdout)
    }

    /// Runs `fleetrun` with as many ranks and no servers.
    pub(crate) fn start_ranks(&self, launcher: &[&str], options: &str) -> Running {
        let mut command = self.workspace.command(&[launcher, &["sh", "job.sh"]].concat());
        command.env("options", format!("--train 'parts/*.txt' --batch {BATCH} {options}"));
        self.workspace.start_command(command)
    }

    /// Whether two checkpoints have the same values.
    pub(crate) fn are_equal(&self, one: &str, other: &str) -> bool {
        let mut diff = Command::new(env!("CARGO_BIN_EXE_openfleet"));
        diff.args(["diff", one, other, "--json"]).current_dir(self.workspace.path(""));
        let difference: Value = serde_json::from_slice(&diff.output().unwrap().stdout).unwrap();
        let changed = |list: &str| difference[list].as_array().unwrap().iter().any(|one| one["changed"] != 0);
        !changed("tables") && !changed("parameters")
    }

    pub(crate) fn pids(&self, servers: usize, workers: usize) -> Vec<u32> {
        let servers = (0..servers).map(|rank| format!("pid.server.{rank}"));
        let names = servers.chain((0..workers).map(|rank| format!("pid.worker.{rank}")));
        names.map(|name| self.workspace.pid(&name)).collect()
    }
}

/// The JSON summary after the prefix of the process that printed it.
pub(crate) fn last_json(stdout: &str) -> Value {
    let line = stdout.lines().rev().find_map(|line| line.find('{').map(|at| &line[at..]));
    let line = line.unwrap_or_else(|| panic!("no summary in: {stdout}"));
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

pub(crate) fn number(summary: &Value, name: &str) -> f64 {
    summary[name].as_f64().unwrap_or_else(|| panic!("`{name}` is no number in {summary}"))
}
