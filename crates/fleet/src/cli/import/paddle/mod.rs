//! `openfleet import paddle`: what PaddlePaddle 2.x has saved, as a checkpoint.
//!
//! ```text
//! options    what tables and parameters are called      collect   from files to values by name
//! pickle     .pdparams, .pdopt                          tensor    .pdiparams, one file per variable
//! program    .pdmodel, __model__                        rows      dumps of sparse tables
//! write      from values to tables, and to a checkpoint
//! ```
//!
//! The parsers read bytes and open no files. Nothing of a file is executed.

mod bytes;
mod collect;
mod options;
mod pickle;
mod program;
mod rows;
mod tensor;
mod value;
mod write;

use std::path::PathBuf;

use clap::Args;

use self::collect::Collected;
use self::options::{DenseTable, Rename, SparseTable};
use crate::cli::optimizer_choice::Rule;
use crate::cli::output::remark;
use crate::error::Result;

/// `openfleet import paddle ...`.
#[derive(Debug, Args)]
pub(crate) struct PaddleArgs {
    /// What was saved: a directory, a file, or the prefix of `.pdparams` or `.pdiparams` files.
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Address of the checkpoint to write.
    #[arg(long, value_name = "ADDRESS")]
    out: String,
    /// Name and weights per row of a sparse table in a dump of servers, as in `0=embedding_0.w_0:10`; then, if it is not
    /// SparseAccessor, PaddlePaddle's name of its accessor, and if needed of its update rule; repeat for more.
    #[arg(long, value_name = "ID=NAME:DIM[:ACCESSOR[:RULE]]")]
    table: Vec<SparseTable>,
    /// Names and shapes of the parameters in a dense table of a dump, in their order, as in `2=fc_0.b_0:5,fc_0.w_0:11x5`; repeat
    /// for more.
    #[arg(long, value_name = "ID=NAME:SHAPE,...")]
    dense: Vec<DenseTable>,
    /// Import a parameter or table under another name; repeat for more.
    #[arg(long, value_name = "OLD=NEW")]
    rename: Vec<Rename>,
    /// A matrix that becomes a sparse table, row by row: the weights of an embedding with `is_sparse`. Found by itself if a
    /// program was saved too; repeat for more.
    #[arg(long, value_name = "NAME")]
    embedding: Vec<String>,
    /// A value that no gradient changes, such as a running mean. Found by itself if a program was saved too; repeat for more.
    #[arg(long, value_name = "NAME")]
    state: Vec<String>,
    /// The program of one combined file of variables, or of a directory with one file per variable. Default: `__model__` or
    /// `.pdmodel` next to it.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Optimizer of the program that will load the checkpoint. Default: that of the saved optimizer state, if there is any,
    /// otherwise sgd.
    #[arg(long, value_enum)]
    optimizer: Option<Rule>,
    /// Replace an existing checkpoint.
    #[arg(long)]
    replace: bool,
}

pub(crate) fn run(arguments: &PaddleArgs) -> Result<()> {
    let collected = Collected::read(arguments)?;
    collected.notes.iter().for_each(|note| remark(note));
    write::write(arguments, collected)
}
