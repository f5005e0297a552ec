"""Networks from PyTorch of which some operators have no samples, or have them in their second dimension, train in micro-batches as
PyTorch trains them."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fast_and_slow import fast_among

import taskflow

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from taskflow.mapper import sample_dim  # noqa: E402
from taskflow.models.pytorch import from_torch, weights_of  # noqa: E402
from taskflow.training import load_weights  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
BATCH, STEPS, WORDS, WIDTH = 8, 6, 50, 16
_file = Path(__file__).parents[2] / "benchmarks" / "imports.py"


class Recurrent(nn.Module):
    """Reads the last states of its layers. ``use``: how."""

    def __init__(self, layers: int, use: str) -> None:
        super().__init__()
        self.table, self.lstm = nn.Embedding(WORDS, WIDTH), nn.LSTM(WIDTH, WIDTH, layers, batch_first=True)
        self.use, self.scores = use, nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Any) -> Any:
        y, (h, c) = self.lstm(self.table(tokens))
        if self.use == "last":
            y = y + h[-1][:, None] + c[0].unsqueeze(1)
        elif self.use == "squeezed":
            y = y + h.squeeze(0)[:, None]
        elif self.use == "summed":
            y = y + h.sum(0)[:, None]
        return self.scores(y)


class Positions(nn.Module):
    """With a learned array of positions, and a bias of one row, which samples share."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.scores = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.places, self.bias = nn.Parameter(torch.randn(STEPS, WIDTH)), nn.Parameter(torch.randn(1, 1, WIDTH))

    def forward(self, tokens: Any) -> Any:
        shared = torch.tanh(self.places[None] * self.bias)
        return self.scores(self.table(tokens) + shared)


