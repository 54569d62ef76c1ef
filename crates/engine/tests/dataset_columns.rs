//! Parquet and Arrow files give the batches of a CSV file with the same values.
#![cfg(feature = "arrow")]
#![allow(clippy::unwrap_used)] // helpers outside `#[test]` functions are tests too

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::{ListBuilder, StringBuilder, StringDictionaryBuilder};
use arrow_array::types::Int8Type;
use arrow_array::{
    ArrayRef, BooleanArray, Date32Array, Float32Array, Float64Array, Int64Array, LargeStringArray, RecordBatch,
    StringArray, UInt64Array,
};
use arrow_ipc::writer::{FileWriter, StreamWriter};
use openfleet_core::Batch;
use openfleet_core::error::report;
use openfleet_engine::dataset::{
    ColumnsSpec, Csv, Dataset, DatasetConfig, Error, Format, InMemoryDataset, OnBadLine, Parquet, QueueDataset, Result,
};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

const ROWS: usize = 5000;

const COLUMNS: &str = r#"
    label = { column = "clicked" }
    dense = [{ column = "age", mean = 30.0, std = 10.0 }, { column = "price", log = true }]
    crosses = [["city", "age_group"]]
    ignore = ["note"]
    [[categorical]]
    column = "city"
    [[categorical]]
    column = "user"
    buckets = 1000
    [[categorical]]
    column = "tags"
    multi = "|"
    [[categorical]]
    column = "kind"
    vocabulary = ["a", "b"]
    if_missing = "own_id"
    [[categorical]]
    column = "age"
    name = "age_group"
    boundaries = [18, 25, 40]
"#;

fn spec(text: &str) -> ColumnsSpec {
    toml::from_str(text).unwrap()
}

/// What row `row` has: a missing value in some rows.
fn city(row: usize) -> Option<&'static str> {
    [Some("Rome"), Some("Oslo, or so"), None, Some("")][row % 4]
}

fn age(row: usize) -> Option<f64> {
    (row % 7 != 3).then_some((row % 60) as f64 + 0.25)
}

fn tags(row: usize) -> Vec<String> {
    (0..row % 3).map(|tag| format!("t{}", (row + tag) % 11)).collect()
}

fn kind(row: usize) -> Option<&'static str> {
    [Some("a"), Some("b"), Some("other"), None][row % 4]
}

fn price(row: usize) -> f32 {
    if row.is_multiple_of(5) { f32::NAN } else { row as f32 / 3.0 }
}

fn user(row: usize) -> u64 {
    u64::MAX - row as u64
}

fn csv_text() -> String {
    let mut text = "clicked,note,city,age,price,user,tags,kind\n".to_owned();
    for row in 0..ROWS {
        let age = age(row).map(|age| age.to_string()).unwrap_or_default();
        let price = if price(row).is_nan() { String::new() } else { price(row).to_string() };
        let (city, kind) = (city(row).unwrap_or_default(), kind(row).unwrap_or_default());
        let (tags, user) = (tags(row).join("|"), user(row));
        text += &format!("{},x,\"{city}\",{age},{price},{user},{tags},{kind}\n", row % 2);
    }
    text
}

fn batch() -> RecordBatch {
    let rows = || 0..ROWS;
    let (mut tag_lists, mut kinds) =
        (ListBuilder::new(StringBuilder::new()), StringDictionaryBuilder::<Int8Type>::new());
    for row in rows() {
        tag_lists.append_value(tags(row).into_iter().map(Some));
        kinds.append_option(kind(row));
    }
    let columns: [(&str, ArrayRef); 8] = [
        ("clicked", Arc::new(BooleanArray::from_iter(rows().map(|row| Some(row % 2 == 1))))),
        ("note", Arc::new(Date32Array::from_iter_values(rows().map(|row| row as i32)))),
        ("city", Arc::new(LargeStringArray::from_iter(rows().map(city)))),
        ("age", Arc::new(Float64Array::from_iter(rows().map(age)))),
        ("price", Arc::new(Float32Array::from_iter_values(rows().map(price)))),
        ("user", Arc::new(UInt64Array::from_iter_values(rows().map(user)))),
        ("tags", Arc::new(tag_lists.finish())),
        ("kind", Arc::new(kinds.finish())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap()
}

fn write_parquet(path: &Path, batch: &RecordBatch) {
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(1500));
    let mut writer =
        ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), Some(properties.build())).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

fn config(spec: &ColumnsSpec, is_csv: bool, file: PathBuf) -> DatasetConfig {
    let format = match is_csv {
        true => Format::Csv(Csv { columns: spec.clone() }),
        false => Format::Parquet(Parquet { columns: spec.clone() }),
    };
    DatasetConfig::new(spec.schema().unwrap(), format).files([file]).batch_size(512)
}

fn batches(dataset: &dyn Dataset) -> Result<Vec<Batch>> {
    let reader = dataset.open()?;
    let mut batches = vec![Batch::default()];
    while reader.next(batches.last_mut().unwrap())? {
        batches.push(Batch::default());
    }
    batches.pop();
    Ok(batches)
}

