"""from_torch: PyTorch's modules as graphs compute what PyTorch computes, forward and in training, whole and cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import taskflow
from taskflow.checkpoint.weights import load_weights
from taskflow.models import build
from taskflow.models.pytorch import from_torch, weights_of

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
from training_by_torch import losses_of_pytorch  # noqa: E402

nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.torch


class Residual(nn.Module):
    """Convolutions with every kind of padding, normalisation, a projection, pooling; names in depth."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.same = nn.Conv2d(8, 8, (3, 5), padding="same", groups=2)
        self.down = nn.Conv2d(8, 12, 1, padding="valid")
        self.up = nn.Conv2d(8, 12, 3, padding=(1, 1))
        self.norm = nn.BatchNorm2d(12)
        self.head = nn.Linear(12 * 4, 10)

    def forward(self, x: Any) -> Any:
        x = self.pool(self.stem(x))
        y = F.leaky_relu(self.same(x), 0.1)
        y = self.norm(self.up(y)) + self.down(x)
        y = F.adaptive_avg_pool2d(F.relu(y), (2, 2))
        return self.head(torch.flatten(y, 1))


class Groups(nn.Module):
    """Normalisation over groups of channels, images made larger again, also by functions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(4, 8)
        self.inner, self.all = nn.Conv2d(8, 6, 3, 2, 1), nn.GroupNorm(1, 6, eps=1e-3)
        self.up, self.wide = nn.Upsample(scale_factor=2), nn.Upsample(size=(4, 12))
        self.each = nn.GroupNorm(6, 6)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.norm(self.first(x)))
        y = self.all(self.inner(x))
        y = self.up(F.silu(y)) + self.inner(F.interpolate(x, scale_factor=2, mode="nearest"))
        y = F.group_norm(self.wide(y), 2, self.each.weight, self.each.bias, 1e-4)
        return self.head(self.each(y).mean((2, 3)))


class Decoder(nn.Module):
    """Images made larger by filters: with strides, padding, dilation, groups, rows at the end, without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ConvTranspose2d(6, 8, 4, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.ConvTranspose2d(8, 4, (3, 2), (2, 1), (1, 0), (1, 0), groups=2)
        self.third = nn.ConvTranspose2d(4, 3, 3, 1, 0, dilation=(1, 2))
        self.head = nn.Linear(3, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.third(torch.relu(self.second(torch.relu(self.norm(self.first(x)))))).mean((2, 3)))


class Branches(nn.Module):
    """Concatenation, splits, slices, views by sizes, averages."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 6, 1), nn.Conv2d(4, 6, 3, padding=1)
        self.average = nn.AvgPool2d(2, count_include_pad=False)
        self.shared = nn.Linear(6, 6)
        self.out = nn.Linear(12, 5)

    def forward(self, x: Any, factor: float = 0.5) -> Any:
        n, channels = x.shape[0], x.size(1)
        both = torch.cat([F.silu(self.a(x)), torch.tanh(self.b(x))], dim=1)
        both = self.average(both) * factor - F.avg_pool2d(both, 2) / 4
        first, second = both.chunk(2, 1)
        rows = first.permute(0, 2, 3, 1).reshape(n, -1, channels + 2)
        rows = self.shared(F.gelu(self.shared(rows)))  # one layer, twice
        rest = second[:, :, 0:2, -1].mean(dim=(2,), keepdim=True).squeeze(2).unsqueeze(1)
        return self.out(torch.cat((rows.mean(1, keepdim=True), -rest), 2)[:, 0])


class Tokens(nn.Module):
    """Embeddings, an LSTM, and an output layer that shares the embedding's table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.rnn = nn.LSTM(6, 6, 2, batch_first=True)
        self.norm = nn.LayerNorm(6)
        self.scores = nn.Linear(6, 11, bias=False)
        self.scores.weight = self.table.weight

    def forward(self, tokens: Any) -> Any:
        y, (h, _) = self.rnn(self.table(tokens))
        return self.scores(self.norm(y + h[-1].unsqueeze(1)))


class Causal(nn.Module):
    """Attention as language models write it, beside PyTorch's own layers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(9, 8), nn.Embedding(5, 8)
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8), enable_nested_tensor=False)
        self.mix = nn.MultiheadAttention(8, 4, batch_first=True)
        self.scores = nn.Linear(8, 9)

    def forward(self, tokens: Any, places: Any) -> Any:
        x = self.table(tokens) + self.places(places)
        n, steps, width = x.size()
        q, k, v = self.qkv(x).split(width, dim=2)
        q = q.view(n, steps, 2, width // 2).transpose(1, 2)
        k = k.view(n, steps, 2, width // 2).transpose(1, 2)
        v = v.view(n, steps, 2, width // 2).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).contiguous().view(n, steps, width))
        x = self.encoder(x)
        return self.scores(x + self.mix(x, x, x, need_weights=False)[0])


class Free(nn.Module):
    """Parameters in expressions, as in vision transformers and ConvNeXt, one of them twice; numbers added; hard activations."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.places = nn.Parameter(torch.randn(1, 5, 6))
        self.scale = nn.Parameter(torch.full((6, 1, 1), 0.5))
        self.norm, self.mix = nn.LayerNorm(6), nn.Linear(6, 6, bias=False)
        self.inner = nn.ModuleDict({"six": nn.ReLU6(), "swish": nn.Hardswish(), "gate": nn.Hardsigmoid()})
        self.out = nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        torch._assert(x.dim() == 4, f"four dimensions, not {x.shape}")
        x = self.inner["swish"](4 * x) * self.scale - 2
        x = self.scale * (1 - F.hardtanh(x, -0.5, 2.0)) + F.relu6(x) * self.inner["gate"](6 * x)
        x = F.layer_norm(x.permute(0, 2, 3, 1), (6,), self.norm.weight, self.norm.bias, 1e-4)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x.flatten(1, 2)], dim=1) + self.places
        return self.out(F.linear(self.inner["six"](1 + x), self.mix.weight)[:, 0] + x.mean(1))


