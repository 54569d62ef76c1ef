"""PyTorch models as ONNX files: onnxruntime predicts what the model does.

Run by `make test-frameworks`; skipped where PyTorch, onnx or onnxruntime is not installed.
"""

import copy
import importlib.util
import sys

import pytest

for package in ("torch", "onnx", "onnxruntime"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: `make test-frameworks` installs it", allow_module_level=True)

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
import torch  # noqa: E402

from openfleet import OrderError, fleet, static  # noqa: E402
from openfleet.torch import Embedding, EmbeddingBag, EmbeddingCollection, to_local  # noqa: E402
from openfleet.torch import onnx as ours  # noqa: E402
from openfleet.torch.onnx import export_onnx  # noqa: E402

DIM = 4
# Both ends of the ids, and numbers that a float cannot tell apart.
WIDE = [-(2**63), -5, 0, 3, 2**62 + 1, 2**62 + 2, 2**63 - 1]
UNKNOWN = [-4, 17, 2**62 + 3]


@pytest.fixture(autouse=True)
def _job(job_of_its_own):
    fleet.init()


def trained(model, *batches, steps=3):
    """Binds a model, and trains the rows of some batches."""
    optimizer = fleet.distributed_optimizer(torch.optim.Adam(model.parameters(), lr=0.1), model=model)
    for _ in range(steps):
        for batch in batches:
            optimizer.zero_grad()
            sum((tensor**2).sum() for tensor in tensors(model(*batch))).backward()
            optimizer.step()
    return model


class WithLayer(torch.nn.Module):
    """An embedding and a layer, because a job trains at least one parameter."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding, self.layer = embedding, torch.nn.Linear(DIM, DIM)
        self.is_bag = isinstance(embedding, EmbeddingBag)

    def forward(self, input, offsets=None, per_sample_weights=None):
        vectors = self.embedding(input, offsets, per_sample_weights) if self.is_bag else self.embedding(input)
        return vectors, self.layer(vectors)


def tensors(value):
    """The tensors of arguments or results, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [tensor for part in parts for tensor in tensors(part)]


def session(path):
    onnx.checker.check_model(path, full_check=True)
    return onnxruntime.InferenceSession(path)


def run(file, batch):
    inputs = {given.name: tensor.numpy() for given, tensor in zip(file.get_inputs(), tensors(batch))}
    return [torch.from_numpy(np.asarray(output)) for output in file.run(None, inputs)]


def expected(model, batch):
    """What the evaluation form of a model predicts."""
    modes = [(module, module.training) for module in model.modules()]
    with torch.no_grad():
        results = tensors(model.eval()(*batch))
    for module, mode in modes:
        module.training = mode
    return results


def check_predictions(file, model, *batches):
    for batch in batches:
        results = run(file, batch)
        wanted = expected(model, batch)
        assert len(results) == len(wanted)
        for result, want in zip(results, wanted):
            torch.testing.assert_close(result, want, atol=1e-6, rtol=1e-6)


def check(model, path, batch, *others, **options):
    """Exports a model that is traced with one batch, and compares what it predicts for this batch and for others."""
    export_onnx(model, batch, path, **options)
    file = session(path)
    check_predictions(file, model, batch, *others)
    return file


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.onnx"


def ids(*shape, among=WIDE, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).choice(among, shape))


def test_any_64_bit_ids_find_their_rows(path):
    model = trained(WithLayer(Embedding(DIM)), (torch.tensor(WIDE),))
    file = check(model, path, (ids(3),), (torch.tensor(WIDE),))
    vectors = run(file, [torch.tensor(WIDE)])[0]
    assert len(vectors.unique(dim=0)) == len(WIDE)


def test_ids_of_32_bits_find_their_rows(path):
    model = trained(WithLayer(Embedding(DIM)), (torch.tensor([-5, 0, 3]),))
    check(model, path, (torch.tensor([3, -5], dtype=torch.int32),), (torch.tensor([0], dtype=torch.int32),))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_ids_below_a_bound_are_row_numbers(dtype, path):
    model = trained(WithLayer(Embedding(9, DIM)), (torch.tensor([1, 2, 8]),))
    file = check(model, path, (torch.tensor([[1, 8]], dtype=dtype),), (torch.arange(9, dtype=dtype).view(3, 3)[:, :2],))
    assert [node.op_type for node in onnx.load(path).graph.node if node.domain] == []
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument, match="out of"):
        run(file, [torch.tensor([[9, 0]], dtype=dtype)])


