"""PaddlePaddle script 000: `flag=1`, collective, under either launcher of the document."""

import argparse
import random

import paddle.fluid as fluid
from openKS_distributed import KSDistributedFactory
from openKS_distributed.base import RoleMaker

parser = argparse.ArgumentParser()
parser.add_argument("--passes", type=int, default=3)
args = parser.parse_args()

role = RoleMaker.PaddleCloudRoleMaker(is_collective=True)
algorithm = KSDistributedFactory.instantiation(flag = 1)
algorithm.init(role)

x = fluid.layers.data(name="x", shape=[4], dtype="int64")
y = fluid.layers.data(name="y", shape=[1], dtype="int64")
rows = fluid.layers.embedding(
    input=x, size=[100, 8], is_sparse=True,
    param_attr=fluid.ParamAttr(name="rows", initializer=fluid.initializer.Uniform(low=-0.1, high=0.1)),
)
hidden = fluid.layers.fc(input=rows, size=16, act="relu")
predict = fluid.layers.fc(input=hidden, size=2, act="softmax")
cost = fluid.layers.mean(fluid.layers.cross_entropy(input=predict, label=y))
auc, batch_auc, _ = fluid.layers.auc(input=predict, label=y)

optimizer = algorithm.distributed_optimzier(fluid.optimizer.Adam(learning_rate=0.02))
optimizer.minimize(cost)


def reader():
    chance = random.Random(algorithm.worker_index())
    for _ in range(1600):
        ids = [chance.randrange(100) for _ in range(4)]
        yield ids, int(ids[0] % 2 + ids[1] % 2 > 1 or ids[2] % 3 == 0)


place = fluid.CUDAPlace(0)
exe = fluid.Executor(place)
exe.run(algorithm.startup_program)
feeder = fluid.DataFeeder(feed_list=[x, y], place=place)
for pass_id in range(args.passes):
    for batch in fluid.io.batch(reader, batch_size=32)():
        loss, value, last = exe.run(
            algorithm.main_program, feed=feeder.feed(batch), fetch_list=[cost, auc, batch_auc]
        )
        print("pass %d cost %f auc %f batch auc %f" % (pass_id, loss, value, last), flush=True)
