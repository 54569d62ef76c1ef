"""`import paddle` under `--compat`: which names and arguments exist, and how missing ones are reported."""

import functools
import importlib
import inspect
import subprocess
import sys

import pytest

import openfleet.compat.paddle as paddle
from openfleet import compat


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import paddle.fluid as fluid; fluid.layers.conv3d(1)", "`paddle.fluid.layers.conv3d` is not available"),
        ("import paddle; paddle.concta([])", "did you mean `concat`"),
        ("import paddle.vision; paddle.vision.ops.nms()", "`paddle.vision.ops.nms` is not available"),
        ("from paddle.vision import ops; ops()", "the module `paddle.vision` is not part of"),
        ("import paddle; print(1 if paddle.is_not_there else 2)", "`paddle.is_not_there` is not available"),
        (
            "from paddle.fluid.transpiler.distribute_transpiler import DistributeTranspilerConfig as C; C().sync = 1",
            "has no `sync`",
        ),
    ],
)
def test_a_missing_name_raises_with_the_most_similar_name(tmp_path, code, message):
    (tmp_path / "script.py").write_text(code)
    command = [sys.executable, "-m", "openfleet.compat", str(tmp_path / "script.py")]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 1
    assert "NotImplementedError" in run.stderr and message in run.stderr


# Every name that the public PaddlePaddle models import, by module.
NAMES = {
    "": """abs add add_n arange argmax batch bmm cast clip concat create_parameter distributed divide einsum
        enable_static equal exp flatten fluid full full_like gather greater_than io is_compiled_with_cinn
        is_compiled_with_cuda is_compiled_with_distribute is_compiled_with_npu is_compiled_with_rocm
        is_compiled_with_xpu log masked_select matmul mean multiply nn ones ones_like optimizer ParamAttr rand
        regularizer reshape scale seed set_device shape slice split sqrt square squeeze stack static subtract sum
        tanh tile to_tensor topk transpose tril triu unsqueeze where zeros zeros_like""",
    "nn": """BatchNorm BatchNorm1D BCELoss BCEWithLogitsLoss CrossEntropyLoss Dropout Embedding Layer LayerList
        LayerNorm LeakyReLU Linear ParameterList PReLU ReLU Sequential Sigmoid Softmax Tanh functional initializer""",
    "nn.functional": """binary_cross_entropy binary_cross_entropy_with_logits cross_entropy log_loss normalize
        relu sequence_mask sigmoid softmax tanh""",
    "nn.initializer": "Constant KaimingUniform Normal TruncatedNormal Uniform XavierNormal XavierUniform",
    "regularizer": "L1Decay L2Decay",
    "static": """BuildStrategy CompiledProgram ExecutionStrategy Print create_global_var cuda_places device_guard
        load_vars save_vars auc data default_main_program default_startup_program Executor InputSpec load
        load_inference_model load_program_state nn program_guard save save_inference_model set_program_state""",
    "static.nn": "batch_norm continuous_value_model embedding fc layer_norm sequence_pool sparse_embedding",
    "static.nn.sequence_lod": "sequence_mask sequence_pool",
    "static.io": "is_persistable load_vars save_vars",
    "common_ops_import": "Variable core",
    "base": "core framework layers DatasetFactory Executor",
    "base.core": "EOFException VarDesc",
    "incubate.layers": "fused_seqpool_cvm",
    "incubate.distributed.fleet.fleet_util": "FleetUtil",
    "jit": "load not_to_static save to_static",
    "distributed.fleet.utils": "DistributedInfer HDFSClient LocalFS fs ps_util",
    "distributed.fleet.utils.fs": """ExecuteError FS FSFileExistsError FSFileNotExistsError FSShellCmdAborted FSTimeOut
        HDFSClient LocalFS""",
    "distributed.fleet.utils.ps_util": "DistributedInfer",
    "distributed.fleet.base.distributed_strategy": "DistributedStrategy",
    "distributed": """CountFilterEntry InMemoryDataset ParallelEnv ProbabilityEntry QueueDataset ReduceOp ShowClickEntry
        all_gather all_reduce barrier broadcast fleet get_rank get_world_size init_parallel_env reduce""",
    "distributed.fleet": """DistributedStrategy MultiSlotDataGenerator MultiSlotStringDataGenerator
        PaddleCloudRoleMaker Role UserDefinedRoleMaker distributed_optimizer init init_server init_worker
        is_first_worker is_server is_worker metrics run_server stop_worker util""",
    "optimizer": "Adadelta Adagrad Adam AdamW Adamax Lamb Momentum RMSProp SGD lr",
    "optimizer.lr": """ExponentialDecay InverseTimeDecay LinearWarmup MultiStepDecay NaturalExpDecay NoamDecay
        PiecewiseDecay PolynomialDecay StepDecay""",
    "io": "BatchSampler DataLoader Dataset IterableDataset",
    "fluid": """BuildStrategy CompiledProgram ExecutionStrategy PyReader compiler device_guard dygraph metrics profiler
        load load_program_state save set_program_state CPUPlace DataFeeder DatasetFactory DistributeTranspilerConfig
        Executor LoDTensor ParamAttr
        Program append_backward backward clip core create_lod_tensor data default_main_program
        default_startup_program embedding executor framework global_scope initializer io layers optimizer param_attr
        program_guard regularizer scope_guard transpiler unique_name""",
    "fluid.layers": """argmax argmin argsort assign conv2d create_global_var create_py_reader_by_data cumsum
        double_buffer elementwise_pow elu fill_constant_batch_size_like floor gather_nd gelu increment label_smooth
        linear_lr_warmup polynomial_decay pool2d Print py_reader range read_file reduce_all reduce_prod round rsqrt
        sin softplus softsign swish unstack accuracy auc batch_norm cast concat continuous_value_model cross_entropy
        data dropout
        elementwise_add elementwise_mul embedding fc fill_constant layer_norm log_loss matmul mean noam_decay
        reduce_mean reduce_sum relu reshape sequence_pool sigmoid softmax softmax_with_cross_entropy split square
        topk""",
    "fluid.optimizer": """Adadelta AdadeltaOptimizer Adagrad AdagradOptimizer Adam AdamOptimizer Adamax AdamaxOptimizer
        DecayedAdagrad DecayedAdagradOptimizer Ftrl LambOptimizer Momentum RMSProp SGD SGDOptimizer""",
    "fluid.layers.learning_rate_scheduler": "noam_decay polynomial_decay",
    "fluid.layers.ops": "cos floor sigmoid",
    "fluid.layers.tensor": "assign create_global_var fill_constant",
    "fluid.compiler": "BuildStrategy CompiledProgram ExecutionStrategy",
    "fluid.core": "EOFException EnforceNotMet VarDesc get_cuda_device_count",
    "fluid.framework": "Parameter Variable cuda_places",
    "fluid.clip": "GradientClipByGlobalNorm GradientClipByNorm GradientClipByValue",
    "fluid.metrics": "Accuracy Auc",
    "fluid.profiler": "profiler start_profiler stop_profiler",
    "fluid.io": """PyReader is_parameter is_persistable DataLoader batch load_inference_model load_persistables
        save_inference_model save_params
        save_persistables save_vars shuffle""",
    "fluid.initializer": "Constant MSRA Normal TruncatedNormal Uniform Xavier ConstantInitializer",
    "distributed.fleet.base.role_maker": "PaddleCloudRoleMaker Role UserDefinedRoleMaker",
    "distributed.fleet.data_generator": "MultiSlotDataGenerator MultiSlotStringDataGenerator",
    "fluid.incubate.data_generator": "MultiSlotDataGenerator MultiSlotStringDataGenerator",
    "reader": "batch buffered cache chain compose firstn map_readers shuffle xmap_readers",
    "fluid.incubate.fleet.base.role_maker": "MPISymetricRoleMaker PaddleCloudRoleMaker Role UserDefinedRoleMaker",
    "fluid.incubate.fleet.base.fleet_base": "DistributedOptimizer Fleet Mode",
    "fluid.incubate.fleet.collective": "Collective CollectiveOptimizer DistributedStrategy TrainStatus fleet",
    "fluid.incubate.fleet.parameter_server.distribute_transpiler": """DistributeTranspilerConfig StrategyFactory
        TranspilerOptimizer fleet""",
    "fluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy": """AsyncStrategy
        DistributedStrategy GeoStrategy HalfAsyncStrategy StrategyFactory SyncStrategy TrainerRuntimeConfig""",
    "fluid.incubate.fleet.utils.fleet_util": "FleetUtil",
    "fluid.incubate.fleet.utils.fs": "HDFSClient LocalFS",
    "fluid.incubate.fleet.utils.hdfs": "HDFSClient",
    "fluid.transpiler.distribute_transpiler": "DistributeTranspilerConfig HashName RoundRobin",
    "fluid.transpiler.ps_dispatcher": "HashName PSDispatcher RoundRobin",
    "utils.profiler": "start_profiler stop_profiler",
}


