"""Plans for JAX: what GSPMD cannot express is named, and an exported module on eight simulated CPU devices, of one process and of
several, gives the losses, gradients and weights of one device, and of taskflow's own runtime, with shards and collectives as
planned."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import taskflow
from taskflow.cli.main import main
from taskflow.export import exported, nearest_plan
from taskflow.export.jax import jax_plan
from taskflow.mapper import HybridParallel, OpConfig, map_graph
from taskflow.models import build
from taskflow.training import StoredWeights, load_weights

sys.path.insert(0, str(Path(__file__).parent))
import hlo
import starting
from document_blocks import files

HERE = Path(__file__).parent
TOLERANCE = 1e-5
needs_jax = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("jax", "flax", "optax")), reason="JAX is not installed: pip install -e '.[jax]'"
)


def strategy_of(graph: taskflow.OperatorGraph, plan: str, devices: int = 8) -> taskflow.Strategy:
    return taskflow.choose(plan, graph, taskflow.load_machine("h100", devices))[0]


# ---- what is expressed, without jax ----------------------------------------------------------------------------------


def test_specs_are_those_of_the_plan() -> None:
    graph = build("llama", 8, 8, preset="small", hidden=32, inner=64, steps=16, vocabulary=64, key_heads=4)
    plan = jax_plan(graph, strategy_of(graph, "t2 d4 zero1"))
    assert plan.axes == {"data": 4, "tensor": 2} and plan.samples == ("data",) and not plan.differences
    query, out = (plan.parameters[f"layers.0.self_attn.{name}_proj.weight"] for name in "qo")
    assert (query.spec, query.state, query.zero) == ((("tensor",), ()), (("tensor", "data"), ()), 1)
    assert out.spec == ((), ("tensor",))
    assert plan.activations["layers.0.self_attn.q_proj"] == ((("data",), (), ("tensor",)),)
    assert plan.activations["layers.0.self_attn.q_rotary"] == ()  # follows
    assert plan.activations["layers.0.mlp.down_proj"] == ((("data",), ("tensor",), ()),)  # added up in pieces of the sequence


@pytest.mark.parametrize("plan,shares", [("d8 zero3", 8), ("d8 zero3 hsdp4", 4), ("d8 zero2 hsdp2", 2), ("d8", 1)])
def test_shares_are_those_of_a_group(plan: str, shares: int) -> None:
    graph = build("mlp", 16, 8, preset="small", features=32, hidden=(64, 64), classes=8)
    found = jax_plan(graph, strategy_of(graph, plan))
    assert not found.differences
    for kept in found.parameters.values():
        assert prod(found.axes[name] for names in kept.state for name in names) == shares


def test_the_order_of_devices_is_kept() -> None:
    graph = build("mlp", 16, 8, preset="small", features=32, hidden=(64, 64), classes=8)
    strategy = strategy_of(graph, "t2 d4")
    order = (3, 1, 2, 0, 7, 5, 4, 6)
    moved = replace(strategy, configs={
        name: replace(config, processors=tuple(order[p] for p in config.processors)) for name, config in strategy.configs.items()
    })
    found = jax_plan(graph, moved)
    assert not found.differences and found.order == order and found.axes == {"data": 4, "tensor": 2}


def test_stages_become_replicas_with_shares() -> None:
    graph = build("gpt-2", 8, 8, preset="small", heads=4, hidden=32, steps=8)
    strategy = strategy_of(graph, "t2 p2 d2")
    found = exported(graph, strategy, "jax", "plan.py")
    assert {d.operator for d in found.differences} >= {node.name for node in graph if node.inputs}
    assert "stage 1 of a pipeline" in str(next(d for d in found.differences if d.operator == "loss"))
    assert found.nearest.pipeline is None or found.nearest.pipeline.count == 1
    assert found.nearest.name.startswith("t2 p1 d4") and not exported(graph, found.nearest, "jax", "plan.py").differences


def test_uneven_pieces_and_operators_on_some_devices_are_refused_one_by_one() -> None:
    graph = build("mlp", 16, 4, preset="small", features=30, hidden=(64, 64), classes=8)
    strategy = strategy_of(graph, "data", 4)
    configs = dict(strategy.configs)
    fc1, fc2 = graph.node("fc1"), graph.node("fc2")
    channels = [dim.name for dim in fc1.dims].index("c")
    configs["fc1"] = OpConfig(tuple(3 if i == channels else 1 for i in range(len(fc1.dims))), (0, 1, 2))
    configs["fc2"] = OpConfig(tuple(2 if dim.name == "n" else 1 for dim in fc2.dims), (2, 3))
    found = exported(graph, replace(strategy, configs=configs), "jax", "plan.py")
    why = {d.operator: d.why for d in found.differences}
    assert set(why) == {"fc1", "fc2"} and "does not divide" in why["fc1"], why
    assert found.nearest["fc1"].degrees[channels] == 1
    assert not exported(graph, nearest_plan(graph, replace(strategy, configs=configs), "jax"), "jax", "plan.py").differences


@pytest.mark.parametrize("name", ["lenet", "mlp"])
@pytest.mark.parametrize("seed", range(4))
def test_the_nearest_to_a_random_plan_is_expressible(name: str, seed: int) -> None:
    graph = build(name, 16, 4, preset="small")
    strategy = taskflow.choose("random", graph, taskflow.load_machine("p100", 4), seed=seed)[0]
    near = nearest_plan(graph, strategy, "jax")
    near.verify(graph)
    assert not exported(graph, near, "jax", "plan.py").differences


def test_search_and_compare_for_jax(tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    where = ["mlp", "--size", "small", "--batch", "16", "-m", "p100", "-n", "4"]

    def run(*arguments: str) -> Any:
        done = CliRunner().invoke(main, [*arguments, "--json"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    found = run("search", *where, "--budget", "50p", "--for", "jax", "--out", plan)
    out = run("export", plan, "--to", "jax", "--out", str(tmp_path / "parallel_jax.py"))
    assert out["differences"] == [] and out["iteration_seconds"] == found["iteration_seconds"]
    compile((tmp_path / "parallel_jax.py").read_text(), "parallel_jax.py", "exec")
    assert all(row["iteration_seconds"] > 0 for row in run("compare", *where, "--budget", "5p", "--for", "jax")["strategies"])


def test_collectives_are_read_with_the_turns_of_their_loops() -> None:
    text = '''HloModule step
%body (p: f32[8]) -> f32[8] {
  %g = f32[8,4]{1,0} all-gather(%p), replica_groups=[4,2]<=[8], dimensions={0}
}
ENTRY %main (p: f32[8]) -> f32[8] {
  %w = f32[8] while(%p), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %r = (f32[10]{0}, f32[2]{0}) all-reduce(%w, %p), replica_groups={{0,1,2,3},{4,5,6,7}}
  %s = f32[16]{0} collective-permute(%w), source_target_pairs={{0,1},{1,0},{2,2}}
}
'''
    assert hlo.collectives(text, 8) == {
        "all-gather": [3, 3 * 8 * 128 // 2], "all-reduce": [1, 8 * 2 * 48 * 3 // 4], "collective-permute": [1, 2 * 64],
    }
    with pytest.raises(ValueError, match="how often"):
        hlo.collectives(text.replace("known_trip_count", "unknown"), 8)


# ---- run on eight devices --------------------------------------------------------------------------------------------


def trained(
    folder: Path, name: str, plans: list[taskflow.Strategy], graph: taskflow.OperatorGraph, processes: int = 1
) -> list[dict[str, Any]]:
    """What train_beside_jax.py says of a network under each plan, after the checks that all must pass in every process. Shards are
    those of all processes."""
    for number, strategy in enumerate(plans):
        found = exported(graph, strategy, "jax", f"plan_{number}.py")
        assert not found.differences, [str(d) for d in found.differences]
        (folder / f"plan_{number}.py").write_text(found.files[f"plan_{number}.py"])
    modules = [f"plan_{number}" for number in range(len(plans))]
    address = f"127.0.0.1:{starting.free_port()}"

    def run(rank: int) -> subprocess.CompletedProcess[str]:
        place = f"{rank}/{processes}@{address}"
        return starting.run_python(str(HERE / "train_beside_jax.py"), place, name, "5", *modules, folder=folder, limit=580.0)

    with ThreadPoolExecutor(processes) as pool:
        for done in pool.map(run, range(processes)):
            assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-5000:]
    rows = []
    for module, strategy in zip(modules, plans, strict=True):
        parts = [json.loads((folder / f"{module}.{rank}.json").read_text()) for rank in range(processes)]
        for row in parts:
            assert all(ours == pytest.approx(alone, rel=TOLERANCE) for ours, alone in row["losses"]), (strategy.name, row["losses"])
            assert row["gradients"] < TOLERANCE and row["weights"] < TOLERANCE, (strategy.name, row["gradients"], row["weights"])
            assert row["losses"][-1][0] != row["losses"][0][0]
        rows.append(of_all(parts))
        check_shards(rows[-1], graph, strategy)
    return rows


def of_all(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """What the first of several processes says, with the devices of all: each has as many, and shards of one shape."""
    for key in ("params", "state"):
        for path, (*shapes, devices) in parts[0][key].items():
            others = [part[key][path] for part in parts[1:]]
            assert all(other[:-1] == shapes and len(other[-1]) == len(devices) for other in others), (path, shapes, others)
            devices += [device for other in others for device in other[-1]]
    return parts[0]


def check_shards(row: dict[str, Any], graph: taskflow.OperatorGraph, strategy: taskflow.Strategy) -> None:
    """Parameters and momentum lie in pieces of the planned shapes, on the planned devices."""
    plan = jax_plan(graph, strategy)
    for path, (whole, piece, devices) in row["params"].items():
        kept = plan.parameters[path.removeprefix("params.").replace(".kernel", ".weight")]
        spec = kept.state if kept.zero == 3 else kept.spec
        wanted = [size // prod(plan.axes[name] for name in names) for size, names in zip(kept.shape, spec)]
        assert piece == (wanted[::-1] if path.endswith("kernel") else wanted), (path, whole, piece)
        assert sorted(devices) == sorted(plan.order)
    for path, (_, piece, _) in row["state"].items():
        name = next(name for name in row["params"] if path.endswith(f".{name}"))
        kept = plan.parameters[name.removeprefix("params.").replace(".kernel", ".weight")]
        wanted = [size // prod(plan.axes[n] for n in names) for size, names in zip(kept.shape, kept.state)]
        assert piece == (wanted[::-1] if name.endswith("kernel") else wanted), (path, piece)
    assert sum(count for count, _ in row["collectives"].values()) > 0


def run_of(name: str, graph: taskflow.OperatorGraph, strategy: taskflow.Strategy, rule: taskflow.SGD) -> taskflow.Executor:
    """taskflow's runtime with the weights of the test."""
    import jax_networks

    run = taskflow.Executor(graph, strategy, rule)
    weights = jax_networks.weights(name)
    load_weights(run, StoredWeights("the test", {key: value.shape for key, value in weights.items()}, weights.__getitem__))
    return run


