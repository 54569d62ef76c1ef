"""PyTorch's embeddings become tables, and tables become PyTorch's embeddings again.

Run by `make test-frameworks`; skipped where PyTorch is not installed.
"""

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: `make test-frameworks` installs it", allow_module_level=True)

import torch  # noqa: E402

from openfleet import OrderError, ProgramError, fleet, static  # noqa: E402
from openfleet.torch import Embedding, EmbeddingBag, EmbeddingCollection, convert, to_local  # noqa: E402

VOCABULARY, DIM = 300, 4


@pytest.fixture(autouse=True)
def _job(job_of_its_own):
    fleet.init()


class Model(torch.nn.Module):
    """An embedding, two bags of one weight, and a layer."""

    def __init__(self):
        super().__init__()
        self.user = torch.nn.Embedding(VOCABULARY, DIM, padding_idx=0)
        self.clicks = torch.nn.EmbeddingBag(VOCABULARY, DIM, mode="sum")
        self.carts = torch.nn.EmbeddingBag(VOCABULARY, DIM, mode="mean", padding_idx=7)
        self.carts.weight = self.clicks.weight
        self.layer = torch.nn.Linear(3 * DIM, 1)

    def forward(self, ids):
        vectors = [self.user(ids[:, 0]), self.clicks(ids), self.carts(ids)]
        return self.layer(torch.cat(vectors, dim=1)).squeeze(1)


IDS = torch.tensor([[5, 7, 9], [0, 7, 7], [299, 1, 5]])


def distributed(model, rule=torch.optim.SGD, lr=0.1):
    return fleet.distributed_optimizer(rule(model.parameters(), lr=lr), model=model)


def test_a_converted_model_predicts_and_trains_as_before_and_converts_back_to_the_same_bits():
    torch.manual_seed(0)
    theirs = Model()
    before = {name: value.clone() for name, value in theirs.state_dict().items()}
    expected = theirs(IDS).detach()
    model = convert(theirs)
    assert model is theirs and isinstance(model.user, Embedding) and isinstance(model.carts, EmbeddingBag)
    optimizer = distributed(model, lr=0.01)
    torch.testing.assert_close(model(IDS).detach(), expected)
    back = to_local(model)
    assert type(back.user) is torch.nn.Embedding and back.carts.weight is back.clicks.weight
    assert back.state_dict().keys() == before.keys()
    for name, value in back.state_dict().items():
        assert torch.equal(value, before[name]), name
    rule = torch.optim.SGD(back.parameters(), lr=0.01)
    for _ in range(20):
        for one, each in ((model, optimizer), (back, rule)):
            each.zero_grad()
            (one(IDS) ** 2).mean().backward()
            each.step()
    trained = to_local(model).state_dict()
    for name, value in back.state_dict().items():
        torch.testing.assert_close(trained[name], value, atol=1e-6, rtol=1e-5)
    assert not torch.equal(trained["user.weight"], before["user.weight"])


@pytest.mark.parametrize("bounded", [True, False])
def test_a_converted_model_checks_ids_unless_it_has_no_bound(bounded):
    weight = torch.rand(3, DIM)
    embedding = convert(torch.nn.Embedding.from_pretrained(weight, freeze=False), bounded=bounded)
    distributed(torch.nn.ModuleList([embedding, torch.nn.Linear(1, 1)]), torch.optim.Adam)
    with torch.no_grad():
        assert torch.equal(embedding(torch.arange(3)), weight)
    if bounded:
        with pytest.raises(ProgramError, match="below the vocabulary's size 3"):
            embedding(torch.tensor([2**40]))
        return
    assert embedding(torch.tensor([2**40])).shape == (1, DIM)
    local = to_local(embedding)
    assert local.ids.tolist() == [0, 1, 2, 2**40] and local.weight.shape == (5, DIM)
    assert torch.equal(local(torch.arange(3)).detach(), weight)


