"""Traces of PyTorch's profiler, made here: their parts add up to the step, they join the predicted step, and causes are found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import taskflow
from taskflow.cli.main import main
from taskflow.machine import save
from taskflow.optimizer import make_evaluator
from taskflow.probe import built, calibrated, joined, read_kineto, read_probes
from taskflow.probe.joined import _alike
from taskflow.probe.kineto_gpu import TimeOf

PROBED = str(Path(__file__).with_name("two_cores.json"))
MODEL = """
import torch
import taskflow

def module():
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 16))

def graph(batch: int = 128):
    return taskflow.from_torch(module(), (batch, 64), name="small", verify=False)
"""


def event(name: str, begin: float, took: float, thread: int = 1, category: str = "cpu_op", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": thread, "ts": begin, "dur": took, "args": args}


def trace(path: Path, events: list[dict[str, Any]], rank: int = 0) -> str:
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": rank}}))
    return str(path)


def one_step(begin: float, slow: float = 1.0, link: float = 1.0, kernel: float = 1.0) -> list[dict[str, Any]]:
    """A step of two layers with a sum of gradients, in microseconds. What comes later is moved."""
    found, at = [], begin + 10

    def mark(name: str, took: float, **args: Any) -> None:
        nonlocal at
        found.append(event(name, at, took, **args))
        at += took

    for path, took in (("0", 400 * kernel), ("1", 100), ("2", 300)):
        started, number = at, int(path) + 10
        mark("aten::linear", took * slow, **{"Sequence number": number})
        found.append(event(f"taskflow::{path}", started, at - started, category="user_annotation"))
    started = at
    mark("aten::cross_entropy", 50 * slow, **{"Sequence number": 20})
    found.append(event("taskflow::loss", started, at - started, category="user_annotation"))
    for number, took in ((20, 50), (12, 600), (11, 200), (10, 800 * kernel)):
        started = at
        mark("aten::mm", took * slow)
        found.append(event("autograd::engine::evaluate_function: X", started, at - started, **{"Sequence number": number}))
    started = at
    found.append(event("gloo:all_reduce", at + 20, 500 * link, thread=7, category="user_annotation"))
    at += 520 * link + 20
    found.append(event("FSDP::post_backward_reduce (0)", started, at - started, category="user_annotation"))
    found.append(event("taskflow::step", begin, at - begin, category="user_annotation"))
    mark("Optimizer.step#SGD.step", 80, category="user_annotation")
    return found


def steps(path: Path, rank: int = 0, **change: float) -> str:
    length = max(e["ts"] + e["dur"] for e in one_step(0.0, **change))
    return trace(path, [e for i in range(3) for e in one_step(1e6 + i * length, **change)], rank)


def test_the_parts_of_a_step_add_up_to_it(tmp_path: Path) -> None:
    found = read_kineto(steps(tmp_path / "a.json"))
    assert len(found.seconds) == 3 and found.paths == {"0", "1", "2"}
    for seconds, parts in zip(found.seconds, found.parts):
        assert sum(parts.values()) == pytest.approx(seconds)
    expected = {
        ("forward", "0"): 400, ("forward", "2"): 300, ("backward", "0"): 800, ("backward", "2"): 600, ("loss", ""): 100,
        ("gradients", "0"): 500, ("unit", "0"): 40, ("update", ""): 80, ("host", ""): 10,
    }  # fmt: skip
    for key, microseconds in expected.items():
        assert found.of(TimeOf(*key)) == pytest.approx(microseconds * 1e-6), key


def test_changes_of_layouts_and_sums_of_whole_weights_are_messages_with_their_copies(tmp_path: Path) -> None:
    """Also where nothing is on its way: an exported module's own copies belong to them."""
    forward = [
        event("taskflow::0", 10, 90, category="user_annotation"), event("aten::linear", 10, 40, **{"Sequence number": 1}),
        event("BroughtPieces", 60, 40), event("aten::copy_", 65, 10),
        event("gloo:all_gather", 75, 20, thread=7, category="user_annotation"),
    ]  # fmt: skip
    backward = [
        event("autograd::engine::evaluate_function: BroughtPiecesBackward", 120, 30), event("aten::copy_", 130, 10),
        event("autograd::engine::evaluate_function: LinearBackward", 160, 50, **{"Sequence number": 1}),
        event("taskflow::sums", 220, 60, category="user_annotation"), event("aten::cat", 225, 5),
        event("taskflow::finish", 280, 20, category="user_annotation"), event("aten::mul", 300, 10),
    ]  # fmt: skip
    whole = event("taskflow::step", 0, 310, category="user_annotation")
    found = read_kineto(trace(tmp_path / "a.json", [whole, *forward, *backward])).known
    of = {part: round(1e6 * seconds) for part, seconds in found.items()}
    assert of[TimeOf("forward", "0")] == 50 and of[TimeOf("backward", "0")] == 50
    assert of[TimeOf("activations", "0")] == 40 and sum(s for part, s in of.items() if part.kind == "activations") == 70
    assert of[TimeOf("gradients")] == 60 and of[TimeOf("loss sum")] == 20


