"""The functions of `paddle.distributed` in a collective job, on the values that a static program returns."""

import numpy as np
import paddle
import paddle.distributed as dist

paddle.enable_static()
env = dist.init_parallel_env()
rank = dist.get_rank()
assert (env.rank, env.world_size, env.local_rank, env.nranks) == (rank, dist.get_world_size(), rank, 2)
assert len(env.trainer_endpoints) == 2 and env.current_endpoint == env.trainer_endpoints[rank]

values = np.array([1.0, rank], "float32")
dist.all_reduce(values)
largest = np.array([rank, -rank])
dist.all_reduce(largest, op=dist.ReduceOp.MAX).wait()
mean = np.array([rank], "float64")
dist.all_reduce(mean, op=dist.ReduceOp.AVG)
first = np.array([10 + rank])
dist.broadcast(first, src=1)
everything = []
dist.all_gather(everything, np.array([rank, rank]))
objects = []
dist.all_gather_object(objects, {"rank": rank})
reduced = np.array([1])
dist.reduce(reduced, dst=0)
dist.barrier()
print("RESULT", values.tolist(), largest.tolist(), mean.tolist(), first.tolist(), np.array(everything).tolist(), objects, flush=True)
assert reduced.tolist() == [2 if rank == 0 else 1]
try:
    dist.all_reduce(paddle.static.data("x", [None, 1]))
except NotImplementedError as error:
    print("REFUSED", str(error).splitlines()[0], flush=True)
