"""`openfleet import paddle`: files in the bytes of PaddlePaddle become checkpoints that programs load.

`paddle_samples.py` is the program that made real files with PaddlePaddle 2.6.2; the writers here write the same bytes.
"""

from __future__ import annotations

import gzip
import pickle
import random
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from openfleet import static

W = np.arange(6, dtype="float32").reshape(3, 2) / 7
B = np.array([0.25, -1.5], "float32")
EMB = np.arange(20, dtype="float32").reshape(5, 4) / 3
MEAN = np.array([0.5, 0.75], "float32")


def imported(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "openfleet", "import", "paddle", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def succeeds(*arguments: object) -> str:
    ran = imported(*arguments)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


def fails(*arguments: object) -> str:
    ran = imported(*arguments)
    assert ran.returncode == 1, (ran.returncode, ran.stderr)
    return ran.stderr


def shown(address: object) -> str:
    command = [sys.executable, "-m", "openfleet", "inspect", str(address), "--hottest", "0"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


# What PaddlePaddle writes.


def field(number: int, value: bytes | int) -> bytes:
    """A field of a protobuf message with a small number or bytes as its value."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    assert len(value) < 1 << 14
    head = len(value) & 0x7F | 0x80, len(value) >> 7
    return bytes([number << 3 | 2, *(head if len(value) > 0x7F else (len(value),))]) + value


def tensor(array: np.ndarray) -> bytes:
    kinds = {"float32": 5, "float64": 6, "int64": 3}
    description = field(1, kinds[array.dtype.name]) + b"".join(field(2, dim) for dim in array.shape)
    return struct.pack("<IQIi", 0, 0, 0, len(description)) + description + array.tobytes()


def program(*names: str, sparse: str = "", states: tuple[str, ...] = ()) -> bytes:
    variables = [(name, 7, 1) for name in names] + [("feed", 9, 1), ("tmp_0", 7, 0)]
    block = b"".join(
        field(3, field(1, name.encode()) + field(2, field(1, kind)) + field(3, kept)) for name, kind, kept in variables
    )
    if sparse:
        attribute = field(1, b"is_sparse") + field(2, 6) + field(10, 1)
        lookup = field(1, field(1, b"W") + field(2, sparse.encode())) + field(3, b"lookup_table_v2")
        block += field(4, lookup + field(4, attribute))
    for state in states:
        norm = field(1, field(1, b"Mean") + field(2, state.encode())) + field(3, b"batch_norm")
        block += field(4, norm)
    return field(1, field(1, 0) + field(2, 0) + block)


def save_static(prefix: Path, protocol: int = 4) -> None:
    parameters = {"fc_0.w_0": W, "fc_0.b_0": B, "emb": EMB}
    state = {
        f"{name}_{slot}_0": np.full_like(value, number)
        for name, value in parameters.items()
        for slot, number in (("moment1", 0.125), ("moment2", 0.5))
    }
    # Three updates: the powers start at 1 and were raised once more after each.
    powers = {f"{name}_beta2_pow_acc_0": np.array([0.999**4], "float32") for name in parameters}
    powers.update({f"{name}_beta1_pow_acc_0": np.array([0.9**4], "float32") for name in parameters})
    prefix.parent.mkdir(parents=True, exist_ok=True)
    prefix.with_suffix(".pdparams").write_bytes(pickle.dumps(parameters, protocol))
    rate = {"learning_rate_0": np.array([0.01], "float32")}
    prefix.with_suffix(".pdopt").write_bytes(pickle.dumps({**state, **powers, **rate}, protocol))
    prefix.with_suffix(".pdmodel").write_bytes(program(*parameters, sparse="emb"))


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_a_static_save_has_its_parameters_and_optimizer_state(tmp_path: Path, protocol: int) -> None:
    save_static(tmp_path / "saved" / "model", protocol)
    said = succeeds(tmp_path / "saved", "--out", tmp_path / "checkpoint")
    assert "1 sparse table with 5 rows, 2 parameters, 0 running values" in said
    assert "not imported, because a checkpoint has no such values: `learning_rate_0`" in said
    assert shown(tmp_path / "checkpoint").count("by adam, step 3") == 3


def test_a_program_with_the_same_names_loads_it_strictly_and_predicts_the_same(tmp_path: Path) -> None:
    save_static(tmp_path / "saved" / "model")
    succeeds(tmp_path / "saved" / "model.pdparams", "--out", tmp_path / "checkpoint")
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), static.unique_name.guard():
        ids = static.data("ids", [None, 1], "int64")
        rows = static.nn.embedding(ids, size=[5, 4], is_sparse=True, param_attr=static.ParamAttr(name="emb"))
        features = static.data("x", [None, 3], "float32")
        out = static.nn.fc(features, size=2)
        test = main.clone(for_test=True)
        loss = static.nn.add(static.nn.mean(rows), static.nn.mean(out))
        static.optimizer.Adam(0.1).minimize(loss)
    exe = static.Executor()
    with static.scope_guard(static.Scope()):
        static.load(main, tmp_path / "checkpoint")
        x = np.array([[1, 2, 3], [-1, 0, 1]], "float32")
        got = exe.run(test, feed={"ids": [[4], [0]], "x": x}, fetch_list=[rows, out])
        np.testing.assert_array_equal(got[0].reshape(2, 4), EMB[[4, 0]])
        np.testing.assert_allclose(got[1], x @ W + B, rtol=1e-6)
        # Adam continues with its fourth update.
        exe.run(main, feed={"ids": [[4], [0]], "x": x}, fetch_list=[loss])
        moment1 = 0.9 * 0.125 + 0.1 * 0.5
        moment2 = 0.999 * 0.5 + 0.001 * 0.5**2
        rate = 0.1 * (1 - 0.999**4) ** 0.5 / (1 - 0.9**4)
        expected = B - rate * moment1 / (moment2**0.5 + 1e-8)
        np.testing.assert_allclose(static.global_scope().find_var("fc_0.b_0").get_tensor(), expected, rtol=1e-5)


def test_an_inference_model_has_its_names_in_the_program(tmp_path: Path) -> None:
    values = {"fc_0.w_0": W, "fc_0.b_0": B, "emb": EMB, "bn.mean": MEAN}
    (tmp_path / "model.pdmodel").write_bytes(program(*values, sparse="emb", states=("bn.mean",)))
    (tmp_path / "model.pdiparams").write_bytes(b"".join(tensor(values[name]) for name in sorted(values)))
    said = succeeds(tmp_path / "model", "--out", tmp_path / "checkpoint", "--rename", "fc_0.w_0=first.w")
    assert "1 sparse table with 5 rows, 2 parameters, 1 running value;" in said
    assert "parameter `first.w` [3, 2] by sgd" in shown(tmp_path / "checkpoint")
    (tmp_path / "model.pdmodel").unlink()
    error = fails(tmp_path / "model", "--out", tmp_path / "other")
    assert "needs `--program`" in error and "the file has no names" in error


def test_files_of_variables_are_read_alone_and_combined(tmp_path: Path) -> None:
    alone, combined = tmp_path / "alone", tmp_path / "combined"
    values = {"w": W, "b": B, "step": np.array([7], "int64"), "wide": W.astype("float64")}
    for directory in (alone, combined):
        directory.mkdir()
    for name, value in values.items():
        (alone / name).write_bytes(tensor(value))
    said = succeeds(alone, "--out", tmp_path / "one", "--optimizer", "adam")
    assert "3 parameters" in said and "has no such values: `step`" in said
    assert shown(tmp_path / "one").count("by adam, step 0") == 3
    (combined / "__model__").write_bytes(program(*values))
    (combined / "params").write_bytes(b"".join(tensor(values[name]) for name in sorted(values)))
    succeeds(combined, "--out", tmp_path / "two", "--optimizer", "adam")
    assert shown(tmp_path / "two").splitlines()[1:] == shown(tmp_path / "one").splitlines()[1:]


# Rows of a table with D = 2 by Adam: slot unseen delta show click, w and state, 1 weight and its state.
ROWS = {
    7: "0 1 0.5 5 2 0.25 0.1 0.2 0.81 0.998001 0.75 0.3 0.4 0.81 0.998001",
    18446744073709551615: "0 0 0.5 5 2 0.5 0.1 0.2 0.81 0.998001 1.5 0.3 0.4 0.81 0.998001",
}


def dump(directory: Path) -> None:
    """A dump of a server: a sparse table in two shards, one compressed and one binary, and a dense table."""
    (directory / "000").mkdir(parents=True)
    (directory / "001").mkdir()
    (first, row), (second, other) = ROWS.items()
    (directory / "000" / "part-000-00000.gz").write_bytes(gzip.compress(f"{first} {row}\n".encode()))
    floats = [float(number) for number in other.split()]
    record = struct.pack(f"<IQ{len(floats)}f", 12 + 4 * len(floats), second, *floats)
    (directory / "000" / "part-000-00001-000-000").write_bytes(record)
    (directory / "000" / "part-000-00002.gz").write_bytes(gzip.compress(b""))
    (directory / "001" / "part-000.gz").write_bytes(gzip.compress(b"0.5 0.1 0.2\n-1 0.1 0.2\n2.25 0.1 0.2\n"))


def looked_up(address: object, key: int) -> str:
    command = [sys.executable, "-m", "openfleet", "lookup", str(address), str(key)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_dump_of_servers_becomes_tables(tmp_path: Path) -> None:
    dump(tmp_path / "dump")
    error = fails(tmp_path / "dump", "--out", tmp_path / "checkpoint")
    assert "which has sparse table 0 and dense table 1, needs `--table`" in error
    names = ["--table", "0=emb:2", "--dense", "1=b:1,w:2x1"]
    said = succeeds(tmp_path / "dump", "--out", tmp_path / "checkpoint", *names)
    assert "1 sparse table with 2 rows, 2 parameters" in said
    assert said.count("shows and clicks of table `emb` are not imported") == 1
    assert shown(tmp_path / "checkpoint").count("by adam, step 1") == 3
    assert "weights [0.25, 0.75]" in looked_up(tmp_path / "checkpoint", 7)
    assert "weights [0.5, 1.5]" in looked_up(tmp_path / "checkpoint", 18446744073709551615)
    # With shows and clicks; without the optimizer's state.
    names[1] += ":CtrCommonAccessor"
    said = succeeds(tmp_path / "dump", "--out", tmp_path / "ctr", *names, "--optimizer", "sgd")
    assert "shows and clicks" not in said
    assert "show 5, click 2" in looked_up(tmp_path / "ctr", 7)
    assert "by sgd, step 0" in shown(tmp_path / "ctr")
    error = fails(tmp_path / "dump", "--out", tmp_path / "other", "--table", "0=emb:3")
    assert "part-000-00000.gz` at offset 0: expected rows of 3 weights" in error and "got 15 floats" in error
    error = fails(tmp_path / "dump", "--out", tmp_path / "other", "--dense", "1=w:2x1")
    assert "expected 2 elements (`--dense`), got 3 elements" in error


def test_a_table_of_older_servers_names_itself(tmp_path: Path) -> None:
    directory = tmp_path / "dump" / "emb.shard"
    directory.mkdir(parents=True)
    meta = "param=emb\nshard_id=0\nrow_names=Param,Moment1,Moment2,Beta2Pow\nrow_dims=2,2,2,1\ncount=1\n"
    (directory / "emb.block0.meta").write_text(meta)
    (directory / "emb.block0.txt").write_text("7\t3\t0\t1\t0.250000,0.750000,0.1,0.2,0.3,0.4,0.998001\n")
    succeeds(tmp_path / "dump", "--out", tmp_path / "checkpoint")
    assert "table `emb`: 1 rows of 2 float32 by adam, step 1" in shown(tmp_path / "checkpoint")
    assert "weights [0.25, 0.75]" in looked_up(tmp_path / "checkpoint", 7)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    (tmp_path / "model.pdparams").write_bytes(pickle.dumps({"w": Runs()}, 2))
    error = fails(tmp_path / "model", "--out", tmp_path / "checkpoint")
    assert "expected a pickle of NumPy arrays only, because other objects could run code" in error
    assert "\n\nhint: check that PaddlePaddle 2.x has saved it" in error
    assert not (tmp_path / "ran").exists() and not (tmp_path / "checkpoint").exists()


def test_big_arrays_are_put_together_and_structured_names_resolved(tmp_path: Path) -> None:
    arrays = {
        "w@@.0": W.reshape(-1)[:4],
        "w@@.1": W.reshape(-1)[4:],
        "linear.bias": B,
        "StructuredToParameterName@@": {"linear.bias": "linear_0.b_0"},
        "UnpackBigParamInfor@@": {"w": {"OriginShape": W.shape, "slices": ["w@@.0", "w@@.1"]}},
    }
    (tmp_path / "model.pdparams").write_bytes(pickle.dumps(arrays, 2))
    succeeds(tmp_path / "model.pdparams", "--out", tmp_path / "checkpoint")
    told = shown(tmp_path / "checkpoint")
    assert "parameter `w` [3, 2]" in told and "parameter `linear_0.b_0` [2]" in told
    assert f"norm {np.linalg.norm(W):.4f}" in told


def test_a_name_that_is_not_there_and_an_existing_checkpoint_are_errors(tmp_path: Path) -> None:
    save_static(tmp_path / "model")
    error = fails(tmp_path / "model", "--out", tmp_path / "checkpoint", "--rename", "other=new")
    assert "`--rename`: expected the name of an imported parameter or table before `=`, got `other`" in error
    succeeds(tmp_path / "model", "--out", tmp_path / "checkpoint")
    assert "already has a checkpoint" in fails(tmp_path / "model", "--out", tmp_path / "checkpoint")
    succeeds(tmp_path / "model", "--out", tmp_path / "checkpoint", "--replace")
    assert "cannot read" in fails(tmp_path / "nothing", "--out", tmp_path / "other")


def test_damaged_files_are_errors_that_name_the_file(tmp_path: Path) -> None:
    """A few cuts and changes at the front door; the unit tests of the parsers make all of them."""
    save_static(tmp_path / "whole" / "model")
    dump(tmp_path / "whole")
    choose = random.Random(1)
    names = ["--table", "0=emb:2", "--dense", "1=b:1,w:2x1"]
    for file in sorted(path for path in (tmp_path / "whole").rglob("*") if path.is_file()):
        whole = file.read_bytes()
        for number in range(4):
            damaged = bytearray(whole[: choose.randrange(len(whole))] if number % 2 else whole)
            if damaged and number % 2 == 0:
                damaged[choose.randrange(len(damaged))] ^= 1 << choose.randrange(8)
            file.write_bytes(bytes(damaged))
            ran = imported(tmp_path / "whole", "--out", tmp_path / f"out{number}", "--replace", *names)
            assert ran.returncode in (0, 1), (file, ran.stderr)
            assert ran.returncode == 0 or ran.stderr.splitlines()[-1].startswith(("hint: ", "  because: ", "error: "))
        file.write_bytes(whole)
