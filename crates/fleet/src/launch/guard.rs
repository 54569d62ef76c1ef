//! Ends the job's process groups if the launcher dies without doing so.
//!
//! The parent-death signal reaches a process but not those it has started. So a small shell waits at a pipe that only the
//! launcher holds: it is told which groups exist, and when the pipe closes, because the launcher has ended or was
//! killed, it asks those still known to end and kills them two seconds later. A shell rather than ourselves: the launcher
//! may be a Python interpreter, which would take longer to start than a whole job.

use std::io::{PipeWriter, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Lines are `+ GROUP` and `- GROUP`. It stays through whatever ends the launcher's own group.
const SCRIPT: &str = r#"
trap '' INT TERM HUP QUIT
groups=
while read -r change group; do
  case $change in
    +) groups="$groups $group" ;;
    -) kept=
       for one in $groups; do [ "$one" = "$group" ] || kept="$kept $one"; done
       groups=$kept ;;
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

    /// From now on the group is to be ended with us.
    pub(crate) fn watch(&mut self, group: u32) {
        self.tell('+', group);
    }

    /// The group is no more.
    pub(crate) fn forget(&mut self, group: u32) {
        self.tell('-', group);
    }

    fn tell(&mut self, change: char, group: u32) {
        if let Some(pipe) = &mut self.pipe {
            // A guard that somebody has killed cannot be told anything; the job goes on.
            let _ = pipe.write_all(format!("{change} {group}\n").as_bytes());
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.pipe.take());
        // It has nothing left to do, or two seconds of it.
        let _ = self.shell.wait();
    }
}
