"""Role makers: where a process gets its role from."""

from __future__ import annotations

from collections.abc import Sequence

from .. import _native


class Role:
    """The roles of a process: `WORKER` reads data and computes gradients, `SERVER` keeps tables.

    >>> from openfleet import fleet
    >>> fleet.Role.SERVER
    2
    """

    WORKER = 1
    SERVER = 2


class RoleMakerBase:
    """Base class of role makers.

    >>> from openfleet import fleet
    >>> isinstance(fleet.PaddleCloudRoleMaker(), fleet.role.RoleMakerBase)
    True
    """

    def _native(self) -> _native.RoleMaker | None:
        raise NotImplementedError


class UserDefinedRoleMaker(RoleMakerBase):
    """Takes the role from arguments, for scripts that know their cluster.

    Args:
        current_id: The rank of this process within its role, from 0.
        role: `Role.WORKER` or `Role.SERVER`.
        worker_num: The number of workers.
        server_endpoints: The `host:port` of every server, in rank order.
        worker_endpoints: The `host:port` of every worker, in rank order.
        is_collective: Whether the job has workers only.

    Raises:
        ValueError: There is no such role.
        TypeError: `server_endpoints` is one string.

    >>> from openfleet import fleet
    >>> fleet.init(fleet.UserDefinedRoleMaker(0, fleet.Role.WORKER, 2, ["10.0.0.1:6001"]))
    >>> fleet.is_worker(), fleet.worker_num()
    (True, 2)
    """

    def __init__(
        self,
        current_id: int = 0,
        role: int = Role.WORKER,
        worker_num: int = 0,
        server_endpoints: Sequence[str] = (),
        worker_endpoints: Sequence[str] = (),
        is_collective: bool = False,
    ) -> None:
        if role not in (Role.WORKER, Role.SERVER):
            raise ValueError(f"`role` expects Role.WORKER or Role.SERVER, got {role!r}")
        if isinstance(server_endpoints, str):
            raise TypeError("`server_endpoints` expects a list of `host:port`, got one str")
        self._arguments = current_id, role == Role.SERVER, worker_num, list(server_endpoints), list(worker_endpoints)
        self._is_collective = is_collective

    def _native(self) -> _native.RoleMaker | None:
        if self._is_collective:
            return _native.RoleMaker.user_defined_collective(self._arguments[0], self._arguments[4])
        return _native.RoleMaker.user_defined(*self._arguments)


class UserDefinedCollectiveRoleMaker(RoleMakerBase):
    """Takes the rank in a collective job from arguments.

    Args:
        current_id: The rank of this process, from 0.
        worker_endpoints: The `host:port` of every worker, in rank order. The first one is where they meet.

    Raises:
        TypeError: `worker_endpoints` is one string.

    >>> from openfleet import fleet
    >>> fleet.init(fleet.UserDefinedCollectiveRoleMaker(0, ["127.0.0.1:6170"]))
    >>> fleet.worker_num()
    1
    """

    _is_collective = True

    def __init__(self, current_id: int = 0, worker_endpoints: Sequence[str] = ()) -> None:
        if isinstance(worker_endpoints, str):
            raise TypeError("`worker_endpoints` expects a list of `host:port`, got one str")
        self._arguments = current_id, list(worker_endpoints)

    def _native(self) -> _native.RoleMaker | None:
        return _native.RoleMaker.user_defined_collective(*self._arguments)


class PaddleCloudRoleMaker(RoleMakerBase):
    """Takes the role from the environment: `TRAINING_ROLE` and related variables, or those of a scheduler.

    >>> from openfleet import fleet
    >>> fleet.init(fleet.PaddleCloudRoleMaker())
    >>> fleet.is_worker()
    True
    """

    def __init__(self, is_collective: bool = False) -> None:
        self._is_collective = is_collective

    def _native(self) -> _native.RoleMaker | None:
        # Without a role maker the native side reads the environment.
        return None


class MPISymetricRoleMaker(RoleMakerBase):
    """Takes the role from the rank in an MPI job: even ranks are servers, odd ranks are workers.

    >>> from openfleet.fleet.role import MPISymetricRoleMaker
    >>> role_maker = MPISymetricRoleMaker()
    """

    def _native(self) -> _native.RoleMaker | None:
        return _native.RoleMaker.mpi()
