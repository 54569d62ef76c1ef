//! Click logs like Criteo's with a known best AUC: label, 13 numbers, 26 categorical ids.
//!
//! The ids share one space 1..=`ids`. Slots divide it unevenly (one has a few ids, another a third of all), ids within a slot
//! follow Zipf's law, and the ids are shuffled, so that an id says nothing about its slot or frequency. A hidden logistic model
//! decides the clicks:
//!
//! ```text
//! z = first-order weight of each id, smaller for rare ids (what cannot be learned should not carry the signal)
//!   + linear effects of the 13 numbers, and waves over two of them
//!   + products of low-rank vectors for 10 pairs of the smaller slots
//! click with probability sigmoid(bias + scale * z)
//! ```
//!
//! `scale` and `bias` are solved for, so that scoring with the true probability has the AUC of the specification: the Bayes AUC,
//! which no model can exceed. [`CriteoGenerator`] computes rows in memory, each from its index; [`write()`] writes them to files.
//! Weights and permutations are computed, never stored, so memory depends neither on rows nor on ids, except for a label and a
//! score per test row.

mod generator;

use std::path::{Path, PathBuf};

use openfleet_core::Key;
use openfleet_core::metrics::{LogLoss, exact_auc};
use serde::{Deserialize, Serialize};

pub use generator::CriteoGenerator;

use self::generator::SMALLEST_SLOT;
use super::{Error, Result, TextFile, count_from, make_directory, push_decimal, share_from};

/// The number of numeric features per row.
pub const DENSE: usize = 13;
/// The number of categorical slots per row.
pub const SLOTS: usize = 26;

/// What to generate. `CriteoSpec::default()` is a million rows over a million ids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CriteoSpec {
    /// Training rows.
    pub rows: u64,
    /// Test rows, from the same hidden model.
    pub test_rows: u64,
    /// The size of the id space of all slots together.
    pub ids: u64,
    /// The seed that determines all of the data.
    pub seed: u64,
    /// The number of files for each of `train` and `test` (fewer if there are fewer rows).
    pub parts: usize,
    /// The formats to write, side by side and with the same rows.
    pub formats: Vec<CriteoFormat>,
    /// The Bayes AUC.
    pub auc: f64,
    /// The fraction of clicks.
    pub click_rate: f64,
}

impl Default for CriteoSpec {
    fn default() -> Self {
        CriteoSpec {
            rows: 1_000_000,
            test_rows: 100_000,
            ids: 1_000_000,
            seed: 1,
            parts: 8,
            formats: vec![CriteoFormat::MultiSlot, CriteoFormat::Tsv],
            auc: 0.80,
            click_rate: 0.25,
        }
    }
}

impl CriteoSpec {
    fn check(&self) -> Result<()> {
        count_from("rows", 1, u64::MAX, self.rows)?;
        count_from("test_rows", 1, u64::MAX, self.test_rows)?;
        count_from("ids", SMALLEST_SLOT * SLOTS as u64, u64::from(u32::MAX), self.ids)?;
        count_from("parts", 1, 100_000, self.parts as u64)?;
        share_from("auc", 0.51, 0.99, self.auc)?;
        share_from("click_rate", 0.001, 0.999, self.click_rate)?;
        if self.formats.is_empty() { Err(Error::NoFormat) } else { Ok(()) }
    }
}

/// The text format of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CriteoFormat {
    /// `part-K.txt`: a count and that many values for each field, in the order label, dense, C1 to C26.
    MultiSlot,
    /// `part-K.tsv`: label, 13 numbers and 26 ids as 8 hexadecimal digits, separated by tabs.
    Tsv,
}

impl CriteoFormat {
    /// The extension of its files.
    pub fn extension(self) -> &'static str {
        match self {
            CriteoFormat::MultiSlot => "txt",
            CriteoFormat::Tsv => "tsv",
        }
    }
}

