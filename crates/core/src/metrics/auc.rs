//! Area under the ROC curve: from counters, exactly as PaddlePaddle counts, and without buckets.
//!
//! [`Auc`] sorts probabilities into 4,096 buckets (`floor(p * 4095)`, multiplied in `f32` as in PaddlePaddle) and counts
//! positives and negatives in each: over all batches (`stat_pos`, `stat_neg`) and over the last `slide_steps` batches
//! (`batch_stat_pos`, `batch_stat_neg`). The counters are plain integers with PaddlePaddle's names: a program zeroes them
//! before inference, a checkpoint saves them, and workers add them up. The area is computed only on request, so the cost of a
//! batch depends on its rows and not on the buckets, and an update allocates nothing after warm-up.
//!
//! [`exact_auc`] is the rank statistic without buckets, for evaluation and for checking the other.

use std::collections::VecDeque;

use super::{Target, is_positive, probability, same_length};
use crate::error::{Error, Result};

/// The bucketed AUC of all batches and of a sliding window of batches.
#[derive(Debug, Clone)]
pub struct Auc {
    slide_steps: usize,
    positive: Vec<i64>,
    negative: Vec<i64>,
    window_positive: Vec<i64>,
    window_negative: Vec<i64>,
    /// The batches in the window, oldest first, each as the codes of its rows (see `code`): what must be subtracted when the
    /// batch leaves the window. A sparse histogram: 512 rows touch few of 8,192 counters.
    window: VecDeque<Vec<u32>>,
    /// A batch is checked here before anything is counted; swaps its memory with the batch that leaves the window.
    incoming: Vec<u32>,
    /// The window's counters were set from outside: they do not match the batches in `window`.
    window_was_set: bool,
}

impl Auc {
    /// PaddlePaddle's number of thresholds: 4,096 buckets.
    pub const NUM_THRESHOLDS: usize = 4095;

    /// 4,096 buckets, and a batch window of one batch.
    pub fn new() -> Self {
        Auc::with(Self::NUM_THRESHOLDS, 1)
    }

    /// `num_thresholds + 1` buckets (at least 2), and a window of `slide_steps` batches; 0 means all batches.
    pub fn with(num_thresholds: usize, slide_steps: usize) -> Self {
        let buckets = num_thresholds.max(1) + 1;
        Auc {
            slide_steps,
            positive: vec![0; buckets],
            negative: vec![0; buckets],
            window_positive: vec![0; buckets],
            window_negative: vec![0; buckets],
            window: VecDeque::with_capacity(slide_steps.min(1024)),
            incoming: Vec::new(),
            window_was_set: false,
        }
    }

    /// Adds one batch: a label (above 0 positive, 0 negative) and a probability of the positive class per row. A refused batch
    /// changes nothing.
    pub fn update<T: Target>(&mut self, labels: &[T], probabilities: &[f32]) -> Result<()> {
        self.update_last_column(labels, probabilities, 1)
    }

    /// Adds one batch of B labels and B x `width` predictions, whose last column is the probability of the positive class: the
    /// output of a softmax can be passed directly.
    pub fn update_last_column<T: Target>(&mut self, labels: &[T], predictions: &[f32], width: usize) -> Result<()> {
        let width = width.max(1);
        same_length("predictions of `auc`", labels.len() * width, predictions.len())?;
        let thresholds = (self.buckets() - 1) as f32;
        self.incoming.clear();
        for (row, (&label, columns)) in labels.iter().zip(predictions.chunks_exact(width)).enumerate() {
            let p = probability("auc", columns[width - 1], row)?;
            let positive = is_positive("the label of `auc`", label, row)?;
            self.incoming.push(code((p * thresholds) as u32, positive));
        }
        self.leave_window();
        for &code in &self.incoming {
            let (bucket, positive) = decode(code);
            if positive {
                self.positive[bucket] += 1;
                self.window_positive[bucket] += 1;
            } else {
                self.negative[bucket] += 1;
                self.window_negative[bucket] += 1;
            }
        }
        if self.slide_steps > 0 {
            let spare = if self.window.len() == self.slide_steps { self.window.pop_front() } else { None };
            self.window.push_back(std::mem::replace(&mut self.incoming, spare.unwrap_or_default()));
        }
        Ok(())
    }

