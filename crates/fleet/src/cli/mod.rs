//! The `openfleet` program: `gen` makes data, `train` trains a model on files, `infer` predicts with a saved one.
//!
//! Options are collected by clap into plain structs, resolved and checked once, and only then acted on. Results go to
//! standard output, progress and remarks to standard error. Nothing here ends the process: `main` does.

use std::ffi::OsString;
use std::sync::atomic::AtomicBool;

use clap::{Arg, Command, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::error::Result;

mod cluster_choice;
mod data_choice;
mod r#gen;
mod infer;
mod model_choice;
mod optimizer_choice;
pub(crate) mod output;
mod place;
mod progress;
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
    /// Predict with a model that `train --save` wrote.
    Infer(infer::InferArgs),
}

/// How a command ended, if not with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It did all it was asked.
    Done,
    /// It was asked to stop, and did so between two batches.
    Interrupted,
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
