"""`paddle.io` and other modules beside layers: loaders, schedules, ranks, specifications."""

import numpy as np
import pytest

import openfleet.compat.paddle as paddle
from openfleet import static


class Squares(paddle.io.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, idx):
        return np.array([idx], "float32"), idx * idx


class Lines(paddle.io.IterableDataset):
    def __iter__(self):
        for number in range(10):
            yield [number, number + 1], [number % 2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_gives_the_batches_of_a_dataset_in_order(num_workers):
    loader = paddle.io.DataLoader(Squares(), batch_size=4, num_workers=num_workers)
    batches = list(loader)
    assert len(loader) == 3 and [len(x) for x, _ in batches] == [4, 4, 2]
    assert np.concatenate([y for _, y in batches]).tolist() == [i * i for i in range(10)]
    assert batches[0][0].shape == (4, 1) and batches[0][0].dtype == np.float32
    assert len(list(paddle.io.DataLoader(Squares(), batch_size=4, drop_last=True, num_workers=num_workers))) == 2


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_streams_an_iterable_dataset(num_workers):
    batches = list(paddle.io.DataLoader(Lines(), batch_size=4, drop_last=True, num_workers=num_workers))
    assert [x.tolist() for x, _ in batches][1] == [[4, 5], [5, 6], [6, 7], [7, 8]] and len(batches) == 2


def test_an_error_of_a_dataset_is_raised_by_the_loader():
    class Broken(paddle.io.IterableDataset):
        def __iter__(self):
            yield [1]
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(paddle.io.DataLoader(Broken(), batch_size=1, num_workers=1))


def test_a_loader_shuffles_and_collates_by_its_options():
    seen = [int(y[0] ** 0.5) for _, y in paddle.io.DataLoader(Squares(), batch_size=1, shuffle=True)]
    assert sorted(seen) == list(range(10))
    sums = list(paddle.io.DataLoader(Squares(), batch_size=5, collate_fn=lambda rows: sum(y for _, y in rows)))
    assert sums == [30, 255]
    sampler = paddle.io.BatchSampler(Squares(), batch_size=3)
    assert len(sampler) == 4 and list(sampler)[-1] == [9]
    assert len(list(paddle.io.DataLoader(Squares(), batch_sampler=sampler))) == 4


def test_batches_of_a_loader_can_be_fed():
    x, y = paddle.static.data("x", [None, 1]), paddle.static.data("y", [None, 1], "int64")
    out = paddle.sum(x * paddle.cast(y, "float32"))
    loader = paddle.io.DataLoader(Squares(), feed_list=[x, y], return_list=False, batch_size=10)
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    (total,) = exe.run(feed=next(iter(loader))[0], fetch_list=[out])
    assert float(total) == sum(i**3 for i in range(10))
    generator = paddle.io.DataLoader.from_generator(feed_list=[x, y], capacity=4)
    generator.set_sample_generator(lambda: ((float(i), i * i) for i in range(10)), batch_size=5)
    totals = [float(exe.run(feed=feed, fetch_list=[out])[0]) for (feed,) in generator()]
    assert sum(totals) == float(total)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: paddle.io.DataLoader(Squares(), return_list=False), ValueError, "needs `feed_list`"),
        (lambda: paddle.io.DataLoader(Lines(), shuffle=True), ValueError, "samples by number"),
        (lambda: paddle.io.DataLoader(Squares(), worker_init_fn=print), NotImplementedError, "`worker_init_fn`"),
        (lambda: len(Lines()), RuntimeError, "does not know how many"),
        (lambda: paddle.io.DataLoader.from_generator(iterable=False), ValueError, "needs `feed_list`"),
        (lambda: paddle.io.DataLoader.from_generator(return_list=True).start(), RuntimeError, "iterate over this one"),
        (lambda: next(iter(paddle.io.Dataset()[0])), NotImplementedError, "`__getitem__` of Dataset"),
    ],
)
def test_unsupported_options_of_a_loader_are_named(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


RATES = {
    "NoamDecay": (lambda lr: lr.NoamDecay(d_model=0.01, warmup_steps=100), "noam"),
    "PiecewiseDecay": (lambda lr: lr.PiecewiseDecay([3, 6], [0.1, 0.2, 0.3]), "piecewise"),
    "NaturalExpDecay": (lambda lr: lr.NaturalExpDecay(0.5, gamma=0.1), "natural_exp"),
    "InverseTimeDecay": (lambda lr: lr.InverseTimeDecay(0.5, gamma=0.1), "inverse_time"),
    "PolynomialDecay": (lambda lr: lr.PolynomialDecay(0.5, decay_steps=20), "polynomial"),
    "LinearWarmup": (lambda lr: lr.LinearWarmup(0.5, warmup_steps=20, start_lr=0, end_lr=0.5), "warmup"),
    "ExponentialDecay": (lambda lr: lr.ExponentialDecay(0.5, gamma=0.9), "exponential"),
}


@pytest.mark.parametrize("name", RATES)
def test_schedules_take_the_arguments_of_paddlepaddle(name):
    make, word = RATES[name]
    assert list(make(paddle.optimizer.lr).to_json()) == [word]


def rates(schedule, steps):
    """The rates of some steps, as a weight that moves by each of them shows."""
    weight = paddle.create_parameter([1], "float32", default_initializer=paddle.nn.initializer.Constant(0.0))
    loss = paddle.sum(weight)
    paddle.optimizer.SGD(schedule).minimize(loss)
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    places = [-float(exe.run(feed={}, fetch_list=[loss])[0]) for _ in range(steps + 1)]
    return np.diff(places)


def test_a_rate_falls_by_steps_of_a_length_or_at_milestones():
    np.testing.assert_allclose(
        rates(paddle.optimizer.lr.StepDecay(0.5, 2, 0.1), 5), [0.5, 0.5, 0.05, 0.05, 0.005], 1e-4
    )


def test_a_rate_falls_at_milestones():
    schedule = paddle.optimizer.lr.MultiStepDecay(0.5, [2, 3], gamma=0.1)
    np.testing.assert_allclose(rates(schedule, 4), [0.5, 0.5, 0.05, 0.005], 1e-4)


def test_unsupported_options_of_a_schedule_are_named(capfd, monkeypatch):
    with pytest.raises(NotImplementedError, match="`last_epoch=3`"):
        paddle.optimizer.lr.ExponentialDecay(0.5, 0.9, last_epoch=3)
    monkeypatch.setattr("openfleet.compat._notices._said", set())
    for _ in range(2):
        paddle.optimizer.lr.ExponentialDecay(0.5, 0.9, verbose=True)
    assert capfd.readouterr().err.count("`verbose=True` of a schedule") == 1
    paddle.optimizer.lr._Counted._warned = False
    with pytest.warns(UserWarning, match="advance with every batch"):
        paddle.optimizer.lr.ExponentialDecay(0.5, 0.9).step()


def test_a_specification_is_that_of_a_variable():
    x = paddle.static.data("x", [None, 3], "int64")
    spec = paddle.static.InputSpec.from_tensor(x)
    assert (spec.shape, spec.dtype, spec.name) == ((-1, 3), "int64", "x")
    assert paddle.static.InputSpec([None, 2]).dtype == "float32"


def test_a_program_that_is_not_part_of_a_job_has_rank_0_of_1(monkeypatch):
    from openfleet.fleet import _job

    monkeypatch.setattr(_job, "_fleet", None)
    monkeypatch.delenv("PADDLE_TRAINER_ID", raising=False)
    monkeypatch.delenv("PADDLE_TRAINERS_NUM", raising=False)
    assert (paddle.distributed.get_rank(), paddle.distributed.get_world_size()) == (0, 1)
    monkeypatch.setenv("PADDLE_TRAINER_ID", "2")
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "4")
    assert (paddle.distributed.get_rank(), paddle.distributed.get_world_size()) == (2, 4)


