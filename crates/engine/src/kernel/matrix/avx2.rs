//! Matrix products for processors with AVX2 and FMA but without AVX-512, such as AMD's before Zen 4. For the layers of a click model they
//! are 3 to 5 % faster than those of `gemm-f32`, and training is 5 to 9 % faster (docs/benchmarks.md, "Matrix products"): a plain
//! `a` is read in place, so only `b` and a transposed `a` are packed, and blocks are chosen for batches of a few hundred rows.
//!
//! ```text
//! for each block of k        pack b into panels of 16 columns:   panel[p][0..16]
//!   for each block of m      pack a, if it is transposed, into groups of 6 rows:   group[p][0..6]
//!     for each panel         stays in the first-level cache
//!       for each 6 rows      a tile of 6 x 16 sums in 12 registers, over the whole block of k
//! ```
//!
//! Every element of `c` is the sum of its products in the order of k (and of the blocks of k), whatever m is: the result of a row does
//! not depend on the other rows of the batch.
//!
//! This file does not choose whether it is used; `multiply` does.

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use super::{Orientation, Plain, Product, Transposed};

/// Rows and columns of a tile: 12 registers for sums, 2 for a row of `b`, 1 for an element of `a`, of 16.
const ROWS: usize = 6;
const COLUMNS: usize = 16;

/// The largest blocks of k and m. A panel has 32 KB then, and a block of `a` 400 KB; k is mostly smaller.
const MOST_K: usize = 512;
const MOST_M: usize = 192;

/// 16 floats of a cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; COLUMNS]);

/// Packed blocks. Each thread keeps its own, so that a warm product allocates nothing.
#[derive(Debug, Default)]
struct Packed {
    b: Vec<Line>,
    a: Vec<[f32; ROWS]>,
}

thread_local! {
    static PACKED: RefCell<Packed> = RefCell::default();
}

/// Whether this processor is one that these products are for.
pub(super) fn is_preferred() -> bool {
    is_supported() && !is_x86_feature_detected!("avx512f")
}

/// Whether this processor can compute these products.
pub(super) fn is_supported() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

/// The left factor: its elements, as stored in rows that are `stride` apart, and how it is read.
#[derive(Clone, Copy)]
struct Left<'a> {
    values: &'a [f32],
    orientation: Orientation,
    stride: usize,
    m: usize,
}

/// Some rows of a product, as [`super::multiply`], which has checked the lengths. k is not 0.
///
/// # Safety
///
/// The processor must have AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) fn multiply_rows(product: &Product<'_>, rows: Range<usize>, c: &mut [f32]) {
    let Product { m, n, k, a, a_orientation, b, b_orientation, keep } = *product;
    let (values, stride) = match a_orientation {
        Plain => (&a[rows.start * k..rows.end * k], k),
        Transposed => (&a[rows.start..], m),
    };
    let left = Left { values, orientation: a_orientation, stride, m: rows.len() };
    PACKED.with_borrow_mut(|packed| {
        let most_k = even_block(k, MOST_K);
        for first in (0..k).step_by(most_k) {
            let depth = most_k.min(k - first);
            pack_b(n, k, b, b_orientation, first, depth, &mut packed.b);
            let keep = if first == 0 { keep } else { 1.0 };
            add_block(n, left, first, depth, packed, keep, c);
        }
    });
}

/// The size of equal blocks of at most `most` that cover `length`.
fn even_block(length: usize, most: usize) -> usize {
    length.div_ceil(length.div_ceil(most))
}

/// Adds the products of `depth` columns of `a`, from `first` on, with the packed rows of `b`.
#[target_feature(enable = "avx2,fma")]
fn add_block(n: usize, a: Left<'_>, first: usize, depth: usize, packed: &mut Packed, keep: f32, c: &mut [f32]) {
    let most_m = even_block(a.m, MOST_M).next_multiple_of(ROWS);
    for top in (0..a.m).step_by(most_m) {
        let bottom = a.m.min(top + most_m);
        if a.orientation == Transposed {
            pack_a(a, top..bottom, first, depth, &mut packed.a);
        }
        for (panel, left) in packed.b.chunks_exact(depth).zip((0..n).step_by(COLUMNS)) {
            let columns = COLUMNS.min(n - left);
            for row in (top..bottom).step_by(ROWS) {
                let rows = ROWS.min(bottom - row);
                let c = &mut c[row * n + left..][..(rows - 1) * n + columns];
                match a.orientation {
                    Plain => {
                        let values = &a.values[row * a.stride + first..][..(rows - 1) * a.stride + depth];
                        let a = InPlace { values, stride: a.stride };
                        tile(rows, columns, a, panel, keep, c, n);
                    }
                    Transposed => {
                        let start = (row - top) / ROWS * depth;
                        tile(rows, columns, Group(&packed.a[start..start + depth]), panel, keep, c, n);
                    }
                }
            }
        }
    }
}

/// Some rows of `a`, as a tile reads them.
trait Rows: Copy {
    /// The element of a row in a column.
    ///
    /// # Safety
    ///
    /// `row` and `column` must be less than the numbers of rows and columns.
    unsafe fn get(self, row: usize, column: usize) -> f32;

