//! What a user sees between a file list and the first batch: missing files, compression, malformed lines, pipe commands.
#![allow(clippy::unwrap_used)] // helpers outside `#[test]` functions are tests too

use std::io::Write;
use std::path::{Path, PathBuf};

use openfleet_core::error::report;
use openfleet_core::{Batch, Column, Field, FieldKind, Schema};
use openfleet_engine::dataset::{
    ColumnsSpec, Csv, Dataset, DatasetConfig, Error, Format, InMemoryDataset, MultiSlot, OnBadLine, QueueDataset,
    Result,
};
use tempfile::TempDir;

fn schema() -> Schema {
    Schema::new(vec![Field::new("label", FieldKind::FixedIds { length: 1 }), Field::new("words", FieldKind::Ids)])
        .unwrap()
}

fn config(files: &[PathBuf]) -> DatasetConfig {
    DatasetConfig::new(schema(), Format::MultiSlot(MultiSlot::default())).files(files).batch_size(100)
}

fn write(folder: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// The first batch, and the number of skipped lines, by streaming and by loading: both must agree.
fn first_batch(config: DatasetConfig) -> Result<(Batch, u64)> {
    let streamed = {
        let dataset = QueueDataset::new(config.clone())?;
        let reader = dataset.open()?;
        let mut batch = Batch::default();
        reader.next(&mut batch).map(|_| (batch, reader.progress().skipped_lines))
    };
    let loaded = (|| {
        let mut dataset = InMemoryDataset::new(config)?;
        dataset.load_into_memory()?;
        let mut batch = Batch::default();
        dataset.open()?.next(&mut batch)?;
        Ok::<_, Error>((batch, dataset.skipped_lines()))
    })();
    match (&streamed, &loaded) {
        (Ok(streamed), Ok(loaded)) => assert_eq!(streamed, loaded),
        (Err(streamed), Err(loaded)) => assert_eq!(report(streamed), report(loaded)),
        _ => panic!("streaming gave {streamed:?}, loading {loaded:?}"),
    }
    streamed
}

fn labels(batch: &Batch) -> &[u64] {
    let Column::Ids { keys, .. } = &batch.columns[0] else { panic!("labels are integers") };
    keys
}

fn error_text(config: DatasetConfig) -> String {
    first_batch(config).unwrap_err().to_string()
}

#[test]
fn a_missing_file_is_named_before_any_training() {
    let folder = TempDir::new().unwrap();
    let good = write(&folder, "good", b"1 1 1 5\n");
    let absent = folder.path().join("absent");
    let config = config(&[good, absent.clone()]);
    // `open` itself fails: no row of the good file is returned first.
    assert!(matches!(QueueDataset::new(config.clone()).unwrap().open().err(), Some(Error::MissingFile { .. })));
    let text = format!(
        "data file `{}` does not exist\n\nhint: check the path; relative paths start at the working directory",
        absent.display()
    );
    assert_eq!(report(&first_batch(config).unwrap_err()), text);
}

#[test]
fn an_empty_file_list_is_an_error() {
    assert_eq!(first_batch(config(&[])).unwrap().0.rows, 0);
}

#[test]
fn a_folder_is_not_a_file() {
    let folder = TempDir::new().unwrap();
    let text = error_text(config(&[folder.path().to_owned()]));
    assert_eq!(text, format!("cannot open `{}`", folder.path().display()));
}

#[test]
fn settings_out_of_range_are_refused() {
    let error = QueueDataset::new(config(&[]).batch_size(0)).err().unwrap();
    assert_eq!(error.to_string(), "`batch_size`: expected at least 1, got 0");
    let error = QueueDataset::new(config(&[]).thread_num(0)).err().unwrap();
    assert_eq!(error.to_string(), "`thread_num`: expected at least 1, got 0");
}

#[test]
fn plain_gzip_and_zstd_files_give_the_same_rows() {
    let folder = TempDir::new().unwrap();
    // More than one piece of text, and a file of two gzip members and of two zstd frames.
    let text: String = (0..40_000).map(|row| format!("1 {} 2 {row} {}\n", row % 2, row * 7)).collect();
    let (first, second) = text.as_bytes().split_at(text.len() / 3);
    let gzip = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let zstd = |bytes: &[u8]| zstd::encode_all(bytes, 1).unwrap();
    let plain = write(&folder, "plain.txt", text.as_bytes());
    let packed = [
        write(&folder, "two_members.gz", &[gzip(first), gzip(second)].concat()),
        write(&folder, "two_frames.zst", &[zstd(first), zstd(second)].concat()),
        write(&folder, "gzip_by_its_bytes", &gzip(text.as_bytes())),
    ];
    let (expected, _) = first_batch(config(&[plain]).batch_size(50_000)).unwrap();
    assert_eq!(expected.rows, 40_000);
    for file in packed {
        let (batch, _) = first_batch(config(std::slice::from_ref(&file)).batch_size(50_000)).unwrap();
        assert!(batch == expected, "{}", file.display());
    }
}

#[test]
fn a_damaged_gzip_file_is_an_error_that_names_it() {
    let folder = TempDir::new().unwrap();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    (0..10_000).for_each(|row| writeln!(encoder, "1 1 1 {row}").unwrap());
    let bytes = encoder.finish().unwrap();
    let file = write(&folder, "cut.gz", &bytes[..bytes.len() / 2]);
    let error = first_batch(config(std::slice::from_ref(&file)).batch_size(20_000)).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot read `{}`", file.display()));
    assert!(report(&error).contains("because: "), "{}", report(&error));
}

#[test]
fn windows_line_ends_byte_order_marks_and_blank_lines_at_the_end_are_tolerated() {
    let folder = TempDir::new().unwrap();
    let file = write(&folder, "windows", b"\xef\xbb\xbf1 1 1 5\r\n1 0 0\r\n\r\n  \n\n");
    let no_newline = write(&folder, "no newline", b"1 7 0");
    let empty = write(&folder, "empty", b"");
    let (batch, skipped) = first_batch(config(&[file, empty, no_newline])).unwrap();
    assert_eq!((labels(&batch), skipped), ([1, 0, 7].as_slice(), 0));
}

#[test]
fn id_0_and_empty_slots_are_kept() {
    let folder = TempDir::new().unwrap();
    let file = write(&folder, "file", b"1 0 2 0 0\n1 0 0\n1 1 1 0\n");
    let (batch, _) = first_batch(config(&[file])).unwrap();
    assert_eq!(batch.columns[1], Column::Ids { offsets: vec![0, 2, 2, 3], keys: vec![0, 0, 0] });
}

#[test]
fn a_bad_line_names_file_line_slot_expected_and_got() {
    let folder = TempDir::new().unwrap();
    let table: [(&str, &str); 5] = [
        ("1 1 2 5 x", ", slot `words`: expected an integer of 64 bits, got `x`"),
        ("1 1 3 5 6", ", slot `words`: expected 3 ids, got 2 and the end of the line"),
        ("1 1", ", slot `words`: expected a count of values, got the end of the line"),
        ("1 1 1 5 9", ": expected the end of the line after slot `words`, got `9`"),
        ("", ": expected a row, got an empty line"),
    ];
    for (line, expected) in table {
        let file = write(&folder, "file", format!("1 1 1 5\n1 0 1 6\n{line}\n1 1 1 7\n").as_bytes());
        assert_eq!(
            report(&first_batch(config(std::slice::from_ref(&file))).unwrap_err()),
            format!(
                "`{}` line 3{expected}\n\nhint: fix the line or the order of the slots, \
                 or skip and count bad lines with `on_bad_line = skip`",
                file.display()
            )
        );
    }
}

#[test]
fn line_numbers_count_across_pieces_of_a_large_file() {
    let folder = TempDir::new().unwrap();
    let mut text = "1 1 2 123456 123456\n".repeat(50_000);
    text += "1 1 1 bad\n";
    let file = write(&folder, "large", text.as_bytes());
    let expected = format!("`{}` line 50001, slot `words`: expected an integer of 64 bits, got `bad`", file.display());
    assert_eq!(error_text(config(&[file]).batch_size(60_000)), expected);
}

#[test]
fn skipped_lines_are_counted_and_leave_no_rows() {
    let folder = TempDir::new().unwrap();
    let file = write(&folder, "file", b"1 1 1 5\n1 2 9\n\n1 3 1 x\n1 4 2 6 7\n");
    let (batch, skipped) = first_batch(config(&[file]).on_bad_line(OnBadLine::Skip)).unwrap();
    assert_eq!((labels(&batch), skipped), ([1, 4].as_slice(), 3));
    assert_eq!(batch.columns[1], Column::Ids { offsets: vec![0, 1, 3], keys: vec![5, 6, 7] });
}

#[test]
fn a_wrong_header_is_never_skipped() {
    let folder = TempDir::new().unwrap();
    let file = write(&folder, "file.csv", b"a,b\n1,2\n");
    let columns: ColumnsSpec = toml::from_str("label = { column = \"c\" }\nignore = [\"*\"]").unwrap();
    let schema = columns.schema().unwrap();
    let config =
        DatasetConfig::new(schema, Format::Csv(Csv { columns })).files([file.clone()]).on_bad_line(OnBadLine::Skip);
    let expected =
        format!("`{}` line 1, slot `c`: expected a column of this name, got the header `a,b`", file.display());
    assert_eq!(error_text(config), expected);
}

#[test]
fn each_csv_file_has_its_own_header() {
    let folder = TempDir::new().unwrap();
    let first = write(&folder, "first.csv", b"label,x\n1,9\n");
    let second = write(&folder, "second.csv", b"x,label\n9,0\n\n");
    let columns: ColumnsSpec = toml::from_str("label = { column = \"label\" }\nignore = [\"x\"]").unwrap();
    let schema = columns.schema().unwrap();
    let config = DatasetConfig::new(schema, Format::Csv(Csv { columns })).files([first, second]).batch_size(10);
    assert_eq!(labels(&first_batch(config).unwrap().0), [1, 0]);
}

#[test]
fn a_pipe_command_sees_each_decompressed_file() {
    let folder = TempDir::new().unwrap();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(b"1;10\n0;20\n").unwrap();
    let packed = write(&folder, "packed.gz", &encoder.finish().unwrap());
    let plain = write(&folder, "plain", b"1;30");
    let command = "awk -F ';' '{ print 1, $1, 1, $2 }'";
    let (batch, _) = first_batch(config(&[packed, plain]).pipe_command(command)).unwrap();
    assert_eq!(labels(&batch), [1, 0, 1]);
    assert_eq!(batch.columns[1], Column::Ids { offsets: vec![0, 1, 2, 3], keys: vec![10, 20, 30] });
}

#[test]
fn a_pipe_command_that_crashes_is_an_error_though_it_wrote_rows() {
    let folder = TempDir::new().unwrap();
    let file = write(&folder, "file", b"1 1 1 5\n");
    let command = "cat && echo 'Traceback: no such column' >&2 && exit 7";
    let error = first_batch(config(std::slice::from_ref(&file)).pipe_command(command)).unwrap_err();
    assert_eq!(
        report(&error),
        format!(
            "`{command}` on `{path}` ended with exit code 7; last lines of stderr:\n  Traceback: no such column\n\n\
             hint: try it by hand: `{command} < {path}`",
            path = file.display()
        )
    );
}

#[test]
fn a_pipe_command_that_does_not_exist_is_an_error() {
    let folder = TempDir::new().unwrap();
    let file = write(&folder, "file", b"1 1 1 5\n");
    let error = first_batch(config(&[file]).pipe_command("no-such-command-here")).unwrap_err();
    assert!(matches!(&error, Error::PipeFailed { status, .. } if status == "exit code 127"), "{error}");
    let text = report(&error);
    assert!(text.ends_with("hint: the shell did not find the command: check its name and `PATH`"), "{text}");
}

#[test]
fn a_bad_line_from_a_pipe_command_names_the_file_it_was_reading() {
    let folder = TempDir::new().unwrap();
    let file = write(&folder, "file", b"1 1 1 5\n");
    let text = error_text(config(std::slice::from_ref(&file)).pipe_command("echo 1 1 1 x; sleep 600"));
    let expected = format!("`{}` line 1, slot `words`: expected an integer of 64 bits, got `x`", file.display());
    assert_eq!(text, expected);
}

#[test]
fn a_slot_the_files_do_not_have_is_an_error_before_they_are_opened() {
    let layout = Format::MultiSlot(MultiSlot::with_slots(["label", "word"]));
    let error = QueueDataset::new(DatasetConfig::new(schema(), layout).files([Path::new("absent")])).err().unwrap();
    let text = "slot `words` is not in the file's slots\n\nhint: did you mean `word`?";
    assert_eq!(report(&error), text);
}
