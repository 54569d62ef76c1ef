//! The launcher: the `fleetrun` program, which starts, supervises and ends every process of a job on this machine.
//!
//! ```text
//! options       the command line as written       layout   the endpoint of every process of the job
//! without_effect    options of PaddlePaddle's launchers that change nothing here, and why
//! program       the command that each runs        plan     what this machine starts: ports reserved, environments ready
//! supervise     the rules for restarting and ending, without processes or a clock
//! position      the progress of the run, and the checkpoint that restarted servers load
//! control       what a launcher decides while a job runs: supervise, position and announcements together
//! run           carries out the plan, with process, guard, logs and screen
//! external      the same decisions for processes that another program starts; child is one of those processes
//! schedulers    the same job as a manifest or script for Kubernetes, Slurm and MPI
//! ```
//!
//! The launcher writes the variables that role makers read ([`crate::variables`]) and knows nothing else about training: it can
//! run any program. It reads no model, opens no connection and listens on no port.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches};
use openfleet_core::Hinted;
use openfleet_core::error::report;

mod announcements;
mod child;
mod control;
mod environment;
mod error;
mod external;
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
mod without_effect;

use crate::cli::output::remark;
use crate::cli::with_underscores;
use crate::error::Result;
use hosts::Machine;
use options::{Cli, Scheduler};
use plan::LaunchPlan;
use program::Program;

pub use crate::progress::Progress;
pub use child::{ChildEvents, ChildOptions, ChildProcess};
pub use environment::Variable;
pub use error::Error;
pub use external::{ExternalAction, ExternalJob, ExternalOptions, ExternalOutcome};
pub use options::CommandWords;
pub(crate) use options::duration;
pub use ports::PortReservation;
pub use process::Ending;

/// Runs `fleetrun` with these arguments, the program name first, prints any error and returns the exit code.
pub fn main(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> u8 {
    Launcher::default().main(arguments)
}

/// `fleetrun` as part of another program, such as a Python package.
#[derive(Debug, Clone, Default)]
pub struct Launcher {
    /// The Python interpreter for scripts, unless `--python` is given; `None` means `python3` on the PATH.
    pub python: Option<PathBuf>,
    /// The directory that is searched for programs before the PATH; `None` means that of the running executable.
    pub directory: Option<PathBuf>,
}

impl Launcher {
    /// Like [`main`]. The calling thread must live until it returns.
    pub fn main(&self, arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> u8 {
        let command = with_underscores(without_effect::add_to(Cli::command()));
        let parsed = command.try_get_matches_from(arguments);
        let parsed = parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, without_effect::lines(&matches))));
        let cli = match parsed {
            Ok((cli, notes)) => {
                notes.iter().for_each(|note| remark(note));
                cli
            }
            Err(error) => {
                // `--help` and `--version` are errors of clap too.
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
            plan.notes.iter().for_each(|note| remark(note));
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

/// Prints the error, then the last output lines of the process that failed, so that they are last on the screen.
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
        with_underscores(without_effect::add_to(Cli::command())).debug_assert();
    }
}
