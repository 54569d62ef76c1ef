//! One process of an [`ExternalJob`](super::ExternalJob), on the machine where it runs: started with its files, read and signalled.
//!
//! It is started like a process of `fleetrun`: in its own process group, and with a [guard](super::guard) that ends the group if
//! this program is killed. The parent-death signal follows the thread that started the process, so a thread waits for as long as
//! this value lives.

use std::io::{PipeReader, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use openfleet_core::topology::Role;

use super::error::Error;
use super::guard::Guard;
use super::logs::Lines;
use super::options::CommandWords;
use super::plan::forget_progress;
use super::process::{Ending, LEFT_BEHIND, Process};
use super::program::Program;
use crate::error::Result;
use crate::job_file::JobFile;
use crate::variables::{JOB_FILE, PROGRESS_FILE};

/// Lines that are kept until they are asked for. A process that prints more waits, as for any slow reader.
const KEPT_LINES: usize = 4096;
/// Lines of one [`ChildProcess::poll`].
const LINES_AT_ONCE: usize = 1024;
/// Time between two checks for the end of a process whose output has ended.
const CHECK: Duration = Duration::from_millis(10);

/// What to start.
#[derive(Debug)]
pub struct ChildOptions<'a> {
    /// The role of the process, for errors.
    pub role: Role,
    /// The rank of the process, for errors.
    pub rank: usize,
    /// The attempt, counted from 1. An earlier attempt that is still ending has other files.
    pub attempt: u64,
    /// The command; relative paths start at the working directory.
    pub command: &'a CommandWords,
    /// The Python interpreter for scripts.
    pub python: &'a Path,
    /// The variables of [`ExternalJob::environment`](super::ExternalJob::environment), and others of the user before them.
    pub variables: &'a [(String, String)],
    /// An existing directory for the progress file and the job file.
    pub directory: &'a Path,
    /// The content of the job file.
    pub job_file: &'a JobFile,
}

/// A process that was started, and its group. Dropping it kills the group.
#[derive(Debug)]
pub struct ChildProcess {
    process: Process,
    guard: Option<Guard>,
    progress: PathBuf,
    job_file: PathBuf,
    lines: Receiver<String>,
    /// The process has ended. The rest of its group is killed at this time.
    leftover: Option<(Ending, Instant)>,
    is_read: bool,
    /// Dropped to end the thread that started the process.
    keep: Option<Sender<()>>,
    starter: Option<JoinHandle<()>>,
}

/// What has happened since the last [`ChildProcess::poll`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ChildEvents {
    /// Output lines, of both streams.
    pub lines: Vec<String>,
    /// How the process ended. Reported once its output has been read, or after two seconds if a process that left the group
    /// keeps the output open.
    pub ending: Option<Ending>,
}

impl ChildProcess {
    /// Starts the process.
    ///
    /// # Errors
    ///
    /// If the script or program does not exist or cannot be started, or if its files cannot be written.
    pub fn start(options: &ChildOptions<'_>) -> Result<Self> {
        let ChildOptions { role, rank, attempt, directory, .. } = *options;
        let program = Program::find(options.command, Some(options.python), options.python.parent())?;
        let progress = directory.join(format!("progress.{attempt}.json"));
        let job_file = directory.join("job.json");
        forget_progress(&progress);
        options.job_file.write(&job_file)?;
        let mut variables = options.variables.to_vec();
        let unbuffered = program.unbuffered().filter(|(name, _)| variables.iter().all(|(known, _)| known != name));
        variables.extend(unbuffered.map(|(name, value)| (name.to_owned(), value)));
        variables.push((PROGRESS_FILE.to_owned(), progress.display().to_string()));
        variables.push((JOB_FILE.to_owned(), job_file.display().to_string()));
        let failed = {
            let program = program.words.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
            move |source| Error::Start { role, rank, program: program.clone(), source }
        };
        // Without a shell, only the parent-death signal remains.
        let mut guard = Guard::start_detached().ok();
        let line = guard.as_mut().map(Guard::line).transpose().map_err(&failed)?.flatten();
        let (keep, kept) = channel::<()>();
        let (sender, started) = channel();
        let starter = std::thread::Builder::new().name("child".to_owned()).spawn(move || {
            let _ = sender.send(Process::start(&program.words, variables, line));
            // Until the sender is dropped.
            let _ = kept.recv();
        });
        let starter = starter.map_err(&failed)?;
        let (process, output) = started.recv().map_err(std::io::Error::other).and_then(|it| it).map_err(&failed)?;
        let (sender, lines) = sync_channel(KEPT_LINES);
        let child = ChildProcess {
            process,
            guard,
            progress,
            job_file,
            lines,
            leftover: None,
            is_read: false,
            keep: Some(keep),
            starter: Some(starter),
        };
        let reader = std::thread::Builder::new().name("output".to_owned()).spawn(move || read(output, &sender));
        reader.map_err(&failed)?;
        Ok(child)
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Waits until there is something to report, at most this long.
    pub fn poll(&mut self, wait: Duration) -> ChildEvents {
        let until = Instant::now() + wait;
        let mut events = ChildEvents::default();
        loop {
            self.take_lines(&mut events.lines, until);
            let now = Instant::now();
            if self.leftover.is_none() {
                self.leftover = self.process.try_wait().map(|ending| (ending, now + LEFT_BEHIND));
            }
            if let Some((ending, kill)) = self.leftover {
                if now >= kill {
                    self.process.signal(Signal::SIGKILL);
                }
                if self.is_read || now >= kill + LEFT_BEHIND {
                    events.ending = Some(ending);
                }
            }
            if !events.lines.is_empty() || events.ending.is_some() || now >= until {
                return events;
            }
            if self.is_read {
                std::thread::sleep(CHECK.min(until.saturating_duration_since(now)));
            }
        }
    }

    /// The content of the progress file.
    pub fn report(&self) -> String {
        std::fs::read_to_string(&self.progress).unwrap_or_default()
    }

    /// Replaces the job file.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn write_job_file(&self, job_file: &JobFile) -> Result<()> {
        job_file.write(&self.job_file)
    }

