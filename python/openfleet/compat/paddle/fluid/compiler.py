"""`fluid.compiler`: programs that PaddlePaddle compiles for several devices. Here they run as they are."""

from __future__ import annotations

from typing import Any

from openfleet import _native, compat
from openfleet.compat._notices import say_once
from openfleet.static import Program


class _Settings:
    """Settings of an executor. Reading gives what was set, or PaddlePaddle's default."""

    _defaults: dict[str, Any] = {}
    _refused: dict[str, tuple[tuple[Any, ...], str]] = {}
    """Settings that change results: the values that do not, and a hint for all others."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._defaults:
            nearest = _native.nearest(name, list(self._defaults))
            raise AttributeError(f"{type(self).__name__} has no `{name}`\n\nhint: {nearest}")
        allowed, hint = self._refused.get(name, ((value,), ""))
        if value not in allowed:
            raise NotImplementedError(f"`{name} = {value!r}` of {type(self).__name__}\n\nhint: {hint}")
        if value != self._defaults[name]:
            say_once(f"`{name}` of {type(self).__name__} has no effect")
        self.__dict__[name] = value

    def __getattr__(self, name: str) -> Any:
        if name not in self._defaults:
            raise AttributeError(name)
        return self._defaults[name]


class ExecutionStrategy(_Settings):
    """How PaddlePaddle's executor uses threads. Has no effect: threads are those of the dataset and of the op."""

    _defaults = {
        "allow_op_delay": False,
        "dry_run": False,
        "num_iteration_per_drop_scope": 100,
        "num_iteration_per_run": 1,
        "num_threads": 0,
        "use_cuda": False,
        "use_experimental_executor": False,
        "use_thread_barrier": False,
    }
    _refused = {
        "dry_run": ((False,), "a program runs to compute something"),
        "num_iteration_per_run": ((1,), "call `exe.run` once per step"),
    }


class BuildStrategy(_Settings):
    """How PaddlePaddle joins ops and devices. Has no effect: a program runs as one copy on the CPU."""

    class ReduceStrategy:
        """Where gradients of several devices are added."""

        AllReduce, Reduce = 0, 1

    class GradientScaleStrategy:
        """How gradients of several devices are added. There is one device, so only the default is the same."""

        CoeffNumDevice, One, Customized = 0, 1, 2

    _defaults = {
        "async_mode": False,
        "build_cinn_pass": False,
        "cache_runtime_context": False,
        "debug_graphviz_path": "",
        "enable_addto": False,
        "enable_auto_fusion": False,
        "enable_backward_optimizer_op_deps": True,
        "enable_inplace": False,
        "enable_parallel_graph": False,
        "enable_sequential_execution": False,
        "fix_op_run_order": False,
        "fuse_adamw": False,
        "fuse_all_optimizer_ops": False,
        "fuse_all_reduce_ops": True,
        "fuse_bn_act_ops": False,
        "fuse_bn_add_act_ops": True,
        "fuse_broadcast_ops": False,
        "fuse_elewise_add_act_ops": False,
        "fuse_gemm_epilogue": False,
        "fuse_relu_depthwise_conv": False,
        "fused_attention": False,
        "fused_feedforward": False,
        "gradient_scale_strategy": 0,
        "hierarchical_allreduce_inter_nranks": 0,
        "is_distribution": False,
        "memory_optimize": None,
        "nccl_comm_num": 1,
        "num_trainers": 1,
        "reduce_strategy": 0,
        "remove_unnecessary_lock": True,
        "sync_batch_norm": False,
        "trainer_id": 0,
        "trainers_endpoints": [],
        "use_hierarchical_allreduce": False,
    }
    _refused = {
        "gradient_scale_strategy": ((0,), "there is one device: scale the loss instead"),
        "is_distribution": ((False,), "start the job with `fleetrun`, and use `fleet.distributed_optimizer`"),
        "num_trainers": ((1,), "start the job with `fleetrun`, and use `fleet.distributed_optimizer`"),
    }


class CompiledProgram:
    """A program for `exe.run`, which runs it as it is, on the whole batch."""

    def __init__(self, program_or_graph: Any, build_strategy: BuildStrategy | None = None) -> None:
        if not isinstance(program_or_graph, Program):
            raise TypeError(f"CompiledProgram expects a Program, got {type(program_or_graph).__name__}")
        self._program = program_or_graph

    def with_data_parallel(
        self,
        loss_name: str | None = None,
        build_strategy: BuildStrategy | None = None,
        exec_strategy: ExecutionStrategy | None = None,
        share_vars_from: Any = None,
        places: Any = None,
    ) -> CompiledProgram:
        """Returns itself: one process trains one copy. `fleetrun --worker_num` starts several."""
        say_once("`with_data_parallel` has no effect: `fleetrun --worker_num=N` starts N processes that train together")
        return self


def program_of(program: Any) -> Any:
    """The program of a CompiledProgram; anything else as it is."""
    return program._program if isinstance(program, CompiledProgram) else program


__all__ = ["BuildStrategy", "CompiledProgram", "ExecutionStrategy"]
__getattr__ = compat.absent(__name__, __all__)