    /// The AUC of all batches; 0, like PaddlePaddle's operator, if there is no positive or no negative.
    pub fn value(&self) -> f64 {
        operator_auc(&self.positive, &self.negative)
    }

    /// The AUC of all batches; 0.5, like PaddlePaddle's distributed metric, if there is no positive or no negative.
    pub fn global_value(&self) -> f64 {
        global_auc(&self.positive, &self.negative)
    }

    /// The AUC of the last `slide_steps` batches; 0, like PaddlePaddle's operator, if there is no positive or no negative.
    pub fn batch_value(&self) -> f64 {
        operator_auc(&self.window_positive, &self.window_negative)
    }

    /// Number of rows in all batches.
    pub fn count(&self) -> u64 {
        self.positive.iter().chain(&self.negative).sum::<i64>() as u64
    }

    /// Adds the counters over all batches of another thread or worker. The batch window is unchanged: it belongs to one stream
    /// of batches. Fails, changing nothing, if the numbers of buckets differ.
    pub fn merge(&mut self, other: &Auc) -> Result<()> {
        same_length("buckets of `auc`", self.buckets(), other.buckets())?;
        add(&mut self.positive, &other.positive);
        add(&mut self.negative, &other.negative);
        Ok(())
    }

    /// Zeroes all four counters.
    pub fn reset(&mut self) {
        for counter in AucCounter::ALL {
            self.zero(counter);
        }
    }

    /// Zeroes one counter.
    pub fn zero(&mut self, counter: AucCounter) {
        self.counts_mut(counter).fill(0);
    }

    /// One counter, one number per bucket.
    pub fn counts(&self, counter: AucCounter) -> &[i64] {
        match counter {
            AucCounter::BatchStatPos => &self.window_positive,
            AucCounter::BatchStatNeg => &self.window_negative,
            AucCounter::StatPos => &self.positive,
            AucCounter::StatNeg => &self.negative,
        }
    }

    /// Replaces one counter, with that of a checkpoint or a sum over workers. Fails, changing nothing, on a wrong length or a
    /// negative count. A batch counter set in this way counts as one batch, which the next update replaces (unless the window
    /// is all batches).
    pub fn set_counts(&mut self, counter: AucCounter, counts: &[i64]) -> Result<()> {
        same_length("buckets of `auc`", self.buckets(), counts.len())?;
        if let Some((row, &count)) = counts.iter().enumerate().find(|&(_, &count)| count < 0) {
            let expected = "counts of 0 or above";
            return Err(Error::MetricInput { metric: "auc counter", expected, got: count as f64, row });
        }
        self.counts_mut(counter).copy_from_slice(counts);
        Ok(())
    }

    /// Number of buckets of each counter.
    pub fn buckets(&self) -> usize {
        self.positive.len()
    }

    fn counts_mut(&mut self, counter: AucCounter) -> &mut [i64] {
        if matches!(counter, AucCounter::BatchStatPos | AucCounter::BatchStatNeg) {
            self.window_was_set = true;
        }
        match counter {
            AucCounter::BatchStatPos => &mut self.window_positive,
            AucCounter::BatchStatNeg => &mut self.window_negative,
            AucCounter::StatPos => &mut self.positive,
            AucCounter::StatNeg => &mut self.negative,
        }
    }

    /// Removes the oldest batch from a full window. A window that was set from outside is removed as a whole; otherwise the
    /// batch is subtracted row by row, which is cheaper than clearing all buckets.
    fn leave_window(&mut self) {
        if self.slide_steps == 0 {
            return;
        }
        if self.window_was_set {
            self.window_positive.fill(0);
            self.window_negative.fill(0);
            self.window.iter_mut().for_each(Vec::clear);
            self.window_was_set = false;
        } else if self.window.len() == self.slide_steps {
            for &code in &self.window[0] {
                let (bucket, positive) = decode(code);
                let counts = if positive { &mut self.window_positive } else { &mut self.window_negative };
                counts[bucket] -= 1;
            }
        }
    }
}

impl Default for Auc {
    fn default() -> Self {
        Auc::new()
    }
}

