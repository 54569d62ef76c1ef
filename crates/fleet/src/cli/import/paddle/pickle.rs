//! Dicts of arrays as `paddle.static.save` and `paddle.save` write them (`.pdparams`, `.pdopt`): pickles of NumPy arrays.
//!
//! A pickle is a program for a small stack machine, which in Python can call anything. This machine calls nothing: it knows
//! numbers, texts, bytes, tuples, lists and dicts, and the four names that an array needs. Any other name is an error.
//! <https://docs.python.org/3/library/pickletools.html> has the instructions.

use std::collections::HashMap;

use openfleet_table::checkpoint::StateElements;

use super::bytes::{Bytes, Wrong};
use super::value::{Element, Value, count};

/// Maps the names of a model's attributes to those of parameters.
const STRUCTURED_NAMES: &str = "StructuredToParameterName@@";
/// Describes arrays that were cut into slices, because older protocols limit the size of an object.
const SLICED: &str = "UnpackBigParamInfor@@";

/// The arrays of a file by name, in the order of the file.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Arrays {
    pub(crate) values: Vec<(String, Value)>,
    /// Entries that are no arrays.
    pub(crate) others: Vec<String>,
}

/// Reads the file.
pub(crate) fn read(file: &[u8]) -> Result<Arrays, Wrong> {
    let mut machine = Machine::default();
    let root = machine.run(file)?;
    let Some(Object::Dict(entries)) = machine.objects.get(root) else {
        return Err(Wrong::at(0, "a pickled dict of arrays", "another object"));
    };
    let mut arrays = Arrays::default();
    let mut slices: HashMap<String, Value> = HashMap::new();
    let (mut names, mut sliced) = (HashMap::new(), Vec::new());
    for &(key, value) in entries {
        let Some(name) = machine.text(key) else { continue };
        match (name, &machine.objects[value]) {
            (STRUCTURED_NAMES, Object::Dict(renamed)) => {
                let pair = |&(from, to): &(usize, usize)| Some((machine.text(from)?, machine.text(to)?));
                names.extend(renamed.iter().filter_map(pair));
            }
            (SLICED, Object::Dict(whole)) => sliced = whole.clone(),
            (name, _) => match machine.array(value) {
                Some((own, value)) => match name.contains("@@.") {
                    true => drop(slices.insert(name.to_owned(), value?)),
                    false => arrays.values.push((own.unwrap_or(name).to_owned(), value?)),
                },
                None => arrays.others.push(name.to_owned()),
            },
        }
    }
    for (key, info) in sliced {
        let Some(name) = machine.text(key) else { continue };
        let whole = machine.whole(info, &mut slices);
        let wrong = || Wrong::at(0, format!("all slices of `{name}`"), "some of them, or another number of elements");
        arrays.values.push((name.to_owned(), whole.ok_or_else(wrong)?));
    }
    for (name, _) in &mut arrays.values {
        if let Some(parameter) = names.get(name.as_str()) {
            (*parameter).clone_into(name);
        }
    }
    Ok(arrays)
}

/// An object of a pickle. Objects refer to others by their index.
#[derive(Debug, Clone)]
enum Object<'a> {
    None,
    Bool(bool),
    Int(i64),
    Text(&'a str),
    Bytes(std::borrow::Cow<'a, [u8]>),
    Tuple(Vec<usize>),
    List(Vec<usize>),
    Dict(Vec<(usize, usize)>),
    /// A name of a module.
    Name(Known),
    /// An element type, with its byte order.
    Type {
        code: &'a str,
        is_big_endian: bool,
    },
    /// An array: its dimensions, element type and bytes, once they are known.
    Array(Option<(usize, usize, usize)>),
    Mark,
    Float,
}

/// The names that may occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Reconstruct,
    NdArray,
    DType,
    OrderedDict,
    /// How Python 3 writes bytes in protocol 2.
    Encode,
}

#[derive(Default)]
struct Machine<'a> {
    objects: Vec<Object<'a>>,
    stack: Vec<usize>,
    memo: HashMap<u64, usize>,
}

impl<'a> Machine<'a> {
    /// Runs to the end and returns the root object.
    fn run(&mut self, file: &'a [u8]) -> Result<usize, Wrong> {
        let mut bytes = Bytes::new(file);
        loop {
            let at = bytes.offset();
            let code = bytes.u8("a pickle instruction")?;
            if code == b'.' {
                return self.pop(at);
            }
            self.step(code, at, &mut bytes)?;
        }
    }

