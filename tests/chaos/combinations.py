"""What a run is: one value per dimension, and a selection in which every pair of values occurs.

This module knows nothing of processes. A run has a name that says everything about it, its seed included, so that the
name alone reproduces it: `sync.server.kill.cli.e3.t2.saves.83121`.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator

MODES = ("sync", "half_async", "async", "hybrid", "geo")
VICTIMS = ("worker", "server", "both", "reader", "network", "nobody")
FAULTS = ("kill", "term", "stop5", "stop30", "reset", "fail", "drop", "none")
FORMS = ("cli", "dataset", "feed", "torch")
EPOCHS = (1, 3)
THREADS = (1, 2)
SAVES = (False, True)

# These faults have one victim, and it has no other fault.
ONLY_VICTIM = {"fail": "reader", "drop": "network", "none": "nobody"}


@dataclasses.dataclass(frozen=True)
class Combination:
    """One value per dimension."""

    mode: str
    victim: str
    fault: str
    form: str
    epochs: int
    threads: int
    saves: bool

    def is_possible(self) -> bool:
        if self.form in ("feed", "torch") and self.threads != 1:
            return False  # `exe.run` and a loop of PyTorch are one thread
        if self.fault in ONLY_VICTIM:
            return self.victim == ONLY_VICTIM[self.fault]
        return self.victim not in ONLY_VICTIM.values()

    def pairs(self) -> Iterator[tuple[object, ...]]:
        values = list(enumerate(dataclasses.astuple(self)))
        return itertools.combinations(values, 2)


@dataclasses.dataclass(frozen=True)
class Run:
    """A combination with the seed of everything random about it: data, moment of the fault, rank of the victim."""

    what: Combination
    seed: int

    @property
    def name(self) -> str:
        what = self.what
        saves = "saves" if what.saves else "plain"
        dimensions = (what.mode, what.victim, what.fault, what.form, f"e{what.epochs}", f"t{what.threads}", saves)
        return ".".join((*dimensions, str(self.seed)))

    @staticmethod
    def parse(name: str) -> Run:
        """Parses the name of a run. Raises ValueError for anything else."""
        parts = name.split(".")
        if len(parts) != 8:
            raise ValueError(f"expected 8 parts with dots between them, got {len(parts)} in `{name}`")
        mode, victim, fault, form, epochs, threads, saves, seed = parts
        what = Combination(mode, victim, fault, form, int(epochs[1:]), int(threads[1:]), saves == "saves")
        run = Run(what, int(seed))
        if what not in every_combination() or run.name != name:
            raise ValueError(f"`{name}` is not the name of a run")
        return run


def every_combination() -> list[Combination]:
    """Returns all valid combinations."""
    product = itertools.product(MODES, VICTIMS, FAULTS, FORMS, EPOCHS, THREADS, SAVES)
    return [what for what in itertools.starmap(Combination, product) if what.is_possible()]


def select(candidates: list[Combination], count: int, seed: int) -> list[Run]:
    """`count` runs whose combinations cover as many pairs of values as they can.

    Greedy: the next combination is the one with the most pairs that have not occurred; the seed breaks ties. When every
    pair has occurred, counting starts again, so that a long selection covers every pair many times.
    """
    chance = random.Random(seed)
    pairs = {what: frozenset(what.pairs()) for what in candidates}
    every_pair = frozenset().union(*pairs.values())
    uncovered: set[tuple[object, ...]] = set()
    unused: list[Combination] = []
    runs = []
    while candidates and len(runs) < count:
        if not uncovered:
            uncovered = set(every_pair)
        if not unused:
            unused = chance.sample(candidates, len(candidates))
        best = max(unused, key=lambda what: len(pairs[what] & uncovered))
        if not pairs[best] & uncovered:
            # The remaining candidates cover no new pair: start over with all candidates.
            unused = chance.sample(candidates, len(candidates))
            continue
        unused.remove(best)
        uncovered -= pairs[best]
        runs.append(Run(best, chance.randrange(1_000_000)))
    return runs
