//! The REST API of TensorFlow Serving: predictions by rows (`instances`) or by columns (`inputs`).
//!
//! Lists are read directly into columns. An instance is an object of inputs, or a single value if the model has one input. The
//! verb of a path such as `/v1/models/ctr:predict` is in its last segment, which no router splits.

use std::fmt;

use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use openfleet_engine::{DType, Tensor};
use serde::de::value::SeqAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, json};

use super::http_error::HttpError;
use super::inputs::{GivenColumn, names};
use super::numbers::{Numbers, Row, Rows};
use super::{Asked, Served, Shared, VERSION, answer_with, json_response};

/// The routes below `/v1`.
pub(crate) fn routes() -> Vec<(&'static str, MethodRouter<Shared>)> {
    let mut routes = Vec::new();
    for (model, metadata_of) in [
        ("/v1/models/{name}", "/v1/models/{name}/metadata"),
        ("/v1/models/{name}/versions/{version}", "/v1/models/{name}/versions/{version}/metadata"),
    ] {
        routes.extend([(model, get(status).post(predict_request)), (metadata_of, get(metadata))]);
    }
    routes
}

/// Whether a path requests the model's status, which is the health check of this protocol.
pub(crate) fn is_health(path: &str) -> bool {
    let Some(model) = path.strip_prefix("/v1/models/") else { return false };
    matches!(*model.split('/').collect::<Vec<_>>(), [_] | [_, "versions", _])
}

async fn status(State(served): State<Shared>, asked: Asked) -> Result<Response, HttpError> {
    let (asked, verb) = asked.split_verb();
    if verb.is_some() {
        served.check(&asked)?;
        return Err(wrong_method(&Method::GET, "POST"));
    }
    served.check(&asked)?;
    let status = json!({ "error_code": "OK", "error_message": "" });
    Ok(json_response(&json!({
        "model_version_status": [{ "version": VERSION, "state": "AVAILABLE", "status": status }],
    })))
}

async fn metadata(State(served): State<Shared>, asked: Asked) -> Result<Response, HttpError> {
    served.check(&asked)?;
    let describe = |name: &str, dtype: DType, shape: &[i64]| {
        let dims: Vec<Value> = shape.iter().map(|size| json!({ "size": size.to_string(), "name": "" })).collect();
        let shape = json!({ "dim": dims, "unknown_rank": false });
        (name.to_owned(), json!({ "dtype": tf_type(dtype), "tensor_shape": shape, "name": name }))
    };
    let inputs = served.inputs.iter().map(|input| describe(&input.name, input.dtype, &input.shape));
    let outputs = served.outputs.iter().map(|output| describe(&output.name, output.dtype, &output.shape));
    let signature = json!({
        "inputs": inputs.collect::<serde_json::Map<_, _>>(),
        "outputs": outputs.collect::<serde_json::Map<_, _>>(),
        "method_name": "tensorflow/serving/predict",
    });
    Ok(json_response(&json!({
        "model_spec": { "name": served.name, "signature_name": "", "version": VERSION },
        "metadata": { "signature_def": { "signature_def": { "serving_default": signature } } },
    })))
}

async fn predict_request(
    State(served): State<Shared>,
    asked: Asked,
    request: axum::extract::Request,
) -> Result<Response, HttpError> {
    let (asked, verb) = asked.split_verb();
    served.check(&asked)?;
    match verb.as_deref() {
        Some("predict") => answer_with(served, request, predict).await,
        Some(verb) => {
            Err(HttpError::bad(format!("expected the verb `:predict` behind the model's name, got `:{verb}`")))
        }
        None => Err(wrong_method(&Method::POST, "GET, or `:predict` behind the model's name")),
    }
}

fn wrong_method(got: &Method, expected: &str) -> HttpError {
    HttpError { status: StatusCode::METHOD_NOT_ALLOWED, message: format!("expected {expected}, got {got}") }
}

/// How a request lists its rows; the response uses the same form.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    Rows,
    Columns,
}

fn predict(served: &Served, _: &HeaderMap, body: &[u8]) -> Result<Response, HttpError> {
    let malformed = |error| HttpError::bad(format!("the body is not a request for predictions: {error}"));
    let mut columns = Columns::default();
    let mut json = serde_json::Deserializer::from_slice(body);
    let form = Body(&mut columns).deserialize(&mut json).map_err(malformed)?;
    json.end().map_err(malformed)?;
    let mut given = Vec::with_capacity(columns.0.len());
    for (name, numbers) in columns.0 {
        given.push(GivenColumn::nested(name.map_or_else(|| only_input(served), Ok)?, numbers));
    }
    let tensors = served.predict(given)?;
    let mut json = Vec::new();
    match form {
        Form::Rows => write_rows(served, &tensors, &mut json)?,
        Form::Columns => write_columns(served, &tensors, &mut json)?,
    }
    Ok(([(header::CONTENT_TYPE, "application/json")], json).into_response())
}