def test_devices_and_seeds():
    assert repr(paddle.set_device("cpu")) == "CPUPlace()" and paddle.get_device() == "cpu"
    assert not paddle.is_compiled_with_cuda() and not paddle.is_compiled_with_xpu()
    paddle.seed(42)
    assert static.default_main_program().random_seed == static.default_startup_program().random_seed == 42

    @paddle.no_grad()
    def double(x):
        return 2 * x

    assert double(3) == 6


def _samples():
    return lambda: iter([[float(number)], number % 2] for number in range(5))


def _lists():
    return lambda: iter([[([0.0], 0), ([1.0], 1)], [([2.0], 0), ([3.0], 1)]])


def _arrays():
    return lambda: iter([(np.arange(4, dtype="float32").reshape(4, 1), np.array([[0], [1], [0], [1]]))])


DECORATED = {
    "decorate_sample_generator": (lambda reader: reader.decorate_sample_generator(_samples(), batch_size=2), 2),
    "decorate_sample_list_generator": (lambda reader: reader.decorate_sample_list_generator(_lists()), 2),
    "decorate_paddle_reader": (lambda reader: reader.decorate_paddle_reader(_lists()), 2),
    "decorate_batch_generator": (lambda reader: reader.decorate_batch_generator(_arrays(), places=None), 1),
}