@pytest.mark.parametrize("sizes, padding", [((DIM,), -5), ((DIM,), 2**62 + 1), ((9, DIM), 3), ((9, DIM), -1)])
def test_the_vector_of_padding_is_zeros(sizes, padding, path):
    among = WIDE if len(sizes) == 1 else range(9)
    model = WithLayer(Embedding(*sizes, padding_idx=padding))
    trained(model, (torch.tensor(list(among)),))
    file = check(model, path, (ids(4, 3, among=among),), (ids(9, 3, among=among, seed=1),))
    assert (run(file, [torch.full((1, 3), model.embedding.padding_idx)])[0] == 0).all()


@pytest.mark.parametrize(
    "options, row",
    [
        ({}, 0.0),
        ({"initializer": static.initializer.Constant(0.25)}, 0.25),
        ({"initializer": static.initializer.Constant(0.25), "entry": static.CountFilterEntry(2)}, 0.0),
    ],
    ids=["uniform", "constant", "entry"],
)
def test_unknown_ids_share_a_row(options, row, path):
    model = trained(WithLayer(Embedding(DIM, **options)), (torch.tensor(WIDE),))
    export_onnx(model, torch.tensor(WIDE[:2]), path)
    file = session(path)
    check_predictions(file, to_local(model), [torch.tensor(WIDE + UNKNOWN)])
    assert (run(file, [torch.tensor(UNKNOWN)])[0] == row).all()


def test_all_ids_are_unknown_to_a_table_without_rows(path):
    model = trained(WithLayer(Embedding(DIM, initializer=static.initializer.Constant(0.5))))
    file = check(model, path, (torch.tensor(WIDE),), (torch.tensor([0]),))
    assert (run(file, [torch.tensor(WIDE)])[0] == 0.5).all()


OFFSETS = {
    "plain": [([0, 2, 2, 5], 7), ([0], 3), ([0, 0, 1, 4, 4], 4)],
    "with the last": [([0, 2, 2, 5, 7], 7), ([0, 3], 3), ([0, 0, 1, 4, 4], 4)],
}


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("sizes", [(DIM,), (9, DIM)], ids=["any ids", "bounded"])
@pytest.mark.parametrize("form", ["two axes", *OFFSETS])
def test_bags_are_pooled(form, sizes, padding, mode, path):
    among = WIDE if len(sizes) == 1 else range(9)
    bag = EmbeddingBag(*sizes, mode=mode, padding_idx=padding, include_last_offset=form == "with the last")
    model = trained(WithLayer(bag), (torch.tensor(list(among)).view(1, -1),)) if form == "two axes" else WithLayer(bag)
    if form == "two axes":
        batches = [(ids(rows, 3, among=among),) for rows in (4, 1, 9)]
        # A bag of padding only.
        batches.append((torch.full((2, 3), 3),))
    else:
        batches = [(ids(count, among=among), torch.tensor(offsets)) for offsets, count in OFFSETS[form]]
        trained(model, (torch.tensor(list(among)), torch.tensor([0, len(among)][: 1 + bag.include_last_offset])))
    check(model, path, *batches)


@pytest.mark.parametrize("form", ["two axes", "offsets"])
@pytest.mark.parametrize("padding", [None, 3])
def test_bags_are_weighted(form, padding, path):
    model = WithLayer(EmbeddingBag(DIM, mode="sum", padding_idx=padding))
    if form == "two axes":
        batches = [(ids(rows, 3), None, torch.rand(rows, 3)) for rows in (4, 1, 9)]
    else:
        batches = [(ids(n), torch.tensor(offsets), torch.rand(n)) for offsets, n in OFFSETS["plain"]]
    trained(model, *batches)
    file = check(model, path, *batches)
    assert [each.name for each in file.get_inputs()][-1] == "per_sample_weights"


def test_a_bag_takes_offsets_of_32_bits(path):
    model = WithLayer(EmbeddingBag(9, DIM))
    batch = torch.tensor([1, 2, 8], dtype=torch.int32), torch.tensor([0, 2], dtype=torch.int32)
    check(trained(model, batch), path, batch)


