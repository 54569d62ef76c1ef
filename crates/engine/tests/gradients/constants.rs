//! Constant tensors as inputs of an op, without feeding them; and assertions on numbers.

use openfleet_engine::{DType, Net, Tensor, Var};

/// Rows of floats.
pub(crate) fn floats(net: &mut Net, rows: &[&[f32]]) -> Var {
    let mut parts = Vec::new();
    for row in rows {
        let numbers: Vec<Var> = row.iter().map(|&number| net.fill_constant(&[1, 1], number).unwrap()).collect();
        parts.push(net.concat(&numbers, 1).unwrap());
    }
    net.concat(&parts, 0).unwrap()
}

/// A column of integers.
pub(crate) fn integers(net: &mut Net, numbers: &[i64]) -> Var {
    let rows: Vec<[f32; 1]> = numbers.iter().map(|&number| [number as f32]).collect();
    let column = floats(net, &rows.iter().map(|row| row.as_slice()).collect::<Vec<_>>());
    net.cast(column, DType::I64).unwrap()
}

/// Fails unless every number is as expected, up to rounding.
#[track_caller]
pub(crate) fn assert_near(got: &[f32], wanted: &[f32]) {
    let near = |(got, wanted): (&f32, &f32)| (got - wanted).abs() <= 2e-6 * wanted.abs().max(1.0);
    assert!(got.len() == wanted.len() && got.iter().zip(wanted).all(near), "got {got:?}, wanted {wanted:?}");
}

/// The same for the floats of a tensor.
#[track_caller]
pub(crate) fn assert_tensor(got: &Tensor, dims: &[usize], wanted: &[f32]) {
    assert_eq!(got.dims(), dims);
    assert_near(got.f32s().unwrap(), wanted);
}