def test_embeddings_without_a_bound_become_embeddings_of_the_ids_that_have_a_row():
    some = static.initializer.Constant(0.5)
    features = {
        "user": Embedding(DIM, initializer=some),
        "item": Embedding(DIM, table="items", padding_idx=-1),
        "clicks": EmbeddingBag(DIM, mode="sum", table="items", padding_idx=-1),
        "rare": Embedding(DIM, entry=static.CountFilterEntry(2), initializer=some),
    }
    model = torch.nn.ModuleDict({"features": EmbeddingCollection(features), "layer": torch.nn.Linear(DIM, 1)})
    optimizer = distributed(model)
    ids = torch.tensor([-(2**63), 3, 2**63 - 1, -1])
    inputs = {"user": ids, "item": ids, "clicks": (ids, torch.tensor([0, 3])), "rare": ids}
    for _ in range(3):
        optimizer.zero_grad()
        vectors = model["features"](inputs).values()
        sum((each * (index + 1.0)).sum() for index, each in enumerate(vectors)).backward()
        optimizer.step()
    local = to_local(model)
    assert local["features"].features["item"].weight is local["features"].features["clicks"].weight
    assert local["features"].features["user"].ids.tolist() == [-(2**63), -1, 3, 2**63 - 1]
    with torch.no_grad():
        expected, found = model["features"](inputs), local["features"](inputs)
        for name, vectors in expected.items():
            assert torch.equal(found[name], vectors), name
        unknown = local["features"]({name: torch.tensor([17]) for name in ("user", "item", "rare")})
    assert unknown["user"].unique().tolist() == [0.5]
    assert unknown["item"].unique().tolist() == unknown["rare"].unique().tolist() == [0.0]
    # It is a model of PyTorch: it trains, and its state can be loaded.
    loss = sum(vectors.sum() for vectors in local["features"](inputs).values())
    loss.backward()
    assert local["features"].features["user"].weight.grad.shape == (5, DIM)
    local.load_state_dict(local.state_dict())


def test_a_model_without_rows_becomes_local():
    embedding = Embedding(DIM, initializer=static.initializer.Constant(0.25))
    model = torch.nn.Sequential(embedding, torch.nn.Linear(DIM, 1))
    distributed(model)
    with torch.no_grad():
        assert to_local(model)[0](torch.tensor([4, 5])).unique().tolist() == [0.25]


def test_what_cannot_be_converted_is_named(caplog):
    with pytest.raises(ValueError, match=r"the model has no `nn.Embedding`"):
        convert(torch.nn.Linear(1, 1))
    with pytest.raises(NotImplementedError, match=r"`max_norm=1.0` of the embedding `0`"):
        convert(torch.nn.Sequential(torch.nn.Embedding(3, 2, max_norm=1.0)))
    tied = torch.nn.Sequential(torch.nn.Embedding(3, 2), torch.nn.Linear(2, 3))
    tied[1].weight = tied[0].weight
    with pytest.raises(ValueError, match=r"the weight of the embedding `0` is also `1.weight`(?s:.*)hint"):
        convert(tied)
    padded = torch.nn.Embedding.from_pretrained(torch.ones(3, 2), freeze=False, padding_idx=1)
    with pytest.raises(ValueError, match="padding vector that is not zeros"):
        convert(torch.nn.Sequential(padded))
    with pytest.raises(ValueError, match=r"the embedding `0` is torch.float64 on cpu"):
        convert(torch.nn.Sequential(torch.nn.Embedding(3, 2, dtype=torch.float64)))
    with caplog.at_level("WARNING"):
        frozen = convert(torch.nn.Sequential(torch.nn.Embedding.from_pretrained(torch.ones(3, 2))))
    assert type(frozen[0]) is torch.nn.Embedding
    assert "the embedding `0` is frozen: it stays a module of PyTorch" in caplog.text
    with pytest.raises(OrderError, match="`Embedding` has no tables yet"):
        to_local(torch.nn.Sequential(Embedding(3)))
