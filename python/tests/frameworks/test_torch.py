"""PyTorch models whose embeddings are tables: equal to PyTorch's own in one process, and trained on real servers.

Run by `make test-frameworks`; skipped where PyTorch is not installed.
"""

import copy
import importlib.util
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import environment
from test_docs import run_page

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: `make test-frameworks` installs it", allow_module_level=True)

import torch  # noqa: E402
from torch.nn import functional  # noqa: E402

from openfleet import OrderError, ProgramError, fleet, static  # noqa: E402
from openfleet.torch import Embedding, EmbeddingBag, EmbeddingCollection  # noqa: E402

VOCABULARY, FIELDS, DIM = 50, 3, 4


@pytest.fixture(autouse=True)
def _job(job_of_its_own):
    fleet.init()


class Model(torch.nn.Module):
    """An embedding of a few fields and two layers."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding
        self.layers = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(FIELDS * DIM, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)
        )

    def forward(self, ids):
        return self.layers(self.embedding(ids)).squeeze(1)


def batches(count, rows=16, seed=0):
    draw = torch.Generator().manual_seed(seed)
    for _ in range(count):
        ids = torch.randint(0, VOCABULARY, (rows, FIELDS), generator=draw)
        yield ids, (ids[:, 0] % 2).float()


def distributed(rule, model, **options):
    return fleet.distributed_optimizer(rule(model), model=model, **options)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def small(rule=sgd, dense="tables", **options):
    """A model and its optimizer."""
    torch.manual_seed(0)
    model = Model(Embedding(VOCABULARY, DIM, **options))
    return model, distributed(rule, model, dense=dense)


def rows_of(model):
    """All rows of the model's embedding; a row that does not exist has its first values."""
    with torch.no_grad():
        return model.embedding(torch.arange(VOCABULARY)).clone()


def existing_rows():
    return sum(fleet.table_rows().values())


def step(model, optimizer, ids, labels):
    optimizer.zero_grad()
    loss = functional.binary_cross_entropy_with_logits(model(ids), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


RULES = {
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True), None),
    "decay": (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01), lambda p: torch.optim.SGD(p, lr=0.1)),
    "adagrad": (lambda p: torch.optim.Adagrad(p, lr=0.05), lambda p: torch.optim.Adagrad(p, lr=0.05)),
    "adam": (lambda p: torch.optim.Adam(p, lr=0.01), lambda p: torch.optim.SparseAdam(p, lr=0.01)),
    "adamw": (
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
        lambda p: torch.optim.SparseAdam(p, lr=0.01),
    ),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dense", ["tables", "local"])
def test_one_process_trains_as_pytorch_does_with_sparse_gradients(rule, dense):
    dense_rule, row_rule = RULES[rule]
    model, optimizer = small(lambda model: dense_rule(model.parameters()), dense=dense)
    theirs = Model(torch.nn.Embedding(VOCABULARY, DIM, sparse=True))
    theirs.layers.load_state_dict(model.layers.state_dict())
    theirs.embedding.weight.data.copy_(rows_of(model))
    layers = dense_rule(theirs.layers.parameters())
    # Velocities of rows that are not in a batch rest here, which no optimizer of PyTorch does.
    rows = (row_rule or (lambda p: torch.optim.SGD(p, lr=0.0)))(theirs.embedding.parameters())
    for ids, labels in batches(100 if row_rule else 1):
        loss = step(model, optimizer, ids, labels)
        layers.zero_grad(), rows.zero_grad()
        expected = functional.binary_cross_entropy_with_logits(theirs(ids), labels)
        expected.backward()
        layers.step(), rows.step()
        assert loss == pytest.approx(expected.item(), abs=2e-6)
    for name, parameter in theirs.layers.state_dict().items():
        torch.testing.assert_close(model.layers.state_dict()[name], parameter, atol=1e-6, rtol=1e-5)
    if row_rule:
        torch.testing.assert_close(rows_of(model), theirs.embedding.weight.data, atol=1e-6, rtol=1e-5)


def test_what_has_no_gradient_in_a_step_rests_as_in_pytorch():
    def build(embedding):
        torch.manual_seed(0)
        return torch.nn.ModuleDict(
            {"table": embedding, "first": torch.nn.Linear(DIM, 1), "second": torch.nn.Linear(DIM, 1)}
        )

    model, theirs = build(Embedding(VOCABULARY, DIM)), build(torch.nn.Embedding(VOCABULARY, DIM, sparse=True))
    optimizer = distributed(lambda model: torch.optim.Adam(model.parameters(), lr=0.05), model)
    with torch.no_grad():
        theirs["table"].weight.copy_(model["table"](torch.arange(VOCABULARY)))
    rules = [torch.optim.SparseAdam([theirs["table"].weight], lr=0.05)]
    rules.append(torch.optim.Adam([*theirs["first"].parameters(), *theirs["second"].parameters()], lr=0.05))
    for number, (ids, _) in enumerate(batches(12)):
        for one, rule in ((model, [optimizer]), (theirs, rules)):
            [each.zero_grad() for each in rule]
            # Every third step has no rows, and the layers take turns.
            vectors = one["table"](ids[:, 0]) if number % 3 else torch.ones(16, DIM)
            (one["first" if number % 2 else "second"](vectors) ** 2).mean().backward()
            [each.step() for each in rule]
    for layer in ("first", "second"):
        torch.testing.assert_close(model[layer].weight, theirs[layer].weight, atol=1e-6, rtol=1e-5)
    with torch.no_grad():
        rows = model["table"](torch.arange(VOCABULARY))
    torch.testing.assert_close(rows, theirs["table"].weight.data, atol=1e-6, rtol=1e-5)