    fn step(&mut self, code: u8, at: usize, bytes: &mut Bytes<'a>) -> Result<(), Wrong> {
        let object = match code {
            // Protocol and frame.
            0x80 => return bytes.u8("a protocol").map(drop),
            0x95 => return bytes.u64("the size of a frame").map(drop),
            b'N' => Object::None,
            0x88 => Object::Bool(true),
            0x89 => Object::Bool(false),
            b'K' => Object::Int(bytes.u8("an integer")?.into()),
            b'M' => Object::Int(bytes.u16("an integer")?.into()),
            b'J' => Object::Int((bytes.u32("an integer")? as i32).into()),
            0x8a => Object::Int(long(at, bytes)?),
            b'G' => bytes.take(8, "a float").map(|_| Object::Float)?,
            0x8c => Object::Text(text(at, bytes, Length::Byte)?),
            b'X' => Object::Text(text(at, bytes, Length::Word)?),
            0x8d => Object::Text(text(at, bytes, Length::Long)?),
            b'C' | b'U' => Object::Bytes(sized(bytes, Length::Byte)?.into()),
            b'B' | b'T' => Object::Bytes(sized(bytes, Length::Word)?.into()),
            0x8e | 0x96 => Object::Bytes(sized(bytes, Length::Long)?.into()),
            b'}' => Object::Dict(Vec::new()),
            b']' => Object::List(Vec::new()),
            b')' => Object::Tuple(Vec::new()),
            b'(' => Object::Mark,
            0x85..=0x87 => {
                let mut items = (0..code - 0x84).map(|_| self.pop(at)).collect::<Result<Vec<_>, _>>()?;
                items.reverse();
                Object::Tuple(items)
            }
            b't' => Object::Tuple(self.pop_marked(at)?),
            b'c' => {
                let (module, name) = (bytes.line("a module")?, bytes.line("a name")?);
                known(at, &String::from_utf8_lossy(module), &String::from_utf8_lossy(name))?
            }
            0x93 => {
                let (name, module) = (self.pop(at)?, self.pop(at)?);
                match (self.text(module), self.text(name)) {
                    (Some(module), Some(name)) => known(at, module, name)?,
                    _ => return Err(Wrong::at(at, "the texts of a module and a name", "other objects")),
                }
            }
            b'R' => {
                let (arguments, callee) = (self.pop(at)?, self.pop(at)?);
                self.made(at, callee, arguments)?
            }
            b'b' => return self.build(at),
            b's' => {
                let (value, key) = (self.pop(at)?, self.pop(at)?);
                return self.extend_dict(at, &[key, value]);
            }
            b'u' => {
                let items = self.pop_marked(at)?;
                return self.extend_dict(at, &items);
            }
            b'a' => {
                let item = self.pop(at)?;
                return self.extend_list(at, &[item]);
            }
            b'e' => {
                let items = self.pop_marked(at)?;
                return self.extend_list(at, &items);
            }
            0x94 => return self.remember(at, self.memo.len() as u64),
            b'q' => return bytes.u8("a memo number").and_then(|number| self.remember(at, number.into())),
            b'r' => return bytes.u32("a memo number").and_then(|number| self.remember(at, number.into())),
            b'h' => return bytes.u8("a memo number").and_then(|number| self.recall(at, number.into())),
            b'j' => return bytes.u32("a memo number").and_then(|number| self.recall(at, number.into())),
            b'0' => return self.pop(at).map(drop),
            _ => return Err(Wrong::at(at, "an instruction of a pickled dict of arrays", format!("byte {code:#04x}"))),
        };
        self.stack.push(self.objects.len());
        self.objects.push(object);
        Ok(())
    }

    fn pop(&mut self, at: usize) -> Result<usize, Wrong> {
        self.stack.pop().ok_or_else(|| Wrong::at(at, "an object on the stack", "an empty stack"))
    }

    fn top(&self, at: usize) -> Result<usize, Wrong> {
        self.stack.last().copied().ok_or_else(|| Wrong::at(at, "an object on the stack", "an empty stack"))
    }

