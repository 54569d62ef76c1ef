import os
import signal
import sys
import threading

import numpy as np
import pytest

from openfleet import DataError, OrderError, models, static
from openfleet.dataset import InMemoryDataset, MultiSlotDataGenerator, QueueDataset, WordsDataset


def dataset(kind, model, files, **options):
    made = kind()
    made.init(batch_size=32, use_var=model.fields, **options)
    made.set_filelist(files)
    return made


def trained(model):
    exe = static.Executor()
    exe.run(static.default_startup_program())
    return exe


def test_train_evaluate_train_evaluate_in_one_process(clicks, click_model, capsys):  # story 9
    model = click_model()
    test = static.default_main_program().clone(for_test=True)
    static.optimizer.Adam(0.01).minimize(model.loss)
    exe, data = trained(model), dataset(InMemoryDataset, model, clicks())
    data.load_into_memory()
    assert data.get_memory_data_size() == 800
    values = []
    for _ in range(4):
        data.local_shuffle()
        report = exe.train_from_dataset(dataset=data, fetch_list=[model.auc], fetch_info=["train auc"], print_period=10)
        assert (report.samples, report.steps) == (800, 25)
        for counter in model.counters:
            tensor = static.global_scope().find_var(counter.name).get_tensor()
            tensor.set(np.zeros(tensor.shape(), "int64"))
        exe.infer_from_dataset(test, data)
        positive, negative = (np.array(static.global_scope().find_var(c.name).get_tensor()) for c in model.counters[2:])
        assert positive.sum() + negative.sum() == 800
        values.append((positive * np.arange(positive.size)).sum() / positive.sum() / positive.size)
    assert values[-1] > values[0], "clicks are predicted higher and higher"
    assert "batch 20: train auc 0." in capsys.readouterr().out
    data.release_memory()
    assert data.get_memory_data_size() == 0


def test_debug_prints_where_the_time_went(clicks, click_model, capsys):
    model = click_model()
    static.optimizer.Adam(0.01).minimize(model.loss)
    report = trained(model).train_from_dataset(dataset=dataset(QueueDataset, model, clicks()), debug=True)
    phases = dict(report.phases)
    assert list(phases) == ["data", "pull", "compute", "push", "barrier"]
    assert phases["compute"] > 0
    assert sum(phases.values()) >= report.waited_seconds
    printed = capsys.readouterr().out
    assert all(f" s  {phase}\n" in printed for phase in phases), printed


def test_a_missing_file_and_an_empty_list_are_errors(clicks, click_model):  # story 6
    model = click_model(static.optimizer.SGD(0.1))
    exe = trained(model)
    with pytest.raises(FileNotFoundError, match="nowhere.txt"):
        exe.train_from_dataset(dataset=dataset(QueueDataset, model, [*clicks(), "nowhere.txt"]))
    with pytest.raises(ValueError, match="has no rows"):
        exe.train_from_dataset(dataset=dataset(QueueDataset, model, []))
    with pytest.raises(OrderError, match="load_into_memory"):
        exe.train_from_dataset(dataset=dataset(InMemoryDataset, model, clicks()))


def test_bad_lines_name_file_line_and_slot(clicks, click_model):  # stories 7 and 8
    model = click_model(static.optimizer.SGD(0.1))
    exe = trained(model)
    (file,) = clicks(files=1, rows=3)
    with open(file, "a") as out:
        out.write("1 0 2 0.5 rubbish 1 3 0\n")
    with pytest.raises(DataError, match="line 4.*`dense`.*rubbish"):
        exe.train_from_dataset(dataset=dataset(QueueDataset, model, [file]))
    report = exe.train_from_dataset(dataset=dataset(QueueDataset, model, [file], skip_bad_lines=True))
    assert (report.samples, report.skipped_lines) == (3, 1)


def test_a_pipe_command_that_crashes_is_an_error_with_its_stderr(clicks, click_model):  # story 21
    model = click_model(static.optimizer.SGD(0.1))
    command = f"{sys.executable} -c 'import sys; sys.exit(\"no such column\")'"
    with pytest.raises(DataError, match="exit code 1[^~]*no such column"):
        trained(model).train_from_dataset(dataset=dataset(QueueDataset, model, clicks(), pipe_command=command))


READER = """
from openfleet.dataset import MultiSlotDataGenerator

class Reader(MultiSlotDataGenerator):
    def generate_sample(self, line):
        def rows():
            click, user = line.split(",")
            yield [("label", [int(click)]), ("dense", [0.5, 1.5]), ("user", [int(user)]), ("item", [])]
        return rows

Reader().run_from_stdin()
"""


def test_a_data_generator_is_a_pipe_command(tmp_path, click_model):
    (tmp_path / "reader.py").write_text(READER)
    (tmp_path / "rows.csv").write_text("".join(f"{i % 2},{i}\n" for i in range(50)))
    model = click_model(static.optimizer.SGD(0.1))
    command = f"{sys.executable} {tmp_path}/reader.py"
    data = dataset(QueueDataset, model, [tmp_path / "rows.csv"], pipe_command=command)
    assert trained(model).train_from_dataset(dataset=data).samples == 50


def test_a_data_generator_rejects_values_that_are_not_numbers():
    with pytest.raises(ValueError, match="slot `a` expects integers or floats, got 'x'"):
        MultiSlotDataGenerator()._gen_str([("a", ["x"])])


