//! `openfleet export`: writes a sparse table for other tools.
//!
//! ```text
//! text      one line per row: key, a tab, the weights separated by blanks
//! npz       arrays `keys` (uint64, [rows]) and `weights` (float32, [rows, dim])
//! parquet   columns `key` (uint64) and `weights` (a list of floats)
//! ```

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use openfleet_table::checkpoint::{SparseEntry, npy_header};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::{Opened, each_row, open, parquet};
use crate::cli::output::{count, remark, result};
use crate::error::{Error, Result};

/// `openfleet export ...`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Checkpoint: a directory or bucket.
    #[arg(value_name = "ADDRESS")]
    checkpoint: String,
    /// Sparse table to export; optional if the checkpoint has only one.
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = ExportFormat::Text)]
    format: ExportFormat,
    /// File to write. An existing file is replaced when the new one is complete.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ExportFormat {
    Text,
    Npz,
    Parquet,
}

pub(crate) fn run(arguments: &ExportArgs) -> Result<()> {
    let opened = open(&arguments.checkpoint)?;
    let table = match (&arguments.table, opened.manifest.sparse.as_slice()) {
        (Some(name), _) => opened.table(name)?,
        (None, [only]) => only,
        (None, tables) => {
            let names: Vec<_> = tables.iter().map(|table| format!("`{}`", table.name)).collect();
            return Err(Error::BadOption {
                option: "--table",
                expected: "the name of a sparse table",
                got: format!("nothing, with {} tables: {}", tables.len(), names.join(", ")),
            });
        }
    };
    // Write under a temporary name until the file is complete.
    let mut name = arguments.out.file_name().unwrap_or_default().to_owned();
    name.push(".writing");
    let temporary = arguments.out.with_file_name(name);
    let written = match arguments.format {
        ExportFormat::Text => text(&opened, table, &temporary),
        ExportFormat::Npz => npz(&opened, table, &temporary),
        ExportFormat::Parquet => parquet::write(&opened, table, &temporary),
    };
    let done =
        written.and_then(|()| std::fs::rename(&temporary, &arguments.out).map_err(Error::io("write", &arguments.out)));
    if done.is_err() {
        // Report the first error, not this one.
        let _ = std::fs::remove_file(&temporary);
    }
    done?;
    if table.spec.salted {
        remark("keys are ids salted by slot: id = key XOR XXH3 of the slot's name");
    }
    result(&format!("{}: {} rows of `{}`", arguments.out.display(), count(table.rows), table.name));
    Ok(())
}

fn text(opened: &Opened, table: &SparseEntry, path: &Path) -> Result<()> {
    let failed = || Error::io("write", path);
    let mut out = BufWriter::new(File::create(path).map_err(failed())?);
    each_row(opened, table, |row| {
        let mut line = format!("{}\t", row.key);
        for (at, weight) in row.weights.iter().enumerate() {
            line.push_str(if at == 0 { "" } else { " " });
            line.push_str(&weight.to_string());
        }
        writeln!(out, "{line}").map_err(failed())
    })?;
    out.flush().map_err(failed())
}

fn npz(opened: &Opened, table: &SparseEntry, path: &Path) -> Result<()> {
    let failed = |error: zip::result::ZipError| Error::io("write", path)(error.into());
    let mut out = ZipWriter::new(BufWriter::new(File::create(path).map_err(Error::io("write", path))?));
    // NumPy maps uncompressed members without a copy, and floats hardly compress.
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored).large_file(true);
    // A zip is written member by member, so the rows are read twice.
    out.start_file("keys.npy", options).map_err(failed)?;
    out.write_all(&npy_header("'<u8'", &format!("({},)", table.rows))).map_err(Error::io("write", path))?;
    each_row(opened, table, |row| out.write_all(&row.key.to_le_bytes()).map_err(Error::io("write", path)))?;
    out.start_file("weights.npy", options).map_err(failed)?;
    out.write_all(&npy_header("'<f4'", &format!("({}, {})", table.rows, table.spec.dim)))
        .map_err(Error::io("write", path))?;
    let mut bytes = Vec::new();
    each_row(opened, table, |row| {
        bytes.clear();
        bytes.extend(row.weights.iter().flat_map(|weight| weight.to_le_bytes()));
        out.write_all(&bytes).map_err(Error::io("write", path))
    })?;
    let mut file = out.finish().map_err(failed)?;
    file.flush().map_err(Error::io("write", path))
}
