"""The CTR-DNN with two parameter servers and two trainers by `torch.distributed.rpc`, on the same files.

    python comparisons/ctr_dnn_torch_rpc.py demo-data

PyTorch has no parameter server; this is the one that its tutorials build. Server k has the rows of the ids k, k +
2, ...; rows are looked up by RPC, their gradients go back by distributed autograd, and `DistributedOptimizer` runs
SparseAdam on the servers. The dense layers are DDP over gloo between the trainers, so every step waits for both:
the nearest mode of ours is sync.
"""

import argparse
import json
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.distributed.autograd as autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as multiprocessing
from ctr_dnn_torch import DENSE, SLOTS, embedding, evaluate, loss_of, mlp, read
from torch.distributed.optim import DistributedOptimizer

DIM, SERVERS, TRAINERS = 10, 2, 2


class Rows(torch.nn.Module):
    """The rows of one server."""

    def __init__(self, rows):
        super().__init__()
        self.table = embedding(rows, DIM)

    def forward(self, ids):
        return self.table(ids)

    def parameter(self):
        return rpc.RRef(self.table.weight)


def lookup(servers, ids):
    """The rows of all ids, in their order: one request to each server."""
    flat = ids.reshape(-1)
    owners = flat % SERVERS
    places = [(owners == server).nonzero().squeeze(1) for server in range(SERVERS)]
    replies = [rows.rpc_async().forward(flat[place] // SERVERS) for rows, place in zip(servers, places)]
    order = torch.argsort(torch.cat(places))
    return torch.cat([reply.wait() for reply in replies])[order].reshape(len(ids), -1)


def trainer(rank, options, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=TRAINERS)
    label, dense, ids = read(f"{options.data}/train/*.txt")
    test = read(f"{options.data}/test/*.txt")
    most = int(max(ids.max(), test[2].max()))
    label, dense, ids = (part[rank::TRAINERS].contiguous() for part in (label, dense, ids))
    # The first trainer creates the tables; the other receives references to them.
    if rank == 0:
        Shared.servers = [rpc.remote(f"server{k}", Rows, args=(most // SERVERS + 1,)) for k in range(SERVERS)]
    dist.barrier()
    servers = rpc.rpc_sync("trainer0", Shared.get)
    torch.manual_seed(1)
    layers = mlp([SLOTS * DIM + DENSE, 400, 400, 400, 2])
    trained = torch.nn.parallel.DistributedDataParallel(layers)
    rows = DistributedOptimizer(torch.optim.SparseAdam, [server.rpc_sync().parameter() for server in servers], lr=1e-3)
    rest = torch.optim.Adam(layers.parameters(), lr=1e-3, fused=True)
    steps = len(label) // options.batch
    dist.barrier()
    started = time.perf_counter()
    for step in range(steps):
        taken = slice(step * options.batch, (step + 1) * options.batch)
        with autograd.context() as context:
            inputs = torch.cat([lookup(servers, ids[taken]), dense[taken]], 1)
            autograd.backward(context, [loss_of(trained(inputs), label[taken])])
            gradients = autograd.get_gradients(context)
            for parameter in layers.parameters():
                parameter.grad = gradients[parameter]
            rows.step(context)
        rest.step()
    dist.barrier()
    seconds = time.perf_counter() - started
    if rank == 0:
        result = evaluate(lambda dense, ids: layers(torch.cat([lookup(servers, ids), dense], 1)), test)
        samples = steps * options.batch * TRAINERS
        print(json.dumps({"samples": samples, "samples_per_second": round(samples / seconds), **result}), flush=True)
    dist.barrier()


class Shared:
    """What the first trainer gives to the other one."""

    servers = None

    @staticmethod
    def get():
        return Shared.servers


def process(index, options, ports):
    torch.set_num_threads(1)
    os.environ.update(GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
    address = f"tcp://127.0.0.1:{ports[0]}"
    backend = rpc.TensorPipeRpcBackendOptions(num_worker_threads=4, rpc_timeout=300, init_method=address)
    name = f"trainer{index}" if index < TRAINERS else f"server{index - TRAINERS}"
    rpc.init_rpc(name, rank=index, world_size=TRAINERS + SERVERS, rpc_backend_options=backend)
    if index < TRAINERS:
        trainer(index, options, ports[1])
    rpc.shutdown(timeout=300)


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--batch", type=int, default=512, help="rows per step of each trainer")
    options = parser.parse_args()
    multiprocessing.spawn(process, args=(options, free_ports(2)), nprocs=TRAINERS + SERVERS)


if __name__ == "__main__":
    main()
