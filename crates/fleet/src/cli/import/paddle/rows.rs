//! Rows of sparse tables as PaddlePaddle's parameter servers dump them: `DIR/TABLE_ID/part-SERVER-SHARD`, as text or binary.
//!
//! ```text
//! MemorySparseTable, SSDSparseTable, text     key and the floats of the row, separated by blanks
//! SSDSparseTable, binary                      u32 bytes of the record, u64 key, the floats of the row
//! CommonSparseTable (PaddlePaddle 2.0 to 2.2) key, count, unseen days, admitted, separated by tabs; then floats with commas
//! ```
//!
//! The accessor of a table determines what its floats mean, and its update rule how many of them are state:
//!
//! ```text
//! SparseAccessor, CtrCommonAccessor   slot unseen delta show click | w, state | D-1 weights, state
//! CtrDoubleAccessor                   unseen delta show click | w, state | slot | state, D-1 weights
//! CtrDymfAccessor                     unseen delta show click | w, state | slot dim | state, D-1 weights
//! ```
//!
//! A row of a key with a low score ends after its first weight. In binary dumps CtrDoubleAccessor has shows and clicks of 64
//! bits, and CtrDymfAccessor unseen days of 16.

use super::bytes::{Bytes, Wrong};

/// What the floats of a row mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accessor {
    Sparse,
    CtrCommon,
    CtrDouble,
    CtrDymf,
}

impl Accessor {
    /// By PaddlePaddle's names: of the server's class, and of the option `sparse_accessor_class`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "SparseAccessor" | "DownpourSparseValueAccessor" => Accessor::Sparse,
            "CtrCommonAccessor" | "DownpourCtrAccessor" => Accessor::CtrCommon,
            "CtrDoubleAccessor" | "DownpourCtrDoubleAccessor" => Accessor::CtrDouble,
            "CtrDymfAccessor" | "DownpourCtrDymfAccessor" => Accessor::CtrDymf,
            _ => return None,
        })
    }

    /// Whether shows and clicks of its rows are kept.
    pub(crate) fn counts(self) -> bool {
        self != Accessor::Sparse
    }
}

/// An update rule, which determines the floats of state of `dim` weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    Naive,
    AdaGrad,
    StdAdaGrad,
    SharedAdam,
    Adam,
}

impl Rule {
    /// The likely ones first: for some sizes two of them have the same number of floats.
    const ALL: [Rule; 5] = [Rule::Naive, Rule::AdaGrad, Rule::StdAdaGrad, Rule::Adam, Rule::SharedAdam];

    /// By PaddlePaddle's names: of the server's class, and of the option `sparse_optimizer`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "SparseNaiveSGDRule" | "naive" => Rule::Naive,
            "SparseAdaGradSGDRule" | "SparseAdaGradV2SGDRule" | "adagrad" | "adagrad_v2" => Rule::AdaGrad,
            "StdAdaGradSGDRule" | "std_adagrad" => Rule::StdAdaGrad,
            "SparseSharedAdamSGDRule" | "shared_adam" => Rule::SharedAdam,
            "SparseAdamSGDRule" | "adam" => Rule::Adam,
            _ => return None,
        })
    }

    fn state(self, dim: usize) -> usize {
        match self {
            Rule::Naive => 0,
            Rule::AdaGrad => 1,
            Rule::StdAdaGrad => dim,
            Rule::SharedAdam => 4,
            // Two moments per weight, and the powers of both decay rates.
            Rule::Adam => 2 * dim + 2,
        }
    }
}

/// The positions of a row's floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// D: all weights of a row.
    pub(crate) dim: usize,
    rule: Rule,
    unseen: usize,
    delta: usize,
    show: usize,
    click: usize,
    weight: usize,
    long_weights: usize,
    long_state: usize,
    /// Floats of a row without and with its other weights.
    short: usize,
    long: usize,
}

