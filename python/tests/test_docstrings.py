"""Every public name has a docstring with an example; the examples themselves are run as doctests."""

import importlib
import inspect

import pytest

MODULES = [
    "openfleet.dataset",
    "openfleet.fleet",
    "openfleet.fleet.metrics",
    "openfleet.fleet.util",
    "openfleet.models",
    "openfleet.ray",
    "openfleet.reader",
    "openfleet.static",
    "openfleet.static.clip",
    "openfleet.static.initializer",
    "openfleet.static.lr",
    "openfleet.static.nn",
    "openfleet.static.optimizer",
    "openfleet.static.regularizer",
    "openfleet.static.unique_name",
]


def public(module):
    """The functions and classes that a module offers: its `__all__`, or what it defines itself."""
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    # Checks of arguments, which `openfleet.compat` shares.
    for name in (name for name in names if not name.startswith("check_")):
        found = getattr(module, name, None)
        is_own = hasattr(module, "__all__") or getattr(found, "__module__", None) == module.__name__
        if is_own and (inspect.isfunction(found) or inspect.isclass(found)):
            yield name, found


def has_example(found):
    texts = [found.__doc__]
    if inspect.isclass(found):
        texts += [member.__doc__ for member in vars(found).values() if callable(member)]
    return any(">>>" in (text or "") for text in texts)


@pytest.mark.parametrize("name", MODULES)
def test_public_names_have_an_example(name):
    module = importlib.import_module(name)
    missing = [each for each, found in public(module) if not has_example(found)]
    assert not missing
