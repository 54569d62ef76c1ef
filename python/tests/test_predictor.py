"""A saved model predicts: from threads, and as an ONNX graph in another framework."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import openfleet
from openfleet import models, static

SLOTS = [f"C{slot}" for slot in range(5)]
FEEDS = [*SLOTS, "dense"]
# Ids use all 64 bits.
SPREAD = 0x9E37_79B9_7F4A_7C15


def rows(count: int, seed: int, vocabulary: int = 300):
    """A feed of rows with no, one or some ids a slot."""
    chance = np.random.default_rng(seed)
    feed: dict[str, object] = {"dense": chance.random((count, 3), dtype=np.float32)}
    for slot in SLOTS:
        lengths = chance.integers(0, 4, count)
        # As int64: the same bits.
        ids = [[signed(int(id) * SPREAD) for id in chance.integers(0, vocabulary, length)] for length in lengths]
        feed[slot] = ids
    return feed


def signed(id: int) -> int:
    id &= 2**64 - 1
    return id - 2**64 if id >= 2**63 else id


def saved(build, path: Path, steps: int = 30, **options):
    """Trains a model a little and saves it; every id of the vocabulary has been seen."""
    slots = [static.data(name, [None, 1], "int64", lod_level=1) for name in SLOTS]
    dense, label = static.data("dense", [None, 3]), static.data("label", [None, 1], "int64")
    model = build(slots, dense, label)
    static.optimizer.Adam(0.05).minimize(model.loss)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    for step in range(steps):
        labels = np.random.default_rng(step).integers(0, 2, (256, 1))
        exe.run(feed={**rows(256, step), "label": labels}, fetch_list=[model.loss])
    static.save_inference_model(path, FEEDS, [model.probability], exe, **options)
    return exe


MODELS = {
    "ctr_dnn": lambda *inputs: models.ctr_dnn(*inputs, dim=6, hidden=[32, 16]),
    "wide_deep": lambda *inputs: models.wide_deep(*inputs, dim=5, hidden=[32, 16], wide_ids=True),
    "deepfm": lambda *inputs: models.deepfm(*inputs, dim=5, hidden=[32, 16]),
    "dcn": lambda *inputs: models.dcn(*inputs, dim=5, hidden=[32, 16]),
}


def test_threads_predict_what_the_executor_predicts(tmp_path: Path) -> None:
    exe = saved(MODELS["deepfm"], tmp_path / "model")
    predictor = openfleet.Predictor(tmp_path / "model")
    assert isinstance(predictor, static.Predictor)
    assert predictor.feeds == FEEDS and len(predictor.targets) == 1
    with static.scope_guard(static.Scope()):
        program, _, targets = static.load_inference_model(tmp_path / "model", exe)
        # The second half of the ids was never seen.
        expected = [exe.run(program, feed=rows(64, seed, 600), fetch_list=targets)[0] for seed in range(4)]
    different = []

    def predict(seed: int) -> None:
        for _ in range(10):
            (value,) = predictor.predict(rows(64, seed, 600))
            if not np.array_equal(value, expected[seed]):
                different.append(seed)

    threads = [threading.Thread(target=predict, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not different


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    saved(MODELS["ctr_dnn"], tmp_path / "model", steps=2)
    predictor = static.Predictor(tmp_path / "model")
    feed = rows(4, 0)
    without = {name: value for name, value in feed.items() if name != "C3"}
    with pytest.raises(Exception, match="C3"):
        predictor.predict(without)
    with pytest.raises(Exception, match="dense"):
        predictor.predict({**feed, "dense": np.zeros((5, 3), np.float32)})
    with pytest.raises(FileNotFoundError):
        static.Predictor(tmp_path / "elsewhere")


def inputs_of(feed):
    """A feed as ONNX has it."""
    inputs = {"dense": feed["dense"]}
    for slot in SLOTS:
        inputs[f"{slot}.ids"] = np.array([id for ids in feed[slot] for id in ids], np.int64)
        inputs[f"{slot}.lengths"] = np.array([len(ids) for ids in feed[slot]], np.int64)
    return inputs


@pytest.mark.parametrize("name", MODELS)
def test_onnxruntime_gives_the_same_predictions(name: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    saved(MODELS[name], tmp_path / "model", onnx=True)
    onnx.checker.check_model(tmp_path / "model" / "model.onnx", full_check=True)
    session = onnxruntime.InferenceSession(tmp_path / "model" / "model.onnx")
    predictor = static.Predictor(tmp_path / "model")
    assert [output.name for output in session.get_outputs()] == predictor.targets
    for count, seed in [(10_000, 100), (1, 101), (3, 102)]:
        feed = rows(count, seed)
        (expected,), (got,) = predictor.predict(feed), session.run(None, inputs_of(feed))
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
        assert count < 10_000 or np.ptp(expected[:, -1]) > 0.1, "rows that say something"
    # A row without any ids at all.
    nothing = {**{slot: [[]] for slot in SLOTS}, "dense": np.ones((1, 3), np.float32)}
    (expected,), (got,) = predictor.predict(nothing), session.run(None, inputs_of(nothing))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    # Unknown ids share a row of zeros, as if they were absent.
    unknown = {**nothing, "C1": [[signed(12345 * SPREAD)]]}
    np.testing.assert_allclose(session.run(None, inputs_of(unknown))[0], expected, rtol=0, atol=1e-5)


def two_slots(share_ids: bool):
    """A small model over two slots, trained on the ids 1 to 3 of both."""
    slots = [static.data(name, [None, 1], "int64", lod_level=1) for name in "ab"]
    label = static.data("label", [None, 1], "int64")
    model = models.ctr_dnn(slots, None, label, dim=4, hidden=[8], share_ids=share_ids)
    static.optimizer.Adam(0.05).minimize(model.loss)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    ids = [[first] for first in (1, 2, 3) for _ in range(3)], [[second] for _ in range(3) for second in (1, 2, 3)]
    labels = np.array([[int(first == [1] and second != [1])] for first, second in zip(*ids)])
    for _ in range(20):
        exe.run(feed={"a": ids[0], "b": ids[1], "label": labels}, fetch_list=[model.loss])
    return exe, model, {"a": ids[0], "b": ids[1]}


@pytest.mark.parametrize(("share_ids", "rows_of_table"), [(False, 6), (True, 3)])
def test_equal_ids_of_two_slots_are_two_features_unless_shared(
    share_ids: bool, rows_of_table: int, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    exe, model, feed = two_slots(share_ids)
    assert static.global_scope().find_var("SparseFeatFactors").rows() == rows_of_table
    static.save_inference_model(tmp_path / "model", ["a", "b"], [model.probability], exe, onnx=True)
    (expected,) = static.Predictor(tmp_path / "model").predict(feed)
    session = onnxruntime.InferenceSession(tmp_path / "model" / "model.onnx")
    lengths = np.ones(9, np.int64)
    inputs = {f"{slot}.{kind}": value for slot in "ab" for kind, value in [("ids", None), ("lengths", lengths)]}
    inputs.update({f"{slot}.ids": np.array(feed[slot]).ravel() for slot in "ab"})
    np.testing.assert_allclose(session.run(None, inputs)[0], expected, rtol=0, atol=1e-6)
    with static.scope_guard(static.Scope()):
        program, _, targets = static.load_inference_model(tmp_path / "model", exe)
        np.testing.assert_array_equal(exe.run(program, feed=feed, fetch_list=targets)[0], expected)


def test_a_checkpoint_of_shared_ids_is_not_loaded_as_salted_ids(tmp_path: Path) -> None:
    exe, _, _ = two_slots(share_ids=True)
    static.save(static.default_main_program(), str(tmp_path / "old"))
    for share_ids in (True, False):
        main, startup = static.Program(), static.Program()
        guards = static.scope_guard(static.Scope()), static.program_guard(main, startup), static.unique_name.guard()
        with guards[0], guards[1], guards[2]:
            two_slots(share_ids)
            if share_ids:
                static.load(main, str(tmp_path / "old"), exe)
                continue
            with pytest.raises(openfleet.CheckpointError, match="plain ids(.|\n)*share_ids"):
                static.load(main, str(tmp_path / "old"), exe)


def saved_network(network, path: Path, feed, inline_bytes: int = 1 << 20):
    """Trains what `network` builds to be 0, saves it as ONNX too, and gives both ways to predict it."""
    onnxruntime = pytest.importorskip("onnxruntime")
    names, target = network()
    loss = static.nn.mean(static.nn.square(target))
    static.optimizer.SGD(0.1).minimize(loss)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    for _ in range(3):
        exe.run(feed=feed, fetch_list=[loss])
    static.save_inference_model(path, names, [target], exe)
    static.write_onnx(path, inline_bytes)
    return static.Predictor(path), onnxruntime.InferenceSession(path / "model.onnx")


IDS = [[1, 2, 0], [], [2], [0], [-7, 1, 1, 5]]


@pytest.mark.parametrize("padding", [None, 0])
@pytest.mark.parametrize("pooling", ["sum", "mean", "sqrtn"])
def test_pooling_is_the_same_in_onnx(pooling: str, padding: int | None, tmp_path: Path) -> None:
    def network():
        slot = static.data("s", [None, 1], "int64", lod_level=1)
        rows = static.nn.sparse_embedding(slot, size=[0, 3], pooling=pooling, padding_idx=padding)
        return ["s"], static.nn.fc(rows, size=2)

    predictor, session = saved_network(network, tmp_path / "model", {"s": IDS}, inline_bytes=0)
    assert list((tmp_path / "model").glob("data-*/model.onnx.data")), "the rows are in a file of their own"
    inputs = {"s.ids": np.array(sum(IDS, []), np.int64), "s.lengths": np.array([len(ids) for ids in IDS], np.int64)}
    (expected,), (got,) = predictor.predict({"s": IDS}), session.run(None, inputs)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", None])
def test_dense_embedding_is_the_same_in_onnx(pooling: str | None, tmp_path: Path) -> None:
    def network():
        slot, ids = static.data("s", [None, 1], "int64", lod_level=1), static.data("ids", [None, 3], "int64")
        first = static.nn.embedding(slot, size=[10, 4], pooling="sqrtn", padding_idx=2)
        second = static.nn.embedding(ids, size=[20, 2], pooling=pooling)
        second = static.nn.reshape(second, [-1, 2 if pooling else 6])
        return ["s", "ids"], static.nn.fc(static.nn.concat([first, second], axis=1), size=1)

    feed = {"s": [[1, 2, 2], [], [3, 4]], "ids": np.arange(9).reshape(3, 3)}
    predictor, session = saved_network(network, tmp_path / "model", feed)
    inputs = {"s.ids": np.array([1, 2, 2, 3, 4]), "s.lengths": np.array([3, 0, 2]), "ids": feed["ids"]}
    (expected,), (got,) = predictor.predict(feed), session.run(None, inputs)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("pooling", ["sum", "mean", None])
def test_slots_of_a_fixed_length_are_one_onnx_input(pooling: str | None, tmp_path: Path) -> None:
    def network():
        ids = static.data("ids", [None, 3], "int64")
        rows = static.nn.sparse_embedding(ids, size=[0, 2], pooling=pooling)
        return ["ids"], static.nn.fc(static.nn.reshape(rows, [-1, 2 if pooling else 6]), size=1)

    ids = np.arange(12).reshape(4, 3)
    predictor, session = saved_network(network, tmp_path / "model", {"ids": ids})
    (expected,), (got,) = predictor.predict({"ids": ids}), session.run(None, {"ids": ids})
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


def test_pooled_inputs_replace_the_tables_of_an_onnx_model(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    slots = [static.data(name, [None, 1], "int64", lod_level=1) for name in ("s", "t")]
    x = static.data("x", [None, 2])
    rows = [static.nn.sparse_embedding(slot, size=[0, 3], pooling="mean") for slot in slots]
    y = static.nn.fc(static.nn.concat([*rows, x], axis=1), size=1)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    static.save_inference_model(tmp_path / "rows", ["s", "t"], rows, exe)
    static.save_inference_model(tmp_path / "model", ["s", "t", "x"], [y], exe)
    static.write_onnx(tmp_path / "model", pooled_inputs=True)
    session = onnxruntime.InferenceSession(tmp_path / "model" / "model.pooled.onnx")
    names = [row.name for row in rows]
    assert [value.name for value in session.get_inputs()] == ["x", *names]
    ids = {"s": IDS, "t": IDS[::-1]}
    dense = {"x": np.ones((5, 2), np.float32)}
    pooled = openfleet.Predictor(tmp_path / "rows").predict(ids)
    (expected,) = openfleet.Predictor(tmp_path / "model").predict({**ids, **dense})
    (got,) = session.run(None, {**dict(zip(names, pooled)), **dense})
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)
    assert session.get_modelmeta().custom_metadata_map[f"openfleet.pooled.{names[0]}"].startswith("s of ")


def test_unknown_ids_get_the_constant_initializer_in_onnx(tmp_path: Path) -> None:
    def network():
        slot = static.data("s", [None, 1], "int64", lod_level=1)
        attr = static.ParamAttr(initializer=static.initializer.Constant(0.25))
        return ["s"], static.nn.fc(static.nn.sparse_embedding(slot, size=[0, 3], param_attr=attr), size=2)

    predictor, session = saved_network(network, tmp_path / "model", {"s": IDS})
    inputs = {"s.ids": np.array([77, 1, -99]), "s.lengths": np.array([2, 1])}
    (expected,), (got,) = predictor.predict({"s": [[77, 1], [-99]]}), session.run(None, inputs)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


def test_other_layers_compute_the_same_in_onnx(tmp_path: Path) -> None:
    def network():
        nn, x = static.nn, static.data("x", [None, 2, 3])
        y = nn.batch_norm(nn.fc(x, size=4, num_flatten_dims=2, activation="sigmoid"))
        y = nn.dropout(nn.transpose(y, [0, 2, 1]), 0.25)
        y = nn.multiply(nn.exp(y), nn.unsqueeze(nn.mean(y, axis=1), [1]))
        y = nn.subtract(nn.scale(y, 0.5, 0.25), nn.sqrt(nn.clip(y, 0.1, 2.0)))
        parts = [nn.sum(y, axis=[1, 2], keepdim=True), nn.max(y, axis=2, keepdim=True), nn.max(y, axis=2, keepdim=True)]
        return ["x"], nn.softmax(nn.concat(parts, 1), axis=1)

    x = np.random.default_rng(3).random((5, 2, 3), np.float32)
    predictor, session = saved_network(network, tmp_path / "model", {"x": x})
    (expected,), (got,) = predictor.predict({"x": x}), session.run(None, {"x": x})
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def test_an_op_without_an_onnx_form_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    x = static.data("x", [None, 4])
    best = static.nn.topk(x, 2)[0]
    exe = static.Executor()
    static.save_inference_model(tmp_path / "model", ["x"], [best], exe)
    with pytest.raises(Exception, match="`topk` has no ONNX form"):
        static.write_onnx(tmp_path / "model")
    assert not list((tmp_path / "model").glob("**/*.onnx*"))