impl Layout {
    pub(crate) fn new(accessor: Accessor, rule: Rule, dim: usize) -> Self {
        // `D - 1` weights have state even if D is 1.
        let (own, other) = (rule.state(1), rule.state(dim - 1));
        let at = usize::from(matches!(accessor, Accessor::Sparse | Accessor::CtrCommon));
        let weight = at + 4;
        let after = weight + 1 + own;
        let (short, long_weights, long_state) = match accessor {
            Accessor::Sparse | Accessor::CtrCommon => (after, after, after + dim - 1),
            Accessor::CtrDouble => (after + 1, after + 1 + other, after + 1),
            Accessor::CtrDymf => (after + 2, after + 2 + other, after + 2),
        };
        let long = short + other + dim - 1;
        Layout {
            dim,
            rule,
            unseen: at,
            delta: at + 1,
            show: at + 2,
            click: at + 3,
            weight,
            long_weights,
            long_state,
            short,
            long,
        }
    }

    /// The layout of rows with at most this many floats, if a rule has it.
    pub(crate) fn found(accessor: Accessor, dim: usize, floats: usize) -> Option<Self> {
        Rule::ALL.into_iter().map(|rule| Layout::new(accessor, rule, dim)).find(|layout| layout.long == floats)
    }

    /// Whether the rows have Adam's moments.
    pub(crate) fn has_moments(&self) -> bool {
        self.rule == Rule::Adam
    }

    /// Whether the rows have state of any rule.
    pub(crate) fn has_state(&self) -> bool {
        self.rule != Rule::Naive
    }

    /// The row of these floats; `None` if their number is another one.
    pub(crate) fn row(&self, floats: &[f32]) -> Option<Row> {
        let has_long = floats.len() >= self.long;
        if floats.len() != if has_long { self.long } else { self.short } {
            return None;
        }
        let dim = self.dim;
        let (mut weights, mut moments, mut power) = (vec![0.0; dim], Vec::new(), None);
        weights[0] = floats[self.weight];
        let own = &floats[self.weight + 1..];
        if has_long {
            weights[1..].copy_from_slice(&floats[self.long_weights..][..dim - 1]);
        }
        if self.rule == Rule::Adam {
            moments = vec![0.0; 2 * dim];
            (moments[0], moments[dim], power) = (own[0], own[1], Some(own[3]));
            if has_long {
                let other = &floats[self.long_state..];
                moments[1..dim].copy_from_slice(&other[..dim - 1]);
                moments[dim + 1..].copy_from_slice(&other[dim - 1..2 * dim - 2]);
            }
        }
        Some(Row {
            weights,
            moments,
            second_power: power,
            show: floats[self.show],
            click: floats[self.click],
            delta_score: floats[self.delta],
            unseen_days: floats[self.unseen].max(0.0) as u32,
            has_long: has_long && dim > 1,
        })
    }
}

/// What is read of a row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    /// D weights; zeros for those that the row does not have.
    pub(crate) weights: Vec<f32>,
    /// Adam's first moments of all weights, then the second ones; empty without them.
    pub(crate) moments: Vec<f32>,
    /// Adam's second decay rate, raised to the number of updates plus one.
    pub(crate) second_power: Option<f32>,
    pub(crate) show: f32,
    pub(crate) click: f32,
    pub(crate) delta_score: f32,
    pub(crate) unseen_days: u32,
    pub(crate) has_long: bool,
}

/// Takes the offset of a row in its file, its key and its floats.
type Each<'a> = &'a mut dyn FnMut(usize, u64, &[f32]) -> Result<(), Wrong>;

/// Reads a file of rows, text or binary, and calls `each` with every key and its floats. Errors of `each` stop it.
pub(crate) fn each_row(
    file: &[u8],
    accessor: Accessor,
    mut each: impl FnMut(usize, u64, &[f32]) -> Result<(), Wrong>,
) -> Result<(), Wrong> {
    if is_text(file) { text_rows(file, &mut each) } else { binary_rows(file, accessor, &mut each) }
}

/// Whether a file is text: a record of a binary dump begins with its length, whose third and fourth byte are zeros.
fn is_text(file: &[u8]) -> bool {
    file.iter().take(64).all(|byte| byte.is_ascii_graphic() || b" \t\r\n".contains(byte))
}

