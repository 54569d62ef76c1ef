"""`openks_strategy` in the other spelling of OpenKS: the same modules."""

from openfleet.compat import alias_package

alias_package(__name__, "openks_strategy")
