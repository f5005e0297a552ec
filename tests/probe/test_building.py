"""Machines of measurements: what was measured is used as it is, between it is fitted with a stated error, the rest is kept."""

from __future__ import annotations

import copy
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import taskflow
from taskflow.cli.main import main
from taskflow.machine import Timed, TimedPoint, collective, exchange, fitted, left_out_errors, load_machine, save
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.cost import size_of
from taskflow.optimizer.cost.pace import of_weights
from taskflow.probe import Measurements, built, measurements_of, read_probes
from taskflow.programs import TrainingProgram
from taskflow.tasks import Kind

PROBED = str(Path(__file__).with_name("two_cores.json"))


# ---- between measured sizes ------------------------------------------------------------------------------------------
def points(*sizes: tuple[float, float], wave: float = 0.0) -> tuple[TimedPoint, ...]:
    return tuple(TimedPoint(f, b, 1e-5 + 2e-9 * f + 3e-10 * b * (1 + wave * (-1) ** i)) for i, (f, b) in enumerate(sizes))


SIZES = ((1e3, 1e4), (1e4, 1e4), (1e5, 1e6), (1e6, 2e5), (1e7, 1e7))


def test_a_measured_size_takes_what_it_took() -> None:
    made = points(*SIZES, wave=0.5)
    timed = Timed("linear", "product", False, "float32", made)
    assert [timed.seconds(p.flops, p.nbytes) for p in made] == [p.seconds for p in made]


def test_sizes_between_lie_on_the_line_that_others_lie_on() -> None:
    timed = Timed("linear", "product", False, "float32", points(*SIZES))
    assert timed.seconds(3e5, 5e5) == pytest.approx(1e-5 + 2e-9 * 3e5 + 3e-10 * 5e5, rel=1e-6)
    assert fitted(points(*SIZES)) == pytest.approx((1e-5, 2e-9, 3e-10), rel=1e-6)
    assert max(map(abs, left_out_errors(points(*SIZES)))) < 1e-6


def test_no_part_of_a_fit_is_negative() -> None:
    falling = (TimedPoint(0.0, 1e3, 2e-3), TimedPoint(0.0, 1e6, 1e-3))
    assert min(fitted(falling)) >= 0 and Timed("a", "b", False, "float32", falling).seconds(0.0, 1e9) > 0


# ---- machines --------------------------------------------------------------------------------------------------------
def test_a_machine_of_two_cores_has_what_was_measured(tmp_path: Path) -> None:
    found = read_probes([PROBED])
    result = built(found, "mine")
    (device,) = result.machine.kinds
    assert len(result.machine.processors) == 2 and device.kind == "cpu"
    row = next(row for row in found.work if row["name"] == "gelu" and row["backward"])
    timed = device.timed_of("gelu", "activation", True, "float32")
    assert timed is not None and timed.seconds(row["flops"], row["bytes"]) == row["seconds"]
    library = result.machine.collectives
    assert library is not None and library.blocks and device.program is not None and device.program.sum_seconds > 0
    assert {"operators: product", "messages: all_reduce", "messages within a node"} <= result.errors.keys()
    save(result.machine, tmp_path / "mine.json")
    assert load_machine(str(tmp_path / "mine.json")) == result.machine


def test_a_machine_of_gpus_keeps_what_was_not_measured_and_says_so() -> None:
    found = read_probes([PROBED])
    gpu = replace(found, about={**found.about, "kind": "cuda", "nodes": [2]})
    with pytest.raises(ValueError, match="give --like h100"):
        built(gpu, "mine")
    like = load_machine("h100", 8)
    result = built(gpu, "mine", like)
    assert result.machine.kinds[0].rate("bfloat16") == like.kinds[0].rate("bfloat16") and result.machine.nodes == like.nodes
    assert len(result.kept) == 3 and "of h100" in result.kept[0]


