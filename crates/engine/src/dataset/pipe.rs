//! A `pipe_command`: a child process between a file and the parser.
//!
//! The command runs in a shell with the file on its standard input. A thread feeds it, a thread collects the last lines of its
//! standard error, and the reader of the [`Pipe`] reads its output, all at the same time. The command succeeds only if it exits
//! with code 0, whatever it has written. [`StopSignal`] kills it early, with all processes that it started, because the command
//! has its own process group.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::Receiver;
use parking_lot::Mutex;

use super::error::{Error, Result};

/// How many lines of standard error an error quotes.
const STDERR_LINES: usize = 10;

/// How long to wait for the helper threads of a finished command. A process that it left behind can hold its pipes open forever.
const GRACE: Duration = Duration::from_secs(1);

/// A running command; reading it returns the command's output.
pub(crate) struct Pipe {
    command: String,
    file: PathBuf,
    child: Arc<Mutex<ShellProcess>>,
    stop: Arc<StopSignal>,
    output: ChildStdout,
    stderr_lines: Arc<Mutex<VecDeque<String>>>,
    /// The result of the thread that feeds the command.
    input_result: Receiver<std::io::Result<()>>,
    /// Closes when standard error was read to its end.
    stderr_closed: Receiver<()>,
}

impl Pipe {
    /// Starts `command` with `input`, the text of `file`, on its standard input.
    pub(crate) fn start(
        command: &str,
        file: &Path,
        input: Box<dyn Read + Send>,
        stop: &Arc<StopSignal>,
    ) -> Result<Self> {
        let cannot = |error| Error::io("start a pipe command on", file, error);
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(command).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut shell, 0);
        let mut child = shell.spawn().map_err(cannot)?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(output), Some(stderr)) = pipes else { unreachable!("all three pipes were requested") };

        let stderr_lines = Arc::new(Mutex::new(VecDeque::new()));
        let (input_result_sender, input_result) = crossbeam_channel::bounded(1);
        let (stderr_closed_sender, stderr_closed) = crossbeam_channel::bounded(0);
        let child = Arc::new(Mutex::new(ShellProcess { child, status: None }));
        // Registered before the threads start: if one fails to start, dropping the pipe kills the command.
        stop.add(&child);
        let words = stderr_lines.clone();
        let pipe = Pipe {
            command: command.to_owned(),
            file: file.to_owned(),
            child,
            stop: stop.clone(),
            output,
            stderr_lines,
            input_result,
            stderr_closed,
        };
        spawn("pipe-input", move || drop(input_result_sender.send(feed(input, stdin)))).map_err(cannot)?;
        spawn("pipe-errors", move || {
            collect_stderr(stderr, &words);
            drop(stderr_closed_sender);
        })
        .map_err(cannot)?;
        Ok(pipe)
    }

    /// Call at the end of the output: waits for the command and fails unless it succeeded.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let status = self.wait()?;
        if self.stop.is_requested() {
            return Ok(());
        }
        if !status.success() {
            let _ = self.stderr_closed.recv_timeout(GRACE);
            return Err(Error::PipeFailed {
                command: self.command.clone(),
                file: self.file.clone(),
                status: describe(status),
                stderr: self.stderr_lines.lock().iter().cloned().collect(),
            });
        }
        match self.input_result.recv_timeout(GRACE) {
            Ok(Err(error)) => Err(Error::io("read", &self.file, error)),
            Ok(Ok(())) | Err(_) => Ok(()),
        }
    }

    /// Polls instead of blocking, because [`StopSignal`] needs the child's lock.
    fn wait(&self) -> Result<ExitStatus> {
        let mut pause = Duration::from_micros(100);
        loop {
            match self.child.lock().try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) => {}
                Err(error) => return Err(Error::io("wait for the pipe command on", &self.file, error)),
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.output.read(buffer)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.stop.remove(&self.child);
        self.child.lock().kill();
        // Reaps it; otherwise it would stay a zombie until this process exits.
        let _ = self.wait();
    }
}

/// Ends a pass early: reader threads poll it, and it kills commands. All readers of a pass share one.
#[derive(Default)]
pub(crate) struct StopSignal {
    requested: AtomicBool,
    children: Mutex<Vec<Arc<Mutex<ShellProcess>>>>,
}

impl StopSignal {
    pub(crate) fn request(&self) {
        self.requested.store(true, Ordering::SeqCst);
        // Holds the lock of the list: a child that is added later sees `requested`.
        for child in self.children.lock().iter() {
            child.lock().kill();
        }
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    fn add(&self, child: &Arc<Mutex<ShellProcess>>) {
        let mut children = self.children.lock();
        children.push(child.clone());
        if self.requested.load(Ordering::SeqCst) {
            child.lock().kill();
        }
    }

    fn remove(&self, child: &Arc<Mutex<ShellProcess>>) {
        self.children.lock().retain(|known| !Arc::ptr_eq(known, child));
    }
}

/// The shell of a command, and its exit status once it is known.
struct ShellProcess {
    child: Child,
    status: Option<ExitStatus>,
}

impl ShellProcess {
    /// Reaps the shell if it has ended.
    fn try_wait(&mut self) -> std::io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status)
    }

    /// Kills the command and all processes that it started. Until the shell is reaped its process id cannot be reused, even if it
    /// has exited and only background processes are left; afterwards the id may belong to another process.
    fn kill(&mut self) {
        if self.status.is_some() {
            return;
        }
        #[cfg(unix)]
        {
            let group = rustix::process::Pid::from_child(&self.child);
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        #[cfg(not(unix))]
        let _ = self.child.kill();
    }
}