class Ranker(torch.nn.Module):
    """Features in a dictionary, of which two share a table, and numbers."""

    def __init__(self):
        super().__init__()
        self.features = EmbeddingCollection(
            {
                "user": Embedding(DIM),
                "item": Embedding(DIM, table="items"),
                "clicks": EmbeddingBag(DIM, table="items", mode="mean"),
                "hour": Embedding(24, DIM),
            }
        )
        self.layer = torch.nn.Linear(4 * DIM + 2, 1)

    def forward(self, features, numbers):
        vectors = self.features(features)
        return {"score": self.layer(torch.cat([*vectors.values(), numbers], dim=1)).squeeze(1), "user": vectors["user"]}


def ranked(rows, seed=0):
    draw = np.random.default_rng(seed)
    lengths = draw.integers(0, 4, rows)
    clicks = ids(int(lengths.sum()), seed=seed), torch.from_numpy(np.cumsum(lengths) - lengths)
    features = {
        "user": ids(rows, seed=seed),
        "item": ids(rows, seed=seed + 1),
        "clicks": clicks,
        "hour": torch.from_numpy(draw.integers(0, 24, rows)),
    }
    return features, torch.from_numpy(draw.random((rows, 2), np.float32))


def test_the_features_of_a_collection_are_inputs_by_their_names(path):
    model = trained(Ranker(), ranked(30))
    file = check(model, path, ranked(4, seed=1), ranked(1, seed=2), ranked(60, seed=3))
    names = ["user", "item", "clicks.ids", "clicks.offsets", "hour", "numbers"]
    assert [each.name for each in file.get_inputs()] == names
    assert [each.name for each in file.get_outputs()] == ["score", "output.user"]
    # Ids of bags and their offsets differ in size, which a runtime must know: it reuses memory among equal sizes.
    sizes = ["user.size", "item.size", "clicks.ids.size", "clicks.offsets.size", "hour.size", "batch"]
    assert [each.shape[0] for each in file.get_inputs()] == sizes


def counts(path):
    """How often a file has the ids of a table, and rows of one."""
    graph = onnx.load(path).graph
    gathered = {node.input[0] for node in graph.node if node.op_type == "Gather"}
    rows = [each for each in graph.initializer if each.name in gathered and each.dims[1:] == [DIM]]
    return sum(node.op_type == "LabelEncoder" for node in graph.node), len(rows)


def test_features_of_a_collection_that_share_a_table_share_its_ids_and_rows(path):
    check(trained(Ranker(), ranked(30)), path, ranked(4))
    assert counts(path) == (2, 3)


def test_modules_that_share_a_table_share_its_rows(path):
    class Model(WithLayer):
        def __init__(self):
            super().__init__(Embedding(DIM, table="rows"))
            self.bag = EmbeddingBag(DIM, table="rows", mode="max")

        def forward(self, input, bags):
            return super().forward(input)[1] + self.bag(bags)

    batch = ids(5), ids(5, 2, seed=1)
    check(trained(Model(), batch), path, batch, (ids(8), ids(8, 2)))
    assert counts(path) == (2, 1)


def test_padding_that_differs_between_modules_of_a_table_is_kept_apart(path):
    class Model(WithLayer):
        def __init__(self):
            super().__init__(Embedding(DIM, table="rows", padding_idx=3))
            self.other = Embedding(DIM, table="rows", padding_idx=0)

        def forward(self, input):
            return super().forward(input)[0], self.other(input)

    file = check(trained(Model(), (torch.tensor(WIDE),)), path, (torch.tensor(WIDE),))
    first, second = run(file, [torch.tensor([0, 3])])
    assert [each.any().item() for each in (*first, *second)] == [True, False, False, True]


class Jagged:
    """What a model reads of a KeyedJaggedTensor."""

    def __init__(self, names, ids, lengths, weights):
        self.keys, self.values, self.lengths = lambda: names, lambda: ids, lambda: lengths
        self.weights_or_none = lambda: weights


class JaggedRanker(torch.nn.Module):
    """A model that makes a KeyedJaggedTensor of its arguments."""

    def __init__(self):
        super().__init__()
        bags = {name: EmbeddingBag(DIM, table="rows", mode="sum") for name in ("views", "clicks")}
        self.features = EmbeddingCollection({**bags, "last": Embedding(DIM)})
        self.layer = torch.nn.Linear(3 * DIM, 1)

    def forward(self, ids, lengths, weights=None):
        vectors = self.features(Jagged(["views", "clicks", "last"], ids, lengths, weights))
        return self.layer(torch.cat(list(vectors.values()), dim=1))