/// What was generated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CriteoSummary {
    /// The specification.
    pub spec: CriteoSpec,
    /// The AUC of the true probabilities over the test rows: a model can exceed it only by luck.
    pub bayes_auc: f64,
    /// The mean loss of the true probabilities over the test rows.
    pub bayes_logloss: f64,
    /// The number of ids per slot, C1 to C26.
    pub slot_ids: Vec<u64>,
    /// The factor of z.
    pub scale: f64,
    /// Added to the scaled z.
    pub bias: f64,
    /// The pairs of slots (0 for C1) that interact.
    pub pairs: Vec<(usize, usize)>,
    /// The training files.
    pub train: SplitSummary,
    /// The test files.
    pub test: SplitSummary,
}

/// What was generated for `train` or `test`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SplitSummary {
    /// The number of rows.
    pub rows: u64,
    /// The fraction of clicks in them.
    pub click_rate: f64,
    /// All files, part by part.
    pub files: Vec<PathBuf>,
    /// Their total size in bytes.
    pub bytes: u64,
}

/// Writes `DIR/train/part-K.*` and `DIR/test/part-K.*` and returns a summary. Files of the same names are replaced. If there are
/// other parts of earlier data, it fails before anything is written.
pub fn write(spec: &CriteoSpec, directory: &Path) -> Result<CriteoSummary> {
    let generator = CriteoGenerator::new(spec)?;
    for split in [Split::Train, Split::Test] {
        check_no_other_parts(spec, &directory.join(split.name()), parts_of(spec, split))?;
    }
    let train = write_split(&generator, Split::Train, directory, |_| ())?;
    let (mut labels, mut probabilities) = (Vec::new(), Vec::new());
    let test = write_split(&generator, Split::Test, directory, |row| {
        labels.push(f32::from(row.label));
        probabilities.push(row.probability);
    })?;
    let mut logloss = LogLoss::new();
    logloss.update(&labels, &probabilities)?;
    Ok(CriteoSummary {
        spec: spec.clone(),
        bayes_auc: exact_auc(&labels, &probabilities)?,
        bayes_logloss: logloss.value(),
        slot_ids: generator.slots.iter().map(|slot| slot.ids).collect(),
        scale: generator.scale,
        bias: generator.bias,
        pairs: generator.pairs.clone(),
        train,
        test,
    })
}

/// A set of rows. Both sets come from one hidden model and have no row in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Split {
    /// Rows for training.
    Train,
    /// Rows for evaluation.
    Test,
}

impl Split {
    /// The name of its directory.
    pub fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Test => "test",
        }
    }
}

/// One row with its true click probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CriteoRow {
    /// 1 for a click, else 0.
    pub label: u8,
    /// In [0, 1), with four decimals.
    pub dense: [f32; DENSE],
    /// One id per slot, from 1 to the size of the id space.
    pub ids: [Key; SLOTS],
    /// The probability that the label was drawn with; not part of the data.
    pub probability: f32,
}

fn parts_of(spec: &CriteoSpec, split: Split) -> u64 {
    let rows = if split == Split::Train { spec.rows } else { spec.test_rows };
    (spec.parts as u64).min(rows)
}

fn write_split(
    generator: &CriteoGenerator,
    split: Split,
    directory: &Path,
    mut see: impl FnMut(&CriteoRow),
) -> Result<SplitSummary> {
    let directory = directory.join(split.name());
    make_directory(&directory)?;
    let (rows, parts) = (generator.row_count(split), parts_of(&generator.spec, split));
    let mut facts = SplitSummary { rows, click_rate: 0.0, files: Vec::new(), bytes: 0 };
    let mut clicks = 0_u64;
    let bound = |part: u64| (u128::from(rows) * u128::from(part) / u128::from(parts)) as u64;
    for part in 0..parts {
        let mut files = Vec::with_capacity(generator.spec.formats.len());
        for &format in &generator.spec.formats {
            let path = directory.join(format!("part-{part}.{}", format.extension()));
            files.push((format, TextFile::create(path)?));
        }
        for index in bound(part)..bound(part + 1) {
            let row = generator.row(split, index);
            for (format, file) in &mut files {
                push_row(&mut file.text, *format, &row);
                file.line_done()?;
            }
            clicks += u64::from(row.label);
            see(&row);
        }
        for (_, file) in files {
            let (path, bytes) = file.finish()?;
            facts.files.push(path);
            facts.bytes += bytes;
        }
    }
    facts.click_rate = clicks as f64 / rows as f64;
    Ok(facts)
}