    fn pop_marked(&mut self, at: usize) -> Result<Vec<usize>, Wrong> {
        let mark = self.stack.iter().rposition(|object| matches!(self.objects[*object], Object::Mark));
        let mark = mark.ok_or_else(|| Wrong::at(at, "a mark on the stack", "none"))?;
        let items = self.stack.split_off(mark + 1);
        self.stack.pop();
        Ok(items)
    }

    fn remember(&mut self, at: usize, number: u64) -> Result<(), Wrong> {
        let top = self.top(at)?;
        self.memo.insert(number, top);
        Ok(())
    }

    fn recall(&mut self, at: usize, number: u64) -> Result<(), Wrong> {
        let object = self.memo.get(&number).copied();
        let wrong = || Wrong::at(at, "the number of an earlier object", number.to_string());
        self.stack.push(object.ok_or_else(wrong)?);
        Ok(())
    }

    fn extend_dict(&mut self, at: usize, items: &[usize]) -> Result<(), Wrong> {
        let top = self.top(at)?;
        match &mut self.objects[top] {
            Object::Dict(entries) => {
                entries.extend(items.as_chunks().0.iter().map(|&[key, value]| (key, value)));
                Ok(())
            }
            _ => Err(Wrong::at(at, "a dict on the stack", "another object")),
        }
    }

    fn extend_list(&mut self, at: usize, items: &[usize]) -> Result<(), Wrong> {
        let top = self.top(at)?;
        match &mut self.objects[top] {
            Object::List(list) => {
                list.extend_from_slice(items);
                Ok(())
            }
            _ => Err(Wrong::at(at, "a list on the stack", "another object")),
        }
    }

