"""Gives every test its own programs, names and scope."""

import os
import random

import pytest

from openfleet import static


@pytest.fixture(autouse=True)
def _fresh():
    programs = static.Program(), static.Program()
    with static.program_guard(*programs), static.unique_name.guard(), static.scope_guard(static.Scope()):
        yield


@pytest.fixture
def job_of_its_own():
    """Lets a test call `fleet.init` in this process, and leaves no job behind."""
    from openfleet.fleet import _job

    before = dict(vars(_job))
    yield
    vars(_job).update(before)


@pytest.fixture
def clicks(tmp_path):
    """Writes MultiSlot files of label, two floats and two slots; the click depends on the first slot."""

    def write(files=2, rows=400, seed=0):
        chance = random.Random(seed)
        paths = []
        for number in range(files):
            path = tmp_path / f"part-{number}.txt"
            with open(path, "w") as out:
                for _ in range(rows):
                    user, item = chance.randrange(40), [chance.randrange(100) for _ in range(chance.randrange(3))]
                    click = int(chance.random() < (0.9 if user % 2 else 0.1))
                    items = " ".join(map(str, [len(item), *item]))
                    out.write(f"1 {click} 2 {chance.random():.3f} {chance.random():.3f} 1 {user} {items}\n")
            paths.append(os.fspath(path))
        return paths

    return write


class Clicks:
    """A small click model over the fields of `clicks`."""

    def __init__(self, optimizer=None):
        self.label = static.data("label", [None, 1], "int64")
        self.dense = static.data("dense", [None, 2])
        self.slots = [static.data(name, [None, 1], "int64", lod_level=1) for name in ("user", "item")]
        parts = [static.nn.embedding(slot, size=[1000, 4], is_sparse=True) for slot in self.slots]
        x = static.nn.concat([*parts, self.dense], axis=1)
        x = static.nn.fc(x, size=8, activation="relu")
        self.probability = static.nn.fc(x, size=1, activation="sigmoid")
        losses = static.nn.log_loss(self.probability, static.nn.cast(self.label, "float32"))
        self.loss = static.nn.mean(losses)
        self.auc, self.batch_auc, self.counters = static.nn.auc(self.probability, self.label)
        self.fields = [self.label, self.dense, *self.slots]
        if optimizer is not None:
            optimizer.minimize(self.loss)


@pytest.fixture
def click_model():
    return Clicks
