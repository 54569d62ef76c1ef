import contextlib
import multiprocessing
import threading
from pathlib import Path

import numpy as np
import pytest

from openfleet import ProgramError, static
from openfleet.reader import batch, shuffle


def test_a_slot_is_fed_as_lists_arrays_and_lod_tensors():
    slot = static.data("slot", [None, 1], "int64", lod_level=1)
    ones = static.ParamAttr(initializer=static.initializer.Constant(1.0))
    rows = static.nn.embedding(slot, size=[10, 2], is_sparse=True, param_attr=ones)
    total = static.nn.sequence_pool(rows, "sum")
    mean = static.nn.sequence_pool(rows, "average")
    static.optimizer.SGD(1.0).minimize(static.nn.mean(total))  # what only reads sees rows that were never trained as 0
    exe = static.Executor()
    exe.run(static.default_startup_program())

    def sums(value):
        return exe.run(feed={"slot": value}, fetch_list=[total, mean])

    counted, averaged = sums([[1, 2, 3], [], [4]])
    assert counted[:, 0].tolist() == [3.0, 0.0, 1.0]
    assert averaged[1].tolist() == [0.0, 0.0]
    assert sums(np.array([[5, 6], [7, 8]]))[0].shape == (2, 2)
    assert sums(static.create_lod_tensor([9, 9, 9], [[1, 2]]))[0].shape == (2, 2)


def test_feeds_of_another_shape_or_kind_are_named():
    x, label = static.data("x", [None, 3]), static.data("label", [None, 1], "int64")
    y = static.nn.cast(label, "float32") + x
    exe = static.Executor()
    with pytest.raises(ValueError, match=r"feed `x`: expected an array of shape \[-1, 3\].*got \[1, 4\]"):
        exe.run(feed={"x": np.zeros((1, 4)), "label": [[1]]}, fetch_list=[y])
    with pytest.raises(TypeError, match="feed `label`: expected integers"):
        exe.run(feed={"x": np.zeros((1, 3)), "label": [[0.5]]}, fetch_list=[y])
    with pytest.raises(ValueError, match="no variable named `lable`[^~]*did you mean `label`"):
        exe.run(feed={"lable": [[1]]}, fetch_list=[y])
    with pytest.raises(ValueError, match="reads `label`"):
        exe.run(feed={"x": np.zeros((1, 3))}, fetch_list=[y])


def test_running_before_the_startup_program_names_the_missing_parameter():
    y = static.nn.fc(static.data("x", [None, 1]), size=1)
    with pytest.raises(ProgramError, match="has no value in the scope[^~]*hint: run the startup program"):
        static.Executor().run(feed={"x": [[1.0]]}, fetch_list=[y])


def test_a_feed_loop_with_readers_and_a_feeder_reduces_the_loss(click_model):
    model = click_model(static.optimizer.Adam(0.01))
    rng = np.random.default_rng(0)
    rows = [([int(u % 2)], rng.random(2), [int(u)], [1, 2]) for u in rng.integers(0, 40, 512)]
    reader = batch(shuffle(lambda: iter(rows), 512, seed=1), 64)
    feeder = static.DataFeeder(model.fields, static.CPUPlace())
    exe = static.Executor(static.CPUPlace())
    exe.run(static.default_startup_program())
    losses = []
    for _ in range(8):
        for data in reader():
            loss, auc = exe.run(feed=feeder.feed(data), fetch_list=[model.loss, model.auc.name])
            losses.append(loss.item())
    assert np.mean(losses[-8:]) < 0.5 * np.mean(losses[:8])
    assert auc[0] > 0.8


def test_scope_values_are_read_and_set_by_name():
    y = static.nn.fc(static.data("x", [None, 2]), size=1, weight_attr="w", bias_attr=False)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    tensor = static.global_scope().find_var("w").get_tensor()
    assert tensor.shape() == [2, 1]
    tensor.set(np.array([[1.0], [10.0]]), static.CPUPlace())
    assert exe.run(feed={"x": [[2.0, 3.0]]}, fetch_list=[y])[0].item() == 32.0
    assert static.global_scope().find_var("nothing") is None
    with pytest.raises(ProgramError, match=r"dimensions \[2, 1\]"):
        tensor.set(np.zeros(3))


def test_two_scopes_are_independent():
    y = static.nn.fc(static.data("x", [None, 1]), size=1, weight_attr="w")
    exe, other = static.Executor(), static.Scope()
    exe.run(static.default_startup_program())
    with static.scope_guard(other):
        exe.run(static.default_startup_program())
        static.global_scope().var("w").get_tensor().set([[7.0]])
        assert exe.run(feed={"x": [[1.0]]}, fetch_list=[y])[0].item() == 7.0
    assert exe.run(feed={"x": [[1.0]]}, fetch_list=[y])[0].item() != 7.0


WIDE = 256


def trained(**options):
    """Trains a layer that is large enough to be divided among threads; returns a function that does one more step."""
    with static.program_guard(static.Program(), static.Program()), static.unique_name.guard():
        x = static.data("x", [None, WIDE])
        loss = static.nn.mean(static.nn.fc(x, size=WIDE, activation="relu"))
        static.optimizer.Adam(0.01).minimize(loss)
        main, startup = static.default_main_program(), static.default_startup_program()
    scope, exe = static.Scope(), static.Executor(**options)
    exe.run(startup, scope=scope)
    batch = np.random.default_rng(1).random((WIDE, WIDE), np.float32)
    return lambda: exe.run(main, feed={"x": batch}, fetch_list=[loss], scope=scope)[0].item()


def threads_of_batches():
    """The threads of this process that compute batches, by the names that the system knows."""
    threads = set()
    for comm in Path("/proc/self/task").glob("*/comm"):
        # A thread of an executor that is gone may end meanwhile.
        with contextlib.suppress(OSError):
            if comm.read_text().startswith("batch-"):
                threads.add(comm.parent.name)
    return threads


def test_the_threads_of_a_batch_change_no_bit(monkeypatch):
    losses = []
    for threads in (1, 2, 5):
        step = trained(threads=threads)
        losses.append([step() for _ in range(3)])
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    step = trained()
    losses.append([step() for _ in range(3)])
    assert losses[0] == losses[1] == losses[2] == losses[3]
    with pytest.raises(ValueError, match="`threads` of Executor expects a number of at least 1, got 0"):
        static.Executor(threads=0)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads as Linux lists them")
def test_omp_num_threads_and_the_argument_set_the_threads_of_a_batch(monkeypatch):
    before = threads_of_batches()
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    first = trained()
    first()
    own = threads_of_batches() - before
    assert len(own) == 3
    second = trained(threads=1)
    second()
    assert threads_of_batches() - before == own


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="there is no fork")
def test_a_forked_child_goes_on_training_with_threads_of_its_own():
    step = trained(threads=2)
    step()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send([step(), step()]))
    child.start()
    assert receiver.poll(60), "the child waits for threads that only its parent has"
    assert receiver.recv() == [step(), step()]
    child.join()
    assert child.exitcode == 0


def test_executors_in_several_threads_do_not_wait_for_each_other():
    steps = [trained(threads=2) for _ in range(3)]
    losses = [[] for _ in steps]
    workers = [
        threading.Thread(target=lambda step=step, into=into: into.extend(step() for _ in range(5)))
        for step, into in zip(steps, losses)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert losses[0] == losses[1] == losses[2]
    assert len(losses[0]) == 5