def test_backward_of_a_module_whose_result_has_a_hook_is_its_own(tmp_path: Path) -> None:
    """The last module of a unit of FSDP2: PyTorch numbers the function within, not what evaluates it."""
    forward = [
        part for number in (1, 2) for part in (
            event(f"taskflow::{number}", 50 * number, 40, category="user_annotation"),
            event("aten::linear", 50 * number, 40, **{"Sequence number": number}),
        )
    ]  # fmt: skip
    plain, hooked = "autograd::engine::evaluate_function: A", "autograd::engine::evaluate_function: B"
    backward = [
        event(plain, 150, 30, **{"Sequence number": 2}), event("A", 150, 30, **{"Sequence number": 2}), event("aten::mm", 150, 30),
        event(hooked, 180, 70), event("FSDP::pre_backward (1)", 180, 10, category="user_annotation"),
        event("B", 190, 60, **{"Sequence number": 1}), event("aten::mm", 190, 60),
    ]  # fmt: skip
    whole = event("taskflow::step", 50, 200, category="user_annotation")
    found = read_kineto(trace(tmp_path / "a.json", [whole, *forward, *backward])).known
    of = {part: round(1e6 * seconds) for part, seconds in found.items() if part.kind in ("backward", "unit")}
    assert of == {TimeOf("backward", "2"): 30, TimeOf("unit", "1"): 10, TimeOf("backward", "1"): 60}


def test_layers_alike_are_one_part_and_functions_within_them_are_not() -> None:
    """By its number a layer is told from a function that a layer has: it has parts itself."""
    paths = frozenset({"blocks.2", "blocks.2.norm", "blocks.2.mlp", "blocks.2.mlp.1", "0"})
    found = [_alike(owner, paths) for owner in ("blocks.2", "blocks.2.norm", "blocks.2.mlp.1", "0", "")]
    assert found == ["blocks.#", "blocks.#.norm", "blocks.#.mlp.1", "0", ""]


def test_on_a_gpu_kernels_tell_and_messages_count_where_nothing_else_runs(tmp_path: Path) -> None:
    events = [
        event("taskflow::step", 0, 400, category="user_annotation"), event("taskflow::0", 0, 50, category="user_annotation"),
        event("aten::mm", 5, 40), event("cudaLaunchKernel", 10, 5, category="cuda_runtime", correlation=1),
        event("FSDP::post_backward_reduce (0)", 60, 20, category="user_annotation"),
        event("cudaLaunchKernel", 65, 5, category="cuda_runtime", correlation=2),
        event("gemm", 100, 100, thread=20, category="kernel", correlation=1),
        event("ncclDevKernel_ReduceScatter", 150, 150, thread=21, category="kernel", correlation=2),
    ]
    found = read_kineto(trace(tmp_path / "g.json", events))
    assert found.gpu and found.of(TimeOf("forward", "0")) == pytest.approx(1e-4)
    assert found.of(TimeOf("gradients", "0")) == pytest.approx(1e-4), "half of it is hidden behind the product"
    assert found.of(TimeOf("host")) == pytest.approx(2e-4)