@pytest.mark.parametrize("module", NAMES)
def test_names_that_scripts_import_exist(module):
    where = importlib.import_module(f"openfleet.compat.paddle.{module}".rstrip("."))
    for name in NAMES[module].split():
        assert type(getattr(where, name)) is not compat._Absent, name


# Arguments and their defaults as PaddlePaddle documents them; functions may have more arguments after them.
ARGUMENTS = {
    "batch": "reader, batch_size, drop_last=False",
    "concat": "x, axis=0, name=None",
    "create_parameter": "shape, dtype, name=None, attr=None, is_bias=False, default_initializer=None",
    "reshape": "x, shape, name=None",
    "cast": "x, dtype",
    "mean": "x, axis=None, keepdim=False, name=None",
    "sum": "x, axis=None, dtype=None, keepdim=False, name=None",
    "matmul": "x, y, transpose_x=False, transpose_y=False, name=None",
    "transpose": "x, perm, name=None",
    "unsqueeze": "x, axis, name=None",
    "squeeze": "x, axis=None, name=None",
    "split": "x, num_or_sections, axis=0, name=None",
    "stack": "x, axis=0, name=None",
    "tile": "x, repeat_times, name=None",
    "clip": "x, min=None, max=None, name=None",
    "gather": "x, index, axis=0, name=None",
    "slice": "input, axes, starts, ends",
    "scale": "x, scale=1.0, bias=0.0, bias_after_scale=True, act=None, name=None",
    "flatten": "x, start_axis=0, stop_axis=-1, name=None",
    "full": "shape, fill_value, dtype=None, name=None",
    "arange": "start=0, end=None, step=1, dtype=None, name=None",
    "where": "condition, x=None, y=None, name=None",
    "tril": "x, diagonal=0, name=None",
    "to_tensor": "data, dtype=None, place=None, stop_gradient=True",
    "rand": "shape, dtype=None, name=None",
    "masked_select": "x, mask, name=None",
    "topk": "x, k, axis=None, largest=True, sorted=True, name=None",
    "nn.Embedding": "num_embeddings, embedding_dim, padding_idx=None, sparse=False, weight_attr=None, name=None",
    "nn.Linear": "in_features, out_features, weight_attr=None, bias_attr=None, name=None",
    "nn.Dropout": "p=0.5, axis=None, mode='upscale_in_train', name=None",
    "nn.BatchNorm1D": "num_features, momentum=0.9, epsilon=1e-05, weight_attr=None, bias_attr=None, data_format='NCL'",
    "nn.LayerNorm": "normalized_shape, epsilon=1e-05, weight_attr=None, bias_attr=None, name=None",
    "nn.PReLU": "num_parameters=1, init=0.25, weight_attr=None, data_format='NCHW', name=None",
    "nn.BCELoss": "weight=None, reduction='mean', name=None",
    "nn.CrossEntropyLoss": "weight=None, ignore_index=-100, reduction='mean', soft_label=False, axis=-1",
    "nn.functional.normalize": "x, p=2, axis=1, epsilon=1e-12, name=None",
    "nn.functional.dropout": "x, p=0.5, axis=None, training=True, mode='upscale_in_train', name=None",
    "nn.functional.sequence_mask": "x, maxlen=None, dtype='int64', name=None",
    "nn.initializer.Normal": "mean=0.0, std=1.0, name=None",
    "nn.initializer.TruncatedNormal": "mean=0.0, std=1.0, name=None",
    "nn.initializer.Uniform": "low=-1.0, high=1.0, name=None",
    "nn.initializer.KaimingUniform": "fan_in=None, negative_slope=0.0, nonlinearity='relu'",
    "static.data": "name, shape, dtype=None, lod_level=0",
    "static.create_global_var": "shape, value, dtype, persistable=False, force_cpu=False, name=None",
    "static.Print": "input, first_n=-1, message=None, summarize=20, print_tensor_name=True, print_tensor_type=True",
    "no_grad": "func=None",
    "distributed.fleet.utils.HDFSClient": "hadoop_home, configs, time_out=300000, sleep_inter=1000",
    "distributed.fleet.utils.DistributedInfer": "main_program=None, startup_program=None",
    "distributed.fleet.metrics.auc": "stat_pos, stat_neg, scope=None, util=None",
    "distributed.fleet.metrics.sum": "input, scope=None, util=None",
    "fluid.io.PyReader": "feed_list=None, capacity=None, use_double_buffer=True, iterable=True, return_list=False",
    "fluid.layers.py_reader": "capacity, shapes, dtypes, lod_levels=None, name=None, use_double_buffer=True",
    "static.auc": "input, label, curve='ROC', num_thresholds=4095, topk=1, slide_steps=1, ins_tag_weight=None",
    "static.nn.fc": "x, size, num_flatten_dims=1, weight_attr=None, bias_attr=None, activation=None, name=None",
    "static.nn.embedding": "input, size, is_sparse=False, is_distributed=False, padding_idx=None, param_attr=None",
    "static.nn.sparse_embedding": """input, size, padding_idx=None, is_test=False, entry=None,
        table_class='MemorySparseTable', param_attr=None, dtype='float32', slot=None""",
    "static.nn.continuous_value_model": "input, cvm, use_cvm=True",
    "distributed.CountFilterEntry": "count_filter",
    "distributed.ProbabilityEntry": "probability",
    "distributed.ShowClickEntry": "show_name, click_name",
    "optimizer.Adam": "learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-08, parameters=None, weight_decay=None",
    "optimizer.AdamW": """learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-08, parameters=None,
        weight_decay=0.01, lr_ratio=None, apply_decay_param_fun=None, grad_clip=None, lazy_mode=False,
        multi_precision=False, name=None""",
    "optimizer.Lamb": """learning_rate=0.001, lamb_weight_decay=0.01, beta1=0.9, beta2=0.999, epsilon=1e-06,
        parameters=None, grad_clip=None, exclude_from_weight_decay_fn=None, multi_precision=False""",
    "optimizer.Adadelta": "learning_rate=0.001, epsilon=1e-06, rho=0.95, parameters=None, weight_decay=None",
    "optimizer.Adamax": "learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-08, parameters=None",
    "fluid.optimizer.DecayedAdagrad": "learning_rate, decay=0.95, epsilon=1e-06, parameter_list=None",
    "fluid.optimizer.LambOptimizer": """learning_rate=0.001, lamb_weight_decay=0.01, beta1=0.9, beta2=0.999,
        epsilon=1e-06, parameter_list=None, regularization=None, grad_clip=None,
        exclude_from_weight_decay_fn=None, name=None""",
    "fluid.layers.noam_decay": "d_model, warmup_steps, learning_rate=1.0",
    "optimizer.lr.PolynomialDecay": "learning_rate, decay_steps, end_lr=0.0001, power=1.0, cycle=False, last_epoch=-1",
    "io.DataLoader": "dataset, feed_list=None, places=None, return_list=True, batch_sampler=None, batch_size=1",
    "fluid.layers.data": "name, shape, append_batch_size=True, dtype='float32', lod_level=0, type=None",
    "fluid.layers.fc": "input, size, num_flatten_dims=1, param_attr=None, bias_attr=None, act=None, name=None",
    "fluid.layers.embedding": "input, size, is_sparse=False, is_distributed=False, padding_idx=None, param_attr=None",
    "fluid.optimizer.Adam": "learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-08, parameter_list=None",
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_have_the_names_and_defaults_of_paddlepaddle(name):
    thing = functools.reduce(getattr, name.split("."), paddle)
    wanted = ARGUMENTS[name].split(",")
    got = [str(p.replace(annotation=p.empty)) for p in inspect.signature(thing).parameters.values()]
    wanted = [word.strip() for word in wanted]
    if name in ("create_parameter",):
        got = [word.replace("dtype='float32'", "dtype") for word in got]
    assert got[: len(wanted)] == wanted


# Calls of names that are not here. Naming them is allowed: scripts import more than they use.
ABSENT = {
    "paddle.conv3d": lambda: paddle.conv3d(),
    "paddle.nn.Conv3D": lambda: paddle.nn.Conv3D(3, 4, 3),
    "paddle.nn.Conv2DTranspose": lambda: type("Own", (paddle.nn.Conv2DTranspose,), {})(),
    "paddle.nn.TransformerDecoder": lambda: paddle.nn.TransformerDecoder(),
    "paddle.nn.functional.grid_sample": lambda: paddle.nn.functional.grid_sample(),
    "paddle.nn.initializer.Orthogonal": lambda: paddle.nn.initializer.Orthogonal(),
    "paddle.static.nn.while_loop": lambda: paddle.static.nn.while_loop(),
    "paddle.static.IpuStrategy": lambda: paddle.static.IpuStrategy(),
    "paddle.optimizer.LBFGS": lambda: paddle.optimizer.LBFGS(0.1),
    "paddle.optimizer.lr.ReduceOnPlateau": lambda: paddle.optimizer.lr.ReduceOnPlateau(0.1),
    "paddle.distributed.spawn": lambda: paddle.distributed.spawn(print),
    "paddle.distributed.fleet.recompute": lambda: paddle.distributed.fleet.recompute(print),
    "paddle.disable_static": lambda: paddle.disable_static(),
    "paddle.fluid.layers.dynamic_lstm": lambda: paddle.fluid.layers.dynamic_lstm(),
    "paddle.fluid.dygraph": lambda: paddle.fluid.dygraph.guard(),
    "paddle.vision.transforms": lambda: importlib.import_module("openfleet.compat.paddle").vision.transforms.Resize(),
}


@pytest.mark.parametrize("name", ABSENT)
def test_a_missing_name_raises_not_implemented_error(name):
    with pytest.raises(NotImplementedError) as raised:
        ABSENT[name]()
    assert f"`{name}" in str(raised.value) and "hint: " in str(raised.value)


def test_a_module_is_found_as_an_attribute_of_its_package():
    code = "import paddle; print(paddle.fluid.incubate.fleet.utils.hdfs.HDFSClient, paddle.distributed.launch.main)"
    run = subprocess.run([sys.executable, "-c", f"from openfleet import compat; compat.install(); {code}"])
    assert run.returncode == 0
    assert type(paddle.vision) is compat._Absent


@pytest.mark.parametrize(
    "name",
    ["framework.io_utils", "nn.layer.transformer", "fluid.dygraph.parallel", "reader.decorator", "no.such.module"],
)
def test_an_import_of_a_module_that_is_missing_does_not_stop_a_script(tmp_path, name):
    (tmp_path / "script.py").write_text(
        f"from paddle.{name} import thing\nimport paddle.{name} as m\nprint('RAN')\nm.f()"
    )
    command = [sys.executable, "-m", "openfleet.compat", str(tmp_path / "script.py")]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.stdout == "RAN\n" and f"NotImplementedError: `paddle.{name}.f` is not available" in run.stderr, (
        run.stderr
    )


def test_a_class_can_be_tested_against_a_name_that_is_missing():
    assert not isinstance(3, paddle.nn.Conv3D) and paddle.nn.Conv3D is paddle.nn.Conv3D
    assert not hasattr(paddle.nn.Conv3D, "__wrapped__")


def test_a_collective_strategy_of_the_first_version_refuses_by_name_what_is_not_there(job_of_its_own):
    from openfleet.compat.paddle.fluid.incubate.fleet.collective import DistributedStrategy, fleet

    fleet.init(paddle.fluid.incubate.fleet.base.role_maker.UserDefinedCollectiveRoleMaker(0, ["127.0.0.1:1"]))
    with pytest.raises(TypeError, match="expects an optimizer"):
        fleet.distributed_optimizer("SGD")
    strategy = DistributedStrategy()
    for name in ("use_dgc", "use_amp", "forward_recompute", "use_dist_fc"):
        assert getattr(strategy, name) is False
        with pytest.raises(NotImplementedError, match=f"`{name}` of a collective DistributedStrategy\n\nhint: "):
            setattr(strategy, name, True)
    with pytest.raises(ValueError, match="`collective_mode` expects one of None, 'grad_allreduce', 'local_sgd'"):
        strategy.collective_mode = "ring"
    with pytest.raises(AttributeError, match="`use_local_sgd`"):
        strategy.use_localsgd = True


@pytest.mark.parametrize(
    "ask",
    [lambda: paddle.set_device("gpu:0"), lambda: paddle.CUDAPlace(1), lambda: paddle.fluid.cuda_places([0])[0]],
)
def test_a_script_that_asks_for_a_gpu_is_told_once_that_it_trains_on_cpus(ask, capfd, monkeypatch):
    monkeypatch.setattr(paddle._devices, "_is_said", False)
    for _ in range(2):
        assert isinstance(ask(), paddle.CPUPlace)
    assert capfd.readouterr().err.count("there is no GPU support here, so this process trains on CPUs") == 1


SCRIPT = """
import os, subprocess, sys
import paddle
child = subprocess.run([sys.executable, "-c", "import paddle; print(paddle.__name__)"], capture_output=True, text=True)
print("RAN", paddle.__name__, child.stdout.strip(), sys.argv[1:], __name__)
"""


@pytest.mark.parametrize(
    "options",
    [
        ["--compat", "--server_num=1", "--worker_num=1"],
        ["--server_num=1", "--compat", "--worker_num=1"],
        ["--server_num", "1", "--worker_num", "1", "--compat"],
    ],
)
def test_compat_is_accepted_anywhere_among_the_options_of_fleetrun(tmp_path, options):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "openfleet.launch", *options, "script.py", "--epochs", "3"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    said = run.stdout + run.stderr
    where = "openfleet.compat.paddle"
    assert said.count(f"RAN {where} {where} ['--epochs', '3'] __main__") == 2, said


def test_compat_after_the_script_is_an_argument_of_the_script(tmp_path):
    (tmp_path / "script.py").write_text("import sys\nprint('RAN', sys.argv[1:], 'openfleet.compat' in sys.modules)\n")
    command = [sys.executable, "-m", "openfleet.launch", "--server_num=1", "--worker_num=1", "script.py", "--compat"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (run.stdout + run.stderr).count("RAN ['--compat'] False") == 2, run.stdout + run.stderr


def test_a_module_runs_under_compat_too(tmp_path):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "openfleet.compat", "-m", "pack.train", "-m", "x"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "['-m', 'x'] __main__" in run.stdout, run.stderr
