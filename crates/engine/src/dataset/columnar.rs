//! Reads Parquet files, and Arrow's IPC files and streams, batch by batch.
//!
//! The first bytes of a file decide what it is. Of Parquet only the columns that are used are read. Values become the text that a
//! CSV file would have, and `csv.rs` makes the fields of them: a description gives the same ids for both.
//!
//! Only one batch of rows is in memory at a time.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::{ArrowError, DataType, Schema};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::error::{Error, Result};
use super::file_reader::RowChecks;
use super::format::csv::{CellWriter, Resolved};
use super::format::parquet::LIST_SEPARATOR;
use super::records::Records;

/// Rows of a batch of a Parquet file. Those of Arrow files have the size that their writer has chosen.
const BATCH_ROWS: usize = 2048;

/// Reads `file` to its end. Adds rows to `records` and calls `emit` with them after each batch; `emit` may take them, and returns
/// whether to continue.
pub(crate) fn read_file(
    format: &Resolved,
    rows: &RowChecks<'_>,
    bytes: &Arc<AtomicU64>,
    records: &mut Records,
    mut emit: impl FnMut(&mut Records) -> bool,
) -> Result<()> {
    let opened = Opened::new(rows.file, |names| match format.spec.first_mismatch(names) {
        Some((column, expected)) => {
            Err(bad_column(rows.file, &column, expected, &format!("the columns {}", names.join(", "))))
        }
        None => Ok(format.columns.clone()),
    })?;
    let (mut row_number, mut writer) = (0, CellWriter::new(format));
    let (size, total) = (opened.size, opened.rows);
    for batch in opened.batches {
        let batch = batch.map_err(|error| unreadable(rows.file, error))?;
        let columns = format.columns.iter().map(|name| Texts::new(rows.file, &batch, name, format));
        let columns = columns.collect::<Result<Vec<_>>>()?;
        for row in 0..batch.num_rows() {
            row_number += 1;
            writer.begin();
            for column in &columns {
                // Writing into memory does not fail.
                let _ = writer.push(|text| column.write(row, text));
            }
            let written = writer.write(records);
            rows.finish(row_number, written, records)?;
        }
        let share = (batch.num_rows() as u64 * size).checked_div(total.unwrap_or(0)).unwrap_or(0);
        bytes.fetch_add(share, Ordering::Relaxed);
        if !emit(records) {
            return Ok(());
        }
    }
    Ok(())
}

/// An open file of columns.
struct Opened {
    batches: Box<dyn Iterator<Item = std::result::Result<RecordBatch, ArrowError>>>,
    /// Bytes of the file.
    size: u64,
    /// Rows of the file, if it says how many there are.
    rows: Option<u64>,
}

impl Opened {
    /// Opens a file. `choose` gets the names of its columns, and returns those that are read.
    fn new(file: &Path, choose: impl FnOnce(&[String]) -> Result<Vec<String>>) -> Result<Self> {
        let mut opened = File::open(file).map_err(|error| Error::io("open", file, error))?;
        let size = opened.metadata().map_err(|error| Error::io("open", file, error))?.len();
        let mut start = [0; 6];
        let read = read_start(&mut opened, &mut start).map_err(|error| Error::io("read", file, error))?;
        let failed = |error: ArrowError| unreadable(file, error);
        if start[..read].starts_with(b"PAR1") {
            let builder = ParquetRecordBatchReaderBuilder::try_new(opened).map_err(|error| failed(error.into()))?;
            let wanted = choose(&names(builder.schema()))?;
            let mask = ProjectionMask::roots(
                builder.parquet_schema(),
                wanted.iter().filter_map(|name| builder.schema().index_of(name).ok()),
            );
            let rows = Some(builder.metadata().file_metadata().num_rows().max(0) as u64);
            let reader = builder.with_projection(mask).with_batch_size(BATCH_ROWS).build();
            return Ok(Opened { batches: Box::new(reader.map_err(|error| failed(error.into()))?), size, rows });
        }
        if start[..read].starts_with(b"ARROW1") {
            let reader = FileReader::try_new(BufReader::new(opened), None).map_err(failed)?;
            choose(&names(&reader.schema()))?;
            return Ok(Opened { batches: Box::new(reader), size, rows: None });
        }
        if start[..read].starts_with(&[0xff; 4]) {
            let reader = StreamReader::try_new(BufReader::new(opened), None).map_err(failed)?;
            choose(&names(&reader.schema()))?;
            return Ok(Opened { batches: Box::new(reader), size, rows: None });
        }
        Err(bad_column(file, "", "a Parquet or Arrow file", "another beginning"))
    }
}

