"""Times `exe.run` of a static model of PaddleRec on batches that are read before the clock starts.

    PYTHON [-m openfleet.compat] comparisons/paddlerec_steps.py MODEL_DIRECTORY DATA_DIRECTORY BATCH

`paddlerec.py` runs it in both systems. Prints samples/s: the median over intervals of 20 batches, without the first.
"""

import importlib
import os
import statistics
import sys
import time

import numpy as np
import paddle

INTERVAL = 20
directory, data, batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.chdir(directory)
sys.path[:0] = [".", os.path.join("..", "..", "..", "tools")]

paddle.enable_static()
config = importlib.import_module("utils.utils_single").load_yaml("config.yaml")
model = importlib.import_module("static_model").StaticModel(config)
feeds = model.create_feeds()
fetched = list(model.net(feeds).values())
model.create_optimizer()
exe = paddle.static.Executor(paddle.CPUPlace())
exe.run(paddle.static.default_startup_program())

reader = importlib.import_module(config["runner.train_reader_path"])
dataset = reader.RecDataset([os.path.join(data, name) for name in os.listdir(data)], config=config)
loader = paddle.io.DataLoader(
    dataset, batch_size=batch, places=paddle.CPUPlace(), drop_last=True, use_buffer_reader=False
)
names = [feed.name for feed in feeds]
batches = [dict(zip(names, map(np.array, fields))) for fields in loader]

speeds, program = [], paddle.static.default_main_program()
for start in range(0, len(batches) - INTERVAL + 1, INTERVAL):
    began = time.perf_counter()
    for feed in batches[start : start + INTERVAL]:
        exe.run(program, feed=feed, fetch_list=fetched)
    speeds.append(batch * INTERVAL / (time.perf_counter() - began))
print(f"samples/s {statistics.median(speeds[1:]):.0f}")
