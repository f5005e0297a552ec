"""from_torch of what torch.export returns: PyTorch's numbers, names of the module that was exported, errors with their place."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from fast_and_slow import fast_among

import taskflow
from taskflow.checkpoint.weights import load_weights
from taskflow.cli.main import main
from taskflow.models.pytorch import from_torch, weights_of

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
from test_from_torch import CASES  # noqa: E402
from training_by_torch import losses_of_pytorch  # noqa: E402

from taskflow.models.pytorch.exported import aten, exported_module  # noqa: E402

nn, F = torch.nn, torch.nn.functional
pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


class Block(nn.Module):
    """A residual block as torchvision writes it."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.conv2, self.bn2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        conv = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.stem = nn.Sequential(conv, nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        self.layers = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2), Block(16, 16, 1))
        self.pool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        return self.fc(torch.flatten(self.pool(self.layers(self.stem(x))), 1))


class Fixed(nn.Module):
    """Tables, masks, parameters in expressions, code without gradients, a weight with two names."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(9, 8, padding_idx=0), nn.Linear(8, 8)
        self.scores = nn.Linear(8, 9, bias=False)
        self.scores.weight = self.table.weight
        self.scale = nn.Parameter(torch.rand(8) + 0.5)
        self.register_buffer("rates", torch.arange(1, 5) / 4.0, persistent=False)

    @torch.no_grad()
    def places(self, steps: int, dtype: Any) -> Any:
        angles = torch.arange(steps, dtype=dtype)[:, None] * self.rates.to(dtype)
        return torch.cat([angles.cos(), angles.sin()], -1)

    def forward(self, tokens: Any) -> Any:
        x = self.table(tokens)
        x = x * self.scale + self.places(tokens.shape[1], x.dtype)
        hidden = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
        weights = (x @ x.transpose(1, 2) / 8**0.5).masked_fill(hidden, -1e9).softmax(-1)
        return self.scores(F.silu(self.inner(weights @ x)))


ALL = {
    **{name: case for name, case in CASES.items()},
    "resnet": (ResNet, lambda g: (torch.randn(4, 3, 32, 32, dtype=torch.float64, generator=g),), 5, (4,)),
    "fixed": (Fixed, lambda g: (torch.randint(9, (4, 5), generator=g),), 9, (4, 5)),
}


def prepared(case: str) -> tuple[Any, tuple[Any, ...], Any]:
    """A module in double precision, its arguments, labels."""
    make, examples, classes, shape = ALL[case]
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(5)
    return make().double(), examples(generator), torch.randint(classes, shape, generator=generator)


def exported(module: Any, *arguments: Any, **options: Any) -> Any:
    return torch.export.export(module, arguments, **options)


@pytest.mark.parametrize("case", ALL)
def test_it_trains_as_in_pytorch(case: str) -> None:
    module, arguments, labels = prepared(case)
    program = exported(module, *arguments)
    graph = from_torch(program)
    whole = case != "causal"  # whose MultiheadAttention is several operators of ATen
    wanted = set(weights_of(module)) if whole else {name for name, _ in module.named_parameters()}
    wanted -= {name for name, _ in module.named_buffers()}
    assert {p.name for p in graph.parameters} == wanted, "parameters have the names of the module that was exported"
    run = taskflow.Executor(graph, taskflow.choose("random", graph, taskflow.host(3))[0], taskflow.SGD(lr=0.05, momentum=0.9))
    load_weights(run, weights_of(program))
    inputs = [node.name for node in graph if node.operator.kind == "input"]
    feeds = dict(zip(inputs, [argument.numpy() for argument in arguments])) | {"labels": labels.numpy()}
    ours = [run.train(feeds) for _ in range(4)]
    theirs = losses_of_pytorch(module, arguments, labels, 4)
    np.testing.assert_allclose(ours, theirs, rtol=1e-8)
    found = run.weights() or {}
    after = weights_of(module) if whole else {name: p.detach().numpy() for name, p in module.named_parameters()}
    for name in after:
        np.testing.assert_allclose(found[name], after[name], rtol=1e-7, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("case", ["residual", "resnet", "groups", "tokens", "fixed"])
def test_it_is_the_graph_of_the_module(case: str) -> None:
    """Of networks whose layers are functions of one operator each: the same operators, layers by the same names."""
    module, arguments, _ = prepared(case)
    recorded, through = from_torch(module, *arguments, verify=False), from_torch(exported(module, *arguments), verify=False)
    assert [n.operator.kind for n in through] == [n.operator.kind for n in recorded]
    named = [(n.name, n.outputs[0].spec) for n in recorded if n.parameters]
    assert [(n.name, n.outputs[0].spec) for n in through if n.parameters] == named
    assert through.name == recorded.name


@pytest.mark.parametrize("case", fast_among(["resnet", "fixed", "causal"], ["resnet", "fixed"]))
def test_core_operators_are_understood_too(case: str) -> None:
    """``run_decompositions`` gives other operators, those of ATen's core, and batch normalisation whose statistics are returned."""
    module, arguments, labels = prepared(case)
    program = exported(module, *arguments).run_decompositions({})
    graph = from_torch(program)
    run = taskflow.Executor(graph, taskflow.choose("data", graph, taskflow.host(1))[0], taskflow.SGD(lr=0.05))
    load_weights(run, weights_of(program))
    inputs = [node.name for node in graph if node.operator.kind == "input"]
    feeds = dict(zip(inputs, [argument.numpy() for argument in arguments])) | {"labels": labels.numpy()}
    scores = module(*arguments)
    wanted = F.cross_entropy(scores.reshape(-1, scores.shape[-1]), labels.reshape(-1)).item()
    assert run.train(feeds) == pytest.approx(wanted, rel=1e-8)


