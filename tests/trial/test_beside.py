"""An exported module is compared with the module alone, with numbers, before it is written."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fast_and_slow import fast_among

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
if sys.platform != "linux":
    pytest.skip("ranks are forked", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parents[1] / "export"))
import networks  # noqa: E402
from click.testing import CliRunner  # noqa: E402

import taskflow  # noqa: E402
from taskflow.cli.main import main  # noqa: E402
from taskflow.export import Exported, exported, require_running  # noqa: E402
from taskflow.trial import looked_at  # noqa: E402

NET = '''
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down, self.scores = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), nn.Linear(width, 8)

    def forward(self, x):
        return self.scores(torch.relu(self.down(torch.relu(self.up(x)))))

def graph(batch: int = 8, width: int = 16):
    return Net(width), torch.zeros(batch, width)
'''


def plan_for(name: str, plan: str, ranks: int) -> tuple[taskflow.OperatorGraph, Exported]:
    graph = taskflow.from_torch(networks.MODULES[name](), *networks.examples(name), verify=False)
    return graph, exported(graph, taskflow.choose(plan, graph, taskflow.load_machine("p100", ranks))[0], "torch", "parallel.py")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name,plan,ranks", fast_among(
    [
        ("llama", "t2 p2 d2 mb1 zero1", 8), ("gpt", "p2 mb2", 2), ("resnet", "data", 2), ("cnn", "expert", 2), ("llama", "t2", 2),
        ("llama", "d2 zero3 mb2 recompute=full", 2), ("gpt", "p2 v2 mb2", 2), ("adapted", "d2 zero3 mb2", 2), ("gpt", "t4", 4),
    ],
    [("llama", "t2 p2 d2 mb1 zero1", 8)],
))  # fmt: skip
def test_numbers_are_the_modules_own(name: str, plan: str, ranks: int) -> None:
    said = looked_at(*plan_for(name, plan, ranks), "torch")
    assert said.startswith(f"a step on {ranks} ranks of this machine gives the module's own numbers: the loss is off by "), said


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name,plan,there,instead,why", fast_among(
    [
        ("llama", "t2", "P = Partial()", "P = Replicate()", "Llama has other numbers than alone: the gradient of"),
        ("gpt", "p2 mb2", '"scale_grads": False', '"scale_grads": True', "GPT has other numbers than alone: the gradient of"),
        ("llama", "data", "return found * self", "return 1.1 * found * self", "than alone: the loss is off by 1e-01. Export"),
        ("gpt", "p2 mb2", "def _finish(self)", "def _finish(self):\n        1 / 0\n    def _other(self)", "division by zero"),
    ],
    [("gpt", "p2 mb2", '"scale_grads": False', '"scale_grads": True', "GPT has other numbers than alone: the gradient of")],
))  # fmt: skip
def test_wrong_numbers_of_right_shapes_are_refused(name: str, plan: str, there: str, instead: str, why: str) -> None:
    """A sum that is not taken, gradients divided by the micro-batches, a loss that is too large, and code that fails in a pipeline:
    a step without numbers shows none of these."""
    graph, found = plan_for(name, plan, 2)
    text = str(found.files["parallel.py"])
    assert there in text
    wrong = replace(found, files={"parallel.py": text.replace(there, instead)})
    require_running(graph, wrong, "torch")
    with pytest.raises(ValueError, match=why):
        looked_at(graph, wrong, "torch")


@pytest.mark.timeout(200)
def test_a_loss_whose_classes_a_plan_cuts_is_given_positions() -> None:
    """Not all scores on every rank, which for a large vocabulary are more than the rest of a step."""
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'soap-taskflow[hf]'")
    from taskflow.models.huggingface import from_config

    config = {
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "vocab_size": 128256, "max_position_embeddings": 16,
    }  # fmt: skip
    graph = from_config(config, 4, 16)
    strategy = taskflow.choose("t2", graph, taskflow.load_machine("h100", 2))[0]
    loss = graph.node("loss.blocks")
    found = exported(graph, strategy, "torch", "parallel.py")
    assert strategy[loss.name].describe(loss).startswith("c/2") and found.nearest[loss.name].describe(loss).startswith("a1/2")
    assert [difference.operator for difference in found.differences] == [loss.name]
    said = looked_at(graph, found, "torch")
    assert said.startswith("a step on 2 ranks of this machine gives the module's own numbers: the loss is off by "), said


@pytest.mark.timeout(200)
def test_the_command_says_what_was_compared_and_what_was_not(tmp_path: Path, monkeypatch: Any) -> None:
    """A class of a user's file, whose module has no weights yet; and where there are too many."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    words = ["export", "t2", "--model", "net.py:graph", "-m", "h100", "-n", "2", "--to", "torch", "--out", "parallel.py"]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0 and "a step on 2 ranks of this machine gives the module's own numbers" in done.output, done.output
    done = CliRunner().invoke(main, [*words, "--set", "width=20000"], catch_exceptions=False)
    assert done.exit_code == 0 and "numbers are not compared with the module's own: 1,600,220,008 parameters on" in done.output
    assert "export a smaller network of the same code under such a plan" in done.output


def test_modules_that_no_other_process_has_are_not_compared() -> None:
    class Own(torch.nn.Linear):
        pass

    graph = taskflow.from_torch(torch.nn.Sequential(Own(4, 4)), torch.zeros(4, 4), verify=False)
    found = exported(graph, taskflow.choose("data", graph, taskflow.load_machine("p100", 2))[0], "torch", "parallel.py")
    assert "Sequential cannot be sent to another process" in looked_at(graph, found, "torch")
