//! Shapes that know which of their dimensions grow with the batch.
//!
//! Users write `-1` for the batch. Internally a dimension is fixed, or a fixed multiple of the number of rows in the batch. So
//! `reshape([B, 5, 1] -> [-1, 1])` keeps its meaning (5 B rows), and every size is known once the batch is. A dimension that is
//! neither is unknown until the program runs; a program with such dimensions infers its shapes for every batch (`run::shapes`).

use std::fmt;

use serde::{Deserialize, Serialize};

/// One dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Dim {
    /// The same size in every batch.
    Fixed(usize),
    /// This many elements per row of the batch.
    PerRow(usize),
    /// Known only when the program runs.
    Unknown,
}

impl Dim {
    /// The size for a batch of `rows`; 0 if it is unknown.
    pub fn size(self, rows: usize) -> usize {
        match self {
            Dim::Fixed(n) => n,
            Dim::PerRow(n) => n * rows,
            Dim::Unknown => 0,
        }
    }

    /// The dimension that both are, if they can be equal when the program runs.
    pub(crate) fn merge(self, other: Dim) -> Option<Dim> {
        match (self, other) {
            (a, b) if a == b => Some(a),
            (Dim::Fixed(_), Dim::Fixed(_)) => None,
            _ => Some(Dim::Unknown),
        }
    }

    /// Whether both are equal, or one is unknown, in which case the op checks them when the program runs. For dimensions that do not
    /// show in the result; [`merge`](Self::merge) is for those that do.
    pub(crate) fn agrees(self, other: Dim) -> bool {
        self == other || self == Dim::Unknown || other == Dim::Unknown
    }

    /// The dimension `times` as large.
    pub(crate) fn times(self, times: usize) -> Dim {
        match self {
            Dim::Fixed(n) => Dim::Fixed(n * times),
            Dim::PerRow(n) => Dim::PerRow(n * times),
            Dim::Unknown => Dim::Unknown,
        }
    }
}

/// A variable's dimensions, slowest first.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shape(pub Vec<Dim>);

impl Shape {
    /// Whether a dimension is unknown until the program runs.
    pub fn has_unknown(&self) -> bool {
        self.0.contains(&Dim::Unknown)
    }

    /// The same shape with the sizes for a batch of `rows`.
    pub(crate) fn for_rows(&self, rows: usize) -> Self {
        let fixed = |&dim: &Dim| if let Dim::PerRow(n) = dim { Dim::Fixed(n * rows) } else { dim };
        Shape(self.0.iter().map(fixed).collect())
    }

    /// Reads the sizes of a data variable: a negative first size is the batch, another negative one is known when the program runs.
    pub fn of_data(dims: &[i64]) -> Self {
        let mut shape = Shape::of(dims);
        shape.0.iter_mut().skip(1).filter(|dim| matches!(dim, Dim::PerRow(_))).for_each(|dim| *dim = Dim::Unknown);
        shape
    }

    /// Reads the sizes as the user writes them: a negative size is the batch.
    pub fn of(dims: &[i64]) -> Self {
        Shape(dims.iter().map(|&d| if d < 0 { Dim::PerRow(1) } else { Dim::Fixed(d as usize) }).collect())
    }

    /// A shape without a batch dimension.
    pub fn fixed(dims: &[usize]) -> Self {
        Shape(dims.iter().map(|&d| Dim::Fixed(d)).collect())
    }

    /// `[-1, columns]`.
    pub(crate) fn batch_by(columns: usize) -> Self {
        Shape(vec![Dim::PerRow(1), Dim::Fixed(columns)])
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The number of elements for a batch of `rows`.
    pub fn elements(&self, rows: usize) -> usize {
        self.0.iter().map(|d| d.size(rows)).product()
    }

    /// The sizes for a batch of `rows`.
    pub fn sizes(&self, rows: usize) -> Vec<usize> {
        self.0.iter().map(|d| d.size(rows)).collect()
    }

    /// The last dimension, if it is fixed; 1 for a scalar.
    pub fn columns(&self) -> Option<usize> {
        match self.0.last() {
            None => Some(1),
            Some(Dim::Fixed(n)) => Some(*n),
            Some(Dim::PerRow(_) | Dim::Unknown) => None,
        }
    }

    /// The product of some dimensions as one dimension.
    pub fn product(dims: &[Dim]) -> Dim {
        dims.iter().fold(Dim::Fixed(1), |product, &d| match (product, d) {
            (Dim::Fixed(a), Dim::Fixed(b)) => Dim::Fixed(a * b),
            (Dim::Fixed(a), Dim::PerRow(b)) | (Dim::PerRow(a), Dim::Fixed(b)) => Dim::PerRow(a * b),
            _ => Dim::Unknown,
        })
    }

    /// Resolves an axis, which may count from the end; `None` if it is out of range.
    pub fn axis(&self, axis: i64) -> Option<usize> {
        let rank = self.rank() as i64;
        let resolved = if axis < 0 { axis + rank } else { axis };
        (0..rank).contains(&resolved).then_some(resolved as usize)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[")?;
        for (i, dim) in self.0.iter().enumerate() {
            if i > 0 {
                write!(f, ", ")?;
            }
            match dim {
                Dim::Fixed(n) => write!(f, "{n}")?,
                Dim::PerRow(_) | Dim::Unknown => write!(f, "-1")?,
            }
        }
        write!(f, "]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minus_one_is_the_batch() {
        let shape = Shape::of(&[-1, 26, 10]);
        assert_eq!(shape.elements(4), 1040);
        assert_eq!(shape.to_string(), "[-1, 26, 10]");
        assert_eq!(shape.axis(-1), Some(2));
        assert_eq!(shape.axis(3), None);
    }

    #[test]
    fn a_product_with_two_batch_dimensions_is_unknown() {
        assert_eq!(Shape::product(&[Dim::PerRow(1), Dim::Fixed(5)]), Dim::PerRow(5));
        assert_eq!(Shape::product(&[Dim::PerRow(1), Dim::PerRow(1)]), Dim::Unknown);
    }
}
