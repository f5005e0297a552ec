"""Networks of today's sizes and types: an import takes no memory for weights, masks and tables, records layers that are alike once,
and becomes the network that is built in."""

from __future__ import annotations

import importlib.util
from collections import Counter, UserDict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fast_and_slow import fast_among

import taskflow
from taskflow.cli.options import RULES
from taskflow.cli.problem import Problem, describe, make_evaluator
from taskflow.models.llama import LlamaConfig, llama
from taskflow.operators.constant import ConstantArray

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
pytest.importorskip("transformers", reason="transformers is not installed: pip install 'soap-taskflow[hf]'")
from taskflow.checkpoint import load_weights  # noqa: E402
from taskflow.models.huggingface import examples_for, from_config, module_of  # noqa: E402
from taskflow.models.pytorch import from_torch, recipes, weights_of  # noqa: E402
from taskflow.models.pytorch.attention_masks import fixed_mask  # noqa: E402
from taskflow.models.pytorch.recipes import ByParts, Recipe  # noqa: E402
from taskflow.models.pytorch.recorder import TorchRecorder  # noqa: E402
from taskflow.models.pytorch.steps import Fixed  # noqa: E402
from taskflow.models.pytorch.trial import random_copy  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
_file = Path(__file__).parents[2] / "benchmarks" / "imports.py"
_spec = importlib.util.spec_from_file_location("benchmark_of_imports", _file)
assert _spec is not None and _spec.loader is not None
imports = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(imports)
LLAMA = imports.CONFIGS["Llama"]
LONG = 65_536  # tokens: a mask of bits would have half a gigabyte
LLAMA_3 = dict(
    model_type="llama", hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8, rope_theta=5e5,
    vocab_size=128_256, max_position_embeddings=131_072, rms_norm_eps=1e-5, torch_dtype="bfloat16", tie_word_embeddings=False,
    rope_scaling=dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    ),
)


def test_an_imported_llama_is_the_built_in_one() -> None:
    """The same operators of the same shapes and types: costs, memory and plans follow."""
    ours = llama(LlamaConfig(batch=8, steps=2048, layers=2), "bfloat16")
    theirs = from_config(LLAMA_3, 8, 2048, num_hidden_layers=2)

    def said(graph: Any) -> Counter[Any]:
        return Counter((n.operator.kind, n.specs, tuple(p.spec for p in n.parameters), n.outputs[0].spec) for n in graph)

    assert said(ours) == said(theirs)
    assert Counter(p.spec for p in ours.parameters) == Counter(p.spec for p in theirs.parameters)
    machine = taskflow.load_machine("h100", 8)
    steps, memory = zip(*(_simulated(graph, machine) for graph in (ours, theirs)))
    assert steps[0] == pytest.approx(steps[1], rel=0.01) and memory[0] == pytest.approx(memory[1], rel=0.01)


def _simulated(graph: Any, machine: Any) -> tuple[float, int]:
    """Seconds of a step of data parallelism, and the bytes of the fullest device."""
    evaluator = make_evaluator(graph, machine, costs="analytic", rule=RULES["adam"])
    found = describe(Problem(graph, machine, evaluator, {}), taskflow.choose("data", graph, machine)[0])
    return found["iteration_seconds"], found["peak_memory_bytes"]


def test_a_mask_that_indices_open_is_never_an_array() -> None:
    """DeepSeek V3.2 shows each token the keys that an indexer chooses: 64 masks of 4,096 x 4,096."""
    config = imports.CONFIGS["DeepSeek V3.2"] | dict(max_position_embeddings=4096, index_topk=512)
    graph = from_config(config, 64, 4096)
    arrays = [node.operator for node in graph if isinstance(node.operator, ConstantArray)]
    whole = [array for array in arrays if isinstance(array.values, np.ndarray)]
    assert max(array.values.size for array in whole) <= recipes.LARGE and sum(array.values.size for array in whole) < 2**21


