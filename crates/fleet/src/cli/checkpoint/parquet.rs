//! A sparse table as a Parquet file: columns `key` (uint64) and `weights` (a list of floats).

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use openfleet_table::checkpoint::SparseEntry;
use parquet::basic::{Compression, LogicalType, Repetition, Type as PhysicalType};
use parquet::data_type::{FloatType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;

use super::{Opened, each_row};
use crate::error::{Error, Result};

/// Rows per Parquet row group.
const GROUP: usize = 100_000;

pub(super) fn write(opened: &Opened, table: &SparseEntry, path: &Path) -> Result<()> {
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
