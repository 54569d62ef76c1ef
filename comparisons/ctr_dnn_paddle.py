"""The CTR-DNN by PaddlePaddle 2.6.2, alone or with parameter servers, on the same MultiSlot files.

    python comparisons/ctr_dnn_paddle.py demo-data --mode local --threads 2
    python comparisons/ctr_dnn_paddle.py demo-data --mode async          # starts two servers and two trainers

2.6.2 is the last release whose wheel contains the parameter server; its sync mode crashes. The script starts itself
again once per process, with the variables that PaddlePaddle's own launcher would set. Its servers do not end by
themselves: they are ended by their process id when the trainers are done. Same model, first values and optimizer as
`ctr_dnn_torch.py`.
"""

import argparse
import glob
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SLOTS, DENSE, DIM, HIDDEN = 26, 13, 10, (400, 400, 400)
SERVERS, TRAINERS = 2, 2


def network(paddle, most):
    """The inputs in the order of the file, the probability of a click, and the loss."""
    static, nn = paddle.static, paddle.nn

    def normal(std):
        return paddle.ParamAttr(initializer=nn.initializer.Normal(std=std))

    label = static.data("label", [None, 1], "int64")
    dense = static.data("dense", [None, DENSE], "float32")
    slots = [static.data(f"C{slot}", [None, 1], "int64") for slot in range(1, SLOTS + 1)]
    # Tables of servers know no normal distribution for first values; this uniform one has the same variance.
    width = 0.01 * 3**0.5
    first = paddle.ParamAttr(name="table", initializer=nn.initializer.Uniform(-width, width))
    table = nn.Embedding(most + 1, DIM, sparse=True, weight_attr=first)
    x = paddle.concat([paddle.reshape(table(slot), [-1, DIM]) for slot in slots] + [dense], axis=1)
    size = SLOTS * DIM + DENSE
    for units in HIDDEN:
        x = nn.functional.relu(nn.Linear(size, units, weight_attr=normal(size**-0.5))(x))
        size = units
    logits = nn.Linear(size, 2, weight_attr=normal(size**-0.5))(x)
    loss = paddle.mean(nn.functional.cross_entropy(logits, label))
    return [label, dense, *slots], nn.functional.softmax(logits), loss