@pytest.mark.parametrize("name", fast_among(["Llama", "Gemma 2", "T5", "Qwen3"], ["Gemma 2"]))
def test_a_network_in_bfloat16_computes_what_pytorch_computes(name: str) -> None:
    """The losses of the module in float32 and in bfloat16 differ by rounding; ours in bfloat16 by no more than a few times that."""
    module = module_of(imports.CONFIGS[name] | {"dropout_rate": 0.0}, weights=True, dtype="bfloat16")
    numbers = torch.Generator().manual_seed(1)
    _, examples = examples_for(module, 2, 16)
    feeds = {key: torch.randint(3, 200, value.shape, generator=numbers) for key, value in examples.items()}
    graph = from_torch(module, keywords=feeds, verify=False)
    assert graph.dtype == taskflow.OperatorGraph("bfloat16").dtype
    labels = next(node.outputs[0] for node in graph if node.name == "labels")
    wanted = torch.randint(200, labels.shape, generator=numbers)
    run = taskflow.Executor(graph, taskflow.choose("data", graph, taskflow.host(1))[0], taskflow.SGD(lr=0.0))
    load_weights(run, weights_of(module))
    ours = run.train({key: value.numpy() for key, value in feeds.items()} | {"labels": wanted.numpy()})

    def loss(of: Any) -> float:
        with torch.no_grad():
            scores = of(**feeds).logits.float()
        return float(torch.nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), wanted.reshape(-1)))

    narrow, wide = loss(module), loss(module.float())
    assert abs(ours - wide) <= 4 * abs(narrow - wide) + 2e-3 * wide


def test_what_a_module_computes_in_float32_is_float32() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.table = torch.nn.Linear(8, 8), torch.nn.Buffer(torch.arange(8.0))

        def forward(self, x: Any) -> Any:
            y = torch.softmax(self.a(x), -1, dtype=torch.float32) * self.table
            return (y.sum(-1, keepdim=True) * x).to(x.dtype) + self.a(x).float().exp().type_as(x)

    net = Net().to(torch.bfloat16)
    net.table.data = torch.arange(8.0)
    graph = from_torch(net, torch.zeros(4, 8, dtype=torch.bfloat16), loss=None)
    types = {node.name: str(node.outputs[0].dtype) for node in graph}
    assert types["softmax"] == types["mul"] == types["sum"] == types["mul_1"] == types["exp"] == "float32"
    assert types["a"] == types["add"] == "bfloat16"


# ---- masks and tables ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config, window", [
    (LLAMA, None), (imports.CONFIGS["Mistral, window 8"] | dict(sliding_window=4096), 4096),
    (imports.CONFIGS["Qwen2"] | dict(use_sliding_window=True, sliding_window=512, max_window_layers=0), 512),
])
def test_masks_are_rules_whatever_the_length(config: dict[str, Any], window: int | None) -> None:
    graph = from_config(config, 4, LONG, max_position_embeddings=LONG)
    found = {(n.operator.causal, n.operator.window) for n in graph if n.operator.kind == "flash_attention"}
    assert found == {(True, window)}
    assert not [node for node in graph if node.operator.kind == "constant"]


@pytest.mark.parametrize("name", ["Llama", "Mistral, window 8", "T5", "GPT-2"])
def test_a_network_does_not_depend_on_how_many_samples_there_are(name: str) -> None:
    """Of two million tokens, even tables of one number a token are rules."""
    few, many = (from_config(imports.CONFIGS[name], samples, 32) for samples in (4, 1 << 16))
    said = [[(node.name, node.operator.kind) for node in graph] for graph in (few, many)]
    assert said[0] == said[1]


def test_a_mask_without_a_rule_is_computed_part_by_part() -> None:
    """Two windows at once: of 4 keys, and the first 2 of all."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            at = torch.arange(x.shape[1])
            back = at[:, None] - at[None, :]
            mask = ((back >= 0) & (back < 4)) | ((at < 2)[None, :] & (back >= 0))
            mask = mask[None].expand(x.shape[0], -1, -1)
            return torch.nn.functional.scaled_dot_product_attention(self.a(x), x, x, attn_mask=mask)

    graph = from_torch(Net(), (2, LONG, 2), loss=None, verify=False)
    (table,) = (node.operator for node in graph if isinstance(node.operator, ConstantArray))
    assert table.shape == (1, LONG, LONG) and isinstance(table.values, ByParts)
    at = np.arange(LONG)
    for low in (0, 5000, LONG - 8):
        back = at[low : low + 8, None] - at[None, low : low + 16]
        seen = (back >= 0) & ((back < 4) | (at[None, low : low + 16] < 2))
        part = table.values[slice(0, 1), slice(low, low + 8), slice(low, low + 16)]
        np.testing.assert_array_equal(part[0] == 0, seen)
    from_torch(Net(), (2, 9, 2), loss=None)  # which is verified


@pytest.mark.parametrize("mask, said", [
    (torch.ones(9, 9).tril().bool(), (True, None)), (torch.ones(9, 9).tril().triu(-3).bool(), (True, 4)),
    (torch.ones(9, 9).bool(), (False, None)), (torch.full((9, 9), -torch.inf).triu(1), (True, None)),
    (torch.full((9, 9), torch.finfo(torch.float32).min).triu(1), (True, None)), (torch.ones(9, 9).triu(-3).bool(), None),
    (torch.ones(9, 9).tril(1).bool(), None), (torch.ones(9, 9).tril().bool() & (torch.arange(9) != 3), None),
])
def test_rules_of_masks(mask: Any, said: tuple[bool, int | None] | None) -> None:
    rest, causal, window = fixed_mask(Fixed(mask, 0), 9, 9)
    assert (rest is None) == (said is not None)
    assert said is None or (causal, window) == said


class PartsOfTables(torch.nn.Module):
    """Writes every third place of a row of a table, as positions in time, height and width are put together."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.a, self.again = torch.nn.Linear(6, 6), again

    def forward(self, x: Any) -> Any:
        at = torch.arange(x.shape[1])[None, None, :, None].expand(3, x.shape[0], -1, -1)
        table = at.float() * torch.arange(1.0, 7.0) * torch.arange(1.0, 4.0)[:, None, None, None]
        first = table[0]
        for row in (1, 2):
            first[..., row:6:3] = table[row, ..., row:6:3]
        return self.a(x) * torch.cos(table[0] if self.again else first)