def test_of_several_probes_the_median_counts(tmp_path: Path) -> None:
    content = json.loads(Path(PROBED).read_text())
    paths = []
    for i, factor in enumerate((1.0, 5.0, 1.2)):
        slower = {**content, "work": [{**row, "seconds": row["seconds"] * factor} for row in content["work"]]}
        paths.append(str(tmp_path / f"{i}.json"))
        Path(paths[-1]).write_text(json.dumps(slower))
    found = read_probes(paths)
    assert found.files == 3 and found.work[0]["seconds"] == pytest.approx(1.2 * content["work"][0]["seconds"])
    content["about"]["ranks"] = 4
    Path(paths[1]).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"another machine than .*: ranks is 4, not 2"):
        read_probes(paths)


@pytest.mark.parametrize(("kind", "load", "cores", "said"), [
    ("cpu", [3.5, 1.0, 1.0], 2, True), ("cpu", [1.9, 9.0, 9.0], 2, False), ("cpu", [3.5, 1.0, 1.0], None, False),
    ("cpu", [], 2, False), ("cuda", [3.5, 1.0, 1.0], 2, False),
])
def test_cores_that_were_busy_before_are_said(kind: str, load: list[float], cores: int | None, said: bool, tmp_path: Path) -> None:
    content = json.loads(Path(PROBED).read_text())
    content["about"] |= {"kind": kind, "load": load, "cores": cores}
    path = tmp_path / "busy.json"
    path.write_text(json.dumps(content))
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        read_probes([str(path)])
    wanted = "3.5 programs wanted 2 cores before the probe, which measured them, too; measure again when nothing else runs"
    assert [str(note.message) for note in notes] == ([f"{path}: {wanted}"] if said else [])


@pytest.mark.parametrize("change,message", [
    ({"format": "x"}, "not a probe's file"), ({"version": 2}, "version 2"), ({"work": None}, "work"),
    ({"updates": [{"name": "adam", "seconds": -1}]}, r"updates\[0\]"),
])
def test_what_is_no_probe_is_refused(change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({**json.loads(Path(PROBED).read_text()), **change}))
    with pytest.raises(ValueError, match=message):
        read_probes([str(path)])


