"""What `openfleet serve` costs over loopback: the latency of one row and the throughput of batches, beside `Predictor`.

    python comparisons/serve.py                               # with the wheel of a release build installed

One connection is kept alive. Client and server share the machine, and the client is Python: making and reading JSON is
not counted, sending and receiving is.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import openfleet
from openfleet import models, static

SLOTS, DENSE, VOCABULARY = 26, 13, 20_000
NAMES = [f"C{slot}" for slot in range(1, SLOTS + 1)]


def save(path: Path) -> None:
    """A Wide & Deep of 256-128-64 that has seen every id."""
    slots = [static.data(name, [None, 1], "int64", lod_level=1) for name in NAMES]
    dense, label = static.data("dense", [None, DENSE]), static.data("label", [None, 1], "int64")
    model = models.wide_deep(slots, dense, label, dim=9, hidden=[256, 128, 64], wide_ids=True)
    static.optimizer.Adam(1e-3).minimize(model.loss)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    for first in range(0, VOCABULARY, 2000):
        ids = np.arange(first, first + 2000).reshape(-1, 1)
        feed = dict.fromkeys(NAMES, ids)
        exe.run(feed={**feed, "dense": np.zeros((2000, DENSE), np.float32), "label": ids % 2}, fetch_list=[model.loss])
    static.save_inference_model(path, [*NAMES, "dense"], [model.probability], exe)


def rows(count: int, chance: np.random.Generator) -> dict[str, np.ndarray]:
    feed = {name: chance.integers(0, VOCABULARY, (count, 1)) for name in NAMES}
    return {**feed, "dense": chance.random((count, DENSE), dtype=np.float32)}


def request(path: str, body: bytes, headers: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def as_binary(feed: dict[str, np.ndarray]) -> bytes:
    """A request of the Open Inference Protocol with bytes."""
    inputs = []
    for name, values in feed.items():
        datatype = "FP32" if values.dtype == np.float32 else "INT64"
        size = {"binary_data_size": values.nbytes}
        inputs.append({"name": name, "datatype": datatype, "shape": values.shape, "parameters": size})
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = head + b"".join(values.tobytes() for values in feed.values())
    return request("/v2/models/model/infer", body, f"Inference-Header-Content-Length: {len(head)}\r\n")


def as_rows(feed: dict[str, np.ndarray]) -> bytes:
    """A request of TensorFlow Serving, row by row."""
    count = len(feed["dense"])
    columns = {name: values.tolist() for name, values in feed.items()}
    instances = [{name: values[row] for name, values in columns.items()} for row in range(count)]
    return request("/v1/models/model:predict", json.dumps({"instances": instances}).encode())


class Client:
    """One connection that is kept; a bare socket, because `http.client` takes longer than the server."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> None:
        self.socket.sendall(request)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self.socket.recv(1 << 20)
        head, body = answer.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 200"), answer
        left = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]) - len(body)
        while left > 0:
            left -= len(self.socket.recv(1 << 20))


def ask_for_ever(address: str, request: bytes) -> None:
    client = Client(address)
    while True:
        client.ask(request)


def times(work, requests: list) -> np.ndarray:
    """Microseconds of each, sorted; the first tenth warms up."""
    taken = []
    for request in requests:
        began = time.perf_counter()
        work(request)
        taken.append((time.perf_counter() - began) * 1e6)
    return np.sort(taken[len(taken) // 10 :])


def say(name: str, taken: np.ndarray, count: int) -> None:
    p50, p99 = np.percentile(taken, [50, 99])
    print(f"{name:46} p50 {p50:9,.0f} us   p99 {p99:9,.0f} us   {count / taken.mean() * 1e6:10,.0f} rows/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=5000, help="of one row; of batches in proportion")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64, 512, 4096])
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    chance = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model"
        save(path)
        predictor = openfleet.Predictor(path)
        command = [sys.executable, "-m", "openfleet", "serve", str(path), "--listen", "127.0.0.1:0"]
        server = subprocess.Popen([*command, f"--threads={args.threads}"], stderr=subprocess.PIPE, text=True)
        try:
            address = server.stderr.readline().split("http://")[1].strip()
            client = Client(address)
            for count in args.batches:
                feeds = [rows(count, chance) for _ in range(20)]
                repeat = max(2, args.requests // count // len(feeds))
                say(f"Predictor in Python, batch {count}", times(predictor.predict, feeds * repeat), count)
                for name, form in [("bytes", as_binary), ("JSON rows", as_rows)]:
                    say(f"served, {name}, batch {count}", times(client.ask, list(map(form, feeds)) * repeat), count)
            # One row at a time, while another process asks for large batches without a pause.
            load = multiprocessing.Process(target=ask_for_ever, args=(address, as_binary(rows(4096, chance))))
            load.start()
            ones = [as_binary(rows(1, chance)) for _ in range(20)] * max(2, args.requests // 20)
            say("served, bytes, batch 1 beside batches of 4096", times(client.ask, ones), 1)
            load.terminate()
            load.join()
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