fn text_rows(file: &[u8], each: Each<'_>) -> Result<(), Wrong> {
    let (mut at, mut floats) = (0, Vec::new());
    for line in file.split_inclusive(|byte| *byte == b'\n') {
        let (start, expected) = (at, "a key and floats, separated by blanks");
        at += line.len();
        let shown = || String::from_utf8_lossy(&line[..line.len().min(40)]).trim_end().to_owned();
        let wrong = || Wrong::at(start, expected, format!("`{}`", shown()));
        let text = std::str::from_utf8(line).map_err(|_| wrong())?.trim_ascii();
        if text.is_empty() {
            continue;
        }
        // The older table has four fields before the floats, separated by tabs.
        let mut fields = text.split_ascii_whitespace();
        let key = fields.next().and_then(|key| key.parse().ok()).ok_or_else(wrong)?;
        let rest = text.rsplit('\t').next().filter(|_| text.contains('\t'));
        floats.clear();
        let mut push = |float: &str| float.parse().map(|float| floats.push(float)).map_err(|_| wrong());
        match rest {
            Some(rest) => rest.split(',').try_for_each(&mut push)?,
            None => fields.try_for_each(&mut push)?,
        }
        each(start, key, &floats)?;
    }
    Ok(())
}

fn binary_rows(file: &[u8], accessor: Accessor, each: Each<'_>) -> Result<(), Wrong> {
    let (mut bytes, mut floats) = (Bytes::new(file), Vec::new());
    while !bytes.is_at_end() {
        let at = bytes.offset();
        let length = bytes.u32("the length of a row")? as usize;
        let Some(length) = length.checked_sub(12).filter(|length| length.is_multiple_of(4)) else {
            let expected = "a row's length of 12 bytes and floats, or text";
            return Err(Wrong::at(at, expected, length.to_string()));
        };
        let key = bytes.u64("a key")?;
        let row = bytes.take(length, "a row")?;
        floats.clear();
        match accessor {
            Accessor::CtrDouble if length >= 24 => {
                let (fields, rest) = row.split_at(24);
                floats.extend(fields[..8].as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)));
                floats.extend(fields[8..].as_chunks().0.iter().map(|b| f64::from_le_bytes(*b) as f32));
                floats.extend(rest.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)));
            }
            Accessor::CtrDymf if length >= 4 => {
                floats.push(u16::from_le_bytes([row[0], row[1]]).into());
                floats.extend(row[4..].as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)));
            }
            _ => floats.extend(row.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b))),
        }
        each(at, key, &floats)?;
    }
    Ok(())
}