def test_a_written_part_of_a_large_table_is_in_its_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "LARGE", 16)
    graph = from_torch(PartsOfTables(False), (2, 9, 6), loss=None)  # which is verified
    assert [node for node in graph if node.operator.kind == "constant"]
    with pytest.raises(ValueError, match=r"a part of a table of .* was written.*reads again.*test_imported_sizes"):
        from_torch(PartsOfTables(True), (2, 9, 6), loss=None)


def test_what_is_expanded_has_its_numbers_once() -> None:
    """A trillion truth values that are one."""
    wide = torch.ones(1, dtype=torch.bool).expand(1 << 20, 1 << 20)
    first = recipes.derived(torch.Tensor.__getitem__, wide, (slice(0, 1), slice(0, 2)))
    assert recipes.whole(first).shape == (1, 2) and len(recipes.numbers_of(wide)) == 1


def test_what_is_repeated_many_times_is_expanded() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            return self.a.weight.repeat(x.shape[0] // 3, 1) * self.a(x)

    graph = from_torch(Net(), (300, 3), loss=None)
    assert "concat" not in {node.operator.kind for node in graph}


# ---- layers alike ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [
    LLAMA, imports.CONFIGS["GPT-2"] | dict(scale_attn_by_inverse_layer_idx=True),
    pytest.param(imports.CONFIGS["Gemma 2"], marks=pytest.mark.slow), pytest.param(imports.CONFIGS["T5"], marks=pytest.mark.slow),
    pytest.param(imports.CONFIGS["Mixtral"], marks=pytest.mark.slow),
])
def test_layers_recorded_once_are_as_if_each_had_been(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def graph() -> list[Any]:
        changes = {key: 4 for key in ("num_hidden_layers", "n_layer", "num_layers") if key in config}
        made = from_config(config, 2, 16, **changes)
        return [(n.name, n.operator, [t.name for t in n.inputs], [p.name for p in n.parameters]) for n in made]

    repeated = graph()
    monkeypatch.setattr(TorchRecorder, "repeats", False)
    assert repeated == graph()


def test_a_layer_is_run_once_for_all_that_are_alike() -> None:
    class Layer(torch.nn.Module):
        runs = 0

        def __init__(self, number: int, looks: bool) -> None:
            super().__init__()
            self.layer_idx, self.looks, self.a = number, looks, torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            Layer.runs += 1
            return self.a(x) * (1.0 + self.layer_idx if self.looks else 2.0)

    for looks, runs in ((False, 4), (True, 12)):  # in training and in evaluation; the first layer's input has no gradient
        Layer.runs = 0
        graph = from_torch(torch.nn.Sequential(*(Layer(i, looks) for i in range(6))), (2, 4), loss=None, verify=False)
        assert Layer.runs == runs
        factors = [node.operator.factor for node in graph if node.operator.kind == "scale"]
        assert factors == ([1.0 * (i + 1) for i in range(6)] if looks else [2.0] * 6)


class Sharing(torch.nn.Module):
    """Layers that are given their numbers, have functions of their own, and take keys and values from one that has put them."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(SharedLayer(i == 1, i > 1, reads) for i in range(6))

    def forward(self, x: Any) -> Any:
        shared: UserDict[str, Any] = UserDict()
        for i, layer in enumerate(self.layers):
            x = layer(x, i, shared=shared)
        return x


class SharedLayer(torch.nn.Module):
    runs = 0

    def __init__(self, puts: bool, takes: bool, reads: bool) -> None:
        super().__init__()
        self.puts, self.takes, self.reads, self.a = puts, takes, reads, torch.nn.Linear(4, 4)
        self.act, self.own = partial(torch.nn.functional.gelu, approximate="tanh"), self.doubled

    def doubled(self, x: Any) -> Any:
        return 2 * x

    def forward(self, x: Any, layer_idx: int, shared: Any) -> Any:
        SharedLayer.runs += 1
        y = self.own(self.act(self.a(x)))
        if self.puts:
            shared["keys"] = (y,)
        return (y + shared["keys"][0] if self.takes else y) * (1.0 + layer_idx if self.reads else 2.0)


def test_layers_that_share_and_are_given_their_number_are_alike_unless_they_look_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for reads, runs in ((False, 3), (True, 6)):  # the first, the one that puts, and one that takes
        monkeypatch.setattr(TorchRecorder, "repeats", True)
        SharedLayer.runs = 0
        made = from_torch(Sharing(reads), (2, 4), loss=None, verify=False)
        assert SharedLayer.runs == 2 * runs  # in training and in evaluation
        monkeypatch.setattr(TorchRecorder, "repeats", False)
        alone = from_torch(Sharing(reads), (2, 4), loss=None)
        said = [[(n.name, n.operator, [t.name for t in n.inputs]) for n in graph] for graph in (made, alone)]
        assert said[0] == said[1]


# ---- weights, recurrences --------------------------------------------------------------------------------------------


def test_experts_larger_than_memory_are_never_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    plain = torch.nn.Parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if data is not None and not data.is_meta:
            made.append(data.numel())
        return plain(cls, data, requires_grad)

    monkeypatch.setattr(torch.nn.Parameter, "__new__", new)
    module = module_of(
        imports.CONFIGS["Mixtral"], hidden_size=4096, intermediate_size=14336, num_local_experts=512, num_hidden_layers=1
    )
    assert sum(p.numel() for p in module.parameters()) > 8e10 and max(made, default=0) <= 1 << 24


class StepByStep(torch.nn.Module):
    """A recurrence that is written as a loop over the steps of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        h = x[:, 0]
        for t in range(1, x.shape[1]):
            h = torch.tanh(self.mix(h) + x[:, t])
        return h


def test_a_recurrence_step_by_step_is_refused_before_it_is_unrolled() -> None:
    assert len(from_torch(StepByStep(), (2, 9, 4))) > 16
    with pytest.raises(ValueError, match=r"a recurrence that is written step by step.*test_imported_sizes.py"):
        from_torch(StepByStep(), (2, 2048, 4))


class MadeLike(torch.nn.Module):
    """Adds large constants that are made like what it has computed, as routers and decoders of queries do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        y = self.linear(x)
        return y + torch.zeros_like(y) + torch.full_like(y, 0.5) + y.new_ones(y.shape)


def test_a_constant_is_not_known_by_what_it_is_made_like() -> None:
    """Whose numbers are whatever memory held, other ones in each recording: an import was refused, or not."""
    for value in (1.0, 2.0):
        rubbish = torch.full((1 << 18, 8), value)  # may be the memory that is taken next
        del rubbish
        with torch.device("meta"):
            module = MadeLike()
        graph = from_torch(module, torch.empty(1 << 18, 8, device="meta"), loss="mse_loss")
        assert sum(node.operator.kind == "constant" for node in graph) <= 3
    first, again = (
        Recipe(torch.empty(4), torch.zeros_like, (torch.full((4,), number),), {}).digest() for number in (1.0, 2.0)
    )
    assert first == again != Recipe(torch.empty(4), torch.ones_like, (torch.ones(4),), {}).digest()


def test_images_are_of_the_networks_type() -> None:
    """Swin, ConvNeXt V2, SegFormer and DETR do not convert them."""
    config = dict(
        model_type="convnextv2", architectures=["ConvNextV2ForImageClassification"], hidden_sizes=[8, 16], depths=[1, 1],
        num_stages=2, image_size=32, torch_dtype="bfloat16",
    )
    graph = from_config(config, 2)
    assert [node.outputs[0].spec.dtype.name for node in graph if node.name == "pixel_values"] == ["bfloat16"]


def test_what_verifies_a_module_without_numbers_has_gradients_everywhere() -> None:
    """Weights of layers as they begin: of smaller ones the gradients of experts were lost beside those of the table of words."""
    module = module_of(dict(
        model_type="mixtral", num_local_experts=4, hidden_size=64, intermediate_size=128, num_hidden_layers=2, vocab_size=211,
        num_attention_heads=4, num_key_value_heads=2,
    ))
    copy = random_copy(module, torch.float32)
    tokens = torch.arange(64).reshape(2, 32)
    torch.nn.functional.cross_entropy(copy(tokens).logits.flatten(0, 1), tokens.flatten()).backward()
    sizes = [float(parameter.grad.abs().max()) for parameter in copy.parameters()]
    assert min(sizes) > 1e-4 * max(sizes)
