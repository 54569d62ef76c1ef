//! What convolutions and pooling share: which elements of a plane each window covers.
//!
//! A plane is H x W. Window i of a dimension covers elements `i * stride - padding` and on, `dilation` apart; elements beyond the
//! plane are padding.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::expected;
use crate::error::Result;
use crate::value::Dim;

/// The windows along one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Windows {
    /// Elements that a window covers.
    pub size: usize,
    /// The distance between the starts of two windows.
    pub stride: usize,
    /// Elements of padding before the first element.
    pub before: usize,
    /// Elements of padding after the last element.
    pub after: usize,
    /// The distance between two elements of a window.
    pub dilation: usize,
}

impl Windows {
    /// Windows of this size, one after the other, without padding.
    pub fn of_size(size: usize) -> Self {
        Windows { size, stride: size, before: 0, after: 0, dilation: 1 }
    }

    /// Fails unless sizes, strides and dilations are at least 1.
    pub(super) fn check(&self, op: &'static str) -> Result<()> {
        match self.size == 0 || self.stride == 0 || self.dilation == 0 {
            true => expected(op, "sizes, strides and dilations of at least 1", format!("{self:?}")),
            false => Ok(()),
        }
    }

    /// How far a window reaches.
    fn reach(&self) -> usize {
        self.dilation * (self.size - 1) + 1
    }

    /// The number of windows over `length` elements; `None` if not even one fits. With `ceil`, a window may reach beyond the
    /// padding.
    pub(super) fn count(&self, length: usize, ceil: bool) -> Option<usize> {
        let free = (length + self.before + self.after).checked_sub(self.reach())?;
        let steps = if ceil { free.div_ceil(self.stride) } else { free / self.stride };
        Some(steps + 1)
    }

    /// [`count`](Self::count) as a dimension.
    pub(super) fn infer(&self, op: &'static str, length: Dim, ceil: bool) -> Result<Dim> {
        match length {
            Dim::Fixed(length) => match self.count(length, ceil) {
                Some(count) => Ok(Dim::Fixed(count)),
                None => {
                    let wanted = format!("at least {} elements, with the padding, for a window", self.reach());
                    expected(op, wanted, length + self.before + self.after)
                }
            },
            _ => Ok(Dim::Unknown),
        }
    }

    /// The element that a window covers at an offset, if it is not padding.
    pub(super) fn element(&self, window: usize, offset: usize, length: usize) -> Option<usize> {
        (window * self.stride + offset * self.dilation).checked_sub(self.before).filter(|&at| at < length)
    }

    /// The elements of a window without dilation that are not padding.
    pub(super) fn covered(&self, window: usize, length: usize) -> Range<usize> {
        let start = window * self.stride;
        let end = (start + self.size).saturating_sub(self.before).min(length);
        start.saturating_sub(self.before).min(end)..end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_counted_and_padded_as_the_formula_says() {
        let windows = Windows { size: 3, stride: 2, before: 1, after: 1, dilation: 1 };
        // (6 + 2 - 3) / 2 + 1, rounded down and up.
        assert_eq!((windows.count(6, false), windows.count(6, true)), (Some(3), Some(4)));
        assert_eq!((windows.covered(0, 6), windows.covered(2, 6), windows.covered(3, 6)), (0..2, 3..6, 5..6));
        assert_eq!(
            (windows.element(0, 0, 6), windows.element(0, 1, 6), windows.element(3, 1, 6)),
            (None, Some(0), None)
        );
        assert_eq!(Windows { dilation: 3, ..windows }.count(4, false), None, "7 elements for a window, 6 with padding");
    }
}
