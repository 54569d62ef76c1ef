"""What scripts set on strategies and programs: what has an effect, what says that it has none, and what is
refused because it would change results."""

import copy
import importlib

import numpy as np
import pytest

import openfleet.compat.paddle as paddle
from openfleet import static
from openfleet.compat import _notices

fluid = paddle.fluid
transpiler = importlib.import_module(
    "openfleet.compat.paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler"
)
StrategyFactory = transpiler.StrategyFactory


@pytest.fixture(autouse=True)
def says_again(monkeypatch):
    monkeypatch.setattr(_notices, "_said", set())


@pytest.fixture
def strategy():
    return paddle.distributed.fleet.DistributedStrategy()


def test_the_settings_of_a_parameter_server_script_are_read_as_they_were_set(strategy, capfd):
    assert strategy.trainer_desc_configs["dump_fields"] == [] and strategy.fs_client_param.uri == ""
    assert strategy.sparse_table_configs == {} and strategy.adam_d2sum is False
    strategy.trainer_desc_configs = {"dump_fields_path": "", "dump_fields": [], "stat_var_names": ["auc"]}
    strategy.fs_client_param = {"uri": "", "user": "me", "passwd": "secret", "hadoop_bin": "hadoop"}
    strategy.is_with_coordinator = False
    assert strategy.trainer_desc_configs["stat_var_names"] == ["auc"]
    assert strategy.fs_client_param.user == "me" and strategy.fs_client_param.passwd == "secret"
    assert "secret" not in repr(strategy.fs_client_param)
    strategy.a_sync = True
    strategy.a_sync_configs = {"k_steps": 100}
    copied = copy.deepcopy(strategy)
    assert copied.fs_client_param.user == "me" and "mode geo" in str(copied)
    assert capfd.readouterr().err == ""


SAID = {
    "adam_d2sum": (True, "dense parameters are trained by Adam itself"),
    "fs_client_param": ({"uri": "hdfs://name:9000"}, "`fleet.utils.HDFSClient` copies them"),
    "sparse_table_configs": ({"rows": {"table_parameters.rows.shard_num": 10}}, "sparse table `rows`"),
    "trainer_desc_configs": ({"dump_fields_path": "out", "dump_fields": ["x"]}, "fetch the variables instead"),
}


@pytest.mark.parametrize("name", SAID)
def test_a_setting_without_effect_says_so_once(strategy, capfd, name):
    value, said = SAID[name]
    for _ in range(2):
        setattr(strategy, name, value)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1 and said in lines[0] and "no effect" in lines[0]