    /// What a call of one of the known names makes.
    fn made(&self, at: usize, callee: usize, arguments: usize) -> Result<Object<'a>, Wrong> {
        let (Object::Name(known), Object::Tuple(arguments)) = (&self.objects[callee], &self.objects[arguments]) else {
            return Err(Wrong::at(at, "a call of a known name with a tuple", "other objects"));
        };
        let first = arguments.first().map(|first| &self.objects[*first]);
        match (known, first) {
            (Known::Reconstruct, _) => Ok(Object::Array(None)),
            (Known::OrderedDict, _) => Ok(Object::Dict(Vec::new())),
            (Known::DType, Some(Object::Text(code))) => Ok(Object::Type { code, is_big_endian: false }),
            // Characters up to 255 stand for bytes.
            (Known::Encode, Some(Object::Text(text))) => {
                let bytes = text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect::<Option<Vec<u8>>>();
                bytes
                    .map(|bytes| Object::Bytes(bytes.into()))
                    .ok_or_else(|| Wrong::at(at, "a text in Latin-1", "other characters"))
            }
            _ => Err(Wrong::at(at, "the arguments of a NumPy array", "other objects")),
        }
    }

    /// Sets the state of the array or element type below the top of the stack.
    fn build(&mut self, at: usize) -> Result<(), Wrong> {
        let (state, target) = (self.pop(at)?, self.top(at)?);
        let Object::Tuple(state) = &self.objects[state] else {
            return Err(Wrong::at(at, "the state of a NumPy array", "another object"));
        };
        let built = match (&self.objects[target], state.as_slice()) {
            (Object::Array(_), &[_, dims, element, order, data]) => {
                // One dimension is stored alike in both orders.
                let is_fortran = matches!(self.objects[order], Object::Bool(true));
                if is_fortran && matches!(&self.objects[dims], Object::Tuple(dims) if dims.len() > 1) {
                    return Err(Wrong::at(at, "an array in C order", "Fortran order"));
                }
                Object::Array(Some((dims, element, data)))
            }
            (Object::Type { code, .. }, &[_, order, ..]) => {
                Object::Type { code, is_big_endian: self.text(order) == Some(">") }
            }
            _ => return Err(Wrong::at(at, "the state of a NumPy array", "that of another object")),
        };
        self.objects[target] = built;
        Ok(())
    }

    fn text(&self, object: usize) -> Option<&'a str> {
        match self.objects.get(object)? {
            Object::Text(text) => Some(text),
            _ => None,
        }
    }

    /// An array, or a pair of a parameter's name and an array. `None` for other objects.
    fn array(&self, object: usize) -> Option<(Option<&'a str>, Result<Value, Wrong>)> {
        match &self.objects[object] {
            Object::Tuple(pair) => match pair.as_slice() {
                &[name, array] => match &self.objects[array] {
                    Object::Array(Some(parts)) => Some((Some(self.text(name)?), self.value(*parts))),
                    _ => None,
                },
                _ => None,
            },
            Object::Array(Some(parts)) => Some((None, self.value(*parts))),
            _ => None,
        }
    }

    fn value(&self, (dims, element, data): (usize, usize, usize)) -> Result<Value, Wrong> {
        let wrong = |expected: &str, got: String| Wrong::at(0, expected, got);
        let (code, is_big_endian) = match self.objects[element] {
            Object::Type { code, is_big_endian } => (code, is_big_endian),
            _ => return Err(wrong("the element type of an array", "another object".into())),
        };
        let element = match code {
            "f2" => Element::F16,
            "f4" => Element::F32,
            "f8" => Element::F64,
            "i4" => Element::I32,
            "i8" => Element::I64,
            _ => return Err(wrong("an array of floats or integers", format!("element type `{code}`"))),
        };
        if is_big_endian {
            return Err(wrong("an array in little-endian byte order", "big-endian order".into()));
        }
        let dims = self.numbers(dims).ok_or_else(|| wrong("the dimensions of an array", "another object".into()))?;
        let Object::Bytes(data) = &self.objects[data] else {
            return Err(wrong("the bytes of an array", "another object".into()));
        };
        let expected = count(&dims).and_then(|count| count.checked_mul(element.bytes()));
        if expected != Some(data.len()) {
            return Err(wrong(&format!("the bytes of an array of {dims:?}"), format!("{} bytes", data.len())));
        }
        Ok(Value { dims, elements: element.read(data) })
    }

    fn numbers(&self, object: usize) -> Option<Vec<usize>> {
        let (Object::Tuple(items) | Object::List(items)) = &self.objects[object] else { return None };
        let number = |item: &usize| match self.objects[*item] {
            Object::Int(number) => usize::try_from(number).ok(),
            _ => None,
        };
        items.iter().map(number).collect()
    }

    /// An array that was cut into slices. `info` has its dimensions and the names of the slices.
    fn whole(&self, info: usize, slices: &mut HashMap<String, Value>) -> Option<Value> {
        let Object::Dict(info) = &self.objects[info] else { return None };
        let entry = |name: &str| info.iter().find(|(key, _)| self.text(*key) == Some(name)).map(|(_, value)| *value);
        let dims = self.numbers(entry("OriginShape")?)?;
        let Object::List(names) = &self.objects[entry("slices")?] else { return None };
        let mut floats = Vec::new();
        for name in names {
            match slices.remove(self.text(*name)?)?.elements {
                StateElements::F32(slice) => floats.extend(slice),
                StateElements::I64(_) => return None,
            }
        }
        (count(&dims)? == floats.len()).then_some(Value { dims, elements: StateElements::F32(floats) })
    }
}

/// The size of a length.
#[derive(Clone, Copy)]
enum Length {
    Byte,
    Word,
    Long,
}

fn sized<'a>(bytes: &mut Bytes<'a>, length: Length) -> Result<&'a [u8], Wrong> {
    let length = match length {
        Length::Byte => bytes.u8("a length")?.into(),
        Length::Word => bytes.u32("a length")?.into(),
        Length::Long => bytes.u64("a length")?,
    };
    bytes.take(usize::try_from(length).unwrap_or(usize::MAX), "an object")
}

fn text<'a>(at: usize, bytes: &mut Bytes<'a>, length: Length) -> Result<&'a str, Wrong> {
    std::str::from_utf8(sized(bytes, length)?).map_err(|error| Wrong::at(at, "a text in UTF-8", error.to_string()))
}

/// An integer of up to 8 bytes, in two's complement.
fn long(at: usize, bytes: &mut Bytes<'_>) -> Result<i64, Wrong> {
    let digits = sized(bytes, Length::Byte)?;
    if digits.len() > 8 {
        return Err(Wrong::at(at, "an integer of at most 8 bytes", format!("{} bytes", digits.len())));
    }
    let fill = if digits.last().is_some_and(|last| *last >= 0x80) { 0xff } else { 0 };
    let mut all = [fill; 8];
    all[..digits.len()].copy_from_slice(digits);
    Ok(i64::from_le_bytes(all))
}

