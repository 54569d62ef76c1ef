"""PaddlePaddle script 003: `train_from_dataset`, a checkpoint an epoch, and an inference Program of its own."""

import argparse
import logging
import os
import random
import sys
import time

import numpy as np
import paddle.fluid as fluid
import paddle.fluid.incubate.fleet.base.role_maker as role_maker
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
from paddle.fluid.transpiler.distribute_transpiler import DistributeTranspilerConfig

logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stdout)
logger = logging.getLogger("train")

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--model_path", required=True)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--learning_rate", type=float, default=0.02)
parser.add_argument("--test", type=int, default=1)
parser.add_argument("--task", choices=["train", "infer"], default="train")
params = parser.parse_args()
place = fluid.CPUPlace()


class CTR:
    def input_data(self, params):
        label = fluid.layers.data(name="label", shape=[1], dtype="int64")
        age = fluid.layers.data(name="age", shape=[1], dtype="float32")
        slots = [fluid.layers.data(name=name, shape=[1], dtype="int64", lod_level=1) for name in ("user", "item")]
        return [label, age, *slots]

    def net(self, inputs, params):
        label, age, *slots = inputs
        rows = [
            fluid.layers.sequence_pool(
                input=fluid.layers.embedding(
                    input=slot, size=[1000, 8], is_sparse=True, param_attr=fluid.ParamAttr(name="SparseFeatFactors"),
                ),
                pool_type="sum",
            )
            for slot in slots
        ]
        hidden = fluid.layers.fc(input=fluid.layers.concat([*rows, age], axis=1), size=16, act="relu")
        predict = fluid.layers.fc(input=hidden, size=2, act="softmax")
        cost = fluid.layers.cross_entropy(input=predict, label=label)
        avg_cost = fluid.layers.reduce_mean(cost)
        auc_var, batch_auc_var, _ = fluid.layers.auc(input=predict, label=label)
        return avg_cost, auc_var, batch_auc_var


def lines(seed, count):
    chance = random.Random(seed)
    for _ in range(count):
        user, item = chance.randrange(100), chance.randrange(100, 200)
        click = int(chance.random() < (0.9 if user % 2 or item % 5 == 0 else 0.1))
        yield click, user, item, chance.random()


def get_dataset(inputs, params):
    paths = []
    for part in range(2):
        path = "%s/part-%d-%d.txt" % (params.data, fleet.worker_index(), part)
        with open(path, "w") as out:
            out.writelines("%d %d %d %.3f\n" % line for line in lines(10 * fleet.worker_index() + part, 3000))
        paths.append(path)
    dataset = fluid.DatasetFactory().create_dataset("QueueDataset")
    dataset.set_use_var(inputs)
    dataset.set_pipe_command("%s %s/003_reader.py" % (sys.executable, os.path.dirname(os.path.abspath(__file__))))
    dataset.set_batch_size(64)
    dataset.set_thread(1)
    dataset.set_filelist(paths)
    return dataset


def distribute_train(params):
    role = role_maker.PaddleCloudRoleMaker()
    fleet.init(role)

    ctr_model = CTR()
    inputs = ctr_model.input_data(params)
    avg_cost, auc_var, batch_auc_var = ctr_model.net(inputs, params)
    optimizer = fluid.optimizer.Adam(params.learning_rate)

    strategy = DistributeTranspilerConfig()
    strategy.sync_mode = False
    strategy.runtime_split_send_recv = True
    optimizer = fleet.distributed_optimizer(optimizer, strategy)
    optimizer.minimize(avg_cost)

    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
    elif fleet.is_worker():
        fleet.init_worker()
        exe = fluid.Executor(place)
        exe.run(fleet.startup_program)
        dataset = get_dataset(inputs, params)
        fleet.barrier_worker()

        for epoch in range(params.epochs):
            start_time = time.time()
            exe.train_from_dataset(program=fleet.main_program,
                                   dataset=dataset, fetch_list=[avg_cost, auc_var],
                                   fetch_info=["Epoch {} cost ".format(epoch), "Epoch {} auc ".format(epoch)],
                                   print_period=10, debug=False)
            end_time = time.time()
            logger.info("epoch %d finished, use time=%d\n" % ((epoch), end_time - start_time))

            if params.test and fleet.is_first_worker():
                model_path = (str(params.model_path) + "/" + "epoch_" + str(epoch))
                fluid.io.save_persistables(executor=exe, dirname=model_path)

        fleet.stop_worker()
        logger.info("Distribute Train Success!")


def set_zero(var_name):
    param = fluid.global_scope().var(var_name).get_tensor()
    param_array = np.zeros(param._get_dims()).astype("int64")
    param.set(param_array, place)


def infer(ctr_model, params, model_path, epoch):
    startup_program = fluid.framework.Program()
    test_program = fluid.framework.Program()
    with fluid.framework.program_guard(test_program, startup_program):
        with fluid.unique_name.guard():
            inputs = ctr_model.input_data(params)
            loss, auc_var, batch_auc_var = ctr_model.net(inputs, params)

            exe = fluid.Executor(place)
            feeder = fluid.DataFeeder(feed_list=inputs, place=place)

            fluid.io.load_persistables(
                executor=exe,
                dirname=model_path,
                main_program=fluid.default_main_program())

            auc_states_names = [
                '_generated_var_0', '_generated_var_1', '_generated_var_2',
                '_generated_var_3'
            ]
            for name in auc_states_names:
                set_zero(name)

            for batch in fluid.io.batch(lambda: lines(99, 1000), batch_size=100)():
                rows = [(click, age, [user], [item]) for click, user, item, age in batch]
                auc_value, = exe.run(fluid.default_main_program(), feed=feeder.feed(rows), fetch_list=[auc_var])
            # Only what was just counted: 1000 rows, whatever training had counted before.
            counted = sum(
                int(np.array(fluid.global_scope().var(name).get_tensor()).sum()) for name in auc_states_names[2:]
            )
            logger.info("infer epoch %d auc %f of %d rows" % (epoch, auc_value, counted))


if params.task == "train":
    distribute_train(params)
else:
    for epoch in range(params.epochs):
        infer(CTR(), params, "%s/epoch_%d" % (params.model_path, epoch), epoch)