def train(options):
    """One process: alone, a server or a trainer."""
    os.environ.setdefault("FLAGS_enable_pir_api", "0")
    import numpy as np
    import paddle
    from paddle.distributed import fleet

    paddle.enable_static()
    paddle.seed(1)
    static, with_servers = paddle.static, options.mode != "local"
    if with_servers:
        fleet.init()
    inputs, probability, loss = network(paddle, options.most)
    test_program = static.default_main_program().clone(for_test=True)
    optimizer = paddle.optimizer.Adam(1e-3, lazy_mode=True)
    if with_servers:
        strategy = fleet.DistributedStrategy()
        strategy.a_sync = True
        if options.mode == "geo":
            strategy.a_sync_configs = {"k_steps": options.k_steps}
        optimizer = fleet.distributed_optimizer(optimizer, strategy)
    optimizer.minimize(loss)
    if with_servers and fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    executor = static.Executor(paddle.CPUPlace())
    executor.run(static.default_startup_program())
    if with_servers:
        fleet.init_worker()
    rank, ranks = (fleet.worker_index(), fleet.worker_num()) if with_servers else (0, 1)
    files = sorted(glob.glob(f"{options.data}/train/*.txt"))[rank::ranks]
    dataset = paddle.distributed.InMemoryDataset()
    dataset.init(batch_size=options.batch, thread_num=options.threads, pipe_command="cat", use_var=inputs)
    dataset.set_filelist(files)
    dataset.load_into_memory()
    samples = int(dataset.get_memory_data_size())
    program = static.default_main_program()
    meet(options, "loaded", rank, ranks)
    started = time.time()
    executor.train_from_dataset(program, dataset, fetch_list=[], print_period=10**9)
    seconds = time.time() - started
    meet(options, "trained", rank, ranks)
    report = {"samples": samples, "seconds": seconds}
    if rank == 0:
        if with_servers:
            refresh_dense(paddle, fleet, options.mode)
            test_program = without_pushes(program)
        rows = np.concatenate([np.loadtxt(path, ndmin=2) for path in sorted(glob.glob(f"{options.data}/test/*.txt"))])
        scores = []
        for part in np.array_split(rows, max(1, len(rows) // 2048)):
            feed = {"label": part[:, 1:2].astype("int64"), "dense": part[:, 3:16].astype("float32")}
            feed.update({f"C{k + 1}": part[:, 17 + 2 * k : 18 + 2 * k].astype("int64") for k in range(SLOTS)})
            scores.append(executor.run(test_program, feed=feed, fetch_list=[probability])[0][:, 1])
        report["test_auc"] = auc(np, rows[:, 1], np.concatenate(scores))
    Path(options.meeting, f"report-{rank}.json").write_text(json.dumps(report))
    meet(options, "evaluated", rank, ranks)
    if with_servers:
        fleet.stop_worker()


def auc(np, label, score):
    """The share of pairs in the right order; equal scores count half."""
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[place.reshape(-1)]
    clicks = label > 0
    return float((rank[clicks].sum() - clicks.sum() * (clicks.sum() + 1) / 2) / (clicks.sum() * (~clicks).sum()))


def refresh_dense(paddle, fleet, mode):
    """Pulls the dense parameters as the servers have them: in async mode a trainer's copy may be old."""
    if mode != "async":
        return
    from paddle.distributed.ps.utils import public

    runtime = fleet.fleet._runtime_handle
    send = public.get_the_one_send_context(runtime.context, split_dense_table=False, ep_list=runtime.endpoints)
    receive = public.get_the_one_recv_context(runtime.context, split_dense_table=False)
    runtime._pull_all_dense([paddle.static.global_scope()], send, receive)


def without_pushes(program):
    """The trainer's program for evaluation: it still pulls rows from the servers, and sends nothing."""
    program = program.clone(for_test=True)
    block = program.global_block()
    for index in reversed(range(len(block.ops))):
        if block.ops[index].type in ("distributed_push_sparse", "send", "send_barrier", "recv", "fetch_barrier"):
            block._remove_op(index)
    return program


def meet(options, name, rank, ranks):
    """Waits until all trainers are here."""
    Path(options.meeting, f"{name}-{rank}").touch()
    while not all(Path(options.meeting, f"{name}-{other}").exists() for other in range(ranks)):
        time.sleep(0.02)


def environments(mode):
    """The variables of each process, as PaddlePaddle's launcher sets them; servers first."""
    if mode == "local":
        return [{}]
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(SERVERS + TRAINERS + 1)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    addresses = [f"127.0.0.1:{port}" for port in ports]
    shared = {
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(addresses[:SERVERS]),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(addresses[SERVERS:-1]),
        "PADDLE_TRAINERS_NUM": str(TRAINERS),
        "PADDLE_WITH_GLOO": "1",
        "PADDLE_GLOO_RENDEZVOUS": "3",
        "PADDLE_GLOO_HTTP_ENDPOINT": addresses[-1],
        "POD_IP": "127.0.0.1",
    }
    servers = [{**shared, "TRAINING_ROLE": "PSERVER", "PADDLE_PORT": str(port)} for port in ports[:SERVERS]]
    trainers = [
        {**shared, "TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(rank), "PADDLE_PORT": str(port)}
        for rank, port in enumerate(ports[SERVERS:-1])
    ]
    return servers + trainers


def job(options):
    """Starts all processes, waits for those that train, ends the servers, and prints the result."""
    threads = str(options.threads)
    one_thread = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "CPU_NUM": "1", "GLOG_v": "0"}
    with tempfile.TemporaryDirectory() as meeting:
        words = [sys.executable, __file__, os.path.abspath(options.data), "--mode", options.mode, "--meeting", meeting]
        words += ["--batch", str(options.batch), "--threads", threads, "--k-steps", str(options.k_steps)]
        words += ["--most", str(most_id(options.data))]
        processes = []
        try:
            for environment in environments(options.mode):
                # Their output goes to standard error: standard output is for the result.
                environment = {**os.environ, **one_thread, **environment}
                processes.append(subprocess.Popen(words, env=environment, cwd=meeting, stdout=sys.stderr))
            trainers = processes[SERVERS:] if options.mode != "local" else processes
            while any(trainer.poll() is None for trainer in trainers):
                if any(process.poll() not in (None, 0) for process in processes):
                    break
                time.sleep(0.05)
            codes = [trainer.poll() for trainer in trainers]
            if any(codes) or None in codes:
                sys.exit(f"a process failed: exit codes {[process.poll() for process in processes]}")
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
        reports = [json.loads(path.read_text()) for path in sorted(Path(meeting).glob("report-*.json"))]
    samples = sum(report["samples"] for report in reports)
    rate = samples / max(report["seconds"] for report in reports)
    print(json.dumps({"samples": samples, "samples_per_second": round(rate), "test_auc": reports[0]["test_auc"]}))


def most_id(data):
    """The largest id that the generator may have written: the table has a row for each."""
    return json.loads(Path(data, "meta.json").read_text())["spec"]["ids"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--mode", choices=["local", "async", "geo"], default="local")
    parser.add_argument("--batch", type=int, default=512, help="rows per step of each trainer")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--k-steps", type=int, default=400)
    parser.add_argument("--most", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meeting", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.meeting:
        train(options)
    else:
        job(options)


if __name__ == "__main__":
    main()
