"""Layers on sequences (LoD tensors of PaddlePaddle 2.x), one by one, and two small models of words.

Prints JSON: the value of each layer, and the costs of five steps of each model. `sequences.json` has what PaddlePaddle
2.6.2 prints: `python tests/paddle_scripts/sequences.py > tests/paddle_scripts/sequences.json`.
"""

import json

import numpy as np
import paddle
from paddle.static.nn import sequence_lod

paddle.enable_static()
place = paddle.CPUPlace()
LENGTHS = [3, 1, 2]
IDS = np.array([[3], [1], [4], [1], [5], [2]], "int64")
WEIGHTS = (np.arange(8 * 4).reshape(8, 4) * 7 % 11).astype("float32") / 10 - 0.5


def attr(name, values):
    return paddle.ParamAttr(name=name, initializer=paddle.nn.initializer.Assign(np.asarray(values, "float32")))


def feed():
    words = paddle.base.create_lod_tensor(IDS, [LENGTHS], place)
    return {
        "words": words,
        "user": np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "float32"),
        "label": [[1.0], [0.0], [1.0]],
    }


def vectors(words):
    """[N, 4]: `sparse_embedding` has no bound on the ids, `embedding` keeps the last dimension of the ids."""
    return paddle.squeeze(paddle.static.nn.embedding(words, [8, 4], param_attr=attr("vectors", WEIGHTS)), [1])


def layers():
    """Each layer by its name."""
    words = paddle.static.data("words", [None, 1], "int64", lod_level=1)
    user = paddle.static.data("user", [None, 2])
    x = vectors(words)
    values = {
        f"pool {kind}": sequence_lod.sequence_pool(x, kind)
        for kind in ("sum", "average", "sqrt", "max", "first", "last")
    }
    values["first step"] = sequence_lod.sequence_first_step(x)
    values["last step"] = sequence_lod.sequence_last_step(x)
    score = paddle.static.nn.fc(x, 1, weight_attr=attr("score", [[0.5], [-1.0], [2.0], [0.1]]), bias_attr=False)
    values["softmax"] = sequence_lod.sequence_softmax(score)
    values["reverse"] = sequence_lod.sequence_reverse(x)
    values["expand"] = sequence_lod.sequence_expand(user, x)
    values["expand as"] = sequence_lod.sequence_expand_as(user, x)
    filters = attr("filters", np.arange(12 * 2).reshape(12, 2) % 5 / 4 - 0.4)
    values["conv"] = sequence_lod.sequence_conv(
        x, 2, 3, param_attr=filters, bias_attr=attr("bias", [0.1, -0.1]), act="tanh"
    )
    wide = attr("wide", np.arange(8 * 2).reshape(8, 2) % 3 / 2 - 0.4)
    values["conv from its row on"] = sequence_lod.sequence_conv(
        x, 2, 2, padding_start=0, param_attr=wide, bias_attr=False
    )
    padding = paddle.full([1], -1.0)
    values["pad"], values["lengths"] = sequence_lod.sequence_pad(x, padding)
    values["pad to five"], length = sequence_lod.sequence_pad(x, padding, maxlen=5)
    values["unpad"] = sequence_lod.sequence_unpad(values["pad to five"] * 2.0, length)
    return values


def attention(x, user):
    """The vectors of the words, weighted by how well they fit the user."""
    both = paddle.concat([x, sequence_lod.sequence_expand(user, x)], axis=1)
    hidden = paddle.static.nn.fc(
        both, 3, weight_attr=attr("hidden", np.arange(18).reshape(6, 3) % 7 / 10 - 0.3), activation="tanh"
    )
    score = paddle.static.nn.fc(hidden, 1, weight_attr=attr("score", [[0.5], [-0.4], [0.3]]), bias_attr=False)
    return sequence_lod.sequence_pool(x * sequence_lod.sequence_softmax(score), "sum")


def convolution(x, user):
    """The greatest response of each filter."""
    filters = attr("filters", np.arange(12 * 3).reshape(12, 3) % 5 / 10 - 0.2)
    return sequence_lod.sequence_pool(sequence_lod.sequence_conv(x, 3, 3, param_attr=filters, act="tanh"), "max")


def costs(model, width):
    words = paddle.static.data("words", [None, 1], "int64", lod_level=1)
    user, label = paddle.static.data("user", [None, 2]), paddle.static.data("label", [None, 1])
    pooled = model(vectors(words), user)
    logit = paddle.static.nn.fc(pooled, 1, weight_attr=attr("out", [[0.3]] * width))
    cost = paddle.mean(paddle.nn.functional.binary_cross_entropy_with_logits(logit, label, reduction="none"))
    paddle.optimizer.Adam(0.05).minimize(cost)
    return cost


def run(build, steps):
    main, startup, exe = paddle.static.Program(), paddle.static.Program(), paddle.static.Executor(place)
    with paddle.static.scope_guard(paddle.static.Scope()), paddle.static.program_guard(main, startup):
        fetched = build()
        exe.run(startup)
        names = list(fetched)
        fed = {name: value for name, value in feed().items() if main.global_block().has_var(name)}
        for _ in range(steps):
            got = exe.run(main, feed=fed, fetch_list=[fetched[name] for name in names], return_numpy=False)
            yield {name: np.array(value).tolist() for name, value in zip(names, got)}


def costs_of(model, width):
    """Plain numbers: a mean is [1] in OpenFleet and [] in PaddlePaddle 2.6."""
    return [np.array(step["cost"]).item() for step in run(lambda: {"cost": costs(model, width)}, 5)]


result = next(run(layers, 1))
result["costs of attention"] = costs_of(attention, 4)
result["costs of convolution"] = costs_of(convolution, 3)
print(json.dumps(result, indent=0))