fn push_row(text: &mut Vec<u8>, format: CriteoFormat, row: &CriteoRow) {
    match format {
        CriteoFormat::MultiSlot => {
            text.extend_from_slice(b"1 ");
            text.push(b'0' + row.label);
            text.extend_from_slice(b" 13");
            for &value in &row.dense {
                text.push(b' ');
                push_four_decimals(text, value);
            }
            for &id in &row.ids {
                text.extend_from_slice(b" 1 ");
                push_decimal(text, id);
            }
        }
        CriteoFormat::Tsv => {
            text.push(b'0' + row.label);
            for &value in &row.dense {
                text.push(b'\t');
                push_four_decimals(text, value);
            }
            for &id in &row.ids {
                text.push(b'\t');
                text.extend((0..8).rev().map(|digit| b"0123456789abcdef"[(id >> (4 * digit)) as usize & 15]));
            }
        }
    }
    text.push(b'\n');
}

/// Appends a value in [0, 1) with four decimals.
fn push_four_decimals(text: &mut Vec<u8>, value: f32) {
    let n = (value * 10_000.0).round() as u32;
    let digit = |power: u32| b'0' + (n / power % 10) as u8;
    text.extend_from_slice(&[b'0', b'.', digit(1000), digit(100), digit(10), digit(1)]);
}