/// Writes the command's input. A command may stop reading early (`head -n 10`); a file that cannot be read is an error.
fn feed(mut input: Box<dyn Read + Send>, mut stdin: ChildStdin) -> std::io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = match input.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if stdin.write_all(&buffer[..length]).is_err() {
            return Ok(());
        }
    }
}

fn collect_stderr(stderr: ChildStderr, stderr_lines: &Mutex<VecDeque<String>>) {
    let mut stderr = BufReader::new(stderr);
    let mut line = Vec::new();
    // A line without an end is cut, so that no command can fill our memory.
    while matches!(stderr.by_ref().take(4096).read_until(b'\n', &mut line), Ok(length) if length > 0) {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        line.clear();
        let mut words = stderr_lines.lock();
        if words.len() == STDERR_LINES {
            words.pop_front();
        }
        words.push_back(text);
    }
}

fn describe(status: ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return format!("signal {signal}");
    }
    status.code().map_or_else(|| status.to_string(), |code| format!("exit code {code}"))
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(command: &str, input: &'static [u8]) -> (String, Result<()>) {
        let mut pipe = Pipe::start(command, Path::new("file"), Box::new(input), &Arc::default()).unwrap();
        let mut output = String::new();
        pipe.read_to_string(&mut output).unwrap();
        (output, pipe.finish())
    }

    #[test]
    fn the_command_reads_the_file_and_its_output_is_read() {
        let (output, result) = run("tr a-z A-Z", b"abc\n");
        assert_eq!(output, "ABC\n");
        result.unwrap();
    }

    #[test]
    fn a_failed_command_is_an_error_even_if_it_wrote_output() {
        let (output, result) = run("cat; echo one >&2; echo two >&2; exit 3", b"abc\n");
        assert_eq!(output, "abc\n");
        assert_eq!(
            result.unwrap_err().to_string(),
            "`cat; echo one >&2; echo two >&2; exit 3` on `file` ended with exit code 3; last lines of stderr:\n  one\n  two"
        );
    }

    #[test]
    fn a_signal_is_reported_differently_from_an_exit_code() {
        let (_, result) = run("kill -9 $$", b"");
        assert_eq!(result.unwrap_err().to_string(), "`kill -9 $$` on `file` ended with signal 9");
    }

    #[test]
    fn only_the_last_lines_of_standard_error_are_kept() {
        let (_, result) = run("seq 100 >&2; exit 1", b"");
        let Err(Error::PipeFailed { stderr, .. }) = result else { panic!("{result:?}") };
        assert_eq!(stderr, (91..=100).map(|line| line.to_string()).collect::<Vec<_>>());
    }

    #[test]
    fn a_command_may_stop_reading_early() {
        static LONG: [u8; 1 << 20] = [b'\n'; 1 << 20];
        let (output, result) = run("head -n 2", &LONG);
        assert_eq!(output, "\n\n");
        result.unwrap();
    }

    #[test]
    fn an_unreadable_file_is_an_error_even_if_the_command_succeeds() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::InvalidData.into())
            }
        }
        let mut pipe = Pipe::start("cat", Path::new("file"), Box::new(Broken), &Arc::default()).unwrap();
        pipe.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(pipe.finish().unwrap_err().to_string(), "cannot read `file`");
    }

    #[test]
    fn requesting_a_stop_kills_the_command_and_its_children() {
        let stop = Arc::<StopSignal>::default();
        let mut pipe = Pipe::start("sleep 600 | sleep 600", Path::new("file"), Box::new(&b""[..]), &stop).unwrap();
        stop.request();
        // Would block for ten minutes if a child still held the output open.
        assert_eq!(pipe.read_to_end(&mut Vec::new()).unwrap(), 0);
        pipe.finish().unwrap();
    }

    #[test]
    fn a_background_process_that_outlives_its_shell_is_killed_too() {
        let stop = Arc::<StopSignal>::default();
        let mut pipe = Pipe::start("sleep 600 & echo gone", Path::new("file"), Box::new(&b""[..]), &stop).unwrap();
        pipe.read_exact(&mut [0; 5]).unwrap();
        stop.request();
        assert_eq!(pipe.read_to_end(&mut Vec::new()).unwrap(), 0);
    }

    #[test]
    fn a_command_started_after_the_stop_is_killed_at_once() {
        let stop = Arc::<StopSignal>::default();
        stop.request();
        let mut pipe = Pipe::start("sleep 600", Path::new("file"), Box::new(&b""[..]), &stop).unwrap();
        assert_eq!(pipe.read_to_end(&mut Vec::new()).unwrap(), 0);
    }
}
