//! `openfleet serve` gives the predictor's predictions, to the bit, over both protocols.
#![cfg(unix)]

use openfleet::model_dir;
use openfleet_core::{FieldKind, Key};
use openfleet_engine::{Feed, Predictor, Tensor};
use serde_json::{Value, json};

use crate::data::Workspace;
use crate::http::{Answer, Server};
use crate::own_model;

/// Rows for any model: slots with no, one or several ids, and floats.
struct Rows {
    slots: Vec<(String, Vec<Vec<Key>>)>,
    floats: Vec<(String, usize, Vec<f32>)>,
}

impl Rows {
    /// Generated rows; ids are multiplied by `spread`, so that they may use all 64 bits.
    fn of(predictor: &Predictor, count: usize, ids: u64, spread: u64) -> Self {
        let mut state = count as u64;
        let mut below = |end: u64| {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            openfleet_core::key::mix(state) % end
        };
        let mut rows = Rows { slots: Vec::new(), floats: Vec::new() };
        let program = &predictor.model().program;
        for name in predictor.feeds() {
            match program.variable(program.find(name).unwrap()).field_kind() {
                FieldKind::Floats { dim } => {
                    let values = (0..count * dim).map(|_| below(1_000_000) as f32 / 1e6).collect();
                    rows.floats.push((name.clone(), dim, values));
                }
                FieldKind::Ids => {
                    let ids = (0..count).map(|_| (0..below(4)).map(|_| below(ids).wrapping_mul(spread)).collect());
                    rows.slots.push((name.clone(), ids.collect()));
                }
                FieldKind::FixedIds { .. } => panic!("no model here has such an input"),
            }
        }
        rows
    }

