"""PaddlePaddle script 001: UserDefinedRoleMaker, DistributeTranspilerConfig, a feed loop that prints cost and AUC."""

import random
import sys

import paddle
import paddle.fluid as fluid
from paddle.fluid.incubate.fleet.base.role_maker import Role, UserDefinedRoleMaker
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
from paddle.fluid.transpiler.distribute_transpiler import DistributeTranspilerConfig

role_name, current_id, endpoints = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(",")

role = UserDefinedRoleMaker(
    current_id=current_id,
    role=Role.WORKER if role_name == "worker" else Role.SERVER,
    worker_num=2,
    server_endpoints=endpoints,
)
fleet.init(role_maker=role)

config = DistributeTranspilerConfig()
config.sync_mode = True


def model():
    x = fluid.layers.data(name="x", shape=[1], dtype="int64", lod_level=1)
    y = fluid.layers.data(name="y", shape=[1], dtype="int64")
    embedding = fluid.layers.embedding(
        input=x,
        size=[1000, 8],
        is_sparse=True,
        param_attr=fluid.ParamAttr(name="table", initializer=fluid.initializer.Uniform()),
    )
    pooled = fluid.layers.sequence_pool(input=embedding, pool_type="sum")
    hidden = fluid.layers.fc(input=pooled, size=16, act="relu")
    predict = fluid.layers.fc(input=hidden, size=2, act="softmax")
    cost = fluid.layers.cross_entropy(input=predict, label=y)
    avg_cost = fluid.layers.mean(x=cost)
    auc, auc_batch, _ = fluid.layers.auc(input=predict, label=y)
    return x, y, avg_cost, auc, auc_batch


def fake_reader():
    def reader():
        chance = random.Random(current_id)
        for _ in range(480):
            ids = [chance.randrange(1000) for _ in range(3)]
            yield ids, int(ids[0] % 2 + ids[1] % 2 + ids[2] % 2 > 1)

    return reader


x, y, avg_cost, auc, auc_batch = model()
optimizer = fluid.optimizer.Adam(learning_rate=0.01)
optimizer = fleet.distributed_optimizer(optimizer, config)
optimizer.minimize(avg_cost)

if fleet.is_server():
    fleet.init_server()
    fleet.run_server()

if fleet.is_worker():
    place = fluid.CPUPlace()
    exe = fluid.Executor(place)
    fleet.init_worker()

    feeder = fluid.DataFeeder(place=place, feed_list=[x, y])
    train_reader = paddle.batch(fake_reader(), batch_size=24)

    exe.run(fleet.startup_program)

    PASS_NUM = 10
    for pass_id in range(PASS_NUM):
        for batch_id, data in enumerate(train_reader()):
            avg_loss_value, auc_value, auc_batch_value = \
                exe.run(fleet.main_program, feed=feeder.feed(data), fetch_list=[avg_cost, auc, auc_batch])
            print("Pass %d, cost = %f, auc = %f, batch_auc = %f" % (pass_id, avg_loss_value, auc_value, auc_batch_value))
    fleet.stop_worker()
