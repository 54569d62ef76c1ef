"""`openfleet serve` with real clients: Triton's HTTP client with bytes and JSON, and TensorFlow Serving's JSON."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

import openfleet
from openfleet import static

USER = [[7], [], [2**63 + 5, 9], [7, 7, 1]]
ITEM = [[1], [2], [3], [2**64 - 1]]
DENSE = np.array([[0.1, 0.2], [0.3, -1.0], [0.0, 5.0], [1e-7, 2.5]], np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of two slots of ids and two floats, with two outputs."""
    user, item = (static.data(name, [None, 1], "int64", lod_level=1) for name in ("user", "item"))
    dense = static.data("dense", [None, 2])
    rows = [static.nn.sparse_embedding(slot, size=[0, 4], pooling="sum") for slot in (user, item)]
    logit = static.nn.fc(static.nn.concat([*rows, dense], axis=1), size=1)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    static.save_inference_model(tmp_path / "ctr", ["user", "item", "dense"], [static.nn.sigmoid(logit), logit], exe)
    return tmp_path / "ctr"


@contextmanager
def served(path: Path):
    """The address of a server, which is ended as Ctrl-C would end it."""
    command = [sys.executable, "-m", "openfleet", "serve", str(path), "--listen", "127.0.0.1:0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        line = server.stderr.readline()
        assert line.startswith(f"serving {path.name} on http://"), line
        yield line.split("http://")[1].strip()
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0
        assert server.stderr.read() == ""
    finally:
        server.kill()
        server.wait()


def tensor(name: str, values: np.ndarray, binary: bool = True) -> triton.InferInput:
    given = triton.InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype))
    return given.set_data_from_numpy(values, binary_data=binary)


def ids(name: str, rows: list[list[int]], binary: bool) -> list[triton.InferInput]:
    """A slot as flat ids and the number of them in each row."""
    flat = np.array([id for row in rows for id in row], np.uint64)
    return [tensor(name, flat, binary), tensor(f"{name}.lengths", np.array([len(row) for row in rows]), binary)]


def signed(rows: list[list[int]]) -> list[list[int]]:
    """Ids as NumPy and the predictor have them: the same bits."""
    return [[id - 2**64 if id >= 2**63 else id for id in row] for row in rows]


@pytest.mark.parametrize("binary", [True, False])
def test_the_triton_client_gets_the_predictions_of_the_predictor(model: Path, binary: bool) -> None:
    predictor = openfleet.Predictor(model)
    expected = predictor.predict({"user": signed(USER), "item": signed(ITEM), "dense": DENSE})
    with served(model) as address, triton.InferenceServerClient(address) as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("ctr")
        assert client.get_server_metadata()["name"] == "openfleet"
        metadata = client.get_model_metadata("ctr")
        assert [given["name"] for given in metadata["inputs"]] == ["user", "item", "dense"]
        inputs = [*ids("user", USER, binary), *ids("item", ITEM, binary), tensor("dense", DENSE, binary)]
        outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in predictor.targets]
        for asked in (outputs, None):
            answer = client.infer("ctr", inputs, outputs=asked, request_id="7", model_version="1")
            assert answer.get_response()["id"] == "7"
            for name, value in zip(predictor.targets, expected):
                assert np.array_equal(answer.as_numpy(name), value)
        # A slot with the same number of ids in every row is an ordinary tensor; signed ids work too.
        item = tensor("item", np.array(signed(ITEM), np.int64), binary)
        answer = client.infer("ctr", [*ids("user", USER, binary), item, tensor("dense", DENSE, binary)])
        assert np.array_equal(answer.as_numpy(predictor.targets[0]), expected[0])
        with pytest.raises(InferenceServerException, match="input `item` is missing"):
            client.infer("ctr", [*ids("user", USER, binary), tensor("dense", DENSE, binary)])
        with pytest.raises(InferenceServerException, match="there is no model `other`; the model served is `ctr`"):
            client.infer("other", inputs)


def post(address: str, path: str, body: object) -> dict:
    request = urllib.request.Request(f"http://{address}{path}", json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def test_tensorflow_serving_clients_get_the_predictions_of_the_predictor(model: Path) -> None:
    predictor = openfleet.Predictor(model)
    probability, logit = predictor.targets
    expected = predictor.predict({"user": signed(USER), "item": signed(ITEM), "dense": DENSE})
    dense = DENSE.tolist()
    with served(model) as address:
        with urllib.request.urlopen(f"http://{address}/v1/models/ctr") as answer:
            assert json.load(answer)["model_version_status"][0]["state"] == "AVAILABLE"
        instances = [{"user": u, "item": i[0], "dense": d} for u, i, d in zip(USER, ITEM, dense)]
        rows = post(address, "/v1/models/ctr:predict", {"signature_name": "serving_default", "instances": instances})
        columns = post(address, "/v1/models/ctr:predict", {"inputs": {"user": USER, "item": ITEM, "dense": dense}})
        for name, value in zip((probability, logit), expected):
            assert np.array_equal(np.array([row[name] for row in rows["predictions"]], np.float32), value)
            assert np.array_equal(np.array(columns["outputs"][name], np.float32), value)
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(address, "/v1/models/ctr:predict", {"instances": [{"user": ["x"], "item": 1, "dense": [0, 0]}]})
        assert refused.value.code == 400
        assert json.load(refused.value) == {"error": 'input `user`, row 0: expected integers, got the text "x"'}
