//! Ends the job's process groups if the launcher dies without doing so.
//!
//! The parent-death signal reaches a process but not its children, and it can be ignored. So a small shell reads from a pipe
//! that only the launcher holds and learns which groups exist. When the pipe closes, because the launcher has ended or was
//! killed, the shell sends SIGTERM to the remaining groups and SIGKILL two seconds later. A process announces its own group,
//! between fork and exec: if the launcher did it afterwards, it could die while a process runs that the guard does not know.
//!
//! It is a shell and not this program because the launcher may be a Python interpreter, which would take longer to start than a
//! whole job.

use std::io::{PipeWriter, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// The lines of the pipe are `+ GROUP`, `- GROUP`, and `.` when the job is over. The shell ignores the signals that end the
/// launcher's own group.
const SCRIPT: &str = r#"
trap '' INT TERM HUP QUIT
groups=
while read -r change group; do
  case $change in
    +) groups="$groups $group" ;;
    -) kept=
       for one in $groups; do [ "$one" = "$group" ] || kept="$kept $one"; done
       groups=$kept ;;
    .) groups= ;;
  esac
done
[ -n "$groups" ] || exit 0
for group in $groups; do kill -s TERM -- "-$group"; done
sleep 2
for group in $groups; do kill -s KILL -- "-$group"; done
"#;

/// The guard of one job.
#[derive(Debug)]
pub(crate) struct Guard {
    /// `None` if it is not a child of this process.
    shell: Option<Child>,
    /// Closed on drop, or when the launcher is killed.
    pipe: Option<PipeWriter>,
}

impl Guard {
    /// Starts the guard. If the system has no shell, only the parent-death signal remains.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (shell, pipe) = start(SCRIPT)?;
        Ok(Guard { shell: Some(shell), pipe: Some(pipe) })
    }

    /// Starts a guard that is not a child of this process: a worker of Ray kills its own children when it ends, and the groups of
    /// these children would lose their guard.
    pub(crate) fn start_detached() -> std::io::Result<Self> {
        // A shell connects a background command to `/dev/null`, so the pipe is passed as another descriptor.
        let (mut shell, pipe) = start(&format!("exec 3<&0\n({SCRIPT}) <&3 3<&- &"))?;
        shell.wait()?;
        Ok(Guard { shell: None, pipe: Some(pipe) })
    }

    /// The pipe on which a new process announces its group; `None` if the guard was killed.
    pub(crate) fn line(&mut self) -> std::io::Result<Option<PipeWriter>> {
        let is_running = self.shell.as_mut().is_none_or(|shell| matches!(shell.try_wait(), Ok(None)));
        self.pipe.as_ref().filter(|_| is_running).map(PipeWriter::try_clone).transpose()
    }

    /// Removes a group that has ended.
    pub(crate) fn forget(&mut self, group: u32) {
        self.tell(&format!("- {group}\n"));
    }

    /// Ends the guard: all groups have ended.
    pub(crate) fn dismiss(mut self) {
        self.tell(".\n");
    }

    fn tell(&mut self, line: &str) {
        if let Some(pipe) = &mut self.pipe {
            // The guard may have been killed; the job continues without it.
            let _ = pipe.write_all(line.as_bytes());
        }
    }
}

/// Starts a shell that reads from the returned pipe.
fn start(script: &str) -> std::io::Result<(Child, PipeWriter)> {
    let (reader, pipe) = std::io::pipe()?;
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, "fleetrun-guard"]).current_dir("/").env_clear().env("PATH", "/usr/bin:/bin");
    command.stdin(reader).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    Ok((command.spawn()?, pipe))
}

/// Announces a process's own group on [`Guard::line`]. Allocates nothing.
pub(crate) fn announce(line: &mut PipeWriter, group: u32) -> std::io::Result<()> {
    let mut text = [0; 16];
    let mut rest = text.as_mut_slice();
    writeln!(rest, "+ {group}")?;
    let length = 16 - rest.len();
    line.write_all(&text[..length])
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.pipe.take());
        // It ends at once, or within two seconds.
        let _ = self.shell.as_mut().map(Child::wait);
    }
}