    fn feed(&self) -> Feed {
        let mut feed = Feed::new();
        for (name, ids) in &self.slots {
            feed = feed.slot(name, &ids.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
        }
        for (name, dim, values) in &self.floats {
            feed = feed.floats(name, *dim, values.clone()).unwrap();
        }
        feed
    }

    /// As columns of TensorFlow Serving.
    fn columns(&self) -> Value {
        let slots = self.slots.iter().map(|(name, ids)| (name.clone(), json!(ids)));
        let floats = self.floats.iter();
        let floats = floats.map(|(name, dim, values)| (name.clone(), json!(values.chunks(*dim).collect::<Vec<_>>())));
        Value::Object(slots.chain(floats).collect())
    }

    /// As rows of TensorFlow Serving.
    fn instances(&self) -> Value {
        let columns = self.columns();
        let columns = columns.as_object().unwrap();
        let count = columns.values().next().unwrap().as_array().unwrap().len();
        let row =
            |at: usize| Value::Object(columns.iter().map(|(name, rows)| (name.clone(), rows[at].clone())).collect());
        (0..count).map(row).collect()
    }

    /// As inputs of the Open Inference Protocol, with nested slots.
    fn inputs(&self) -> Value {
        let slots = self
            .slots
            .iter()
            .map(|(name, ids)| json!({ "name": name, "datatype": "UINT64", "shape": [ids.len(), -1], "data": ids }));
        let floats = self.floats.iter().map(|(name, dim, values)| {
            json!({ "name": name, "datatype": "FP32", "shape": [values.len() / dim, dim], "data": values })
        });
        slots.chain(floats).collect()
    }

    /// As a body with binary tensors, with flat slots and their lengths; also returns the length of its JSON.
    fn binary(&self) -> (usize, Vec<u8>) {
        let (mut inputs, mut tensors) = (Vec::new(), Vec::new());
        let mut add = |name: &str, datatype: &str, shape: &[usize], bytes: Vec<u8>| {
            let parameters = json!({ "binary_data_size": bytes.len() });
            inputs.push(json!({ "name": name, "datatype": datatype, "shape": shape, "parameters": parameters }));
            tensors.extend(bytes);
        };
        for (name, ids) in &self.slots {
            let all: Vec<Key> = ids.concat();
            add(name, "INT64", &[all.len()], all.iter().flat_map(|id| id.to_le_bytes()).collect());
            let lengths = ids.iter().flat_map(|ids| (ids.len() as i64).to_le_bytes()).collect();
            add(&format!("{name}.lengths"), "INT64", &[ids.len()], lengths);
        }
        for (name, dim, values) in &self.floats {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            add(name, "FP32", &[values.len() / dim, *dim], bytes);
        }
        let request = json!({ "id": "seven", "inputs": inputs, "parameters": { "binary_data_output": true } });
        let mut body = request.to_string().into_bytes();
        let length = body.len();
        body.extend(tensors);
        (length, body)
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn tensor_bits(tensor: &Tensor) -> Vec<u32> {
    bits(tensor.f32s().unwrap())
}

/// The floats of nested lists.
fn json_bits(value: &Value) -> Vec<u32> {
    match value {
        Value::Array(values) => values.iter().flat_map(json_bits).collect(),
        value => bits(&[value.as_f64().unwrap() as f32]),
    }
}

/// Serves a directory as `name` and compares every form of a request with the predictor.
fn compare(workspace: &Workspace, directory: &str, name: &str, predictor: &Predictor) {
    let server = Server::start(workspace, &[directory, "--name", name, "--threads", "2"]);
    let mut connection = server.connect();
    let infer = format!("/v2/models/{name}/infer");
    let predict = format!("/v1/models/{name}:predict");
    // Known ids, and ids that the model has never seen.
    for (count, ids, spread) in [(1, 500, 1), (5, 500, 1), (3, u64::MAX, 0x9E37_79B9_7F4A_7C15), (2000, 1000, 1)] {
        let rows = Rows::of(predictor, count, ids, spread);
        let expected: Vec<_> = predictor.predict(rows.feed()).unwrap();
        let mut ask = |path: &str, body: Value| connection.ask("POST", path, &[], body.to_string().as_bytes()).json();

        let answer = ask(&infer, json!({ "inputs": rows.inputs() }));
        assert_eq!((&answer["model_name"], &answer["id"]), (&json!(name), &Value::Null));
        for (tensor, output) in expected.iter().zip(answer["outputs"].as_array().unwrap()) {
            assert_eq!(output["shape"], json!(tensor.dims()));
            assert_eq!(json_bits(&output["data"]), tensor_bits(tensor));
        }

        let by_rows = ask(&predict, json!({ "signature_name": "serving_default", "instances": rows.instances() }));
        let by_columns = ask(&format!("/v1/models/{name}/versions/1:predict"), json!({ "inputs": rows.columns() }));
        for (target, tensor) in predictor.targets().iter().zip(&expected) {
            let (row, column): (Value, &Value) = match expected.len() {
                1 => (by_rows["predictions"].clone(), &by_columns["outputs"]),
                _ => {
                    let predictions = by_rows["predictions"].as_array().unwrap();
                    (predictions.iter().map(|row| row[*target].clone()).collect(), &by_columns["outputs"][*target])
                }
            };
            assert_eq!(row.as_array().unwrap().len(), count);
            assert_eq!((json_bits(&row), json_bits(column)), (tensor_bits(tensor), tensor_bits(tensor)));
        }

        let (length, body) = rows.binary();
        let length = length.to_string();
        let answer = connection.ask("POST", &infer, &[("Inference-Header-Content-Length", &length)], &body);
        assert_eq!(binary_bits(&answer), expected.iter().flat_map(tensor_bits).collect::<Vec<_>>());
    }
}

/// The floats after the JSON of a response.
fn binary_bits(answer: &Answer) -> Vec<u32> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let length: usize = answer.headers["inference-header-content-length"].parse().unwrap();
    let json: Value = serde_json::from_slice(&answer.body[..length]).unwrap();
    assert_eq!(json["id"], "seven");
    let sizes = json["outputs"].as_array().unwrap().iter();
    let sizes = sizes.map(|output| output["parameters"]["binary_data_size"].as_u64().unwrap());
    assert_eq!(sizes.sum::<u64>() as usize, answer.body.len() - length);
    let floats = answer.body[length..].chunks_exact(4);
    floats.map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

#[test]
fn what_train_saved_is_served_as_the_predictor_predicts() {
    let workspace = Workspace::with_clicks(600);
    for model in ["deepfm", "ctr_dnn"] {
        workspace.train(model, &["--save", model]);
        let opened = model_dir::open(workspace.path(model).to_str().unwrap(), "ADDRESS").unwrap();
        compare(&workspace, model, "clicks", &opened.predictor);
    }
}

#[test]
fn an_inference_model_with_several_outputs_is_served_as_the_predictor_predicts() {
    let workspace = Workspace::new();
    let predictor = own_model::saved(&workspace);
    compare(&workspace, "own", "a name: with all sorts".replace(' ', "_").as_str(), &predictor);
}

#[test]
fn ids_may_be_nested_rectangular_single_or_flat_with_lengths() {
    let workspace = Workspace::new();
    let predictor = own_model::saved(&workspace);
    let server = Server::start(&workspace, &["own"]);
    let big = u64::MAX - 5;
    let feed = |user: &[&[Key]], item: &[&[Key]]| {
        let rows = user.len();
        Feed::new()
            .slot("user", user)
            .unwrap()
            .slot("item", item)
            .unwrap()
            .floats("dense", 2, vec![0.5; 2 * rows])
            .unwrap()
    };
    let p = predictor.targets()[0].to_owned();
    let ask = |user: Value, item: Value, rows: usize| {
        let dense = json!({ "name": "dense", "datatype": "FP64", "shape": [rows, 2], "data": vec![[0.5, 0.5]; rows] });
        let mut inputs = vec![dense];
        for input in [user, item] {
            match input {
                Value::Array(several) => inputs.extend(several),
                one => inputs.push(one),
            }
        }
        let answer =
            server.post("/v2/models/own/infer", &json!({ "inputs": inputs, "outputs": [{ "name": p }] })).json();
        assert_eq!(answer["outputs"].as_array().unwrap().len(), 1, "one was asked for");
        json_bits(&answer["outputs"][0]["data"])
    };
    let expect = |user: &[&[Key]], item: &[&[Key]]| tensor_bits(&predictor.predict(feed(user, item)).unwrap()[0]);
    let input = |name: &str, datatype: &str, shape: Value, data: Value| json!({ "name": name, "datatype": datatype, "shape": shape, "data": data });
    // Nested, with the shape of the rows alone; one id per row; a rectangle, flat and nested.
    let ragged: [&[Key]; 3] = [&[1, big], &[], &[3]];
    let nested = json!(ragged);
    let single = input("item", "INT32", json!([3]), json!([7, 8, 9]));
    for shape in [json!([3, -1]), json!([3])] {
        let got = ask(input("user", "UINT64", shape, nested.clone()), single.clone(), 3);
        assert_eq!(got, expect(&ragged, &[&[7], &[8], &[9]]));
    }
    for data in [json!([1, 2, 3, -6]), json!([[1, 2], [3, -6]])] {
        let got = ask(input("user", "INT64", json!([2, 2]), data), input("item", "INT64", json!([2, 0]), json!([])), 2);
        assert_eq!(got, expect(&[&[1, 2], &[3, big]], &[&[], &[]]), "-6 has the same bits as 2^64 - 6");
    }
    // Flat, with lengths; no ids at all in the second slot.
    let flat = |name: &str, ids: Value, lengths: Value| {
        let count = |list: &Value| list.as_array().unwrap().len();
        let of = input(&format!("{name}.lengths"), "INT64", json!([count(&lengths)]), lengths.clone());
        json!([input(name, "UINT64", json!([count(&ids)]), ids), of])
    };
    let got = ask(flat("user", json!([1, big, 3]), json!([2, 0, 1])), flat("item", json!([]), json!([0, 0, 0])), 3);
    assert_eq!(got, expect(&ragged, &[&[], &[], &[]]));
    // The same columns in the other protocol.
    let columns =
        json!({ "user": [1, big, 3], "user.lengths": [2, 0, 1], "item": [7, 8, 9], "dense": vec![[0.5, 0.5]; 3] });
    let answer = server.post("/v1/models/own:predict", &json!({ "inputs": columns })).json();
    assert_eq!(json_bits(&answer["outputs"][&p]), expect(&ragged, &[&[7], &[8], &[9]]));
}

#[test]
fn what_is_wrong_with_a_request_is_said_with_the_field_and_the_row() {
    let workspace = Workspace::new();
    own_model::saved(&workspace);
    let server = Server::start(&workspace, &["own", "--max-rows", "100"]);
    let good = json!({ "user": [[1], [2, 3]], "item": [[], [4]], "dense": [[0.1, 0.2], [0.3, 0.4]] });
    server.post("/v1/models/own:predict", &json!({ "inputs": good })).json();

    // A column, its replacement, and words of the error.
    let with = |name: &str, value: Value| {
        let mut columns = good.clone();
        columns[name] = value;
        json!({ "inputs": columns })
    };
    let without = |name: &str| {
        let mut columns = good.clone();
        columns.as_object_mut().unwrap().remove(name);
        json!({ "inputs": columns })
    };
    for (body, expected) in [
        (with("user", json!([[1], [1.5]])), "input `user`, row 1: expected integers from -2^63 to 2^64 - 1, got 1.5"),
        (with("user", json!([[1], ["x"]])), "input `user`, row 1: expected integers, got the text \"x\""),
        (with("user", json!([null, 1])), "input `user`, row 0: expected integers, got null"),
        (
            with("user", json!([[1]])),
            "`item` of the data does not match the program: expected 1 rows, like `user`, got 2 rows",
        ),
        (with("user", json!([])), "input `user`: expected at least one row, got none"),
        (with("dense", json!([[0.1, 0.2], [0.3]])), "input `dense`, row 1: expected 2 float(s) per row, got 1"),
        (with("dense", json!([[0.1, 0.2], [{}, 0.3]])), "input `dense`, row 1: expected numbers, got an object"),
        (with("dense", json!(0.5)), "input `dense`: invalid type"),
        (without("item"), "input `item` is missing; the model reads `user`, `item`, `dense`"),
        (with("usr", json!([1, 2])), "the model does not read an input `usr`; did you mean `user`?"),
        (with("user.lengths", json!([1, 1])), "input `user`: expected 2 ids, as `user.lengths` adds up to, got 3"),
        (
            with("user.lengths", json!([4, -1])),
            "input `user.lengths`, row 0: expected the number of ids of the row, got 4",
        ),
        (
            with("user.lengths", json!([[1, 2], 0])),
            "input `user.lengths`, row 0: expected the number of ids of the row, got 2 numbers",
        ),
        (json!({ "instances": [good["dense"]] }), "expected objects with the inputs `user`, `item`, `dense`"),
        (json!({ "instances": [{ "user": 1, "item": 2 }, { "user": 1 }] }), "instance 1 has no `item`"),
        (json!({ "instances": 5 }), "expected a list of instances"),
        (json!({}), "expected `instances` or `inputs`, got neither"),
        (json!([1]), "expected an object with `instances` or `inputs`"),
    ] {
        let error = server.post("/v1/models/own:predict", &body).error(400);
        assert!(error.contains(expected), "{body}: {error}");
    }
    let broken = server.connect().ask("POST", "/v1/models/own:predict", &[], b"{\"inputs\":").error(400);
    assert!(broken.contains("not a request for predictions"), "{broken}");
    let deep = ["[".repeat(10_000), "]".repeat(10_000)].concat();
    let deep = format!("{{\"inputs\":{{\"user\":{deep}}}}}");
    let error = server.connect().ask("POST", "/v1/models/own:predict", &[], deep.as_bytes()).error(400);
    assert!(error.contains("recursion"), "{error}");

    let input = |name: &str, datatype: &str, shape: Value, data: Value| json!({ "name": name, "datatype": datatype, "shape": shape, "data": data });
    let rest =
        [input("item", "INT64", json!([1, 1]), json!([4])), input("dense", "FP32", json!([1, 2]), json!([0.1, 0.2]))];
    for (user, expected) in [
        (
            input("user", "INT64", json!([1, 2]), json!([1])),
            "input `user`: expected as many values as its shape says, [1, 2], got 1",
        ),
        (
            input("user", "INT64", json!([2, -1]), json!([[1]])),
            "input `user`: expected 2 rows, as its shape says, in `data`, got 1",
        ),
        (
            input("user", "INT64", json!([]), json!([1])),
            "input `user`: expected a shape that begins with the number of rows, got []",
        ),
        (input("user", "INT64", json!([-1]), json!([1])), "got [-1]"),
        (
            input("user", "INT64", json!([1, i64::MAX, i64::MAX]), json!([1])),
            "input `user`: expected as many values as its shape says",
        ),
        (
            input("user", "FP32", json!([1, 1]), json!([1])),
            "input `user`: expected a datatype of integers, INT64 or UINT64, got FP32",
        ),
        (input("user", "BYTES", json!([1, 1]), json!(["a"])), "input `user`: expected a datatype of BOOL, INT8"),
        (
            input("user", "INT64", json!([1, 1]), json!(["a"])),
            "input `user`, row 0: expected integers, got the text \"a\"",
        ),
        (
            json!({ "name": "user", "datatype": "INT64", "shape": [1, 1] }),
            "either `data` or the parameter `binary_data_size`, got neither",
        ),
        (
            json!({ "name": "user", "datatype": "INT64", "shape": [1], "parameters": { "binary_data_size": 8 } }),
            "input `user`: expected `binary_data_size` of at most the 0 bytes left of the body, got 8",
        ),
        (json!({ "name": "user", "shape": [1, 1], "data": [1] }), "missing field `datatype`"),
        (rest[0].clone(), "input `item` is given twice"),
    ] {
        let inputs = [std::slice::from_ref(&user), rest.as_slice()].concat();
        let error = server.post("/v2/models/own/infer", &json!({ "inputs": inputs })).error(400);
        assert!(error.contains(expected), "{user}: {error}");
    }
    let user = input("user", "INT64", json!([1, 1]), json!([1]));
    let inputs = [std::slice::from_ref(&user), rest.as_slice()].concat();
    let error =
        server.post("/v2/models/own/infer", &json!({ "inputs": inputs, "outputs": [{ "name": "q" }] })).error(400);
    assert!(error.contains("no output `q`; it gives `"), "{error}");
    let mut connection = server.connect();
    let body = json!({ "inputs": inputs }).to_string();
    for (length, expected) in [("1000000", "`Inference-Header-Content-Length`: expected at most"), ("x", "got `x`")] {
        let headers = [("Inference-Header-Content-Length", length)];
        let error = connection.ask("POST", "/v2/models/own/infer", &headers, body.as_bytes()).error(400);
        assert!(error.contains(expected), "{error}");
    }
    let length = body.len().to_string();
    let with_rest = format!("{body}1234");
    let headers = [("Inference-Header-Content-Length", length.as_str())];
    let error = connection.ask("POST", "/v2/models/own/infer", &headers, with_rest.as_bytes()).error(400);
    assert!(error.contains("expected 0 bytes of binary tensors") && error.contains("got 4"), "{error}");
}

#[test]
fn what_is_too_large_or_compressed_or_elsewhere_is_refused_as_json() {
    let workspace = Workspace::new();
    own_model::saved(&workspace);
    let server = Server::start(&workspace, &["own", "--max-rows", "100", "--max-body", "5000"]);
    let rows = |count: usize| json!({ "user": vec![1; count], "item": vec![1; count], "dense": vec![[1, 2]; count] });
    let error = server.post("/v1/models/own:predict", &json!({ "inputs": rows(101) })).error(413);
    assert!(
        error.contains("input `user`: expected at most 100 rows in one request (`--max-rows`), got 101"),
        "{error}"
    );
    // Few bytes can contain many rows.
    let many = json!({ "name": "user", "datatype": "INT64", "shape": [1_000_000_000_000u64, 0], "data": [] });
    let error = server.post("/v2/models/own/infer", &json!({ "inputs": [many] })).error(413);
    assert!(error.contains("input `user`") && error.contains("1000000000000"), "{error}");
    let error = server.post("/v1/models/own:predict", &json!({ "inputs": rows(2000) })).error(413);
    assert!(error.contains("at most 5000 bytes (`--max-body`)"), "{error}");
    // The server does not wait for a body that is announced as too large.
    let mut announcing = server.connect();
    announcing.send(b"POST /v1/models/own:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\n");
    let error = announcing.answer().error(413);
    assert!(error.contains("at most 5000 bytes (`--max-body`), got 1000000000000"), "{error}");
    let beyond = json!({ "user": [1], "item": [1], "dense": [[0, 1e39]] });
    let error = server.post("/v1/models/own:predict", &json!({ "inputs": beyond })).error(400);
    assert!(error.contains("input `dense`, row 0: expected a number of 32 bits"), "{error}");
    let gzip = [("Content-Encoding", "gzip")];
    let error = server.connect().ask("POST", "/v1/models/own:predict", &gzip, b"x").error(415);
    assert!(error.contains("`Content-Encoding`") && error.contains("`gzip`"), "{error}");

    for path in ["/v2/models/other", "/v2/models/other/ready", "/v1/models/other", "/v1/models/other/metadata"] {
        let error = server.get(path).error(404);
        assert_eq!(error, "there is no model `other`; the model served is `own`", "{path}");
    }
    for path in ["/v2/models/other/infer", "/v1/models/other:predict"] {
        assert!(server.post(path, &json!({})).error(404).contains("`own`"), "{path}");
    }
    for path in ["/v2/models/own/versions/2", "/v1/models/own/versions/2"] {
        assert!(server.get(path).error(404).contains("the version served is `1`"), "{path}");
    }
    assert!(server.get("/elsewhere").error(404).contains("`/v2/models/own`"));
    for (method, path) in [
        ("GET", "/v2/models/own/infer"),
        ("GET", "/v1/models/own:predict"),
        ("POST", "/v2/models/own"),
        ("POST", "/v1/models/own"),
        ("DELETE", "/v1/models/own"),
        ("POST", "/metrics"),
    ] {
        let error = server.connect().ask(method, path, &[], b"").error(405);
        assert!(error.contains(&format!("got {method}")), "{error}");
    }
    let error = server.post("/v1/models/own:classify", &json!({})).error(400);
    assert!(error.contains("expected the verb `:predict`"), "{error}");
    assert!(server.get("/v2/models/%ff").error(400).contains("path"), "a name that is no text");
}

#[test]
fn an_output_that_json_cannot_say_is_an_error_there_and_bytes_elsewhere() {
    let workspace = Workspace::new();
    let predictor = own_model::saved(&workspace);
    let server = Server::start(&workspace, &["own"]);
    let name = predictor.targets()[1];
    let body = json!({ "inputs": { "user": [1, 1], "item": [2, 2], "dense": [[0, 0], [0, 1000]] } });
    let error = server.post("/v1/models/own:predict", &body).error(500);
    assert!(error.starts_with(&format!("output `{name}`, row 1: the model gives inf")), "{error}");
    let inputs = json!([
        { "name": "user", "datatype": "INT64", "shape": [1, 1], "data": [1] },
        { "name": "item", "datatype": "INT64", "shape": [1, 1], "data": [1] },
        { "name": "dense", "datatype": "FP32", "shape": [1, 2], "data": [0, 1000] },
    ]);
    let outputs = json!([{ "name": name, "parameters": { "binary_data": true } }]);
    let body = json!({ "id": "seven", "inputs": inputs, "outputs": outputs });
    assert_eq!(binary_bits(&server.post("/v2/models/own/infer", &body)), bits(&[1.0, f32::INFINITY]));
}

#[test]
fn a_server_tells_what_it_is_and_what_it_has_done() {
    let workspace = Workspace::new();
    let predictor = own_model::saved(&workspace);
    let server = Server::start(&workspace, &["own"]);
    assert_eq!(server.get("/v2").json()["extensions"], json!(["binary_tensor_data"]));
    for path in ["/v2/health/live", "/v2/health/ready", "/v2/models/own/ready", "/v2/models/own/versions/1/ready"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    let metadata = server.get("/v2/models/own").json();
    let input =
        |name: &str, datatype: &str, shape: [i64; 2]| json!({ "name": name, "datatype": datatype, "shape": shape });
    let inputs = [input("user", "INT64", [-1, -1]), input("item", "INT64", [-1, -1]), input("dense", "FP32", [-1, 2])];
    assert_eq!(metadata["inputs"], json!(inputs));
    assert_eq!(metadata["outputs"][0], input(predictor.targets()[0], "FP32", [-1, 2]));
    assert_eq!(metadata["versions"], json!(["1"]));
    let status = server.get("/v1/models/own").json();
    assert_eq!(status["model_version_status"][0]["state"], "AVAILABLE");
    let signature = server.get("/v1/models/own/versions/1/metadata").json();
    let signature = &signature["metadata"]["signature_def"]["signature_def"]["serving_default"];
    assert_eq!(signature["inputs"]["user"]["dtype"], "DT_INT64");
    assert_eq!(signature["inputs"]["dense"]["tensor_shape"]["dim"][1]["size"], "2");

    let good = json!({ "inputs": { "user": [1, 2, 3], "item": [1, 2, 3], "dense": vec![[0, 0]; 3] } });
    server.post("/v1/models/own:predict", &good).json();
    server.post("/v1/models/own:predict", &json!({})).error(400);
    let metrics = server.get("/metrics");
    assert!(metrics.headers["content-type"].starts_with("text/plain"));
    for line in [
        "openfleet_requests_total{protocol=\"tf_serving\",status=\"200\"} 3",
        "openfleet_requests_total{protocol=\"tf_serving\",status=\"400\"} 1",
        "openfleet_requests_total{protocol=\"open_inference\",status=\"200\"} 6",
        "openfleet_rows_total 3",
        "openfleet_request_seconds_count 1",
    ] {
        assert!(metrics.text().lines().any(|have| have == line), "{line} in\n{}", metrics.text());
    }
}

#[test]
fn many_connections_are_answered_at_once() {
    let workspace = Workspace::new();
    let predictor = own_model::saved(&workspace);
    let server = Server::start(&workspace, &["own", "--threads", "2"]);
    std::thread::scope(|scope| {
        for connection in 0..8 {
            let (server, predictor) = (&server, &predictor);
            scope.spawn(move || {
                let mut stream = server.connect();
                // Small requests among large ones, which run outside the threads of the connections.
                for round in 0..10 {
                    let rows = Rows::of(predictor, if connection % 4 == 0 { 3000 + round } else { 1 + round }, 100, 1);
                    let expected = predictor.predict(rows.feed()).unwrap();
                    let (length, body) = rows.binary();
                    let headers = [("Inference-Header-Content-Length", &*length.to_string())];
                    let answer = stream.ask("POST", "/v2/models/own/infer", &headers, &body);
                    assert_eq!(binary_bits(&answer), expected.iter().flat_map(tensor_bits).collect::<Vec<_>>());
                }
            });
        }
    });
}

#[test]
fn a_signal_ends_the_server_with_0_once_requests_are_answered() {
    let workspace = Workspace::new();
    own_model::saved(&workspace);
    for signal in ["-TERM", "-INT"] {
        let server = Server::start(&workspace, &["own"]);
        // An open connection does not keep the server from ending.
        let mut idle = server.connect();
        assert_eq!(idle.ask("GET", "/v2", &[], b"").status, 200);
        let unused = server.connect();
        let (code, rest) = server.end(signal);
        assert_eq!((code, rest.as_str()), (Some(0), ""), "{signal}");
        drop((idle, unused));
    }
    // A request that is half sent is answered when the other half arrives.
    let mut server = Server::start(&workspace, &["own"]);
    let mut half = server.connect();
    let body = json!({ "inputs": { "user": [1], "item": [1], "dense": [[0, 0]] } }).to_string();
    half.send(
        format!("POST /v1/models/own:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(),
    );
    half.send(&body.as_bytes()[..10]);
    // Other connections get answers in the meantime, and by then this one has been accepted.
    assert_eq!(server.get("/v2").status, 200);
    server.signal("-TERM");
    while std::net::TcpStream::connect(server.address()).is_ok() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    half.send(&body.as_bytes()[10..]);
    half.answer().json();
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn what_cannot_be_served_is_said_before_listening() {
    let workspace = Workspace::new();
    own_model::saved(&workspace);
    let server = Server::start(&workspace, &["own"]);
    let taken = workspace.run(&["serve", "own", "--listen", server.address()]).failed(1);
    let port = server.address().rsplit_once(':').unwrap().1;
    let expected = format!("error: cannot listen on `{}`\n  because: Address already in use", server.address());
    assert!(
        taken.starts_with(&expected) && taken.contains(&format!("hint: another program has port {port}")),
        "{taken}"
    );
    let absent = workspace.run(&["serve", "nowhere"]).failed(1);
    assert!(absent.contains("`nowhere` is not a checkpoint"), "{absent}");
    let address = workspace.run(&["serve", "own", "--listen", "here"]).failed(2);
    assert!(address.contains("--listen <ADDRESS:PORT>"), "{address}");
    workspace.write("text.txt", &"a b c d e f g h ".repeat(50));
    let words = ["train", "--model", "word2vec", "--train", "text.txt", "--save", "words", "--dim", "4"];
    workspace.run(&words).succeeded();
    let error = workspace.run(&["serve", "words"]).failed(1);
    assert!(
        error.contains("`ADDRESS`: expected a model that predicts something of a row, got `word2vec in words`"),
        "{error}"
    );
}