    /// Panics unless there are so many rows and columns.
    fn check(self, rows: usize, columns: usize);
}

/// Rows as stored, `stride` apart.
#[derive(Clone, Copy)]
struct InPlace<'a> {
    values: &'a [f32],
    stride: usize,
}

impl Rows for InPlace<'_> {
    #[inline(always)]
    unsafe fn get(self, row: usize, column: usize) -> f32 {
        // SAFETY: `check` has made sure that the last element of the last row is within the slice.
        unsafe { *self.values.get_unchecked(row * self.stride + column) }
    }

    #[inline(always)]
    fn check(self, rows: usize, columns: usize) {
        assert!(self.values.len() >= (rows - 1) * self.stride + columns, "the rows are there");
    }
}

/// Packed rows.
#[derive(Clone, Copy)]
struct Group<'a>(&'a [[f32; ROWS]]);

impl Rows for Group<'_> {
    #[inline(always)]
    unsafe fn get(self, row: usize, column: usize) -> f32 {
        // SAFETY: `check` has made sure that there are so many columns, and `row` is less than `ROWS`.
        unsafe { *self.0.get_unchecked(column).get_unchecked(row) }
    }

    #[inline(always)]
    fn check(self, rows: usize, columns: usize) {
        assert!(rows <= ROWS && self.0.len() >= columns, "the rows are packed");
    }
}

/// `c = keep * c + a panel` for one tile of `c`, whose rows are `stride` apart.
#[inline(always)]
fn tile(rows: usize, columns: usize, a: impl Rows, panel: &[Line], keep: f32, c: &mut [f32], stride: usize) {
    if columns == COLUMNS {
        return tile_of_rows::<2>(rows, a, panel, keep, c, stride);
    }
    // A tile at the right edge is computed elsewhere: its last columns do not exist.
    let mut whole = [0.0; ROWS * COLUMNS];
    let each = || (0..rows).map(|row| (row * stride, row * COLUMNS));
    each().for_each(|(from, to)| whole[to..to + columns].copy_from_slice(&c[from..from + columns]));
    match columns <= COLUMNS / 2 {
        true => tile_of_rows::<1>(rows, a, panel, keep, &mut whole, COLUMNS),
        false => tile_of_rows::<2>(rows, a, panel, keep, &mut whole, COLUMNS),
    }
    each().for_each(|(to, from)| c[to..to + columns].copy_from_slice(&whole[from..from + columns]));
}

#[inline(always)]
fn tile_of_rows<const VECTORS: usize>(
    rows: usize,
    a: impl Rows,
    panel: &[Line],
    keep: f32,
    c: &mut [f32],
    stride: usize,
) {
    // SAFETY: only `multiply` of this file leads here, which needs a processor with AVX2 and FMA itself.
    unsafe {
        match rows {
            6 => sum::<6, VECTORS>(a, panel, keep, c, stride),
            5 => sum::<5, VECTORS>(a, panel, keep, c, stride),
            4 => sum::<4, VECTORS>(a, panel, keep, c, stride),
            3 => sum::<3, VECTORS>(a, panel, keep, c, stride),
            2 => sum::<2, VECTORS>(a, panel, keep, c, stride),
            _ => sum::<1, VECTORS>(a, panel, keep, c, stride),
        }
    }
}

/// The tile of a constant number of rows and vectors of 8 columns.
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
fn sum<const R: usize, const VECTORS: usize>(a: impl Rows, panel: &[Line], keep: f32, c: &mut [f32], stride: usize) {
    const { assert!(R >= 1 && R <= ROWS && VECTORS >= 1 && 8 * VECTORS <= COLUMNS) };
    a.check(R, panel.len());
    assert!(c.len() >= (R - 1) * stride + 8 * VECTORS, "the tile is within c");
    let c = c.as_mut_ptr();
    let mut sums = [[_mm256_setzero_ps(); VECTORS]; R];
    // SAFETY: the address of each row of the tile is within `c`, as was checked.
    (0..R).for_each(|row| unsafe { _mm_prefetch::<_MM_HINT_T0>(c.add(row * stride).cast()) });
    let mut add = |column: usize, line: &Line| {
        // SAFETY: a line has 16 floats and is aligned to 64 bytes, and at most 2 vectors of 8 are loaded.
        let line: [__m256; VECTORS] = std::array::from_fn(|at| unsafe { _mm256_load_ps(line.0.as_ptr().add(8 * at)) });
        for row in 0..R {
            // SAFETY: `a` was checked to have R rows and as many columns as the panel has lines.
            let value = _mm256_set1_ps(unsafe { a.get(row, column) });
            for at in 0..VECTORS {
                sums[row][at] = _mm256_fmadd_ps(value, line[at], sums[row][at]);
            }
        }
    };
    // Four at a time: the loop then costs nothing beside the 48 operations.
    let (fours, rest) = panel.as_chunks::<4>();
    for (at, lines) in fours.iter().enumerate() {
        for (column, line) in lines.iter().enumerate() {
            add(4 * at + column, line);
        }
    }
    for (at, line) in rest.iter().enumerate() {
        add(4 * fours.len() + at, line);
    }
    for (row, sums) in sums.iter().enumerate() {
        for (at, &sum) in sums.iter().enumerate() {
            // SAFETY: row * stride + 8 * VECTORS <= (R - 1) * stride + 8 * VECTORS, which was checked to be within `c`.
            unsafe {
                let to = c.add(row * stride + 8 * at);
                let sum = match keep {
                    0.0 => sum,
                    _ => _mm256_fmadd_ps(_mm256_set1_ps(keep), _mm256_loadu_ps(to), sum),
                };
                _mm256_storeu_ps(to, sum);
            }
        }
    }
}

