"""Layers on sequences: against PaddlePaddle's numbers, on servers with real processes, saved and loaded."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import openfleet
import openfleet.compat.paddle as paddle
from openfleet import static

SCRIPTS = Path(__file__).parents[2] / "tests" / "paddle_scripts"

JOB = """
import os
import numpy as np
import openfleet.fleet as fleet
import openfleet.static as static
from openfleet.dataset import QueueDataset

words = static.data("words", [None, 1], "int64", lod_level=1)
user = static.data("user", [None, 2])
label = static.data("label", [None, 1])
vectors = static.nn.embedding(words, [1000, 8], is_sparse=True, pooling="each")
both = static.nn.concat([vectors, static.nn.sequence_expand(user, vectors)], axis=1)
weights = static.nn.sequence_softmax(static.nn.fc(static.nn.fc(both, 8, activation="tanh"), 1))
attended = static.nn.sequence_pool(static.nn.multiply(vectors, weights), "sum")
greatest = static.nn.sequence_pool(static.nn.sequence_conv(vectors, 8, activation="relu"), "max")
logit = static.nn.fc(static.nn.concat([attended, greatest], axis=1), 1)
loss = static.nn.mean(static.nn.sigmoid_cross_entropy_with_logits(logit, label))
fleet.init()
strategy = fleet.DistributedStrategy()
strategy.a_sync = os.environ["MODE"] != "sync"
if os.environ["MODE"] == "geo":
    strategy.a_sync_configs = {"k_steps": 10}