def test_rows_can_have_a_rule_of_their_own():
    model, optimizer = small(optimizer=static.optimizer.Adagrad(0.5, epsilon=1e-10))
    theirs = torch.nn.Embedding(VOCABULARY, DIM)
    theirs.weight.data.copy_(rows_of(model))
    rule = torch.optim.Adagrad(theirs.parameters(), lr=0.5)
    for ids, _ in batches(20):
        optimizer.zero_grad(), rule.zero_grad()
        (model.embedding(ids) ** 2).sum().backward()
        (theirs(ids) ** 2).sum().backward()
        optimizer.step(), rule.step()
    torch.testing.assert_close(rows_of(model), theirs.weight.data, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "rule, tolerance",
    [
        (lambda p: torch.optim.RAdam(p, lr=0.02), 1e-6),
        (lambda p: torch.optim.Adam(p, lr=0.02, amsgrad=True), 1e-6),
        # Its line search amplifies rounding.
        (lambda p: torch.optim.LBFGS(p, max_iter=3, line_search_fn="strong_wolfe"), 1e-4),
    ],
    ids=["RAdam", "AMSGrad", "LBFGS"],
)
def test_any_optimizer_of_pytorch_trains_the_layers_in_each_worker(rule, tolerance):
    model, optimizer = small(lambda model: rule(model.parameters()), dense="local", optimizer=static.optimizer.SGD(0.0))
    theirs = copy.deepcopy(model.layers)
    expected = rule(theirs.parameters())
    for ids, labels in batches(10):
        vectors = rows_of(model)[ids]

        def closure(one, which):
            def loss():
                which.zero_grad()
                loss = functional.binary_cross_entropy_with_logits(one().squeeze(1), labels)  # noqa: B023
                loss.backward()
                return loss

            return loss

        optimizer.step(closure(lambda: model.layers(model.embedding(ids)), optimizer))  # noqa: B023
        expected.step(closure(lambda: theirs(vectors), expected))  # noqa: B023
    for ours, other in zip(model.layers.parameters(), theirs.parameters()):
        torch.testing.assert_close(ours, other, atol=tolerance, rtol=10 * tolerance)


def test_the_moments_of_a_local_optimizer_are_in_its_state(tmp_path):
    model, optimizer = small(lambda model: torch.optim.Adam(model.parameters(), lr=0.02), dense="local")
    fleet.init_worker()
    data = list(batches(20))
    for ids, labels in data[:10]:
        step(model, optimizer, ids, labels)
    fleet.save_persistables(model, tmp_path / "model")
    state = copy.deepcopy(optimizer.state_dict())
    first = [step(model, optimizer, ids, labels) for ids, labels in data[10:]]
    fleet.load_model(tmp_path / "model")
    assert first != [step(model, optimizer, ids, labels) for ids, labels in data[10:]]
    fleet.load_model(tmp_path / "model")
    optimizer.load_state_dict(state)
    assert first == [step(model, optimizer, ids, labels) for ids, labels in data[10:]]


def test_parameters_that_other_code_changes_are_taken_over():
    model, optimizer = small()
    zeros = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    model.load_state_dict(zeros)
    fleet.init_worker()
    assert not any(value.any() for value in model.state_dict().values())
    with torch.no_grad():
        model.layers[3].bias.fill_(2.0)
    optimizer.zero_grad()
    model(IDS).sum().backward()
    optimizer.step()
    assert model.layers[3].bias.item() == pytest.approx(2.0 - 0.1 * 2)
    assert not model.layers[1].weight.any()


@pytest.mark.parametrize("name", ["RowwiseAdagrad", "Ftrl", "Adagrad", "Adam", "SGD"])
def test_rows_have_every_rule_of_the_tables(name):
    model, optimizer = small(optimizer=getattr(static.optimizer, name)(2.0 if name == "SGD" else 0.1))
    before = rows_of(model)
    losses = [step(model, optimizer, ids, labels) for ids, labels in batches(200)]
    assert sum(losses[-20:]) < 0.7 * sum(losses[:20]) and not torch.equal(rows_of(model), before)


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)


def test_the_velocity_of_layers_is_that_of_pytorch():
    check_layers(momentum)


