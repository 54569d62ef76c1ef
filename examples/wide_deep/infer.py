"""Predicts test rows in one process with the model that `train.py` saved, alone or as a job.

python examples/wide_deep/infer.py
"""

import argparse
import glob

import numpy as np

from openfleet import models, static
from openfleet.dataset import QueueDataset

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="click-data", help="has test/*.txt")
parser.add_argument("--model", default="wide_deep-model", help="the model that `train.py` saved")
args = parser.parse_args()

slots = [static.data(f"C{i}", [None, 1], "int64", lod_level=1) for i in range(1, 27)]
dense, label = static.data("dense", [None, 13]), static.data("label", [None, 1], "int64")
model = models.wide_deep(slots, dense, label, hidden=[64, 32])
counters = model.auc_counters
program = static.default_main_program().clone(for_test=True)

exe = static.Executor()
static.load(program, args.model, exe)
for counter in counters:  # the saved counters are those of training
    tensor = static.global_scope().find_var(counter.name).get_tensor()
    tensor.set(np.zeros(tensor.shape(), "int64"))
dataset = QueueDataset()
dataset.init(batch_size=256, use_var=[label, dense, *slots])
dataset.set_filelist(sorted(glob.glob(f"{args.data}/test/*.txt")))
report = exe.infer_from_dataset(program, dataset, print_period=0)
positive, negative = (static.global_scope().find_var(c.name).get_tensor().numpy().ravel() for c in counters[2:])
above = positive[::-1].cumsum()[::-1] - positive / 2
print(f"test AUC {(negative * above).sum() / (positive.sum() * negative.sum()):.4f} of {report.samples} rows")

row = {"dense": np.zeros((1, 13)), "label": [[0]], **{slot.name: [[1]] for slot in slots}}
(probability,) = exe.run(program, feed=row, fetch_list=[model.probability])
print(f"a row of its own: probability of a click {probability[0, -1]:.4f}")
