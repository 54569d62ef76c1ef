"""PaddlePaddle script 002: the role from variables that are set by hand, no launcher, the sync strategy by name."""

import argparse
import random

import paddle.fluid as fluid
import paddle.fluid.incubate.fleet.base.role_maker as role_maker
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy import StrategyFactory

parser = argparse.ArgumentParser()
parser.add_argument("--is_cloud", type=int, default=0)
assert parser.parse_args().is_cloud == 1

role = role_maker.PaddleCloudRoleMaker()
fleet.init(role)

# Define your network, choose your optimizer(SGD/Adam/Adagrad etc.)
slots = [fluid.layers.data(name="C%d" % i, shape=[1], dtype="int64", lod_level=1) for i in range(3)]
label = fluid.layers.data(name="click", shape=[1], dtype="int64")
rows = [
    fluid.layers.sequence_pool(
        input=fluid.layers.embedding(
            input=slot, size=[500, 6], is_sparse=True, param_attr=fluid.ParamAttr(name="SparseFeatFactors"),
        ),
        pool_type="average",
    )
    for slot in slots
]
hidden = fluid.layers.fc(input=fluid.layers.concat(rows, axis=1), size=16, act="relu")
predict = fluid.layers.fc(input=hidden, size=2, act="softmax")
avg_cost = fluid.layers.reduce_mean(fluid.layers.cross_entropy(input=predict, label=label))
auc, batch_auc, _ = fluid.layers.auc(input=predict, label=label, num_thresholds=2**12, slide_steps=20)
optimizer = fluid.optimizer.Adagrad(learning_rate=0.2)

strategy = StrategyFactory.create_sync_strategy()
optimizer = fleet.distributed_optimizer(optimizer, strategy)
optimizer.minimize(avg_cost)


def reader():
    chance = random.Random(fleet.worker_index())
    for _ in range(1600):
        ids = [[chance.randrange(100)] for _ in slots]
        yield (*ids, int(chance.random() < (0.95 if ids[0][0] % 2 or ids[2][0] % 5 == 0 else 0.05)))


if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
if fleet.is_worker():
    fleet.init_worker()
    # run training
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fleet.startup_program)
    feeder = fluid.DataFeeder(feed_list=[*slots, label], place=fluid.CPUPlace())
    for epoch in range(4):
        for data in fluid.io.batch(fluid.io.shuffle(reader, buf_size=256), batch_size=32)():
            cost, value = exe.run(fleet.main_program, feed=feeder.feed(data), fetch_list=[avg_cost, batch_auc])
            print("epoch %d cost %f auc %f" % (epoch, cost, value), flush=True)
    fleet.stop_worker()
