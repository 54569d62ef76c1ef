//! Click logs shaped like Criteo's, with a known ceiling: label, 13 numbers, 26 categorical ids.
//!
//! The ids share one space 1..=`ids`. Slots divide it unevenly (a few ids here, a third of all there), ids within a slot
//! follow Zipf's law, and their numbers are shuffled, so that a number says nothing about slot or frequency. A hidden
//! logistic model decides the clicks:
//!
//! ```text
//! z = first-order weight of each id, smaller for rare ids (what cannot be learned should not carry the signal)
//!   + linear effects of the 13 numbers, and waves over two of them
//!   + products of low-rank vectors for 10 pairs of the smaller slots
//! click with probability sigmoid(bias + scale * z)
//! ```
//!
//! `scale` and `bias` are solved for, so that scoring with the true probability has the AUC asked for: the Bayes AUC,
//! which no model beats. [`CriteoWorld`] makes rows in memory, one from its number; [`write()`] makes files of them.
//! Weights and shuffles are computed, never stored, so memory depends neither on rows nor on ids, but for a label and a
//! score for each test row.

use std::path::{Path, PathBuf};

use openfleet_core::Key;
use openfleet_core::metrics::{LogLoss, exact_auc};
use serde::{Deserialize, Serialize};

use super::portable::{exp, ln, sigmoid, wave};
use super::random::{Permutation, Random, Zipf};
use super::{Error, Result, TextFile, count_from, make_directory, push_decimal, share_from};

/// How many numbers a row has.
pub const DENSE: usize = 13;
/// How many categorical slots a row has.
pub const SLOTS: usize = 26;

/// What to make. `CriteoSpec::default()` is a million rows over a million ids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CriteoSpec {
    /// Training rows.
    pub rows: u64,
    /// Test rows, from the same world.
    pub test_rows: u64,
    /// Size of the id space of all slots together.
    pub ids: u64,
    /// Everything follows from it.
    pub seed: u64,
    /// Files each of `train` and `test` is divided into (fewer when there are fewer rows).
    pub parts: usize,
    /// Which files are written, side by side and with the same rows.
    pub formats: Vec<CriteoFormat>,
    /// The Bayes AUC.
    pub auc: f64,
    /// The share of clicks.
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

/// How a row is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CriteoFormat {
    /// `part-K.txt`: a count and that many values for each field, in the order label, dense, C1 to C26.
    MultiSlot,
    /// `part-K.tsv`: label, 13 numbers and 26 ids as 8 hexadecimal digits, separated by tabs.
    Tsv,
}

impl CriteoFormat {
    /// The ending of its files.
    pub fn extension(self) -> &'static str {
        match self {
            CriteoFormat::MultiSlot => "txt",
            CriteoFormat::Tsv => "tsv",
        }
    }
}

/// What was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CriteoFacts {
    /// What was asked for.
    pub spec: CriteoSpec,
    /// The AUC of the true probabilities over the test rows: no model does better but by luck.
    pub bayes_auc: f64,
    /// The mean loss of the true probabilities over the test rows.
    pub bayes_logloss: f64,
    /// How many ids each slot has, C1 to C26.
    pub slot_ids: Vec<u64>,
    /// The factor of z.
    pub scale: f64,
    /// What is added to it.
    pub bias: f64,
    /// The pairs of slots (0 for C1) that act together.
    pub pairs: Vec<(usize, usize)>,
    /// The training files.
    pub train: SplitFacts,
    /// The test files.
    pub test: SplitFacts,
}

/// What was made for `train` or `test`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SplitFacts {
    /// How many rows.
    pub rows: u64,
    /// The share of clicks in them.
    pub click_rate: f64,
    /// All files, part by part.
    pub files: Vec<PathBuf>,
    /// Their size together.
    pub bytes: u64,
}