@pytest.mark.parametrize("content,message", [
    ([], "not a trace of torch.profiler"), ({"traceEvents": [event("aten::mm", 0, 1)]}, "has no step"),
    ({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": "x", "dur": 1, "tid": 1}]}, "changed or cut"),
])
def test_what_is_no_trace_is_refused(content: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        read_kineto(str(tmp_path / "t.json"))


def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("torch")
    (tmp_path / "small.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    save(built(read_probes([PROBED]), "mine").machine, tmp_path / "mine.json")


@pytest.mark.parametrize("change,first", [
    ({"slow": 2.0}, "rank 1 computes more slowly than others"), ({"link": 8.0}, "messages: sums of gradients"),
    ({"kernel": 4.0}, "0, backward"),
])
def test_the_first_cause_is_what_was_changed(
    change: dict[str, float], first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run as it was predicted, then one in which a rank, the link or a kernel is slower on purpose: calibrated by the first, the
    difference of the second has its cause."""
    small(tmp_path, monkeypatch)
    from taskflow.cli.model import build_model

    graph = build_model("small.py:graph", None, 2)
    machine = taskflow.load_machine("mine.json")
    strategy = taskflow.choose("data", graph, machine)[0]
    rule = taskflow.SGD(lr=0.1, momentum=0.9)
    for _ in range(3):  # the update's share of a message is not told apart at once
        evaluator = make_evaluator(graph, machine, rule=rule)
        evaluator.set(strategy)
        plain = [read_kineto(steps(tmp_path / f"{rank}.json", rank)) for rank in (0, 1)]
        before = joined(evaluator, strategy, plain)
        machine, _ = calibrated(machine, evaluator, strategy, plain)
    assert sum(cause.seconds for cause in before.causes) == pytest.approx(before.measured_seconds - before.predicted_seconds)
    assert before.predicted_seconds == pytest.approx(before.measured_seconds, rel=0.15)
    waits = {"link": 1 + 2500 / 520}  # the other rank's work takes 2.5 ms longer
    ones = {"slow": waits, "link": change, "kernel": change}[next(iter(change))]
    changed = [steps(tmp_path / "0.json", 0, **ones), steps(tmp_path / "1.json", 1, **change)]
    found = joined(evaluator, strategy, [read_kineto(path) for path in changed])
    assert found.causes[0].what == first and found.causes[0].seconds > 0 and found.named > 0.99
    assert found.rank == 1 or "slow" not in change


def test_the_command_shows_causes_and_calibrates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path, monkeypatch)
    files = [steps(tmp_path / f"{rank}.json", rank) for rank in (0, 1)]
    asked = ["profile", "small.py:graph", "--plan", "data", "-m", "mine.json", "-n", "2"]
    asked += [word for path in files for word in ("--torch", path)]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 0 and "what explains the difference" in done.output and "rank 1: " in done.output, done.output
    value = json.loads(CliRunner().invoke(main, [*asked, "--json"]).stdout)
    assert value["step_seconds"] == pytest.approx(sum(value["ranks_seconds"]["0"].values()))
    ratios = [value["predicted_step_seconds"] / value["step_seconds"]]
    for _ in range(2):
        done = CliRunner().invoke(main, [*asked, "--calibrate", "mine.json", "--json"])
        assert done.exit_code == 0, done.output
    again = json.loads(CliRunner().invoke(main, [*asked, "--json"]).stdout)
    ratios.append(again["predicted_step_seconds"] / again["step_seconds"])
    assert abs(ratios[1] - 1) < min(0.2, abs(ratios[0] - 1)), ratios
    shorter = again["step_seconds"] / 2  # without a profiler
    done = CliRunner().invoke(main, [*asked, "--calibrate", "mine.json", "--step", str(shorter)])
    assert done.exit_code == 0, done.output
    now = json.loads(CliRunner().invoke(main, [*asked, "--json"]).stdout)["predicted_step_seconds"]
    assert shorter < now < 0.75 * again["predicted_step_seconds"], "about two thirds of the way in logarithms (`OF_RUN`)"
    (tmp_path / "other.json").write_bytes((tmp_path / "mine.json").read_bytes())
    done = CliRunner().invoke(main, [*asked, "--calibrate", "other.json"])
    assert done.exit_code == 2 and "got --machine mine.json and --calibrate other.json" in done.output, done.output
    done = CliRunner().invoke(main, [*asked, "--step", "0.1"])
    assert done.exit_code == 2 and "--step SECONDS is what --calibrate MACHINE" in done.output
    done = CliRunner().invoke(main, ["profile", "--plan", "data"])
    assert done.exit_code == 2 and "belong together" in done.output


def test_traces_of_another_run_are_refused_and_no_machine_is_calibrated_by_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(tmp_path, monkeypatch)
    file = steps(tmp_path / "0.json")
    before = (tmp_path / "mine.json").read_bytes()

    def refused(model: str, *files: str) -> str:
        asked = ["profile", model, "--plan", "data", "--calibrate", "mine.json", "-n", "2"]
        done = CliRunner().invoke(main, [*asked, *(word for path in files for word in ("--torch", path))])
        assert done.exit_code == 2 and (tmp_path / "mine.json").read_bytes() == before, done.output
        return done.output.splitlines()[-1]

    assert "needs traces of different ranks of the 2 that the plan has, got ranks 0, 0" in refused("small.py:graph", file, file)
    other = refused("mlp", file)
    assert "of another network: their modules (0, 1, 2, ...) have no operator of MLP (fc" in other and "give the network" in other
    of_four = json.loads(Path(file).read_text())
    of_four["distributedInfo"] = {"rank": 3, "world_size": 4}
    (tmp_path / "3.json").write_text(json.dumps(of_four))
    assert "rank 3 is of a run on 4 ranks, and the plan is for 2" in refused("small.py:graph", "3.json")
    of_four["distributedInfo"] = {"rank": 1, "world_size": 2}
    (tmp_path / "1.json").write_text(json.dumps(of_four))
    asked = ["profile", "small.py:graph", "--plan", "data", "-m", "mine.json", "-n", "2", "--torch", file, "--torch", "1.json"]
    assert CliRunner().invoke(main, asked).exit_code == 0


def test_predicted_waiting_belongs_to_the_message_that_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies between cut layers go beside computing; a plan that sums no gradients between ranks waits for none."""
    small(tmp_path, monkeypatch)
    from taskflow.cli.model import build_model
    from taskflow.probe.joined import predicted_parts

    graph, machine = build_model("small.py:graph", None, 2), taskflow.load_machine("mine.json")
    assert machine.collectives is not None and machine.collectives.blocks
    cut = {"0": (1, 2, 1), "2": (1, 2, 1)}  # by output channels: the second reads all that the first has made
    strategy = taskflow.Strategy(2, {
        node.name: taskflow.OpConfig(cut[node.name], (0, 1)) if node.name in cut
        else taskflow.OpConfig((1, 2), (0, 1)) if node.name == "1"
        else taskflow.OpConfig((1,) * len(node.dims), (0,)) for node in graph
    })  # fmt: skip
    evaluator = make_evaluator(graph, machine, rule=taskflow.SGD(lr=0.1))
    evaluator.set(strategy)
    parts = predicted_parts(evaluator, strategy, 1, frozenset({"0", "1", "2"}))
    of = {kind: sum(seconds for part, seconds in parts.items() if part.kind == kind) for kind in ("activations", "gradients")}
    assert of["activations"] > 0 and of["gradients"] == 0, parts
    assert sum(parts.values()) == pytest.approx(evaluator.seconds)


def test_a_named_module_is_found_in_a_real_trace(tmp_path: Path) -> None:
    """As exported modules name their parts: PyTorch's own profiler, one device."""
    torch = pytest.importorskip("torch")
    from taskflow.export.pytorch.support.naming import name_modules, named

    module = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
    plain = dict(module.state_dict())
    name_modules(module)
    assert list(module.state_dict()) == list(plain)
    optimizer, x = torch.optim.SGD(module.parameters(), lr=0.1), torch.randn(512, 256)

    def step() -> None:
        with named("step"):
            made = module(x)
            with named("loss"):
                loss = made.square().mean()
            loss.backward()
        optimizer.step()

    step()
    with torch.profiler.profile() as profiler:
        for _ in range(2):
            step()
    profiler.export_chrome_trace(str(tmp_path / "real.json"))
    found = read_kineto(str(tmp_path / "real.json"))
    assert len(found.seconds) == 2 and found.paths == {"0", "1", "2"}
    assert all(found.of(TimeOf(way, "0")) > 0 for way in ("forward", "backward")) and found.of(TimeOf("update")) > 0
    for seconds, parts in zip(found.seconds, found.parts):
        assert sum(parts.values()) == pytest.approx(seconds)