def in_taskflow(name: str, graph: taskflow.OperatorGraph, strategy: taskflow.Strategy) -> list[float]:
    """The losses of the same weights and batches in taskflow's runtime."""
    import jax_networks

    run = run_of(name, graph, strategy, taskflow.SGD(lr=0.1, momentum=0.9))
    return [run.train(batch) for batch in jax_networks.batches(name, 5)]


def gradients_in_taskflow(name: str, graph: taskflow.OperatorGraph, strategy: taskflow.Strategy) -> dict[str, Any]:
    """The first step's gradients in taskflow's runtime: what a step so long that weights vanish beside it changes."""
    import jax_networks

    run, weights = run_of(name, graph, strategy, taskflow.SGD(lr=1e6)), jax_networks.weights(name)
    run.train(jax_networks.batches(name, 1)[0])
    return {key: (weights[key] - value.astype("float64")) / 1e6 for key, value in run.parameters().items()}


def both(folder: Path, name: str, *plans: str, processes: int = 1) -> list[dict[str, Any]]:
    """On eight devices under plans, beside taskflow's runtime under the first of them."""
    import jax_networks

    graph = jax_networks.graph(name)
    strategies = [strategy_of(graph, plan) for plan in plans]
    rows = trained(folder, name, strategies, graph, processes)
    ours, gradients = in_taskflow(name, graph, strategies[0]), gradients_in_taskflow(name, graph, strategies[0])
    for row in rows:
        assert [loss for loss, _ in row["losses"]] == pytest.approx(ours, rel=TOLERANCE)
        for rank in range(processes):
            with np.load(folder / f"{row['module']}.{rank}.npz") as found:
                assert set(found) == set(gradients)
                for key, value in gradients.items():
                    assert np.abs(found[key] - value).max() < TOLERANCE * np.abs(value).max(), (row["module"], rank, key)
    return rows