/// The part of a `.meta` file of a CommonSparseTable that says what the floats of a row are.
pub(crate) fn columns_of_meta(text: &str) -> Option<Vec<(String, usize)>> {
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let names = value("row_names")?.split(',').map(str::to_owned);
    let dims = value("row_dims")?.split(',').map(|dim| dim.trim().parse().ok()).collect::<Option<Vec<usize>>>()?;
    Some(names.zip(dims).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row that PaddlePaddle 2.6.2 has dumped: SparseAccessor, D = 4, Adam. The program that made it is in
    /// `python/tests/paddle_samples.py`.
    const DUMPED: &str = "7 0 0 0.5 5 0 -0.01 0.217995 0.00475213 0.81 0.998001 0.0761955 -0.0757182 0.0169921 \
                          1 2 3 4 5 6 0.9 0.999\n";

    fn rows(file: &[u8], accessor: Accessor) -> Result<Vec<(u64, Vec<f32>)>, Wrong> {
        let mut rows = Vec::new();
        each_row(file, accessor, |_, key, floats| {
            rows.push((key, floats.to_vec()));
            Ok(())
        })?;
        Ok(rows)
    }

    #[test]
    fn a_row_of_text_has_its_weights_and_moments() {
        let rows = rows(DUMPED.as_bytes(), Accessor::Sparse).unwrap();
        let layout = Layout::found(Accessor::Sparse, 4, rows[0].1.len()).unwrap();
        assert_eq!((rows[0].0, layout.rule), (7, Rule::Adam));
        let row = layout.row(&rows[0].1).unwrap();
        assert_eq!(row.weights, [-0.01, 0.0761955, -0.0757182, 0.0169921]);
        assert_eq!(row.moments, [0.217995, 1.0, 2.0, 3.0, 0.00475213, 4.0, 5.0, 6.0]);
        assert_eq!((row.show, row.click, row.delta_score, row.second_power), (5.0, 0.0, 0.5, Some(0.998001)));
    }

    #[test]
    fn a_short_row_has_one_weight() {
        let layout = Layout::new(Accessor::CtrCommon, Rule::AdaGrad, 9);
        let row = layout.row(&[3.0, 2.0, 0.25, 10.0, 1.0, 0.5, 3.5]).unwrap();
        assert_eq!((row.weights[0], row.has_long, row.unseen_days), (0.5, false, 2));
        assert_eq!(row.weights[1..], [0.0; 8]);
        assert_eq!(layout.row(&[0.0; 8]), None);
    }

    #[test]
    fn every_accessor_has_its_weights_where_the_server_writes_them() {
        // unseen delta show click w g2sum slot g2sum embedx...
        let layout = Layout::new(Accessor::CtrDouble, Rule::AdaGrad, 3);
        let row = layout.row(&[1.0, 2.0, 3.0, 4.0, 0.5, 9.0, 301.0, 8.0, 0.25, 0.125]).unwrap();
        assert_eq!((row.weights, row.show, row.click), (vec![0.5, 0.25, 0.125], 3.0, 4.0));
        // unseen delta show click w state slot dim state embedx...
        let layout = Layout::new(Accessor::CtrDymf, Rule::AdaGrad, 3);
        let row = layout.row(&[1.0, 2.0, 3.0, 4.0, 0.5, 9.0, 301.0, 2.0, 8.0, 0.25, 0.125]).unwrap();
        assert_eq!((row.weights, row.unseen_days), (vec![0.5, 0.25, 0.125], 1));
    }

    #[test]
    fn binary_and_text_rows_are_the_same() {
        let floats = [0.0f32, 1.0, 2.0, 3.0, 4.0, 0.5, 0.25];
        let mut file = (12 + 4 * floats.len() as u32).to_le_bytes().to_vec();
        file.extend(u64::MAX.to_le_bytes());
        file.extend(floats.iter().flat_map(|float| float.to_le_bytes()));
        let text = b"18446744073709551615 0 1 2 3 4 0.5 0.25\n";
        assert_eq!(rows(&file, Accessor::Sparse).unwrap(), rows(text, Accessor::Sparse).unwrap());
        let older = b"18446744073709551615\t1\t0\t1\t0,1,2,3,4,0.5,0.25\n";
        assert_eq!(rows(older, Accessor::Sparse).unwrap(), rows(text, Accessor::Sparse).unwrap());
    }

    #[test]
    fn damaged_files_are_errors_with_an_offset_and_never_panics() {
        let error = rows(b"7 0 0\nx 1 2\n", Accessor::Sparse).unwrap_err();
        assert_eq!((error.offset, error.got.as_str()), (6, "`x 1 2`"));
        assert_eq!(rows(&[40, 0, 0, 0, 1], Accessor::Sparse).unwrap_err().offset, 4);
        assert_eq!(rows(&[3, 0, 0, 0], Accessor::Sparse).unwrap_err().got, "3");
        for accessor in [Accessor::Sparse, Accessor::CtrCommon, Accessor::CtrDouble, Accessor::CtrDymf] {
            for length in 0..64u8 {
                let mut file = vec![length, 0, 0, 0];
                file.extend((0..length).map(|byte| byte.wrapping_mul(37)));
                let _ = rows(&file, accessor);
                for dim in 1..5 {
                    let layout = Layout::new(accessor, Rule::Adam, dim);
                    let _ = layout.row(&vec![f32::NAN; length.into()]);
                }
            }
        }
    }

    #[test]
    fn a_meta_file_names_the_columns() {
        let meta = "param=emb\nshard_id=0\nrow_names=Param,Moment1,Moment2\nrow_dims=4,4,4\ncount=9\n";
        let expected = [("Param", 4), ("Moment1", 4), ("Moment2", 4)].map(|(name, dim)| (name.to_owned(), dim));
        assert_eq!(columns_of_meta(meta), Some(expected.to_vec()));
        assert_eq!(columns_of_meta("nothing"), None);
    }
}
