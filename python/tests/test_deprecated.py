"""Arguments of PaddlePaddle that `openfleet.static` and `openfleet.fleet` no longer have still work, with a warning."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest

from openfleet import static
from openfleet.compat import paddle
from openfleet.dataset import InMemoryDataset
from openfleet.fleet import util


def test_an_argument_without_effect_is_dropped_with_a_warning_by_keyword_and_by_position() -> None:
    with static.program_guard(static.Program(), static.Program()):
        x = static.nn.literal([-1.0, 2.0])
        with pytest.warns(DeprecationWarning, match="`name` of `relu` is deprecated: leave it out"):
            by_keyword = static.nn.relu(x, name="a")
        with pytest.warns(DeprecationWarning, match="`name` of `relu`"):
            by_position = static.nn.relu(x, "a")
        values = static.Executor().run(fetch_list=[by_keyword, by_position])
    assert [value.tolist() for value in values] == [[0.0, 2.0], [0.0, 2.0]]


def test_positions_of_the_old_signature_keep_their_meaning() -> None:
    with static.program_guard(static.Program(), static.Program()), static.unique_name.guard():
        ids = static.data("ids", [None, 1], "int64", lod_level=1)
        with pytest.warns(DeprecationWarning, match="`is_test` of `sparse_embedding`"):
            rows = static.nn.sparse_embedding(ids, [0, 8], None, False, static.CountFilterEntry(2))
        with pytest.warns(DeprecationWarning, match="`is_distributed` of `embedding` is deprecated: write `is_sparse"):
            static.nn.embedding(ids, [10, 4], False, True, None, static.ParamAttr(name="table"), pooling="sum")
        assert rows.shape == (-1, 8)
        assert static.default_main_program().var("table").kind == "table"
    with static.program_guard(static.Program(), static.Program()):
        exe, scope = static.Executor(), static.Scope()
        with pytest.warns(DeprecationWarning, match="`return_numpy` of `Executor.run`"):
            (value,) = exe.run(None, {}, [static.nn.literal([1.0])], "feed", "fetch", scope, True)
        assert value.tolist() == [1.0]


def test_a_value_that_was_never_supported_is_still_refused() -> None:
    with static.program_guard(static.Program(), static.Program()):
        p, label = static.data("p", [None, 1]), static.data("label", [None, 1], "int64")
        with pytest.warns(DeprecationWarning), pytest.raises(NotImplementedError, match="curve `ROC`"):
            static.nn.auc(p, label, "PR")
    with pytest.warns(DeprecationWarning), pytest.raises(NotImplementedError, match="`comm_world` `server`"):
        util.barrier("server")
    with pytest.warns(DeprecationWarning), pytest.raises(NotImplementedError, match="`fs_name`"):
        InMemoryDataset().init(fs_name="hdfs://")


def test_a_wrong_call_is_the_usual_type_error() -> None:
    with pytest.raises(TypeError, match="positional argument"):
        static.nn.relu(1, 2, 3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'nmae'"):
        static.nn.relu(1, nmae="x")  # type: ignore[call-arg]


def test_signatures_show_current_arguments_only() -> None:
    assert str(inspect.signature(static.nn.relu)) == "(x: 'Variable') -> 'Variable'"
    for function in (static.nn.sparse_embedding, static.nn.batch_norm, static.Executor.run, static.ParamAttr):
        shown = inspect.signature(function).parameters
        assert {"is_test", "table_class", "return_numpy", "need_clip"}.isdisjoint(shown)


def test_compat_accepts_the_arguments_without_a_warning() -> None:
    with warnings.catch_warnings(), static.program_guard(static.Program(), static.Program()):
        warnings.simplefilter("error", DeprecationWarning)
        x = paddle.static.data("x", [None, 2])
        y = paddle.add(paddle.tanh(x, name="t"), x, name="sum")
        attr = paddle.ParamAttr(do_model_average=False, initializer=paddle.nn.initializer.Uniform(-1.0, 1.0, "u"))
        y = paddle.static.nn.fc(paddle.static.nn.batch_norm(y, is_test=True, name="n"), 1, weight_attr=attr)
        loss = paddle.mean(y, name="loss")
        clip = paddle.nn.ClipGradByGlobalNorm(1.0, "group")
        rule = paddle.optimizer.Adam(0.1, grad_clip=clip, lazy_mode=True, name="adam")
        rule.minimize(loss, static.default_startup_program())
        exe = paddle.static.Executor(paddle.CPUPlace())
        exe.run(static.default_startup_program())
        feeder = paddle.fluid.DataFeeder([x], paddle.CPUPlace())
        (value,) = exe.run(feed=feeder.feed([([1.0, 2.0],)]), fetch_list=[loss], return_numpy=True)
        assert np.isfinite(value).all()
        with paddle.fluid.unique_name.guard(None):
            assert paddle.fluid.layers.sequence_pool is not None
        paddle.distributed.InMemoryDataset().init(2, 1, [x], "cat", 0, "", "", "cat")
