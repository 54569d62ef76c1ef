"""The examples in docstrings: each one starts with an empty program, an empty scope and the usual imports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def fresh_program(request: pytest.FixtureRequest) -> Iterator[None]:
    """Gives a doctest its own programs, scope and job, and the names `np`, `static` and `exe`."""
    if not isinstance(request.node, pytest.DoctestItem):
        yield
        return
    import numpy as np

    from openfleet import static
    from openfleet.fleet import _job

    names: dict[str, Any] = request.getfixturevalue("doctest_namespace")
    guard = static.program_guard(static.Program(), static.Program())
    with guard, static.unique_name.guard(), static.scope_guard(static.Scope()):
        names.update(np=np, static=static, exe=static.Executor())
        job = dict(vars(_job))
        yield
        # A docstring that calls `fleet.init` leaves no job behind.
        vars(_job).update(job)
