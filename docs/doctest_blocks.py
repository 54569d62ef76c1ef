"""An extension of griffe: the examples of docstrings (`>>>` lines and their output) become code blocks on the site.

Without it they are read as Markdown: `>>>` is a quotation, and an output such as `[1, 2]` a link.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?P=indent)\S.*|\n(?P=indent) +.*)*", re.M)


def fenced(text: str) -> str:
    """Returns the docstring with a fence around every example; an example ends at an empty line."""

    def fence(found: re.Match[str]) -> str:
        indent = found["indent"]
        body = found[0].replace("<BLANKLINE>", "")
        return f"{indent}```pycon\n{body}\n{indent}```"

    return EXAMPLE.sub(fence, text)


class DoctestBlocks(griffe.Extension):
    """Fences the examples of every docstring that is collected."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None and "```" not in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)
