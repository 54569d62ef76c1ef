//! Turns the columns of a request into the model's feed, for both protocols.
//!
//! A protocol passes named columns ([`GivenColumn`]): values and the number of values per row. This module compares them with
//! what the model reads. Errors name the input and, if one row is at fault, the row, counted from 0.

use openfleet_core::error::did_you_mean;
use openfleet_core::{FieldKind, Key};
use openfleet_engine::{DType, Dim, Feed, Predictor, Shape};

use super::http_error::HttpError;
use super::numbers::{Number, Numbers};

/// The suffix of an input that gives the number of ids of each row, if the ids are one flat list.
const LENGTHS: &str = ".lengths";

/// One input of the model.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    pub(crate) name: String,
    pub(crate) kind: FieldKind,
    pub(crate) dtype: DType,
    /// -1 stands for the batch, and for the number of ids of a slot.
    pub(crate) shape: Vec<i64>,
}

/// A column as the request gives it.
#[derive(Debug)]
pub(crate) struct GivenColumn {
    pub(crate) name: String,
    pub(crate) values: Values,
    /// The number of values of each row.
    pub(crate) lengths: Vec<usize>,
    /// The first element that is not a number: its row and its kind.
    pub(crate) odd: Option<(usize, String)>,
}

/// The values of a column.
#[derive(Debug)]
pub(crate) enum Values {
    /// Numbers parsed from JSON.
    Numbers(Vec<Number>),
    /// Integers; negative ones keep their bits.
    Keys(Vec<Key>),
    /// Floats.
    Floats(Vec<f32>),
}

impl Input {
    /// The inputs of a model, in order.
    pub(crate) fn all_of(predictor: &Predictor) -> openfleet_engine::Result<Vec<Input>> {
        let program = &predictor.model().program;
        let input = |name: &String| {
            let variable = program.variable(program.find(name)?);
            let kind = variable.field_kind();
            let shape = if kind == FieldKind::Ids { vec![-1, -1] } else { signed(&variable.shape) };
            Ok(Input { name: name.clone(), kind, dtype: variable.dtype, shape })
        };
        predictor.feeds().iter().map(input).collect()
    }

    /// A row of the input as text.
    fn a_row(&self) -> String {
        match self.kind {
            FieldKind::Ids => "any number of ids per row".into(),
            FieldKind::FixedIds { length } => format!("{length} integer(s) per row"),
            FieldKind::Floats { dim } => format!("{dim} float(s) per row"),
        }
    }

    fn refuse(&self, row: usize, expected: &str, got: impl std::fmt::Display) -> HttpError {
        HttpError::bad(format!("input `{}`, row {row}: expected {expected}, got {got}", self.name))
    }

    /// Adds a column to the feed.
    fn add(&self, feed: Feed, given: GivenColumn) -> Result<Feed, HttpError> {
        let per_row = match self.kind {
            FieldKind::Ids => None,
            FieldKind::FixedIds { length } => Some(length),
            FieldKind::Floats { dim } => Some(dim),
        };
        let misfit = per_row.and_then(|length| given.lengths.iter().position(|&got| got != length));
        if let Some(row) = misfit {
            return Err(self.refuse(row, &self.a_row(), given.lengths[row]));
        }
        Ok(match self.kind {
            FieldKind::Ids => feed.ids(&self.name, &given.lengths, self.keys(given.values, &given.lengths)?)?,
            FieldKind::FixedIds { length } => {
                let keys = self.keys(given.values, &given.lengths)?;
                let ints: Vec<i64> = keys.into_iter().map(|key| key as i64).collect();
                feed.ints(&self.name, length, &ints)?
            }
            FieldKind::Floats { dim } => feed.floats(&self.name, dim, self.floats(given.values, &given.lengths)?)?,
        })
    }

    fn keys(&self, values: Values, lengths: &[usize]) -> Result<Vec<Key>, HttpError> {
        const EXPECTED: &str = "integers from -2^63 to 2^64 - 1";
        match values {
            Values::Keys(keys) => Ok(keys),
            Values::Floats(_) => Err(self.refuse(0, EXPECTED, "floats")),
            Values::Numbers(numbers) => {
                let mut keys = Vec::with_capacity(numbers.len());
                for (at, number) in numbers.into_iter().enumerate() {
                    keys.push(match number {
                        Number::Whole(id) => id,
                        Number::Negative(id) => id as Key,
                        Number::Float(got) => return Err(self.refuse(row_of(at, lengths), EXPECTED, got)),
                    });
                }
                Ok(keys)
            }
        }
    }
}

impl GivenColumn {
    /// A column from nested JSON lists.
    pub(crate) fn nested(name: String, numbers: Numbers) -> Self {
        let Numbers { values, lengths, odd, .. } = numbers;
        GivenColumn { name, values: Values::Numbers(values), lengths, odd }
    }
}

/// The feed of a request and its number of rows.
pub(crate) fn feed(inputs: &[Input], mut given: Vec<GivenColumn>, max_rows: usize) -> Result<(Feed, usize), HttpError> {
    check_names(inputs, &given)?;
    let mut feed = Feed::new();
    let mut rows = 0;
    for input in inputs {
        let mut column = take(&mut given, &input.name).ok_or_else(|| {
            HttpError::bad(format!("input `{}` is missing; the model reads {}", input.name, names(inputs)))
        })?;
        if let Some((row, what)) = &column.odd {
            let is_float = matches!(input.kind, FieldKind::Floats { .. });
            return Err(input.refuse(*row, if is_float { "numbers" } else { "integers" }, what));
        }
        if let Some(lengths) = take(&mut given, &companion(&input.name)) {
            column = cut(input, column, lengths)?;
        }
        rows = column.lengths.len();
        check_rows(&input.name, rows, max_rows)?;
        feed = input.add(feed, column)?;
    }
    Ok((feed, rows))
}

