//! What losses over classes share: how labels are given, and the errors of bad labels.
//!
//! N rows (leading dimensions are flattened), C classes: scores are N x C; labels are N x 1 integers in 0..C, or, soft, N x C
//! floats.

use serde::{Deserialize, Serialize};

use super::{Signature, expected};
use crate::error::{Error, Result};
use crate::memory::Inputs;
use crate::value::{Dim, Shape};

/// How the labels of a loss over classes are given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassLabels {
    /// One float per class instead of one integer.
    pub soft: bool,
    /// Rows with this label have no loss.
    pub ignore_index: i64,
}

impl Default for ClassLabels {
    /// PaddlePaddle's default: integers, and -100 is ignored.
    fn default() -> Self {
        ClassLabels { soft: false, ignore_index: -100 }
    }
}

impl ClassLabels {
    /// Soft labels.
    pub fn soft() -> Self {
        ClassLabels { soft: true, ..ClassLabels::default() }
    }

    /// Checks scores and labels; returns the signature of a loss per row, `[.., 1]`.
    pub(super) fn infer(&self, op: &'static str, scores: &Signature, labels: &Signature) -> Result<Shape> {
        if !scores.dtype.is_float() || !matches!(scores.shape.0.last(), Some(Dim::Fixed(1..))) {
            return expected(op, "float scores [.., C] of a fixed number of classes", &scores.shape);
        }
        if self.soft {
            if !labels.dtype.is_float() || labels.shape != scores.shape {
                let got = format!("{} and {}", scores.shape, labels.shape);
                return expected(op, "soft labels that are floats of the scores' shape", got);
            }
        } else {
            expect_class_labels(op, scores, labels)?;
        }
        let mut dims = scores.shape.0.clone();
        *dims.last_mut().expect("scores have a last dimension") = Dim::Fixed(1);
        Ok(Shape(dims))
    }

    /// The class of row i; `None` if it is ignored.
    pub(super) fn class(&self, op: &'static str, inputs: &Inputs<'_>, i: usize) -> Result<Option<usize>> {
        match inputs.ints(1)[i] as i64 == self.ignore_index {
            true => Ok(None),
            false => class(op, inputs, i).map(Some),
        }
    }
}

/// Fails unless there is one integer label per row of scores: `[.., 1]`, or the same without the last dimension.
pub(super) fn expect_class_labels(op: &'static str, scores: &Signature, labels: &Signature) -> Result<()> {
    let rows = &scores.shape.0[..scores.shape.rank() - 1];
    let fits = labels.shape.0 == rows || labels.shape.0.split_last() == Some((&Dim::Fixed(1), rows));
    if labels.dtype.is_float() || labels.ragged || !fits {
        let kind = match (labels.ragged, labels.dtype.is_float()) {
            (true, _) => "a slot of variable length",
            (_, true) => "float labels",
            _ => "integer labels",
        };
        let got = format!("{} and {kind} {}", scores.shape, labels.shape);
        return expected(op, "scores [.., C] and one integer label [.., 1] for each row", got);
    }
    Ok(())
}

/// The class of row i from input 1, for the scores of input 0.
pub(super) fn class(op: &'static str, inputs: &Inputs<'_>, i: usize) -> Result<usize> {
    let (labels, classes) = (inputs.ints(1), inputs.columns(0));
    if labels[i] < classes as u64 {
        return Ok(labels[i] as usize);
    }
    Err(bad_label(op, inputs, i, labels.len(), &format!("a class in 0..{classes}"), labels[i] as i64))
}

/// Fails if a probability in input 0 is below `least`, above `most` or NaN.
pub(super) fn expect_probabilities(op: &'static str, inputs: &Inputs<'_>, least: f32, most: f32) -> Result<()> {
    let p = inputs.floats(0);
    match p.iter().position(|p| !(least..=most).contains(p)) {
        None => Ok(()),
        Some(at) => Err(Error::Value {
            op,
            what: "a probability".into(),
            expected: "in [0, 1]".into(),
            got: p[at].to_string(),
            row: row_of(inputs, at, p.len()),
        }),
    }
}

/// Fails if a label in input 1 is below 0, above 1 or NaN.
pub(super) fn expect_click_labels(op: &'static str, inputs: &Inputs<'_>) -> Result<()> {
    let labels = inputs.floats(1);
    match labels.iter().position(|label| !(0.0..=1.0).contains(label)) {
        None => Ok(()),
        Some(at) => Err(bad_label(op, inputs, at, labels.len(), "in [0, 1]", labels[at])),
    }
}

/// The error of a label that a loss or metric does not accept: element `at` of `count` of input 1.
pub(super) fn bad_label(
    op: &'static str,
    inputs: &Inputs<'_>,
    at: usize,
    count: usize,
    expected: &str,
    got: impl ToString,
) -> Error {
    let (expected, got) = (expected.to_owned(), got.to_string());
    Error::Value { op, what: LABEL_VALUE.into(), expected, got, row: row_of(inputs, at, count) }
}

/// The name of a bad value in errors before its field is known.
pub(crate) const LABEL_VALUE: &str = "a label";

/// The batch row that element `at` of `count` belongs to; 0 if the value does not depend on the batch.
pub(super) fn row_of(inputs: &Inputs<'_>, at: usize, count: usize) -> usize {
    match count / inputs.rows().max(1) {
        0 => 0,
        per_row => at / per_row,
    }
}