def images(*shape: int) -> Callable[[Any], tuple[Any, ...]]:
    return lambda generator: (torch.randn(*shape, dtype=torch.float64, generator=generator),)


def tokens(high: int, *shapes: tuple[int, ...]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda generator: tuple(torch.randint(high, shape, generator=generator) for shape in shapes)


CASES = {
    "residual": (Residual, images(4, 3, 16, 16), 10, (4,)),
    "groups": (Groups, images(4, 3, 8, 8), 5, (4,)),
    "decoder": (Decoder, images(4, 6, 4, 4), 5, (4,)),
    "branches": (Branches, images(4, 4, 8, 8), 5, (4,)),
    "tokens": (Tokens, tokens(11, (4, 5)), 11, (4, 5)),
    "free": (Free, images(4, 6, 2, 2), 4, (4,)),
    "causal": (Causal, tokens(5, (4, 5), (4, 5)), 9, (4, 5)),
}


def prepared(case: str) -> tuple[Any, tuple[Any, ...], Any, taskflow.OperatorGraph]:
    """A module in double precision, its arguments, labels, and its graph."""
    make, examples, classes, shape = CASES[case]
    torch.manual_seed(3)
    module = make().double()
    generator = torch.Generator().manual_seed(5)
    arguments = examples(generator)
    return module, arguments, torch.randint(classes, shape, generator=generator), from_torch(module, *arguments)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_it_trains_as_in_pytorch(case: str, cut: bool) -> None:
    module, arguments, labels, graph = prepared(case)
    assert graph.parameter_count == sum(p.numel() for p in module.parameters())
    strategy = taskflow.choose("random" if cut else "data", graph, taskflow.host(3 if cut else 1))[0]
    run = taskflow.Executor(graph, strategy, taskflow.SGD(lr=0.05, momentum=0.9))
    load_weights(run, weights_of(module))
    inputs = [node.name for node in graph if node.operator.kind == "input"]
    feeds = dict(zip(inputs, [argument.numpy() for argument in arguments])) | {"labels": labels.numpy()}
    ours = [run.train(feeds) for _ in range(4)]
    theirs = losses_of_pytorch(module, arguments, labels, 4)
    np.testing.assert_allclose(ours, theirs, rtol=1e-8)
    assert theirs[-1] < theirs[0]


def test_a_graph_names_layers_by_their_paths() -> None:
    module, _, _, graph = prepared("residual")
    assert {p.name for p in graph.parameters} == {name for name, _ in module.named_parameters()}
    assert graph.name == "Residual" and graph.node("stem.0").operator.kind == "conv2d"


class Places(nn.Module):
    """Drops of a constant, as XLNet does of its table of positions, and of what follows from the input."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.drop, self.same = nn.Linear(6, 8), nn.Dropout(0.25), nn.Dropout(0.0)
        self.register_buffer("table", torch.linspace(-1, 1, 8))

    def forward(self, x: Any) -> Any:
        return self.drop(self.up(x)) + self.drop(self.table * 2) + self.same(self.table)


def test_a_product_with_a_weight_turned_round_is_a_layer() -> None:
    """As Falcon's layers are written; a weight that is an operator's would lie on one processor."""
    class Turned(nn.Linear):
        def forward(self, x: Any) -> Any:
            return x @ self.weight.T + self.bias

    graph = from_torch(nn.Sequential(Turned(6, 8), nn.ReLU(), Turned(8, 4)), (4, 3, 6))
    assert [node.operator.kind for node in graph if node.parameters] == ["linear", "add_weight"] * 2
    assert {p.name for p in graph.parameters} == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_a_constant_may_be_dropped() -> None:
    graph = from_torch(Places(), (4, 6), loss="mse_loss")
    dropped = [node for node in graph if node.operator.kind == "dropout"]
    assert len(dropped) == 2 and graph.nodes[dropped[1].inputs[0].node].operator.kind == "constant"


@pytest.mark.parametrize("by_function", [False, True])
def test_channels_are_dropped_as_a_whole(by_function: bool) -> None:
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout2d(0.4)

        def forward(self, x: Any) -> Any:
            return nn.functional.dropout2d(x, 0.4, self.training) if by_function else self.drop(x)

    found: list[Any] = []
    graph = from_torch(Drops(), (40, 30, 3, 2), loss=lambda y: found.append(y) or taskflow.mean(y))
    run = taskflow.Executor(graph, taskflow.choose("data", graph, taskflow.host(1))[0])
    x = np.ones((40, 30, 3, 2), np.float32)
    assert (run.evaluate_with({"x": x}, found)[1][found[0].name] == x).all()
    dropped = [node for node in graph if node.operator.kind == "dropout"]
    assert [node.outputs[0].shape for node in dropped] == [(40, 30, 1)] and dropped[0].operator.p == 0.4


def test_shapes_do_for_floats_and_losses_may_be_chosen() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.2))
    graph = from_torch(module, (8, 4), loss="mse_loss", name="small")
    assert graph.name == "small" and graph.dtype == np.float32
    assert [n.name for n in graph if n.operator.kind == "input"] == ["input", "targets"]
    own = from_torch(module, (8, 4), loss=lambda y: taskflow.mean(taskflow.mul(y, y)))
    assert len(own.losses) == 1 and not from_torch(module, (8, 4), loss=None).losses
    found = taskflow.search(graph, taskflow.load_machine("k80", 2), budget="50p")
    assert found.seconds > 0


def test_what_has_no_counterpart_is_listed() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.zeros(1, 4))
            self.act, self.again, self.up = nn.Hardshrink(), nn.Hardshrink(), nn.Bilinear(4, 4, 2)
            self.register_buffer("table", torch.zeros(4))

        def forward(self, x: Any) -> Any:
            return torch.special.i0(self.up(self.again(self.act(x)), x).sum(1) + self.token.sum() * self.table.sum()).kthvalue(1)

    with pytest.raises(ValueError, match=r"no counterpart for .*up \(Bilinear\)") as error:
        from_torch(Odd(), (2, 4, 4))
    for part in (
        "act (Hardshrink, 2 times)", "special_i0 (a function)", "kthvalue (a tensor's method)"
    ):
        assert part in str(error.value)


@pytest.mark.parametrize(
    "module, message",
    [
        (nn.Sequential(nn.BatchNorm2d(3, momentum=None)), r"0 \(BatchNorm2d\) needs a momentum"),
        (nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True)), "0: track_running_stats is not supported"),
        (nn.Sequential(nn.ConvTranspose2d(3, 4, 1, padding=4)), "0: PyTorch says: .*Output size is too small"),
        (nn.Sequential(nn.MaxPool2d(9)), "0: PyTorch says: .*Output size is too small"),
    ],
)
def test_what_a_layer_cannot_do_is_said(module: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_torch(module, (2, 3, 8, 8))


def test_a_loss_may_use_all_that_a_module_returns() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            return self.a(x), self.b(x)

    def loss(outputs: Any) -> Any:
        first, second = outputs
        return taskflow.mean(taskflow.add(taskflow.mul(first, first), taskflow.scale(second, 0.5)))

    torch.manual_seed(1)
    module = Two().double()
    x = torch.randn(8, 4, dtype=torch.float64)
    graph = from_torch(module, x, loss=loss)
    run = taskflow.Executor(graph, taskflow.choose("data", graph, taskflow.host(2))[0])
    load_weights(run, weights_of(module))
    first, second = module(x)
    assert run.evaluate({"x": x.numpy()}) == pytest.approx((first * first + 0.5 * second).mean().item(), rel=1e-12)


def test_a_loss_may_name_what_a_dataclass_holds() -> None:
    @dataclass
    class Found:
        scores: Any
        loss: Any = None

    class Batch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 3)

        def forward(self, x: Any, labels: Any = None) -> Any:
            scores = self.a(x)
            return Found(scores, F.cross_entropy(scores, labels))

    module = torch.compile(Batch())
    data = {"x": torch.randn(8, 4), "labels": torch.randint(3, (8,))}
    graph = from_torch(module, keywords=data, loss=lambda found: found.loss)
    assert graph.name == "Batch" and "a.weight" in weights_of(module)
    run = taskflow.Executor(graph, taskflow.choose("data", graph, taskflow.host(1))[0])
    load_weights(run, weights_of(module))
    ours = run.evaluate({name: value.numpy() for name, value in data.items()})
    assert ours == pytest.approx(module._orig_mod(**data).loss.item(), rel=1e-6)
    with pytest.raises(AttributeError, match="returns no logits, but scores, loss"):
        from_torch(module, keywords=data, loss=lambda found: found.logits)


@pytest.mark.parametrize("shift, message", [(0, ""), (-4, "below 7, got -1"), (4, "below 7, got 7"), (-9, "at least 0")])
def test_computed_indices_beyond_their_dimension_are_refused_by_the_step(shift: int, message: str) -> None:
    """One that is beyond its own dimension, and not beyond the whole, would take what stands in the next row."""
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(9, 7, 2))

        def forward(self, at: Any) -> Any:
            return self.table[at, at + shift]

    module = Pairs()
    graph = from_torch(module, torch.full((2, 3), 5), loss=taskflow.mean, verify=False)
    run = taskflow.Executor(graph, taskflow.choose("data", graph, taskflow.host(1))[0])
    load_weights(run, weights_of(module))
    at = torch.full((2, 3), 3)
    if message:
        with pytest.raises(ValueError, match=message):
            run.evaluate({"at": at.numpy()})
    else:
        assert run.evaluate({"at": at.numpy()}) == pytest.approx(module(at).mean().item())


def test_wrong_calls_are_said() -> None:
    class Depends(nn.Module):
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    with pytest.raises(ValueError, match=r"cannot follow Depends: .*numbers .*torch\.where, .*\(line \d+ of test_from_torch"):
        from_torch(Depends(), (2, 4))
    with pytest.raises(ValueError, match=r"must be a torch\.nn\.Module, got int"):
        from_torch(3, (2, 4))
    with pytest.raises(ValueError, match=r"input: there is no example"):
        from_torch(nn.Sequential(nn.Linear(4, 3)))
    with pytest.raises(ValueError, match=r"loss must be .*'hinge'"):
        from_torch(nn.Sequential(nn.Linear(4, 3)), (2, 4), loss="hinge")


@pytest.mark.parametrize("name", ["alexnet", "resnet101", "inception_v3"])
def test_torchvisions_networks_are_ours(name: str, torchvision: Any) -> None:
    """The graphs of torchvision's own modules have the parameters and the arithmetic of ours."""
    module = getattr(torchvision.models, name)(**({"init_weights": False, "aux_logits": False} if name == "inception_v3" else {}))
    ours = build({"alexnet": "AlexNet", "resnet101": "ResNet-101", "inception_v3": "Inception-v3"}[name], batch=4)
    theirs = from_torch(module, ours.node("images").outputs[0].shape)
    assert theirs.parameter_count == ours.parameter_count
    flops = [sum(n.operator.flops(n.specs, n.space) for n in graph if n.parameters) for graph in (theirs, ours)]
    assert flops[0] == flops[1]
