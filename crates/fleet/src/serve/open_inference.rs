//! The Open Inference Protocol, version 2, over HTTP with the extension for binary tensors: the protocol of Triton and KServe.
//!
//! A slot may have another number of ids in every row, for which the protocol has no tensor. Such an input is given as nested
//! lists in JSON, as a rectangle, or flat with a companion input `NAME.lengths`.

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use openfleet_core::FieldKind;
use openfleet_engine::{DType, Tensor};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::http_error::HttpError;
use super::inputs::{GivenColumn, Input, Values, check_rows, lengths_of};
use super::numbers::Numbers;
use super::outputs::{Output, count};
use super::{Asked, Served, Shared, VERSION, answer_with, json_response};

/// The header with the length of the JSON in a body with binary tensors.
const JSON_LENGTH: &str = "Inference-Header-Content-Length";

/// The routes below `/v2`.
pub(crate) fn routes() -> Vec<(&'static str, MethodRouter<Shared>)> {
    let mut routes = vec![
        ("/v2", get(server)),
        ("/v2/health/live", get(async || json_response(&json!({ "live": true })))),
        ("/v2/health/ready", get(async || json_response(&json!({ "ready": true })))),
    ];
    for (model, ready, infer) in [
        ("/v2/models/{name}", "/v2/models/{name}/ready", "/v2/models/{name}/infer"),
        (
            "/v2/models/{name}/versions/{version}",
            "/v2/models/{name}/versions/{version}/ready",
            "/v2/models/{name}/versions/{version}/infer",
        ),
    ] {
        routes.extend([(model, get(metadata)), (ready, get(is_ready)), (infer, post(infer_request))]);
    }
    routes
}

/// Whether a path is a health check of the server or its model.
pub(crate) fn is_health(path: &str) -> bool {
    path.starts_with("/v2/") && (path.ends_with("/live") || path.ends_with("/ready"))
}

async fn server() -> Response {
    let version = env!("CARGO_PKG_VERSION");
    json_response(&json!({ "name": "openfleet", "version": version, "extensions": ["binary_tensor_data"] }))
}

async fn is_ready(State(served): State<Shared>, asked: Asked) -> Result<Response, HttpError> {
    served.check(&asked)?;
    Ok(json_response(&json!({ "name": served.name, "ready": true })))
}

async fn metadata(State(served): State<Shared>, asked: Asked) -> Result<Response, HttpError> {
    served.check(&asked)?;
    let describe =
        |name: &str, dtype, shape: &[i64]| json!({ "name": name, "datatype": datatype(dtype), "shape": shape });
    let inputs = served.inputs.iter().map(|input| describe(&input.name, input.dtype, &input.shape));
    let outputs = served.outputs.iter().map(|output| describe(&output.name, output.dtype, &output.shape));
    Ok(json_response(&json!({
        "name": served.name,
        "versions": [VERSION],
        "platform": "openfleet",
        "inputs": inputs.collect::<Vec<_>>(),
        "outputs": outputs.collect::<Vec<_>>(),
    })))
}

async fn infer_request(
    State(served): State<Shared>,
    asked: Asked,
    request: axum::extract::Request,
) -> Result<Response, HttpError> {
    served.check(&asked)?;
    answer_with(served, request, infer).await
}

#[derive(Deserialize)]
struct Request {
    id: Option<String>,
    inputs: Vec<RequestInput>,
    #[serde(default)]
    outputs: Vec<RequestOutput>,
    #[serde(default)]
    parameters: Map<String, Value>,
}

#[derive(Deserialize)]
struct RequestInput {
    name: String,
    datatype: String,
    shape: Vec<i64>,
    data: Option<Numbers>,
    #[serde(default)]
    parameters: Map<String, Value>,
}

#[derive(Deserialize)]
struct RequestOutput {
    name: String,
    #[serde(default)]
    parameters: Map<String, Value>,
}