@pytest.fixture
def _hears_ctrl_c():
    """A shell's background jobs, and what they start, ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_a_pass_and_the_executor_can_be_used_again(clicks, click_model, _hears_ctrl_c):
    model = click_model(static.optimizer.SGD(0.1))
    exe = trained(model)
    # A pipe command that would run for two minutes.
    command = "timeout 120 sh -c 'while true; do echo 1 0 2 0 0 1 1 0; done'"
    data = dataset(QueueDataset, model, clicks(files=1), pipe_command=command)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        exe.train_from_dataset(dataset=data)
    assert exe.train_from_dataset(dataset=dataset(QueueDataset, model, clicks())).samples == 800


def test_csv_and_libsvm_are_read_by_their_own_descriptions(tmp_path):
    label, dense = static.data("label", [None, 1], "int64"), static.data("dense", [None, 1])
    city, ids = (static.data(name, [None, 1], "int64", lod_level=1) for name in ("city", "ids"))
    (tmp_path / "rows.csv").write_text("clicked,age,city\nyes,30,Rome\nno,50,\nyes,?,Oslo\n")
    (tmp_path / "columns.toml").write_text(
        'missing = ["?"]\nlabel = { column = "clicked", positive = ["yes"] }\n'
        '[[dense]]\ncolumn = "age"\n[[categorical]]\ncolumn = "city"\n'
    )
    (tmp_path / "rows.svm").write_text("+1 3:1 7:1\n-1 1:0.5 9:1\n")
    described = {
        "missing": ["?"],
        "label": {"column": "clicked", "positive": ["yes"]},
        "dense": [{"column": "age"}],
        "categorical": [{"column": "city"}],
    }
    cases = [
        ("csv", described, "rows.csv", [label, dense, city], 3),
        ("csv", tmp_path / "columns.toml", "rows.csv", [city, label], 3),
        ("libsvm", {"dense": [1, 1]}, "rows.svm", [label, dense, ids], 2),
    ]
    for format, columns, file, fields, rows in cases:
        data = InMemoryDataset()
        data.init(batch_size=2, use_var=fields, format=format, columns=columns)
        data.set_filelist([tmp_path / file])
        data.load_into_memory()
        assert data.get_memory_data_size() == rows
    wrong = InMemoryDataset()
    wrong.init(use_var=[label], format="csv", columns={"lable": {"column": "clicked"}})
    with pytest.raises(ValueError, match="`columns` does not describe csv files: unknown field `lable`"):
        wrong.load_into_memory()
    wrong.init(use_var=[label], format="orc")
    with pytest.raises(ValueError, match="`format` cannot be `orc`[^~]*`multislot`, `criteo`, `csv`, `libsvm` or"):
        wrong.load_into_memory()


def test_multislot_files_may_have_more_slots_than_the_program_uses(tmp_path):
    user = static.data("user", [None, 1], "int64", lod_level=1)
    (tmp_path / "rows.txt").write_text("1 1 2 0.5 0.5 1 7\n1 0 2 0.1 0.2 2 8 9\n")
    data = InMemoryDataset()
    data.init(use_var=[user], columns={"slots": ["label", "dense", "user"]})
    data.set_filelist([tmp_path / "rows.txt"])
    data.load_into_memory()
    assert data.get_memory_data_size() == 2


def test_a_preload_reads_the_next_files_while_the_last_ones_are_trained_on(clicks, click_model):
    model = click_model(static.optimizer.SGD(0.1))
    first, second = clicks(files=2, rows=100)
    exe, data = trained(model), dataset(InMemoryDataset, model, [first])
    data.load_into_memory()
    data.set_filelist([first, second])
    data.preload_into_memory()
    assert exe.train_from_dataset(dataset=data).samples == 100
    data.wait_preload_done()
    assert exe.train_from_dataset(dataset=data).samples == 200
    with pytest.raises(OrderError, match="preload_into_memory"):
        data.wait_preload_done()


def test_a_global_shuffle_in_one_process_is_a_local_one(clicks, click_model):
    model = click_model(static.optimizer.SGD(0.1))
    data = dataset(InMemoryDataset, model, clicks())
    with pytest.raises(OrderError, match="load_into_memory"):
        data.global_shuffle()
    data.load_into_memory(is_shuffle=True)
    data.global_shuffle()
    assert (data.get_memory_data_size(), data.get_shuffle_data_size()) == (800, 800)
    with pytest.raises(NotImplementedError, match="InMemoryDataset"):
        dataset(QueueDataset, model, clicks()).global_shuffle()


def test_parts_of_a_text_cover_it_and_number_its_words_equally(tmp_path):
    text = tmp_path / "text"
    text.write_text("".join(f"a{line} b{line} c a{line} b{line}\n" for line in range(50)))
    loss = models.word2vec(dim=4, window=2, negatives=2)
    static.optimizer.SGD(0.01).minimize(loss)
    exe = static.Executor()
    exe.run(static.default_startup_program())

    def corpus(part=None):
        return WordsDataset([text], min_count=1, subsample=0, batch_size=10, window=2, negatives=2, part=part)

    def samples(part=None):
        return exe.train_from_dataset(static.default_main_program(), corpus(part)).samples

    assert sum(samples((worker, 3)) for worker in range(3)) == samples() == 250
    assert corpus((2, 3)).vocabulary() == corpus().vocabulary()
    for part in [(3, 3), (-1, 2), (0, 0)]:
        with pytest.raises(ValueError, match="`part`"):
            corpus(part)