/// The input for a value without a name.
fn only_input(served: &Served) -> Result<String, HttpError> {
    match served.inputs.as_slice() {
        [input] => Ok(input.name.clone()),
        inputs => Err(HttpError::bad(format!(
            "expected objects with the inputs {}, got values without names, which only a model with one input takes",
            names(inputs)
        ))),
    }
}

fn write_rows(served: &Served, tensors: &[Tensor], json: &mut Vec<u8>) -> Result<(), HttpError> {
    let rows = tensors.first().and_then(|tensor| tensor.dims().first()).copied().unwrap_or_default();
    let outputs = || served.outputs.iter().zip(tensors);
    if let Some((output, _)) = outputs().find(|(_, tensor)| tensor.dims().first() != Some(&rows)) {
        let name = &output.name;
        return Err(HttpError::bad(format!("output `{name}` is not of rows: give `inputs` in place of `instances`")));
    }
    json.extend(b"{\"predictions\":[");
    for row in 0..rows {
        if row > 0 {
            json.push(b',');
        }
        write_named(served, json, |at, json| served.outputs[at].write_row(&tensors[at], row, json))?;
    }
    json.extend(b"]}");
    Ok(())
}

fn write_columns(served: &Served, tensors: &[Tensor], json: &mut Vec<u8>) -> Result<(), HttpError> {
    json.extend(b"{\"outputs\":");
    write_named(served, json, |at, json| served.outputs[at].write_nested(&tensors[at], json))?;
    json.push(b'}');
    Ok(())
}

/// An object of all outputs, or a single value if the model has one output.
fn write_named(
    served: &Served,
    json: &mut Vec<u8>,
    write: impl Fn(usize, &mut Vec<u8>) -> Result<(), HttpError>,
) -> Result<(), HttpError> {
    if served.outputs.len() == 1 {
        return write(0, json);
    }
    for (at, output) in served.outputs.iter().enumerate() {
        json.push(if at == 0 { b'{' } else { b',' });
        json.extend(Value::from(output.name.as_str()).to_string().into_bytes());
        json.push(b':');
        write(at, json)?;
    }
    json.push(b'}');
    Ok(())
}

fn tf_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "DT_FLOAT",
        DType::I64 => "DT_INT64",
        DType::Bool => "DT_BOOL",
    }
}

/// The columns of a request by name; the name is absent for a single input.
#[derive(Default)]
struct Columns(Vec<(Option<String>, Numbers)>);

impl Columns {
    /// The position of a column, which is created if it does not exist. `near` is a guess of the position.
    fn find(&mut self, name: Option<&str>, near: usize) -> usize {
        let is = |(known, _): &(Option<String>, Numbers)| known.as_deref() == name;
        if self.0.get(near).is_some_and(is) {
            return near;
        }
        self.0.iter().position(is).unwrap_or_else(|| {
            self.0.push((name.map(str::to_owned), Numbers::default()));
            self.0.len() - 1
        })
    }

    /// The column of a key that gets the values of the next row; every earlier row must have given its own.
    fn at_row<E: Error>(&mut self, at: usize, row: usize) -> Result<&mut Numbers, E> {
        let (name, numbers) = &mut self.0[at];
        let name = name.as_deref().map_or_else(|| "value without a name".to_owned(), |name| format!("`{name}`"));
        match numbers.lengths.len() {
            done if done < row => Err(E::custom(format!("instance {done} has no {name}, which others have"))),
            done if done > row => Err(E::custom(format!("instance {row} gives {name} twice"))),
            _ => Ok(numbers),
        }
    }
}

/// Reads a whole request.
struct Body<'a>(&'a mut Columns);

impl<'de> DeserializeSeed<'de> for Body<'_> {
    type Value = Form;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Form, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Body<'_> {
    type Value = Form;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with `instances` or `inputs`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Form, A::Error> {
        let mut form = None;
        while let Some(key) = map.next_key::<String>()? {
            let this = match key.as_str() {
                "instances" => Form::Rows,
                "inputs" => Form::Columns,
                // `signature_name` and other fields are ignored: there is one signature.
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            if form.replace(this).is_some() {
                return Err(A::Error::custom("expected `instances` or `inputs`, got more than one of them"));
            }
            match this {
                Form::Rows => map.next_value_seed(Instances(&mut *self.0))?,
                Form::Columns => map.next_value_seed(Inputs(&mut *self.0))?,
            }
        }
        form.ok_or_else(|| A::Error::custom("expected `instances` or `inputs`, got neither"))
    }
}

/// Reads a list of rows.
struct Instances<'a>(&'a mut Columns);

