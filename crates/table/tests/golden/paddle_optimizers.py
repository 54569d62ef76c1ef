#!/usr/bin/env python3
"""Writes paddle_optimizers.json: the optimizers of PaddlePaddle 2.6.2, run for twelve steps in static mode on the CPU.

    python paddle_optimizers.py > paddle_optimizers.json      with paddlepaddle==2.6.2 and numpy<2 installed

`dense` has one parameter of twelve weights per rule. `tables` has the rows of `embedding(is_sparse=True)` under Adam, with and
without `lazy_mode`, and of the same embedding with `is_sparse=False`.
"""
import json
import math
import sys

import numpy as np
import paddle
from paddle import optimizer

STEPS, SIZE = 12, 12
WEIGHTS = [round(math.sin(1.7 * i) + 0.1, 3) for i in range(SIZE)]
GRADIENTS = [[round(math.cos(2.3 * i + 1.1 * step) * (0.2 + 0.1 * step), 3) for i in range(SIZE)] for step in range(STEPS)]
# A weight without any gradient, and one that has a gradient only once.
for step, gradient in enumerate(GRADIENTS):
    gradient[3] = 0.0
    gradient[4] = gradient[4] if step == 2 else 0.0


class DecayedAdagrad(optimizer.Optimizer):
    """The op is in 2.6.2, but no class for it."""

    def __init__(self, rate, decay, epsilon):
        super().__init__(learning_rate=rate)
        self.type, self._decay, self._epsilon = "decayed_adagrad", decay, epsilon

    def _create_accumulators(self, block, parameters):
        for parameter in parameters:
            self._add_accumulator("moment", parameter)

    def _append_optimize_op(self, block, pair):
        parameter, gradient = pair
        moment = self._get_accumulator("moment", parameter)
        rate = self._create_param_lr(pair)
        return block.append_op(
            type=self.type,
            inputs={"Param": parameter, "Grad": gradient, "Moment": moment, "LearningRate": rate},
            outputs={"ParamOut": parameter, "MomentOut": moment},
            attrs={"decay": self._decay, "epsilon": self._epsilon},
            stop_gradient=True,
        )


RULES = [
    ("adam", {}, 0.01, lambda rate: optimizer.Adam(rate)),
    ("adamw", {}, 0.01, lambda rate: optimizer.AdamW(rate)),
    (
        "adamw",
        {"beta1": 0.8, "beta2": 0.9, "epsilon": 0.01, "weight_decay": 0.3},
        0.1,
        lambda rate: optimizer.AdamW(rate, beta1=0.8, beta2=0.9, epsilon=0.01, weight_decay=0.3),
    ),
    (
        "adamw",
        {"weight_decay": 0.0},
        0.1,
        lambda rate: optimizer.AdamW(rate, weight_decay=0.3, apply_decay_param_fun=lambda name: name != "w"),
    ),
    ("adamax", {}, 0.01, lambda rate: optimizer.Adamax(rate)),
    (
        "adamax",
        {"beta1": 0.5, "beta2": 0.6, "epsilon": 0.01},
        0.1,
        lambda rate: optimizer.Adamax(rate, beta1=0.5, beta2=0.6, epsilon=0.01),
    ),
    ("adadelta", {}, 0.1, lambda rate: optimizer.Adadelta(rate)),
    ("adadelta", {"epsilon": 0.01, "rho": 0.8}, 1.0, lambda rate: optimizer.Adadelta(rate, epsilon=0.01, rho=0.8)),
    ("decayed_adagrad", {}, 0.01, lambda rate: DecayedAdagrad(rate, 0.95, 1e-6)),
    ("decayed_adagrad", {"decay": 0.5, "epsilon": 0.01}, 0.1, lambda rate: DecayedAdagrad(rate, 0.5, 0.01)),
    ("lamb", {}, 0.01, lambda rate: optimizer.Lamb(rate)),
    (
        "lamb",
        {"beta1": 0.5, "beta2": 0.9, "epsilon": 0.01, "weight_decay": 0.3},
        0.1,
        lambda rate: optimizer.Lamb(rate, lamb_weight_decay=0.3, beta1=0.5, beta2=0.9, epsilon=0.01),
    ),
    (
        "lamb",
        {"weight_decay": 0.0},
        0.1,
        lambda rate: optimizer.Lamb(rate, exclude_from_weight_decay_fn=lambda parameter: parameter.name == "w"),
    ),
    (
        "lamb",
        {"weight_decay": 0.0, "always_adapt": True},
        0.1,
        lambda rate: optimizer.Lamb(rate, lamb_weight_decay=0.0, always_adapt=True),
    ),
]

