//! One process: started in a group of its own, signalled as a group, and its end noticed.
//!
//! The group is what makes an end an end: whatever the script has started itself is in it, unless it took pains to leave. If
//! the launcher is killed, the kernel sends the process SIGTERM (Linux), and the [guard](super::guard) ends the rest of
//! the group.

use std::ffi::OsString;
use std::fmt;
use std::io::{PipeReader, PipeWriter};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::sys::signal::{SigHandler, Signal, killpg, signal as set_handler};
use nix::unistd::Pid;

use super::environment::{ROLE_VARIABLES, Variable};
use super::guard::announce;

/// A process that was started, and whatever it has started.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    group: Pid,
}

impl Process {
    /// Starts the words with these variables; what it prints on either stream comes out of the reader in the order in
    /// which it was printed. It announces its group on `guard`. To be called on a thread that lives as long as the process should: the kernel takes the end
    /// of the thread for the end of the parent.
    pub(crate) fn start(
        words: &[OsString],
        variables: &[Variable],
        extra: &[(&'static str, OsString)],
        guard: Option<PipeWriter>,
    ) -> std::io::Result<(Self, PipeReader)> {
        let (program, arguments) = words.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
        let (reader, writer) = std::io::pipe()?;
        let mut command = Command::new(program);
        command.args(arguments);
        for name in ROLE_VARIABLES {
            command.env_remove(name);
        }
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.envs(extra.iter().map(|(name, value)| (name, value)));
        // A group in the background may not read the terminal.
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).process_group(0);
        end_with_parent(&mut command, guard);
        let child = command.spawn()?;
        let group = Pid::from_raw(child.id().cast_signed());
        Ok((Process { child, group }, reader))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub(crate) fn try_wait(&mut self) -> Option<Ending> {
        // An error would mean that somebody else has waited for it: it is gone either way.
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(Ending::of(status)),
            Err(_) => Some(Ending::Unknown),
        }
    }

    /// Sends a signal to the process and all of its group. That nobody is left is no error.
    ///
    /// The number of a group whose leader has been waited for stays taken while it has members. Once it is empty the system
    /// may use it again, but not before it has used up all others; we stop asking within seconds.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = killpg(self.group, signal);
    }
}

/// Makes sure that neither the process nor its group outlives us.
fn end_with_parent(command: &mut Command, mut guard: Option<PipeWriter>) {
    let parent = nix::unistd::getpid();
    let arrange = move || {
        if let Some(guard) = &mut guard {
            announce(guard, nix::unistd::getpid().as_raw().cast_unsigned())?;
        }
        parent_death_signal()?;
        default_signals()?;
        // We may have died before the lines above.
        if nix::unistd::getppid() == parent { Ok(()) } else { Err(std::io::ErrorKind::BrokenPipe.into()) }
    };
    // SAFETY: between fork and exec only async-signal-safe functions may run. These are system calls and the writing of a
    // number into an array: neither they nor the errors made of a number allocate or take a lock.
    unsafe {
        command.pre_exec(arrange);
    }
}

/// What we were started with ignored (`nohup`, a background job of a script) is not what the process wants: it would not hear
/// of an interrupt that we pass on. The mask is empty already: the standard library sees to that.
fn default_signals() -> std::io::Result<()> {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
        // SAFETY: no handler is installed: the default is no function of ours.
        unsafe { set_handler(signal, SigHandler::SigDfl) }?;
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn parent_death_signal() -> std::io::Result<()> {
    Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?)
}

/// Elsewhere the guard alone does it.
#[cfg(not(target_os = "linux"))]
fn parent_death_signal() -> std::io::Result<()> {
    Ok(())
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It chose to.
    Code(i32),
    /// It was killed.
    Signal(i32),
    /// Nobody knows.
    Unknown,
}

impl Ending {
    /// The signal that cannot be refused.
    pub(crate) const KILL: i32 = Signal::SIGKILL as i32;

    fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Ending::Code(code),
            (None, Some(signal)) => Ending::Signal(signal),
            (None, None) => Ending::Unknown,
        }
    }

    /// Whether all went well.
    pub fn is_success(self) -> bool {
        self == Ending::Code(0)
    }

    /// What a shell would make of it.
    pub fn exit_code(self) -> u8 {
        match self {
            Ending::Code(code) => u8::try_from(code).unwrap_or(1),
            Ending::Signal(signal) => u8::try_from(128 + signal).unwrap_or(1),
            Ending::Unknown => 1,
        }
    }
}

/// With its verb: `exited with code 3`.
impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Code(code) => write!(f, "exited with code {code}"),
            Ending::Signal(number) => match Signal::try_from(*number) {
                Ok(signal) => write!(f, "was killed by signal {number} ({signal})"),
                Err(_) => write!(f, "was killed by signal {number}"),
            },
            Ending::Unknown => f.write_str("ended, and nobody knows how"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ending_has_the_exit_code_that_a_shell_would_give_it() {
        let codes = [Ending::Code(0), Ending::Code(3), Ending::Signal(9), Ending::Signal(15), Ending::Unknown];
        assert_eq!(codes.map(Ending::exit_code), [0, 3, 137, 143, 1]);
        assert_eq!(Ending::Signal(9).to_string(), "was killed by signal 9 (SIGKILL)");
    }
}