/// Writes `DIR/train/part-K.*` and `DIR/test/part-K.*`, and gives the facts for the caller to keep. Files of the same
/// names are replaced; other parts of earlier data in the way are an error before anything is written.
pub fn write(spec: &CriteoSpec, directory: &Path) -> Result<CriteoFacts> {
    let world = CriteoWorld::new(spec)?;
    for split in [Split::Train, Split::Test] {
        refuse_leftovers(spec, &directory.join(split.name()), parts_of(spec, split))?;
    }
    let train = write_split(&world, Split::Train, directory, |_| ())?;
    let (mut labels, mut probabilities) = (Vec::new(), Vec::new());
    let test = write_split(&world, Split::Test, directory, |row| {
        labels.push(f32::from(row.label));
        probabilities.push(row.probability);
    })?;
    let mut logloss = LogLoss::new();
    logloss.update(&labels, &probabilities)?;
    Ok(CriteoFacts {
        spec: spec.clone(),
        bayes_auc: exact_auc(&labels, &probabilities)?,
        bayes_logloss: logloss.value(),
        slot_ids: world.slots.iter().map(|slot| slot.ids).collect(),
        scale: world.scale,
        bias: world.bias,
        pairs: world.pairs.clone(),
        train,
        test,
    })
}

/// Which rows: both come from one world and have no row in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Split {
    /// Rows to learn from.
    Train,
    /// Rows to be judged by.
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

/// One row, and the truth behind it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CriteoRow {
    /// 1 for a click, else 0.
    pub label: u8,
    /// In [0, 1), with four decimals.
    pub dense: [f32; DENSE],
    /// One id a slot, from 1 to the size of the id space.
    pub ids: [Key; SLOTS],
    /// The probability the label was drawn with; no part of the data.
    pub probability: f32,
}

/// The hidden model: any row of a specification's data, in any order and on any number of threads.
#[derive(Debug, Clone)]
pub struct CriteoWorld {
    spec: CriteoSpec,
    slots: Vec<Slot>,
    number_of: Permutation,
    dense_weights: [f64; DENSE],
    pairs: Vec<(usize, usize)>,
    scale: f64,
    bias: f64,
}

/// One categorical slot: `ids` places from `first` on in the id space before its numbers are shuffled, in order of
/// falling frequency.
#[derive(Debug, Clone)]
struct Slot {
    first: u64,
    ids: u64,
    zipf: Zipf,
}

/// A row before the label: what the features are, and their z.
struct Features {
    dense: [f32; DENSE],
    ranks: [u64; SLOTS],
    z: f64,
}

const SMALLEST_SLOT: u64 = 4;
/// The largest slot has this many times the weight of the smallest, as in Criteo's own data.
const SLOT_SPREAD: f64 = 60_000.0;
const ZIPF_EXPONENT: f64 = 1.15;
const ZIPF_SHIFT: f64 = 2.0;
/// From about this rank on weights fall with the root of the rank.
const FREQUENT_RANKS: f64 = 200.0;
const PAIRS: usize = 10;
/// Pairs are drawn among this many of the smallest slots, where a pair is seen often enough to be learned.
const PAIRED_SLOTS: usize = 14;
/// The mean of a dense value, which is the square of a uniform.
const DENSE_MEAN: f64 = 1.0 / 3.0;
/// Rows that `scale` and `bias` are solved on.
const CALIBRATION_ROWS: u64 = 1 << 16;

/// Uses of random numbers that must not share them.
mod stream {
    pub(super) const WORLD: u64 = 1;
    pub(super) const NUMBERS: u64 = 2;
    pub(super) const WEIGHTS: u64 = 3;
    pub(super) const FACTORS: u64 = 4;
    pub(super) const CALIBRATION: u64 = 5;
    pub(super) const TRAIN: u64 = 6;
    pub(super) const TEST: u64 = 7;
}

