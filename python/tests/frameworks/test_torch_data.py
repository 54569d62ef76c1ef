"""OpenFleet's datasets as datasets of PyTorch, and rows that are looked up ahead.

Run by `make test-frameworks`; skipped where PyTorch is not installed.
"""

import gzip
import importlib.util
import random

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: `make test-frameworks` installs it", allow_module_level=True)

import torch  # noqa: E402

from openfleet import DataError, OrderError, fleet  # noqa: E402
from openfleet.torch import Dataset, Embedding, EmbeddingBag, EmbeddingCollection, prefetch  # noqa: E402

FIELDS = {"label": (torch.int64, 1), "dense": (torch.float32, 2), "user": (torch.int64, 1), "items": torch.int64}


@pytest.fixture
def rows(tmp_path):
    """Writes three files of MultiSlot text, one of them compressed, and returns them and their rows."""
    chance, files, written = random.Random(1), [], []
    for number in range(3):
        lines = []
        for _ in range(10):
            items = [chance.randrange(2**63, 2**64) for _ in range(chance.randrange(4))]
            row = chance.randrange(2), [chance.randrange(8) / 4, 0.5], len(written), items
            label, dense, user, _ = row
            lines.append(f"1 {label} 2 {dense[0]} {dense[1]} 1 {user} {len(items)} {' '.join(map(str, items))}\n")
            written.append(row)
        file = tmp_path / f"part-{number}.txt{'.gz' if number == 1 else ''}"
        (gzip.open if number == 1 else open)(file, "wt").writelines(lines)
        files.append(file)
    return files, written


def read(batches):
    """The rows of all batches."""
    found = []
    for batch in batches:
        ids, offsets = batch["items"]
        ends = [*offsets.tolist()[1:], len(ids)]
        for at in range(len(batch["label"])):
            items = [each % 2**64 for each in ids[offsets[at] : ends[at]].tolist()]
            found.append((batch["label"][at].item(), batch["dense"][at].tolist(), batch["user"][at].item(), items))
    return found


def users(batches):
    return [user for _, _, user, _ in read(batches)]


def test_batches_have_the_rows_of_the_files_in_their_order_in_every_pass(rows):
    files, written = rows
    dataset = Dataset(files, FIELDS, batch_size=7)
    batches = list(dataset)
    assert [len(batch["label"]) for batch in batches] == [7, 7, 7, 7, 2]
    assert batches[0]["dense"].shape == (7, 2) and batches[0]["dense"].dtype == torch.float32
    assert read(batches) == written == read(dataset)
    assert len(list(Dataset(files, FIELDS, batch_size=7, drop_last=True))) == 4
    bag = torch.nn.EmbeddingBag(100, 2, mode="sum")
    ids, offsets = batches[0]["items"]
    assert bag(ids % 100, offsets).shape == (7, 2)


def test_a_pass_that_ends_early_leaves_nothing_behind(rows):
    files, written = rows
    dataset = Dataset(files, FIELDS, batch_size=2)
    for _ in range(50):
        next(iter(dataset))
    assert read(dataset) == written


def test_rows_are_shuffled_anew_in_each_pass_and_in_the_same_way_in_each_run(rows):
    files, written = rows
    dataset = Dataset(files, FIELDS, batch_size=7, shuffle_seed=3)
    first, second = read(dataset), read(dataset)
    again = Dataset(files, FIELDS, batch_size=7, shuffle_seed=3)
    assert (first, second) == (read(again), read(again))
    assert first != second and first != written
    assert sorted(first) == sorted(second) == sorted(written)


@pytest.mark.parametrize("context, seed", [("fork", None), ("fork", 3), ("spawn", 3)])
def test_workers_of_a_data_loader_read_every_row_once_and_shuffle_each_pass(rows, context, seed):
    files, written = rows
    dataset = Dataset(files, FIELDS, batch_size=4, shuffle_seed=seed)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context)
    torch.manual_seed(0)
    first, second = read(loader), read(loader)
    assert sorted(first) == sorted(second) == sorted(written)
    assert (first == second) == (seed is None)
    torch.manual_seed(0)
    assert read(loader) == first


def test_a_worker_of_a_job_reads_its_part_also_in_other_processes(rows, job_of_its_own):
    files, written = rows
    dataset = Dataset(files, FIELDS, batch_size=4)
    fleet.init(fleet.UserDefinedRoleMaker(1, fleet.Role.WORKER, 2, ["127.0.0.1:6001"]))
    assert users(dataset) == list(range(20, 30))
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert users(loader) == list(range(20, 30))
    fleet.init(fleet.UserDefinedRoleMaker(3, fleet.Role.WORKER, 4, ["127.0.0.1:6001"]))
    assert users(dataset) == []


