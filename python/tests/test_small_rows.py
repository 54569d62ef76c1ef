"""Rows with weights of 16 bits and row-wise AdaGrad: training, saving, loading, and jobs with servers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from openfleet import models, static


def built(storage: str, optimizer=None):
    """A program with one table, `rows`, and its loss."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), static.unique_name.guard():
        ids = static.data("ids", [None, 1], "int64", lod_level=1)
        target = static.data("target", [None, 1])
        table = static.ParamAttr(name="rows")
        row = static.nn.sparse_embedding(ids, [0, 4], param_attr=table, pooling="sum", storage=storage)
        loss = static.nn.mean(static.nn.square_error_cost(static.nn.fc(row, size=1), target))
        test = main.clone(for_test=True)
        (optimizer or static.optimizer.RowwiseAdagrad(0.05)).minimize(loss)
    return main, startup, test, loss, row


def batch(step: int) -> dict[str, object]:
    return {"ids": [[step % 7, 50], [step % 5 + 20], [90]], "target": [[1.0], [step % 3], [-1.0]]}


def steps(exe, main, loss, of):
    return [exe.run(main, feed=batch(step), fetch_list=[loss])[0].item() for step in of]


def rows(exe, test, row, ids) -> np.ndarray:
    """The rows of ids, as floats."""
    return exe.run(test, feed={"ids": [[i] for i in ids], "target": [[0.0]] * len(ids)}, fetch_list=[row])[0]


def test_row_wise_adagrad_divides_by_the_mean_square_of_a_row():
    ids, weight = static.data("ids", [None, 1], "int64", lod_level=1), static.data("weight", [None, 2])
    one = static.ParamAttr(name="rows", initializer=static.initializer.Constant(1.0))
    row = static.nn.sparse_embedding(ids, [0, 2], param_attr=one, pooling="sum")
    # The gradient of the row is half of `weight`.
    loss = static.nn.mean(row * weight)
    test = static.default_main_program().clone(for_test=True)
    static.optimizer.RowwiseAdagrad(0.1, epsilon=0.5, initial_accumulator_value=0.25).minimize(loss)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    expected, total = np.ones(2), 0.25
    for gradient in ([3.0, 4.0], [-1.0, 0.5]):
        feed = {"ids": [[7]], "weight": [[2 * g for g in gradient]]}
        exe.run(feed=feed)
        total += np.mean(np.square(gradient))
        expected -= 0.1 * np.array(gradient) / (np.sqrt(total) + 0.5)
        assert exe.run(test, feed=feed, fetch_list=[row])[0][0] == pytest.approx(expected, rel=1e-6)


def test_bfloat16_rows_have_16_bits_and_learn_as_floats_do():
    final = {}
    for storage in ("float32", "bfloat16"):
        main, startup, test, loss, row = built(storage)
        exe = static.Executor()
        with static.scope_guard(static.Scope()):
            exe.run(startup)
            losses = steps(exe, main, loss, range(300))
            bits = rows(exe, test, row, [50, 90, 12345]).view(np.uint32)
        assert (not np.any(bits & 0xFFFF)) == (storage == "bfloat16"), "seen or not"
        final[storage] = np.mean(losses[-50:])
        assert final[storage] < 0.7 * np.mean(losses[:50])
    assert final["bfloat16"] == pytest.approx(final["float32"], rel=0.05)


def test_a_repeated_run_and_a_resumed_one_round_alike(tmp_path: Path):
    main, startup, _, loss, _ = built("bfloat16")
    exe = static.Executor()
    runs = []
    for run in range(2):
        with static.scope_guard(static.Scope()):
            exe.run(startup)
            losses = steps(exe, main, loss, range(6))
            static.save(main, tmp_path / f"chain-{run}", mode="delta")
            losses += steps(exe, main, loss, range(6, 10))
            static.save(main, tmp_path / f"chain-{run}", mode="delta")
            runs.append(losses + steps(exe, main, loss, range(10, 30)))
    assert runs[0] == runs[1]
    with static.scope_guard(static.Scope()):
        static.load(main, tmp_path / "chain-0", exe)
        assert steps(exe, main, loss, range(10, 30)) == runs[0][10:]


def test_a_checkpoint_is_loaded_into_rows_of_the_other_storage(tmp_path: Path):
    exe, ids = static.Executor(), [50, 90, 3]
    main, startup, test, loss, row = built("float32")
    with static.scope_guard(static.Scope()):
        exe.run(startup)
        steps(exe, main, loss, range(20))
        manifest = static.save(main, tmp_path / "wide")
        wide = rows(exe, test, row, ids)
    assert manifest["version"] == 3, "the state of row-wise AdaGrad"
    main, _, test, loss, row = built("bfloat16")
    with static.scope_guard(static.Scope()):
        static.load(main, tmp_path / "wide", exe)
        narrow = rows(exe, test, row, ids)
        assert np.all(np.abs(narrow - wide) <= np.abs(wide) / 256), "to the nearest value of 16 bits"
        steps(exe, main, loss, range(20, 25))
        static.save(main, tmp_path / "narrow")
        narrow = rows(exe, test, row, ids)
        static.save_inference_model(tmp_path / "model", ["ids"], [row], exe, program=main)
    main, _, test, _, row = built("float32")
    with static.scope_guard(static.Scope()):
        static.load(main, tmp_path / "narrow", exe)
        assert np.array_equal(rows(exe, test, row, ids), narrow), "nothing is lost"
    with static.scope_guard(static.Scope()):
        program, feeds, (target,) = static.load_inference_model(tmp_path / "model", exe)
        predicted = exe.run(program, feed={feeds[0]: [[i] for i in ids]}, fetch_list=[target])[0]
        assert np.array_equal(predicted, narrow)