/// Refuses a request without rows, or with so many that it would take too much memory.
pub(crate) fn check_rows(name: &str, rows: usize, max_rows: usize) -> Result<(), HttpError> {
    match rows {
        0 => Err(HttpError::bad(format!("input `{name}`: expected at least one row, got none"))),
        rows if rows > max_rows => Err(HttpError::too_large(format!(
            "input `{name}`: expected at most {max_rows} rows in one request (`--max-rows`), got {rows}"
        ))),
        _ => Ok(()),
    }
}

/// Dimensions as both protocols write them.
pub(crate) fn signed(shape: &Shape) -> Vec<i64> {
    let one = |dim: &Dim| match dim {
        Dim::Fixed(size) => *size as i64,
        Dim::PerRow(_) | Dim::Unknown => -1,
    };
    shape.0.iter().map(one).collect()
}

/// Names in backticks.
pub(crate) fn names(inputs: &[Input]) -> String {
    inputs.iter().map(|input| format!("`{}`", input.name)).collect::<Vec<_>>().join(", ")
}

/// The slot whose lengths the name gives.
pub(crate) fn lengths_of<'a>(inputs: &'a [Input], name: &str) -> Option<&'a Input> {
    let slot = name.strip_suffix(LENGTHS)?;
    inputs.iter().find(|input| input.name == slot && input.kind == FieldKind::Ids)
}

fn companion(name: &str) -> String {
    format!("{name}{LENGTHS}")
}

fn check_names(inputs: &[Input], given: &[GivenColumn]) -> Result<(), HttpError> {
    for (at, GivenColumn { name, .. }) in given.iter().enumerate() {
        let known = inputs.iter().any(|input| input.name == *name) || lengths_of(inputs, name).is_some();
        if !known {
            let hint = did_you_mean(name, inputs.iter().map(|input| input.name.as_str()));
            return Err(HttpError::bad(format!("the model does not read an input `{name}`; {hint}")));
        }
        if given[..at].iter().any(|other| other.name == *name) {
            return Err(HttpError::bad(format!("input `{name}` is given twice")));
        }
    }
    Ok(())
}

fn take(given: &mut Vec<GivenColumn>, name: &str) -> Option<GivenColumn> {
    let at = given.iter().position(|column| column.name == name)?;
    Some(given.swap_remove(at))
}

/// Cuts a flat list of ids into rows.
fn cut(input: &Input, ids: GivenColumn, lengths: GivenColumn) -> Result<GivenColumn, HttpError> {
    let (total, name) = (ids.lengths.iter().sum::<usize>(), &lengths.name);
    let refuse = |row, got: &dyn std::fmt::Display| {
        Err(HttpError::bad(format!("input `{name}`, row {row}: expected the number of ids of the row, got {got}")))
    };
    if let Some((row, what)) = &lengths.odd {
        return refuse(*row, what);
    }
    if let Some(row) = lengths.lengths.iter().position(|&count| count != 1) {
        return refuse(row, &format!("{} numbers", lengths.lengths[row]));
    }
    let of_rows = lengths.lengths;
    let named = Input { name: name.clone(), ..input.clone() };
    let counts: Vec<usize> =
        named.keys(lengths.values, &of_rows)?.into_iter().map(|n| usize::try_from(n).unwrap_or(usize::MAX)).collect();
    if let Some(row) = counts.iter().position(|&count| count > total) {
        return refuse(row, &format!("{}, which is not from 0 to {total}", counts[row] as i64));
    }
    let sum: u128 = counts.iter().map(|&count| count as u128).sum();
    if sum != total as u128 {
        return Err(HttpError::bad(format!(
            "input `{}`: expected {sum} ids, as `{name}` adds up to, got {total}",
            input.name
        )));
    }
    Ok(GivenColumn { lengths: counts, ..ids })
}

impl Input {
    /// Values as 32-bit floats; values that are too large are refused.
    fn floats(&self, values: Values, lengths: &[usize]) -> Result<Vec<f32>, HttpError> {
        let numbers = match values {
            Values::Floats(floats) => return Ok(floats),
            Values::Keys(keys) => return Ok(keys.into_iter().map(|key| key as i64 as f32).collect()),
            Values::Numbers(numbers) => numbers,
        };
        let narrow = |number: &Number| match *number {
            Number::Whole(value) => value as f32,
            Number::Negative(value) => value as f32,
            Number::Float(value) => value as f32,
        };
        let floats: Vec<f32> = numbers.iter().map(narrow).collect();
        match floats.iter().position(|float| !float.is_finite()) {
            None => Ok(floats),
            Some(at) => Err(HttpError::bad(format!(
                "input `{}`, row {}: expected a number of 32 bits, got {:?}",
                self.name,
                row_of(at, lengths),
                numbers[at]
            ))),
        }
    }
}

/// The row of a value.
fn row_of(at: usize, lengths: &[usize]) -> usize {
    let mut end = 0;
    let ends = lengths.iter().map(|length| {
        end += length;
        end
    });
    ends.take_while(|&end| end <= at).count()
}