/// Reads the first bytes of a file, and goes back to its start.
fn read_start(file: &mut File, start: &mut [u8]) -> std::io::Result<usize> {
    let mut length = 0;
    while length < start.len() {
        match file.read(&mut start[length..])? {
            0 => break,
            read => length += read,
        }
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(length)
}

fn names(schema: &Schema) -> Vec<String> {
    schema.fields().iter().map(|field| field.name().clone()).collect()
}

fn unreadable(file: &Path, error: ArrowError) -> Error {
    Error::io("read", file, std::io::Error::new(std::io::ErrorKind::InvalidData, error))
}

fn bad_column(file: &Path, column: &str, expected: &str, got: &str) -> Error {
    let (file, column) = (file.to_owned(), column.to_owned());
    Error::BadColumn { file, column, expected: expected.to_owned(), got: got.to_owned() }
}

/// The values of a column, as texts.
struct Texts {
    array: ArrayRef,
    /// Of a dictionary: its values, and the position of each row's value.
    dictionary: Option<(ArrayRef, Vec<usize>)>,
    /// Between the parts of a list.
    separator: char,
    write: WriteText,
}

impl Texts {
    fn new(file: &Path, batch: &RecordBatch, name: &str, format: &Resolved) -> Result<Self> {
        let array =
            batch.column_by_name(name).ok_or_else(|| bad_column(file, name, "a column of this name", "none"))?;
        let dictionary = array.as_any_dictionary_opt().map(|dictionary| {
            let values = dictionary.values().clone();
            // Arrow panics where a dictionary has no values: all rows are null then.
            let positions = if values.is_empty() { vec![0; array.len()] } else { dictionary.normalized_keys() };
            (values, positions)
        });
        let kind = dictionary.as_ref().map_or(array.data_type(), |(values, _)| values.data_type());
        let Some(write) = writer_of(kind) else {
            let expected = "numbers, texts, booleans, or lists of them";
            return Err(bad_column(file, name, expected, &format!("`{}`", array.data_type())));
        };
        let column = format.spec.categorical.iter().find(|column| column.column == name);
        let separator = column.and_then(|column| column.multi).unwrap_or(LIST_SEPARATOR);
        Ok(Texts { array: array.clone(), dictionary, separator, write })
    }

    /// Appends the text of a row; nothing if it has no value.
    fn write(&self, row: usize, text: &mut Vec<u8>) -> std::io::Result<()> {
        match &self.dictionary {
            _ if self.array.is_null(row) => Ok(()),
            Some((values, positions)) => write_value(self.write, values, positions[row], self.separator, text),
            None => (self.write)(&self.array, row, self.separator, text),
        }
    }
}

/// Appends a value; the character is between the parts of a list.
type WriteText = fn(&dyn Array, usize, char, &mut Vec<u8>) -> std::io::Result<()>;

/// How values of a type are written; `None` if they cannot be.
fn writer_of(kind: &DataType) -> Option<WriteText> {
    macro_rules! number {
        ($kind:ty) => {
            |array, row, _, text| write!(text, "{}", array.as_primitive::<$kind>().value(row))
        };
    }
    macro_rules! float {
        ($kind:ty) => {
            |array, row, _, text| {
                let value = f64::from(array.as_primitive::<$kind>().value(row));
                // What is not a number is no value, as in pandas.
                if value.is_nan() { Ok(()) } else { write!(text, "{value}") }
            }
        };
    }
    Some(match kind {
        DataType::Null => |_, _, _, _| Ok(()),
        DataType::Boolean => |array, row, _, text| write!(text, "{}", u8::from(array.as_boolean().value(row))),
        DataType::Int8 => number!(Int8Type),
        DataType::Int16 => number!(Int16Type),
        DataType::Int32 => number!(Int32Type),
        DataType::Int64 => number!(Int64Type),
        DataType::UInt8 => number!(UInt8Type),
        DataType::UInt16 => number!(UInt16Type),
        DataType::UInt32 => number!(UInt32Type),
        DataType::UInt64 => number!(UInt64Type),
        DataType::Float16 => float!(Float16Type),
        DataType::Float32 => |array, row, _, text| {
            let value = array.as_primitive::<Float32Type>().value(row);
            if value.is_nan() { Ok(()) } else { write!(text, "{value}") }
        },
        DataType::Float64 => float!(Float64Type),
        DataType::Utf8 => |array, row, _, text| text.write_all(array.as_string::<i32>().value(row).as_bytes()),
        DataType::LargeUtf8 => |array, row, _, text| text.write_all(array.as_string::<i64>().value(row).as_bytes()),
        DataType::Utf8View => |array, row, _, text| text.write_all(array.as_string_view().value(row).as_bytes()),
        DataType::List(values) if is_item(values.data_type()) => {
            |array, row, separator, text| write_list(&array.as_list::<i32>().value(row), separator, text)
        }
        DataType::LargeList(values) if is_item(values.data_type()) => {
            |array, row, separator, text| write_list(&array.as_list::<i64>().value(row), separator, text)
        }
        DataType::FixedSizeList(values, _) if is_item(values.data_type()) => {
            |array, row, separator, text| write_list(&array.as_fixed_size_list().value(row), separator, text)
        }
        _ => return None,
    })
}

/// Whether values of a type can be in a list.
fn is_item(kind: &DataType) -> bool {
    let is_list = matches!(kind, DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..));
    !is_list && writer_of(kind).is_some()
}

fn write_value(
    write: WriteText,
    array: &dyn Array,
    row: usize,
    separator: char,
    text: &mut Vec<u8>,
) -> std::io::Result<()> {
    if array.is_null(row) { Ok(()) } else { write(array, row, separator, text) }
}

fn write_list(values: &dyn Array, separator: char, text: &mut Vec<u8>) -> std::io::Result<()> {
    let Some(write) = writer_of(values.data_type()) else { return Ok(()) };
    for row in 0..values.len() {
        if row > 0 {
            write!(text, "{separator}")?;
        }
        write_value(write, values, row, separator, text)?;
    }
    Ok(())
}