@pytest.mark.parametrize("is_weighted", [True, False])
def test_jagged_features_have_any_lengths(is_weighted, path):
    def batch(rows, seed):
        # `last` has one id per row.
        lengths = np.random.default_rng(seed).integers(0, 4, 3 * rows)
        lengths[2 * rows :] = 1
        weights = (torch.rand(int(lengths.sum())),) if is_weighted else ()
        return (ids(int(lengths.sum()), seed=seed), torch.from_numpy(lengths), *weights)

    model = trained(JaggedRanker(), batch(30, 0))
    check(model, path, batch(4, 1), batch(4, 2), batch(1, 3), batch(50, 4))


class Fields(torch.nn.Module):
    """Ids that are computed in the model, and sizes that are read from its tensors."""

    def __init__(self):
        super().__init__()
        self.embedding, self.bag = Embedding(DIM), EmbeddingBag(DIM, mode="sum")
        self.layer = torch.nn.Linear(3 * DIM, 2)

    def forward(self, input):
        vectors = self.embedding(input[:, 1:] * 3 - 1)
        bags = self.bag(input.reshape(-1), torch.arange(input.shape[0]) * input.shape[1])
        joined = torch.cat([vectors.reshape(vectors.shape[0], -1), bags.view(bags.size(0), DIM)], dim=1)
        return self.layer(joined), joined.mean(dim=0)


def test_a_batch_has_any_size(path):
    def batch(rows):
        return (ids(rows, 3, among=range(-9, 9), seed=rows),)

    model = trained(Fields(), batch(200))
    file = check(model, path, batch(4), batch(1), batch(2), batch(300))
    assert file.get_inputs()[0].shape == ["batch", 3]
    assert isinstance(file.get_outputs()[0].shape[0], str)


def test_axes_are_those_of_the_caller(path):
    model = trained(WithLayer(EmbeddingBag(DIM)), (torch.tensor([WIDE]),))
    batch = (ids(4, 3),)
    file = check(model, path, batch, (ids(4, 7),), dynamic_axes={"input": {1: "length"}})
    assert file.get_inputs()[0].shape == [4, "length"]
    file = check(model, path, batch, dynamic_axes={})
    assert file.get_inputs()[0].shape == [4, 3]


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = Embedding(DIM)
        self.layer = torch.nn.TransformerEncoderLayer(DIM, 2, dim_feedforward=8, batch_first=True)

    def forward(self, input):
        return self.layer(self.embedding(input))


def test_attention_over_the_vectors_is_exported(path):
    model = trained(Attention(), (ids(16, 3),))
    check(model, path, (ids(4, 3),), (ids(9, 3),))


def normalized():
    torch.manual_seed(0)
    layers = [torch.nn.BatchNorm1d(3 * DIM), torch.nn.Dropout(0.5), torch.nn.Linear(3 * DIM, 1)]
    model = torch.nn.Sequential(Embedding(DIM), torch.nn.Flatten(), *layers)
    return trained(model, *((ids(16, 3, seed=seed),) for seed in range(3)))


def test_the_evaluation_form_of_a_model_in_training_is_exported(path):
    model = normalized()
    assert model.training and (model[2].running_var != 1).any()
    check(model, path, (ids(4, 3),), (ids(9, 3),))