@needs_jax
@pytest.mark.timeout(600)
def test_an_mlp_trains_as_on_one_device_and_as_here(tmp_path: Path) -> None:
    both(tmp_path, "mlp", "t2 d4", "d8 fsdp")


@needs_jax
@pytest.mark.timeout(300)
def test_the_guide_s_program_runs(tmp_path: Path) -> None:
    page = HERE.parents[1] / "docs" / "guide" / "export.md"
    for name in ("layers.py", "try_jax.py"):
        (tmp_path / name).write_text(files(page)[name])
    export = ["export", "t2 d4 zero1", "--model", f"{tmp_path / 'layers.py'}:graph", "-m", "h100", "-n", "8", "--to", "jax"]
    CliRunner().invoke(main, [*export, "--out", str(tmp_path / "parallel_jax.py")], catch_exceptions=False)
    done = starting.run_python("try_jax.py", folder=tmp_path, extra={"JAX_PLATFORMS": "cpu"})
    assert done.stdout == "(32, 32) True\n", done.stderr[-3000:]


@needs_jax
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("plans", [
    ("d8", "t2 d4"), ("t4 d2", "t4 d2 mb2 zero1"), ("d8 zero1", "d8 zero2 mb1"), ("d8 fsdp recompute=full", "c2 d4"),
    ("t2 d4 zero3 recompute=selective", "d8 zero3 hsdp4"),
], ids=" and ".join)
def test_a_llama_trains_as_on_one_device_and_as_here(plans: tuple[str, ...], tmp_path: Path) -> None:
    both(tmp_path, "llama", *plans)


