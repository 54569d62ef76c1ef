//! Dense parameters: merges the blocks of many servers into one safetensors file of whole parameters, and reads it.

use std::collections::BTreeMap;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::columns::take_floats;
use super::file::{FileEntry, FileReader, FileWriter};
use super::manifest::DenseEntry;
use super::read::DenseValues;
use super::storage::Storage;
use super::write::ServerPart;
use crate::error::{Error, Result};

/// Name of the file.
pub(super) const FILE: &str = "dense.safetensors";

/// A parameter being assembled: values, then slots, each `length` floats as bytes.
struct AssembledParameter {
    entry: DenseEntry,
    length: usize,
    bytes: Vec<u8>,
    /// Number of floats received.
    filled: usize,
}

/// Merges the blocks of all parts and writes them; the parts' files are not needed after that.
pub(super) fn merge(
    storage: &dyn Storage,
    directory: &str,
    parts: &[ServerPart],
) -> Result<(Vec<DenseEntry>, Option<FileEntry>)> {
    let mut parameters: BTreeMap<&str, AssembledParameter> = BTreeMap::new();
    for part in parts {
        let Some(file) = &part.dense_file else { continue };
        let mut reader = FileReader::open(storage, directory, file)?;
        for block in &part.dense {
            let slots = block.spec.optimizer.slot_names();
            let length: usize = block.spec.shape.iter().product();
            let parameter = parameters.entry(&block.parameter).or_insert_with(|| AssembledParameter {
                entry: DenseEntry {
                    name: block.parameter.clone(),
                    spec: block.spec.clone(),
                    step: block.step,
                    slots: slots.iter().map(|&slot| slot.to_owned()).collect(),
                },
                length,
                bytes: vec![0; 4 * length * (1 + slots.len())],
                filled: 0,
            });
            let fits = block.offset.checked_add(block.length).is_some_and(|end| end <= parameter.length);
            if parameter.entry.spec != block.spec || !fits {
                return Err(Error::PartsDisagree { what: format!("parameter `{}`", block.parameter) });
            }
            // Without sync, blocks of one parameter may differ by a push.
            parameter.entry.step = parameter.entry.step.max(block.step);
            parameter.filled += block.length;
            for slot in 0..=slots.len() {
                let start = 4 * (slot * parameter.length + block.offset);
                reader.read(&mut parameter.bytes[start..start + 4 * block.length])?;
            }
        }
    }
    if let Some(parameter) = parameters.values().find(|parameter| parameter.filled != parameter.length) {
        return Err(Error::PartsDisagree { what: format!("parameter `{}`", parameter.entry.name) });
    }
    let mut tensors = Vec::new();
    for parameter in parameters.values() {
        for (slot, bytes) in parameter.bytes.chunks_exact(4 * parameter.length).enumerate() {
            tensors.push((tensor_name(&parameter.entry, slot), parameter.entry.spec.shape.clone(), bytes));
        }
    }
    let entries = parameters.values().map(|parameter| parameter.entry.clone()).collect();
    if tensors.is_empty() {
        return Ok((entries, None));
    }
    let refused =
        |error: safetensors::SafeTensorError| Error::DamagedManifest { file: FILE.into(), reason: error.to_string() };
    let views = tensors
        .into_iter()
        .map(|(name, shape, bytes)| Ok((name, TensorView::new(Dtype::F32, shape, bytes)?)))
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()
        .map_err(refused)?;
    let bytes = safetensors::serialize(views, None).map_err(refused)?;
    let mut writer = FileWriter::create(storage, directory, FILE)?;
    writer.write(&bytes)?;
    Ok((entries, Some(writer.finish()?)))
}

/// The values of a parameter are stored under its name, a slot under `name/slot`.
fn tensor_name(entry: &DenseEntry, slot: usize) -> String {
    match slot.checked_sub(1) {
        None => entry.name.clone(),
        Some(slot) => format!("{}/{}", entry.name, entry.slots[slot]),
    }
}

/// Reads parameters from the file's bytes.
pub(super) fn take(file: &str, bytes: &[u8], entries: &[DenseEntry]) -> Result<BTreeMap<String, DenseValues>> {
    let damaged = |reason: String| Error::DamagedManifest { file: file.to_owned(), reason };
    let tensors = SafeTensors::deserialize(bytes).map_err(|error| damaged(error.to_string()))?;
    let mut parameters = BTreeMap::new();
    for entry in entries {
        let (mut values, mut state, mut floats) = (Vec::new(), Vec::new(), Vec::new());
        for slot in 0..=entry.slots.len() {
            let name = tensor_name(entry, slot);
            let view = tensors.tensor(&name).map_err(|_| damaged(format!("there is no tensor `{name}`")))?;
            if view.dtype() != Dtype::F32 || view.shape() != entry.spec.shape {
                return Err(damaged(format!("tensor `{name}` is {:?} of {:?}", view.dtype(), view.shape())));
            }
            take_floats(view.data(), &mut floats);
            if slot == 0 { values.clone_from(&floats) } else { state.extend_from_slice(&floats) }
        }
        parameters.insert(entry.name.clone(), DenseValues { values, state, step: entry.step });
    }
    Ok(parameters)
}