/// Packs `depth` rows of `b`, from `first` on: panel after panel, in each a line per row. Lines at the right edge end with zeros.
#[target_feature(enable = "avx2,fma")]
fn pack_b(n: usize, k: usize, b: &[f32], orientation: Orientation, first: usize, depth: usize, packed: &mut Vec<Line>) {
    packed.resize(n.div_ceil(COLUMNS) * depth, Line([0.0; COLUMNS]));
    for (panel, left) in packed.chunks_exact_mut(depth).zip((0..n).step_by(COLUMNS)) {
        let columns = COLUMNS.min(n - left);
        match orientation {
            Plain => {
                for (row, line) in panel.iter_mut().enumerate() {
                    let from = &b[(first + row) * n + left..][..columns];
                    match from.try_into() {
                        Ok(whole) => line.0 = whole,
                        Err(_) => {
                            line.0 = [0.0; COLUMNS];
                            line.0[..columns].copy_from_slice(from);
                        }
                    }
                }
            }
            Transposed => {
                let done = if columns == COLUMNS { transpose(&b[left * k + first..], k, panel) } else { 0 };
                for (row, line) in panel.iter_mut().enumerate().skip(done) {
                    line.0 = std::array::from_fn(|column| match column < columns {
                        true => b[(left + column) * k + first + row],
                        false => 0.0,
                    });
                }
            }
        }
    }
}

/// Copies 16 rows, `stride` apart, into the columns of the lines. Returns the number of lines that are done, a multiple of 8.
#[target_feature(enable = "avx2,fma")]
fn transpose(rows: &[f32], stride: usize, lines: &mut [Line]) -> usize {
    assert!(rows.len() >= (COLUMNS - 1) * stride + lines.len(), "16 rows as long as there are lines");
    let (eights, _) = lines.as_chunks_mut::<8>();
    for (at, lines) in eights.iter_mut().enumerate() {
        for half in 0..2 {
            // SAFETY: the last load ends at (8 * half + 7) * stride + 8 * (at + 1), at most 15 * stride + the number of lines.
            let r: [__m256; 8] = std::array::from_fn(|row| unsafe {
                _mm256_loadu_ps(rows.as_ptr().add((8 * half + row) * stride + 8 * at))
            });
            // Pairs, then fours, then eights of columns.
            let pairs: [__m256; 8] = std::array::from_fn(|at| match at % 2 {
                0 => _mm256_unpacklo_ps(r[at], r[at + 1]),
                _ => _mm256_unpackhi_ps(r[at - 1], r[at]),
            });
            let fours: [__m256; 8] = std::array::from_fn(|at| {
                let (low, high) = (pairs[at / 4 * 4 + at % 4 / 2], pairs[at / 4 * 4 + at % 4 / 2 + 2]);
                match at % 2 {
                    0 => _mm256_shuffle_ps::<0x44>(low, high),
                    _ => _mm256_shuffle_ps::<0xEE>(low, high),
                }
            });
            for column in 0..4 {
                let (low, high) = (fours[column], fours[column + 4]);
                let columns = [_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high)];
                for (line, values) in [column, column + 4].into_iter().zip(columns) {
                    // SAFETY: a line has 16 floats, and `half` is 0 or 1.
                    unsafe { _mm256_store_ps(lines[line].0.as_mut_ptr().add(8 * half), values) };
                }
            }
        }
    }
    8 * eights.len()
}

/// Packs `depth` columns of a transposed `a`, from `first` on, in groups of 6 rows. The last group ends with zeros.
#[target_feature(enable = "avx2,fma")]
fn pack_a(a: Left<'_>, rows: Range<usize>, first: usize, depth: usize, packed: &mut Vec<[f32; ROWS]>) {
    packed.resize(rows.len().div_ceil(ROWS) * depth, [0.0; ROWS]);
    for (group, row) in packed.chunks_exact_mut(depth).zip(rows.clone().step_by(ROWS)) {
        let count = ROWS.min(rows.end - row);
        for (column, to) in group.iter_mut().enumerate() {
            let from = &a.values[(first + column) * a.stride + row..][..count];
            match from.try_into() {
                Ok(whole) => *to = whole,
                Err(_) => {
                    *to = [0.0; ROWS];
                    to[..count].copy_from_slice(from);
                }
            }
        }
    }
}
