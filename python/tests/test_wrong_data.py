"""Unusable data and numbers that are not finite are reported, and never used silently."""

import logging

import numpy as np
import pytest

import openfleet
from openfleet import static
from openfleet.dataset import InMemoryDataset, QueueDataset


def click_net():
    x = static.data("x", [None, 2], "float32")
    label = static.data("clicked", [None, 1], "int64")
    logit = static.nn.fc(x, 1, weight_attr=static.ParamAttr(name="w"), bias_attr=static.ParamAttr(name="b"))
    losses = static.nn.sigmoid_cross_entropy_with_logits(logit, static.nn.cast(label, "float32"))
    return x, label, static.nn.sigmoid(logit), static.nn.mean(losses)


def written(tmp_path, text, name="part-0.txt"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def dataset(kind, fields, files, **options):
    data = kind()
    data.init(batch_size=2, use_var=fields, **options)
    data.set_filelist(files)
    if kind is InMemoryDataset:
        data.load_into_memory()
    return data


def test_a_label_other_than_0_and_1_is_named():
    *_, loss = click_net()
    static.optimizer.SGD(0.1).minimize(loss)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    with pytest.raises(openfleet.ProgramError, match=r"label `clicked` .*\[0, 1\].*3"):
        exe.run(feed={"x": np.ones((2, 2)), "clicked": [[1], [3]]}, fetch_list=[loss])


def test_auc_accepts_labels_0_and_1_only():
    x = static.data("x", [None, 2], "float32")
    label = static.data("clicked", [None, 1], "int64")
    auc, *_ = static.nn.auc(static.nn.softmax(static.nn.fc(x, 2)), label)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    with pytest.raises(openfleet.ProgramError, match="label `clicked` .*0 or 1.*5"):
        exe.run(feed={"x": np.ones((1, 2)), "clicked": [[5]]}, fetch_list=[auc])


@pytest.mark.parametrize("act", ["relu", None])
def test_nan_passes_every_layer_and_is_named(act, caplog):
    x = static.data("x", [None, 2], "float32")
    hidden = static.nn.fc(x, 4, activation=act)
    hidden = static.nn.relu(hidden)
    loss = static.nn.mean(static.nn.max(hidden, axis=1))
    static.optimizer.SGD(0.1).minimize(loss)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    with caplog.at_level(logging.WARNING, logger="openfleet"):
        (value,) = exe.run(feed={"x": [[1.0, 2.0], [np.nan, 2.0]]}, fetch_list=[loss])
        exe.run(feed={"x": [[1.0, 2.0], [np.nan, 2.0]]}, fetch_list=[loss])
        openfleet._native.flush_log()
    assert np.isnan(value).all()
    said = [record.message for record in caplog.records if "the loss" in record.message]
    assert len(said) == 1 and "field `x` is NaN in row 1 of the batch" in said[0], said


@pytest.mark.parametrize("kind", [QueueDataset, InMemoryDataset])
@pytest.mark.parametrize(
    "text, options, reason",
    [
        ("", {}, "has no rows"),
        ("\n\n\n", {}, "has no rows"),
        ("x\ny\n", {"skip_bad_lines": True}, "2 bad lines skipped"),
    ],
)
def test_training_on_no_rows_is_an_error(tmp_path, kind, text, options, reason):
    x, label, _, loss = click_net()
    static.optimizer.SGD(0.1).minimize(loss)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    with pytest.raises(ValueError, match=reason):
        exe.train_from_dataset(dataset=dataset(kind, [x, label], [written(tmp_path, text)], **options))


def test_training_without_an_optimizer_is_an_error(tmp_path):
    x, label, _, loss = click_net()
    data = dataset(QueueDataset, [x, label], [written(tmp_path, "2 1 1 1 1\n")])
    exe = static.Executor()
    exe.run(static.default_startup_program())
    with pytest.raises(openfleet.ProgramError, match="trains nothing"):
        exe.train_from_dataset(dataset=data)
    test = static.default_main_program().clone(for_test=True)
    static.optimizer.SGD(0.1).minimize(loss)
    with pytest.raises(openfleet.ProgramError, match="trains nothing"):
        exe.train_from_dataset(test, data)


def test_a_copy_for_test_has_its_own_counters(tmp_path):
    """The second epoch, a second test pass and a reset by name: training and test never see each other's clicks."""
    x, label, prediction, loss = click_net()
    both = static.nn.concat([1.0 - prediction, prediction], axis=1)
    auc, _, counters = static.nn.auc(both, label)
    test = static.default_main_program().clone(for_test=True)
    static.optimizer.SGD(0.0).minimize(loss)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    scope = static.global_scope()

    def counted():
        return sum(int(np.asarray(scope.find_var(counter.name).get_tensor()).sum()) for counter in counters[2:])

    train = dataset(QueueDataset, [x, label], [written(tmp_path, "2 1 1 1 1\n2 0 0 1 0\n" * 5, "train.txt")])
    held_out = dataset(QueueDataset, [x, label], [written(tmp_path, "2 1 1 1 0\n2 0 0 1 1\n", "test.txt")])
    exe.train_from_dataset(dataset=train)
    assert counted() == 10
    for _ in range(2):
        exe.infer_from_dataset(test, held_out)
        assert counted() == 2, "the test's own rows, and no others"
    exe.train_from_dataset(dataset=train)
    assert counted() == 20, "training continues where it was"
    exe.run(test, feed={"x": [[1.0, 1.0]], "clicked": [[1]]})
    assert counted() == 1
    exe.run(feed={"x": [[1.0, 1.0]], "clicked": [[1]]})
    assert counted() == 21
    exe.infer_from_dataset(test, held_out)
    for counter in counters:
        tensor = scope.find_var(counter.name).get_tensor()
        tensor.set(np.zeros(tensor.shape(), "int64"))
    exe.train_from_dataset(dataset=train)
    assert counted() == 10, "what was reset by name stays reset"


def test_files_set_after_loading_are_warned_about(tmp_path, caplog):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("1 1 1 0\n" * 2)
    second.write_text("1 1 1 0\n" * 3)
    x, label = static.data("x", [None, 1]), static.data("label", [None, 1], "int64")
    static.optimizer.SGD(0.1).minimize(static.nn.mean(static.nn.fc(x, 1)))
    exe = static.Executor()
    exe.run(static.default_startup_program())
    data = InMemoryDataset()
    data.init(batch_size=1, use_var=[x, label])
    data.set_filelist([first])
    data.load_into_memory()
    data.set_filelist([second])
    for _ in range(2):
        assert exe.train_from_dataset(dataset=data).samples == 2
    told = [record.message for record in caplog.records if "set_filelist" in record.message]
    assert told == ["`set_filelist` was called after `load_into_memory`: this pass uses the 2 rows loaded before"]
    data.load_into_memory()
    assert exe.train_from_dataset(dataset=data).samples == 3


def test_values_without_a_variable_are_warned_about(caplog):
    static.nn.fc(static.data("x", [None, 1]), 1, weight_attr=static.ParamAttr(name="w"))
    static.Executor().run(static.default_startup_program())
    static.set_program_state(static.default_main_program(), {"w": [[2.0]], "v": [[1.0]]})
    assert static.global_scope().find_var("w").get_tensor().numpy() == [[2.0]]
    assert "skipped 1 of 2 values: the program has no variable named `v`" in caplog.text


@pytest.mark.parametrize("rate", [float("nan"), float("inf")])
def test_a_learning_rate_that_is_not_finite_is_named(rate):
    loss = static.nn.mean(static.nn.fc(static.data("x", [None, 1]), 1))
    with pytest.raises(ValueError, match="`learning rate` of the optimizer: expected a finite number, got (nan|inf)"):
        static.optimizer.SGD(rate).minimize(loss)