def test_the_columns_are_those_of_the_format(tmp_path: Path):
    exe = static.Executor()
    main, startup, test, loss, row = built("bfloat16")
    with static.scope_guard(static.Scope()):
        exe.run(startup)
        steps(exe, main, loss, range(5))
        manifest = static.save(main, tmp_path / "model")
        expected = rows(exe, test, row, [50])[0]
    table = manifest["sparse"][0]
    assert (manifest["version"], table["spec"]["storage"]) == (3, "bfloat16")
    part = os.path.join(tmp_path, "model", manifest["directory"], table["parts"][0]["prefix"])
    keys, weights, state = (np.load(f"{part}.{column}.npy", mmap_mode="r") for column in ("keys", "weights", "state"))
    assert weights.dtype == np.uint16 and state.shape == (len(keys), 1, 1)
    (at,) = np.flatnonzero(keys == 50)
    assert np.array_equal((weights[at].astype(np.uint32) << 16).view(np.float32), expected)


def test_what_is_not_possible_is_named():
    ids = static.data("ids", [None, 1], "int64", lod_level=1)
    label = static.data("label", [None, 1], "int64")
    for layer in (
        lambda: static.nn.sparse_embedding(ids, [0, 4], storage="float16", pooling="sum"),
        lambda: static.nn.embedding(ids, [9, 4], is_sparse=True, storage="float16", pooling="sum"),
        lambda: models.ctr_dnn([ids], None, label, hidden=[4], storage="float16"),
    ):
        with pytest.raises(ValueError, match="`float32` or `bfloat16`, got `float16`"):
            layer()
    with pytest.raises(ValueError, match="is_sparse=True"):
        static.nn.embedding(ids, [9, 4], storage="bfloat16", pooling="sum")
    show, click = static.data("show", [None, 1]), static.data("click", [None, 1])
    entry = static.ShowClickEntry("show", "click")
    row = static.nn.sparse_embedding(ids, [0, 4], entry=entry, storage="bfloat16", pooling="sum")
    loss = static.nn.mean(row)
    static.optimizer.RowwiseAdagrad(0.1).minimize(loss)
    exe = static.Executor()
    with pytest.raises(ValueError, match="ctr rows cannot be stored as `bfloat16`"):
        exe.run(static.default_startup_program())
        exe.run(feed={"ids": [[1]], show.name: [[1.0]], click.name: [[0.0]]}, fetch_list=[loss])


SCRIPT = """
import sys
import openfleet.fleet as fleet
from openfleet import static

mode, first, last, *load = sys.argv[1:]
fleet.init()
ids, target = static.data("ids", [None, 1], "int64", lod_level=1), static.data("target", [None, 1])
table = static.ParamAttr(name="rows")
row = static.nn.sparse_embedding(ids, [0, 4], param_attr=table, pooling="sum", storage="bfloat16")
loss = static.nn.mean(static.nn.square_error_cost(static.nn.fc(row, size=1), target))
strategy = fleet.DistributedStrategy()
strategy.a_sync = mode != "sync"
if mode == "geo":
    strategy.a_sync_configs = {"k_steps": 3}
fleet.distributed_optimizer(static.optimizer.RowwiseAdagrad(0.05), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server(*load)
    fleet.run_server()
    sys.exit()
exe = static.Executor()
exe.run(static.default_startup_program())
fleet.init_worker()
for step in range(int(first), int(last)):
    feed = {"ids": [[step % 7, 50], [step % 5 + 20], [90]], "target": [[1.0], [step % 3], [-1.0]]}
    (value,) = exe.run(feed=feed, fetch_list=[loss])
    print(f"loss {value:.9f}", flush=True)
fleet.save_persistables(exe, f"saved-{last}")
fleet.stop_worker()
"""


def launch(directory: Path, servers: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "openfleet.launch", f"--server_num={servers}", "--worker_num=1", "script.py"]
    return subprocess.run([*command, *arguments], cwd=directory, capture_output=True, text=True, timeout=120)


def test_two_servers_save_and_three_continue_with_the_bits_of_one_process(tmp_path: Path):
    (tmp_path / "script.py").write_text(SCRIPT)
    main, startup, _, loss, _ = built("bfloat16")
    exe = static.Executor()
    with static.scope_guard(static.Scope()):
        exe.run(startup)
        alone = [f"{value:.9f}" for value in steps(exe, main, loss, range(20))]
        static.save(main, tmp_path / "alone")
    first = launch(tmp_path, 2, "sync", "0", "12")
    second = launch(tmp_path, 3, "sync", "12", "20", "saved-12")
    output = [run.stdout + run.stderr for run in (first, second)]
    losses = [re.findall(r"loss ([\d.]+)", text) for text in output]
    assert losses[0] + losses[1] == alone, "".join(output)
    diff = subprocess.run(
        [sys.executable, "-m", "openfleet", "diff", "alone", "saved-20"], cwd=tmp_path, capture_output=True, text=True
    )
    assert diff.returncode == 0 and " 0 changed" in diff.stdout, diff


def test_geo_mode_refuses_bfloat16_rows_by_name(tmp_path: Path):
    (tmp_path / "script.py").write_text(SCRIPT)
    job = launch(tmp_path, 1, "geo", "0", "3")
    assert job.returncode != 0
    assert "table `rows`: rows stored as `bfloat16`" in job.stdout + job.stderr, job
