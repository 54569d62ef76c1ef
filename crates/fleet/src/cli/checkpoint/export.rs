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
use std::sync::Arc;

use clap::{Args, ValueEnum};
use openfleet_table::checkpoint::{SparseEntry, npy_header};
use parquet::basic::{Compression, LogicalType, Repetition, Type as PhysicalType};
use parquet::data_type::{FloatType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::{Opened, each_row, open};
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
        ExportFormat::Parquet => parquet(&opened, table, &temporary),
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

/// Rows per Parquet row group.
const GROUP: usize = 100_000;

fn parquet(opened: &Opened, table: &SparseEntry, path: &Path) -> Result<()> {
    let failed = |error: parquet::errors::ParquetError| Error::io("write", path)(std::io::Error::other(error));
    let file = File::create(path).map_err(Error::io("write", path))?;
    let properties = WriterProperties::builder().set_compression(Compression::UNCOMPRESSED).build();
    let schema = parquet_schema().map_err(failed)?;
    let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties)).map_err(failed)?;
    let (mut keys, mut weights) = (Vec::with_capacity(GROUP), Vec::with_capacity(GROUP * table.spec.dim));
    each_row(opened, table, |row| {
        // The same 64 bits; the logical type marks them as unsigned.
        keys.push(row.key as i64);
        weights.extend_from_slice(row.weights);
        if keys.len() == GROUP {
            write_group(writer.next_row_group().map_err(failed)?, &mut keys, &mut weights).map_err(failed)?;
        }
        Ok(())
    })?;
    if !keys.is_empty() {
        write_group(writer.next_row_group().map_err(failed)?, &mut keys, &mut weights).map_err(failed)?;
    }
    writer.close().map(drop).map_err(failed)
}

fn parquet_schema() -> parquet::errors::Result<Type> {
    let key = Type::primitive_type_builder("key", PhysicalType::INT64)
        .with_repetition(Repetition::REQUIRED)
        .with_logical_type(Some(LogicalType::integer(64, false)))
        .build()?;
    let element =
        Type::primitive_type_builder("element", PhysicalType::FLOAT).with_repetition(Repetition::REQUIRED).build()?;
    let list = Type::group_type_builder("list")
        .with_repetition(Repetition::REPEATED)
        .with_fields(vec![Arc::new(element)])
        .build()?;
    let weights = Type::group_type_builder("weights")
        .with_repetition(Repetition::REQUIRED)
        .with_logical_type(Some(LogicalType::List))
        .with_fields(vec![Arc::new(list)])
        .build()?;
    Type::group_type_builder("row").with_fields(vec![Arc::new(key), Arc::new(weights)]).build()
}

fn write_group(
    mut group: SerializedRowGroupWriter<'_, File>,
    keys: &mut Vec<i64>,
    weights: &mut Vec<f32>,
) -> parquet::errors::Result<()> {
    let dim = weights.len() / keys.len();
    if let Some(mut column) = group.next_column()? {
        column.typed::<Int64Type>().write_batch(keys, None, None)?;
        column.close()?;
    }
    if let Some(mut column) = group.next_column()? {
        // Repetition level 0 starts a list, 1 continues it; no list is empty.
        let repetition: Vec<i16> = (0..weights.len()).map(|at| i16::from(at % dim != 0)).collect();
        let definition = vec![1; weights.len()];
        column.typed::<FloatType>().write_batch(weights, Some(&definition), Some(&repetition))?;
        column.close()?;
    }
    group.close()?;
    keys.clear();
    weights.clear();
    Ok(())
}
