"""From a module to training under a plan that was found: import, search for torch, export, torchrun on four gloo ranks. Losses are
those of PyTorch alone, and of taskflow's own runtime under the same plan."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")

sys.path.insert(0, str(Path(__file__).parent))
import networks
from beside import HERE, TOLERANCE, check, in_taskflow

import taskflow
from taskflow.cli.main import main
from taskflow.machine import save

RANKS = 4


def slow_devices(memory_bytes: int, count: int = RANKS) -> taskflow.Machine:
    """Devices that compute so slowly that even these networks are worth dividing."""
    machine = taskflow.load_machine("p100", count)
    kinds = (
        replace(
            kind, memory_bytes=memory_bytes, flops_per_second=tuple((dtype, rate / 1000) for dtype, rate in kind.flops_per_second),
            memory_bytes_per_second=kind.memory_bytes_per_second / 100,
        )
        for kind in machine.kinds
    )
    return replace(machine, kinds=tuple(kinds), name="slow")


def command(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(main, [*words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def round_trip(folder: Path, name: str, memory_bytes: int, budget: str, *options: str, ranks: int = RANKS) -> set[str]:
    """All the way with one network. Returns the cuts of the plan that was found."""
    machine, plan, module = folder / "slow.json", folder / "plan.json", folder / "parallel.py"
    save(slow_devices(memory_bytes, ranks), machine)
    model = (f"{HERE / 'networks.py'}:graph", "--set", f"name={name}", "-m", str(machine), "-n", str(ranks))
    found = command(
        "search", *model, "--rule", "momentum", "--budget", budget, "--for", "torch", "--out", str(plan), *options,
    )
    assert found["peak_memory_bytes"] <= memory_bytes
    out = command("export", str(plan), "--to", "torch", "--out", str(module))
    assert out["differences"] == [] and out["ranks"] == ranks
    graph = networks.graph(name)
    strategy = taskflow.choose(str(plan), graph, slow_devices(memory_bytes, ranks))[0]
    losses = check(folder, name, module.read_text(), ranks)
    assert losses == pytest.approx(in_taskflow(name, graph, strategy), rel=TOLERANCE)
    return {strategy[node.name].describe(node).split(" @")[0] for node in graph}


@pytest.mark.timeout(280)
def test_a_plan_found_for_a_llama_trains_as_pytorch_alone_and_as_here(tmp_path: Path) -> None:
    """Devices have no room for all weights, nor for the whole batch at once: layers are cut, and computed in micro-batches."""
    assert {"n/8 c/2", "n/8 k/2", "n/8 v/2"} <= round_trip(tmp_path, "llama", 180_000, "5p", ranks=2)


PLENTY = 16_000_000_000
CASES = [
    ("llama", PLENTY, ()), ("llama", PLENTY, ("--limit", "*: n<=2")), ("gpt", PLENTY, ()), ("gpt", PLENTY, ("--limit", "*: n<=2")),
    ("gpt", 200_000, ()), ("mixtral", PLENTY, ()), ("mixtral", 550_000, ()), ("resnet", PLENTY, ()),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize("name,memory_bytes,options", CASES, ids=[f"{n} {m} {''.join(o[1:])}" for n, m, o in CASES])
def test_plans_found_train_as_pytorch_alone_and_as_here(
    name: str, memory_bytes: int, options: tuple[str, ...], tmp_path: Path
) -> None:
    if name == "mixtral":
        pytest.importorskip("transformers", reason="transformers is not installed: pip install 'soap-taskflow[hf]'")
    assert any("/" in cut for cut in round_trip(tmp_path, name, memory_bytes, "50p", *options))