/// Fails if a split's directory has a part that this run does not replace: a pattern such as `train/part-*.txt` would silently
/// mix two data sets.
fn check_no_other_parts(spec: &CriteoSpec, directory: &Path, parts: u64) -> Result<()> {
    let unreadable = |source| Error::Io { action: "list the directory", path: directory.to_owned(), source };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unreadable(error)),
    };
    for entry in entries {
        let path = entry.map_err(unreadable)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some((part, extension)) = name.strip_prefix("part-").and_then(|rest| rest.split_once('.')) else {
            continue;
        };
        let replaced = part.parse::<u64>().is_ok_and(|part| part < parts)
            && spec.formats.iter().any(|format| format.extension() == extension);
        if !replaced {
            return Err(Error::Leftover { path });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use openfleet_core::error::report;
    use openfleet_core::{Hinted, Unique};
    use std::collections::{BTreeMap, HashMap, HashSet};

    fn small(seed: u64) -> CriteoSpec {
        CriteoSpec { rows: 2000, test_rows: 500, ids: 20_000, seed, parts: 3, ..CriteoSpec::default() }
    }

    /// Every file of a directory by name, with its bytes.
    fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
        let mut contents = BTreeMap::new();
        for split in ["train", "test"] {
            for entry in std::fs::read_dir(directory.join(split)).unwrap() {
                let path = entry.unwrap().path();
                let name = format!("{split}/{}", path.file_name().unwrap().to_str().unwrap());
                contents.insert(name, std::fs::read(path).unwrap());
            }
        }
        contents
    }

    fn written(spec: &CriteoSpec) -> (BTreeMap<String, Vec<u8>>, CriteoSummary) {
        let directory = tempfile::tempdir().unwrap();
        let facts = write(spec, directory.path()).unwrap();
        (contents(directory.path()), facts)
    }

    type Parsed = (u8, Vec<f32>, Vec<Key>);

    /// Parses a MultiSlot line by its definition alone.
    fn parse_multislot(line: &str) -> Parsed {
        let mut words = line.split(' ');
        let mut field = || -> Vec<String> {
            let count: usize = words.next().unwrap().parse().unwrap();
            (0..count).map(|_| words.next().unwrap().to_owned()).collect()
        };
        let label = field()[0].parse().unwrap();
        let dense = field().iter().map(|text| text.parse().unwrap()).collect();
        let ids = (0..SLOTS).map(|_| field()[0].parse().unwrap()).collect();
        assert!(words.next().is_none());
        (label, dense, ids)
    }

    fn parse_tsv(line: &str) -> Parsed {
        let columns: Vec<&str> = line.split('\t').collect();
        assert_eq!(columns.len(), 1 + DENSE + SLOTS);
        let ids = columns[1 + DENSE..].iter().map(|text| {
            assert_eq!(text.len(), 8);
            Key::from_str_radix(text, 16).unwrap()
        });
        let dense = columns[1..1 + DENSE].iter().map(|text| text.parse().unwrap()).collect();
        (columns[0].parse().unwrap(), dense, ids.collect())
    }

    #[test]
    fn one_seed_is_always_the_same_bytes_and_another_seed_is_not() {
        let (first, facts) = written(&small(5));
        let (again, _) = written(&small(5));
        let (other, _) = written(&small(6));
        assert_eq!(first.len(), 12);
        assert!(first == again);
        assert!(first.iter().all(|(name, bytes)| bytes != &other[name]));
        assert_eq!(facts.train.bytes + facts.test.bytes, first.values().map(|bytes| bytes.len() as u64).sum::<u64>());
    }

    #[test]
    fn the_bytes_are_those_of_the_first_release_on_every_machine() {
        // If this fails, seeds no longer give the data that they gave before: say so in the changelog, or undo the change.
        let (files, _) = written(&CriteoSpec { rows: 300, test_rows: 100, ids: 1000, ..small(1) });
        let hash = files.values().flatten().fold(0, |hash, &byte| openfleet_core::key::mix(hash ^ u64::from(byte)));
        assert_eq!(hash, 6_034_947_960_191_148_436);
    }

    #[test]
    fn both_formats_contain_the_rows_of_the_generator() {
        let spec = small(7);
        let (files, facts) = written(&spec);
        let generator = CriteoGenerator::new(&spec).unwrap();
        for split in [Split::Train, Split::Test] {
            let lines = |extension: &str| -> Vec<String> {
                let part = |part| format!("{}/part-{part}.{extension}", split.name());
                let text = (0..spec.parts).map(|n| String::from_utf8(files[&part(n)].clone()).unwrap());
                text.collect::<String>().lines().map(str::to_owned).collect()
            };
            let (multislot, tsv) = (lines("txt"), lines("tsv"));
            assert_eq!((multislot.len(), tsv.len()), (generator.row_count(split) as usize, multislot.len()));
            for (row, (left, right)) in generator.rows(split).zip(multislot.iter().zip(&tsv)) {
                let expected = (row.label, row.dense.to_vec(), row.ids.to_vec());
                assert_eq!(parse_multislot(left), expected);
                assert_eq!(parse_tsv(right), expected);
            }
        }
        assert_eq!((facts.train.rows, facts.train.files.len()), (2000, 6));
    }

    #[test]
    fn the_bayes_auc_and_the_click_rate_are_those_of_the_spec() {
        for (auc, click_rate) in [(0.80, 0.25), (0.70, 0.05), (0.95, 0.5)] {
            let spec = CriteoSpec { rows: 1, test_rows: 60_000, auc, click_rate, ..small(3) };
            let (_, facts) = written(&CriteoSpec { formats: vec![CriteoFormat::Tsv], ..spec });
            assert!((facts.bayes_auc - auc).abs() < 0.01, "asked {auc}, got {}", facts.bayes_auc);
            assert!((facts.test.click_rate - click_rate).abs() < 0.01, "asked {click_rate}: {:?}", facts.test);
        }
    }

    #[test]
    fn the_bayes_auc_holds_for_a_million_ids() {
        let spec = CriteoSpec { test_rows: 40_000, ..CriteoSpec::default() };
        let generator = CriteoGenerator::new(&spec).unwrap();
        let (labels, scores): (Vec<f32>, Vec<f32>) =
            generator.rows(Split::Test).map(|row| (f32::from(row.label), row.probability)).unzip();
        assert!((exact_auc(&labels, &scores).unwrap() - 0.80).abs() < 0.01);
    }

    #[test]
    fn ids_are_in_range_and_no_two_slots_share_one() {
        let spec = small(11);
        let generator = CriteoGenerator::new(&spec).unwrap();
        let mut slot_of: HashMap<Key, usize> = HashMap::new();
        for row in generator.rows(Split::Train) {
            assert!(row.dense.iter().all(|value| (0.0..1.0).contains(value)));
            for (slot, id) in row.ids.into_iter().enumerate() {
                assert!((1..=spec.ids).contains(&id));
                assert_eq!(*slot_of.entry(id).or_insert(slot), slot);
            }
        }
        let sizes: Vec<u64> = generator.slots.iter().map(|slot| slot.ids).collect();
        assert_eq!(sizes.iter().sum::<u64>(), spec.ids);
        let (smallest, largest) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        assert!(*smallest < 10 && *largest > spec.ids / 4);
    }

    #[test]
    fn the_smallest_id_space_has_four_ids_per_slot() {
        let generator = CriteoGenerator::new(&CriteoSpec { ids: 104, ..small(1) }).unwrap();
        assert!(generator.slots.iter().all(|slot| slot.ids == 4));
        let seen: HashSet<Key> = generator.rows(Split::Train).flat_map(|row| row.ids).collect();
        assert_eq!(seen.len(), 104);
    }

    #[test]
    fn a_third_of_a_batchs_ids_are_distinct() {
        let generator = CriteoGenerator::new(&CriteoSpec::default()).unwrap();
        let mut unique = Unique::new();
        for batch in 0..4 {
            unique.start(512 * SLOTS);
            (0..512).for_each(|row| unique.add(&generator.row(Split::Train, batch * 512 + row).ids));
            let share = unique.keys().len() as f64 / unique.inverse().len() as f64;
            assert!((0.2..0.5).contains(&share), "{share}");
        }
    }

    #[test]
    fn train_and_test_are_different_rows_of_one_generator() {
        let generator = CriteoGenerator::new(&small(2)).unwrap();
        assert_ne!(generator.row(Split::Train, 0), generator.row(Split::Test, 0));
        assert_eq!(generator.row(Split::Train, 9), generator.row(Split::Train, 9));
        let popular = |split| {
            let mut counts: HashMap<Key, u32> = HashMap::new();
            (0..500).for_each(|index| *counts.entry(generator.row(split, index).ids[0]).or_default() += 1);
            counts.into_iter().max_by_key(|&(_, count)| count).unwrap().0
        };
        assert_eq!(popular(Split::Train), popular(Split::Test));
    }

    #[test]
    fn fewer_rows_than_parts_make_one_file_per_row() {
        let (files, _) = written(&CriteoSpec { rows: 2, test_rows: 1, parts: 5, ..small(1) });
        assert_eq!(files.len(), 2 * 3);
        assert!(files.values().all(|bytes| bytes.ends_with(b"\n")));
    }

    #[test]
    fn impossible_specifications_are_refused_with_a_hint() {
        let refused = |spec: CriteoSpec| CriteoGenerator::new(&spec).unwrap_err();
        for error in [
            refused(CriteoSpec { rows: 0, ..small(1) }),
            refused(CriteoSpec { test_rows: 0, ..small(1) }),
            refused(CriteoSpec { ids: 103, ..small(1) }),
            refused(CriteoSpec { ids: 1 << 40, ..small(1) }),
            refused(CriteoSpec { parts: 0, ..small(1) }),
            refused(CriteoSpec { auc: 0.5, ..small(1) }),
            refused(CriteoSpec { auc: f64::NAN, ..small(1) }),
            refused(CriteoSpec { click_rate: 25.0, ..small(1) }),
            refused(CriteoSpec { formats: Vec::new(), ..small(1) }),
        ] {
            assert!(error.hint().is_some(), "{error}");
        }
        assert_eq!(
            report(&refused(CriteoSpec { ids: 50, ..small(1) })),
            "expected `ids` from 104 to 4294967295, got 50\n\nhint: 26 slots with at least 4 ids each need 104"
        );
    }

    #[test]
    fn parts_of_other_data_are_refused_before_anything_is_written() {
        let directory = tempfile::tempdir().unwrap();
        write(&CriteoSpec { parts: 4, ..small(1) }, directory.path()).unwrap();
        let before = contents(directory.path());
        let refused = write(&CriteoSpec { parts: 2, ..small(2) }, directory.path()).unwrap_err();
        assert!(matches!(&refused, Error::Leftover { path } if path.starts_with(directory.path())), "{refused}");
        assert!(contents(directory.path()) == before);
        write(&CriteoSpec { parts: 4, ..small(2) }, directory.path()).unwrap();
        assert!(contents(directory.path()) != before);
    }
}
