"""Collective training of PaddlePaddle 1.x: workers train with each other, without servers."""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from typing import Any

import openfleet.fleet as _fleet
from openfleet import _native, compat
from openfleet.compat.paddle.fluid.incubate.fleet.base.fleet_base import Fleet as _Base
from openfleet.compat.paddle.fluid.incubate.fleet.base.mode import Mode as _Mode
from openfleet.fleet import _job
from openfleet.fleet.optimizer import DistributedOptimizer as _DistributedOptimizer
from openfleet.static import io as _io


class DistributedStrategy:
    """Settings of a collective job of PaddlePaddle 1.x.

    `use_local_sgd`, or `collective_mode = "local_sgd"`, averages the parameters after every step, as PaddlePaddle 1.x
    does; `mode` may be "nccl2" or "collective", which train the same here. A setting without effect on CPUs warns.
    """

    _REFUSED = {
        "forward_recompute": "use a smaller batch; `gradient_merge` of `fleet.DistributedStrategy` joins several",
        "recompute_checkpoints": "use a smaller batch; `gradient_merge` of `fleet.DistributedStrategy` joins several",
        "use_amp": "parameters have 32 bits; `fp16_allreduce` of `fleet.DistributedStrategy` sends gradients with 16",
        "use_dgc": "`fp16_allreduce` of `fleet.DistributedStrategy` halves what is sent",
        "use_dist_fc": "a model has to fit on each rank; servers hold larger tables",
    }
    _WITHOUT_EFFECT = [
        "build_strategy",
        "exec_strategy",
        "fuse_all_reduce_ops",
        "hierarchical_allreduce_inter_nranks",
        "nccl_comm_num",
        "num_threads",
        "sync_batch_norm",
        "use_hierarchical_allreduce",
    ]
    _MODES = {"mode": ("nccl2", "collective"), "collective_mode": (None, "grad_allreduce", "local_sgd")}

    def __init__(self) -> None:
        values: dict[str, Any] = {"mode": "nccl2", "collective_mode": None, "use_local_sgd": False}
        values |= dict.fromkeys(self._REFUSED, False)
        values |= {"nccl_comm_num": 1, "num_threads": 1, "use_hierarchical_allreduce": False}
        object.__setattr__(self, "_values", values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._values:
            raise AttributeError(
                f"DistributedStrategy has no `{name}`\n\nhint: {_native.nearest(name, list(self._values))}"
            )
        return self._values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._REFUSED and value:
            raise NotImplementedError(f"`{name}` of a collective DistributedStrategy\n\nhint: {self._REFUSED[name]}")
        if name in self._MODES and value not in self._MODES[name]:
            known = ", ".join(map(repr, self._MODES[name]))
            raise ValueError(f"`{name}` expects one of {known}, got {value!r}")
        if name not in self._values and name not in self._WITHOUT_EFFECT:
            known = [*self._values, *self._WITHOUT_EFFECT]
            raise AttributeError(f"DistributedStrategy has no `{name}`\n\nhint: {_native.nearest(name, known)}")
        if name in self._WITHOUT_EFFECT and value and value != self._values.get(name):
            warnings.warn(f"`{name}` of a collective DistributedStrategy has no effect on CPUs", stacklevel=2)
        self._values[name] = value

    @property
    def _options(self) -> _native.Options:
        strategy = _fleet.DistributedStrategy()
        strategy.localsgd = bool(self.use_local_sgd) or self.collective_mode == "local_sgd"
        return strategy._options


class CollectiveOptimizer(_DistributedOptimizer):
    """An optimizer whose gradients are averaged over all workers."""

    def __init__(self, optimizer: Any, strategy: Any = None) -> None:
        self.strategy = DistributedStrategy() if strategy is None else strategy
        if not hasattr(self.strategy, "_options"):
            raise TypeError(f"`strategy` expects a DistributedStrategy, got {type(strategy).__name__}")
        super().__init__(optimizer, self.strategy)


class TrainStatus:
    """The last complete epoch of a job; -1 before the first one."""

    def __init__(self, epoch_no: int = -1) -> None:
        self._epoch_no = epoch_no

    def next(self) -> int:
        """Returns the epoch to train next."""
        return self._epoch_no + 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrainStatus) and self._epoch_no == other._epoch_no

    def __hash__(self) -> int:
        return hash(self._epoch_no)


