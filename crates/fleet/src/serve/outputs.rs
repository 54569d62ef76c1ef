//! The outputs of the model as JSON and as bytes, for both protocols.
//!
//! Floats are written with the fewest digits that read back as the same 32 bits. JSON cannot express NaN and infinities: a
//! request whose result has one fails with its position, unless it asked for bytes.

use openfleet_engine::{DType, Elements, Predictor, Tensor};

use super::http_error::HttpError;
use super::inputs::signed;

/// One output of the model.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    /// -1 stands for the batch.
    pub(crate) shape: Vec<i64>,
}

impl Output {
    /// The outputs of a model, in order.
    pub(crate) fn all_of(predictor: &Predictor) -> Vec<Output> {
        let program = &predictor.model().program;
        let output = |&target| {
            let variable = program.variable(target);
            Output { name: variable.name.clone(), dtype: variable.dtype, shape: signed(&variable.shape) }
        };
        predictor.model().targets.iter().map(output).collect()
    }

    /// All elements as one list.
    pub(crate) fn write_flat(&self, tensor: &Tensor, json: &mut Vec<u8>) -> Result<(), HttpError> {
        self.write(tensor, &[count(tensor)], 0, json)
    }

    /// Lists nested by the dimensions.
    pub(crate) fn write_nested(&self, tensor: &Tensor, json: &mut Vec<u8>) -> Result<(), HttpError> {
        self.write(tensor, tensor.dims(), 0, json)
    }

    /// The elements of one row.
    pub(crate) fn write_row(&self, tensor: &Tensor, row: usize, json: &mut Vec<u8>) -> Result<(), HttpError> {
        let inner = &tensor.dims()[1..];
        self.write(tensor, inner, row * inner.iter().product::<usize>(), json)
    }

    /// Little-endian bytes, row by row; a boolean is one byte.
    pub(crate) fn write_bytes(&self, tensor: &Tensor, bytes: &mut Vec<u8>) {
        match tensor.elements() {
            Elements::F32(values) if self.dtype == DType::Bool => {
                bytes.extend(values.iter().map(|&value| u8::from(value != 0.0)));
            }
            Elements::F32(values) => values.iter().for_each(|value| bytes.extend(value.to_le_bytes())),
            Elements::I64(values) => values.iter().for_each(|value| bytes.extend(value.to_le_bytes())),
        }
    }

    fn write(&self, tensor: &Tensor, dims: &[usize], from: usize, json: &mut Vec<u8>) -> Result<(), HttpError> {
        let Some((&size, inner)) = dims.split_first() else { return self.write_element(tensor, from, json) };
        let step: usize = inner.iter().product();
        json.push(b'[');
        for at in 0..size {
            if at > 0 {
                json.push(b',');
            }
            self.write(tensor, inner, from + at * step, json)?;
        }
        json.push(b']');
        Ok(())
    }

    fn write_element(&self, tensor: &Tensor, at: usize, json: &mut Vec<u8>) -> Result<(), HttpError> {
        let written = match tensor.elements() {
            Elements::F32(values) if self.dtype == DType::Bool => serde_json::to_writer(json, &(values[at] != 0.0)),
            Elements::F32(values) if !values[at].is_finite() => {
                let row = at / (values.len() / tensor.dims().first().copied().unwrap_or(1).max(1)).max(1);
                return Err(HttpError::failed(format!(
                    "output `{}`, row {row}: the model gives {}, which JSON cannot say; ask for binary output, and look \
                     for extreme values among the inputs",
                    self.name, values[at]
                )));
            }
            Elements::F32(values) => serde_json::to_writer(json, &values[at]),
            Elements::I64(values) => serde_json::to_writer(json, &values[at]),
        };
        written.map_err(|error| HttpError::failed(format!("output `{}`: {error}", self.name)))
    }
}

/// The number of elements.
pub(crate) fn count(tensor: &Tensor) -> usize {
    tensor.dims().iter().product()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(dtype: DType) -> Output {
        Output { name: "p".into(), dtype, shape: vec![-1, 2] }
    }

    fn text(json: Vec<u8>) -> String {
        String::from_utf8(json).unwrap()
    }

    #[test]
    fn floats_are_short_and_read_back_as_the_same_bits() {
        let values = vec![0.1, 1.0 / 3.0, -0.0, 1.0e-40];
        let tensor = Tensor::from_f32(&[2, 2], values.clone()).unwrap();
        let mut json = Vec::new();
        output(DType::F32).write_nested(&tensor, &mut json).unwrap();
        assert!(text(json.clone()).starts_with("[[0.1,0.33333334],[-0.0,"), "{}", text(json));
        let read: Vec<Vec<f32>> = serde_json::from_slice(&json).unwrap();
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&read.concat()), bits(&values));
        let mut row = Vec::new();
        output(DType::F32).write_row(&tensor, 1, &mut row).unwrap();
        assert!(text(row).starts_with("[-0.0,"));
    }

    #[test]
    fn what_json_cannot_say_is_refused_with_its_row_and_sent_as_bytes() {
        let tensor = Tensor::from_f32(&[2, 2], vec![0.0, 1.0, 2.0, f32::NAN]).unwrap();
        let refusal = output(DType::F32).write_flat(&tensor, &mut Vec::new()).unwrap_err();
        assert!(refusal.message.starts_with("output `p`, row 1: the model gives NaN"), "{}", refusal.message);
        let mut bytes = Vec::new();
        output(DType::F32).write_bytes(&tensor, &mut bytes);
        assert!(f32::from_le_bytes(bytes[12..16].try_into().unwrap()).is_nan());
    }

    #[test]
    fn truth_values_are_said_as_such() {
        let tensor = Tensor::from_f32(&[1, 2], vec![0.0, 1.0]).unwrap();
        let (mut json, mut bytes) = (Vec::new(), Vec::new());
        output(DType::Bool).write_flat(&tensor, &mut json).unwrap();
        output(DType::Bool).write_bytes(&tensor, &mut bytes);
        assert_eq!((text(json).as_str(), bytes), ("[false,true]", vec![0, 1]));
    }
}