def test_groups_have_rates_and_decays_of_their_own():
    def rule(model):
        weights = [each for name, each in model.named_parameters() if name.endswith("weight")]
        biases = [each for name, each in model.named_parameters() if name.endswith("bias")]
        groups = [{"params": weights}, {"params": biases, "lr": 0.1, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=0.01, weight_decay=0.2)

    check_layers(rule)


def check_layers(rule):
    """Trains the layers of a model beside PyTorch's, on the vectors of the same table."""
    model, optimizer = small(rule)
    theirs = copy.deepcopy(model.layers)
    expected = rule(theirs)
    for ids, labels in batches(30):
        with torch.no_grad():
            vectors = model.embedding(ids)
        expected.zero_grad()
        functional.binary_cross_entropy_with_logits(theirs(vectors).squeeze(1), labels).backward()
        expected.step()
        step(model, optimizer, ids, labels)
    for ours, other in zip(model.layers.parameters(), theirs.parameters()):
        torch.testing.assert_close(ours, other, atol=1e-6, rtol=1e-5)


def gradient_of_rows(act):
    """By how much a function changes the rows at a rate of 1, in one step."""
    model, optimizer = small(lambda model: torch.optim.SGD(model.parameters(), lr=1.0))
    before = rows_of(model)
    act(model, optimizer)
    return before - rows_of(model)


SCHEDULES = {
    "step": lambda rule: torch.optim.lr_scheduler.StepLR(rule, 10, gamma=0.5),
    "warmup": lambda rule: torch.optim.lr_scheduler.LambdaLR(rule, lambda step: min(step, 20) / 20),
    "cosine": lambda rule: torch.optim.lr_scheduler.CosineAnnealingLR(rule, 40),
}


@pytest.mark.parametrize("of", ["ours", "theirs"])
@pytest.mark.parametrize("kind", SCHEDULES)
def test_learning_rate_schedulers_of_pytorch_work(kind, of):
    torch.manual_seed(0)
    model = Model(Embedding(VOCABULARY, DIM))
    rule = torch.optim.Adam(model.parameters(), lr=0.02)
    scheduler = SCHEDULES[kind](rule) if of == "theirs" else None
    optimizer = fleet.distributed_optimizer(rule, model=model)
    scheduler = scheduler or SCHEDULES[kind](optimizer)
    theirs = Model(torch.nn.Embedding(VOCABULARY, DIM, sparse=True))
    theirs.layers.load_state_dict(model.layers.state_dict())
    theirs.embedding.weight.data.copy_(rows_of(model))
    rules = (
        torch.optim.Adam(theirs.layers.parameters(), lr=0.02),
        torch.optim.SparseAdam([theirs.embedding.weight], lr=0.02),
    )
    schedulers = [SCHEDULES[kind](each) for each in rules]
    for ids, labels in batches(40):
        step(model, optimizer, ids, labels)
        scheduler.step()
        for each in rules:
            each.zero_grad()
        functional.binary_cross_entropy_with_logits(theirs(ids), labels).backward()
        for each, schedule in zip(rules, schedulers):
            each.step()
            schedule.step()
    for ours, other in zip(model.layers.parameters(), theirs.layers.parameters()):
        torch.testing.assert_close(ours, other, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(rows_of(model), theirs.embedding.weight.data, atol=1e-6, rtol=1e-5)


def test_rates_change_in_proportion():
    model, optimizer = small()
    ids, labels = next(batches(1))
    optimizer.param_groups[0]["lr"] = 0.05
    step(model, optimizer, ids, labels)
    optimizer.param_groups[1]["lr"] = 0.07
    with pytest.raises(NotImplementedError, match=r"were \[0.1, 0.1\] and are \[0.05, 0.07\]"):
        step(model, optimizer, ids, labels)


IDS = torch.tensor([[1, 2, 1], [3, 2, 4]])


def once(model, optimizer):
    optimizer.zero_grad()
    model.embedding(IDS).sum().backward()
    optimizer.step()


def expected_rows(factor=1.0):
    counts = torch.bincount(IDS.flatten(), minlength=VOCABULARY).float()
    return factor * counts[:, None].expand(VOCABULARY, DIM)


def test_a_step_adds_up_the_gradients_of_equal_ids():
    torch.testing.assert_close(gradient_of_rows(once), expected_rows())


def test_zero_grad_between_forward_and_backward_loses_nothing():
    def act(model, optimizer):
        loss = model.embedding(IDS).sum()
        optimizer.zero_grad()
        model.zero_grad()
        loss.backward()
        optimizer.step()

    torch.testing.assert_close(gradient_of_rows(act), expected_rows())


@pytest.mark.parametrize("of", ["optimizer", "model"])
def test_zero_grad_after_backward_drops_the_gradients(of):
    def act(model, optimizer):
        model.embedding(IDS).sum().backward()
        (optimizer if of == "optimizer" else model).zero_grad()
        optimizer.step()
        assert len(list(model.embedding.parameters())) == 0

    torch.testing.assert_close(gradient_of_rows(act), expected_rows(0.0))


def test_gradients_add_up_over_backwards_and_forwards():
    def act(model, optimizer):
        loss = model.embedding(IDS).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        one, other = model.embedding(IDS), model.embedding(IDS)
        (one.sum() + other.sum()).backward()
        optimizer.step()

    torch.testing.assert_close(gradient_of_rows(act), expected_rows(4.0))


def test_without_gradients_no_row_is_created_and_nothing_is_staged():
    model, optimizer = small()
    fleet.init_worker()
    with torch.no_grad():
        model(IDS)
    with torch.inference_mode():
        model(IDS)
    model.embedding(IDS).detach().sum()
    created = existing_rows()
    optimizer.step()
    assert created == existing_rows() == len(IDS.unique())
    assert list(model.embedding.parameters()) == []


def test_clipping_sees_rows_and_parameters_together():
    model, optimizer = small(lambda model: torch.optim.SGD(model.parameters(), lr=1.0))
    theirs = Model(torch.nn.Embedding(VOCABULARY, DIM))
    theirs.layers.load_state_dict(model.layers.state_dict())
    theirs.embedding.weight.data.copy_(rows_of(model))
    ids, labels = next(batches(1))
    for one in (model, theirs):
        functional.binary_cross_entropy_with_logits(one(ids), labels).backward()
    ours = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.01)
    torch.testing.assert_close(ours, expected)
    optimizer.step()
    torch.optim.SGD(theirs.parameters(), lr=1.0).step()
    torch.testing.assert_close(rows_of(model), theirs.embedding.weight.data, atol=1e-6, rtol=1e-5)


def test_a_scaler_scales_rows_back_and_skips_a_step_that_overflows():
    model, optimizer = small(lambda model: torch.optim.SGD(model.parameters(), lr=1.0))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = rows_of(model)
    scaler.scale(model.embedding(IDS).sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(rows_of(model), before)
    optimizer.zero_grad()
    scaler.scale(model.embedding(IDS).sum()).backward()
    scaler.step(optimizer)
    torch.testing.assert_close(before - rows_of(model), expected_rows())


def test_the_layers_can_be_compiled():
    model, optimizer = small(lambda model: torch.optim.Adam(model.parameters(), lr=0.05))
    ids, labels = next(batches(1))
    expected = model(ids)
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(compiled(ids), expected)
    losses = [step(compiled, optimizer, ids, labels) for _ in range(50)]
    assert losses[-1] < 0.7 * losses[0], losses


def test_an_exception_before_the_step_leaves_nothing_for_the_next_one():
    def act(model, optimizer):
        with pytest.raises(ZeroDivisionError):
            optimizer.zero_grad()
            model.embedding(IDS + 10).sum().backward()
            _ = 1 / 0
        once(model, optimizer)

    torch.testing.assert_close(gradient_of_rows(act), expected_rows())


def test_a_closure_computes_the_gradients_of_a_step():
    def act(model, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = model.embedding(IDS).sum()
            loss.backward()
            return loss

        assert torch.is_tensor(optimizer.step(closure))

    torch.testing.assert_close(gradient_of_rows(act), expected_rows())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_model_has_no_tables(copied):
    model, _ = small()
    model.embedding(IDS).sum().backward()
    again = copied(model)
    assert [name for name, _ in again.named_parameters()] == [
        name for name, _ in model.layers.named_parameters("layers")
    ]
    with pytest.raises(OrderError, match=r"`Embedding` has no tables yet, or is a copy(?s:.*)distributed_optimizer"):
        again(IDS)


def test_rows_are_no_part_of_the_state_of_a_model():
    model, _ = small()
    names = list(model.state_dict())
    model.embedding(IDS).sum().backward()
    assert list(model.state_dict()) == names == [f"layers.{name}" for name in model.layers.state_dict()]
    model.load_state_dict(model.state_dict())


def test_two_models_train_in_one_process():
    first, one = small()
    with pytest.raises(ValueError, match=r"has a value of the name `embedding.rows`(?s:.*)`name=`"):
        small()
    torch.manual_seed(0)
    second = Model(Embedding(VOCABULARY, DIM))
    other = distributed(sgd, second, name="second")
    for ids, labels in batches(10):
        step(first, one, ids, labels)
        before = rows_of(first)
        step(second, other, ids, labels)
        torch.testing.assert_close(rows_of(first), before)


def test_a_model_has_one_distributed_optimizer_and_others_train_what_is_not_in_it(caplog):
    torch.manual_seed(0)
    model = Model(Embedding(VOCABULARY, DIM))
    first, last = model.layers[1], model.layers[3]
    theirs = copy.deepcopy(last)
    optimizer = distributed(lambda _: torch.optim.SGD(first.parameters(), lr=0.1), model)
    with pytest.raises(ValueError, match=r"belongs to a distributed optimizer already(?s:.*)a group of it"):
        distributed(sgd, model)
    other, expected = torch.optim.RMSprop(last.parameters()), torch.optim.RMSprop(theirs.parameters())
    for ids, labels in batches(10):
        inner = model.layers[:3](model.embedding(ids)).detach()
        expected.zero_grad()
        functional.binary_cross_entropy_with_logits(theirs(inner).squeeze(1), labels).backward()
        expected.step()
        other.zero_grad()
        before = first.weight.clone()
        step(model, optimizer, ids, labels)
        other.step()
        assert not torch.equal(first.weight, before)
    torch.testing.assert_close(last.weight, theirs.weight)
    assert "is not one of the optimizer" not in caplog.text
    fleet.init(fleet.UserDefinedRoleMaker(0, fleet.Role.WORKER, 2, ["127.0.0.1:6001"]))
    model = Model(Embedding(VOCABULARY, DIM))
    with caplog.at_level("WARNING"):
        distributed(lambda _: torch.optim.SGD(model.layers[1].parameters(), lr=0.1), model, name="job")
    assert "`layers.3.weight` is not one of the optimizer, and 1 others" in caplog.text


def test_bags_are_those_of_pytorch():
    ids, offsets = torch.tensor([5, 7, 5, 9, 2]), torch.tensor([0, 2, 2])
    weights = torch.tensor([0.5, 2.0, 1.0, -1.0, 3.0])
    for mode in ("sum", "mean", "max"):
        bag = EmbeddingBag(VOCABULARY, DIM, mode=mode)
        model = torch.nn.ModuleDict({"bag": bag, "bias": torch.nn.Linear(1, 1)})
        optimizer = distributed(lambda model: torch.optim.SGD(model.parameters(), lr=1.0), model, name=mode)
        theirs = torch.nn.EmbeddingBag(VOCABULARY, DIM, mode=mode)
        with torch.no_grad():
            theirs.weight.copy_(bag(torch.arange(VOCABULARY)[:, None]))
        forms = [(ids, offsets), (ids.view(1, 5),)] + ([(ids, offsets, weights)] if mode == "sum" else [])
        for form in forms:
            torch.testing.assert_close(bag(*form), theirs(*form))
        optimizer.zero_grad()
        (bag(ids, offsets) ** 2).sum().backward()
        (theirs(ids, offsets) ** 2).sum().backward()
        optimizer.step()
        with torch.no_grad():
            after = bag(torch.arange(VOCABULARY)[:, None])
        torch.testing.assert_close(after, theirs.weight.data - theirs.weight.grad)


def test_a_padding_id_is_zeros_and_never_trained():
    bag = EmbeddingBag(DIM, mode="mean", padding_idx=-1)
    distributed(sgd, torch.nn.Sequential(bag, torch.nn.Linear(DIM, 1)), name="bag")
    model, optimizer = small(padding_idx=2)
    fleet.init_worker()
    vectors = model.embedding(IDS)
    assert torch.equal(vectors[:, 1], torch.zeros(2, DIM)) and vectors[0, 0].abs().min() > 0
    vectors.sum().backward()
    optimizer.step()
    assert existing_rows() == 3
    one, both = bag(torch.tensor([[7]])), bag(torch.tensor([[7, -1], [-1, -1]]))
    torch.testing.assert_close(both, torch.cat([one, torch.zeros(1, DIM)]))


def test_a_collection_pulls_once_and_features_share_tables():
    features = {
        "user": Embedding(DIM),
        "item": Embedding(DIM, table="items"),
        "clicks": EmbeddingBag(DIM, mode="sum", table="items", initializer=static.initializer.Constant(0.25)),
    }
    model = torch.nn.ModuleDict({"embeddings": EmbeddingCollection(features), "layer": torch.nn.Linear(DIM, 1)})
    optimizer = distributed(lambda model: torch.optim.SGD(model.parameters(), lr=1.0), model)
    pulls = []
    look_up = optimizer.tables.look_up
    optimizer.tables.look_up = lambda *given: pulls.append(1) or look_up(*given)
    inputs = {
        "user": torch.tensor([-1, 2**62]),
        "item": torch.tensor([3, 4]),
        "clicks": (torch.tensor([3, 3, 9]), torch.tensor([0, 2])),
    }
    vectors = model["embeddings"](inputs)
    assert len(pulls) == 1 and {name: tuple(value.shape) for name, value in vectors.items()} == {
        "user": (2, DIM), "item": (2, DIM), "clicks": (2, DIM)
    }  # fmt: skip
    torch.testing.assert_close(vectors["clicks"][0], 2 * vectors["item"][0])
    assert vectors["item"].unique().tolist() == [0.25]
    sum(value.sum() for value in vectors.values()).backward()
    optimizer.step()
    with torch.no_grad():
        after = model["embeddings"](inputs)
    torch.testing.assert_close(vectors["item"].detach() - after["item"], torch.tensor([[3.0], [1.0]]).expand(2, DIM))
    torch.testing.assert_close(vectors["user"].detach() - after["user"], torch.ones(2, DIM))

    class Jagged:
        """What a KeyedJaggedTensor of torchrec offers."""

        def keys(self):
            return ["clicks", "item"]

        def values(self):
            return torch.tensor([3, 3, 9, 3, 4])

        def lengths(self):
            return torch.tensor([2, 1, 0, 2])

    with torch.no_grad():
        vectors = model["embeddings"](Jagged())
    torch.testing.assert_close(vectors["clicks"], after["clicks"])
    torch.testing.assert_close(vectors["item"], after["item"])
    with pytest.raises(KeyError, match="has no feature `users`"):
        model["embeddings"]({"users": torch.tensor([1])})


def test_wrong_uses_are_named():
    with pytest.raises(ValueError, match="the model has no embedding of `openfleet.torch`"):
        distributed(sgd, torch.nn.Linear(1, 1))
    with pytest.raises(TypeError, match=r"expects an optimizer, got SGD(?s:.*)`model=`"):
        fleet.distributed_optimizer(sgd(torch.nn.Linear(1, 1)))
    with pytest.raises(NotImplementedError, match=r"`LBFGS` has no rule on the tables"):
        small(lambda model: torch.optim.LBFGS(model.parameters()))
    with pytest.raises(NotImplementedError, match="`amsgrad=True` of Adam"):
        small(lambda model: torch.optim.Adam(model.parameters(), amsgrad=True))
    with pytest.raises(NotImplementedError, match="`ShowClickEntry`"):
        Embedding(4, entry=static.ShowClickEntry("show", "click"))
    model, optimizer = small()
    with pytest.raises(TypeError, match="expects ids of int64 or int32, got torch.float32"):
        model.embedding(torch.rand(2))
    with pytest.raises(ProgramError, match=r"below the vocabulary's size 50"):
        model.embedding(torch.tensor([50]))
    two = torch.nn.Sequential(Embedding(4, table="t"), Embedding(8, table="t"), torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match="two embeddings of the table `t` differ: None ids of 4 floats"):
        distributed(sgd, two)
    initializers = [static.initializer.Constant(value) for value in (1.0, 2.0)]
    two = torch.nn.Sequential(
        *(Embedding(4, table="u", initializer=each) for each in initializers), torch.nn.Linear(1, 1)
    )
    with pytest.raises(ValueError, match="two embeddings of the table `u` differ in their `initializer`"):
        distributed(sgd, two)


DISTRIBUTED = """
import os, sys
import torch
from openfleet import fleet
from openfleet.torch import Embedding

meeting = f"file://{os.getcwd()}/meeting"
torch.distributed.init_process_group("gloo", init_method=meeting, rank=int(sys.argv[1]), world_size=2)
fleet.init()
model = torch.nn.Sequential(Embedding(4), torch.nn.Linear(4, 1))
fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
try:
    model(torch.tensor([1]))
except RuntimeError as error:
    print("refused:", error, flush=True)
torch.distributed.destroy_process_group()
"""


def test_a_process_group_of_pytorch_is_refused(tmp_path):
    (tmp_path / "train.py").write_text(DISTRIBUTED)
    options = {"cwd": tmp_path, "env": environment(), "text": True}
    options.update(stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    ranks = [subprocess.Popen([sys.executable, "train.py", str(rank)], **options) for rank in range(2)]
    for rank in ranks:
        said, _ = rank.communicate(timeout=180)
        assert rank.returncode == 0, said
        assert "hint: start the workers with `fleetrun`, without DistributedDataParallel" in said, said


def test_a_child_process_cannot_use_the_tables():
    model, _ = small()

    class Lookups(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return model.embedding(torch.tensor([index])).detach()

    loader = torch.utils.data.DataLoader(Lookups(), num_workers=1, multiprocessing_context="fork")
    with pytest.raises(RuntimeError, match="used in a child process, such as a worker of a DataLoader"):
        list(loader)


def test_a_checkpoint_has_the_rows_the_layers_and_their_moments(tmp_path):
    model, optimizer = small(lambda model: torch.optim.Adam(model.parameters(), lr=0.01))
    fleet.init_worker()
    data = list(batches(20))
    for ids, labels in data[:10]:
        step(model, optimizer, ids, labels)
    fleet.save_persistables(model, tmp_path / "model")
    states = static.load_program_state(tmp_path / "model")
    assert {"layers.1.weight", "layers.3.bias"} <= set(states)
    first = [step(model, optimizer, ids, labels) for ids, labels in data[10:]]
    fleet.load_model(tmp_path / "model")
    again = [step(model, optimizer, ids, labels) for ids, labels in data[10:]]
    assert first == again


def test_a_checkpoint_has_the_buffers(tmp_path):
    model = torch.nn.Sequential(Embedding(DIM), torch.nn.Flatten(), torch.nn.BatchNorm1d(FIELDS * DIM))
    model.append(torch.nn.Linear(FIELDS * DIM, 1))
    optimizer = distributed(sgd, model)
    fleet.init_worker()
    for ids, labels in batches(5):
        optimizer.zero_grad()
        functional.binary_cross_entropy_with_logits(model(ids).squeeze(1), labels).backward()
        optimizer.step()
    fleet.save_persistables(model, tmp_path / "model")
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    for ids, _ in batches(3, seed=1):
        model(ids)
    assert model[2].num_batches_tracked.item() == 8
    fleet.load_model(tmp_path / "model")
    for name, value in model.state_dict().items():
        assert torch.equal(value, saved[name]), name


def test_the_programs_of_openfleet_work_on_the_checkpoint_of_a_model(tmp_path):
    model, optimizer = small(lambda model: torch.optim.Adam(model.parameters(), lr=0.01))
    fleet.init_worker()

    def openfleet(*arguments):
        ran = subprocess.run(
            [sys.executable, "-m", "openfleet", *map(str, arguments)], capture_output=True, text=True, timeout=60
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    for number in range(2):
        for ids, labels in batches(5, seed=number):
            step(model, optimizer, ids, labels)
        fleet.save_persistables(model, tmp_path / f"model-{number}")
    said = openfleet("inspect", tmp_path / "model-1")
    assert "embedding.rows" in said and "layers.1.weight" in said, said
    said = openfleet("diff", tmp_path / "model-0", tmp_path / "model-1")
    assert "embedding.rows" in said and "layers.3.bias" in said, said
    openfleet("export", tmp_path / "model-1", "--out", tmp_path / "rows.txt", "--table", "embedding.rows")
    exported = {}
    for line in (tmp_path / "rows.txt").read_text().splitlines():
        key, *values = re.split(r"[\s,:]+", line.strip())
        exported[int(key)] = [float(value) for value in values[-DIM:]]
    assert exported.keys() == set(range(VOCABULARY))
    openfleet("reshard", tmp_path / "model-1", "--server-num", 3, "--out", tmp_path / "model-3")
    expected = rows_of(model), model.layers.state_dict()
    for ids, labels in batches(5):
        step(model, optimizer, ids, labels)
    fleet.load_model(tmp_path / "model-3")
    assert torch.equal(rows_of(model), expected[0])
    for name, value in model.layers.state_dict().items():
        assert torch.equal(value, expected[1][name])


def test_the_state_of_a_model_says_in_which_checkpoint_its_rows_are(tmp_path, caplog):
    model, optimizer = small()
    fleet.init_worker()
    step(model, optimizer, *next(batches(1)))
    assert "embedding.checkpoint" not in model.state_dict()
    fleet.save_persistables(model, tmp_path / "model")
    torch.save(model.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert bytes(state["embedding.checkpoint"].tolist()).decode() == str(tmp_path / "model")
    with caplog.at_level("WARNING"):
        model.load_state_dict(state)
        assert caplog.text == ""
        other = Model(Embedding(VOCABULARY, DIM))
        fleet.init()
        other.load_state_dict(state)
    assert f"the rows of `embedding` are not in this state, but in the checkpoint `{tmp_path / 'model'}`" in caplog.text


def test_a_model_in_evaluation_mode_creates_no_rows():
    model, optimizer = small()
    fleet.init_worker()
    model.eval()
    model(IDS).sum().backward()
    assert existing_rows() == 0
    optimizer.step()
    assert existing_rows() == len(IDS.unique())


JOB = """
import os, sys
import torch
from torch.nn import functional
from openfleet import fleet
from openfleet.torch import Embedding, convert, prefetch, to_local

torch.manual_seed(0)
torch.set_num_threads(1)
RULE, STEPS, MODE = sys.argv[1], int(sys.argv[2]), os.environ["MODE"]
fleet.init()
strategy = fleet.DistributedStrategy()
strategy.a_sync = MODE != "sync"
strategy.half_async = MODE == "half_async"
if MODE == "hybrid":
    strategy.staleness = 2
if MODE == "geo":
    strategy.a_sync_configs = {"k_steps": 5}
table = convert(torch.nn.Embedding(50, 4)) if "CONVERT" in os.environ else Embedding(50, 4)
layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
model = torch.nn.Sequential(table, layers)
rule = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
}[RULE](model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(rule, 30, gamma=0.5) if "SCHEDULE" in os.environ else None
optimizer = fleet.distributed_optimizer(rule, strategy, model, dense=os.environ.get("DENSE", "tables"))
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    sys.exit()
fleet.init_worker()
rank, count = fleet.worker_index(), fleet.worker_num()
losses = []

def batches():
    draw = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        ids = torch.randint(0, 50, (16, 3), generator=draw)
        labels = (ids[:, 0] % 2).float()
        part = slice(rank * 16 // count, (rank + 1) * 16 // count)
        yield ids[part], labels[part]

for number, (ids, labels) in enumerate(prefetch(batches(), {table: 0}) if "PREFETCH" in os.environ else batches()):
    loss = functional.binary_cross_entropy_with_logits(model(ids).squeeze(1), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if scheduler:
        scheduler.step()
    losses.append(loss.item())
    if os.environ.get("DIE") == str(number) and rank == 1 and not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), 9)
fleet.util.barrier()
if rank == 0:
    with torch.no_grad():
        rows = table(torch.arange(50))
    assert torch.equal(to_local(model)[0].weight, rows)
    torch.save([rows, *layers.state_dict().values()], "model.pt")
    print("losses %.4f %.4f" % (sum(losses[:10]) / 10, sum(losses[-10:]) / 10))
fleet.util.barrier()
fleet.stop_worker()
"""


def train(directory, mode, rule, steps, *launch, **variables):
    """Runs the job and returns what it has learnt: the values, and the losses at the beginning and at the end."""
    directory.mkdir()
    (directory / "train.py").write_text(JOB)
    command = [sys.executable, "-m", "openfleet.launch", *launch] if launch else [sys.executable]
    command += ["train.py", rule, str(steps)]
    given = environment(MODE=mode, **variables)
    ran = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=180, env=given)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    found = re.search(r"losses ([\d.]+) ([\d.]+)", said)
    return torch.load(directory / "model.pt", weights_only=True), tuple(map(float, found.groups())), said


@pytest.mark.parametrize("rule", ["sgd", "adagrad", "adam"])
def test_workers_in_sync_mode_train_as_one_process_does(rule, tmp_path):
    alone, _, _ = train(tmp_path / "alone", "sync", rule, 100, SCHEDULE="1")
    job, _, _ = train(tmp_path / "job", "sync", rule, 100, "--server_num=2", "--worker_num=2", SCHEDULE="1")
    for one, other in zip(alone, job):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_rows_that_are_converted_and_looked_up_ahead_are_those_of_one_process(tmp_path):
    alone, _, _ = train(tmp_path / "alone", "sync", "adam", 100, CONVERT="1")
    servers = ("--server_num=2", "--worker_num=2")
    job, _, _ = train(tmp_path / "job", "sync", "adam", 100, *servers, CONVERT="1", PREFETCH="1")
    ranks, _, _ = train(tmp_path / "ranks", "sync", "adam", 100, "--nproc_per_node=2", CONVERT="1", PREFETCH="1")
    for one, with_servers, without in zip(alone, job, ranks):
        torch.testing.assert_close(one, with_servers, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(one, without, atol=1e-6, rtol=1e-5)


def test_steps_of_pytorch_in_each_worker_are_averaged(tmp_path):
    alone, _, _ = train(tmp_path / "alone", "sync", "momentum", 100, DENSE="local", SCHEDULE="1")
    servers = ("--server_num=2", "--worker_num=2")
    job, _, _ = train(tmp_path / "job", "sync", "momentum", 100, *servers, DENSE="local", SCHEDULE="1")
    ranks, _, _ = train(tmp_path / "ranks", "sync", "momentum", 100, "--nproc_per_node=2", DENSE="local", SCHEDULE="1")
    for one, with_servers, without in zip(alone, job, ranks):
        torch.testing.assert_close(one, with_servers, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(one, without, atol=1e-6, rtol=1e-5)


def test_ranks_without_servers_train_as_one_process_does(tmp_path):
    alone, _, _ = train(tmp_path / "alone", "sync", "adam", 100, SCHEDULE="1")
    job, _, _ = train(tmp_path / "job", "sync", "adam", 100, "--nproc_per_node=2", SCHEDULE="1")
    for one, other in zip(alone, job):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("mode", ["half_async", "async", "hybrid", "geo"])
@pytest.mark.parametrize("how", [{}, {"PREFETCH": "1", "DENSE": "local"}], ids=["plain", "ahead-and-local"])
def test_workers_train_in_other_modes(mode, how, tmp_path):
    _, (first, last), said = train(tmp_path / "job", mode, "adam", 300, "--server_num=2", "--worker_num=2", **how)
    assert last < 0.6 * first and "not used" not in said


LIGHTNING = """
import lightning, torch
from torch.nn import functional
from openfleet import fleet
from openfleet.torch import Embedding

fleet.init()

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.table, self.losses = Embedding(4), []
        layers = [torch.nn.Flatten(), torch.nn.Linear(12, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)]
        self.layers = torch.nn.Sequential(*layers)

    def training_step(self, batch, index):
        ids, label = batch
        loss = functional.binary_cross_entropy_with_logits(self.layers(self.table(ids)).squeeze(1), label)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        optimizer = fleet.distributed_optimizer(torch.optim.Adam(self.parameters(), lr=0.01), model=self)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)]

torch.manual_seed(0)
ids = torch.randint(0, 50, (512, 3))
data = torch.utils.data.TensorDataset(ids, (ids[:, 0] % 2).float())
model = Model()
trainer = lightning.Trainer(
    max_epochs=5, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, gradient_clip_val=1.0
)
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=16, shuffle=True))
print("losses %.4f %.4f" % (sum(model.losses[:10]) / 10, sum(model.losses[-10:]) / 10))
"""

ACCELERATE = """
import torch
from accelerate import Accelerator
from torch.nn import functional
from openfleet import fleet
from openfleet.torch import Embedding

fleet.init()
torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
ids = torch.randint(0, 50, (512, 3))
data = torch.utils.data.TensorDataset(ids, (ids[:, 0] % 2).float())
data = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
layers = [torch.nn.Flatten(), torch.nn.Linear(12, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)]
model = torch.nn.Sequential(Embedding(4), *layers)
optimizer = fleet.distributed_optimizer(torch.optim.Adam(model.parameters(), lr=0.01), model=model)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
losses = []
for _ in range(5):
    for ids, label in data:
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(model(ids).squeeze(1), label)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
print("losses %.4f %.4f" % (sum(losses[:10]) / 10, sum(losses[-10:]) / 10))
"""


@pytest.mark.parametrize("package, script", [("lightning", LIGHTNING), ("accelerate", ACCELERATE)])
def test_loops_of_other_packages_train_unchanged(package, script, tmp_path):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: `make test-frameworks` installs it")
    (tmp_path / "train.py").write_text(script)
    ran = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=180, env=environment()
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    first, last = map(float, re.search(r"losses ([\d.]+) ([\d.]+)", ran.stdout).groups())
    assert last < 0.5 * first


ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "page", ["docs/guide/from-pytorch.md", "docs/guide/from-torchrec.md", "examples/torch_wide_deep/README.md"]
)
def test_a_page_about_pytorch_runs_unmodified(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(ROOT / page, tmp_path)


@pytest.mark.parametrize("launch", [[], ["--server_num=2", "--worker_num=2"]], ids=["alone", "job"])
def test_the_example_reaches_the_auc_in_its_page(launch, tmp_path):
    command = [sys.executable, *(["-m", "openfleet.launch", *launch] if launch else [])]
    command.append(str(ROOT / "examples" / "torch_wide_deep" / "train.py"))
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180, env=environment())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = [float(auc) for auc in re.findall(r"test AUC (0\.\d+)", ran.stdout + ran.stderr)]
    assert len(found) == 1 and found[0] > 0.72, found


def test_a_killed_worker_repeats_its_steps_without_pushing_them_twice(tmp_path):
    servers = ("--server_num=2", "--worker_num=2", "--max_restarts=2")
    undisturbed, _, _ = train(tmp_path / "job", "sync", "adam", 60, *servers)
    killed, _, said = train(tmp_path / "killed", "sync", "adam", 60, *servers, DIE="40")
    assert (tmp_path / "killed" / "died").exists(), said
    for one, other in zip(undisturbed, killed):
        assert torch.equal(one, other)