class Collective(_Base):
    """The job of this process, with workers only."""

    def __init__(self) -> None:
        super().__init__(_Mode.COLLECTIVE)

    def init(self, role_maker: Any = None) -> None:
        """Determines the rank of this process."""
        _fleet.init(role_maker, is_collective=True)

    def distributed_optimizer(self, optimizer: Any, strategy: Any = None) -> CollectiveOptimizer:
        """Returns an optimizer whose gradients are averaged over all workers."""
        return CollectiveOptimizer(optimizer, strategy)

    def save_checkpoint(
        self,
        executor: Any,
        path: str,
        train_status: TrainStatus,
        main_program: Any = None,
        fs: Any = None,
        local_cache_path: str = ".cache",
        remain_all_checkpoint: bool = True,
    ) -> None:
        """Saves the model and the number of complete epochs as the next checkpoint in `path`. The first worker saves.

        `remain_all_checkpoint=False` removes the older ones. `local_cache_path` is not needed.
        """
        _check_local(fs)
        if not _fleet.is_first_worker() or _job.current().skips_repeated(f"saving a checkpoint in `{path}`"):
            return
        numbers = _checkpoints(path)
        number = numbers[-1] + 1 if numbers else 0
        _fleet.save_persistables(executor, os.path.join(path, f"checkpoint.{number}"), main_program)
        # The status is written last, so a checkpoint that has one is complete.
        temporary = os.path.join(path, f"status.{number}.tmp")
        with open(temporary, "w") as file:
            json.dump({"epoch_no": train_status._epoch_no}, file)
        os.replace(temporary, os.path.join(path, f"status.{number}.json"))
        if not remain_all_checkpoint:
            _remove(path, numbers)

    def load_checkpoint(
        self,
        executor: Any,
        path: str,
        trainer_id: int = 0,
        main_program: Any = None,
        fs: Any = None,
        local_cache_path: str = ".cache",
        ignore_empty: bool = True,
    ) -> TrainStatus | None:
        """Loads the newest checkpoint in `path` and returns its status. Every worker calls it.

        Without a checkpoint it returns None, or raises FileNotFoundError with `ignore_empty=False`.
        """
        _check_local(fs)
        numbers = _checkpoints(path)
        if not numbers:
            if ignore_empty:
                return None
            raise FileNotFoundError(f"there is no checkpoint in `{path}`")
        _io.load(main_program or _job.program(), os.path.join(path, f"checkpoint.{numbers[-1]}"))
        with open(os.path.join(path, f"status.{numbers[-1]}.json")) as file:
            return TrainStatus(json.load(file)["epoch_no"])

    def clean_redundant_checkpoints(self, root_path: str, fs: Any = None, checkpoint_num: int = 1) -> None:
        """Removes all but the newest `checkpoint_num` checkpoints."""
        _check_local(fs)
        if _fleet.is_first_worker():
            _remove(root_path, _checkpoints(root_path)[: -max(1, checkpoint_num)])

    save_check_point, load_check_point = save_checkpoint, load_checkpoint


def _check_local(fs: Any) -> None:
    if fs is not None and type(fs).__name__ != "LocalFS":
        raise NotImplementedError(
            "`fs` of a checkpoint: files are local\n\nhint: `fleet.save_persistables` writes to `s3://` addresses too"
        )


def _checkpoints(path: str) -> list[int]:
    """The numbers of the complete checkpoints in a directory, oldest first."""
    names = os.listdir(path) if os.path.isdir(path) else []
    return sorted(int(found[1]) for name in names if (found := re.fullmatch(r"status\.(\d+)\.json", name)))


def _remove(path: str, numbers: list[int]) -> None:
    for number in numbers:
        os.remove(os.path.join(path, f"status.{number}.json"))
        shutil.rmtree(os.path.join(path, f"checkpoint.{number}"), ignore_errors=True)


fleet = Collective()
__all__ = ["Collective", "CollectiveOptimizer", "DistributedStrategy", "TrainStatus", "fleet"]
__getattr__ = compat.absent(__name__, __all__)
