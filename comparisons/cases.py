"""What `compare.py` runs: each case is one command, with the case of OpenFleet that it is compared with.

All cases of a subject train the same model on the same files, with the same batch size, optimizer and number of
threads. Every command prints one line of JSON with `samples_per_second` (or `words_per_second`) and, except for
word vectors, `test_auc`. This file starts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
OURS = "openfleet"
#: Subject -> its heading.
SUBJECTS = {
    "local": "CTR-DNN in one process",
    "servers": "CTR-DNN with two servers and two workers",
    "ranks": "CTR-DNN on two ranks without servers",
    "wide_deep": "Wide & Deep",
    "word2vec": "Word2Vec",
    "startup": "Start-up",
    "slow_network": "CTR-DNN with two servers and two workers in a slow network",
}
#: In one network namespace, only `lo` exists.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}


@dataclass(frozen=True)
class Case:
    """One line of a table."""

    key: str
    subject: str
    peer: str
    name: str
    command: list[str]
    #: Key of the case of OpenFleet that this peer is compared with.
    against: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    #: Word vectors: the file that the command writes.
    vectors: Path | None = None


@dataclass(frozen=True)
class Inputs:
    """Files and programs that the commands need."""

    clicks: Path
    few_clicks: Path
    words: Path
    binaries: Path
    logs: Path
    #: Peer -> its Python.
    pythons: dict[str, Path]
    batch: int = 512
    #: A program and its arguments that run a job within a slow network.
    network: tuple[str, ...] = ()


def cases(inputs: Inputs) -> list[Case]:
    """All cases whose peer is there, in the order in which a round runs them."""
    built = [*local(inputs), *servers(inputs), *ranks(inputs), *wide_deep(inputs), *word2vec(inputs), *startup(inputs)]
    if inputs.network:
        built += slow_network(inputs)
    return [case for case in built if case.peer == OURS or case.peer in inputs.pythons]


def train(inputs: Inputs, model: list[str], options: list[str], clicks: Path | None = None) -> list[str]:
    """`openfleet train` on click data, with all rows in memory as the peers have them."""
    clicks = clicks or inputs.clicks
    files = ["--train", f"{clicks}/train/*.txt", "--test", f"{clicks}/test/*.txt", "--batch-size", str(inputs.batch)]
    return [str(inputs.binaries / "openfleet"), "train", "--model", *model, *files, "--in-memory", "--json", *options]


def job(inputs: Inputs, key: str, words: list[str], command: list[str]) -> list[str]:
    """A command under `fleetrun`."""
    return [str(inputs.binaries / "fleetrun"), "--log_dir", str(inputs.logs / f"{key}-job"), *words, *command]


TWO_BY_TWO = ["--server_num=2", "--worker_num=2"]
#: Options per mode; every worker has one training thread.
MODES = {
    "sync": ["--mode", "sync", "--threads", "1"],
    "async": ["--mode", "async", "--threads", "1"],
    "geo": ["--mode", "geo", "--k-steps", "400", "--threads", "1"],
}
MODE_NAMES = {"sync": "sync", "async": "async", "geo": "geo, k = 400"}


def script(inputs: Inputs, peer: str, name: str, *words: str) -> list[str]:
    """A script of this folder in the environment of a peer."""
    return [str(inputs.pythons.get(peer, "python")), str(HERE / name), *words]


def local(inputs: Inputs) -> list[Case]:
    built = []
    for threads, many in [(1, "one thread"), (2, "two threads")]:
        ours = f"local-ours-{threads}"
        options = ["--threads", str(threads)]
        built.append(Case(ours, "local", OURS, many, train(inputs, ["ctr_dnn"], options)))
        for peer, file in [("torch", "ctr_dnn_torch.py"), ("torchrec", "ctr_dnn_torchrec.py")]:
            command = script(inputs, peer, file, str(inputs.clicks), *options, "--batch", str(inputs.batch))
            built.append(Case(f"local-{peer}-{threads}", "local", peer, many, command, ours))
        if threads == 1:  # its threads train by Hogwild, each on batches of its own: another algorithm
            command = script(inputs, "paddle", "ctr_dnn_paddle.py", str(inputs.clicks), "--batch", str(inputs.batch))
            built.append(Case("local-paddle-1", "local", "paddle", many, command, ours))
    return built


def servers(inputs: Inputs, subject: str = "servers", prefix: tuple[str, ...] = ()) -> list[Case]:
    built = []
    for mode, options in MODES.items():
        key = f"{subject}-ours-{mode}"
        command = job(inputs, key, TWO_BY_TWO, train(inputs, ["ctr_dnn"], options))
        built.append(Case(key, subject, OURS, MODE_NAMES[mode], [*prefix, *command]))
    batch = ["--batch", str(inputs.batch)]
    command = script(inputs, "torch", "ctr_dnn_torch_rpc.py", str(inputs.clicks), *batch)
    name = "`torch.distributed.rpc`, each step waits"
    rpc = Case(f"{subject}-torch-rpc", subject, "torch", name, [*prefix, *command], f"{subject}-ours-sync", LOOPBACK)
    built.append(rpc)
    for mode in ["async", "geo"]:
        words = [str(inputs.clicks), "--mode", mode, "--k-steps", "400", *batch]
        command = [*prefix, *script(inputs, "paddle", "ctr_dnn_paddle.py", *words)]
        key, against = f"{subject}-paddle-{mode}", f"{subject}-ours-{mode}"
        built.append(Case(key, subject, "paddle", MODE_NAMES[mode], command, against))
    return built


def slow_network(inputs: Inputs) -> list[Case]:
    return servers(inputs, "slow_network", inputs.network)


def data_parallel(inputs: Inputs, clicks: Path) -> list[str]:
    """DDP on two ranks; its ranks find each other over loopback."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    script = [str(HERE / "collective.py"), str(clicks), "--rank", "--batch", str(inputs.batch)]
    return [str(inputs.pythons.get("torch", "python")), *launcher, *script]


