"""The API of OpenKS: its factory, classes in both spellings, strategies, and its launcher."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from openfleet import static
from openks_distributed import KSDistributedFactory
from openks_distributed.base import BaseDistributed, RoleMaker, mode
from openks_distributed.cpu import CPUDistributed
from openks_distributed.cpu.strategy import (
    ASyncModelConfig,
    CPUStrategy,
    GeoSGDModelConfig,
    HalfSyncModelConfig,
    SyncModeConfig,
)
from openks_distributed.gpu import GPUDistributed


@pytest.mark.parametrize(
    ("flag", "kind"),
    [
        (0, CPUDistributed.CPUDistributedAlgorithm),
        ("cpu", CPUDistributed.CPUDistributedAlgorithm),
        (1, GPUDistributed.GPUDistributedAlgorithm),
        ("gpu", GPUDistributed.GPUDistributedAlgorithm),
    ],
)
def test_the_flag_selects_the_kind_of_job(flag, kind):
    algorithm = KSDistributedFactory.instantiation(flag=flag)
    assert isinstance(algorithm, kind) and isinstance(algorithm, BaseDistributed.BaseDistributedAlgorithm)
    assert KSDistributedFactory.instantiation(flag=flag) is algorithm


@pytest.mark.parametrize("flag", [2, -1, "0", "CPU", None, True, 1.0])
def test_any_other_flag_is_an_error(flag):
    with pytest.raises(ValueError, match='`flag` expects 0 or "cpu", 1 or "gpu", got'):
        KSDistributedFactory.instantiation(flag=flag)


def test_classes_have_the_names_of_the_document_in_both_spellings():
    assert BaseDistributed.BaseDistribuedOptimizer is BaseDistributed.BaseDistributedOptimizer
    assert issubclass(CPUDistributed.CPUDistributedOptimizer, BaseDistributed.BaseDistributedOptimizer)
    assert issubclass(GPUDistributed.GPUDistributedOptimizer, BaseDistributed.BaseDistributedOptimizer)
    for algorithm in (CPUDistributed.CPUDistributedAlgorithm, GPUDistributed.GPUDistributedAlgorithm):
        assert issubclass(algorithm, BaseDistributed.BaseDistributedAlgorithm)
    assert mode.Mode.COLLECTIVE != mode.Mode.TRANSPILER
    for name in ("PaddleCloudRoleMaker", "UserDefinedRoleMaker", "MPISymetricRoleMaker", "Role"):
        assert hasattr(RoleMaker, name)


def test_both_spellings_of_the_packages_are_the_same_modules():
    import openKS_distributed.base.BaseDistributed as base
    import openKS_strategy.gpu as gpu
    from openKS_distributed.cpu.CPUDistributed import CPUDistributedAlgorithm
    from openKS_strategy.cpu import CPUStrategy as other

    from openKS_distributed import KSDistributedFactory as factory
    from openks_distributed.gpu.strategy import GPUStrategy
    from openks_strategy.cpu import CPUStrategy as strategy

    assert factory is KSDistributedFactory and base is BaseDistributed
    assert CPUDistributedAlgorithm is CPUDistributed.CPUDistributedAlgorithm
    assert strategy is other is CPUStrategy and gpu.GPUStrategy is GPUStrategy


@pytest.mark.parametrize("spelling", ["distributed_optimizer", "distributed_optimzier"])
def test_one_worker_without_servers_trains(spelling, job_of_its_own):
    algorithm = KSDistributedFactory.instantiation(flag=1)
    algorithm.init(RoleMaker.UserDefinedRoleMaker(worker_endpoints=["127.0.0.1:1"], is_collective=True))
    loss = static.nn.mean(static.nn.fc(static.data("x", [None, 2]), 1))
    optimizer = getattr(algorithm, spelling)(static.optimizer.SGD(0.1))
    assert isinstance(optimizer, BaseDistributed.BaseDistribuedOptimizer)
    optimizer.minimize(loss)
    exe = static.Executor()
    exe.run(algorithm.startup_program)
    feed = {"x": np.ones((3, 2))}
    before, after = (exe.run(algorithm.main_program, feed=feed, fetch_list=[loss])[0] for _ in range(2))
    assert after < before
    algorithm.stop_worker()


@pytest.mark.parametrize(
    ("config", "mode_name"),
    [
        (SyncModeConfig(), "mode sync"),
        (HalfSyncModelConfig(), "mode half_async"),
        (ASyncModelConfig(), "mode async"),
        (GeoSGDModelConfig(50), "mode geo: push differences every 50 batches"),
    ],
)
def test_strategies_choose_the_mode(config, mode_name):
    assert str(CPUStrategy([config]).config()).startswith(mode_name)


def test_collective_strategies_choose_the_update_and_warn_of_what_has_no_effect(job_of_its_own, capfd):
    from openks_strategy.gpu import GPUStrategy, GradAllreduce, HierarchicalAllreduce, LocalSGD, NumThreadsConfig

    algorithm = KSDistributedFactory.instantiation(flag="gpu")
    algorithm.init(RoleMaker.UserDefinedCollectiveRoleMaker(0, ["127.0.0.1:1"]))
    with pytest.warns(UserWarning, match="`num_threads` .* has no effect on CPUs"):
        optimizer = GPUStrategy([NumThreadsConfig(4)], [GradAllreduce()]).setup_optimizer(
            algorithm, static.optimizer.SGD(0.1)
        )
    assert (optimizer.strategy.num_threads, optimizer.strategy.collective_mode) == (4, "grad_allreduce")
    GPUStrategy([], [LocalSGD()]).setup_optimizer(algorithm, static.optimizer.SGD(0.1))
    said = capfd.readouterr().err
    assert "every step applies the mean" in said and "ranks train alone and average their parameters every step" in said
    with pytest.warns(UserWarning, match="`use_hierarchical_allreduce` .* has no effect"):
        GPUStrategy([], [HierarchicalAllreduce()]).config()
    with pytest.raises(TypeError, match="expects configurations, got str"):
        GPUStrategy(["nccl2"])


def test_the_launcher_passes_the_arguments_of_the_script_on(tmp_path):
    (tmp_path / "script.py").write_text(
        "import os, sys, paddle\nprint('RAN', os.environ['TRAINING_ROLE'], sys.argv[1:])\n"
    )
    command = [sys.executable, "-m", "openks_launcher", "--mode", "cpu", "--worker_num", "2", "--server_num", "2"]
    run = subprocess.run(
        [*command, "script.py", "--mode", "mine", "-x"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    said = run.stdout + run.stderr
    for role in ("PSERVER", "TRAINER"):
        assert said.count(f"RAN {role} ['--mode', 'mine', '-x']") == 2, said
    wrong = subprocess.run([*command[:3], "--mode", "tpu", "script.py"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 2 and "invalid choice: 'tpu'" in wrong.stderr
    servers = ["--mode", "gpu", "--server_num", "2", "script.py"]
    without = subprocess.run([*command[:3], *servers], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert without.returncode == 0 and "warning: --server_num has no effect in mode gpu" in without.stderr
    assert (without.stdout + without.stderr).count("RAN TRAINER []") == 2


def test_the_wheel_lists_every_package():
    root = Path(__file__).parents[2]
    named = re.search(r"python-packages = \[(.*)\]", (root / "pyproject.toml").read_text())[1]
    packages = sorted(path.parent.name for path in (root / "python").glob("*/__init__.py"))
    assert sorted(re.findall(r'"(\w+)"', named)) == packages
