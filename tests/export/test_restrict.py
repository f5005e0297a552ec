"""Searches for a framework: what they return can be exported without a difference, and is no slower than data parallelism."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fast_and_slow import fast_among

import taskflow
from taskflow.cli.main import main
from taskflow.export import Framework, constraints_for, exported, nearest_plan, require_running
from taskflow.export import target as framework_of
from taskflow.export.export import by_collectives
from taskflow.export.restrict import Expressible
from taskflow.machine import save as save_machine
from taskflow.mapper import Exchange, HybridPlan, SyncAlgorithm, parse_plan
from taskflow.models import build
from taskflow.optimizer import Budget, Deadline, MemoryCheck, SearchOptions, SearchResult, make_evaluator
from taskflow.optimizer.grid import Allowed, make_grid
from taskflow.optimizer.space import Constraints

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


def run(*arguments: str) -> Any:
    done = CliRunner().invoke(main, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_halos_and_weights_of_other_operators_are_kept_out() -> None:
    graph = build("lenet", 16, 4, preset="small")
    rules = {rule.pattern: rule.forbid for rule in constraints_for(graph).rules}
    conv = graph.node("conv1")
    assert set(rules["conv1"]) == {dim.name for dim in conv.dims if dim.name.startswith("a") or dim.name in ("h", "w")}
    assert "fc1" not in rules


def test_a_search_for_megatron_finds_flags(tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    where = ("gpt-2", "--size", "small", "--set", "heads=4", "-m", "p100", "-n", "4", "--batch", "8")
    found = run("search", *where, "--budget", "20p", "--for", "megatron", "--out", plan)
    out = run("export", plan, "--to", "megatron", "--out", str(tmp_path / "plan.args"))
    assert out["differences"] == [] and out["written"] and out["ranks"] == 4
    assert out["iteration_seconds"] == found["iteration_seconds"]
    data = run("simulate", *where, "--strategy", "data", "--program", "megatron")
    assert found["iteration_seconds"] <= data["iteration_seconds"] * (1 + 1e-12)


def test_a_degree_that_needs_shares_of_weights_is_had_beside_them() -> None:
    """Whichever plans are asked for first."""
    graph = build("llama", 16, 8, preset="small", dtype="bfloat16", steps=8, heads=4, key_heads=4)
    wanted = {
        "c2 d4 mb2": False, "c2 d4 mb1 zero3": True, "t2 d4 mb2": False, "t4 d2 mb2": False, "t2 d4 mb2 zero1": True,
        "p2 d4 mb1": False, "p2 d4 mb1 zero1": True, "d8 mb1": True, "t2 c2 d2 mb1 zero1": True,
    }
    for order in (1, -1):
        had = Expressible(graph, "torchtitan")
        assert {plan: had(parse_plan(plan)) for plan in [*wanted][::order]} == wanted
        for plan, fine in wanted.items():  # as the export has it
            strategy = taskflow.choose(plan, graph, taskflow.load_machine("h100", 8))[0]
            assert bool(framework_of("torchtitan", graph).lacks(strategy, None)) is not fine
    had = Expressible(build("mixtral", 16, 8, preset="small", places=1.5), "torchtitan")
    assert [had(parse_plan(plan)) for plan in ("e2 d8 mb1", "e4 d8 mb1", "e4 d8 mb1 zero2")] == [False, False, True]


def test_a_search_for_pytorch_has_tensor_groups_of_language_models() -> None:
    """A loss there is code of one's own, which needs the scores of all words: plans with `nolp` have them, others do not."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: make test TORCH=1")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 8192}
    module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    graph = taskflow.from_torch(module, torch.zeros(8, 16, dtype=torch.long))
    machine = taskflow.load_machine("h100", 4)
    assert any(node.operator.kind == "class_blocks" for node in graph)
    had = Expressible(graph, "torch")
    plans = ("t2 d2 mb1", "t2 nolp d2 mb1", "t4 nolp mb1", "t2 nolp d2 mb1 zero3")
    assert [had(parse_plan(plan)) for plan in plans] == [False, True, True, True]
    grid = make_grid(graph, machine, taskflow.Adam(), had.may_have)
    shared = [plan for plan, _ in grid.listed() if plan.tensor > 1]  # type: ignore[attr-defined]
    assert shared and not any(plan.loss_parallel for plan in shared)
    near = list(grid.neighbours(parse_plan("d4 mb1")))
    assert any(plan.tensor == 2 for plan in near) and all(plan.loss_parallel == (plan.tensor == 1) for plan in near)
    with pytest.raises(ValueError, match="megatron: has no nolp; leave it out"):
        exported(graph, taskflow.choose("t2 nolp d2 mb1", graph, machine)[0], "megatron", "plan.args")