def ranks(inputs: Inputs) -> list[Case]:
    ours = train(inputs, ["ctr_dnn"], ["--mode", "collective", "--threads", "1"])
    command = job(inputs, "ranks-ours", ["--nproc_per_node=2"], ours)
    ddp = data_parallel(inputs, inputs.clicks)
    return [
        Case("ranks-ours", "ranks", OURS, "collective", command),
        Case("ranks-torch", "ranks", "torch", "DDP over gloo", ddp, "ranks-ours", LOOPBACK),
    ]


def wide_deep(inputs: Inputs) -> list[Case]:
    model = ["wide_deep", "--dim", "16", "--hidden", "256,128,64"]
    ours = "wide_deep-ours-local"
    two = ["--threads", "2"]
    words = [str(inputs.clicks), "--model", "wide_deep", *two, "--batch", str(inputs.batch)]
    peer = script(inputs, "torch", "ctr_dnn_torch.py", *words)
    built = [
        Case(ours, "wide_deep", OURS, "one process, two threads", train(inputs, model, two)),
        Case("wide_deep-torch", "wide_deep", "torch", "one process, two threads", peer, ours),
    ]
    for mode in ["async", "geo"]:
        key = f"wide_deep-ours-{mode}"
        command = job(inputs, key, TWO_BY_TWO, train(inputs, model, MODES[mode]))
        built.append(Case(key, "wide_deep", OURS, f"two servers, two workers, {MODE_NAMES[mode]}", command))
    return built


EPOCHS = 2


def word2vec(inputs: Inputs) -> list[Case]:
    text, pairs = str(inputs.words / "words.txt"), str(inputs.words / "pairs.tsv")

    def ours(key: str, name: str, launcher: list[str], options: list[str]) -> Case:
        vectors = inputs.logs / f"{key}.vectors"
        shape = ["--dim", "100", "--window", "5", "--negative", "5", "--subsample", "1e-4", "--min-count", "5"]
        command = [str(inputs.binaries / "openfleet"), "train", "--model", "word2vec", "--train", text, *shape]
        command += ["--epochs", str(EPOCHS), "--vectors", str(vectors), "--json", *options]
        command = job(inputs, key, launcher, command) if launcher else command
        return Case(key, "word2vec", OURS, name, command, vectors=vectors)

    vectors = inputs.logs / "word2vec-gensim.vectors"
    options = ["--only", "gensim", "--threads", "2", "--epochs", str(EPOCHS), "--vectors", str(vectors)]
    command = script(inputs, "gensim", "word2vec_gensim.py", text, pairs, *options)
    local, two = "word2vec-ours-local", "one process, two threads"
    return [
        ours(local, two, [], ["--threads", "2"]),
        Case("word2vec-gensim", "word2vec", "gensim", two, command, local, vectors=vectors),
        ours("word2vec-ours-async", "two servers, two workers, async", TWO_BY_TWO, MODES["async"]),
        ours("word2vec-ours-geo", "two servers, two workers, geo, k = 400", TWO_BY_TWO, MODES["geo"]),
    ]


def startup(inputs: Inputs) -> list[Case]:
    """From the call to the exit of a job on a few rows."""
    few = inputs.few_clicks
    alone, together, group = "one process", "two servers, two workers", "two ranks"
    ctr = ["ctr_dnn"]
    by_async = job(inputs, "startup-ours-servers", TWO_BY_TWO, train(inputs, ctr, MODES["async"], few))
    collective = train(inputs, ctr, ["--mode", "collective", "--threads", "1"], few)
    by_ranks = job(inputs, "startup-ours-ranks", ["--nproc_per_node=2"], collective)
    built = [
        Case("startup-ours-local", "startup", OURS, alone, train(inputs, ctr, ["--threads", "1"], few)),
        Case("startup-ours-servers", "startup", OURS, together, by_async),
        Case("startup-ours-ranks", "startup", OURS, group, by_ranks),
    ]
    for key, peer, name, file, words in [
        ("local", "torch", alone, "ctr_dnn_torch.py", ["--threads", "1"]),
        ("servers", "torch", together, "ctr_dnn_torch_rpc.py", []),
        ("local", "paddle", alone, "ctr_dnn_paddle.py", []),
        ("servers", "paddle", together, "ctr_dnn_paddle.py", ["--mode", "async"]),
    ]:
        command, ours = script(inputs, peer, file, str(few), *words), f"startup-ours-{key}"
        built.append(Case(f"startup-{peer}-{key}", "startup", peer, name, command, ours, LOOPBACK))
    ddp = data_parallel(inputs, few)
    built.append(Case("startup-torch-ranks", "startup", "torch", group, ddp, "startup-ours-ranks", LOOPBACK))
    return built
