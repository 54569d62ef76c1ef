//! Tensors as PaddlePaddle's `save` ops write them: one after the other in `.pdiparams`, or one per file.
//!
//! ```text
//! u32 version of the tensor (0)
//! u64 number of LoD levels; for each: u64 bytes, offsets (sequence lengths, which parameters do not have)
//! u32 version of the data (0)
//! i32 size of the description; the description: protobuf, 1: data type, 2: dimensions (repeated int64)
//! the elements, little-endian
//! ```

use prost::Message;

use super::bytes::{Bytes, Wrong};
use super::value::{Element, Value, count};

#[derive(Clone, PartialEq, Message)]
struct TensorDescription {
    #[prost(int32, tag = "1")]
    data_type: i32,
    #[prost(int64, repeated, packed = "false", tag = "2")]
    dims: Vec<i64>,
}

/// The most levels of sequence lengths that a tensor has.
const MOST_LEVELS: u64 = 16;

/// Reads the next tensor.
pub(crate) fn read(bytes: &mut Bytes<'_>) -> Result<Value, Wrong> {
    version(bytes, "tensor")?;
    let at = bytes.offset();
    let levels = bytes.u64("the number of LoD levels")?;
    if levels > MOST_LEVELS {
        return Err(Wrong::at(at, format!("at most {MOST_LEVELS} LoD levels"), levels.to_string()));
    }
    for _ in 0..levels {
        let length = bytes.u64("the size of a LoD level")?;
        bytes.take(usize::try_from(length).unwrap_or(usize::MAX), "a LoD level")?;
    }
    version(bytes, "data")?;
    let at = bytes.offset();
    let size = bytes.u32("the size of a description")?;
    let description = bytes.take(size as usize, "a description")?;
    let description = TensorDescription::decode(description)
        .map_err(|error| Wrong::at(at, "the description of a tensor (protobuf)", error.to_string()))?;
    let element = element(description.data_type).ok_or_else(|| {
        Wrong::at(at, "a data type of floats or integers", format!("data type {}", description.data_type))
    })?;
    let dims = description.dims.iter().map(|dim| usize::try_from(*dim).ok()).collect::<Option<Vec<_>>>();
    let sizes = dims.and_then(|dims| Some((count(&dims)?.checked_mul(element.bytes())?, dims)));
    let Some((length, dims)) = sizes else {
        return Err(Wrong::at(at, "dimensions of at least 0", format!("{:?}", description.dims)));
    };
    Ok(Value { dims, elements: element.read(bytes.take(length, "a tensor's elements")?) })
}

/// Reads a file with a tensor for each name, in this order.
pub(crate) fn read_all(file: &[u8], names: &[String]) -> Result<Vec<Value>, Wrong> {
    let mut bytes = Bytes::new(file);
    let values = names.iter().map(|_| read(&mut bytes)).collect::<Result<Vec<_>, Wrong>>()?;
    match bytes.is_at_end() {
        true => Ok(values),
        false => {
            let got = format!("{} more bytes", file.len() - bytes.offset());
            Err(Wrong::at(bytes.offset(), format!("the end of the file after {} tensors", names.len()), got))
        }
    }
}

fn version(bytes: &mut Bytes<'_>, what: &str) -> Result<(), Wrong> {
    let at = bytes.offset();
    match bytes.u32("a version")? {
        0 => Ok(()),
        got => Err(Wrong::at(at, format!("version 0 of the {what}"), got.to_string())),
    }
}

/// The data types, by their numbers in `framework.proto`.
fn element(data_type: i32) -> Option<Element> {
    Some(match data_type {
        2 => Element::I32,
        3 => Element::I64,
        4 => Element::F16,
        5 => Element::F32,
        6 => Element::F64,
        22 => Element::Bf16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use openfleet_table::checkpoint::StateElements;

    use super::*;

    /// A tensor of floats in the layout above. A real file of PaddlePaddle 2.6.2 (`fluid.io.save_vars`) has these bytes.
    fn written(dims: &[i64], floats: &[f32]) -> Vec<u8> {
        let description = TensorDescription { data_type: 5, dims: dims.to_vec() }.encode_to_vec();
        let mut bytes = vec![0; 4 + 8 + 4];
        bytes.extend_from_slice(&(description.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&description);
        bytes.extend(floats.iter().flat_map(|float| float.to_le_bytes()));
        bytes
    }

    #[test]
    fn a_tensor_has_the_bytes_of_paddlepaddle() {
        // The bytes of `fc_1.w_0`, a matrix of 5 x 1, as PaddlePaddle 2.6.2 has written them.
        let head = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 8, 5, 16, 5, 16, 1];
        let floats = [1.0f32, -2.0, 0.5, 0.0, 3.0];
        let file = written(&[5, 1], &floats);
        assert_eq!(file[..26], head);
        let value = read(&mut Bytes::new(&file)).unwrap();
        assert_eq!(value, Value { dims: vec![5, 1], elements: StateElements::F32(floats.to_vec()) });
    }

    #[test]
    fn several_tensors_need_exactly_their_names() {
        let file = [written(&[1], &[7.0]), written(&[2], &[8.0, 9.0])].concat();
        let names = |count: usize| vec![String::new(); count];
        assert_eq!(read_all(&file, &names(2)).unwrap().len(), 2);
        let error = read_all(&file, &names(1)).unwrap_err();
        assert_eq!((error.offset, error.got.as_str()), (28, "32 more bytes"));
        let error = read_all(&file, &names(3)).unwrap_err();
        assert_eq!((error.offset, error.got.as_str()), (60, "the end of the file after 0"));
    }

    #[test]
    fn a_truncated_or_changed_tensor_is_an_error_and_never_a_panic() {
        let file = written(&[5, 1], &[1.0; 5]);
        for end in 0..file.len() {
            assert!(read(&mut Bytes::new(&file[..end])).is_err(), "{end}");
        }
        for at in 0..file.len() {
            for bit in 0..8 {
                let mut changed = file.clone();
                changed[at] ^= 1 << bit;
                let _ = read(&mut Bytes::new(&changed));
            }
        }
    }
}
