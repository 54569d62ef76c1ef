//! Measures how fast text becomes rows and rows become batches, on one core.
//!
//! Prints `name value unit` lines. Each figure is the best of several runs: what the code can do, without the noise of other
//! processes on the machine. Text is read from a temporary file, as in training, and is in the page cache by then.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::fmt::Write;
use std::time::Instant;

use openfleet_core::{Batch, Field, FieldKind, Schema, key};
use openfleet_engine::dataset::{
    ColumnsSpec, Criteo, Csv, Dataset, DatasetConfig, Format, InMemoryDataset, LibSvm, MultiSlot,
};
use openfleet_testkit::bench::size;

const RUNS: usize = 7;
const BATCH: usize = 512;

fn main() {
    let folder = tempfile::TempDir::new().unwrap();
    let criteo = Criteo::default();
    let columns: ColumnsSpec = toml::from_str(&csv_columns()).unwrap();
    let libsvm = LibSvm { dense: Some([1, 13]), ..LibSvm::default() };
    let cases = [
        ("multislot", multislot_text(), multislot_schema(), Format::MultiSlot(MultiSlot::default())),
        ("criteo_tsv", criteo_text('\t'), criteo.schema(), Format::Criteo(criteo)),
        ("csv", criteo_text(','), columns.schema().unwrap(), Format::Csv(Csv { columns })),
        ("libsvm", libsvm_text(), libsvm.schema().unwrap(), Format::LibSvm(libsvm)),
    ];
    for (name, text, schema, format) in cases {
        let file = folder.path().join(name);
        std::fs::write(&file, &text).unwrap();
        let config = DatasetConfig::new(schema, format).files([file]).batch_size(BATCH);
        let mut dataset = InMemoryDataset::new(config).unwrap();
        let seconds = best(|| dataset.load_into_memory().unwrap());
        println!("{name}_parse {:.0} MB/s", text.len() as f64 / seconds / 1e6);
        println!("{name}_rows {:.0} rows/s", rows() as f64 / seconds);
        if name != "multislot" {
            continue;
        }
        let raw = rows() * (26 * 8 + 13 * 4 + 8);
        println!("memory_ratio {:.3} of_raw_arrays", dataset.memory_bytes() as f64 / raw as f64);
        println!("assemble_{BATCH}_in_order {:.1} us", batch_seconds(&dataset) * 1e6);
        dataset.local_shuffle(1).unwrap();
        println!("assemble_{BATCH}_shuffled {:.1} us", batch_seconds(&dataset) * 1e6);
    }
}

/// Seconds per batch, over a whole pass.
fn batch_seconds(dataset: &InMemoryDataset) -> f64 {
    let mut batch = Batch::new(dataset.schema());
    best(|| {
        let reader = dataset.open().unwrap();
        while reader.next(&mut batch).unwrap() {
            std::hint::black_box(&batch);
        }
    }) / (rows() / BATCH) as f64
}

fn best(mut run: impl FnMut()) -> f64 {
    let time = |run: &mut dyn FnMut()| {
        let started = Instant::now();
        run();
        started.elapsed().as_secs_f64()
    };
    (0..size(RUNS, 1)).map(|_| time(&mut run)).fold(f64::INFINITY, f64::min)
}

fn multislot_schema() -> Schema {
    let mut fields = vec![
        Field::new("label", FieldKind::FixedIds { length: 1 }),
        Field::new("dense", FieldKind::Floats { dim: 13 }),
    ];
    fields.extend((1..=26).map(|slot| Field::new(format!("C{slot}"), FieldKind::Ids)));
    Schema::new(fields).unwrap()
}

/// Ids below a million and decimals of a few digits, as PaddlePaddle's Criteo reader writes them.
fn multislot_text() -> String {
    let mut text = String::new();
    for row in 0..rows() {
        write!(text, "1 {} 13", row % 2).unwrap();
        (0..13).for_each(|column| write!(text, " {}", number(row, column) as f32 / 1e4).unwrap());
        (0..26).for_each(|column| write!(text, " 1 {}", number(row, 13 + column) % 1_000_000).unwrap());
        text.push('\n');
    }
    text
}

fn criteo_text(separator: char) -> String {
    let mut text = String::new();
    for row in 0..rows() {
        write!(text, "{}", row % 2).unwrap();
        (0..13).for_each(|column| write!(text, "{separator}{}", number(row, column) % 1000).unwrap());
        (0..26).for_each(|column| write!(text, "{separator}{:08x}", number(row, 13 + column)).unwrap());
        text.push('\n');
    }
    text
}

fn libsvm_text() -> String {
    let mut text = String::new();
    for row in 0..rows() {
        write!(text, "{}", row % 2).unwrap();
        (0..13).for_each(|column| write!(text, " {}:{}", column + 1, number(row, column) as f32 / 1e4).unwrap());
        (0..26).for_each(|column| write!(text, " {}:1", 14 + number(row, 13 + column) % 1_000_000).unwrap());
        text.push('\n');
    }
    text
}

fn csv_columns() -> String {
    let quoted = |names: &[String]| names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(",");
    let dense: Vec<String> = (1..=13).map(|column| format!("I{column}")).collect();
    let categorical: Vec<String> = (1..=26).map(|column| format!("C{column}")).collect();
    let names = [vec!["y".to_owned()], dense.clone(), categorical.clone()].concat();
    let tables = |kind: &str, names: &[String]| {
        names.iter().map(|name| format!("[[{kind}]]\ncolumn = \"{name}\"\n")).collect::<String>()
    };
    format!(
        "names = [{}]\nlabel = {{ column = \"y\" }}\n{}{}",
        quoted(&names),
        tables("dense", &dense),
        tables("categorical", &categorical)
    )
}

/// A number that looks random and is the same in every run.
fn number(row: usize, column: usize) -> u32 {
    key::mix((row * 64 + column + 1) as u64) as u32
}

fn rows() -> usize {
    size(100_000, 2000)
}