fleet.distributed_optimizer(static.optimizer.Adam(0.02), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = static.Executor()
    exe.run(static.default_startup_program())
    fleet.init_worker()
    draw = np.random.RandomState(fleet.worker_index())
    losses = []
    for _ in range(100):
        # The label is whether a row has the word 7; some rows have no words.
        rows = [draw.randint(0, 20, draw.randint(0, 6)) for _ in range(32)]
        feed = {
            "words": static.create_lod_tensor([list(map(int, row)) for row in rows]),
            "user": draw.rand(32, 2).astype("float32"),
            "label": [[float(7 in row)] for row in rows],
        }
        losses.append(exe.run(feed=feed, fetch_list=[loss])[0].item())
    print("losses %.4f %.4f" % (np.mean(losses[:10]), np.mean(losses[-10:])), flush=True)
    name = f"rows-{fleet.worker_index()}.txt"
    with open(name, "w") as file:
        for _ in range(256):
            row = draw.randint(0, 20, draw.randint(1, 6))
            file.write(f"{len(row)} {' '.join(map(str, row))} 2 0.5 0.5 1 {float(7 in row)}\\n")
    dataset = QueueDataset()
    dataset.init(batch_size=32, thread_num=2, use_var=[words, user, label])
    dataset.set_filelist([name])
    exe.train_from_dataset(fleet.main_program, dataset, fetch_list=[loss], print_period=2)
    fleet.stop_worker()
"""


def test_layers_on_sequences_compute_and_train_as_in_paddlepaddle():
    ran = subprocess.run(
        [sys.executable, "-m", "openfleet.compat", str(SCRIPTS / "sequences.py")], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    got, wanted = json.loads(ran.stdout), json.loads((SCRIPTS / "sequences.json").read_text())
    assert got.keys() == wanted.keys()
    for name, values in wanted.items():
        assert np.shape(got[name]) == np.shape(values), name
        np.testing.assert_allclose(got[name], values, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
def test_servers_train_a_model_of_sequences(mode, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(JOB)
    monkeypatch.setenv("MODE", mode)
    command = [sys.executable, "-m", "openfleet.launch", "--server_num=2", "--worker_num=2", "train.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    losses = [tuple(map(float, found)) for found in re.findall(r"losses ([\d.]+) ([\d.]+)", said)]
    # A worker that starts late finds a model that the other has trained.
    assert len(losses) == 2 and all(last < 0.2 for _, last in losses) and max(losses)[0] > 0.3, said
    assert len(re.findall(r"\[worker \d\] batch 8: ", said)) == 2, said


def test_a_saved_model_of_sequences_predicts_the_same(tmp_path):
    words = static.data("words", [None, 1], "int64", lod_level=1)
    vectors = static.nn.embedding(words, [100, 4], is_sparse=True, pooling="each")
    score = static.nn.sequence_softmax(static.nn.fc(vectors, 1))
    pooled = static.nn.sequence_pool(static.nn.multiply(vectors, score), "sum")
    loss = static.nn.mean(static.nn.fc(pooled, 1))
    static.optimizer.SGD(0.1).minimize(loss)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    feed = {"words": static.create_lod_tensor([[1, 2, 3], [], [4]])}
    exe.run(feed=feed)
    test = static.default_main_program().clone(for_test=True)
    (wanted,) = exe.run(test, feed=feed, fetch_list=[pooled])
    assert (wanted[1] == 0).all() and np.abs(wanted).sum() > 0
    static.save_inference_model(str(tmp_path / "model"), [words], [pooled], exe)
    predictor = openfleet.Predictor(str(tmp_path / "model"))
    np.testing.assert_array_equal(predictor.predict(feed)[0], wanted)


def test_two_poolings_of_one_embedding_share_its_table():
    words = static.data("words", [None, 1], "int64", lod_level=1)
    for is_sparse in (True, False):
        vectors = static.nn.embedding(words, [100, 4], is_sparse=is_sparse)
        poolings = [static.nn.sequence_pool(vectors, kind) for kind in ("sum", "max", "average")]
        exe = static.Executor()
        exe.run(static.default_startup_program())
        feed = {"words": static.create_lod_tensor([[5], [6]])}
        one, other, third = exe.run(feed=feed, fetch_list=poolings)
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one, third)
    tables = [name for name in static.default_main_program()._native.names() if name.endswith(".w_0")]
    assert len(tables) == 2, tables


def test_vectors_of_a_slot_are_rows_for_paddlepaddle_and_their_sum_here():
    words = static.data("words", [None, 1], "int64", lod_level=1)
    ones = static.ParamAttr(name="ones", initializer=static.initializer.Constant(1.0))
    here = static.nn.scale(static.nn.embedding(words, [100, 2], param_attr=ones), 1.0)
    there = paddle.static.nn.sparse_embedding(words, [100, 2], param_attr=paddle.ParamAttr(name="rows")) * 0.0
    exe = static.Executor()
    exe.run(static.default_startup_program())
    feed = {"words": static.create_lod_tensor([[5, 6, 7], [8]])}
    summed, rows = exe.run(feed=feed, fetch_list=[here, there])
    assert summed.tolist() == [[3.0, 3.0], [1.0, 1.0]]
    assert rows.shape == (4, 2)


def test_vectors_have_the_dimensions_that_paddlepaddle_gives_them():
    nn = paddle.static.nn
    for rank, lod_level, looked_up, pooled in [
        (2, 0, (-1, 1, 4), None),
        (1, 0, (-1, 4), None),
        (2, 1, (-1, 1, 4), (-1, 1, 4)),
        (1, 1, (-1, 4), (-1, 4)),
    ]:
        ids = paddle.static.data(f"ids{rank}{lod_level}", [None, 1][:rank], "int64", lod_level)
        vectors = nn.embedding(ids, [10, 4], is_sparse=True)
        assert vectors.shape == looked_up
        assert nn.sparse_embedding(ids, [10, 4]).shape == (-1, 4)
        if lod_level:
            assert nn.sequence_pool(vectors, "sum").shape == pooled
            assert nn.sequence_pool(nn.sparse_embedding(ids, [10, 4]), "max").shape == (-1, 4)


def test_what_is_not_a_sequence_is_refused():
    x = static.data("x", [None, 4])
    with pytest.raises(ValueError, match="`sequence_softmax` expects .* whose rows are not those of sequences"):
        static.nn.sequence_softmax(x)
    with pytest.raises(NotImplementedError, match="`sum`, `average`, `sqrt`, `max`, `first` and `last`"):
        static.nn.sequence_pool(x, "median")
    words = static.data("words", [None, 1], "int64", lod_level=1)
    tags = static.data("tags", [None, 1], "int64", lod_level=1)
    expanded = static.nn.sequence_expand(tags, words)
    feed = {"words": static.create_lod_tensor([[1, 2], [3]]), "tags": static.create_lod_tensor([[7], [8]])}
    exe = static.Executor()
    assert exe.run(feed=feed, fetch_list=[expanded])[0].ravel().tolist() == [7, 7, 8]
    feed["tags"] = static.create_lod_tensor([[7, 8], []])
    with pytest.raises(ValueError, match="one row for each sequence, got 2 rows in sequence 0"):
        exe.run(feed=feed, fetch_list=[expanded])
    # Two slots with other numbers of ids in a row are added to each other.
    total = static.nn.add(*(static.nn.embedding(ids, [9, 2], True, pooling="each") for ids in (words, tags)))
    feed["tags"] = static.create_lod_tensor([[7], [8]])
    exe.run(static.default_startup_program())
    with pytest.raises(ValueError, match=r"shapes \[3, 2\] and \[2, 2\]"):
        exe.run(feed=feed, fetch_list=[total])


def test_cast_gives_the_ids_of_a_slot_one_below_the_other():
    words = static.data("words", [None, 1], "int64", lod_level=1)
    feed = {"words": static.create_lod_tensor([[1, 2], [3]])}
    ids, numbers = static.Executor().run(
        feed=feed, fetch_list=[static.nn.cast(words, kind) for kind in ("int64", "float32")]
    )
    assert ids.tolist() == [[1], [2], [3]] and ids.dtype == "int64"
    assert numbers.tolist() == [[1.0], [2.0], [3.0]] and numbers.dtype == "float32"