impl<'de> DeserializeSeed<'de> for Instances<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Instances<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of instances")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut instances: A) -> Result<(), A::Error> {
        let mut rows = 0;
        while instances.next_element_seed(Instance { columns: &mut *self.0, row: rows })?.is_some() {
            rows += 1;
        }
        // Columns that the last rows do not have.
        let short = (0..self.0.0.len()).find(|&at| self.0.0[at].1.lengths.len() < rows);
        short.map_or(Ok(()), |at| self.0.at_row(at, rows).map(drop))
    }
}

/// Reads one row.
struct Instance<'a> {
    columns: &'a mut Columns,
    row: usize,
}

impl Instance<'_> {
    /// A value without a name.
    fn alone<'de, D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        let at = self.columns.find(None, 0);
        Row(self.columns.at_row(at, self.row)?).deserialize(value)
    }
}

impl<'de> DeserializeSeed<'de> for Instance<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Instance<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of inputs, or the value of the only one")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut near = 0;
        while let Some(at) = map.next_key_seed(Name { columns: &mut *self.columns, near })? {
            map.next_value_seed(Row(self.columns.at_row(at, self.row)?))?;
            near = at + 1;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, elements: A) -> Result<(), A::Error> {
        self.alone(SeqAccessDeserializer::new(elements))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.alone(value.into_deserializer())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.alone(value.into_deserializer())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.alone(value.into_deserializer())
    }
}

/// Reads columns by name, or the only column.
struct Inputs<'a>(&'a mut Columns);

impl<'de> DeserializeSeed<'de> for Inputs<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Inputs<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of inputs, or the rows of the only one")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            if self.0.0.iter().any(|(known, _)| known.as_deref() == Some(&name)) {
                return Err(A::Error::custom(format!("input `{name}` is given twice")));
            }
            let mut numbers = Numbers::default();
            let named = |error| A::Error::custom(format!("input `{name}`: {error}"));
            map.next_value_seed(Rows(&mut numbers)).map_err(named)?;
            self.0.0.push((Some(name), numbers));
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, rows: A) -> Result<(), A::Error> {
        let at = self.0.find(None, 0);
        Rows(&mut self.0.0[at].1).deserialize(SeqAccessDeserializer::new(rows))
    }
}

/// Reads a key and finds its column.
struct Name<'a> {
    columns: &'a mut Columns,
    near: usize,
}

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the name of an input")
    }

    fn visit_str<E>(self, name: &str) -> Result<usize, E> {
        Ok(self.columns.find(Some(name), self.near))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<(Form, Columns), String> {
        let mut columns = Columns::default();
        let form = Body(&mut columns).deserialize(&mut serde_json::Deserializer::from_str(json));
        form.map(|form| (form, columns)).map_err(|error| error.to_string())
    }

    fn lengths(columns: &Columns) -> Vec<(Option<&str>, &[usize])> {
        columns.0.iter().map(|(name, numbers)| (name.as_deref(), numbers.lengths.as_slice())).collect()
    }

    #[test]
    fn rows_and_columns_come_to_the_same() {
        let (rows, by_rows) = read(r#"{"instances":[{"a":[1,2],"b":3},{"b":4,"a":[]}]}"#).unwrap();
        let (form, by_columns) = read(r#"{"signature_name":"x","inputs":{"a":[[1,2],[]],"b":[3,4]}}"#).unwrap();
        assert_eq!((rows, form), (Form::Rows, Form::Columns));
        assert_eq!(lengths(&by_rows), [(Some("a"), &[2, 0][..]), (Some("b"), &[1, 1])]);
        assert_eq!(lengths(&by_rows), lengths(&by_columns));
    }

    #[test]
    fn values_without_names_are_one_column() {
        for json in [r#"{"instances":[[1,2],[3,4]]}"#, r#"{"inputs":[[1,2],[3,4]]}"#] {
            assert_eq!(lengths(&read(json).unwrap().1), [(None, &[2, 2][..])], "{json}");
        }
        assert_eq!(lengths(&read(r#"{"instances":[1,-2,0.5]}"#).unwrap().1), [(None, &[1, 1, 1][..])]);
    }

    #[test]
    fn what_is_missing_or_twice_is_named_with_its_instance() {
        for (json, expected) in [
            (r#"{"instances":[{"a":1},{"b":1}]}"#, "instance 0 has no `b`"),
            (r#"{"instances":[{"a":1},{"a":1},{}]}"#, "instance 2 has no `a`"),
            (r#"{"instances":[{"a":1},{},{"a":1}]}"#, "instance 1 has no `a`"),
            (r#"{"instances":[{"a":1,"a":2}]}"#, "instance 0 gives `a` twice"),
            (r#"{"inputs":{"a":[1],"a":[2]}}"#, "input `a` is given twice"),
            (
                r#"{"inputs":{"a":1}}"#,
                "input `a`: invalid type: integer `1`, expected a list with an element for each row",
            ),
            (r#"{"inputs":{},"instances":[]}"#, "got more than one of them"),
            ("{}", "expected `instances` or `inputs`, got neither"),
        ] {
            let error = read(json).map(drop).unwrap_err();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }
}