impl CriteoWorld {
    /// Draws the hidden model and solves for the AUC and click rate asked for; takes a second at most.
    pub fn new(spec: &CriteoSpec) -> Result<Self> {
        spec.check()?;
        let mut random = Random::at(spec.seed, stream::WORLD, 0);
        let mut ids_of_slot = ids_of_slots(spec.ids);
        random.shuffle(&mut ids_of_slot);
        let mut first = 0;
        let slots = ids_of_slot.iter().map(|&ids| {
            first += ids;
            Slot { first: first - ids, ids, zipf: Zipf::new(ids, ZIPF_EXPONENT, ZIPF_SHIFT) }
        });
        let slots = slots.collect();
        let mut by_size: Vec<usize> = (0..SLOTS).collect();
        by_size.sort_by_key(|&slot| ids_of_slot[slot]);
        let small = &by_size[..PAIRED_SLOTS];
        let mut pairs: Vec<(usize, usize)> =
            (0..small.len()).flat_map(|b| (0..b).map(move |a| (small[a], small[b]))).collect();
        random.shuffle(&mut pairs);
        pairs.truncate(PAIRS);
        let dense_weights = std::array::from_fn(|_| random.bell());
        let number_of = Permutation::new(spec.ids, spec.seed, stream::NUMBERS);
        let mut world =
            CriteoWorld { spec: spec.clone(), slots, number_of, dense_weights, pairs, scale: 1.0, bias: 0.0 };
        (world.scale, world.bias) = world.solve();
        Ok(world)
    }

    /// Row `index` of a split. Rows beyond those of the specification exist too: the world has no end.
    pub fn row(&self, split: Split, index: u64) -> CriteoRow {
        let stream = match split {
            Split::Train => stream::TRAIN,
            Split::Test => stream::TEST,
        };
        let mut random = Random::at(self.spec.seed, stream, index);
        let features = self.features(&mut random);
        let probability = sigmoid(self.bias + self.scale * features.z);
        CriteoRow {
            label: u8::from(random.uniform() < probability),
            dense: features.dense,
            ids: std::array::from_fn(|slot| self.number_of.of(self.slots[slot].first + features.ranks[slot]) + 1),
            probability: probability as f32,
        }
    }

    /// The rows of a split in order.
    pub fn rows(&self, split: Split) -> impl Iterator<Item = CriteoRow> + '_ {
        (0..self.row_count(split)).map(move |index| self.row(split, index))
    }

    /// How many rows the specification asks for.
    pub fn row_count(&self, split: Split) -> u64 {
        match split {
            Split::Train => self.spec.rows,
            Split::Test => self.spec.test_rows,
        }
    }

    /// What this is the world of.
    pub fn spec(&self) -> &CriteoSpec {
        &self.spec
    }

    fn features(&self, random: &mut Random) -> Features {
        // Four decimals from the start, so that text and memory agree to the bit. Squares crowd the low end, as counts do.
        let tenthousandths: [u32; DENSE] = std::array::from_fn(|_| {
            let uniform = random.uniform();
            (uniform * uniform * 10_000.0) as u32
        });
        let dense = tenthousandths.map(|n| (f64::from(n) / 10_000.0) as f32);
        let ranks = std::array::from_fn(|slot| self.slots[slot].zipf.draw(random));
        let z = self.first_order(&ranks) + self.dense_effect(&dense) + self.pair_effect(&ranks);
        Features { dense, ranks, z }
    }

    fn first_order(&self, ranks: &[u64; SLOTS]) -> f64 {
        let mut sum = 0.0;
        for (slot, &rank) in self.slots.iter().zip(ranks) {
            let weight = Random::at(self.spec.seed, stream::WEIGHTS, slot.first + rank).bell();
            sum += weight * (FREQUENT_RANKS / (FREQUENT_RANKS + rank as f64)).sqrt();
        }
        sum / (SLOTS as f64).sqrt()
    }

    fn dense_effect(&self, dense: &[f32; DENSE]) -> f64 {
        let mut sum = 0.5 * wave(1.3 * f64::from(dense[0])) + 0.5 * wave(1.3 * f64::from(dense[3]));
        for (weight, &value) in self.dense_weights.iter().zip(dense) {
            sum += weight * (f64::from(value) - DENSE_MEAN);
        }
        sum
    }

    fn pair_effect(&self, ranks: &[u64; SLOTS]) -> f64 {
        let factors = |slot: usize| {
            Random::at(self.spec.seed, stream::FACTORS, self.slots[slot].first + ranks[slot]).four_uniform()
        };
        // Four products of two uniforms in (-1, 1) have variance 4/9 together: a pair's is 1/16 of all first-order weights'.
        let product = |&(a, b): &(usize, usize)| -> f64 {
            factors(a).iter().zip(factors(b)).map(|(&left, right)| left * right).sum()
        };
        0.375 * self.pairs.iter().map(product).sum::<f64>()
    }

    /// The scale and bias that give the AUC and the click rate asked for, in expectation over a sample. The order of
    /// rows by probability is that of z whatever the scale, so one sort serves every trial, and the expected AUC weighs
    /// each row as p positives and 1 - p negatives: no labels are drawn, and there is no noise in the search.
    fn solve(&self) -> (f64, f64) {
        let mut z: Vec<f64> = (0..CALIBRATION_ROWS)
            .map(|index| self.features(&mut Random::at(self.spec.seed, stream::CALIBRATION, index)).z)
            .collect();
        z.sort_unstable_by(f64::total_cmp);
        // Bisect the logarithm of the scale.
        let (mut low, mut high) = (ln(0.01), ln(100.0));
        let (mut scale, mut bias) = (1.0, ln(self.spec.click_rate / (1.0 - self.spec.click_rate)));
        for _ in 0..20 {
            let middle = (low + high) / 2.0;
            scale = exp(middle);
            bias = bias_for(&z, scale, self.spec.click_rate, bias);
            if expected_auc(&z, scale, bias) < self.spec.auc {
                low = middle;
            } else {
                high = middle;
            }
        }
        (scale, bias)
    }
}

