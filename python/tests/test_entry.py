"""Which ids of a sparse table get a row: admission rules and the padding id."""

import numpy as np
import pytest

import openfleet.compat.paddle as paddle
from openfleet import static


def looked_up(entry=None, more=(), **options):
    """A table named `t` that every id pushes a gradient of 1 to, at rate 1, and how to run a step of it."""
    for name in more:
        paddle.static.data(name, [None, 1], "int64")
    ids = paddle.static.data("ids", [None, 1], "int64")
    attr = paddle.ParamAttr(name="t", initializer=paddle.nn.initializer.Constant(5.0))
    rows = paddle.static.nn.sparse_embedding(ids, size=[100, 1], entry=entry, param_attr=attr, **options)
    loss = paddle.sum(rows)
    paddle.optimizer.SGD(learning_rate=1.0).minimize(loss)
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())

    def step(*numbers, **others):
        feed = {name: np.array(values)[:, None] for name, values in {"ids": numbers, **others}.items()}
        return exe.run(feed=feed, fetch_list=[rows])[0].reshape(-1).tolist()

    return step


def kept():
    return static.global_scope().find_var("t").rows()


def test_without_a_rule_every_id_has_a_row():
    step = looked_up()
    assert step(1, 2) == [5.0, 5.0] and step(1, 3) == [4.0, 5.0] and kept() == 3


def test_an_id_gets_a_row_when_it_was_seen_often_enough():
    step = looked_up(paddle.distributed.CountFilterEntry(3))
    assert step(7) == [0.0] and kept() == 0
    assert step(7) == [0.0] and kept() == 0
    assert step(7) == [5.0] and kept() == 1
    assert step(7) == [4.0]


def test_an_id_gets_a_row_with_a_probability():
    step = looked_up(paddle.distributed.ProbabilityEntry(0.5))
    first = step(*range(1000))
    admitted = [number for number, value in enumerate(first) if value != 0]
    assert 400 < len(admitted) < 600 and kept() == len(admitted)
    # The admitted ids stay the same.
    assert [number for number, value in enumerate(step(*range(1000))) if value != 0] == admitted


def test_rows_count_shows_and_clicks(tmp_path):
    entry = paddle.distributed.ShowClickEntry("show", "click")
    step = looked_up(entry, more=["show", "click"])
    # The only weight of a row is its first one, which starts from the initializer if there is no long part.
    assert step(1, 1, 2, show=[1, 1, 1], click=[1, 0, 0]) == [5.0, 5.0, 5.0]
    step(1, 2, show=[1, 3], click=[1, 2])
    manifest = static.save(paddle.static.default_main_program(), tmp_path)
    part = tmp_path / manifest["directory"] / manifest["sparse"][0]["parts"][0]["prefix"]
    keys, stats = (np.load(f"{part}.{column}.npy") for column in ("keys", "stats"))
    counted = {int(key): (float(row["show"]), float(row["click"])) for key, row in zip(keys, stats)}
    assert counted == {1: (3.0, 2.0), 2: (4.0, 2.0)}


def test_shows_must_be_data_with_one_number_per_row():
    step = looked_up(paddle.distributed.ShowClickEntry("show", "click"), more=["show"])
    with pytest.raises(ValueError, match="`click`"):
        step(1, show=[1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: paddle.distributed.CountFilterEntry(-1), "`count_filter` expects a number not below 0, got -1"),
        (lambda: paddle.distributed.CountFilterEntry("5"), "`count_filter` expects an int, got str"),
        (lambda: paddle.distributed.CountFilterEntry(1 << 25), None),
        (lambda: paddle.distributed.ProbabilityEntry(1.5), "`probability` expects a number between 0 and 1, got 1.5"),
        (lambda: paddle.distributed.ProbabilityEntry(1), "`probability` expects a float, got int"),
        (lambda: paddle.distributed.ShowClickEntry(1, "click"), "`show_name` expects the name of a variable, got int"),
    ],
)
def test_rules_with_wrong_numbers_are_refused(make, message):
    with pytest.raises(ValueError, match=message or "at most 16777216"):
        looked_up(make())


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"table_class": "SSDSparseTable"}, NotImplementedError, "`table_class` `SSDSparseTable`"),
        ({"is_test": True}, NotImplementedError, "`is_test=True`"),
        ({"entry": "count_filter_entry:5"}, TypeError, "`entry` expects an admission rule"),
    ],
)
def test_unsupported_options_of_a_sparse_table_are_named(options, kind, message):
    with pytest.raises(kind, match=message):
        looked_up(**options)


def test_the_padding_id_of_a_sparse_table_reads_as_zeros_and_is_not_trained():
    step = looked_up(padding_idx=0)
    assert step(0, 3) == [0.0, 5.0]
    assert step(0, 3) == [0.0, 4.0]


@pytest.mark.parametrize("pool_type", ["sum", "average"])
def test_the_padding_id_counts_as_absent_where_ids_are_pooled(pool_type):
    ids = paddle.static.data("ids", [None, 1], "int64", lod_level=1)
    attr = paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(2.0))
    rows = static.nn.embedding(ids, [10, 1], is_sparse=True, padding_idx=-1, param_attr=attr)
    out = paddle.static.nn.sequence_pool(rows, pool_type)
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    (values,) = exe.run(feed={"ids": [[9, 1, 2], [9], [3]]}, fetch_list=[out])
    assert values.reshape(-1).tolist() == ([4.0, 0.0, 2.0] if pool_type == "sum" else [2.0, 0.0, 2.0])


def test_fields_joined_side_by_side_are_looked_up_in_one_sparse_table():
    fields = [paddle.static.data(f"C{i}", [None, 1], "int64") for i in range(3)]
    joined = paddle.concat(fields, axis=1)
    layer = paddle.nn.Embedding(100, 2, sparse=True)
    rows = layer(joined)
    assert rows.shape == (-1, 3, 2) and layer.weight.kind == "table"
    assert [v.kind for v in static.default_main_program().all_parameters()] == ["table"]
    same = layer(fields[1])
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    feed = {f"C{i}": np.arange(4)[:, None] + 10 * i for i in range(3)}
    ids, values, one = exe.run(feed=feed, fetch_list=[joined, rows, same])
    assert ids.tolist() == [[i, i + 10, i + 20] for i in range(4)]
    np.testing.assert_array_equal(values[:, 1:2], one)
