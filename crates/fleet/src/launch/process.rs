//! One process: started in its own process group, signalled as a group, and checked for its end.
//!
//! The group contains everything that the script starts, unless it leaves the group deliberately. If the launcher is killed,
//! the kernel sends the process SIGTERM (Linux), and the [guard](super::guard) ends the rest of the group.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{PipeReader, PipeWriter};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{SigHandler, SigSet, Signal, killpg, signal as set_handler};
use nix::unistd::Pid;

use super::environment::ROLE_VARIABLES;
use super::guard::announce;

/// How long the remaining processes of a group may run after its leader has ended: Python's own helpers clean up.
pub(crate) const LEFT_BEHIND: Duration = Duration::from_secs(1);

/// A started process and its group.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    group: Pid,
}

impl Process {
    /// Starts a command with these variables. The reader gets the output of both streams in the order in which it was printed.
    /// The process announces its group on `guard`. The calling thread must live as long as the process should: the kernel takes
    /// the end of the thread for the end of the parent.
    pub(crate) fn start(
        words: &[OsString],
        variables: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>,
        guard: Option<PipeWriter>,
    ) -> std::io::Result<(Self, PipeReader)> {
        let (program, arguments) = words.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
        let (reader, writer) = std::io::pipe()?;
        let mut command = Command::new(program);
        command.args(arguments);
        for name in ROLE_VARIABLES {
            command.env_remove(name);
        }
        command.envs(variables);
        // A background process group may not read the terminal.
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).process_group(0);
        end_with_parent(&mut command, guard);
        let child = command.spawn()?;
        let group = Pid::from_raw(child.id().cast_signed());
        Ok((Process { child, group }, reader))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended; `None` while it runs.
    pub(crate) fn try_wait(&mut self) -> Option<Ending> {
        // An error would mean that it has been waited for elsewhere: it has ended either way.
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(Ending::of(status)),
            Err(_) => Some(Ending::Unknown),
        }
    }

    /// Sends a signal to the process and its group. An empty group is not an error.
    ///
    /// The id of a group stays in use while the group has members, even after its leader was waited for. When the group is
    /// empty the system may reuse the id, but only after all other ids, and signals are sent only for seconds.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = killpg(self.group, signal);
    }
}

/// Ensures that neither the process nor its group outlives the launcher.
fn end_with_parent(command: &mut Command, mut guard: Option<PipeWriter>) {
    let parent = nix::unistd::getpid();
    let arrange = move || {
        if let Some(guard) = &mut guard {
            announce(guard, nix::unistd::getpid().as_raw().cast_unsigned())?;
        }
        parent_death_signal()?;
        default_signals()?;
        // The launcher may have died before the calls above.
        if nix::unistd::getppid() == parent { Ok(()) } else { Err(std::io::ErrorKind::BrokenPipe.into()) }
    };
    // SAFETY: between fork and exec only async-signal-safe functions may run. These are system calls and formatting a number
    // into an array; neither they nor their errors, which hold a number, allocate or take a lock.
    unsafe {
        command.pre_exec(arrange);
    }
}

/// Restores the default handling of signals that the launcher was started with ignored (`nohup`, a background job of a script)
/// or blocked (an actor of Ray): otherwise the process would not receive an interrupt that the launcher passes on.
fn default_signals() -> std::io::Result<()> {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
        // SAFETY: this restores the default handler; no function of this program becomes a handler.
        unsafe { set_handler(signal, SigHandler::SigDfl) }?;
    }
    SigSet::empty().thread_set_mask()?;
    Ok(())
}

#[cfg(target_os = "linux")]
fn parent_death_signal() -> std::io::Result<()> {
    Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?)
}

/// On other systems the guard alone does this.
#[cfg(not(target_os = "linux"))]
fn parent_death_signal() -> std::io::Result<()> {
    Ok(())
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this code.
    Code(i32),
    /// It was killed by this signal.
    Signal(i32),
    /// The exit status is unknown.
    Unknown,
}

impl Ending {
    /// The number of SIGKILL.
    pub(crate) const KILL: i32 = Signal::SIGKILL as i32;

    fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Ending::Code(code),
            (None, Some(signal)) => Ending::Signal(signal),
            (None, None) => Ending::Unknown,
        }
    }

    /// Whether it exited with code 0.
    pub fn is_success(self) -> bool {
        self == Ending::Code(0)
    }

    /// The exit code that a shell would report.
    pub fn exit_code(self) -> u8 {
        match self {
            Ending::Code(code) => u8::try_from(code).unwrap_or(1),
            Ending::Signal(signal) => u8::try_from(128 + signal).unwrap_or(1),
            Ending::Unknown => 1,
        }
    }
}

/// Displayed with a verb: `exited with code 3`.
impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Code(code) => write!(f, "exited with code {code}"),
            Ending::Signal(number) => match Signal::try_from(*number) {
                Ok(signal) => write!(f, "was killed by signal {number} ({signal})"),
                Err(_) => write!(f, "was killed by signal {number}"),
            },
            Ending::Unknown => f.write_str("ended with unknown status"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_receives_signals_that_its_launcher_blocks() {
        let mut blocked = SigSet::empty();
        blocked.add(Signal::SIGINT);
        let before = blocked.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK).unwrap();
        let words = ["grep", "SigBlk", "/proc/self/status"].map(OsString::from);
        let started = Process::start(&words, [("NAME", "value")], None);
        before.thread_set_mask().unwrap();
        let (mut process, mut output) = started.unwrap();
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        assert_eq!(text, "SigBlk:\t0000000000000000\n");
        process.child.wait().unwrap();
    }

    #[test]
    fn an_ending_has_the_exit_code_that_a_shell_would_give_it() {
        let codes = [Ending::Code(0), Ending::Code(3), Ending::Signal(9), Ending::Signal(15), Ending::Unknown];
        assert_eq!(codes.map(Ending::exit_code), [0, 3, 137, 143, 1]);
        assert_eq!(Ending::Signal(9).to_string(), "was killed by signal 9 (SIGKILL)");
    }
}