fn infer(served: &Served, headers: &HeaderMap, body: &[u8]) -> Result<Response, HttpError> {
    let (json, mut binary) = split(headers, body)?;
    let request: Request = serde_json::from_slice(json)
        .map_err(|error| HttpError::bad(format!("the body is not an inference request: {error}")))?;
    let mut given = Vec::with_capacity(request.inputs.len());
    for input in request.inputs {
        given.push(input.read(served, &mut binary)?);
    }
    if !binary.is_empty() {
        let (left, all) = (binary.len(), body.len() - json.len());
        return Err(HttpError::bad(format!(
            "expected {} bytes of binary tensors, as the inputs' `binary_data_size` add up to, got {all}",
            all - left
        )));
    }
    let chosen = choose(served, &request.outputs)?;
    let tensors = served.predict(given)?;
    let all_binary = request.parameters.get("binary_data_output").and_then(Value::as_bool).unwrap_or(false);
    let wanted =
        chosen.into_iter().map(|(at, binary)| (&served.outputs[at], &tensors[at], binary.unwrap_or(all_binary)));
    write(served, request.id.as_deref(), wanted)
}

/// Splits a body into its JSON and the binary tensors after it.
fn split<'a>(headers: &HeaderMap, body: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), HttpError> {
    let Some(value) = headers.get(JSON_LENGTH) else { return Ok((body, &[])) };
    let length = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    length.and_then(|length| body.split_at_checked(length)).ok_or_else(|| {
        let got = String::from_utf8_lossy(value.as_bytes());
        HttpError::bad(format!("header `{JSON_LENGTH}`: expected at most the body's {} bytes, got `{got}`", body.len()))
    })
}

impl RequestInput {
    /// Reads a column; takes its bytes off `binary` if it has any there.
    fn read(self, served: &Served, binary: &mut &[u8]) -> Result<GivenColumn, HttpError> {
        let RequestInput { name, datatype, shape, data, parameters } = self;
        let refuse = |what: &str, expected: &str, got: String| {
            Err(HttpError::bad(format!("input `{name}`: expected {what} {expected}, got {got}")))
        };
        let Some(element) = Element::of(&datatype) else {
            return refuse("a datatype of", Element::NAMES, format!("`{datatype}`"));
        };
        let is_float = |input: &Input| matches!(input.kind, FieldKind::Floats { .. });
        if element.is_float() && !served.inputs.iter().any(|input| input.name == name && is_float(input)) {
            let known = served.inputs.iter().any(|input| input.name == name);
            if known || lengths_of(&served.inputs, &name).is_some() {
                return refuse("a datatype of integers,", "INT64 or UINT64", datatype);
            }
        }
        let (rows, per_row) = match shape.split_first() {
            Some((&rows, inner)) if rows >= 0 => (usize::try_from(rows).unwrap_or(usize::MAX), inner),
            _ => return refuse("a shape that begins with", "the number of rows", format!("{shape:?}")),
        };
        // With a list of lengths these are not rows, and there may be none.
        let is_flat_slot = shape.len() == 1;
        if !is_flat_slot {
            check_rows(&name, rows, served.max_rows)?;
        }
        let per_row =
            per_row.iter().try_fold(1, |product: usize, &size| product.checked_mul(usize::try_from(size).ok()?));
        let total = per_row.and_then(|per_row| per_row.checked_mul(rows));
        let binary_size = parameters.get("binary_data_size").and_then(Value::as_u64);
        let (values, nested, odd) = match (data, binary_size) {
            (Some(numbers), None) => {
                // In a flat list every element counts as a row.
                let width = if numbers.nested { 1 } else { per_row.unwrap_or(1).max(1) };
                let odd = numbers.odd.map(|(at, what)| (at / width, what));
                (Values::Numbers(numbers.values), numbers.nested.then_some(numbers.lengths), odd)
            }
            (None, Some(size)) => {
                let taken = usize::try_from(size).ok().and_then(|size| binary.split_at_checked(size));
                let Some((bytes, rest)) = taken else {
                    let left = binary.len();
                    return refuse(
                        "`binary_data_size` of at most",
                        &format!("the {left} bytes left of the body"),
                        size.to_string(),
                    );
                };
                *binary = rest;
                if bytes.len() % element.size() != 0 {
                    let expected = format!("a multiple of {} bytes for {datatype}", element.size());
                    return refuse("`binary_data_size` of", &expected, size.to_string());
                }
                (element.read(bytes), None, None)
            }
            (None, None) => return refuse("either", "`data` or the parameter `binary_data_size`", "neither".into()),
            (Some(_), Some(_)) => return refuse("either", "`data` or the parameter `binary_data_size`", "both".into()),
        };
        let got = match &values {
            Values::Numbers(values) => values.len(),
            Values::Keys(values) => values.len(),
            Values::Floats(values) => values.len(),
        };
        let lengths = match nested {
            Some(lengths) if lengths.len() != rows => {
                return refuse(&format!("{rows} rows, as its shape says,"), "in `data`", lengths.len().to_string());
            }
            // A rectangle, or rows of any length if the shape does not say.
            Some(lengths) if shape.len() == 1 || total.is_none_or(|total| total == got) => lengths,
            None if total == Some(got) => vec![per_row.unwrap_or_default(); rows],
            // Elements that are not numbers were left out; the error names their row.
            _ if odd.is_some() => Vec::new(),
            _ => return refuse("as many values as its shape says,", &format!("{shape:?}"), got.to_string()),
        };
        Ok(GivenColumn { name, values, lengths, odd })
    }
}