REFUSED = {
    "fs_client_param": ({"user_name": "me"}, ValueError, "hint: choose one of `user`"),
    "is_fl_ps_mode": (True, NotImplementedError, "`is_fl_ps_mode`"),
    "is_with_coordinator": (True, NotImplementedError, "`is_with_coordinator`"),
    "sparse_table_configs": (
        {"rows": {"table_parameters.rows.accessor.embed_sgd_param.adagrad.learning_rate": 0.1}},
        NotImplementedError,
        "`table_parameters.rows.accessor.embed_sgd_param.adagrad.learning_rate`",
    ),
    "trainer_desc_configs": ({"local_sparse": ["rows"]}, NotImplementedError, "`local_sparse`"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_that_changes_results_is_refused_by_name(strategy, name):
    value, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        setattr(strategy, name, value)
    threshold = {"rows": {"table_parameters.rows.accessor.embedx_threshold": 10}}
    with pytest.raises(NotImplementedError, match=r"CountFilterEntry\(n\)"):
        strategy.sparse_table_configs = threshold


def test_a_program_has_the_options_that_scripts_read_and_set(capfd):
    program = static.default_main_program()
    program._fleet_opt["stat_var_names"] = ["auc"]
    assert program._fleet_opt == {"stat_var_names": ["auc"]} and static.Program()._fleet_opt == {}
    assert program._pipeline_opt is None
    program._fleet_opt = {"dump_fields_path": "out", "dump_fields": ["x"]}
    with pytest.raises(TypeError, match="expects a dataset"):
        paddle.static.Executor().train_from_dataset(program, None)
    assert "`dump_fields` and `dump_param` have no effect" in capfd.readouterr().err


MODES = {
    "create_sync_strategy": "mode sync",
    "create_half_async_strategy": "mode half_async",
    "create_async_strategy": "mode async",
    "create_geo_strategy": "mode geo",
}


@pytest.mark.parametrize("create", MODES)
def test_the_parts_of_a_strategy_are_read_changed_and_given_back(create, capfd):
    strategy = getattr(StrategyFactory, create)()
    config = strategy.get_program_config()
    config.split_method = fluid.transpiler.ps_dispatcher.HashName
    strategy.set_program_config(config)
    strategy.set_program_config({"min_block_size": 16384})
    assert str(strategy).startswith(MODES[create]) and strategy.min_block_size == 16384
    strategy.get_execute_strategy().num_threads = 2
    strategy.set_build_strategy({"fuse_bn_act_ops": True})
    strategy.set_server_runtime_config({"_rpc_send_thread_num": 24})
    assert strategy.get_build_strategy().fuse_bn_act_ops and strategy.get_execute_strategy().num_threads == 2
    assert strategy.get_server_runtime_config()._rpc_send_thread_num == 24
    assert "no effect" in capfd.readouterr().err


def test_how_a_worker_sends_is_set_by_the_names_of_paddlepaddle():
    strategy = StrategyFactory.create_async_strategy()
    strategy.set_trainer_runtime_config({"communicator_send_queue_size": 7})
    runtime = strategy.get_trainer_runtime_config()
    assert runtime.get_communicator_flags() == {"communicator_send_queue_size": "7"} and "queue of 7" in str(strategy)
    with pytest.raises(NotImplementedError, match="did you mean `communicator_send_queue_size`"):
        strategy.set_trainer_runtime_config({"communicator_send_queue": 7})
    for wrong in (strategy.set_trainer_runtime_config, strategy.set_program_config):
        with pytest.raises(TypeError, match="expects a "):
            wrong(3)


def test_the_other_members_of_a_transpiler_are_accepted_refused_or_said_to_have_no_effect(capfd):
    config = fluid.DistributeTranspilerConfig()
    assert config.mode == "pserver" and config.enable_dc_asgd is False
    config.enable_dc_asgd, config.mode = False, "pserver"
    assert capfd.readouterr().err == ""
    config.print_log = True
    assert config.print_log and "`print_log` of DistributeTranspilerConfig has no effect" in capfd.readouterr().err
    with pytest.raises(NotImplementedError, match="`enable_dc_asgd = True`"):
        config.enable_dc_asgd = True
    with pytest.raises(NotImplementedError, match="`mode = 'nccl2'`"):
        config.mode = "nccl2"


def test_dispatchers_assign_blocks_to_servers():
    dispatcher = fluid.transpiler.ps_dispatcher
    robin = dispatcher.RoundRobin(["a", "b", "c"])
    assert robin.dispatch(["w", "x", "y", "z"]) == ["a", "b", "c", "a"] and robin.dispatch(["w"]) == ["b"]
    robin.reset()
    assert robin.dispatch(["w"]) == ["a"] and robin.eps == ["a", "b", "c"]
    hashed = dispatcher.HashName(["a", "b"])
    assert hashed.dispatch(["w", "x"]) == hashed.dispatch(["w", "x"])
    with pytest.raises(NotImplementedError, match="`dispatch` of PSDispatcher"):
        dispatcher.PSDispatcher(["a"]).dispatch(["w"])


def test_a_compiled_program_runs_as_the_program_itself(capfd):
    x = paddle.static.data("x", [None, 2])
    total = paddle.static.Print(paddle.sum(x), message="total")
    build, run = paddle.static.BuildStrategy(), paddle.static.ExecutionStrategy()
    build.reduce_strategy = paddle.static.BuildStrategy.ReduceStrategy.Reduce
    run.num_threads = 4
    program = paddle.static.CompiledProgram(static.default_main_program()).with_data_parallel(
        total.name, build_strategy=build, exec_strategy=run
    )
    exe = paddle.static.Executor()
    feed = {"x": np.ones((3, 2), "float32")}
    for one in (feed, [feed]):
        assert float(exe.run(program, feed=one, fetch_list=[total])[0]) == 6.0
    with pytest.raises(NotImplementedError, match="2 batches, one per device"):
        exe.run(program, feed=[feed, feed], fetch_list=[total])
    said = capfd.readouterr().err
    assert "`with_data_parallel` has no effect" in said and "`num_threads` of ExecutionStrategy has no effect" in said
    assert f"`Print` prints nothing: add `{total.name}`" in said
    with pytest.raises(NotImplementedError, match="`num_trainers = 2` of BuildStrategy"):
        build.num_trainers = 2
    with pytest.raises(NotImplementedError, match="`num_iteration_per_run = 2`"):
        run.num_iteration_per_run = 2
    with pytest.raises(AttributeError, match="did you mean `num_threads`"):
        run.num_thread = 2


def test_a_variable_that_is_declared_twice_in_one_way_is_one_variable():
    for declare in (paddle.static.data, fluid.data):
        x = declare("x", [None, 2], "float32")
        assert declare("x", [-1, 2]).name == x.name
    assert fluid.layers.data("x", [2]).name == "x"
    ids = paddle.static.data("ids", [None, 1], "int64", lod_level=1)
    assert paddle.static.data("ids", [None, 1], "int64", 1).lod_level == ids.lod_level == 1
    for other in ([None, 3], [None]):
        with pytest.raises(ValueError, match="a variable named `x` already exists"):
            paddle.static.data("x", other)
    with pytest.raises(ValueError, match="already exists"):
        paddle.static.data("x", [None, 2], "int64")


def test_a_global_variable_that_is_declared_twice_is_one_variable_and_is_set_by_assign():
    count = paddle.static.create_global_var([1], 1.0, "float32", persistable=True, name="count")
    again = fluid.layers.create_global_var([1], 1.0, "float32", name="count")
    paddle.assign(count + 1.0, again)
    fluid.layers.assign(count + 1.0, count)
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    exe.run(fetch_list=[count])
    assert exe.run(fetch_list=[count])[0].tolist() == [5.0]
    with pytest.raises(ValueError, match="exists with the first value 1.0, not 2.0"):
        paddle.static.create_global_var([1], 2.0, "float32", name="count")
    assert isinstance(count, fluid.framework.Variable) and not isinstance(count, fluid.framework.Parameter)
    assert isinstance(static.create_parameter([1]), fluid.framework.Parameter)


def test_names_that_are_counted_again_within_a_program_do_not_collide():
    x = paddle.static.data("x", [None, 2])
    first = x + x
    with paddle.utils.unique_name.guard():
        weight = static.create_parameter([1])
        second = paddle.sum(x) + paddle.sum(x)
    with paddle.utils.unique_name.guard(), static.program_guard(static.Program(), static.Program()):
        alone = paddle.static.data("y", [None, 2])
        assert (alone + alone).name == first.name
    assert first.name != second.name and weight.name == "create_parameter_0.w_0"
    exe = paddle.static.Executor()
    values = exe.run(feed={"x": [[1.0, 2.0]]}, fetch_list=[first, second])
    assert values[0].tolist() == [[2.0, 4.0]] and float(values[1]) == 6.0


def test_the_accuracy_of_one_column_is_the_share_of_label_0_as_in_paddlepaddle(capfd):
    x, label = paddle.static.data("x", [None, 1]), paddle.static.data("label", [None, 1], "int64")
    accuracy = paddle.static.accuracy(x, label)
    feed = {"x": [[0.9], [0.1], [0.5], [0.5]], "label": np.array([[1], [0], [0], [0]])}
    assert float(paddle.static.Executor().run(feed=feed, fetch_list=[accuracy])[0]) == 0.75
    assert "share of rows with label 0" in capfd.readouterr().err