/// The bias at which the mean probability is the click rate: Newton's steps from a guess, inside a bracket, because the
/// mean rises smoothly with the bias.
fn bias_for(z: &[f64], scale: f64, click_rate: f64, guess: f64) -> f64 {
    let (mut low, mut high) = (-500.0, 500.0);
    let mut bias = guess;
    for _ in 0..100 {
        let (mut mean, mut slope) = (0.0, 0.0);
        for &z in z {
            let p = sigmoid(bias + scale * z);
            mean += p;
            slope += p * (1.0 - p);
        }
        let excess = mean / z.len() as f64 - click_rate;
        if excess.abs() < 1e-7 {
            break;
        }
        if excess < 0.0 {
            low = bias
        } else {
            high = bias
        }
        let newton = bias - excess * z.len() as f64 / slope;
        bias = if newton > low && newton < high { newton } else { (low + high) / 2.0 };
    }
    bias
}

/// The AUC to expect of rows whose z rises: each stands for p positives and 1 - p negatives.
fn expected_auc(z: &[f64], scale: f64, bias: f64) -> f64 {
    let (mut area, mut positives, mut negatives) = (0.0, 0.0, 0.0);
    for &z in z {
        let p = sigmoid(bias + scale * z);
        area += p * negatives;
        positives += p;
        negatives += 1.0 - p;
    }
    area / (positives * negatives)
}

/// How many ids the slots have, smallest first: four each, and the rest in geometric proportion.
fn ids_of_slots(ids: u64) -> Vec<u64> {
    let weights: Vec<f64> = (0..SLOTS).map(|n| exp(ln(SLOT_SPREAD) * n as f64 / (SLOTS - 1) as f64)).collect();
    let total: f64 = weights.iter().sum();
    let rest = ids - SMALLEST_SLOT * SLOTS as u64;
    let mut sizes: Vec<u64> =
        weights.iter().map(|weight| SMALLEST_SLOT + (rest as f64 * weight / total) as u64).collect();
    let given: u64 = sizes.iter().sum();
    sizes[SLOTS - 1] += ids - given;
    sizes
}

fn parts_of(spec: &CriteoSpec, split: Split) -> u64 {
    let rows = if split == Split::Train { spec.rows } else { spec.test_rows };
    (spec.parts as u64).min(rows)
}