# ---- shapes, files, the command line -----------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, width), nn.Linear(width, 3)

    def forward(self, x: Any, scale: Any = None) -> Any:
        y = self.b(self.a(x).relu())
        return y if scale is None else y * scale


def test_examples_may_be_left_out_or_given() -> None:
    open_batch = {"x": {0: torch.export.Dim("batch", min=2, max=512)}}
    program = exported(Net(), torch.zeros(6, 4), dynamic_shapes=open_batch)
    assert from_torch(program).node("x").outputs[0].shape == (6, 4)
    assert from_torch(program, (16, 4)).node("x").outputs[0].shape == (16, 4)
    assert from_torch(program, keywords={"x": (12, 4)}, name="mine").name == "mine"
    two = exported(Net(), torch.zeros(6, 4), torch.zeros(6, 1))
    assert [n.name for n in from_torch(two) if n.operator.kind == "input"] == ["x", "scale", "labels"]
    with pytest.raises(ValueError, match=r"x was exported as \[6, 4\], got \[12, 4\]; export it again .*dynamic_shapes"):
        from_torch(two, (12, 4), (12, 1))


def run(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result


def test_a_file_is_a_model_on_the_command_line(tmp_path: Path) -> None:
    plan, fixed, free = (str(tmp_path / name) for name in ("plan.json", "fixed.pt2", "free.pt2"))
    torch.export.save(exported(Net(), torch.zeros(6, 4)), fixed)
    torch.export.save(exported(Net(), torch.zeros(6, 4), dynamic_shapes={"x": {0: torch.export.Dim("batch", max=512)}}), free)
    machine = ("-m", "a100", "-n", "2")
    run("search", fixed, *machine, "--budget", "20p", "--out", plan, "-q", "--set", "loss=mse_loss")
    assert list(json.loads(Path(plan).read_text())["operators"]) == ["x", "a", "relu", "b", "targets", "loss"]
    assert "A step takes" in run("explain", plan, "--quiet").stdout, "the plan's file says which network it is of"
    assert "free: " in run("simulate", free, "--batch", "64", *machine).output
    assert "was exported for a batch of 6, not 64" in run("simulate", fixed, "--batch", "64", *machine, code=2).stderr
    assert "has no setting 'steps'; there are loss, verify" in run("simulate", fixed, "--set", "steps=4", *machine, code=2).stderr
    assert "there is no file no.pt2" in run("simulate", "no.pt2", *machine, code=2).stderr
    (tmp_path / "text.pt2").write_text("nothing")
    assert "reads no exported program" in run("simulate", str(tmp_path / "text.pt2"), *machine, code=2).stderr


FUNCTIONS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 3)
    def forward(self, x):
        y = self.a(x)
        return y.relu()

class Chooses(Net):
    def forward(self, x):
        y = self.a(x)
        if y.sum() > 0:
            return y
        return -y

def net():
    return torch.export.export(Net(), (torch.zeros(6, 4),))

def chooses():
    return torch.export.export(Chooses(), (torch.zeros(6, 4),))
