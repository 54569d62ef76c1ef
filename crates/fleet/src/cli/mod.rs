//! The `openfleet` program: `gen` makes data, `train` trains a model on files, `infer` predicts with a saved one,
//! `serve` does so over HTTP, and a few commands look into checkpoints.
//!
//! Options are collected by clap into plain structs, resolved and checked once, and only then acted on. Results go to
//! standard output, progress and remarks to standard error. [`main`] is the whole program but for its exit.

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Arg, Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use openfleet_core::error::report;

use crate::error::Result;
use crate::job_file::RESTART_EXIT_CODE;
use crate::log;
use crate::variables::Variables;

mod checkpoint;
mod cluster_choice;
mod data_choice;
mod r#gen;
mod infer;
mod model_choice;
mod optimizer_choice;
pub(crate) mod output;
mod place;
mod progress;
mod saving;
mod serve;
mod train;

/// Train recommendation and click models on ordinary machines.
#[derive(Debug, Parser)]
#[command(name = "openfleet", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make data whose truth is known: click logs or text.
    Gen(r#gen::GenArgs),
    /// Train a model on files and judge it on others.
    Train(Box<train::TrainArgs>),
    /// Predict with a saved model, and judge it.
    Infer(infer::InferArgs),
    /// Answer predictions of a saved model over HTTP.
    Serve(serve::ServeArgs),
    /// Show what a checkpoint holds: tables, rows, norms, the hottest keys.
    Inspect(checkpoint::inspect::InspectArgs),
    /// Show what a checkpoint knows of one key.
    Lookup(checkpoint::lookup::LookupArgs),
    /// Show in what two checkpoints differ.
    Diff(checkpoint::diff::DiffArgs),
    /// Write a checkpoint anew in another number of parts.
    Reshard(checkpoint::reshard::ReshardArgs),
    /// Make one save of the several that a checkpoint consists of.
    Compact(checkpoint::compact::CompactArgs),
    /// Write a table of a checkpoint for other tools.
    Export(checkpoint::export::ExportArgs),
    /// Check every byte of a checkpoint.
    Verify(checkpoint::verify::VerifyArgs),
}

/// How a command ended, if not with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It did all it was asked.
    Done,
    /// It was asked to stop, and did so between two batches.
    Interrupted,
}

/// What a shell expects of a program that SIGINT ended.
const INTERRUPTED: u8 = 130;
/// Of a program that has panicked. Rust's own code for that means something else to the launcher: please start me again.
const PANICKED: u8 = 70;

/// Runs `openfleet` with these arguments, the program's own name first, and returns its exit code. Errors have been printed.
/// Takes Ctrl-C and SIGTERM over: the first ends the work between two batches.
#[allow(clippy::print_stderr, reason = "this is where errors become text")]
pub fn main(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> u8 {
    let command = match parse(arguments) {
        Ok(command) => command,
        Err(error) => {
            // Help and version are such errors too.
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    if let Err(error) = log::to_stderr(&Variables::of_process()) {
        eprintln!("error: {}", report(&error));
        return 1;
    }
    let stop = Arc::new(AtomicBool::new(false));
    // The others have nothing to finish: a signal ends them at once.
    let asks_first = matches!(command.command, Verb::Train(_) | Verb::Infer(_) | Verb::Serve(_));
    if asks_first && let Err(error) = listen(stop.clone()) {
        eprintln!("warning: Ctrl-C will end the program at once rather than after the batch: {error}");
    }
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&command, &stop)));
    let Ok(ran) = ran else { return PANICKED };
    match ran {
        Ok(Outcome::Done) => 0,
        Ok(Outcome::Interrupted) => INTERRUPTED,
        Err(error) if error.is_recall() => {
            eprintln!("{}", report(&error));
            RESTART_EXIT_CODE
        }
        Err(error) => {
            eprintln!("error: {}", report(&error));
            1
        }
    }
}

/// The first Ctrl-C or SIGTERM asks for an end between two batches, the second does not ask.
fn listen(stop: Arc<AtomicBool>) -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(move || {
        if stop.swap(true, Ordering::SeqCst) {
            #[allow(clippy::disallowed_methods, reason = "the user insists, and this is the program itself")]
            std::process::exit(INTERRUPTED.into());
        }
    })
}

/// Reads the command line. The error knows how to print itself and which exit code it means (help is such an error).
pub fn parse(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Cli, clap::Error> {
    let matches = with_underscores(Cli::command()).try_get_matches_from(arguments)?;
    Cli::from_arg_matches(&matches)
}

/// Runs a command. `stop` may be set at any time, from any thread.
pub fn run(cli: &Cli, stop: &AtomicBool) -> Result<Outcome> {
    match &cli.command {
        Verb::Gen(arguments) => r#gen::run(arguments).map(|()| Outcome::Done),
        Verb::Train(arguments) => train::run(arguments, stop),
        Verb::Infer(arguments) => infer::run(arguments, stop),
        Verb::Serve(arguments) => serve::run(arguments, stop),
        Verb::Inspect(arguments) => checkpoint::inspect::run(arguments).map(|()| Outcome::Done),
        Verb::Lookup(arguments) => checkpoint::lookup::run(arguments).map(|()| Outcome::Done),
        Verb::Diff(arguments) => checkpoint::diff::run(arguments).map(|()| Outcome::Done),
        Verb::Reshard(arguments) => checkpoint::reshard::run(arguments).map(|()| Outcome::Done),
        Verb::Compact(arguments) => checkpoint::compact::run(arguments).map(|()| Outcome::Done),
        Verb::Export(arguments) => checkpoint::export::run(arguments).map(|()| Outcome::Done),
        Verb::Verify(arguments) => checkpoint::verify::run(arguments).map(|()| Outcome::Done),
    }
}

/// Every flag with hyphens is also known with underscores, as the original's users write them.
pub(crate) fn with_underscores(command: Command) -> Command {
    let both = |argument: Arg| {
        let hyphenated: Vec<String> = (argument.get_long().into_iter())
            .chain(argument.get_all_aliases().unwrap_or_default())
            .filter(|name| name.contains('-'))
            .map(|name| name.replace('-', "_"))
            .collect();
        argument.aliases(hyphenated)
    };
    command.mut_args(both).mut_subcommands(with_underscores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        with_underscores(Cli::command()).debug_assert();
    }

    #[test]
    fn flags_take_hyphens_and_underscores() {
        for flag in ["--batch-size", "--batch_size", "--batch"] {
            let parsed = parse(["openfleet", "train", "--model", "dcn", "--train", "x", flag, "7"]).unwrap();
            let Verb::Train(arguments) = parsed.command else { panic!("not `train`") };
            assert_eq!(arguments.reading.batch, Some(7), "{flag}");
        }
    }
}