    /// Sends a signal to the process and its group. A number that is no signal is ignored.
    pub fn signal(&self, number: i32) {
        if let Ok(signal) = Signal::try_from(number) {
            self.process.signal(signal);
        }
    }

    fn take_lines(&mut self, lines: &mut Vec<String>, until: Instant) {
        // Check now and then whether the process has ended while another holds its output open.
        let wait = until.saturating_duration_since(Instant::now()).min(LEFT_BEHIND / 4);
        match self.lines.recv_timeout(wait) {
            Ok(line) => lines.push(line),
            Err(RecvTimeoutError::Disconnected) => self.is_read = true,
            Err(RecvTimeoutError::Timeout) => {}
        }
        while lines.len() < LINES_AT_ONCE && !self.is_read {
            match self.lines.try_recv() {
                Ok(line) => lines.push(line),
                Err(TryRecvError::Disconnected) => self.is_read = true,
                Err(TryRecvError::Empty) => break,
            }
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.process.signal(Signal::SIGKILL);
        let until = Instant::now() + LEFT_BEHIND;
        // Do not leave a zombie, unless the process hangs in the kernel.
        while self.leftover.is_none() && self.process.try_wait().is_none() && Instant::now() < until {
            std::thread::sleep(CHECK);
        }
        if let Some(guard) = self.guard.take() {
            guard.dismiss();
        }
        drop(self.keep.take());
        let _ = self.starter.take().map(JoinHandle::join);
    }
}

/// Sends the lines of the output until its end. Runs on its own thread.
fn read(mut from: PipeReader, lines: &SyncSender<String>) {
    let mut buffer = vec![0; 16 * 1024];
    let mut split = Lines::default();
    // Nobody receives once the value is dropped; the output is still read, so that a process in another group does not block.
    let send = |line: &str| drop(lines.send(line.to_owned()));
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => split.take(&buffer[..count], send),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    split.finish(send);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(directory: &Path, script: &str) -> ChildProcess {
        let words = ["sh", "-c", script].map(Into::into).to_vec();
        let command = CommandWords { command: words, ..CommandWords::default() };
        let options = ChildOptions {
            role: Role::Worker,
            rank: 1,
            attempt: 2,
            command: &command,
            python: Path::new("python3"),
            variables: &[("WORD".to_owned(), "hello".to_owned())],
            directory,
            job_file: &JobFile { ending: false, departed: vec![0] },
        };
        ChildProcess::start(&options).unwrap()
    }

    fn finish(child: &mut ChildProcess) -> (Vec<String>, Ending) {
        let mut lines = Vec::new();
        loop {
            let events = child.poll(Duration::from_secs(60));
            lines.extend(events.lines);
            if let Some(ending) = events.ending {
                return (lines, ending);
            }
        }
    }

    #[test]
    fn a_process_has_its_variables_and_files_and_its_last_line_comes_before_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let script =
            "cat $OPENFLEET_JOB_FILE; echo report > $OPENFLEET_PROGRESS_FILE; echo $WORD >&2; printf last; exit 3";
        let mut child = start(directory.path(), script);
        let lines = [r#"{"ending":false,"departed":[0]}"#, "hello", "last"].map(str::to_owned);
        assert_eq!(finish(&mut child), (lines.to_vec(), Ending::Code(3)));
        assert_eq!(child.report(), "report\n");
    }

    #[test]
    fn signals_and_the_end_of_the_value_reach_the_whole_group() {
        let directory = tempfile::tempdir().unwrap();
        let mut child = start(directory.path(), "sleep 1000 & echo $!; wait");
        let sleeper = child.poll(Duration::from_secs(60)).lines;
        let is_there = |pid: &str| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
        };
        assert!(is_there(&sleeper[0]), "{sleeper:?}");
        child.signal(15);
        assert_eq!(finish(&mut child).1, Ending::Signal(15));
        let mut child = start(directory.path(), "sleep 1000 & echo $!; wait");
        let second = child.poll(Duration::from_secs(60)).lines;
        drop(child);
        for pid in [&sleeper[0], &second[0]] {
            while is_there(pid) {
                std::thread::sleep(CHECK);
            }
        }
    }

    #[test]
    fn a_missing_script_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let command = CommandWords { command: vec!["none.py".into()], ..CommandWords::default() };
        let options = ChildOptions {
            role: Role::Server,
            rank: 0,
            attempt: 1,
            command: &command,
            python: Path::new("python3"),
            variables: &[],
            directory: directory.path(),
            job_file: &JobFile::default(),
        };
        assert_eq!(ChildProcess::start(&options).unwrap_err().to_string(), "script `none.py` does not exist");
    }
}