# Per step: the rows of the batch, and one gradient per entry. The last row is in every batch: where it is not, the sparse kernel
# of 2.6.2 reads behind the rows of the batch and may push an old gradient to another row.
BATCHES = [
    ([1, 4], [[2.0, -1.0], [1.0, 0.5]]),
    ([2, 4], [[1.0, 1.0], [0.25, -0.5]]),
    ([4, 1], [[0.125, 0.125], [0.5, 3.0]]),
    ([1, 2, 4, 1], [[0.5, 3.0], [1.0, 1.0], [0.0, 0.5], [0.25, 0.25]]),
    ([0, 4], [[-0.5, 0.125], [-1.0, 0.5]]),
    ([4, 3, 0], [[-0.25, 0.75], [0.0, 0.25], [4.0, 0.5]]),
    ([4], [[0.5, 0.5]]),
]


def program():
    return paddle.static.program_guard(paddle.static.Program(), paddle.static.Program())


def train(make, weights, feeds, name):
    """The values of a parameter after every step; `make` adds the loss and the optimizer."""
    with program(), paddle.static.scope_guard(paddle.static.Scope()):
        make(paddle.ParamAttr(name=name, initializer=paddle.nn.initializer.Assign(np.array(weights, "float32"))))
        executor = paddle.static.Executor()
        executor.run(paddle.static.default_startup_program())
        for feed in feeds:
            executor.run(paddle.static.default_main_program(), feed=feed)
            yield np.array(paddle.static.global_scope().find_var(name).get_tensor()).astype("float64").tolist()


def dense(rule, settings, rate, make):
    def model(attr):
        gradient = paddle.static.data("gradient", [SIZE])
        weights = paddle.static.create_parameter([SIZE], "float32", attr=attr)
        make(rate).minimize(paddle.sum(weights * gradient))

    feeds = [{"gradient": np.array(gradient, "float32")} for gradient in GRADIENTS]
    steps = list(train(model, WEIGHTS, feeds, "w"))
    return {"optimizer": {rule: settings}, "rate": rate, "steps": steps}


def table(rate, lazy_mode, is_sparse):
    def model(attr):
        ids = paddle.static.data("ids", [None, 1], "int64")
        gradient = paddle.static.data("gradient", [None, 1, 2])
        rows = paddle.static.nn.embedding(ids, [5, 2], is_sparse=is_sparse, param_attr=attr)
        optimizer.Adam(rate, lazy_mode=lazy_mode).minimize(paddle.sum(rows * gradient))

    feeds = [
        {"ids": np.array(ids, "int64")[:, None], "gradient": np.array(gradients, "float32")[:, None, :]}
        for ids, gradients in BATCHES
    ]
    steps = list(train(model, [[0.5, 0.5]] * 5, feeds, "rows"))
    return {"lazy_mode": lazy_mode, "is_sparse": is_sparse, "rate": rate, "steps": steps}


assert paddle.__version__ == "2.6.2", paddle.__version__
paddle.enable_static()
lists = {
    "dense": [dense(*rule) for rule in RULES],
    "tables": [table(0.1, *modes) for modes in [(False, False), (False, True), (True, True)]],
}
head = {"weights": WEIGHTS, "gradients": GRADIENTS, "batches": BATCHES}
parts = [f'"{name}": {json.dumps(value)}' for name, value in head.items()]
for name, cases in lists.items():
    parts.append(f'"{name}": [\n' + ",\n".join(json.dumps(case) for case in cases) + "\n]")
sys.stdout.write("{\n" + ",\n".join(parts) + "\n}\n")