def _with_memory(nbytes: int, folder: Path) -> Any:
    path = folder / "small.json"
    devices = [{"like": "h100", "kind": "h100", "memory_bytes": nbytes}]
    head = {"format": "taskflow-machine", "version": 1, "name": "small", "like": "h100"}
    path.write_text(json.dumps(head | {"devices": devices}))
    return taskflow.load_machine(str(path), 4)


@pytest.mark.parametrize(("plan", "micro_batches", "share"), [
    ("d4 mb1 bucket=layer", 1, 1.0), ("d4 mb1 bucket=layer", 2, 1.0), ("d4 mb1 zero2", 1, 0.25),
    ("d4 mb1 zero1 overlap=none", 1, 1.0),
])  # fmt: skip
def test_gradients_that_a_framework_keeps_are_counted(plan: str, micro_batches: int, share: float, tmp_path: Path) -> None:
    """With weights and state they are the least that a device needs in the update, also where a plan of one micro-batch has given
    them up by then."""
    graph = build("gpt-2", 4 * micro_batches, 4, preset="small", hidden=64, steps=4, layers=4, dtype="bfloat16")
    machine, rule = taskflow.load_machine("h100", 4), taskflow.AdamW()
    memory, strategy = MemoryCheck(make_evaluator(graph, machine, rule=rule)), taskflow.choose(plan, graph, machine)[0]
    uses = memory.needs(strategy).uses
    assert uses is not None
    gradients = 4 * share * sum(p.spec.rect.volume for p in graph.parameters)  # bytes, float32
    least = max(use.weights + use.state for use in uses) + gradients
    assert max(memory.peaks(strategy)[0]) + memory.kept_gradients(strategy) >= least * (1 - 1e-3)
    assert (memory.kept_gradients(strategy) > 0) is (micro_batches == 1 and share == 1 and "none" not in plan)
    framework = framework_of("deepspeed", graph)
    assert not framework.lacks(strategy, memory)
    if memory.kept_gradients(strategy):
        some = round((max(use.nbytes for use in uses) + least) / 2)
        small = MemoryCheck(make_evaluator(graph, _with_memory(some, tmp_path), rule=rule))
        assert not small(strategy) and "bytes more than planned" in framework.lacks(strategy, small)


