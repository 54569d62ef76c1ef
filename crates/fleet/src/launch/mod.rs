//! The launcher: the `fleetrun` program, which starts, watches and ends every process of a job on this machine.
//!
//! ```text
//! options   what the user wrote         layout    where every process of the job is
//! program   what each of them runs      plan      what this machine starts, ports held, environment ready
//! supervise the rules of continuing, restarting and ending, without processes or a clock
//! position  how far the run has come, and the checkpoint that restarted servers load
//! run       carries the plan out, with process, guard, logs, screen and remarks
//! schedulers   the same job as a manifest or a script for Kubernetes, Slurm, MPI
//! ```
//!
//! The launcher writes the variables that role makers read ([`crate::variables`]) and knows nothing else of training: any
//! program can be run. It reads no model, opens no connection and listens nowhere.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches};
use openfleet_core::Hinted;
use openfleet_core::error::report;

mod announcements;
mod environment;
mod error;
mod guard;
mod hosts;
mod layout;
mod logs;
mod options;
mod plan;
mod ports;
mod position;
mod process;
mod program;
mod run;
mod schedulers;
mod screen;
mod secret;
mod supervise;

use crate::cli::with_underscores;
use crate::error::Result;
use hosts::Machine;
use options::{Cli, Scheduler};
use plan::LaunchPlan;
use program::Program;

pub use crate::progress::Progress;
pub use error::Error;
pub(crate) use options::duration;
pub use process::Ending;

/// Runs `fleetrun` with these arguments, the program's own name first, and returns its exit code. Errors have been printed.
pub fn main(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> u8 {
    Launcher::default().main(arguments)
}

/// `fleetrun` as part of another program, such as a Python package.
#[derive(Debug, Clone, Default)]
pub struct Launcher {
    /// The Python that runs scripts, unless `--python` says otherwise; `None`: `python3` on the PATH.
    pub python: Option<PathBuf>,
    /// The directory in which programs are looked for before the PATH; `None`: that of the running executable.
    pub directory: Option<PathBuf>,
}

impl Launcher {
    /// As [`main`]. To be called on a thread that stays until it returns.
    pub fn main(&self, arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> u8 {
        let command = with_underscores(Cli::command());
        let parsed = command.try_get_matches_from(arguments).and_then(|matches| Cli::from_arg_matches(&matches));
        let cli = match parsed {
            Ok(cli) => cli,
            Err(error) => {
                // Help and version are such errors too.
                let _ = error.print();
                return u8::try_from(error.exit_code()).unwrap_or(2);
            }
        };
        self.run(&cli).unwrap_or_else(|error| {
            print_last(&error, None);
            1
        })
    }

    fn run(&self, cli: &Cli) -> Result<u8> {
        if let Some(scheduler) = &cli.scheduler {
            let text = self.print(scheduler)?;
            let _ = std::io::stdout().lock().write_all(text.as_bytes());
            return Ok(0);
        }
        let own_directory = || std::env::current_exe().ok().and_then(|path| path.parent().map(PathBuf::from));
        let directory = self.directory.clone().or_else(own_directory);
        let program = Program::find(&cli.words, self.python.as_deref(), directory.as_deref())?;
        let machine = cli.run.host.clone().map_or_else(Machine::this, Machine::Named);
        let plan = LaunchPlan::resolve(&cli.job, &cli.run, program, &machine)?;
        if cli.run.dry_run {
            let _ = std::io::stdout().lock().write_all(plan.describe().as_bytes());
            return Ok(0);
        }
        let ended = run::run(plan)?;
        if let Some(failure) = ended.failure {
            print_last(&failure.error, failure.last_words);
        }
        Ok(ended.exit_code)
    }

    fn print(&self, scheduler: &Scheduler) -> Result<String> {
        match scheduler {
            Scheduler::K8s(arguments) => schedulers::kubernetes::manifest(arguments),
            Scheduler::Slurm(arguments) => schedulers::slurm::script(arguments),
            Scheduler::Mpi(arguments) => schedulers::mpi::script(arguments),
        }
    }
}

/// The error, and below it, so that they are the last on the screen, the words of the process that failed.
fn print_last(error: &dyn Hinted, log: Option<(PathBuf, Vec<String>)>) {
    let mut text = format!("error: {}\n", report(error));
    match log {
        None => {}
        Some((log, lines)) if lines.is_empty() => text += &format!("\nit printed nothing (`{}`)\n", log.display()),
        Some((log, lines)) => {
            let count = crate::cli::output::plural(lines.len(), "line");
            text += &format!("\nthe last {count} of `{}`:\n", log.display());
            for line in lines {
                text += &line;
                text.push('\n');
            }
        }
    }
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        with_underscores(Cli::command()).debug_assert();
    }
}
