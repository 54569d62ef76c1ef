"""PaddlePaddle script 004: Wide & Deep with GEO, `k_steps` 400, under `fleetrun`."""

import random
import sys

import paddle
import paddle.distributed.fleet as fleet

paddle.enable_static()


class WideDeepModel:
    def net(self, is_train=True):
        self.dense = paddle.static.data(name="dense", shape=[None, 2], dtype="float32")
        self.slots = [
            paddle.static.data(name=f"C{i}", shape=[None, 1], dtype="int64", lod_level=1) for i in range(2)
        ]
        self.label = paddle.static.data(name="label", shape=[None, 1], dtype="int64")
        rows = [
            paddle.static.nn.sequence_pool(
                paddle.static.nn.sparse_embedding(
                    input=slot, size=[1000, 8], param_attr=paddle.ParamAttr(name="embedding")
                ),
                "sum",
            )
            for slot in self.slots
        ]
        deep = paddle.concat([*rows, self.dense], axis=1)
        deep = paddle.static.nn.fc(x=deep, size=16, activation="relu")
        deep = paddle.static.nn.fc(x=deep, size=1)
        wide = paddle.static.nn.fc(x=self.dense, size=1)
        self.predict = paddle.nn.functional.sigmoid(paddle.add(wide, deep))
        losses = paddle.nn.functional.log_loss(self.predict, paddle.cast(self.label, "float32"))
        self.cost = paddle.mean(losses)
        self.auc, _, self.counters = paddle.static.auc(self.predict, self.label)


def distributed_training(exe, model):
    chance = random.Random(fleet.worker_index())
    path = sys.argv[1] + f"/part-{fleet.worker_index()}.txt"
    with open(path, "w") as out:
        for _ in range(16000):
            user = chance.randrange(100)
            click = int(chance.random() < (0.9 if user % 2 else 0.1))
            out.write(f"1 {click} 2 0.5 {chance.random():.3f} 1 {user} 1 {chance.randrange(100, 200)}\n")
    dataset = paddle.distributed.QueueDataset()
    dataset.init(batch_size=32, use_var=[model.label, model.dense, *model.slots])
    dataset.set_filelist([path])
    fleet.barrier_worker()
    for epoch in range(3):
        exe.train_from_dataset(
            paddle.static.default_main_program(), dataset, fetch_list=[model.cost],
            fetch_info=["epoch %d cost" % epoch], print_period=10,
        )
    fleet.barrier_worker()
    print("auc %f" % fleet.metrics.auc(*model.counters[2:]), flush=True)


model = WideDeepModel()
model.net(is_train=True)

fleet.init(role_maker=None)

dist_strategy = fleet.DistributedStrategy()
dist_strategy.a_sync = True
dist_strategy.a_sync_configs = {"k_steps": 400}

optimizer = paddle.optimizer.SGD(learning_rate=0.1)
optimizer = fleet.distributed_optimizer(optimizer, dist_strategy)
optimizer.minimize(model.cost)

if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    distributed_training(exe, model)
    fleet.stop_worker()