def test_other_formats_find_their_fields_by_name(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("clicked,age,city\n1,30,Rome\n0,50,\n")
    columns = {"label": {"column": "clicked"}, "dense": [{"column": "age"}], "categorical": [{"column": "city"}]}
    fields = {"city": torch.int64, "label": (torch.float32, 1), "dense": (torch.float32, 1)}
    [batch] = Dataset([file], fields, batch_size=8, format="csv", columns=columns)
    assert batch["label"].tolist() == [[1.0], [0.0]] and batch["dense"].tolist() == [[30.0], [50.0]]
    ids, offsets = batch["city"]
    assert len(ids) == 1 and offsets.tolist() == [0, 1]


def test_wrong_files_and_fields_are_named(rows, tmp_path, caplog):
    files, _ = rows
    with pytest.raises(TypeError, match=r"the field `label` expects `\(torch.float32, n\)`"):
        Dataset(files, {"label": torch.float32}, batch_size=4)
    with pytest.raises(FileNotFoundError, match="missing.txt"):
        list(Dataset([*files, tmp_path / "missing.txt"], FIELDS, batch_size=4))
    bad = tmp_path / "bad.txt"
    bad.write_text("1 0 2 0.5 0.5 1 3 0\n1 0 2 0.5 x 1 3 0\n")
    with pytest.raises(DataError, match=r"bad.txt(?s:.*)dense"):
        list(Dataset([bad], FIELDS, batch_size=4))
    with caplog.at_level("WARNING"):
        assert len(users(Dataset([bad], FIELDS, batch_size=4, skip_bad_lines=True))) == 1
    assert "1 malformed lines were skipped in 1 files" in caplog.text


@pytest.fixture
def model(job_of_its_own):
    fleet.init()
    features = {"user": Embedding(4), "items": EmbeddingBag(4, table="items")}
    model = torch.nn.ModuleDict({"features": EmbeddingCollection(features), "item": Embedding(4, table="items")})
    model["layer"] = torch.nn.Linear(4, 1)
    return model


def test_batches_are_looked_up_one_ahead_and_stay_as_they_are(rows, model):
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    dataset = Dataset(rows[0], FIELDS, batch_size=10)
    embeddings = {
        model["features"]: lambda batch: {"user": batch["user"], "items": batch["items"]},
        model["item"]: "user",
    }
    calls = []
    look_ahead, look_up = optimizer.tables.look_ahead, optimizer.tables.look_up

    def listening_ahead(wanted):
        calls.append(("ahead", [(table, ids.tolist()) for table, ids in wanted]))
        look_ahead(wanted)

    def listening(module, wanted):
        calls.append(("now", [(table, ids.tolist()) for table, ids in wanted.items()]))
        return look_up(module, wanted)

    optimizer.tables.look_ahead, optimizer.tables.look_up = listening_ahead, listening
    loader = prefetch(dataset, embeddings)
    seen = []
    for batch in loader:
        model["features"]({"user": batch["user"], "items": batch["items"]})
        model["item"](batch["user"])
        seen += users([batch])
    assert seen == list(range(30))
    assert [kind for kind, _ in calls] == ["ahead", "ahead", "now", "now", "ahead", "now", "now", "now", "now"]
    ahead = [wanted for kind, wanted in calls if kind == "ahead"]
    now = [wanted for kind, wanted in calls if kind == "now"]
    assert ahead == [now[0] + now[1], now[2] + now[3], now[4] + now[5]]
    # Nothing is looked up ahead for an evaluation.
    calls.clear()
    with torch.no_grad():
        assert users(loader) == list(range(30))
    model.eval()
    assert users(loader) == list(range(30)) and calls == []


def test_a_loader_without_batches_is_empty(model):
    fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    assert list(prefetch([], model["item"])) == []
    assert len(prefetch([torch.tensor([1])], model["item"])) == 1


def test_wrong_embeddings_are_named(model):
    with pytest.raises(TypeError, match="expects embeddings of `openfleet.torch`, got Linear"):
        prefetch([], {model["layer"]: 0})
    with pytest.raises(OrderError, match="has no tables yet"):
        list(prefetch([torch.tensor([1])], model["item"]))
