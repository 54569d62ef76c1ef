//! How a dense parameter is split into blocks.
//!
//! PaddlePaddle's rule: no block is made smaller than `min_block_size`, there are no more blocks than servers, and blocks have
//! whole rows. PaddlePaddle's documentation says "parameters larger than 8192 elements are split"; its rule gives two blocks
//! only from twice `min_block_size` on, which is what this code does.

use crate::error::{Error, Result};

/// Minimum and default of `min_block_size`: for a smaller block, the message costs more than its content.
pub const MIN_BLOCK_SIZE: usize = 8192;

/// Whether and how finely parameters are split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SliceRule {
    slice_var_up: bool,
    min_block_size: usize,
}

impl SliceRule {
    /// Fails if `min_block_size`, in elements, is below [`MIN_BLOCK_SIZE`], even if `slice_var_up` is false.
    pub fn new(slice_var_up: bool, min_block_size: usize) -> Result<Self> {
        if min_block_size < MIN_BLOCK_SIZE {
            return Err(Error::OptionRange {
                name: "min_block_size",
                expected: "at least 8192 elements",
                got: min_block_size.to_string(),
            });
        }
        Ok(SliceRule { slice_var_up, min_block_size })
    }

    /// Whether large parameters are split at all.
    pub fn slice_var_up(&self) -> bool {
        self.slice_var_up
    }

    /// Minimum number of elements per block.
    pub fn min_block_size(&self) -> usize {
        self.min_block_size
    }

    /// The length of every block except the last, which has the rest: whole rows of `row_length` elements, so that a matrix is
    /// split between rows. Rounding up to rows may give fewer blocks than servers.
    ///
    /// None of the arguments may be 0, and `row_length` must divide `element_count`.
    pub fn block_length(&self, element_count: usize, row_length: usize, server_count: usize) -> usize {
        let most = if self.slice_var_up { (element_count / self.min_block_size).max(1) } else { 1 };
        element_count.div_ceil(most.min(server_count)).div_ceil(row_length) * row_length
    }
}

impl Default for SliceRule {
    fn default() -> Self {
        SliceRule { slice_var_up: true, min_block_size: MIN_BLOCK_SIZE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Hinted;

    fn lengths(rule: SliceRule, shape: &[usize], server_count: usize) -> Vec<usize> {
        let element_count: usize = shape.iter().product();
        let row_length = shape[1..].iter().product();
        let block = rule.block_length(element_count, row_length, server_count);
        (0..element_count).step_by(block).map(|offset| block.min(element_count - offset)).collect()
    }

    /// The vectors were computed from PaddlePaddle's rule, independently of this code.
    #[test]
    fn golden_vectors_of_the_slicing_rule() {
        let rows: &[(&[usize], usize, &[usize])] = &[
            // Exactly one minimal block.
            (&[8192], 2, &[8192]),
            // One element more does not make two.
            (&[8193], 2, &[8193]),
            // Two minimal blocks do.
            (&[16_384], 2, &[8192, 8192]),
            // An embedding table: split between rows of 9.
            (&[1_000_001, 9], 3, &[3_000_006, 3_000_006, 2_999_997]),
            // A square layer: 133.3 rows become 134.
            (&[400, 400], 3, &[53_600, 53_600, 52_800]),
            // Long rows: three blocks on four servers.
            (&[10, 3000], 4, &[12_000, 12_000, 6000]),
            // A single row is never split.
            (&[1, 100_000], 4, &[100_000]),
            // With one server everything stays whole.
            (&[400, 400], 1, &[160_000]),
        ];
        for (shape, server_count, expected) in rows {
            assert_eq!(lengths(SliceRule::default(), shape, *server_count), *expected, "{shape:?} on {server_count}");
        }
    }

    #[test]
    fn a_larger_minimum_makes_fewer_blocks() {
        let rule = SliceRule::new(true, 81_920).unwrap();
        assert_eq!(lengths(rule, &[400, 400], 3), [160_000]);
        assert_eq!(lengths(rule, &[163_840], 3), [81_920, 81_920]);
    }

    #[test]
    fn without_slice_var_up_nothing_is_cut() {
        assert_eq!(lengths(SliceRule::new(false, 8192).unwrap(), &[1_000_001, 9], 3), [9_000_009]);
    }

    #[test]
    fn a_minimum_below_8192_is_an_error() {
        let error = SliceRule::new(true, 8191).unwrap_err();
        assert_eq!(error.to_string(), "`min_block_size` expects at least 8192 elements, got 8191");
        assert!(error.hint().unwrap().contains("slice_var_up"));
        assert!(SliceRule::new(false, 0).is_err(), "checked even where it would not be used");
    }
}
