//! What the user sees: the output of the processes with a prefix on standard output, the launcher's own lines on standard
//! error, and on a terminal a status line per process below them.
//!
//! Colour and status are for terminals only, and colour only if `NO_COLOR` is not set (<https://no-color.org>).

use std::fmt;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use openfleet_core::topology::Role;

use crate::cli::output::{duration, rate};

/// Processes that are shown one by one; more are summed up.
const ROWS: usize = 8;

/// The role and rank of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessName {
    pub role: Role,
    pub rank: usize,
}

impl fmt::Display for ProcessName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.rank)
    }
}

/// A process in the status.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub process_name: ProcessName,
    pub pid: u32,
    pub state: String,
    pub samples_per_second: Option<f64>,
}

/// The terminal, or the files that output is redirected to. Shared by the threads that read the processes' output.
#[derive(Debug)]
pub(crate) struct Screen {
    has_colour: bool,
    /// Only on a terminal.
    status: Option<ProgressBar>,
}

impl Screen {
    /// Checks whether output goes to a terminal.
    pub(crate) fn new() -> Self {
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let status = (std::io::stderr().is_terminal() && !is_dumb).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar
        });
        Screen { has_colour: std::io::stdout().is_terminal() && !no_colour && !is_dumb, status }
    }

    /// Prints a line of a process.
    pub(crate) fn line(&self, process_name: ProcessName, line: &str) {
        let line = prefixed(process_name, line, self.has_colour);
        // A closed pipe does not end the job: the logs have all output.
        self.undisturbed(|| {
            let _ = std::io::stdout().lock().write_all(line.as_bytes());
        });
    }

    /// Prints a line of the launcher.
    pub(crate) fn remark(&self, text: &str) {
        self.undisturbed(|| {
            let _ = writeln!(std::io::stderr().lock(), "{text}");
        });
    }

    /// Whether there is a status to update.
    pub(crate) fn has_status(&self) -> bool {
        self.status.is_some()
    }

    /// Redraws the status.
    pub(crate) fn show(&self, rows: &[Row], elapsed: Duration) {
        if let Some(bar) = &self.status {
            bar.set_message(status(rows, elapsed));
        }
    }

    /// Removes the status.
    pub(crate) fn clear(&self) {
        if let Some(bar) = &self.status {
            bar.finish_and_clear();
        }
    }

    fn undisturbed(&self, print: impl FnOnce()) {
        match &self.status {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

/// A line as it is printed, with its line end.
pub(crate) fn prefixed(process_name: ProcessName, line: &str, has_colour: bool) -> String {
    if !has_colour {
        return format!("[{process_name}] {line}\n");
    }
    // Green, yellow, blue, magenta, cyan for workers; servers are dimmed.
    let colour = match process_name.role {
        Role::Worker => [32, 33, 34, 35, 36][process_name.rank % 5],
        Role::Server => 90,
    };
    format!("\x1b[{colour}m[{process_name}]\x1b[0m {line}\n")
}

/// One row per process, and one for the rest if there are many.
fn status(rows: &[Row], elapsed: Duration) -> String {
    let total: f64 = rows.iter().filter_map(|row| row.samples_per_second).sum();
    let speed = |speed: f64| format!("{} samples/s", rate(speed));
    let mut lines: Vec<String> = (rows.iter().take(ROWS))
        .map(|row| {
            let speed = row.samples_per_second.map(|rate| format!(", {}", speed(rate))).unwrap_or_default();
            format!("{:10} pid {:<8} {}{speed}", row.process_name.to_string(), row.pid, row.state)
        })
        .collect();
    let more = rows.len().saturating_sub(ROWS);
    let more = if more > 0 { format!("and {more} more, ") } else { String::new() };
    let speed = if total > 0.0 { format!(", {} in all", speed(total)) } else { String::new() };
    lines.push(format!("{more}{}{speed}", duration(elapsed)));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_whose_it_is() {
        let worker = ProcessName { role: Role::Worker, rank: 6 };
        assert_eq!(prefixed(worker, "hello", false), "[worker 6] hello\n");
        assert_eq!(prefixed(worker, "hello", true), "\x1b[33m[worker 6]\x1b[0m hello\n");
    }

    #[test]
    fn the_status_has_a_row_a_process_and_a_sum() {
        let row = |rank, samples_per_second| Row {
            process_name: ProcessName { role: Role::Worker, rank },
            pid: 4711,
            state: "running".into(),
            samples_per_second,
        };
        let shown = status(&[row(0, Some(1234.0)), row(1, None)], Duration::from_secs(12));
        let expected = "worker 0   pid 4711     running, 1,234 samples/s\nworker 1   pid 4711     running\n\
                        12.0 s, 1,234 samples/s in all";
        assert_eq!(shown, expected);
        let many: Vec<Row> = (0..10).map(|rank| row(rank, None)).collect();
        let shown = status(&many, Duration::from_secs(12));
        assert!(shown.ends_with("\nand 2 more, 12.0 s") && shown.lines().count() == 9, "{shown}");
    }
}
