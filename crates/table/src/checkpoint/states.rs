//! The program's own state, outside of parameters and tables: running statistics, the counters of a metric.
//!
//! Servers do not have it; the worker that saves passes its own. One safetensors file, which describes itself.

use std::collections::BTreeMap;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::columns::{put_floats, take_floats};
use super::file::FileReader;
use super::manifest::Manifest;
use super::storage::Storage;
use crate::error::{Error, Result};

/// Name of the file.
pub(super) const FILE: &str = "states.safetensors";

/// Values by name.
pub type States = BTreeMap<String, StateValue>;

/// A value with its dimensions.
#[derive(Debug, Clone, PartialEq)]
pub struct StateValue {
    /// Its dimensions.
    pub dims: Vec<usize>,
    /// Its elements in row-major order.
    pub elements: StateElements,
}

/// The elements of a value.
#[derive(Debug, Clone, PartialEq)]
pub enum StateElements {
    /// Statistics.
    F32(Vec<f32>),
    /// Counters.
    I64(Vec<i64>),
}

/// Encodes values as the bytes of a file; empty if there are no values.
pub fn encode_states(states: &States) -> Result<Vec<u8>> {
    if states.is_empty() {
        return Ok(Vec::new());
    }
    let bytes: Vec<_> = states
        .iter()
        .map(|(name, value)| {
            let mut bytes = Vec::new();
            let dtype = match &value.elements {
                StateElements::F32(floats) => {
                    put_floats(&mut bytes, floats);
                    Dtype::F32
                }
                StateElements::I64(counts) => {
                    counts.iter().for_each(|count| bytes.extend_from_slice(&count.to_le_bytes()));
                    Dtype::I64
                }
            };
            (name, dtype, value.dims.clone(), bytes)
        })
        .collect();
    let views =
        bytes.iter().map(|(name, dtype, dims, bytes)| Ok((*name, TensorView::new(*dtype, dims.clone(), bytes)?)));
    let views = views.collect::<Result<Vec<_>, safetensors::SafeTensorError>>();
    let file = views.and_then(|views| safetensors::serialize(views, None));
    file.map_err(|error| damaged(FILE, error.to_string()))
}

/// Decodes the bytes of a file.
pub fn decode_states(bytes: &[u8]) -> Result<States> {
    take(FILE, bytes)
}

/// Reads the values of a checkpoint.
pub fn read_states(storage: &dyn Storage, manifest: &Manifest) -> Result<States> {
    take(FILE, &read_states_file(storage, manifest)?)
}

/// Reads the file of a checkpoint and checks it; empty if there is none.
pub fn read_states_file(storage: &dyn Storage, manifest: &Manifest) -> Result<Vec<u8>> {
    let Some(path) = &manifest.states_file else { return Ok(Vec::new()) };
    FileReader::open(storage, &manifest.directory, manifest.file(path)?)?.read_to_end()
}

fn take(file: &str, bytes: &[u8]) -> Result<States> {
    let mut states = States::new();
    if bytes.is_empty() {
        return Ok(states);
    }
    let tensors = SafeTensors::deserialize(bytes).map_err(|error| damaged(file, error.to_string()))?;
    for (name, view) in tensors.tensors() {
        let elements = match view.dtype() {
            Dtype::F32 => {
                let mut floats = Vec::new();
                take_floats(view.data(), &mut floats);
                StateElements::F32(floats)
            }
            Dtype::I64 => {
                let counts = view.data().as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes));
                StateElements::I64(counts.collect())
            }
            other => return Err(damaged(file, format!("tensor `{name}` is {other:?}"))),
        };
        states.insert(name, StateValue { dims: view.shape().to_vec(), elements });
    }
    Ok(states)
}

fn damaged(file: &str, reason: String) -> Error {
    Error::DamagedManifest { file: file.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_round_trip() {
        let floats = StateValue { dims: vec![2, 1], elements: StateElements::F32(vec![1.5, -0.0]) };
        let counts = StateValue { dims: vec![3], elements: StateElements::I64(vec![i64::MIN, 0, 7]) };
        let states = States::from([("mean".to_owned(), floats), ("positive".to_owned(), counts)]);
        assert_eq!(decode_states(&encode_states(&states).unwrap()).unwrap(), states);
        assert_eq!(decode_states(&encode_states(&States::new()).unwrap()).unwrap(), States::new());
        assert!(matches!(decode_states(b"something"), Err(Error::DamagedManifest { .. })));
    }
}