/// The names of the four counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AucCounter {
    /// Positives of the batch window, `batch_stat_pos`.
    BatchStatPos,
    /// Negatives of the batch window, `batch_stat_neg`.
    BatchStatNeg,
    /// Positives of all batches, `stat_pos`.
    StatPos,
    /// Negatives of all batches, `stat_neg`.
    StatNeg,
}

impl AucCounter {
    /// All four, in the order in which PaddlePaddle returns them.
    pub const ALL: [AucCounter; 4] =
        [AucCounter::BatchStatPos, AucCounter::BatchStatNeg, AucCounter::StatPos, AucCounter::StatNeg];

    /// PaddlePaddle's name.
    pub fn name(self) -> &'static str {
        match self {
            AucCounter::BatchStatPos => "batch_stat_pos",
            AucCounter::BatchStatNeg => "batch_stat_neg",
            AucCounter::StatPos => "stat_pos",
            AucCounter::StatNeg => "stat_neg",
        }
    }

    /// The counter with this name.
    pub fn from_name(name: &str) -> Result<Self> {
        AucCounter::ALL.into_iter().find(|counter| counter.name() == name).ok_or_else(|| Error::UnknownField {
            name: name.to_owned(),
            known: AucCounter::ALL.iter().map(|counter| counter.name().to_owned()).collect(),
        })
    }
}

/// Counts one batch into counters of the caller, such as those in a program's scope. Arguments as in
/// [`Auc::update_last_column`]; a refused batch may have been counted in part.
pub fn count_batch<T: Target>(
    labels: &[T],
    predictions: &[f32],
    width: usize,
    positive: &mut [i64],
    negative: &mut [i64],
) -> Result<()> {
    let width = width.max(1);
    same_length("predictions of `auc`", labels.len() * width, predictions.len())?;
    let thresholds = (positive.len() - 1) as f32;
    for (row, (&label, columns)) in labels.iter().zip(predictions.chunks_exact(width)).enumerate() {
        let bucket = (probability("auc", columns[width - 1], row)? * thresholds) as usize;
        let counts = if is_positive("the label of `auc`", label, row)? { &mut *positive } else { &mut *negative };
        counts[bucket] += 1;
    }
    Ok(())
}

/// The area of counters as PaddlePaddle's `auc` operator computes it: without a positive or a negative the area is not
/// normalised, which gives 0.
pub fn operator_auc(positive: &[i64], negative: &[i64]) -> f64 {
    ratio(positive, negative).unwrap_or(0.0)
}

/// The area of counters as PaddlePaddle's distributed metric computes it after adding up the counters of all workers: 0.5
/// without a positive or a negative.
pub fn global_auc(positive: &[i64], negative: &[i64]) -> f64 {
    ratio(positive, negative).unwrap_or(0.5)
}

/// The AUC without buckets: the share of (positive, negative) pairs in which the positive has the higher score, ties counting
/// half. Scores may be any numbers except NaN; 0.5 without a positive or a negative.
pub fn exact_auc<T: Target>(labels: &[T], scores: &[f32]) -> Result<f64> {
    same_length("scores of `exact_auc`", labels.len(), scores.len())?;
    // Score and label in one integer that sorts by score: sorting integers is twice as fast as sorting pairs.
    let mut rows = Vec::with_capacity(labels.len());
    for (row, (&label, &score)) in labels.iter().zip(scores).enumerate() {
        if score.is_nan() {
            let expected = "scores that can be compared";
            return Err(Error::MetricInput { metric: "exact_auc", expected, got: f64::NAN, row });
        }
        let positive = is_positive("the label of `exact_auc`", label, row)?;
        rows.push(u64::from(ordered_bits(score)) << 1 | u64::from(positive));
    }
    rows.sort_unstable();
    // Twice the number of ordered pairs, as integers, so that half a tie is exact.
    let (mut twice_pairs, mut positives, mut negatives) = (0_u128, 0_u64, 0_u64);
    for tied in rows.chunk_by(|a, b| a >> 1 == b >> 1) {
        let tied_positives = tied.iter().map(|row| row & 1).sum::<u64>();
        let tied_negatives = tied.len() as u64 - tied_positives;
        twice_pairs += u128::from(tied_positives) * u128::from(2 * negatives + tied_negatives);
        positives += tied_positives;
        negatives += tied_negatives;
    }
    if positives == 0 || negatives == 0 {
        return Ok(0.5);
    }
    Ok(twice_pairs as f64 / 2.0 / (positives as f64 * negatives as f64))
}