class Table(nn.Module):
    """With a table of positions, as many as there are samples, and zeros to begin with, of which each sample has its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places, self.scores = nn.Embedding(WORDS, WIDTH), nn.Embedding(BATCH, WIDTH), nn.Linear(WIDTH, WORDS)
        self.register_buffer("numbers", torch.arange(BATCH))

    def forward(self, tokens: Any) -> Any:
        place, x = torch.tanh(self.places(self.numbers)), self.table(tokens)
        begin = torch.zeros(tokens.shape[0], WIDTH)
        return self.scores(x + place + (begin + x.mean(1))[:, None])


class Together(nn.Module):
    """Attention as in timm: one product for queries, keys and values, taken apart behind a permutation. ``how``: by what."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.table, self.scores, self.how = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS), how
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, tokens: Any) -> Any:
        x = self.table(tokens)
        n, s, w = x.shape
        three = self.qkv(x).reshape(n, s, 3, 4, w // 4).permute(2, 0, 3, 1, 4)
        q, k, v = three.unbind(0) if self.how == "unbind" else three if self.how == "iter" else (three[0], three[1], three[-1])
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.scores(x + y.transpose(1, 2).flatten(2))


class Streams(nn.Module):
    """Three streams ahead of the samples, mixed by what is computed, of which one is changed."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mixed, self.scores = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 9), nn.Linear(WIDTH, WORDS)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Any) -> Any:
        x = self.table(tokens)
        streams = torch.stack([x, x * 2, x.sin()], dim=0)
        mixed = self.mixed(streams[1]).reshape(*x.shape[:2], 3, 3)
        streams = torch.matmul(streams.permute(1, 2, 3, 0), mixed).permute(3, 0, 1, 2) + streams
        streams[1:] += self.norm(streams * 1)[0]
        return self.scores(streams.mean(0))


def check(module: Any, inputs: Mapping[str, Any], plan: str, devices: int) -> taskflow.OperatorGraph:
    """Train three steps in PyTorch and here."""
    graph = from_torch(module, keywords=inputs)
    strategy = taskflow.choose(plan, graph, taskflow.host(devices))[0]
    run = taskflow.Executor(graph, strategy, taskflow.SGD(lr=0.1, momentum=0.9))
    load_weights(run, weights_of(module))
    optimizer, generator = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), torch.Generator().manual_seed(1)
    feeds = {name: value.numpy() for name, value in inputs.items()}
    for _ in range(3):
        returned = module(**inputs)
        scores = getattr(returned, "logits", returned)
        labels = torch.randint(scores.shape[-1], scores.shape[:-1], generator=generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(scores.flatten(0, -2), labels.flatten())
        loss.backward()
        optimizer.step()
        assert run.train(feeds | {"labels": labels.numpy()}) == pytest.approx(loss.item(), rel=1e-5)
    return graph


def tokens() -> dict[str, Any]:
    torch.manual_seed(0)
    return {"tokens": torch.randint(WORDS, (BATCH, STEPS))}


@pytest.mark.parametrize("plan,devices", [("mb1", 1), ("d2 mb2", 2)])
@pytest.mark.parametrize("layers,use", [(1, "none"), (2, "none"), (2, "last"), (1, "squeezed")])
def test_an_lstm_trains_in_micro_batches_as_in_pytorch(layers: int, use: str, plan: str, devices: int) -> None:
    check(Recurrent(layers, use), tokens(), plan, devices)


@pytest.mark.parametrize("plan, devices", [("d4", 4), ("mb1", 1), ("p2 mb2", 2)])
def test_states_of_several_layers_together_go_on_in_micro_batches(plan: str, devices: int) -> None:
    """Samples are in the second dimension there."""
    check(Recurrent(2, "summed"), tokens(), plan, devices)


@pytest.mark.parametrize("plan, devices", [("d8", 8), ("d2 mb2", 2), ("p2 mb2", 2), ("d4 zero3", 4)])
def test_samples_behind_streams_are_cut_as_samples(plan: str, devices: int) -> None:
    """As Gemma 3n has its streams: every operator knows where the samples are."""
    torch.manual_seed(0)
    graph = check(Streams(), tokens(), plan, devices)
    found = {node.dims[sample_dim(node)].size for node in graph if not node.of_weights}  # type: ignore[index]
    assert found == {BATCH} and "a1:8s" in str(graph.node("add"))


@pytest.mark.parametrize("plan,devices", [("mb2", 1), ("d2 zero3 mb1", 2), ("p2 mb2", 2)])
def test_weights_that_samples_share_have_no_samples(plan: str, devices: int) -> None:
    graph = check(Positions(), tokens(), plan, devices)
    assert {node.name for node in graph if sample_dim(node) is None} >= {"places", "bias", "tanh"}


@pytest.mark.parametrize("name,plan,devices", fast_among(
    [("GPT-2", "d2 zero3 mb1", 2), ("BERT", "p2 mb2", 2), ("T5", "t2 mb4", 2)], [("BERT", "p2 mb2", 2), ("T5", "t2 mb4", 2)],
))
def test_hugging_face_s_networks_train_in_micro_batches_as_in_pytorch(name: str, plan: str, devices: int) -> None:
    """Tables of positions, and of biases by distance, are read by numbers that are the same for all samples."""
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'soap-taskflow[hf]'")
    from taskflow.models.huggingface import examples_for

    spec = importlib.util.spec_from_file_location("benchmark_of_imports", _file)
    assert spec is not None and spec.loader is not None
    imports = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(imports)
    module = imports.without_dropout(imports.CONFIGS[name])
    _, inputs = examples_for(module, BATCH, 2 * STEPS)
    generator = torch.Generator().manual_seed(2)
    inputs = {key: torch.randint(3, 200, value.shape, generator=generator) for key, value in inputs.items()}
    check(module, inputs, plan, devices)


@pytest.mark.parametrize("plan, devices", [("p2 mb2", 2), ("d2 mb2", 2)])
def test_as_many_positions_as_samples_are_no_samples(plan: str, devices: int) -> None:
    torch.manual_seed(0)
    graph = check(Table(), {"tokens": torch.randint(WORDS, (BATCH, BATCH))}, plan, devices)
    without = {node.name for node in graph if sample_dim(node) is None}
    assert without >= {"numbers", "places", "tanh"} and "add" not in without
    (begin,) = (node for node in graph if node.operator.kind == "constant" and node.outputs[0].shape == (BATCH, WIDTH))
    assert sample_dim(begin) == 0


@pytest.mark.parametrize("how, plan, devices", [("unbind", "p2 mb2", 2), ("iter", "d2 zero3 mb2", 2), ("item", "mb2", 1)])
def test_queries_keys_and_values_of_one_product_have_samples_first(how: str, plan: str, devices: int) -> None:
    torch.manual_seed(0)
    graph = check(Together(how), tokens(), plan, devices)
    assert all(tensor.shape[0] in (BATCH, 3 * WIDTH) for node in graph for tensor in node.outputs if tensor.shape)


def test_what_is_permuted_is_the_same_where_it_is_used_whole() -> None:
    class Whole(nn.Module):
        def forward(self, x: Any) -> Any:
            y = x.permute(2, 0, 3, 1)
            return (y * 2).sum(0) + y[1] + y.movedim(0, 1)[:, 0]

    from_torch(Whole(), (BATCH, 5, 3, 2), loss="mse_loss")  # compared with the module
