"""PaddlePaddle script 000: `flag=1`, collective, which can be set up until `minimize`."""

import paddle.fluid as fluid
from openks_distributed import KSDistributedFactory
from openks_distributed.base import RoleMaker

role = RoleMaker.PaddleCloudRoleMaker(is_collective=True)
algorithm = KSDistributedFactory.instantiation(flag = 1)
algorithm.init(role)
print("initialised, worker %d of %d" % (algorithm.worker_index(), algorithm.worker_num()))

x = fluid.layers.data(name="x", shape=[4], dtype="float32")
cost = fluid.layers.mean(fluid.layers.fc(input=x, size=1))

optimizer = algorithm.distributed_optimzier(fluid.optimizer.SGD(learning_rate=0.1))
optimizer.minimize(cost)
