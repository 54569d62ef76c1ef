//! A value with its dimensions: what is fed, fetched and stored in a scope.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DType {
    /// 32-bit floats.
    F32,
    /// 64-bit integers: ids, labels, counters.
    I64,
    /// Booleans, stored as the floats 0 and 1.
    Bool,
}

impl DType {
    /// Whether the elements are stored as floats.
    pub fn is_float(self) -> bool {
        !matches!(self, DType::I64)
    }
}

/// The elements of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub enum Elements {
    /// Floats, or booleans as 0 and 1.
    F32(Vec<f32>),
    /// Integers.
    I64(Vec<i64>),
}

/// A value with its dimensions.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    dims: Vec<usize>,
    elements: Elements,
}

impl Tensor {
    /// Floats in row-major order. Fails if their number does not match the dimensions.
    pub fn from_f32(dims: &[usize], elements: Vec<f32>) -> Result<Self> {
        check_elements(dims, elements.len())?;
        Ok(Tensor { dims: dims.to_vec(), elements: Elements::F32(elements) })
    }

    /// Integers in row-major order. Fails if their number does not match the dimensions.
    pub fn from_i64(dims: &[usize], elements: Vec<i64>) -> Result<Self> {
        check_elements(dims, elements.len())?;
        Ok(Tensor { dims: dims.to_vec(), elements: Elements::I64(elements) })
    }

    /// All zeros.
    pub fn zeros(dims: &[usize], dtype: DType) -> Self {
        let count = dims.iter().product();
        let elements = if dtype.is_float() { Elements::F32(vec![0.0; count]) } else { Elements::I64(vec![0; count]) };
        Tensor { dims: dims.to_vec(), elements }
    }

    /// Its dimensions, slowest first.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Its elements.
    pub fn elements(&self) -> &Elements {
        &self.elements
    }

    /// Drops the dimensions and returns the elements.
    pub fn into_elements(self) -> Elements {
        self.elements
    }

    /// Its elements, for changes in place.
    pub(crate) fn elements_mut(&mut self) -> &mut Elements {
        &mut self.elements
    }

    /// The floats, or `None` for integers.
    pub fn f32s(&self) -> Option<&[f32]> {
        match &self.elements {
            Elements::F32(values) => Some(values),
            Elements::I64(_) => None,
        }
    }

    /// The integers, or `None` for floats.
    pub fn i64s(&self) -> Option<&[i64]> {
        match &self.elements {
            Elements::F32(_) => None,
            Elements::I64(values) => Some(values),
        }
    }

    /// The single element as a float; `None` if there is not exactly one.
    pub fn scalar(&self) -> Option<f64> {
        match &self.elements {
            Elements::F32(values) if values.len() == 1 => Some(f64::from(values[0])),
            Elements::I64(values) if values.len() == 1 => Some(values[0] as f64),
            _ => None,
        }
    }
}

fn check_elements(dims: &[usize], got: usize) -> Result<()> {
    let expected: usize = dims.iter().product();
    if expected == got { Ok(()) } else { Err(Error::ElementCount { dims: dims.to_vec(), expected, got }) }
}

/// Fails with [`Error::NoMemory`] if an array whose size the user chose cannot be allocated. Callers check before they allocate,
/// because a failed allocation aborts the process. The system may still promise more memory than it has.
pub(crate) fn check_memory_for(name: &str, dims: &[usize], element_bytes: usize, copies: &'static str) -> Result<()> {
    let bytes = dims.iter().try_fold(element_bytes, |bytes, side| bytes.checked_mul(*side));
    if bytes.is_some_and(can_allocate) {
        return Ok(());
    }
    let bytes = bytes.map_or_else(|| "more than 2^64".to_owned(), |bytes| bytes.to_string());
    Err(Error::NoMemory { name: name.to_owned(), dims: dims.to_vec(), copies, bytes })
}

/// Whether this many bytes can be allocated in one piece. The memory is freed at once and never touched.
pub(crate) fn can_allocate(bytes: usize) -> bool {
    let mut memory = Vec::<u8>::new();
    let is_allocated = memory.try_reserve_exact(bytes).is_ok();
    // Without this the compiler may remove the unused allocation and treat it as one that succeeded.
    std::hint::black_box(&memory);
    is_allocated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_must_fill_the_dimensions() {
        let error = Tensor::from_f32(&[2, 3], vec![0.0; 5]).unwrap_err();
        assert_eq!(error.to_string(), "dimensions [2, 3] need 6 elements, got 5");
        assert!(Tensor::from_i64(&[2], vec![1]).is_err());
    }

    #[test]
    fn a_scalar_is_exactly_one_element_of_either_kind() {
        assert_eq!(Tensor::from_f32(&[], vec![0.5]).unwrap().scalar(), Some(0.5));
        assert_eq!(Tensor::from_i64(&[1, 1], vec![-7]).unwrap().scalar(), Some(-7.0));
        assert_eq!(Tensor::zeros(&[2], DType::F32).scalar(), None);
        assert_eq!(Tensor::zeros(&[0], DType::I64).scalar(), None);
    }

    #[test]
    fn booleans_are_stored_as_floats() {
        let truth = Tensor::zeros(&[2], DType::Bool);
        assert_eq!((truth.f32s(), truth.i64s()), (Some(&[0.0, 0.0][..]), None));
    }
}
