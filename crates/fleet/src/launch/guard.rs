//! Ends the job's process groups if the launcher dies without doing so.
//!
//! The parent-death signal reaches a process but not those it has started, and can be ignored. So a small shell waits at a
//! pipe that only the launcher holds: it is told which groups exist, and when the pipe closes, because the launcher has ended
//! or was killed, it asks those still known to end and kills them two seconds later. A process announces itself, between fork and
//! exec: if the launcher did it afterwards, one could be running, and the launcher dead, before the guard knew of it.
//!
//! A shell rather than ourselves: the launcher may be a Python interpreter, which would take longer to start than a whole
//! job.

use std::io::{PipeWriter, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Lines are `+ GROUP`, `- GROUP`, and `.` when all is over. It stays through whatever ends the launcher's own group.
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
    shell: Child,
    /// Closed when this is dropped, or when we are killed.
    pipe: Option<PipeWriter>,
}

impl Guard {
    /// Starts it. Without a shell on the system there is none, and only the parent-death signal is left.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (reader, pipe) = std::io::pipe()?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT, "fleetrun-guard"]).current_dir("/").env_clear().env("PATH", "/usr/bin:/bin");
        command.stdin(reader).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Ok(Guard { shell: command.spawn()?, pipe: Some(pipe) })
    }

    /// Where a process that is about to be started announces its group; `None` if somebody has killed the guard.
    pub(crate) fn line(&mut self) -> std::io::Result<Option<PipeWriter>> {
        match (&self.pipe, self.shell.try_wait()) {
            (Some(pipe), Ok(None)) => pipe.try_clone().map(Some),
            _ => Ok(None),
        }
    }

    /// The group is no more.
    pub(crate) fn forget(&mut self, group: u32) {
        self.tell(&format!("- {group}\n"));
    }

    /// All groups have ended: there is nothing left to guard.
    pub(crate) fn dismiss(mut self) {
        self.tell(".\n");
    }

    fn tell(&mut self, line: &str) {
        if let Some(pipe) = &mut self.pipe {
            // A guard that somebody has killed cannot be told anything; the job goes on.
            let _ = pipe.write_all(line.as_bytes());
        }
    }
}

/// What a process writes to [`Guard::line`] to announce its group, whose number is its own. Allocates nothing.
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
        // It has nothing left to do, or two seconds of it.
        let _ = self.shell.wait();
    }
}
