//! A directory with scripts, and `fleetrun` run there, always with a time limit.

use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// Far longer than any test takes.
const LIMIT: Duration = Duration::from_secs(90);

/// A directory that is removed with the test.
pub(crate) struct Workspace {
    directory: tempfile::TempDir,
}

impl Workspace {
    pub(crate) fn new() -> Self {
        Workspace { directory: tempfile::tempdir().unwrap() }
    }

    /// With a shell script `job.sh`. It has `$role` and `$rank`, and `mark NAME TEXT` to write a file.
    pub(crate) fn with_job(script: &str) -> Self {
        let workspace = Workspace::new();
        let head = "role=$OPENFLEET_ROLE rank=$OPENFLEET_RANK\n\
                    mark() { printf '%s\\n' \"$2\" > \"$1.new\" && mv \"$1.new\" \"$1\"; }\n";
        workspace.write("job.sh", &format!("{head}{script}\n"));
        workspace
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// Writes an executable file. Another process writes it: a child that another test has just forked could still hold a file
    /// of this process open for writing, and the system would refuse to run it.
    pub(crate) fn program(&self, name: &str, text: &str) {
        let write = "printf %s \"$2\" > \"$1\" && chmod +x \"$1\"";
        let mut command = Command::new("sh");
        command.args(["-c", write, "sh"]).arg(self.path(name)).arg(text);
        assert!(command.status().unwrap().success());
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("`{name}`: {error}"))
    }

    /// `fleetrun` with these arguments, not yet started, in an environment without role variables.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        // These tests may run as a background job of a script, which ignores interrupts.
        let mut command = Command::new("env");
        command.arg("--default-signal=INT,HUP,QUIT").arg(env!("CARGO_BIN_EXE_fleetrun"));
        command.current_dir(self.directory.path()).args(arguments).stdin(Stdio::null());
        for name in ["OPENFLEET_SECRET", "PYTHONUNBUFFERED", "OMP_NUM_THREADS", "NO_COLOR"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs `fleetrun` to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        self.start(arguments).end()
    }

    /// Runs `fleetrun OPTIONS sh job.sh` to its end.
    pub(crate) fn job(&self, options: &str) -> Ran {
        self.start_job(options).end()
    }

    /// Starts `fleetrun OPTIONS sh job.sh`.
    pub(crate) fn start_job(&self, options: &str) -> Running {
        let arguments: Vec<&str> = options.split_whitespace().chain(["sh", "job.sh"]).collect();
        self.start(&arguments)
    }

    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        self.start_command(self.command(arguments))
    }

    pub(crate) fn start_command(&self, mut command: Command) -> Running {
        // Files, not pipes: a process that was left behind could hold a pipe open.
        let number = std::fs::read_dir(self.directory.path()).unwrap().count();
        let output = |name: &str| self.path(&format!("{name}.{number}.txt"));
        let (stdout, stderr) = (output("stdout"), output("stderr"));
        command.stdout(File::create(&stdout).unwrap()).stderr(File::create(&stderr).unwrap());
        Running { child: command.spawn().unwrap(), stdout, stderr }
    }

    /// The process id that a script has written to a file, once it has.
    pub(crate) fn pid(&self, name: &str) -> u32 {
        eventually(&format!("`{name}` appears"), || self.path(name).exists());
        self.read(name).trim().parse().unwrap()
    }
}

/// A running `fleetrun`, killed when the test ends.
pub(crate) struct Running {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, such as `-INT`.
    pub(crate) fn signal(&self, signal: &str) {
        signal_to(self.pid(), signal);
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Ran {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(began.elapsed() < LIMIT, "fleetrun does not end: {}", self.stderr());
            std::thread::sleep(Duration::from_millis(10));
        };
        Ran { status, stdout: self.stdout(), stderr: self.stderr() }
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.stdout).unwrap()).into_owned()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.stderr).unwrap()).into_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its guard ends the other processes.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The result of a run.
pub(crate) struct Ran {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub(crate) fn succeeded(&self) -> &Self {
        assert!(self.status.success(), "{:?}\n{}\n{}", self.status, self.stdout, self.stderr);
        self
    }

    /// Standard error of a run that ended with this exit code.
    pub(crate) fn failed(&self, code: i32) -> &str {
        assert_eq!(self.status.code(), Some(code), "{}\n{}", self.stdout, self.stderr);
        &self.stderr
    }

    /// The lines of standard output, sorted, because their order depends on timing.
    pub(crate) fn sorted(&self) -> Vec<&str> {
        let mut lines: Vec<&str> = self.stdout.lines().collect();
        lines.sort_unstable();
        lines
    }
}

/// The first of several adjacent ports that are free on the addresses used as hosts. Other tests, and other runs on this
/// machine, get other ports.
pub(crate) fn free_ports(count: u16) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let own = (std::process::id() % 1000) as u16 * 10;
    loop {
        let first = 11_000 + (own + NEXT.fetch_add(count, Ordering::Relaxed)) % 20_000;
        let is_free = |port| ["127.0.0.1", "127.0.0.2"].iter().all(|host| TcpListener::bind((*host, port)).is_ok());
        if (first..first + count).all(is_free) {
            return first;
        }
    }
}

/// Waits until a condition holds.
pub(crate) fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LIMIT, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn signal_to(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, "--", &pid.to_string()]).status().unwrap().success());
}

/// Whether a process exists and is not a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state comes after the name, which is in parentheses and may contain any characters.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !"ZX".contains(state))
}

/// Waits until all of them have ended.
pub(crate) fn all_end(pids: &[u32]) {
    for pid in pids {
        eventually(&format!("process {pid} ends"), || !is_alive(*pid));
    }
}