fn write_split(
    world: &CriteoWorld,
    split: Split,
    directory: &Path,
    mut see: impl FnMut(&CriteoRow),
) -> Result<SplitFacts> {
    let directory = directory.join(split.name());
    make_directory(&directory)?;
    let (rows, parts) = (world.row_count(split), parts_of(&world.spec, split));
    let mut facts = SplitFacts { rows, click_rate: 0.0, files: Vec::new(), bytes: 0 };
    let mut clicks = 0_u64;
    let bound = |part: u64| (u128::from(rows) * u128::from(part) / u128::from(parts)) as u64;
    for part in 0..parts {
        let mut files = Vec::with_capacity(world.spec.formats.len());
        for &format in &world.spec.formats {
            let path = directory.join(format!("part-{part}.{}", format.extension()));
            files.push((format, TextFile::create(path)?));
        }
        for index in bound(part)..bound(part + 1) {
            let row = world.row(split, index);
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

/// A value in [0, 1) that has four decimals.
fn push_four_decimals(text: &mut Vec<u8>, value: f32) {
    let n = (value * 10_000.0).round() as u32;
    let digit = |power: u32| b'0' + (n / power % 10) as u8;
    text.extend_from_slice(&[b'0', b'.', digit(1000), digit(100), digit(10), digit(1)]);
}

/// Fails if a split's directory has a part that this run does not replace: a pattern such as `train/part-*.txt` would
/// silently mix two worlds.
fn refuse_leftovers(spec: &CriteoSpec, directory: &Path, parts: u64) -> Result<()> {
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

    /// Every file of a directory by its name, with its bytes.
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

    fn written(spec: &CriteoSpec) -> (BTreeMap<String, Vec<u8>>, CriteoFacts) {
        let directory = tempfile::tempdir().unwrap();
        let facts = write(spec, directory.path()).unwrap();
        (contents(directory.path()), facts)
    }

    type Parsed = (u8, Vec<f32>, Vec<Key>);

    /// Reads a MultiSlot line with nothing but its definition.
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
        // If this fails, seeds no longer mean the data they meant: say so in the changelog, or undo the change.
        let (files, _) = written(&CriteoSpec { rows: 300, test_rows: 100, ids: 1000, ..small(1) });
        let hash = files.values().flatten().fold(0, |hash, &byte| openfleet_core::key::mix(hash ^ u64::from(byte)));
        assert_eq!(hash, 6_034_947_960_191_148_436);
    }

    #[test]
    fn both_formats_say_the_rows_of_the_world() {
        let spec = small(7);
        let (files, facts) = written(&spec);
        let world = CriteoWorld::new(&spec).unwrap();
        for split in [Split::Train, Split::Test] {
            let lines = |extension: &str| -> Vec<String> {
                let part = |part| format!("{}/part-{part}.{extension}", split.name());
                let text = (0..spec.parts).map(|n| String::from_utf8(files[&part(n)].clone()).unwrap());
                text.collect::<String>().lines().map(str::to_owned).collect()
            };
            let (multislot, tsv) = (lines("txt"), lines("tsv"));
            assert_eq!((multislot.len(), tsv.len()), (world.row_count(split) as usize, multislot.len()));
            for (row, (left, right)) in world.rows(split).zip(multislot.iter().zip(&tsv)) {
                let expected = (row.label, row.dense.to_vec(), row.ids.to_vec());
                assert_eq!(parse_multislot(left), expected);
                assert_eq!(parse_tsv(right), expected);
            }
        }
        assert_eq!((facts.train.rows, facts.train.files.len()), (2000, 6));
    }

    #[test]
    fn the_bayes_auc_and_the_click_rate_are_those_asked_for() {
        for (auc, click_rate) in [(0.80, 0.25), (0.70, 0.05), (0.95, 0.5)] {
            let spec = CriteoSpec { rows: 1, test_rows: 60_000, auc, click_rate, ..small(3) };
            let (_, facts) = written(&CriteoSpec { formats: vec![CriteoFormat::Tsv], ..spec });
            assert!((facts.bayes_auc - auc).abs() < 0.01, "asked {auc}, got {}", facts.bayes_auc);
            assert!((facts.test.click_rate - click_rate).abs() < 0.01, "asked {click_rate}: {:?}", facts.test);
        }
    }

    #[test]
    fn the_same_ceiling_holds_for_a_million_ids() {
        let spec = CriteoSpec { test_rows: 40_000, ..CriteoSpec::default() };
        let world = CriteoWorld::new(&spec).unwrap();
        let (labels, scores): (Vec<f32>, Vec<f32>) =
            world.rows(Split::Test).map(|row| (f32::from(row.label), row.probability)).unzip();
        assert!((exact_auc(&labels, &scores).unwrap() - 0.80).abs() < 0.01);
    }

    #[test]
    fn ids_are_in_range_and_no_two_slots_share_one() {
        let spec = small(11);
        let world = CriteoWorld::new(&spec).unwrap();
        let mut slot_of: HashMap<Key, usize> = HashMap::new();
        for row in world.rows(Split::Train) {
            assert!(row.dense.iter().all(|value| (0.0..1.0).contains(value)));
            for (slot, id) in row.ids.into_iter().enumerate() {
                assert!((1..=spec.ids).contains(&id));
                assert_eq!(*slot_of.entry(id).or_insert(slot), slot);
            }
        }
        let sizes: Vec<u64> = world.slots.iter().map(|slot| slot.ids).collect();
        assert_eq!(sizes.iter().sum::<u64>(), spec.ids);
        let (smallest, largest) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        assert!(*smallest < 10 && *largest > spec.ids / 4);
    }

    #[test]
    fn the_smallest_id_space_is_four_ids_a_slot() {
        let world = CriteoWorld::new(&CriteoSpec { ids: 104, ..small(1) }).unwrap();
        assert!(world.slots.iter().all(|slot| slot.ids == 4));
        let seen: HashSet<Key> = world.rows(Split::Train).flat_map(|row| row.ids).collect();
        assert_eq!(seen.len(), 104);
    }

    #[test]
    fn a_third_of_a_batchs_ids_are_distinct() {
        let world = CriteoWorld::new(&CriteoSpec::default()).unwrap();
        let mut unique = Unique::new();
        for batch in 0..4 {
            unique.start(512 * SLOTS);
            (0..512).for_each(|row| unique.add(&world.row(Split::Train, batch * 512 + row).ids));
            let share = unique.keys().len() as f64 / unique.inverse().len() as f64;
            assert!((0.2..0.5).contains(&share), "{share}");
        }
    }

    #[test]
    fn train_and_test_are_different_rows_of_one_world() {
        let world = CriteoWorld::new(&small(2)).unwrap();
        assert_ne!(world.row(Split::Train, 0), world.row(Split::Test, 0));
        assert_eq!(world.row(Split::Train, 9), world.row(Split::Train, 9));
        let popular = |split| {
            let mut counts: HashMap<Key, u32> = HashMap::new();
            (0..500).for_each(|index| *counts.entry(world.row(split, index).ids[0]).or_default() += 1);
            counts.into_iter().max_by_key(|&(_, count)| count).unwrap().0
        };
        assert_eq!(popular(Split::Train), popular(Split::Test));
    }

    #[test]
    fn fewer_rows_than_parts_make_one_file_a_row() {
        let (files, _) = written(&CriteoSpec { rows: 2, test_rows: 1, parts: 5, ..small(1) });
        assert_eq!(files.len(), 2 * 3);
        assert!(files.values().all(|bytes| bytes.ends_with(b"\n")));
    }

    #[test]
    fn impossible_specifications_are_refused_with_a_hint() {
        let refused = |spec: CriteoSpec| CriteoWorld::new(&spec).unwrap_err();
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
    fn parts_of_other_data_in_the_way_are_refused_before_anything_is_written() {
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
