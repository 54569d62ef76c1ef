"""What a script asks for and does not get: said once per process, on standard error."""

from __future__ import annotations

import sys

_said: set[str] = set()


def say_once(sentence: str) -> None:
    """Prints a sentence, unless this process has printed it before."""
    if sentence not in _said:
        _said.add(sentence)
        print(f"openfleet: {sentence}", file=sys.stderr)