@pytest.mark.parametrize("method", DECORATED)
@pytest.mark.parametrize("make", [paddle.fluid.io.PyReader, paddle.fluid.PyReader])
def test_a_reader_of_paddlepaddle_1_feeds_its_program_or_is_iterated_over(method, make):
    decorate, batches = DECORATED[method]
    x, y = paddle.static.data("x", [None, 1]), paddle.static.data("y", [None, 1], "int64")
    total = paddle.sum(x)
    exe = paddle.static.Executor()
    reader = make(feed_list=[x, y], capacity=4, iterable=True)
    decorate(reader)
    fed = [float(exe.run(feed=feed, fetch_list=[total])[0]) for feed in reader()]
    assert len(fed) == batches and sum(fed) == 6.0
    reader = make(feed_list=[x, y], capacity=4, iterable=False)
    decorate(reader)
    for _ in range(2):
        reader.start()
        ran = []
        try:
            while True:
                ran.append(float(exe.run(fetch_list=[total])[0]))
        except paddle.fluid.core.EOFException:
            reader.reset()
        assert ran == fed


def test_a_reader_declares_the_inputs_that_it_feeds():
    layers = paddle.fluid.layers
    reader = layers.py_reader(4, [[-1, 1], [-1, 1]], ["float32", "int64"], lod_levels=[0, 0], name="train")
    x, y = layers.read_file(layers.double_buffer(reader))
    assert (x.name, y.name, x.dtype, y.dtype) == ("train_0", "train_1", "float32", "int64")
    single = layers.create_py_reader_by_data(4, [x])
    assert layers.read_file(single).name == "train_0"


def test_a_copy_of_a_program_takes_its_batches_from_the_same_loader():
    x = paddle.static.data("x", [None, 1])
    total = paddle.sum(x)
    loader = paddle.io.DataLoader.from_generator([x], capacity=2, iterable=False)
    loader.set_batch_generator(lambda: iter([(np.ones((3, 1), "float32"),)]))
    copy = static.default_main_program().clone(for_test=True)
    loader.start()
    assert float(paddle.static.Executor().run(copy, fetch_list=[total])[0]) == 3.0
    with pytest.raises(paddle.base.core.EOFException):
        paddle.static.Executor().run(copy, fetch_list=[total])


def test_rows_are_counted_as_in_paddlepaddle_1():
    accuracy = paddle.fluid.metrics.Accuracy()
    with pytest.raises(ValueError, match="before `update`"):
        accuracy.eval()
    accuracy.update(np.array([0.5]), 2)
    accuracy.update(1.0, 6)
    assert accuracy.eval() == 0.875
    auc = paddle.fluid.metrics.Auc("auc", num_thresholds=100)
    auc.update([[0.9, 0.1], [0.2, 0.8]], [[0], [1]])
    assert auc.eval() == 1.0


def test_a_dataset_skips_the_identifier_and_the_text_of_its_lines(tmp_path):
    x, label = paddle.static.data("x", [None, 2]), paddle.static.data("label", [None, 1], "int64")
    w = paddle.static.create_parameter([2, 1], "float32", "w", paddle.ParamAttr(name="w"))
    loss = paddle.sum(paddle.matmul(x, w) * paddle.cast(label, "float32"))
    paddle.optimizer.SGD(1.0).minimize(loss)
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    lines = {"plain": "2 1 2 1 3", "ins_id": "1 a7 2 1 2 1 3", "both": "1 a7 1 some_text 2 1 2 1 3"}
    dataset = paddle.distributed.InMemoryDataset()
    for kind, line in lines.items():
        (tmp_path / kind).write_text(line + "\n")
        dataset.init(batch_size=1, use_var=[x, label], fs_name="afs://cluster", fs_ugi="user,password")
        dataset.update_settings(parse_ins_id=kind != "plain", parse_content=kind == "both", fleet_send_batch_size=64)
        dataset.set_filelist([str(tmp_path / kind)])
        dataset.load_into_memory()
        weights = paddle.static.global_scope().find_var("w").get_tensor()
        weights.set(np.zeros((2, 1), "float32"))
        exe.train_from_dataset(dataset=dataset)
        assert np.array(weights).ravel().tolist() == [-3.0, -6.0]


def test_a_dataset_refuses_settings_that_would_change_its_rows():
    dataset = paddle.distributed.InMemoryDataset()
    with pytest.raises(NotImplementedError, match="`merge_size` and `fea_eval`"):
        dataset.update_settings(merge_size=2)
    with pytest.raises(NotImplementedError, match="`download_cmd`"):
        dataset.update_settings(download_cmd="hadoop fs -cat")
    with pytest.raises(ValueError, match="does not change `batch`"):
        dataset.update_settings(batch=2)