/// An element of a tensor on the wire.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Element {
    Bool,
    Signed(usize),
    Unsigned(usize),
    Float(usize),
}

impl Element {
    const NAMES: &'static str = "BOOL, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, FP32 or FP64";

    fn of(datatype: &str) -> Option<Self> {
        Some(match datatype {
            "BOOL" => Element::Bool,
            "INT8" => Element::Signed(1),
            "INT16" => Element::Signed(2),
            "INT32" => Element::Signed(4),
            "INT64" => Element::Signed(8),
            "UINT8" => Element::Unsigned(1),
            "UINT16" => Element::Unsigned(2),
            "UINT32" => Element::Unsigned(4),
            "UINT64" => Element::Unsigned(8),
            "FP32" => Element::Float(4),
            "FP64" => Element::Float(8),
            _ => return None,
        })
    }

    fn size(self) -> usize {
        match self {
            Element::Bool => 1,
            Element::Signed(size) | Element::Unsigned(size) | Element::Float(size) => size,
        }
    }

    fn is_float(self) -> bool {
        matches!(self, Element::Float(_))
    }

    /// Reads little-endian elements; the bytes must be a whole number of them.
    fn read(self, bytes: &[u8]) -> Values {
        let elements = bytes.chunks_exact(self.size());
        // Extends to eight bytes by repeating the sign.
        let wide = |chunk: &[u8], negative: bool| {
            let mut eight = [if negative { 0xff } else { 0 }; 8];
            eight[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(eight)
        };
        match self {
            Element::Signed(_) => Values::Keys(
                elements.map(|chunk| wide(chunk, chunk.last().is_some_and(|byte| byte >> 7 == 1))).collect(),
            ),
            Element::Bool | Element::Unsigned(_) => Values::Keys(elements.map(|chunk| wide(chunk, false)).collect()),
            Element::Float(8) => {
                Values::Floats(elements.map(|chunk| f64::from_bits(wide(chunk, false)) as f32).collect())
            }
            Element::Float(_) => {
                Values::Floats(elements.map(|chunk| f32::from_bits(wide(chunk, false) as u32)).collect())
            }
        }
    }
}

/// The positions of the requested outputs, and whether each is wanted as bytes, if the request says so. All outputs, unless
/// some are named.
fn choose(served: &Served, asked: &[RequestOutput]) -> Result<Vec<(usize, Option<bool>)>, HttpError> {
    if asked.is_empty() {
        return Ok((0..served.outputs.len()).map(|at| (at, None)).collect());
    }
    let find = |RequestOutput { name, parameters }: &RequestOutput| {
        if parameters.contains_key("classification") {
            return Err(HttpError::bad(format!("output `{name}`: `classification` is not offered; take the values")));
        }
        let at = served.outputs.iter().position(|output| output.name == *name).ok_or_else(|| {
            let known: Vec<String> = served.outputs.iter().map(|output| format!("`{}`", output.name)).collect();
            HttpError::bad(format!("the model has no output `{name}`; it gives {}", known.join(", ")))
        })?;
        Ok((at, parameters.get("binary_data").and_then(Value::as_bool)))
    };
    asked.iter().map(find).collect()
}

fn write<'a>(
    served: &Served,
    id: Option<&str>,
    outputs: impl Iterator<Item = (&'a Output, &'a Tensor, bool)>,
) -> Result<Response, HttpError> {
    let mut head = json!({ "model_name": served.name, "model_version": VERSION });
    if let Some(id) = id {
        head["id"] = id.into();
    }
    let mut json = head.to_string().into_bytes();
    // In place of the closing brace.
    json.pop();
    json.extend(b",\"outputs\":[");
    let mut bytes = Vec::new();
    for (at, (output, tensor, binary)) in outputs.enumerate() {
        if at > 0 {
            json.push(b',');
        }
        let mut head = json!({ "name": output.name, "datatype": datatype(output.dtype), "shape": tensor.dims() });
        if binary {
            let before = bytes.len();
            output.write_bytes(tensor, &mut bytes);
            head["parameters"] = json!({ "binary_data_size": bytes.len() - before });
            json.extend(head.to_string().into_bytes());
            continue;
        }
        json.extend(head.to_string().into_bytes());
        json.pop();
        json.reserve(12 * count(tensor));
        json.extend(b",\"data\":");
        output.write_flat(tensor, &mut json)?;
        json.push(b'}');
    }
    json.extend(b"]}");
    if bytes.is_empty() {
        return Ok(([(header::CONTENT_TYPE, "application/json")], json).into_response());
    }
    let length = json.len().to_string();
    json.append(&mut bytes);
    let headers = [(header::CONTENT_TYPE.as_str(), "application/octet-stream"), (JSON_LENGTH, length.as_str())];
    Ok((headers, json).into_response())
}