@needs_jax
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("processes,name,plans", [
    (2, "mlp", ("t2 d4", "d8 fsdp")), (2, "llama", ("t2 d4", "t4 d2 mb2 zero1", "d8 zero3 hsdp4")),
    (4, "mlp", ("t4 d2", "d8 zero1")),
], ids=["2-mlp", "2-llama", "4-mlp"])
def test_over_processes_as_on_one_device_and_as_here(processes: int, name: str, plans: tuple[str, ...], tmp_path: Path) -> None:
    both(tmp_path, name, *plans, processes=processes)


@needs_jax
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_module_of_flax_trains_as_on_one_device_and_as_here(tmp_path: Path) -> None:
    both(tmp_path, "flax", "d8", "t2 d4", "t4 d2", "d8 zero1", "d8 fsdp")


@needs_jax
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_experts_are_cut_and_words_sent_to_them(tmp_path: Path) -> None:
    """Here the second expert is drawn at random, so that taskflow's own losses are others."""
    import jax_networks

    graph = jax_networks.graph("moe")
    rows = trained(tmp_path, "moe", [strategy_of(graph, plan) for plan in ("d8 e8", "t2 d4 e4")], graph)
    assert rows[0]["params"]["layers.1.moe.wi.weight"][1][0] == 1  # of 8 experts
    assert "all-to-all" in rows[0]["collectives"], rows[0]["collectives"]


@needs_jax
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_other_orders_and_convolutions_cut_in_space(tmp_path: Path) -> None:
    import jax_networks

    graph = jax_networks.graph("conv")
    machine = taskflow.load_machine("h100", 8)
    data = map_graph(HybridParallel("d8"), graph, machine)
    order = (3, 1, 2, 0, 7, 5, 4, 6)
    configs = dict(data.configs)
    for node in graph:
        if node.name in ("conv1", "relu1", "conv2", "relu2"):
            rows = next(i for i, dim in enumerate(node.dims) if dim.size == 16 and dim.divisible)
            degrees = tuple(4 if i == rows else 2 if i == 0 else 1 for i in range(len(node.dims)))
            configs[node.name] = OpConfig(degrees, tuple(range(8)))
    moved = {name: replace(config, processors=tuple(order[p] for p in config.processors)) for name, config in configs.items()}
    (row,) = trained(tmp_path, "conv", [replace(data, configs=moved)], graph)
    assert "collective-permute" in row["collectives"], row["collectives"]  # halos
    assert row["params"]["conv1.weight"][2] == list(order)