fn known(at: usize, module: &str, name: &str) -> Result<Object<'static>, Wrong> {
    let known = match (module, name) {
        ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct") => Known::Reconstruct,
        ("numpy", "ndarray") => Known::NdArray,
        ("numpy", "dtype") => Known::DType,
        ("collections", "OrderedDict") => Known::OrderedDict,
        ("_codecs", "encode") => Known::Encode,
        _ => {
            let expected = "a pickle of NumPy arrays only, because other objects could run code";
            return Err(Wrong::at(at, expected, format!("`{module}.{name}`")));
        }
    };
    Ok(Object::Name(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Like `paddle.static.save`, as `pickle.dumps({name: array, ...}, protocol=4)` writes it.
    fn written(arrays: &[(&str, &[usize], &[f32])]) -> Vec<u8> {
        let mut file = vec![0x80, 4, b'}', 0x94, b'('];
        let text = |file: &mut Vec<u8>, text: &str| {
            file.extend([0x8c, text.len() as u8]);
            file.extend_from_slice(text.as_bytes());
        };
        for (name, dims, floats) in arrays {
            text(&mut file, name);
            text(&mut file, "numpy.core.multiarray");
            text(&mut file, "_reconstruct");
            file.push(0x93);
            text(&mut file, "numpy");
            text(&mut file, "ndarray");
            // _reconstruct(ndarray, (0,), b"b")
            file.extend([0x93, b'K', 0, 0x85, b'C', 1, b'b', 0x87, b'R', 0x94]);
            file.extend([b'(', b'K', 1, b'(']);
            dims.iter().for_each(|dim| file.extend([b'K', *dim as u8]));
            file.push(b't');
            text(&mut file, "numpy");
            text(&mut file, "dtype");
            file.push(0x93);
            text(&mut file, "f4");
            file.extend([0x89, 0x88, 0x87, b'R', b'(', b'K', 3]);
            text(&mut file, "<");
            file.extend([b'N', b'N', b'N', b'J', 255, 255, 255, 255, b'J', 255, 255, 255, 255, b'K', 0, b't', b'b']);
            file.push(0x89);
            file.push(b'B');
            file.extend_from_slice(&(4 * floats.len() as u32).to_le_bytes());
            file.extend(floats.iter().flat_map(|float| float.to_le_bytes()));
            file.extend([b't', b'b']);
        }
        file.extend(b"u.");
        file
    }

    #[test]
    fn a_dict_of_arrays_is_read() {
        let file = written(&[("w", &[2, 1], &[1.5, -2.0]), ("b", &[1], &[0.25])]);
        let arrays = read(&file).unwrap();
        let value = |dims: &[usize], floats: &[f32]| Value {
            dims: dims.to_vec(),
            elements: StateElements::F32(floats.to_vec()),
        };
        assert_eq!(arrays.values, [("w".into(), value(&[2, 1], &[1.5, -2.0])), ("b".into(), value(&[1], &[0.25]))]);
        assert!(arrays.others.is_empty());
    }

    #[test]
    fn other_names_are_refused_and_nothing_is_called() {
        // What `pickle.dumps` makes of an object whose `__reduce__` returns `(os.system, ("true",))`.
        let error = read(b"cposix\nsystem\n(X\x04\0\0\0truetR.").unwrap_err();
        assert_eq!((error.offset, error.got.as_str()), (0, "`posix.system`"));
        let error = read(b"\x80\x04\x8c\x02os\x8c\x06system\x93.").unwrap_err();
        assert_eq!(error.got, "`os.system`");
        assert!(read(b"\x80\x02]q\x00.").is_err(), "a list");
        assert!(read(b"").is_err() && read(b"PK\x03\x04").is_err() && read(b"u").is_err());
    }

    #[test]
    fn a_truncated_or_changed_file_is_an_error_and_never_a_panic() {
        let file = written(&[("w", &[2, 1], &[1.5, -2.0])]);
        for end in 0..file.len() {
            assert!(read(&file[..end]).is_err(), "{end}");
        }
        for at in 0..file.len() {
            for byte in 0..=255 {
                let mut changed = file.clone();
                changed[at] = byte;
                let _ = read(&changed);
            }
        }
    }
}
