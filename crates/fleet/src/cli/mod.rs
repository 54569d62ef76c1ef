//! The `openfleet` program: `gen` writes synthetic data, `train` trains a model on files, `infer` predicts with a saved model,
//! `serve` does so over HTTP, `plan` predicts speed and memory of a job, `import` reads what another program has saved, and the
//! other commands inspect and rewrite checkpoints.
//!
//! clap collects the options into plain structs; each command checks and resolves them once, before it does anything. Results
//! go to standard output, progress and notes to standard error. [`main`] is the whole program except for its exit.

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
mod deployment;
mod r#gen;
mod import;
mod infer;
mod model_choice;
mod optimizer_choice;
pub(crate) mod output;
mod plan;
mod progress;
mod saving;
mod serve;
mod train;

/// Train recommendation and CTR models on CPU machines.
#[derive(Debug, Parser)]
#[command(name = "openfleet", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Write synthetic data with a known best result: click logs or text.
    Gen(r#gen::GenArgs),
    /// Train a model on files and evaluate it on others.
    Train(Box<train::TrainArgs>),
    /// Predict with a saved model and evaluate it.
    Infer(infer::InferArgs),
    /// Serve predictions of a saved model over HTTP.
    Serve(serve::ServeArgs),
    /// Predict the speed, traffic and memory of a job with servers, and how many servers it needs.
    Plan(Box<plan::PlanArgs>),
    /// Show the contents of a checkpoint: tables, rows, norms, the hottest keys.
    Inspect(checkpoint::inspect::InspectArgs),
    /// Show the rows of one key in a checkpoint.
    Lookup(checkpoint::lookup::LookupArgs),
    /// Show the differences between two checkpoints.
    Diff(checkpoint::diff::DiffArgs),
    /// Rewrite a checkpoint in another number of parts.
    Reshard(checkpoint::reshard::ReshardArgs),
    /// Merge the delta saves of a checkpoint into one full save.
    Compact(checkpoint::compact::CompactArgs),
    /// Export a sparse table of a checkpoint as text, npz or Parquet.
    Export(checkpoint::export::ExportArgs),
    /// Check every byte of a checkpoint against its checksum.
    Verify(checkpoint::verify::VerifyArgs),
    /// Turn the files of another program into a checkpoint.
    Import(Box<import::ImportArgs>),
}

/// How a command ended, if without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The command is complete.
    Done,
    /// The command was asked to stop, and stopped between two batches.
    Interrupted,
}

/// The exit code that shells expect of a program ended by SIGINT.
const INTERRUPTED: u8 = 130;
/// The exit code after a panic. Rust's own code, 101, is not used: the launcher takes it as a request for a restart.
const PANICKED: u8 = 70;

/// Runs `openfleet` with these arguments, the program name first, prints any error and returns the exit code. Installs a
/// handler for Ctrl-C and SIGTERM: the first signal ends the work between two batches.
#[allow(clippy::print_stderr, reason = "errors are printed here")]
pub fn main(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> u8 {
    let command = match parse(arguments) {
        Ok(command) => command,
        Err(error) => {
            // `--help` and `--version` are errors of clap too.
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    if let Err(error) = log::to_stderr(&Variables::of_process()) {
        eprintln!("error: {}", report(&error));
        return 1;
    }
    let stop = Arc::new(AtomicBool::new(false));
    // The other commands have nothing to finish: a signal ends them at once.
    let stops_gently = matches!(command.command, Verb::Train(_) | Verb::Infer(_) | Verb::Serve(_));
    if stops_gently && let Err(error) = listen(stop.clone()) {
        eprintln!(
            "warning: cannot install a signal handler, Ctrl-C will end the program in the middle of a batch: {error}"
        );
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

/// The first Ctrl-C or SIGTERM requests a stop between two batches; the second exits at once.
fn listen(stop: Arc<AtomicBool>) -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(move || {
        if stop.swap(true, Ordering::SeqCst) {
            #[allow(clippy::disallowed_methods, reason = "the user insists, and this is the program, not the library")]
            std::process::exit(INTERRUPTED.into());
        }
    })
}

/// Parses the command line. The error can print itself and has an exit code; `--help` is such an error.
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
        Verb::Plan(arguments) => plan::run(arguments).map(|()| Outcome::Done),
        Verb::Inspect(arguments) => checkpoint::inspect::run(arguments).map(|()| Outcome::Done),
        Verb::Lookup(arguments) => checkpoint::lookup::run(arguments).map(|()| Outcome::Done),
        Verb::Diff(arguments) => checkpoint::diff::run(arguments).map(|()| Outcome::Done),
        Verb::Reshard(arguments) => checkpoint::reshard::run(arguments).map(|()| Outcome::Done),
        Verb::Compact(arguments) => checkpoint::compact::run(arguments).map(|()| Outcome::Done),
        Verb::Export(arguments) => checkpoint::export::run(arguments).map(|()| Outcome::Done),
        Verb::Verify(arguments) => checkpoint::verify::run(arguments).map(|()| Outcome::Done),
        Verb::Import(arguments) => import::run(arguments).map(|()| Outcome::Done),
    }
}

/// Accepts every option with hyphens also with underscores, as PaddlePaddle users write them.
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
    fn old_spellings_still_work() {
        let old = "openfleet train --model dcn --train x --mode sync --servers 2 --workers 3 --lr 0.1 --thread-num 2 --epoch 4";
        assert!(parse(old.split(' ')).is_ok());
        assert!(parse("openfleet reshard a --out b --servers 2".split(' ')).is_ok());
        let infer = |text: &str| parse(text.split(' ')).map(drop).map_err(|error| error.kind());
        assert_eq!(infer("openfleet infer --model-dir model --data x"), Ok(()));
        assert_eq!(infer("openfleet infer model --data x"), Ok(()));
        assert_eq!(infer("openfleet infer --data x"), Err(clap::error::ErrorKind::MissingRequiredArgument));
        assert_eq!(
            infer("openfleet infer other --model-dir model --data x"),
            Err(clap::error::ErrorKind::ArgumentConflict)
        );
    }

    #[test]
    fn flags_take_hyphens_and_underscores() {
        for flag in ["--batch-size", "--batch_size", "--batch"] {
            let parsed = parse(["openfleet", "train", "--model", "dcn", "--train", "x", flag, "7"]).unwrap();
            let Verb::Train(arguments) = parsed.command else { panic!("not `train`") };
            assert_eq!(arguments.reading.batch_size, Some(7), "{flag}");
        }
    }
}