# ---- prediction ------------------------------------------------------------------------------------------------------
def test_commands_take_the_machine(tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    done = CliRunner().invoke(main, ["machine", "build", PROBED, "--out", str(out)])
    assert done.exit_code == 0 and "operators: product" in done.output
    asked = ["simulate", "mlp", "--size", "small", "-m", str(out), "--strategy", "data", "--json"]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 0 and json.loads(done.stdout)["costs"] == "analytic mine (probed)", done.output


def test_a_call_of_torch_takes_its_time_once_and_units_take_theirs() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(
        torch.nn.Linear(96, 384), torch.nn.RMSNorm(384, elementwise_affine=False), torch.nn.GELU(), torch.nn.Linear(384, 16)
    )
    graph = taskflow.from_torch(module, (1152, 96), name="small", verify=False)
    result = built(read_probes([PROBED]), "mine")
    machine, device = result.machine.prefix(1), result.machine.kinds[0]
    evaluator = make_evaluator(graph, machine)
    strategy = taskflow.choose("data", graph, machine)[0]
    evaluator.set(strategy)
    tasks, _ = evaluator.current()
    cost = evaluator.costs.pace(tasks, strategy)
    norm = [cost(task) for task in tasks.tasks if task.kind is Kind.FORWARD and task.name.startswith("1.")]
    assert len(norm) > 3 and sum(one > 0 for one in norm) == 1
    timed = device.timed_of("rms_norm", "norm", False, "float32")
    assert timed is not None and sum(norm) == pytest.approx(timed.seconds(0.0, 4.0 * (2 * 1152 * 384 + 384)))
    first = next(task for task in tasks.tasks if task.name.startswith("0[") and task.kind is Kind.FORWARD)
    row = next(r for r in read_probes([PROBED]).work if r["sizes"] == [1152, 96, 384] and not r["backward"])
    assert cost(first) == row["seconds"], "a measured operator takes what it took"
    both = result.machine
    spread = make_evaluator(graph, both)
    data = taskflow.choose("data", graph, both)[0]
    spread.set(data)
    lowered, _ = spread.current()
    paced = spread.costs.pace(lowered, data)
    sums = [task for task in lowered.tasks if task.kind is Kind.COLLECTIVE]
    assert device.program is not None and sums
    assert all(paced(task) == pytest.approx(spread.costs.task(task) + device.program.of_unit(
        "sum", task.nbytes / 2)) for task in sums)  # fmt: skip


@pytest.mark.parametrize("plan", ["data", "d2 zero1", "d2 zero3"])
def test_an_update_takes_its_time_for_each_parameter_as_its_program_has_them(plan: str) -> None:
    """One array of weights and biases, of a unit's layers, too, is updated in as many calls as it has parameters."""
    torch = pytest.importorskip("torch")

    def times(bias: bool) -> tuple[float, float, int]:
        layers = (torch.nn.Linear(64, 64, bias=bias), torch.nn.GELU(), torch.nn.Linear(64, 64, bias=bias))
        module = torch.nn.Sequential(torch.nn.Sequential(*layers), torch.nn.Sequential(*copy.deepcopy(layers)))
        graph = taskflow.from_torch(module, (128, 64), name="small", verify=False)
        evaluator = make_evaluator(graph, machine, rule=taskflow.SGD(lr=0.1, momentum=0.9))
        strategy = taskflow.choose(plan, graph, machine)[0]
        evaluator.set(strategy)
        tasks, _ = evaluator.current()
        cost = evaluator.costs.pace(tasks, strategy)
        updates = [task for task in tasks.tasks if task.kind is Kind.UPDATE and task.processor == 0]
        return sum(map(cost, updates)), sum(evaluator.costs.task(task) for task in updates), len(tasks.bundles)

    machine = built(read_probes([PROBED]), "mine").machine
    timed = machine.kinds[0].timed_of("momentum", "update", False, "float32")
    assert timed is not None
    one = timed.seconds(0.0, 0.0)
    assert one > 0
    for parameters, (took, once, arrays) in ((4, times(bias=False)), (8, times(bias=True))):
        assert arrays == (4 if plan == "data" else 2 if plan == "d2 zero3" else 1)
        assert took - once == pytest.approx((parameters - arrays) * one)


def alone(found: Measurements, what: str, nbytes: int) -> float:
    """Seconds of a message of two ranks; of gathers and sums by shares, which machines have as one, the mean."""
    rows = {row["what"]: row["seconds"] for row in found.messages if row["bytes"] == nbytes and row["where"] == "within"}
    return (rows["all_gather"] + rows["reduce_scatter"]) / 2 if what == "halves" else float(rows[what])


def part(what: str, phase: str, nbytes: int, seconds: float, layers: int = 1) -> dict[str, Any]:
    """A row of a probe that takes so long beside what it takes alone."""
    return {"what": what, "phase": phase, "bytes": nbytes, "layers": layers, "plain_seconds": 1e-4, "seconds": 1e-4 + seconds,
            "host_seconds": 0.0, "plain_host_seconds": 0.0}  # fmt: skip


def program_of(found: Measurements, *parts: dict[str, Any]) -> TrainingProgram:
    """The program that is built of some parts."""
    program = built(replace(found, parts=parts), "mine").machine.kinds[0].program
    assert program is not None
    return program


def test_units_are_what_is_left_without_their_messages_even_where_some_rests_are_negative() -> None:
    found, rows = read_probes([PROBED]), []
    for nbytes, noise in ((1 << 14, -3e-4), (1 << 17, 0.0), (1 << 20, 3e-4)):
        summed, half = alone(found, "all_reduce", nbytes), alone(found, "halves", nbytes)
        rows += [
            part("replicate", "forward", nbytes, 8 * 4e-4, 8),
            part("replicate", "backward", nbytes, 8 * (6e-4 + nbytes / 1e9 + summed), 8),
            part("gathered", "forward", nbytes, 8 * (1e-3 + half), 8),
            part("gathered", "backward", nbytes, 8 * (1e-3 + half), 8),
            part("gathered_twice", "backward", nbytes, 8 * (1e-3 + half + half + noise), 8),
        ]
    program = program_of(found, *rows)
    assert program.sum_seconds == pytest.approx(1e-3) and program.sum_bytes_per_second == pytest.approx(1e9)
    assert 0 <= program.gather_seconds < 2e-4, "a gather once more takes its message, and now and then less"
    for nbytes in (1 << 14, 1 << 17, 1 << 20):
        both = program.of_unit("gather", nbytes) + program.of_unit("scatter", nbytes)
        assert both == pytest.approx(2e-3, abs=5e-4)


def test_layers_and_functions_that_are_cut_have_figures_of_their_own() -> None:
    rows = [part("cut_layers", phase, 0, 9 * each, 9) for phase, each in (("forward", 3e-4), ("backward", 5e-4))]
    rows += [part("cut_block", phase, 0, 9 * each + 8 * 1e-4, 9) for phase, each in (("forward", 3e-4), ("backward", 5e-4))]
    program = program_of(read_probes([PROBED]), *rows)
    assert program.cut_layer_seconds == pytest.approx(3e-4) and program.cut_layer_backward_seconds == pytest.approx(5e-4)
    assert program.cut_seconds == pytest.approx(1e-4) and program.cut_backward_seconds == pytest.approx(1e-4)


def test_a_pass_of_a_stage_takes_half_of_what_a_micro_batch_takes_more() -> None:
    assert program_of(read_probes([PROBED]), part("stages", "forward", 0, 8 * 2e-3, 8)).message_seconds == pytest.approx(1e-3)


def test_bringing_activations_into_another_layout_takes_more_than_the_message() -> None:
    torch = pytest.importorskip("torch")
    found = read_probes([PROBED])
    found = replace(found, parts=tuple(row for row in found.parts if not row["what"].startswith(("change", "cut"))))
    ways = ("gathered", "forward", "halves"), ("gathered", "backward", "halves"), ("summed", "forward", "all_reduce")
    rows = [part(f"change_{what}", phase, 1 << 17, 2e-3 + alone(found, message, 1 << 17)) for what, phase, message in ways]
    plain, more = built(found, "mine"), built(replace(found, parts=(*found.parts, *rows)), "mine")
    program = more.machine.kinds[0].program
    assert program is not None and program.of_change(1 << 17) == pytest.approx(2e-3)
    graph = taskflow.from_torch(torch.nn.Sequential(torch.nn.Linear(96, 384), torch.nn.Linear(384, 96)), (64, 96), verify=False)
    for plan in ("t2", "data"):
        strategy = taskflow.choose(plan, graph, more.machine)[0]
        costs = [make_evaluator(graph, one.machine).costs for one in (plain, more)]
        lowered, _ = make_evaluator(graph, more.machine).evaluated(strategy)
        fast, slow = (one.pace(lowered, strategy) for one in costs)
        changes = [task for task in lowered.tasks if task.kind is Kind.COLLECTIVE and not of_weights(task)]
        assert bool(changes) is (plan == "t2")
        for task in lowered.tasks:
            nbytes = task.nbytes / (getattr(task.work, "halves", 1) or 1)
            assert slow(task) == pytest.approx(fast(task) + (program.of_change(nbytes) if task in changes else 0.0))


def test_a_call_with_several_products_takes_the_time_of_each() -> None:
    torch = pytest.importorskip("torch")
    graph = taskflow.from_torch(Attends(torch), (8, 32, 96), name="small", verify=False)
    machine = built(read_probes([PROBED]), "mine").machine.prefix(1)
    strategy = taskflow.choose("data", graph, machine)[0]
    evaluator = make_evaluator(graph, machine)
    tasks, _ = evaluator.evaluated(strategy)
    cost, device = evaluator.costs.pace(tasks, strategy), machine.kinds[0]
    timed = device.timed_of("linear", "product", False, "float32")
    products = [node for node in graph if node.operator.kind == "linear"]
    assert timed is not None and len(products) == 4
    assert all(graph.calls[node.name].what == "MultiheadAttention" for node in products)
    for node in products:
        task = next(one for one in tasks.tasks if one.kind is Kind.FORWARD and one.work.node is node)
        size = size_of("linear", node.operator, node.specs, next(iter(strategy[node.name].pieces(node)))[0])
        assert cost(task) == pytest.approx(timed.seconds(*size))


def test_layers_of_experts_are_timed_as_one_call() -> None:
    """The probe's case has the operations and bytes by which such a layer's task finds it."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from taskflow.models.huggingface import from_config
    from taskflow.optimizer.cost import parts_of
    from taskflow.probe import operators_of
    from taskflow.probe.cases import cases_of

    config = {"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
              "num_key_value_heads": 2, "num_local_experts": 4, "vocab_size": 128}  # fmt: skip
    graph = from_config(config, 2, 16, dtype="float32")
    strategy = taskflow.choose("data", graph, built(read_probes([PROBED]), "mine").machine.prefix(1))[0]
    (leader,) = (name for name, part in parts_of(graph).items() if part.name == "experts" and part.leads)
    node = graph.node(leader)
    size = size_of("experts", node.operator, node.specs, next(iter(strategy[leader].pieces(node)))[0])
    (named,) = (one for one in operators_of(graph, strategy) if one[0] == "experts")
    assert named == ("experts", (32, 4, 2, 64, 96))
    (case,) = cases_of([named])
    assert size == pytest.approx((case.flops, case.nbytes(4)), rel=0.01)


def Attends(torch: Any) -> Any:
    """A module of one attention."""
    class One(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.heads = torch.nn.MultiheadAttention(96, 4, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.heads(x, x, x, need_weights=False)[0]

    return One()


# ---- nccl-tests ------------------------------------------------------------------------------------------------------
OUTPUT = """# nccl-tests version 2.17.6 nccl-headers=22803 nccl-library=22803
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 1024 maxBytes 1048576 step: 32(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   4242 on   box-one device  0 [0000:18:00] Some GPU 80GB
#  Rank  1 Group  0 Pid   4242 on   box-one device  1 [0000:2a:00] Some GPU 80GB
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    12.50    0.08    0.08       0    12.40    0.08    0.08       0
       32768          8192     float     sum      -1    14.00    2.34    2.34       0    14.10    2.32    2.32       0
     1048576        262144     float     sum      -1    30.25   34.66   34.66       0    30.20   34.72   34.72       0
# Out of bounds values : 0 OK
"""


def test_nccl_tests_are_read_and_what_they_lack_is_said(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text(OUTPUT)
    found = measurements_of([str(path)])
    assert found.of_message("all_reduce", 2, "within") == [(1024.0, 12.5e-6), (32768.0, 14e-6), (1048576.0, 30.25e-6)]
    result = built(found, "network", load_machine("h100", 8))
    assert result.errors["messages: all_reduce"] < 0.1 and result.machine.kinds[0].timed == ()
    done = CliRunner().invoke(main, ["machine", "build", str(path), "--like", "h100", "--out", str(tmp_path / "n.json")])
    assert done.exit_code == 0 and "not measured: products, attention" in done.output, done.output
    rows = [line for line in OUTPUT.splitlines() if not line.lstrip().startswith("#")]
    path.write_text("\n".join(rows))
    done = CliRunner().invoke(main, ["machine", "build", str(path), "--like", "h100", "--out", str(tmp_path / "n.json")])
    assert done.exit_code == 2 and "give the whole output of nccl-tests" in done.output, done.output
    path.write_text(OUTPUT.replace("Rank", "rank"))
    with pytest.raises(ValueError, match="says no ranks"):
        measurements_of([str(path)])


RATES = {"all_reduce": 360e9, "all_gather": 330e9, "reduce_scatter": 330e9, "all_to_all": 300e9}


def messages_of_a_node(kinds: dict[str, float]) -> Measurements:
    """Collectives of eight GPUs: 15 us, and what a rank sends over its links at a rate."""
    rows = [
        {"what": what, "where": "within", "ranks": list(range(8)), "bytes": nbytes, "spread": 0.0,
         "seconds": 15e-6 + nbytes * (2 if what == "all_reduce" else 1) * 7 / 8 / rate}
        for what, rate in kinds.items() for nbytes in (1 << 8, 1 << 16, 1 << 22, 1 << 28)
    ]  # fmt: skip
    about = {"kind": "cuda", "name": "H100", "torch": "2.14", "backend": "nccl", "when": "", "ranks": 8, "nodes": [8], "threads": 1}
    return Measurements({**about, "memory_bytes": 80 << 30}, messages=tuple(rows))


@pytest.mark.parametrize("kinds", [
    RATES, {**RATES, "all_reduce": 480e9}, {"all_reduce": 200e9}, {"all_gather": 300e9}, {"all_to_all": 310e9},
])
def test_messages_of_gpus_take_what_was_measured_and_others_what_they_took(kinds: dict[str, float]) -> None:
    """Also those that are faster than rings over the links, as sums in the switch are."""
    like, found = load_machine("h100", 8), messages_of_a_node(kinds)
    machine = built(found, "mine", like).machine
    for what, halves in (("all_reduce", 2), ("all_gather", 1), ("all_to_all", 0)):
        for nbytes, seconds in found.of_message(what, 8, "within") or ((1 << 22, 0.0), (1 << 28, 0.0)):
            mine, theirs = (
                exchange(one, range(8)).seconds(7 * int(nbytes)) if halves == 0
                else collective(one, range(8)).seconds(halves * 7 * int(nbytes), halves) for one in (machine, like)
            )
            assert mine == pytest.approx(seconds or theirs, rel=0.02), (what, nbytes)


def test_messages_between_nodes_alone_leave_those_within() -> None:
    """As of nccl-tests on 16 GPUs, which were a traceback."""
    found = messages_of_a_node({"all_reduce": 40e9})
    rows = tuple({**row, "where": "across", "ranks": list(range(16))} for row in found.messages)
    result = built(replace(found, messages=rows), "mine", load_machine("h100", 16))
    assert result.machine.collectives == load_machine("h100", 16).collectives
    assert any("all-reduce, halves, all-to-all" in line for line in result.kept)


def test_times_of_nccl_tests_without_a_decimal_point_are_times(tmp_path: Path) -> None:
    """From 10 ms on; and older versions name no group of ranks."""
    long = "  8589934592    2147483648     float     sum      -1    20123  426.87  426.87       0    20118  426.98  426.98       0"
    lines = [line.replace("Group  0 ", "") for line in OUTPUT.splitlines()]
    path = tmp_path / "all_reduce_perf.txt"
    path.write_text("\n".join([*lines[:-1], long, lines[-1]]))
    assert measurements_of([str(path)]).of_message("all_reduce", 2, "within")[-1] == (8589934592.0, 20123e-6)
    path.write_text("\n".join(line for line in lines if "redop" not in line))
    with pytest.raises(ValueError, match="no line that names the columns"):
        measurements_of([str(path)])


# ---- a plan's own operators ------------------------------------------------------------------------------------------
def test_recurrent_layers_depthwise_convolutions_and_functions_together_have_names_of_their_own() -> None:
    """An operator that stands for several functions takes what these take, not what the last of them takes."""
    torch = pytest.importorskip("torch")
    from taskflow.optimizer.cost import name_of, parts_of, untimed
    from taskflow.probe import operators_of
    from taskflow.probe.cases import cases_of

    class Norm(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(64))

        def forward(self, x: Any) -> Any:
            return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    class Several(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.depthwise, self.lstm = torch.nn.Conv2d(8, 8, 3, padding=1, groups=8), torch.nn.LSTM(64, 32, 2, batch_first=True)
            self.gate, self.up, self.norm = torch.nn.Linear(32, 64), torch.nn.Linear(32, 64), Norm()

        def forward(self, x: Any) -> Any:
            x = self.lstm(self.depthwise(x).flatten(2))[0]
            x = torch.nn.functional.silu(self.gate(x)) * self.up(x)
            return self.norm(x)

    graph = taskflow.from_torch(Several(), (4, 8, 8, 8), name="several", verify=False)
    machine = taskflow.load_machine("p100", 2)
    strategy = taskflow.choose("data", graph, machine)[0]
    named, parts = operators_of(graph, strategy), parts_of(graph)
    expected = [("depthwise", (2, 8, 8, 8, 3)), ("lstm", (2, 8, 64, 32)), ("swiglu", (1024,)), ("rms_norm_parts", (16, 64))]
    assert set(expected) <= set(named)
    timed = {(case.name, round(case.flops)): float(case.nbytes(4)) for case in cases_of(named)}
    for node in graph:
        name = parts[node.name].name if node.name in parts else name_of(node.operator)
        if node.operator.kind in ("conv2d", "lstm", "swiglu", "rms_norm"):
            flops, nbytes = size_of(name, node.operator, node.specs, next(iter(strategy[node.name].pieces(node)))[0])
            assert timed[name, round(flops)] == pytest.approx(nbytes, rel=0.05), name  # a first state is not counted
    device = built(read_probes([PROBED]), "mine").machine.processors[0].device  # of a probe that did not know them
    assert untimed(graph, device) == ["depthwise", "lstm", "swiglu", "rms_norm_parts"]
    assert not untimed(graph, machine.processors[0].device), "nothing was timed, so nothing is missed"


def test_a_plans_operators_are_those_that_the_step_asks_for() -> None:
    """What the probe times for a plan has the sizes by which the plan's tasks find it: they take what was measured."""
    torch = pytest.importorskip("torch")
    from taskflow.optimizer.cost import parts_of
    from taskflow.probe import message_sizes, operators_of, probe_text
    from taskflow.probe.cases import cases_of

    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1, stride=2), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(128, 64), torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.Linear(64, 10),
    )  # fmt: skip
    graph = taskflow.from_torch(module, (8, 3, 16, 16), name="small", verify=False)
    machine = built(read_probes([PROBED]), "mine").machine
    strategy = taskflow.choose("data", graph, machine)[0]
    named = operators_of(graph, strategy)
    assert len(named) == len(set(named)) and ("linear", (4, 128, 64)) in named and ("conv2d", (4, 3, 8, 16, 16, 3, 2)) in named
    timed = {(case.flops, float(case.nbytes(4))) for case in cases_of(named)}
    for name, call in parts_of(graph).items():
        node = graph.node(name)
        if call.leads and call.name != "view":
            size = size_of(call.name, node.operator, node.specs, next(iter(strategy[name].pieces(node)))[0])
            assert any(pytest.approx(size, rel=5e-3) == one for one in timed), (name, size)
    sizes = message_sizes(graph, strategy, taskflow.SGD(lr=0.1))
    assert 4 * (64 * 10 + 10) in sizes
    text = probe_text("probe.py", named, sizes)
    assert f"OF_A_PLAN_BYTES: list[int] = {sizes}" in text and "('linear', (4, 128, 64))" in text
    compile(text, "probe.py", "exec")