def test_an_export_does_not_change_the_model(path):
    model = normalized()
    fleet.init_worker()
    model[3].eval()
    modes = [module.training for module in model.modules()]
    model(ids(16, 3)).sum().backward()
    gradients = {name: each.grad.clone() for name, each in model.named_parameters()}
    state, rows = copy.deepcopy(model.state_dict()), fleet.table_rows()
    export_onnx(model, ids(4, 3, among=[*WIDE, *UNKNOWN]), path)
    assert [module.training for module in model.modules()] == modes
    assert fleet.table_rows() == rows and list(model.state_dict()) == list(state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert [name for name, _ in model.named_parameters()] == list(gradients)
    for name, each in model.named_parameters():
        assert torch.equal(each.grad, gradients[name]), name


def test_large_rows_are_in_a_file_next_to_the_model(path):
    model = trained(Ranker(), ranked(30))
    export_onnx(model, ranked(4), path)
    assert [each.name for each in path.parent.iterdir()] == ["model.onnx"]
    inline = path.stat().st_size
    check(model, path, ranked(4), ranked(9), inline_bytes=100)
    assert sorted(each.name for each in path.parent.iterdir()) == ["model.onnx", "model.onnx.data"]
    rows = [each for each in onnx.load(path, load_external_data=False).graph.initializer if each.external_data]
    assert [int(each.external_data[1].value) % 4096 for each in rows] == [0, 0, 0]
    assert path.stat().st_size < inline


def test_more_ids_than_a_file_can_have_are_an_error_before_anything_is_written(path, monkeypatch):
    model = trained(WithLayer(Embedding(DIM)), (torch.arange(10_000),))
    monkeypatch.setattr(ours, "_LARGEST_FILE", 160_000)
    with pytest.raises(ValueError, match=r"take 16\d\d\d\d bytes: .* at most 160000(?s:.*)hint: look up the features"):
        export_onnx(model, torch.tensor([1]), path)
    assert not path.exists()


def test_an_op_that_onnx_lacks_is_named(path):
    class Model(WithLayer):
        def forward(self, input):
            return torch.special.i0e(super().forward(input)[1])

    model = trained(Model(Embedding(DIM)), (torch.tensor(WIDE),))
    with pytest.raises(NotImplementedError, match=r"the op `aten::special_i0e` of the model has no form(?s:.*)hint: "):
        export_onnx(model, torch.tensor(WIDE), path)
    assert not path.exists()


def test_an_older_pytorch_is_an_error(path, monkeypatch):
    monkeypatch.setattr(torch.onnx, "export", lambda model, args, f: None)
    with pytest.raises(ImportError, match=r"needs PyTorch 2.5, got .*\n\nhint: pip install"):
        export_onnx(WithLayer(Embedding(DIM)), torch.tensor(WIDE), path)


def test_a_missing_package_is_named(path, monkeypatch):
    model = trained(WithLayer(Embedding(DIM)), (torch.tensor(WIDE),))
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"needs the package `onnx`\n\nhint: pip install onnx"):
        export_onnx(model, torch.tensor(WIDE), path)


def test_a_model_without_tables_is_an_error(path):
    with pytest.raises(OrderError, match="distributed_optimizer"):
        export_onnx(WithLayer(Embedding(DIM)), torch.tensor(WIDE), path)


def test_names_are_those_of_the_caller(path):
    model = trained(WithLayer(Embedding(DIM)), (torch.tensor(WIDE),))
    file = check(model, path, (ids(4),), input_names=["ids"], output_names=["vectors", "score"])
    assert [each.name for each in (*file.get_inputs(), *file.get_outputs())] == ["ids", "vectors", "score"]
    with pytest.raises(
        ValueError, match=r"`output_names` expects 2 different names, for output.0, output.1, got \['vectors'\]"
    ):
        export_onnx(model, ids(4), path, output_names=["vectors"])
    with pytest.raises(ValueError, match=r"`output_names` expects 2 different names"):
        export_onnx(model, ids(4), path, output_names=["vectors", "vectors"])
    with pytest.raises(ValueError, match=r"`input_names` expects 1 different names, for input, got "):
        export_onnx(model, ids(4), path, input_names=["ids", "offsets"])


def test_arguments_have_names_and_structure(path):
    class Model(WithLayer):
        def forward(self, first, second, *, scale=1.0, lists=()):
            vectors = [self.embedding(each) for each in (first["id"], second["id"], second["other"], *lists)]
            return self.layer(sum(vectors)) * scale

    model = Model(Embedding(DIM))
    batch = {"id": ids(4)}, {"id": ids(4, seed=1), "other": ids(4, seed=2)}
    lists = [ids(4, seed=3), ids(4, seed=4)]
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    model(*batch, lists=lists).sum().backward()
    optimizer.step()
    export_onnx(model, batch, path, kwargs={"scale": 2.0, "lists": lists})
    file = session(path)
    assert [each.name for each in file.get_inputs()] == ["first.id", "second.id", "other", "lists.0", "lists.1"]
    with torch.no_grad():
        wanted = model(*batch, scale=2.0, lists=lists)
    torch.testing.assert_close(run(file, [batch, lists])[0], wanted, atol=1e-6, rtol=1e-6)


def test_an_argument_that_is_no_tensor_is_named(path):
    model = trained(WithLayer(Embedding(DIM)), (torch.tensor(WIDE),))
    with pytest.raises(TypeError, match=r"`input` is a ndarray: a graph takes(?s:.*)hint: "):
        export_onnx(model, (np.array(WIDE),), path)
