//! `openfleet import`: turns the files of another program into a checkpoint. One program per module.

pub(crate) mod paddle;

use clap::{Args, Subcommand};

use crate::error::Result;

/// `openfleet import ...`.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, Subcommand)]
enum From {
    /// Turn what PaddlePaddle has saved into a checkpoint: parameter files, inference models, table dumps of its servers.
    Paddle(paddle::PaddleArgs),
}

pub(crate) fn run(arguments: &ImportArgs) -> Result<()> {
    match &arguments.from {
        From::Paddle(arguments) => paddle::run(arguments),
    }
}
