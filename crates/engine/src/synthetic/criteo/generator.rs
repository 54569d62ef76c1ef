//! The hidden model that decides the clicks of synthetic Criteo data; see the formula in `mod.rs`.

use super::super::Result;
use super::super::portable::{exp, ln, sigmoid, wave};
use super::super::random::{Permutation, Random, Zipf};
use super::{CriteoRow, CriteoSpec, DENSE, SLOTS, Split};

/// The hidden model: generates any row of a specification's data, in any order and on any number of threads.
#[derive(Debug, Clone)]
pub struct CriteoGenerator {
    pub(super) spec: CriteoSpec,
    pub(super) slots: Vec<Slot>,
    number_of: Permutation,
    dense_weights: [f64; DENSE],
    pub(super) pairs: Vec<(usize, usize)>,
    pub(super) scale: f64,
    pub(super) bias: f64,
}

/// One categorical slot: `ids` positions from `first` on in the id space before it is shuffled, in order of falling frequency.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    first: u64,
    pub(super) ids: u64,
    zipf: Zipf,
}

/// A row without its label: the features and their z.
struct Features {
    dense: [f32; DENSE],
    ranks: [u64; SLOTS],
    z: f64,
}

pub(super) const SMALLEST_SLOT: u64 = 4;
/// The largest slot has this many times the weight of the smallest, as in Criteo's own data.
const SLOT_SPREAD: f64 = 60_000.0;
const ZIPF_EXPONENT: f64 = 1.15;
const ZIPF_SHIFT: f64 = 2.0;
/// From about this rank on, weights fall with the square root of the rank.
const FREQUENT_RANKS: f64 = 200.0;
const PAIRS: usize = 10;
/// Pairs are drawn from this many of the smallest slots, where a pair is seen often enough to be learned.
const PAIRED_SLOTS: usize = 14;
/// The mean of a dense value, which is the square of a uniform variable.
const DENSE_MEAN: f64 = 1.0 / 3.0;
/// The number of rows for which `scale` and `bias` are solved.
const CALIBRATION_ROWS: u64 = 1 << 16;

/// Streams of random numbers: one per use, so that uses are independent.
mod stream {
    pub(super) const WORLD: u64 = 1;
    pub(super) const NUMBERS: u64 = 2;
    pub(super) const WEIGHTS: u64 = 3;
    pub(super) const FACTORS: u64 = 4;
    pub(super) const CALIBRATION: u64 = 5;
    pub(super) const TRAIN: u64 = 6;
    pub(super) const TEST: u64 = 7;
}

impl CriteoGenerator {
    /// Draws the hidden model and solves for the AUC and click rate of the specification; takes a second at most.
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
        let mut generator =
            CriteoGenerator { spec: spec.clone(), slots, number_of, dense_weights, pairs, scale: 1.0, bias: 0.0 };
        (generator.scale, generator.bias) = generator.solve();
        Ok(generator)
    }

    /// Row `index` of a split. Rows beyond those of the specification exist too: there is no last row.
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

    /// The number of rows in the specification.
    pub fn row_count(&self, split: Split) -> u64 {
        match split {
            Split::Train => self.spec.rows,
            Split::Test => self.spec.test_rows,
        }
    }

    /// The specification of this generator.
    pub fn spec(&self) -> &CriteoSpec {
        &self.spec
    }

    fn features(&self, random: &mut Random) -> Features {
        // Four decimals from the start, so that text and memory agree to the bit. Squares are dense at the low end, like counts.
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
        // The sum of four products of two uniforms in (-1, 1) has variance 4/9: a pair has 1/16 of the variance of all
        // first-order weights.
        let product = |&(a, b): &(usize, usize)| -> f64 {
            factors(a).iter().zip(factors(b)).map(|(&left, right)| left * right).sum()
        };
        0.375 * self.pairs.iter().map(product).sum::<f64>()
    }

    /// The scale and bias that give the AUC and click rate of the specification, in expectation over a sample. The order of rows
    /// by probability is that of z for every scale, so one sort serves every trial. The expected AUC weighs each row as p
    /// positives and 1 - p negatives: no labels are drawn, so there is no noise in the search.
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

/// The bias at which the mean probability is the click rate: Newton's method from a guess, inside a bracket. It converges because
/// the mean rises smoothly with the bias.
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

/// The expected AUC of rows sorted by z: each counts as p positives and 1 - p negatives.
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

/// The number of ids per slot, smallest first: four each, and the rest in geometric proportion.
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