/// Trapezoids from the highest bucket down. A bucket's x side is its negatives, its y sides are the positives above it and up
/// to it; PaddlePaddle sums the same trapezoids in the same order.
fn ratio(positive: &[i64], negative: &[i64]) -> Option<f64> {
    let (mut area, mut positives, mut negatives) = (0.0, 0_i64, 0_i64);
    for (&p, &n) in positive.iter().zip(negative).rev() {
        let above = positives;
        positives += p;
        negatives += n;
        area += n as f64 * (above as f64 + positives as f64) / 2.0;
    }
    (positives > 0 && negatives > 0).then(|| area / positives as f64 / negatives as f64)
}

fn add(sums: &mut [i64], counts: &[i64]) {
    sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
}

/// Encodes a row as the counter it adds to.
fn code(bucket: u32, positive: bool) -> u32 {
    bucket << 1 | u32::from(positive)
}

fn decode(code: u32) -> (usize, bool) {
    ((code >> 1) as usize, code & 1 == 1)
}

/// An integer with the same order as the float; both zeros are equal.
fn ordered_bits(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Hinted, report};
    use crate::key::mix;
    use proptest::prelude::*;

    /// The counters of the last `batches`, counted from scratch.
    fn recounted(batches: &[(Vec<i64>, Vec<f32>)]) -> (Vec<i64>, Vec<i64>) {
        let (mut positive, mut negative) = (vec![0; 4096], vec![0; 4096]);
        for (label, p) in batches.iter().flat_map(|(labels, ps)| labels.iter().zip(ps)) {
            let counts = if *label > 0 { &mut positive } else { &mut negative };
            counts[(p * 4095.0).floor() as usize] += 1;
        }
        (positive, negative)
    }

    fn random_batch(seed: u64, rows: usize) -> (Vec<i64>, Vec<f32>) {
        let labels: Vec<i64> = (0..rows as u64).map(|row| mix(seed << 32 | row).is_multiple_of(4).into()).collect();
        let noise = |row: usize| (mix(seed << 32 | 1 << 31 | row as u64) >> 40) as f32 / (1 << 24) as f32;
        let probabilities = (0..rows).map(|row| 0.7 * noise(row) + 0.3 * labels[row] as f32).collect();
        (labels, probabilities)
    }

    #[test]
    fn four_rows_give_the_area_worked_by_hand() {
        // Pairs (positive, negative): 0.8 beats 0.1 and 0.4, 0.35 beats 0.1 only: 3 of 4.
        let mut auc = Auc::new();
        auc.update(&[0_i64, 0, 1, 1], &[0.1, 0.4, 0.35, 0.8]).unwrap();
        assert_eq!((auc.value(), auc.batch_value(), auc.count()), (0.75, 0.75, 4));
        assert_eq!(exact_auc(&[0_i64, 0, 1, 1], &[0.1, 0.4, 0.35, 0.8]), Ok(0.75));
    }

    #[test]
    fn probabilities_fall_into_paddlepaddles_buckets() {
        let mut auc = Auc::new();
        auc.update(&[1_i64, 1, 0, 0], &[0.0, 1.0, 0.5, 0.999_999]).unwrap();
        let positive = auc.counts(AucCounter::StatPos);
        let negative = auc.counts(AucCounter::StatNeg);
        assert_eq!((positive[0], positive[4095], negative[2047], negative[4094]), (1, 1, 1, 1));
        assert_eq!(positive.len(), 4096);
    }

    #[test]
    fn ties_count_half() {
        assert_eq!(exact_auc(&[0_i64, 1], &[0.5, 0.5]), Ok(0.5));
        assert_eq!(exact_auc(&[0_i64, 1], &[0.0, -0.0]), Ok(0.5));
        // The positive at 2 beats both negatives; the one at 1 beats one and ties with the other: 3.5 of 4 pairs.
        assert_eq!(exact_auc(&[0_i64, 0, 1, 1], &[-3.0, 1.0, 1.0, 2.0]), Ok(3.5 / 4.0));
    }

    #[test]
    fn one_class_alone_is_zero_for_the_operator_and_a_half_for_the_distributed_metric() {
        for label in [0_i64, 1] {
            let mut auc = Auc::new();
            auc.update(&[label, label], &[0.2, 0.9]).unwrap();
            assert_eq!((auc.value(), auc.batch_value(), auc.global_value()), (0.0, 0.0, 0.5));
            assert_eq!(exact_auc(&[label, label], &[0.2, 0.9]), Ok(0.5));
        }
        assert_eq!((Auc::new().value(), Auc::new().global_value()), (0.0, 0.5));
    }

    #[test]
    fn bad_rows_are_refused_with_their_place_and_change_nothing() {
        let mut auc = Auc::new();
        auc.update(&[0_i64, 1], &[0.25, 0.75]).unwrap();
        for (labels, probabilities) in
            [([0_i64, 1], [0.5, 1.000_001]), ([0, 1], [0.5, -0.1]), ([0, 1], [0.5, f32::NAN])]
        {
            let refused = auc.update(&labels, &probabilities).unwrap_err();
            assert!(matches!(refused, Error::MetricInput { metric: "auc", row: 1, .. }));
            assert!(refused.hint().is_some());
        }
        let refused = auc.update(&[0_i64, -1], &[0.5, 0.5]).unwrap_err();
        assert_eq!(refused.to_string(), "the label of `auc` expects 0 or above, got -1 at row 1");
        assert!(matches!(auc.update(&[0_i64], &[0.5, 0.5]), Err(Error::Length { expected: 1, got: 2, .. })));
        assert_eq!((auc.value(), auc.batch_value(), auc.count()), (1.0, 1.0, 2));
        let text = report(&auc.update(&[1_i64], &[-2.0]).unwrap_err());
        assert!(text.starts_with("auc expects a probability from 0 to 1, got -2 at row 0\n\nhint: "), "{text}");
    }

    #[test]
    fn the_last_column_of_a_softmax_is_the_positive_class() {
        let (mut two, mut one) = (Auc::new(), Auc::new());
        two.update_last_column(&[0_u64, 1], &[0.7, 0.3, 0.4, 0.6], 2).unwrap();
        one.update(&[0_u64, 1], &[0.3, 0.6]).unwrap();
        assert_eq!(two.counts(AucCounter::StatPos), one.counts(AucCounter::StatPos));
        assert_eq!(two.counts(AucCounter::StatNeg), one.counts(AucCounter::StatNeg));
    }

    #[test]
    fn the_batch_window_is_the_last_slide_steps_batches_and_the_global_counters_are_all() {
        for slide_steps in [0, 1, 3] {
            let mut auc = Auc::with(Auc::NUM_THRESHOLDS, slide_steps);
            let batches: Vec<_> = (0..7).map(|seed| random_batch(seed, 100 + seed as usize)).collect();
            for (step, (labels, probabilities)) in batches.iter().enumerate() {
                auc.update(labels, probabilities).unwrap();
                let seen = &batches[..=step];
                let first = if slide_steps == 0 { 0 } else { seen.len().saturating_sub(slide_steps) };
                let (positive, negative) = recounted(&seen[first..]);
                assert_eq!(auc.counts(AucCounter::BatchStatPos), positive);
                assert_eq!(auc.counts(AucCounter::BatchStatNeg), negative);
                assert_eq!(auc.batch_value(), operator_auc(&positive, &negative));
                let (positive, negative) = recounted(seen);
                assert_eq!(auc.counts(AucCounter::StatPos), positive);
                assert_eq!(auc.counts(AucCounter::StatNeg), negative);
            }
        }
    }

    #[test]
    fn workers_that_merge_their_counters_find_the_auc_of_all_rows() {
        let (mut first, mut second, mut both) = (Auc::new(), Auc::new(), Auc::new());
        for seed in 0..4 {
            let (labels, probabilities) = random_batch(seed, 200);
            if seed % 2 == 0 { &mut first } else { &mut second }.update(&labels, &probabilities).unwrap();
            both.update(&labels, &probabilities).unwrap();
        }
        let window = first.counts(AucCounter::BatchStatPos).to_vec();
        first.merge(&second).unwrap();
        assert_eq!(first.value(), both.value());
        assert_eq!(first.counts(AucCounter::BatchStatPos), window);
        assert!(matches!(first.merge(&Auc::with(99, 1)), Err(Error::Length { expected: 4096, got: 100, .. })));
        assert_eq!(first.value(), both.value());
    }

    #[test]
    fn counters_are_read_written_and_zeroed_by_paddlepaddles_names() {
        let (labels, probabilities) = random_batch(1, 300);
        let (mut saved, mut loaded) = (Auc::new(), Auc::with(Auc::NUM_THRESHOLDS, 2));
        saved.update(&labels, &probabilities).unwrap();
        for name in ["batch_stat_pos", "batch_stat_neg", "stat_pos", "stat_neg"] {
            let counter = AucCounter::from_name(name).unwrap();
            loaded.set_counts(counter, saved.counts(counter)).unwrap();
        }
        assert_eq!((loaded.value(), loaded.batch_value()), (saved.value(), saved.batch_value()));
        // The window that was set leaves as one batch; the global counters continue.
        loaded.update(&[1_i64, 0], &[0.9, 0.1]).unwrap();
        assert_eq!((loaded.batch_value(), loaded.count()), (1.0, 302));
        loaded.reset();
        assert!(AucCounter::ALL.iter().all(|&counter| loaded.counts(counter).iter().all(|&count| count == 0)));
        loaded.update(&[1_i64, 0], &[0.1, 0.9]).unwrap();
        assert_eq!((loaded.batch_value(), loaded.count()), (0.0, 2));
        loaded.update(&[1_i64, 0], &[0.9, 0.1]).unwrap();
        assert_eq!(loaded.counts(AucCounter::BatchStatPos).iter().sum::<i64>(), 2);
    }

    #[test]
    fn counters_of_a_wrong_shape_or_sign_are_refused() {
        let mut auc = Auc::new();
        assert!(matches!(auc.set_counts(AucCounter::StatPos, &[0; 10]), Err(Error::Length { got: 10, .. })));
        let mut counts = [0; 4096];
        counts[7] = -1;
        assert!(matches!(auc.set_counts(AucCounter::StatPos, &counts), Err(Error::MetricInput { row: 7, .. })));
        let unknown = AucCounter::from_name("stat_positive").unwrap_err();
        assert!(unknown.hint().unwrap().contains("stat_pos"));
    }

    proptest! {
        #[test]
        fn bucketed_auc_is_within_a_bucket_of_the_exact_one(seed: u32, rows in 300_usize..600) {
            let (labels, probabilities) = random_batch(u64::from(seed), rows);
            let mut auc = Auc::new();
            auc.update(&labels, &probabilities).unwrap();
            let exact = exact_auc(&labels, &probabilities).unwrap();
            prop_assert!((auc.global_value() - exact).abs() <= 0.01);
        }

        #[test]
        fn bucketed_auc_is_the_exact_auc_of_the_buckets(rows in prop::collection::vec((0_i64..2, 0_u32..4096), 0..200)) {
            let labels: Vec<i64> = rows.iter().map(|row| row.0).collect();
            let scores: Vec<f32> = rows.iter().map(|row| row.1 as f32 / 4096.0).collect();
            let mut auc = Auc::new();
            auc.update(&labels, &scores).unwrap();
            let buckets: Vec<f32> = scores.iter().map(|score| (score * 4095.0).floor()).collect();
            prop_assert!((auc.global_value() - exact_auc(&labels, &buckets).unwrap()).abs() < 1e-12);
        }

        #[test]
        fn exact_auc_is_the_share_of_ordered_pairs(rows in prop::collection::vec((0_i64..2, -3_i8..4), 0..60)) {
            let labels: Vec<i64> = rows.iter().map(|row| row.0).collect();
            let scores: Vec<f32> = rows.iter().map(|row| f32::from(row.1)).collect();
            let (mut pairs, mut won) = (0.0, 0.0);
            for (_, positive) in rows.iter().filter(|row| row.0 == 1) {
                for (_, negative) in rows.iter().filter(|row| row.0 == 0) {
                    pairs += 1.0;
                    won += if positive > negative { 1.0 } else if positive == negative { 0.5 } else { 0.0 };
                }
            }
            let expected = if pairs == 0.0 { 0.5 } else { won / pairs };
            prop_assert!((exact_auc(&labels, &scores).unwrap() - expected).abs() < 1e-12);
        }
    }
}
