"""Makes what `openfleet import paddle` reads, with PaddlePaddle 2.6.2 itself. No test runs this: it needs PaddlePaddle.

    python paddle_samples.py static DIR
    python paddle_samples.py servers DIR [ACCESSOR] [OPTIMIZER]

`static` saves a model in every way of one process. `servers` is one process of a job of a server and a trainer, with
the role in PaddlePaddle's variables (`TRAINING_ROLE`, `PADDLE_PSERVERS_IP_PORT_LIST`, ...); the trainer saves tables.
PaddlePaddle 2.6.2 needs a protobuf older than 5 for it. `test_import.py` writes files of the same bytes, without it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

ROWS = 64


def save_static(directory: str) -> None:
    import paddle

    paddle.enable_static()
    paddle.seed(3)
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [None, 3], "float32")
        y = paddle.static.data("y", [None, 1], "float32")
        ids = paddle.static.data("ids", [None, 1], "int64")
        rows = paddle.static.nn.embedding(ids, size=[20, 4], param_attr=paddle.ParamAttr(name="emb"))
        hidden = paddle.concat([x, paddle.reshape(rows, [-1, 4])], axis=1)
        hidden = paddle.static.nn.batch_norm(paddle.static.nn.fc(hidden, 5, activation="relu"))
        out = paddle.static.nn.fc(hidden, 1)
        loss = paddle.mean(paddle.nn.functional.square_error_cost(out, y))
        paddle.optimizer.Adam(0.01).minimize(loss)
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(startup)
    random = np.random.RandomState(0)
    for _ in range(3):
        feed = {"x": random.rand(8, 3).astype("f"), "y": random.rand(8, 1).astype("f")}
        exe.run(main, feed={**feed, "ids": random.randint(0, 20, (8, 1))}, fetch_list=[loss])
    for protocol in (2, 3, 4):
        paddle.static.save(main, os.path.join(directory, f"static{protocol}", "model"), protocol=protocol)
    paddle.static.save_inference_model(
        os.path.join(directory, "inference", "model"), [x, ids], [out], exe, program=main
    )

    def is_tensor(variable: Any) -> bool:
        return variable.persistable and variable.type == paddle.base.core.VarDesc.VarType.LOD_TENSOR

    paddle.static.io.save_vars(exe, os.path.join(directory, "variables"), main, predicate=is_tensor)
    paddle.static.io.save_vars(exe, os.path.join(directory, "combined"), main, predicate=is_tensor, filename="all")


def save_from_servers(directory: str, accessor: str, optimizer: str) -> None:
    import paddle
    from paddle.distributed import fleet

    paddle.enable_static()
    paddle.seed(1)
    fleet.init()
    is_ctr = accessor.startswith("DownpourCtr")
    dim = 6 if is_ctr else 4
    fields = [paddle.static.data(name, [None, 1], "int64") for name in ("ids", "wide")]
    x = paddle.static.data("x", [None, 3], "float32")
    y = paddle.static.data("y", [None, 1], "float32")
    counts = [paddle.static.data(name, [None, 1], "int64") for name in ("show", "click")] if is_ctr else []
    entry = paddle.distributed.ShowClickEntry("show", "click") if is_ctr else None
    vectors = []
    for field, name in zip(fields, ("emb", "wide_emb")):
        attribute = paddle.ParamAttr(name=name, initializer=paddle.nn.initializer.Uniform(-0.1, 0.1))
        rows = paddle.static.nn.sparse_embedding(field, size=[1000, dim], entry=entry, param_attr=attribute)
        vectors.append(paddle.reshape(rows, [-1, dim]))
    hidden = paddle.static.nn.fc(paddle.concat([x, *vectors], axis=1), 5, activation="relu")
    out = paddle.static.nn.fc(hidden, 1)
    loss = paddle.mean(paddle.nn.functional.square_error_cost(out, y))
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    if accessor:
        table = {"sparse_accessor_class": accessor, "sparse_embedx_threshold": 0, "sparse_fea_dim": dim}
        strategy.fleet_desc_configs = {name: {**table, "sparse_embedx_dim": dim - 3} for name in ("emb", "wide_emb")}
    rule = paddle.optimizer.Adam(0.01) if optimizer == "adam" else paddle.optimizer.SGD(0.1)
    fleet.distributed_optimizer(rule, strategy).minimize(loss)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    random = np.random.RandomState(0)
    os.makedirs(directory, exist_ok=True)
    data = os.path.join(directory, "data.txt")
    with open(data, "w") as file:
        for _ in range(ROWS):
            values = [random.randint(0, 20), random.randint(100, 105)]
            floats = " ".join(f"{value:.3f}" for value in random.rand(3))
            counted = f" 1 1 1 {random.randint(0, 2)}" if is_ctr else ""
            file.write(f"1 {values[0]} 1 {values[1]} 3 {floats} 1 {random.rand():.3f}{counted}\n")
    dataset = paddle.distributed.QueueDataset()
    dataset.init(batch_size=8, thread_num=1, pipe_command="cat", use_var=[*fields, x, y, *counts])
    dataset.set_filelist([data])
    exe.train_from_dataset(paddle.static.default_main_program(), dataset)
    for mode in (0, 1, 2):
        fleet.save_persistables(exe, os.path.join(directory, f"mode{mode}"), mode=mode)
    fleet.save_inference_model(exe, os.path.join(directory, "inference"), ["x", "ids", "wide"], [out], None)
    fleet.stop_worker()


if __name__ == "__main__":
    what, place, *more = sys.argv[1:]
    if what == "static":
        save_static(place)
    else:
        save_from_servers(place, *[*more, "", ""][:2])
