"""PaddlePaddle script 001: its collective mode, with the strategy, the status and the checkpoints of PaddlePaddle 1.x."""

import os
import sys

import numpy
import paddle.fluid as fluid
from paddle.fluid.incubate.fleet.base import role_maker
from paddle.fluid.incubate.fleet.collective import DistributedStrategy, TrainStatus, fleet

role = role_maker.PaddleCloudRoleMaker(is_collective=True)
fleet.init(role)

x = fluid.layers.data(name="x", shape=[8], dtype="float32")
y = fluid.layers.data(name="y", shape=[1], dtype="int64")
predict = fluid.layers.fc(input=fluid.layers.fc(input=x, size=16, act="tanh"), size=2, act="softmax")
cost = fluid.layers.mean(fluid.layers.cross_entropy(input=predict, label=y))

strategy = DistributedStrategy()
if len(sys.argv) > 2:
    strategy.collective_mode = sys.argv[2]
optimizer = fluid.optimizer.SGD(learning_rate=0.5)
optimizer = fleet.distributed_optimizer(optimizer, strategy=strategy)
optimizer.minimize(cost, fluid.default_startup_program())

exe = fluid.Executor(fluid.CUDAPlace(int(os.getenv("FLAGS_selected_gpus", "0"))))
exe.run(fluid.default_startup_program())

path = sys.argv[1]
status = fleet.load_checkpoint(exe, path, trainer_id=fleet.worker_index())
first = 0 if status is None else status.next()
print("worker %d of %d begins at epoch %d" % (fleet.worker_index(), fleet.worker_num(), first), flush=True)
for epoch in range(first, first + 3):
    chance = numpy.random.RandomState(100 * epoch + fleet.worker_index())
    costs = []
    for _ in range(40):
        features = chance.rand(16, 8).astype("float32")
        labels = (features[:, :4].sum(1) > features[:, 4:].sum(1)).astype("int64").reshape(-1, 1)
        value, = exe.run(program=fleet.main_program, feed={"x": features, "y": labels}, fetch_list=[cost.name])
        costs.append(float(value))
    print("epoch %d cost %f" % (epoch, sum(costs) / len(costs)), flush=True)
    fleet.save_checkpoint(exe, path, TrainStatus(epoch), remain_all_checkpoint=False)
