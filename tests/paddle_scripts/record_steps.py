"""Runs a training script under any `paddle` and records the costs of its first steps.

    python record_steps.py [--save DIRECTORY] [--load DIRECTORY] [--costs FILE] [--steps N] script.py arguments...

`paddlerec.py` runs it once with PaddlePaddle itself, which saves the initial weights and the first batches, and once with
`python -m openfleet.compat`, which loads them: readers draw random samples, in threads. Dropout is off and samples are the first classes, because no two systems draw the same random numbers.
"""

import argparse
import json
import os
import runpy
import sys

import numpy as np
import paddle


def parse():
    """Splits the arguments of this file from those of the script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--save")
    parser.add_argument("--load")
    parser.add_argument("--costs")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser.parse_args()


def parameters():
    """The parameters of the main program, in the order in which the script made them.

    PaddlePaddle counts more as parameters, which are left out: the moving averages of batch norm, which begin with 0
    and 1, and a copy of all weights of a recurrent layer.
    """
    program = paddle.static.default_main_program()
    left_out = set()
    for op in program.global_block().ops:
        if op.type == "batch_norm":
            left_out.update(name for name in op.input_arg_names if "_moving" in name or name.endswith((".w_1", ".w_2")))
    return [one for one in program.all_parameters() if one.name not in left_out]


def tensor_of(parameter):
    """Where the scope has the values of a parameter."""
    return paddle.static.global_scope().find_var(parameter.name).get_tensor()


def save_weights(path):
    """Saves the values of all parameters, in the order in which the script made them."""
    np.savez(path, **{parameter.name: np.array(tensor_of(parameter)) for parameter in parameters()})


def load_weights(path):
    """Loads what `save_weights` saved: by name, and what has another name here by its order and shape."""
    saved = np.load(path)
    here = {parameter.name: parameter for parameter in parameters()}
    pairs = [(name, name) for name in here if name in saved.files and tuple(here[name].shape) == saved[name].shape]
    left = [name for name in saved.files if (name, name) not in pairs]
    for name in [name for name in here if (name, name) not in pairs]:
        fitting = [other for other in left if saved[other].shape == tuple(here[name].shape)]
        if not fitting:
            raise SystemExit(f"no parameter of the reference fits `{name}` {tuple(here[name].shape)}: {left}")
        pairs.append((name, fitting[0]))
        left.remove(fitting[0])
    for name, other in pairs:
        tensor_of(here[name]).set(saved[other], paddle.CPUPlace())


def batch_file(directory, step):
    """Where a batch is saved."""
    return os.path.join(directory, f"batch-{step}.npz")


def same_batch(feed, step, options):
    """Saves a batch, or returns the one that was saved."""
    if options.save:
        np.savez(batch_file(options.save, step), **{name: np.asarray(value) for name, value in feed.items()})
    if options.load and os.path.exists(batch_file(options.load, step)):
        return dict(np.load(batch_file(options.load, step)))
    return feed


def without_dropout(x, *args, **kwargs):
    """Replaces `dropout`."""
    return x


def first_classes(x, num_samples=1, replacement=False, name=None):
    """Replaces `multinomial` of one row of weights."""
    return paddle.arange(1, num_samples + 1, dtype="int64")


def main():
    """Runs the script."""
    options = parse()
    costs, started = [], []
    real = paddle.static.Executor.run

    def run(self, program=None, feed=None, *args, **kwargs):
        if feed and started and len(costs) < options.steps:
            feed = same_batch(feed, len(costs), options)
        fetched = real(self, program, feed, *args, **kwargs)
        if program is paddle.static.default_startup_program() and not started:
            started.append(True)
            if options.save:
                save_weights(os.path.join(options.save, "weights.npz"))
            if options.load:
                load_weights(os.path.join(options.load, "weights.npz"))
        elif fetched and len(costs) < options.steps:
            costs.append([np.asarray(value, dtype=np.float64).reshape(-1)[:8].tolist() for value in fetched])
            if options.costs:
                with open(options.costs, "w") as file:
                    json.dump(costs, file)
        return fetched

    paddle.static.Executor.run = run
    if options.costs:
        paddle.multinomial = first_classes
        paddle.nn.functional.dropout = without_dropout
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").startswith("paddle.nn.functional") and hasattr(module, "dropout"):
                module.dropout = without_dropout
    sys.argv = [options.script, *options.arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(options.script))
    runpy.run_path(options.script, run_name="__main__")


main()
