"""Trains a network of dense layers on images of digits, alone or as ranks without servers:

python examples/digits/train.py
fleetrun --nproc_per_node=2 examples/digits/train.py
"""

import argparse
import gzip
import os
import struct

import numpy as np

import openfleet.fleet as fleet
from openfleet import static

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="digit-data", help="has the four files of MNIST; generated if missing")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=128, help="rows per step of all ranks together")
parser.add_argument("--model", default="digits-model", help="where the trained model is saved")
args = parser.parse_args()


def generate(directory, rows):
    """Writes files in the format of MNIST (IDX): each digit is a fixed pattern with noise, moved by a few pixels."""
    chance = np.random.RandomState(1)
    patterns = (chance.rand(10, 20, 20) > 0.7) * 160
    os.makedirs(directory, exist_ok=True)
    for part, count in (("train", rows), ("t10k", rows // 5)):
        labels = chance.randint(0, 10, count)
        images = chance.randint(0, 100, (count, 28, 28))
        for image, label, (down, right) in zip(images, labels, chance.randint(0, 9, (count, 2))):
            image[down : down + 20, right : right + 20] += patterns[label]
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            with gzip.open(f"{directory}/{part}-{kind}-ubyte.gz", "wb", 1) as file:
                file.write(struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape))
                file.write(array.clip(0, 255).astype(np.uint8).tobytes())


def read(name):
    with gzip.open(f"{args.data}/{name}-ubyte.gz") as file:
        sizes = struct.unpack(f">{file.read(4)[3]}I", file.read(4 if "idx1" in name else 12))
        return np.frombuffer(file.read(), np.uint8).reshape(sizes[0], -1)


fleet.init(is_collective=True)
image, label = static.data("image", [None, 784]), static.data("label", [None, 1], "int64")
x = image
for width in (128, 64):
    x = static.nn.fc(x, size=width, activation="relu")
digit = static.nn.fc(x, size=10, activation="softmax")
loss = static.nn.mean(static.nn.cross_entropy(digit, label))
test_program = static.default_main_program().clone(for_test=True)
fleet.distributed_optimizer(static.optimizer.Adam(1e-3)).minimize(loss)

exe = static.Executor()
exe.run(static.default_startup_program())
rank, ranks = fleet.worker_index(), fleet.worker_num()
if fleet.is_first_worker() and not os.path.exists(args.data):
    generate(args.data, 10_000)
fleet.barrier_worker()
images, labels = read("train-images-idx3") / np.float32(255), read("train-labels-idx1").astype(np.int64)
for epoch in range(args.epochs):
    order = np.random.RandomState(epoch).permutation(len(images))  # the same on every rank
    for start in range(0, len(order), args.batch_size):
        rows = order[start : start + args.batch_size][rank::ranks]
        cost = exe.run(feed={"image": images[rows], "label": labels[rows]}, fetch_list=[loss])[0]
    fleet.util.print_on_rank(f"epoch {epoch} loss {cost.item():.4f}", 0)

images, labels = (read(f"t10k-{kind}")[rank::ranks] for kind in ("images-idx3", "labels-idx1"))
(found,) = exe.run(test_program, feed={"image": images / np.float32(255), "label": labels}, fetch_list=[digit])
accuracy = fleet.metrics.acc((found.argmax(1) == labels[:, 0]).sum(), len(labels))
fleet.util.print_on_rank(f"test accuracy {accuracy:.4f}", 0)
fleet.save_inference_model(exe, args.model, ["image"], [digit])
