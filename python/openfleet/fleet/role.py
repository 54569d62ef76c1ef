"""Role makers: how a process finds out what it is."""

from __future__ import annotations

from collections.abc import Sequence

from .. import _native


class Role:
    """What a process does."""

    WORKER = 1
    SERVER = 2


class RoleMakerBase:
    """How a process finds out what it is."""

    def _native(self) -> _native.RoleMaker | None:
        raise NotImplementedError


class UserDefinedRoleMaker(RoleMakerBase):
    """The role from arguments, as a script that knows its cluster writes them."""

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


class PaddleCloudRoleMaker(RoleMakerBase):
    """The role from the environment: `TRAINING_ROLE` and its companions, or whatever scheduler started this process."""

    def __init__(self, is_collective: bool = False) -> None:
        self._is_collective = is_collective

    def _native(self) -> _native.RoleMaker | None:
        # The environment is what a process without a role maker looks at.
        return None


class MPISymetricRoleMaker(RoleMakerBase):
    """Even ranks of an MPI job are servers, odd ranks workers."""

    def _native(self) -> _native.RoleMaker | None:
        return _native.RoleMaker.mpi()