def test_a_search_for_torch_finds_what_can_be_exported(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
    plan, model = str(tmp_path / "plan.json"), f"{HERE / 'networks.py'}:graph"
    where = (model, "--set", "name=cnn", "-m", "p100", "-n", "4")
    found = run("search", *where, "--budget", "50p", "--for", "torch", "--out", plan)
    out = run("export", plan, "--to", "torch", "--out", str(tmp_path / "parallel.py"))
    assert out["differences"] == [] and out["written"] == [str(tmp_path / "parallel.py")]
    data = run("simulate", *where, "--strategy", "data", "--program", "fsdp")
    assert found["iteration_seconds"] <= data["iteration_seconds"] * (1 + 1e-12)
    compile((tmp_path / "parallel.py").read_text(), "parallel.py", "exec")


@pytest.mark.parametrize("target", fast_among(["torch", "jax"], ["jax"]))
def test_a_search_for_a_framework_keeps_to_a_user_s_constraints(target: str, tmp_path: Path) -> None:
    """Four devices of which samples may go to two."""
    pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
    import networks

    where = (f"{HERE / 'networks.py'}:graph", "-m", "k80", "-n", "4", "--limit", "*: n<=2", "--for", target)
    plan = str(tmp_path / "plan.json")
    run("search", *where, "--budget", "20p", "--out", plan)
    graph = networks.graph("llama")
    strategy = taskflow.choose(plan, graph, taskflow.load_machine("k80", 4))[0]
    for node in graph:
        cut = dict(zip((dim.name for dim in node.dims), strategy[node.name].degrees))
        assert cut.get("n", 1) <= 2, node.name
    if target == "torch":
        row = {row["name"]: row for row in run("compare", *where, "--budget", "5p")["strategies"]}
        assert "data (for torch)" in row and "guided" in row


def test_a_search_for_torch_finds_plans_with_an_order_where_no_other_fits(tmp_path: Path) -> None:
    """Devices of 0.2 MB have no room for a plan that keeps all it makes and all weights, but for one that recomputes and shares,
    also where a user limits it (tests/export/test_round_trip.py limits nothing)."""
    pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
    machine = taskflow.load_machine("p100", 4)
    small = replace(machine, kinds=tuple(replace(kind, memory_bytes=200_000) for kind in machine.kinds), name="small")
    save_machine(small, tmp_path / "small.json")
    plan, where = str(tmp_path / "plan.json"), (f"{HERE / 'networks.py'}:graph", "-m", str(tmp_path / "small.json"), "-n", "4")
    found = run("search", *where, "--budget", "5p", "--for", "torch", "--limit", "*: n<=2", "--out", plan)
    assert found["fits_memory"] and found["peak_memory_bytes"] <= 200_000
    assert json.loads(Path(plan).read_text())["operators"]["tokens"]["degrees"][0] <= 2
    done = CliRunner().invoke(main, ["search", *where, "--budget", "5p", "--for", "torch", "--limit", "*: degree<=1"])
    assert done.exit_code != 0 and "memory" in done.output
    out = run("export", plan, "--to", "torch", "--out", str(tmp_path / "parallel.py"))
    assert out["differences"] == [] and out["iteration_seconds"] == found["iteration_seconds"]
    text = (tmp_path / "parallel.py").read_text()
    assert "again=(" in text or "micro_batches=" in text


def test_plans_for_megatron_run_a_recomputed_layer_again_as_a_whole() -> None:
    """Its checkpoint does, and torchtitan's and PyTorch's need not."""
    graph = build("GPT-2", 16, preset="small", layers=8)
    for target, words in (("megatron", {"whole"}), ("torchtitan", {"whole", "full"})):
        takes = Expressible(graph, target)
        assert {word for word in ("whole", "full") if takes.may_have(HybridPlan(recompute=word))} == words
    machine = taskflow.load_machine("a100", 4)
    for word, other in (("full", "whole"), ("whole", "full")):
        grid = make_grid(graph, machine, taskflow.Adam(), all_of_a_layer=word)
        levels = {plan.recompute for plan, _ in grid.sums.axes.plans()}
        assert word in levels and other not in levels and other not in grid.sums.levels and word in grid.sums.levels


def test_one_pipeline_is_looked_at_for_all_until_a_plan_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """To record the code around stages takes seconds; a grid is listed by one pipeline, and a plan asked in turn."""
    looked: list[int] = []

    def nearest(graph: taskflow.OperatorGraph, strategy: taskflow.Strategy, target: str) -> taskflow.Strategy:
        looked.append(strategy.pipeline.ranks if strategy.pipeline is not None else 1)
        return strategy

    monkeypatch.setattr("taskflow.export.restrict.nearest_plan", nearest)
    takes = Expressible(build("GPT-2", 16, preset="small", layers=8), "megatron")
    plans = [HybridPlan(pipeline=p, data=1, micro_batch=1) for p in (2, 4, 8)]
    assert all(takes.may_have(plan) for plan in plans) and looked == [2]
    assert takes(plans[1]) and looked == [2, 4]


def test_a_grid_asks_for_few_plans_that_have_a_choice_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of plans have the same choices: each is made once, since making one takes longer than all else that is asked."""
    graph, machine = build("llama", 64, preset="small", layers=4), taskflow.load_machine("tpu-v5e", 64)
    grid = make_grid(graph, machine, taskflow.Adam())
    takes, made = Expressible(graph, "jax"), list[HybridPlan]()
    sized = takes._sized
    monkeypatch.setattr(takes, "_sized", lambda plan, most: made.append(plan) or sized(plan, most))
    plans = [plan for plan, _ in grid.sums.axes.plans()]
    taken = [takes.may_have(plan) for plan in plans]
    assert len(plans) > 1000 and len(made) < 150
    fresh = Expressible(graph, "jax")
    fresh.known, fresh.refused, fresh.had = takes.known, takes.refused, takes.had
    assert any(taken) and taken == [fresh.may_have(plan) for plan in plans]


def test_what_cannot_be_expressed_is_not_written_but_said(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
    out = tmp_path / "parallel.py"
    arguments = ["export", "random", "--model", f"{HERE / 'networks.py'}:graph", "-m", "p100", "-n", "4", "--to", "torch", "--out",
                 str(out)]
    done = CliRunner().invoke(main, [*arguments, "--json"], catch_exceptions=False)
    said = json.loads(done.stdout)
    assert done.exit_code == 1 and not out.exists() and said["differences"] and said["nearest_iteration_seconds"] > 0
    assert all(row["operator"] and row["cut"] and row["why"] for row in said["differences"])
    done = CliRunner().invoke(main, [*arguments, "--nearest", "--json"], catch_exceptions=False)
    assert done.exit_code == 0 and out.exists() and os.path.samefile(json.loads(done.stdout)["written"][0], out)


def test_a_graph_without_a_module_is_refused() -> None:
    graph = build("mlp", 16, 4, preset="small")
    strategy = taskflow.choose("data", graph, taskflow.load_machine("k80", 2))[0]
    with pytest.raises((ValueError, ImportError), match="torch"):
        exported(graph, strategy, "torch", "parallel.py")


@pytest.mark.parametrize("command", ["search", "compare"])
@pytest.mark.parametrize("target, said", [
    ("torch", "import the torch.nn.Module itself"), ("megatron", "(h.3); take another target: torch or jax"),
])
def test_what_no_plan_can_be_exported_of_is_refused_before_the_search(command: str, target: str, said: str) -> None:
    if target == "torch":
        pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
    words = [command, "lenet", "--size", "small", "-m", "p100", "-n", "2", "--for", target, "--budget", "1h"]
    done = CliRunner().invoke(main, words)
    told = str(done.exception) if isinstance(done.exception, ValueError) else done.output
    assert said in told and f"--for {target}: " in told and "--to" not in told


def test_a_search_and_the_plans_for_its_target_have_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that a search moves on by all it is given."""
    phases, clock, given = import_module("taskflow.optimizer.phases"), [0.0], []

    def moved(evaluator: Any, options: Any) -> SearchResult:
        clock[0] += options.budget.seconds
        return SearchResult(taskflow.choose("data", graph, machine)[0], 1.0, {}, (), 1, 0, 0.0, 0, "guided", "budget")

    def fastest(self: Any, machine: Any, evaluator: Any, found: Any, lacks: Any, over: Any, constraints: Any, degrees: Any) -> Any:
        given.append((deadline.elapsed, deadline.left))
        return found, 1.0

    monkeypatch.setattr(Framework, "fastest", fastest)
    graph, machine = build("mlp", 16, 2, preset="small"), taskflow.load_machine("p100", 2)
    deadline, framework = Deadline(10.0, lambda: clock[0]), framework_of("jax", graph)
    run = phases.SearchRun(
        make_evaluator(graph, machine), SearchOptions(Budget(10.0), deadline=deadline), moved,
        Allowed(graph, machine, None, framework), Constraints(), lambda strategy: "", framework, no_plans="small",
    )
    found = phases.in_phases(run)
    assert given == [pytest.approx((7.0, 3.0))]
    assert found.search_seconds == pytest.approx(7.0) and [phase.barred for phase in found.phases][1] == "small"


def windows() -> taskflow.OperatorGraph:
    """A network that turns its channels, which ``t`` cuts, as Swin does its windows."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = (torch.nn.Linear(a, b, bias=False) for a, b in ((256, 4096), (4096, 256)))

        def forward(self, x: Any) -> Any:
            turned = self.first(x).view(8, 2, 4, 512).transpose(1, 2).contiguous()
            return self.last(turned.view(-1, 2, 512).view(8, 4096))

    return taskflow.from_torch(Net(), torch.zeros(8, 256))


def test_plans_of_cuts_alone_are_predicted_with_the_collectives_that_the_code_sends() -> None:
    """Copies between pairs of devices take another time: on two ranks of gloo a plan was taken for a sixth faster than it is."""
    pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
    graph, machine = windows(), taskflow.load_machine("p100", 2)
    found = taskflow.search(graph, machine, budget="30p", target="torch").strategy
    assert found.plan is None and found.exchange is Exchange.COLLECTIVES
    assert exported(graph, found, "torch", "plan.py").nearest is found
    copies, evaluator = replace(found, exchange=Exchange.COPIES, sums=SyncAlgorithm.OWNER), make_evaluator(graph, machine)
    assert exported(graph, copies, "torch", "plan.py").nearest == found == nearest_plan(graph, copies, "torch")
    assert evaluator.set(found) != evaluator.set(copies)
    data = taskflow.choose("data", graph, machine)[0]
    assert by_collectives(graph, data) is data


@pytest.mark.parametrize("algorithm", ["guided", "mcmc"])
def test_a_search_for_torch_leaves_out_plans_under_which_the_code_fails_and_says_so(algorithm: str) -> None:
    """Data parallelism moves all weights, so that ``t`` would be faster."""
    pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
    graph, machine = windows(), taskflow.load_machine("p100", 2)
    shared = taskflow.choose("t2", graph, machine)[0]
    with pytest.raises(ValueError, match="does not work on pieces"):
        require_running(graph, exported(graph, shared, "torch", "plan.py"), "torch")
    found = taskflow.search(graph, machine, budget="30p", target="torch", algorithm=algorithm)
    plan = exported(graph, found.strategy, "torch", "plan.py")
    require_running(graph, plan, "torch")
    assert not plan.differences
    if algorithm == "mcmc":  # the other finds a plan that is faster than those, and runs
        assert any("cut layers as this code cannot (the code of Net" in text for text in found.left_out)
    of_torch = framework_of("torch", graph)
    assert not of_torch.may_have(HybridPlan(tensor=2), lambda: False) and of_torch.may_have(HybridPlan(zero=3), lambda: False)
    assert "does not work on pieces" in of_torch.lacks(shared, None)