#[test]
fn every_kind_of_file_gives_the_batches_of_csv() {
    let folder = tempfile::tempdir().unwrap();
    let [csv, parquet, file, stream] =
        ["a.csv", "a.parquet", "a.arrow", "a.arrows"].map(|name| folder.path().join(name));
    std::fs::write(&csv, csv_text()).unwrap();
    let batch = batch();
    write_parquet(&parquet, &batch);
    let mut writer = FileWriter::try_new(File::create(&file).unwrap(), &batch.schema()).unwrap();
    for first in (0..ROWS).step_by(700) {
        writer.write(&batch.slice(first, 700.min(ROWS - first))).unwrap();
    }
    writer.finish().unwrap();
    let mut writer = StreamWriter::try_new(File::create(&stream).unwrap(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    let spec = spec(COLUMNS);
    let expected = batches(&QueueDataset::new(config(&spec, true, csv)).unwrap()).unwrap();
    assert_eq!(expected.iter().map(|batch| batch.rows).sum::<usize>(), ROWS);
    for path in [parquet, file, stream] {
        let queue = QueueDataset::new(config(&spec, false, path.clone())).unwrap();
        for _ in 0..2 {
            assert_eq!(batches(&queue).unwrap(), expected, "{}", path.display());
        }
        let mut in_memory = InMemoryDataset::new(config(&spec, false, path)).unwrap();
        in_memory.load_into_memory().unwrap();
        assert_eq!(batches(&in_memory).unwrap(), expected);
    }
}

#[test]
fn the_progress_of_a_parquet_file_ends_at_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    write_parquet(&path, &batch());
    let dataset = QueueDataset::new(config(&spec(COLUMNS), false, path)).unwrap();
    let reader = dataset.open().unwrap();
    while reader.next(&mut Batch::default()).unwrap() {}
    let progress = reader.progress();
    assert_eq!(progress.rows, ROWS as u64);
    assert!(progress.fraction().unwrap() > 0.99, "{progress:?}");
}

/// The error of a Parquet file of these columns.
fn error_of(description: &str, columns: Vec<(&str, ArrayRef)>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    write_parquet(&path, &RecordBatch::try_from_iter(columns).unwrap());
    let error = batches(&QueueDataset::new(config(&spec(description), false, path)).unwrap()).unwrap_err();
    report(&error).replace(&folder.path().display().to_string(), "")
}

#[test]
fn what_does_not_fit_names_file_column_expected_and_got() {
    let ages = || Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef;
    let one = r#"dense = [{ column = "age" }]"#;
    let error = error_of(one, vec![("years", ages())]);
    assert!(
        error.starts_with("`/a.parquet`, column `age`: expected a column of this name, got the columns years"),
        "{error}"
    );
    let error = error_of(one, vec![("age", ages()), ("more", ages())]);
    assert!(error.contains("column `more`: expected this column to be used or listed in `ignore`"), "{error}");
    let error = error_of(one, vec![("age", Arc::new(Date32Array::from(vec![1])))]);
    assert!(
        error.contains("column `age`: expected numbers, texts, booleans, or lists of them, got `Date32`"),
        "{error}"
    );
    let error = error_of(one, vec![("age", Arc::new(StringArray::from(vec!["1", "x"])))]);
    assert!(error.starts_with("`/a.parquet` row 2, slot `age`: expected a finite number, got `x`"), "{error}");
    assert!(error.contains("hint: correct the data or its description"), "{error}");
}

#[test]
fn malformed_rows_are_skipped_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let ages: ArrayRef = Arc::new(StringArray::from(vec!["1", "x", "3"]));
    write_parquet(&path, &RecordBatch::try_from_iter([("age", ages)]).unwrap());
    let config = config(&spec(r#"dense = [{ column = "age" }]"#), false, path).on_bad_line(OnBadLine::Skip);
    let dataset = QueueDataset::new(config).unwrap();
    assert_eq!(batches(&dataset).unwrap()[0].rows, 2);
}

#[test]
fn a_file_of_another_kind_and_a_pipe_command_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let spec = spec(r#"dense = [{ column = "age" }]"#);
    let dataset = || QueueDataset::new(config(&spec, false, path.clone())).unwrap();
    std::fs::write(&path, "age\n1\n").unwrap();
    let error = report(&batches(&dataset()).unwrap_err());
    assert!(error.contains("expected a Parquet or Arrow file, got another beginning"), "{error}");
    std::fs::write(&path, "PAR1 and then nothing").unwrap();
    let error = batches(&dataset()).unwrap_err();
    assert!(matches!(&error, Error::Io { .. }) && report(&error).contains("cannot read"), "{}", report(&error));
    let error = QueueDataset::new(config(&spec, false, path).pipe_command("head")).err().unwrap();
    assert!(report(&error).contains("`pipe_command`"), "{}", report(&error));
}