fn datatype(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "FP32",
        DType::I64 => "INT64",
        DType::Bool => "BOOL",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_every_width_keep_their_value() {
        let keys = |datatype: &str, bytes: &[u8]| match Element::of(datatype).unwrap().read(bytes) {
            Values::Keys(keys) => keys,
            other => panic!("{other:?}"),
        };
        assert_eq!(keys("INT8", &[1, 0xff]), [1, u64::MAX]);
        assert_eq!(keys("INT32", &(-2i32).to_le_bytes()), [(-2i64) as u64]);
        assert_eq!(keys("UINT32", &u32::MAX.to_le_bytes()), [u64::from(u32::MAX)]);
        assert_eq!(keys("INT64", &i64::MIN.to_le_bytes()), [1 << 63]);
        assert_eq!(keys("UINT64", &u64::MAX.to_le_bytes()), [u64::MAX]);
        assert_eq!(keys("BOOL", &[0, 1]), [0, 1]);
    }

    #[test]
    fn floats_of_both_widths_become_floats() {
        for (datatype, bytes) in [("FP32", 0.1f32.to_le_bytes().to_vec()), ("FP64", 0.1f64.to_le_bytes().to_vec())] {
            assert!(matches!(Element::of(datatype).unwrap().read(&bytes), Values::Floats(values) if values == [0.1]));
        }
        assert_eq!(Element::of("BYTES"), None);
    }
}