"""


def test_a_function_may_return_an_exported_program(tmp_path: Path) -> None:
    file = tmp_path / "exports.py"
    file.write_text(FUNCTIONS)
    assert "Net: 5 operators" in run("simulate", f"{file}:net", "-m", "a100", "-n", "2").output
    said = run("simulate", f"{file}:chooses", "-m", "a100", "-n", "2", code=2).stderr
    assert "torch.export refuses control flow that depends on numbers in tensors (line 16 of exports.py: `if y.sum() > 0:`)" in said


# ---- modes -------------------------------------------------------------------------------------------------------------------


def drops() -> Any:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def test_dropout_and_batch_normalisation_train_and_are_evaluated() -> None:
    module = drops().train()
    graph = from_torch(exported(module, torch.zeros(6, 4)))
    kinds = [node.operator.kind for node in graph]
    assert {"normalize", "dropout"} <= set(kinds)
    assert [n.operator.p for n in graph if n.operator.kind == "dropout"] == [0.5]
    run = taskflow.Executor(graph, taskflow.choose("data", graph, taskflow.host(2))[0], taskflow.SGD(lr=0.1))
    load_weights(run, weights_of(module))
    x = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")
    scores = graph.node("4").outputs[0]
    ours = run.evaluate_with({"0_in" if "0_in" in [n.name for n in graph] else "input": x, "labels": np.zeros(6, int)}, [scores])[1]
    with torch.no_grad():
        theirs = module.eval()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ours[scores.name], theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("whole", [True, False])
def test_batch_normalisation_in_evaluation_is_refused(whole: bool) -> None:
    module = drops().train(not whole)
    module[1].eval()
    with pytest.raises(ValueError, match=r"1 is batch normalisation in evaluation.* export the module after module.train\(\)"):
        from_torch(exported(module, torch.zeros(6, 4)))


def test_dropout_that_evaluation_left_out_is_said() -> None:
    """The program does not say whether its dropout would train: its training steps have none."""
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).eval()
    with pytest.warns(UserWarning, match="was exported in evaluation mode: its training steps have no dropout"):
        graph = from_torch(exported(module, torch.zeros(6, 4)))
    assert [n.operator.kind for n in graph] == ["input", "linear", "linear", "input", "cross_entropy"]


# ---- what is refused -----------------------------------------------------------------------------------------------------------


class Inside(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.inner = Outer(function)

    def forward(self, x: Any) -> Any:
        return self.inner(x)


class Outer(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.a, self.function = nn.Linear(4, 4), function
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Any) -> Any:
        return self.function(self, self.a(x))


def counts(self: Any, x: Any) -> Any:
    self.seen.add_(1)
    return x + self.seen


def chooses(self: Any, x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))


@pytest.mark.parametrize("function, why", [
    (lambda self, x: torch.renorm(x, 2, 0, 1.0),
     r"no counterpart for renorm \(a function\) in inner \(line \d+ of test_exported"),
    (lambda self, x: x[x > 0], r"has as many results as the mask has True"),
    (counts, r"changes the buffer inner.seen|changes inner.seen"),
    (chooses, r"is known for torch.cond \(control flow that depends on numbers in tensors\) in inner \(line \d+ of"),
])
def test_what_is_not_understood_is_named_with_its_place(function: Any, why: str) -> None:
    module = Inside(function)
    try:
        program = exported(module, torch.zeros(6, 4))
    except Exception as error:  # what torch.export itself refuses, another test's
        pytest.skip(f"torch.export refuses it: {type(error).__name__}")
    with pytest.raises(ValueError, match=why):
        from_torch(program)


def test_operators_of_others_are_named() -> None:
    with torch.library._scoped_library("taskflow_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: 2 * x, "CompositeExplicitAutograd")
        program = exported(Inside(lambda self, x: torch.ops.taskflow_test.twice(x)), torch.zeros(6, 4))
        with pytest.raises(ValueError, match=r"is known for taskflow_test.twice.default in inner \(line \d+ of"):
            from_torch(program)


def test_the_runnable_form_of_a_program_is_not_taken_for_a_module() -> None:
    with pytest.raises(ValueError, match="hand over the exported program itself"):
        from_torch(exported(Net(), torch.zeros(6, 4)).module(), (6, 4))


@pytest.fixture
def tanh_for_gelu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(aten.WRITTEN, "gelu", lambda x, approximate="none": F.gelu(x, approximate="tanh"))
    yield


@pytest.mark.usefixtures("tanh_for_gelu")
def test_an_operator_that_is_taken_for_another_function_is_found() -> None:
    """Module and graph would agree: the operators themselves are run beside the functions that they are taken for."""
    program = exported(Inside(lambda self, x: F.gelu(x)), torch.zeros(6, 4))
    with pytest.raises(ValueError, match=r"aten.gelu.default in inner \(line .* is not the function of torch that it is taken for"):
        from_torch(program)


# ---- Hugging Face --------------------------------------------------------------------------------------------------------------


def imports() -> Any:
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'soap-taskflow[hf]'")
    file = Path(__file__).parents[2] / "benchmarks" / "imports.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_imports", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", fast_among(["GPT-2", "Llama", "BERT", "ViT", "OPT"], ["Llama"]))
def test_hugging_faces_networks_are_equal(name: str) -> None:
    benchmark = imports()
    found = benchmark.compared(benchmark.CONFIGS[name], exported=True)
    assert found.loss <= 1e-5 and found.gradients <= 1e-5


def test_a_program_is_read_once() -> None:
    program = exported(Net(), torch.zeros(6, 4))
    assert exported_module(program) is exported_module(program)
