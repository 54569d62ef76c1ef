"""PaddlePaddle's dynamic mode, which does not run here: its calls say so, and name the static form."""

from __future__ import annotations

from typing import Any, NoReturn

GUIDE = 'docs/guide/from-paddlepaddle.md, "Scripts in dynamic mode"'


def refuse(call: str, instead: str) -> NoReturn:
    """Raises NotImplementedError for a call of the dynamic mode."""
    raise NotImplementedError(
        f"`{call}` is a call of PaddlePaddle's dynamic mode; programs are static here\n\n"
        f"hint: {instead}; PaddleRec has a static trainer for each model (`tools/static_trainer.py`). See {GUIDE}"
    )


def refusing(call: str, instead: str) -> Any:
    """Returns a method that raises NotImplementedError."""

    def method(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        refuse(call, instead)

    method.__name__ = call.rpartition(".")[2].removesuffix("()")
    method.__doc__ = f"Raises NotImplementedError: {instead}."
    return method


MINIMIZE = (
    "add the updates to the program once with `optimizer.minimize(loss)`, and train with `exe.run(program, feed=...)`"
)
FETCH = "values exist while a program runs: fetch them with `exe.run(program, feed=..., fetch_list=[variable])`"
VARIABLE_CALLS = {
    "backward": MINIMIZE,
    "clear_grad": MINIMIZE,
    "clear_gradient": MINIMIZE,
    "gradient": FETCH,
    "numpy": FETCH,
    "item": FETCH,
    "tolist": FETCH,
}
OPTIMIZER_CALLS = {"step": MINIMIZE, "clear_grad": MINIMIZE, "clear_gradients": MINIMIZE}
