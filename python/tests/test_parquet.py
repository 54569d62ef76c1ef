"""Parquet and Arrow files train the model that CSV files with the same values train."""

import json
import os
import random
import subprocess
import sys

import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
from processes import environment

from openfleet import DataError, static
from openfleet.dataset import InMemoryDataset, QueueDataset

COLUMNS = {
    "label": {"column": "clicked"},
    "dense": [{"column": "age", "mean": 40.0, "std": 10.0}, {"column": "price", "log": True}],
    "categorical": [{"column": "city"}, {"column": "user"}, {"column": "tags", "multi": "|"}],
    "ignore": ["note"],
}


@pytest.fixture
def table():
    chance = random.Random(1)
    rows = []
    for _ in range(600):
        user = chance.randrange(50)
        rows.append(
            {
                "clicked": int(chance.random() < (0.9 if user % 2 else 0.1)),
                "age": None if chance.random() < 0.1 else chance.randrange(18, 70) + 0.5,
                "price": chance.random() * 100,
                "city": chance.choice(["Rome", "Oslo, or so", None]),
                "user": user,
                "tags": [f"t{chance.randrange(9)}" for _ in range(chance.randrange(3))],
                "note": "x",
            }
        )
    table = pyarrow.Table.from_pylist(rows)
    # What pandas writes for a categorical column.
    return table.set_column(3, "city", table["city"].dictionary_encode())


@pytest.fixture
def files(table, tmp_path):
    """The same rows in each kind of file."""
    names = {"csv": "rows.csv", "parquet": "rows.parquet", "feather": "rows.feather", "stream": "rows.arrows"}
    paths = {kind: os.fspath(tmp_path / name) for kind, name in names.items()}
    with open(paths["csv"], "w") as out:
        out.write(",".join(table.column_names) + "\n")
        for row in table.to_pylist():
            row["tags"] = "|".join(row["tags"])
            out.write(",".join("" if value is None else f'"{value}"' for value in row.values()) + "\n")
    pyarrow.parquet.write_table(table, paths["parquet"], row_group_size=170, compression="zstd")
    pyarrow.feather.write_feather(table, paths["feather"])
    zstd = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    with pyarrow.ipc.new_stream(paths["stream"], table.schema, options=zstd) as writer:
        writer.write_table(table, max_chunksize=99)
    return paths


def trained(kind, file, dataset=QueueDataset):
    """Trains a small model and returns its parameters and rows."""
    with static.program_guard(static.Program(), static.Program()), static.scope_guard(static.Scope()):
        with static.unique_name.guard():
            label, dense = static.data("label", [None, 1], "int64"), static.data("dense", [None, 2])
            slots = [static.data(name, [None, 1], "int64", lod_level=1) for name in ("city", "user", "tags")]
            attr = static.ParamAttr(name="table")
            vectors = [static.nn.sparse_embedding(slot, [0, 4], param_attr=attr, pooling="sum") for slot in slots]
            logit = static.nn.fc(static.nn.concat([dense, *vectors], axis=1), 1)
            losses = static.nn.sigmoid_cross_entropy_with_logits(logit, static.nn.cast(label, "float32"))
            static.optimizer.Adam(0.01).minimize(static.nn.mean(losses))
        data = dataset()
        data.init(
            batch_size=32,
            use_var=[label, dense, *slots],
            format="csv" if kind == "csv" else "parquet",
            columns=COLUMNS,
        )
        data.set_filelist([file])
        if dataset is InMemoryDataset:
            data.load_into_memory()
            data.local_shuffle(seed=3)
        exe = static.Executor()
        exe.run(static.default_startup_program())
        for _ in range(2):
            report = exe.train_from_dataset(static.default_main_program(), data)
        assert report.samples == 600
        scope = static.global_scope()
        values = [np.asarray(scope.var(name).get_tensor()) for name in scope.names() if name.startswith("fc")]
        return values, scope.var("table").rows()


@pytest.mark.parametrize("dataset", [QueueDataset, InMemoryDataset])
def test_files_of_columns_train_the_model_of_csv_to_the_bit(files, dataset):
    expected, rows = trained("csv", files["csv"], dataset)
    assert rows == 50 + 9 + 2
    for kind in ("parquet", "feather", "stream"):
        values, count = trained(kind, files[kind], dataset)
        assert count == rows
        for one, other in zip(expected, values):
            assert np.array_equal(one, other), kind


def test_a_dictionary_without_values_is_missing_in_every_row(files, table, tmp_path):
    nothing = pyarrow.array([None] * len(table), pyarrow.dictionary(pyarrow.int32(), pyarrow.string()))
    pyarrow.feather.write_feather(table.set_column(3, "city", nothing), tmp_path / "nothing.feather")
    assert trained("feather", os.fspath(tmp_path / "nothing.feather"))[1] == 50 + 9


def test_a_wrong_column_is_named(files, table, tmp_path):
    other = os.fspath(tmp_path / "other.parquet")
    pyarrow.parquet.write_table(table.drop_columns(["age"]), other)
    with pytest.raises(DataError, match=r"other.parquet`, column `age`: expected a column of this name"):
        trained("parquet", other)
    times = pyarrow.array([0] * len(table), pyarrow.timestamp("s"))
    pyarrow.parquet.write_table(table.set_column(1, "age", times), other)
    with pytest.raises(
        DataError, match=r"column `age`: expected numbers, texts, booleans, or lists of them, got `Timestamp"
    ):
        trained("parquet", other)
    with pytest.raises(DataError, match=r"rows.csv`: expected a Parquet or Arrow file"):
        trained("parquet", files["csv"])


DESCRIPTION = """
label = { column = "clicked" }
dense = [{ column = "age", mean = 40.0, std = 10.0 }, { column = "price", log = true }]
categorical = [{ column = "city" }, { column = "user" }, { column = "tags", multi = "|" }]
ignore = ["note"]
"""


def test_the_command_line_trains_from_parquet_as_from_csv(files, tmp_path):
    (tmp_path / "columns.toml").write_text(DESCRIPTION)

    def openfleet(*arguments):
        command = [sys.executable, "-m", "openfleet", *arguments]
        options = {"cwd": tmp_path, "env": environment(), "capture_output": True, "text": True, "timeout": 120}
        ran = subprocess.run(command, check=False, **options)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    found = {}
    for kind in ("csv", "parquet"):
        data = ["--format", kind, "--columns", "columns.toml", "--train", files[kind], "--test", files[kind]]
        model = ["--model", "ctr_dnn", "--hidden", "16,8", "--threads", "1", "--seed", "1"]
        model += ["--batch-size", "16", "--epochs", "20"]
        said = openfleet("train", *model, *data, "--save", kind, "--json")
        report = json.loads(said.splitlines()[-1])
        found[kind] = report["test_auc"], report["test_logloss"], report["train_loss"]
    assert found["csv"] == found["parquet"] and found["csv"][0] > 0.8
