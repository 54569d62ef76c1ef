//! The share of correctly predicted rows: the label is among the k highest scores, or on the right side of 0.5.

use super::{Target, is_positive, probability, same_length};
use crate::error::{Error, Result};

/// Correct rows divided by all rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Accuracy {
    correct: u64,
    count: u64,
}

impl Accuracy {
    /// No rows yet.
    pub fn new() -> Self {
        Accuracy::default()
    }

    /// From sums that were computed elsewhere, for example over all workers.
    pub fn from_parts(correct: u64, count: u64) -> Self {
        Accuracy { correct, count }
    }

    /// Adds B labels and B x `classes` scores: a row is correct if its label's score is among the `k` highest. Of equal scores
    /// the lower class wins, so a row of equal scores is not correct for every label. A refused batch changes nothing.
    pub fn update_top_k<T: Target>(&mut self, labels: &[T], scores: &[f32], classes: usize, k: usize) -> Result<()> {
        same_length("scores of `accuracy`", labels.len() * classes, scores.len())?;
        let mut correct = 0;
        for (row, &label) in labels.iter().enumerate() {
            let scores = &scores[row * classes..(row + 1) * classes];
            let class = class_of(label, classes, row)?;
            let mut better = 0;
            for (rival, &score) in scores.iter().enumerate() {
                if score.is_nan() {
                    return Err(Error::MetricInput {
                        metric: "accuracy",
                        expected: "scores that can be compared",
                        got: f64::NAN,
                        row,
                    });
                }
                better += usize::from(score > scores[class] || (score == scores[class] && rival < class));
            }
            correct += u64::from(better < k);
        }
        self.correct += correct;
        self.count += labels.len() as u64;
        Ok(())
    }

    /// Adds one probability per label: above 0.5 predicts positive, exactly as the higher of the two scores `1 - p` and `p`
    /// would. A refused batch changes nothing.
    pub fn update_binary<T: Target>(&mut self, labels: &[T], probabilities: &[f32]) -> Result<()> {
        same_length("probabilities of `accuracy`", labels.len(), probabilities.len())?;
        let mut correct = 0;
        for (row, (&label, &p)) in labels.iter().zip(probabilities).enumerate() {
            let guess = probability("accuracy", p, row)? > 0.5;
            correct += u64::from(guess == is_positive("the label of `accuracy`", label, row)?);
        }
        self.correct += correct;
        self.count += labels.len() as u64;
        Ok(())
    }

    /// The share of correct rows, or 0 if there are none.
    pub fn value(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.correct as f64 / self.count as f64 }
    }

    /// Number of correct rows.
    pub fn correct(&self) -> u64 {
        self.correct
    }

    /// Number of rows.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds the rows of another accumulator.
    pub fn merge(&mut self, other: &Accuracy) {
        self.correct += other.correct;
        self.count += other.count;
    }

    /// Removes all rows.
    pub fn reset(&mut self) {
        *self = Accuracy::default();
    }
}

fn class_of(label: impl Target, classes: usize, row: usize) -> Result<usize> {
    let value = label.as_f64();
    if value >= 0.0 && value < classes as f64 && value.fract() == 0.0 {
        Ok(value as usize)
    } else {
        Err(Error::MetricInput { metric: "accuracy", expected: "a class that has a score", got: value, row })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_counts_when_its_score_is_among_the_k_best() {
        let scores = [0.1, 0.7, 0.2, 0.5, 0.3, 0.2];
        let mut metric = Accuracy::new();
        metric.update_top_k(&[2_i64, 0], &scores, 3, 1).unwrap();
        assert_eq!((metric.correct(), metric.count()), (1, 2));
        metric.reset();
        metric.update_top_k(&[2_i64, 0], &scores, 3, 2).unwrap();
        assert_eq!(metric.value(), 1.0);
    }

    #[test]
    fn equal_scores_are_won_by_the_lower_class() {
        let mut metric = Accuracy::new();
        metric.update_top_k(&[0_u64, 1], &[0.5, 0.5, 0.5, 0.5], 2, 1).unwrap();
        assert_eq!(metric.value(), 0.5);
        let mut binary = Accuracy::new();
        binary.update_binary(&[0_u64, 1], &[0.5, 0.5]).unwrap();
        assert_eq!(binary, metric);
    }

    #[test]
    fn a_label_without_a_score_is_refused_with_its_row() {
        let mut metric = Accuracy::new();
        let refused = metric.update_top_k(&[0_i64, 2], &[0.5, 0.5, 0.5, 0.5], 2, 1);
        assert!(matches!(refused, Err(Error::MetricInput { got: 2.0, row: 1, .. })));
        let refused = metric.update_top_k(&[0_i64], &[0.5, f32::NAN], 2, 1);
        assert!(matches!(refused, Err(Error::MetricInput { row: 0, .. })));
        assert_eq!(metric, Accuracy::new());
    }

    #[test]
    fn merged_accuracies_add_up() {
        let mut metric = Accuracy::from_parts(1, 4);
        metric.merge(&Accuracy::from_parts(3, 4));
        assert_eq!(metric.value(), 0.5);
    }
}
