"""`DistributedInfer`: evaluates a program with the parameters of a job's servers."""

from __future__ import annotations

import os
from typing import Any

import openfleet.fleet as _fleet
from openfleet import compat
from openfleet.fleet import _job
from openfleet.static import Program, default_main_program, default_startup_program, optimizer


class DistributedInfer:
    """Evaluates a program with the parameters of a job's servers, while the job trains or on its own.

    Here any program that a worker runs reads the servers' rows, so the program for evaluation is a copy without
    updates: `main_program.clone(for_test=True)`.
    """

    def __init__(self, main_program: Program | None = None, startup_program: Program | None = None) -> None:
        main_program = default_main_program() if main_program is None else main_program
        self.origin_main_program = main_program.clone(for_test=True)
        self.origin_startup_program = default_startup_program() if startup_program is None else startup_program

    def init_distributed_infer_env(
        self, exe: Any, loss: Any, role_maker: Any = None, dirname: str | os.PathLike[str] | None = None
    ) -> None:
        """Starts a job that only evaluates, from the checkpoint `dirname`. Does nothing in a job that runs already.

        On a server it returns when all workers have stopped.
        """
        if _job.joined() is not None:
            return
        _fleet.init(role_maker)
        # Tables belong to an optimizer. Its updates are not in the program for evaluation, so nothing is trained.
        _fleet.distributed_optimizer(optimizer.SGD(0.01)).minimize(loss, self.origin_startup_program)
        if _fleet.is_server():
            _fleet.init_server(dirname)
            _fleet.run_server()
            return
        exe.run(self.origin_startup_program)
        _fleet.init_worker()
        if dirname is not None and _fleet.server_num() == 0:
            _fleet.load_model(dirname)

    def get_dist_infer_program(self) -> Program:
        """Returns the program to evaluate with."""
        return self.origin_main_program


__all__ = ["DistributedInfer"]
__getattr__ = compat.absent(__name__, __all__)
