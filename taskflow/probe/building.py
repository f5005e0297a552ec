"""Building a machine of measurements: rates, curves and a program are fitted, operators keep their measured times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, log
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from taskflow.machine import (
    NETWORK,
    Channels,
    Cluster,
    Collectives,
    Curve,
    Device,
    Group,
    NodeTemplate,
    SwitchSums,
    Timed,
    TimedPoint,
    Wire,
    collective,
    fitted,
    left_out_errors,
)
from taskflow.probe.measurements import Measurements, framework_of
from taskflow.programs import PROBED, UNIT_MESSAGES, TrainingProgram, UnitMessage

ARRAYS = {"sgd": 3, "momentum": 5, "adam": 7, "adam_fused": 7}  # that an update reads or writes, of four bytes a weight
COLLECTIVES = ("all_reduce", "halves", "all_to_all")
HALVES = ("all_gather", "reduce_scatter")  # which have one curve: the mean
FUNCTIONS = 8
"""Of a block whose layers are cut (`script.cut.CutBlock`), as a plan counts: those that only turn or copy go with their readers."""
UNITS = ("replicate", "gathered", "gathered_twice")


class Rest(NamedTuple):
    """``seconds`` that are left of a ``whole`` without its message, for an array of ``nbytes``; measured, so it may be below 0."""

    nbytes: float
    seconds: float
    whole: float


LEAST_ERRORS = 3
OF_CHANGES = {
    ("change_gathered", "forward"): "halves", ("change_gathered", "backward"): "halves",
    ("change_scattered", "forward"): "halves", ("change_scattered", "backward"): "halves",
    ("change_summed", "forward"): "all_reduce",
}  # fmt: skip
"""The message of each change of a layout; a sum's gradient needs none."""


@dataclass(slots=True)
class Built:
    """A machine of measurements. ``errors``: of each fit, its mean relative error; of operators, as the other sizes tell each one.
    ``kept``: what was not measured, and where it is from."""

    machine: Cluster
    errors: dict[str, float] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)


def built(found: Measurements, name: str, like: Cluster | None = None) -> Built:
    """Return the machine that was measured, called ``name``. What the probe did not see is as in ``like``, and said. Raises
    ValueError if a machine of GPUs is to be built without one like it."""
    if found.gpu and like is None:
        raise ValueError("a machine of GPUs needs what a probe cannot see, such as peaks of the data sheet; give --like h100")
    result = Built(like if like is not None else _cores(found, name))
    device = _device(found, result)
    machine = replace(result.machine, name=name, kinds=(device,), source=_source(found, like))
    result.machine = machine if not found.messages else _connected(found, machine, device, result)
    if not found.messages and like is not None:
        result.kept.append(f"links and collectives: of {like.name}, since one rank has no messages")
    return result


def _source(found: Measurements, like: Cluster | None) -> str:
    about = found.about
    version = about.get("jax") or about["torch"]
    versions = f"{framework_of(about)} {version}, {about['backend']}" + (f", CUDA {about['cuda']}" if about.get("cuda") else "")
    files = f", median of {found.files} probes" if found.files > 1 else ""
    unseen = f"; what it did not measure is of {like.name}" if like is not None else ""
    return f"taskflow probe on {about['name']}, {about['ranks']} ranks, {versions}, {about['when']}{files}{unseen}"


# ---- devices ---------------------------------------------------------------------------------------------------------
def _cores(found: Measurements, name: str) -> Cluster:
    """Cores of a CPU, one a rank, with links whose rates are to be replaced."""
    device = Device("cpu", int(found.about["memory_bytes"]), (("float32", 1.0),), 1.0, 0.0)
    counts = list(dict.fromkeys(found.about["nodes"]))
    some = (1e9, 1e-6, 0.0) if found.messages else None
    between = some if len(found.about["nodes"]) > 1 else None
    plain = [NodeTemplate(f"{count}-ranks", (Group("cpu", "cpu", count),), (), ()) for count in counts]
    nodes = tuple(_joined(node, "cpu", some, between, 1e9) for node in plain)
    return Cluster(name, (device,), nodes, tuple((f"{count}-ranks", 1) for count in found.about["nodes"]))


def _device(found: Measurements, result: Built) -> Device:
    like = result.machine.processors[0].device
    if not found.work:
        return like
    timed, rows = _timed(found, result), found.work
    best = {dtype: max(row["flops"] / row["seconds"] for row in rows if row["dtype"] == dtype and row["group"] == "product")
            for dtype in {row["dtype"] for row in rows if row["group"] == "product"}}  # fmt: skip
    passes = [row["bytes"] / row["seconds"] for row in rows if row["name"] in ("add", "mul") and not row["backward"]]
    changed: dict[str, Any] = {"timed": timed, "source": f"{like.source}; operators as measured" if like.source else "measured"}
    if found.gpu:
        changed["memory_bytes"] = int(found.about["memory_bytes"])
        result.kept.append(f"peaks, cache and kernels that were not timed: of {like.kind}")
    else:
        rates = tuple(sorted({"float32": 1.0, **best}.items()))
        changed |= {
            "flops_per_second": rates, "memory_bytes_per_second": max(passes, default=1e9), "launch_seconds": found.start_seconds,
            "efficiency": tuple((kernels, 1.0) for kernels in ("contraction", "convolution", "memory", "recurrent")),
        }
    device = replace(like, **changed)
    return replace(device, program=_program(found, device.program, result))


def _timed(found: Measurements, result: Built) -> tuple[Timed, ...]:
    """Operators by name, direction and type."""
    table: dict[tuple[str, str, bool, str], list[TimedPoint]] = {}
    for row in found.work:
        name = "linear" if row["name"] == "matmul" else row["name"]
        key = name, row["group"], row["backward"], row["dtype"]
        table.setdefault(key, []).append(TimedPoint(row["flops"], row["bytes"], row["seconds"], row.get("host_seconds", 0.0)))
    pieces = found.about["ranks"] > 1  # as exported modules have them
    for row in found.updates:
        if row["pieces"] is pieces:
            nbytes = 4.0 * ARRAYS[row["name"]] * row["elements"]
            point = TimedPoint(0.0, nbytes, row["seconds"], row.get("host_seconds", 0.0))
            table.setdefault((row["name"], "update", False, "float32"), []).append(point)
    timed_rows = tuple(Timed(*key, tuple(_merged(points))) for key, points in table.items())
    by_group: dict[str, list[float]] = {}
    for one in timed_rows:
        if len(one.points) >= LEAST_ERRORS:
            by_group.setdefault(one.group, []).extend(abs(error) for error in left_out_errors(one.points))
    result.errors |= {f"operators: {group}": fmean(errors) for group, errors in by_group.items()}
    return timed_rows


def _merged(points: Sequence[TimedPoint]) -> list[TimedPoint]:
    """Of equal sizes one, with the median of their times."""
    by_size: dict[tuple[float, float], list[TimedPoint]] = {}
    for point in points:
        by_size.setdefault((point.flops, point.nbytes), []).append(point)
    middle = {size: (median(p.seconds for p in same), median(p.host_seconds for p in same)) for size, same in by_size.items()}
    return [TimedPoint(*size, *took) for size, took in middle.items()]


# ---- the program -----------------------------------------------------------------------------------------------------
def _program(found: Measurements, like: TrainingProgram | None, result: Built) -> TrainingProgram:
    """PyTorch's eager mode as it was measured: what its thread needs for kernels, units and operators on pieces."""
    base = like or TrainingProgram(0.0)
    figures: dict[str, Any] = {"name": PROBED, "host_seconds": found.start_seconds if found.gpu else 0.0, "gpus": ()}
    key = "host_seconds" if found.gpu else "seconds"
    figures |= _cut(found, key) | _units(found, key) | _changes(found, key)
    if rows := found.of_part("stages", "forward"):  # a micro-batch has two passes in a stage, each with a message
        figures["message_seconds"] = max(0.0, fmean((row["seconds"] - row["plain_seconds"]) / row["layers"] for row in rows) / 2)
    if found.gpu and found.beside:
        both, product, alone = (found.beside[f"{name}_seconds"] for name in ("both", "product", "sum"))
        figures["exposed"] = min(1.0, max(0.0, (both - product) / alone))
    if like is not None:
        result.kept.append(f"passes, kept bytes and reserved bytes: of the program {like.name or 'of the machine'}")
    return replace(base, about="", source="taskflow probe", **figures)


def _cut(found: Measurements, key: str) -> dict[str, float]:
    """What Python takes for a layer and for a function of a network whose layers are cut."""
    figures = {}
    for phase, way in (("forward", ""), ("backward", "_backward")):
        layers, block = (
            fmean(row[key] - row[f"plain_{key}"] for row in rows) if (rows := found.of_part(what, phase)) else 0.0
            for what in ("cut_layers", "cut_block")
        )
        count = max((row["layers"] for row in found.of_part("cut_layers", phase)), default=1)
        figures[f"cut_layer{way}_seconds"] = max(0.0, layers / count)
        figures[f"cut{way}_seconds"] = max(0.0, (block - layers) / FUNCTIONS)
    return figures


def _units(found: Measurements, key: str) -> dict[str, float]:
    """What units take beside their messages. A gather is what gathering once more takes; what a unit takes in any case, such as its
    hooks, goes with the sum of its gradients, of which there is one."""
    lines: dict[UnitMessage, list[Rest]] = {what: [] for what in UNIT_MESSAGES}
    for nbytes in sorted({row["bytes"] for row in found.parts if row["what"] == "replicate"}):
        ahead, back = ({how: _each_unit(found, how, phase, nbytes, key) for how in UNITS} for phase in ("forward", "backward"))
        again = back["gathered_twice"] - back["gathered"]
        lines["sum"].append(_rest(found, ahead["replicate"] + back["replicate"], "all_reduce", nbytes))
        lines["gather"].append(_rest(found, again, "halves", nbytes))
        lines["scatter"].append(_rest(found, ahead["gathered"] + back["gathered"] - again, "halves", nbytes))
    figures: dict[str, float] = {}
    for what, rests in lines.items():
        figures |= _rate(rests, f"{what}_seconds", f"{what}_bytes_per_second")
    return figures


def _changes(found: Measurements, key: str) -> dict[str, float]:
    """What bringing a DTensor into another layout takes beside its message."""
    rests = [
        _rest(found, row[key] - row[f"plain_{key}"], message, row["bytes"])
        for (what, phase), message in OF_CHANGES.items() for row in found.of_part(what, phase)
    ]
    return _rate(rests, "change_seconds", "change_bytes_per_second")


def _rest(found: Measurements, seconds: float, what: str, nbytes: float) -> Rest:
    """What is left of ``seconds`` without a message among all ranks; of a GPU's host all of it."""
    alone = 0.0 if found.gpu else _alone(found, what, int(found.about["ranks"]), nbytes)
    return Rest(nbytes, seconds - alone, max(seconds, alone, 1e-7))


def _rate(rests: Sequence[Rest], start: str, rate: str) -> dict[str, float]:
    """Seconds in any case and bytes a second, neither negative, with the least squares of errors as parts of the whole."""
    if not rests:
        return {}
    best, least = (0.0, 0.0), inf
    rows = np.array([(1.0, rest.nbytes) for rest in rests]) / np.array([[rest.whole] for rest in rests])
    wanted = np.array([rest.seconds / rest.whole for rest in rests])
    for used in ([], [0], [1], [0, 1]):
        line = np.zeros(2)
        line[used] = np.linalg.lstsq(rows[:, used], wanted, rcond=None)[0]
        error = float(((rows @ line - wanted) ** 2).sum())
        if (line >= 0).all() and error < least - 1e-12:
            best, least = (float(line[0]), float(line[1])), error
    return {start: best[0], rate: 1 / best[1] if best[1] > 0 else inf}


def _each_unit(found: Measurements, what: str, phase: str, nbytes: float, key: str) -> float:
    """What a layer takes, beyond what it takes alone."""
    rows = [row for row in found.of_part(what, phase) if row["bytes"] == nbytes]
    return fmean((row[key] - row[f"plain_{key}"]) / row["layers"] for row in rows) if rows else 0.0


def _alone(found: Measurements, what: str, count: int, nbytes: float) -> float:
    where = "within" if len(found.about["nodes"]) == 1 else "across"
    points = _points(found, what, count, where)
    sizes, seconds = [nbytes for nbytes, _ in points], [each for _, each in points]
    return float(np.interp(nbytes, sizes, seconds)) if points else 0.0


def _points(found: Measurements, what: str, count: int, where: str) -> list[tuple[float, float]]:
    """Bytes and seconds of an operation as machines have it."""
    if what != "halves":
        return found.of_message(what, count, where)
    first, second = (dict(found.of_message(half, count, where)) for half in HALVES)
    return [(nbytes, (first.get(nbytes, seconds) + seconds) / 2) for nbytes, seconds in (second or first).items()]


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Start and seconds a byte, neither negative, with the least squares of relative errors."""
    start, _, each = fitted(tuple(TimedPoint(0.0, nbytes, seconds) for nbytes, seconds in points))
    return start, each


# ---- messages --------------------------------------------------------------------------------------------------------
def _connected(found: Measurements, machine: Cluster, device: Device, result: Built) -> Cluster:
    """The machine with links and collectives as measured."""
    within, between = _link(found, "within"), _link(found, "between") or _link(found, "across")
    links = (("within a node", within), ("between nodes", between))
    result.errors |= {f"messages {where}": link[2] for where, link in links if link}
    count = max((len(row["ranks"]) for row in found.messages if row["where"] == "within"), default=0)
    asked = [what for what in COLLECTIVES if not found.gpu or _points(found, what, count, "within")] if count else []
    curves = {what: _curve(found, what, count, result) for what in asked}
    if found.gpu:
        return replace(machine, collectives=_on_links(machine, curves, count, between, result))
    rates = [rate for rate, _ in curves.values()] + [link[0] for link in (within, between) if link]
    fastest = max(rates)
    library = replace(
        machine.collectives or Collectives(0.0, 0.0, between[1] if between else 0.0, 1.0, 1.0, inf), start_seconds=0.0, blocks=True,
        switch=None, copy_bytes_per_second=1e99, source="taskflow probe", **_shared(curves, fastest),
    )  # fmt: skip
    if between:
        library = replace(library, network_step_seconds=between[1])
    nodes = tuple(_joined(node, device.kind, within, between, fastest) for node in machine.nodes)
    return replace(machine, nodes=nodes, collectives=library)


def _shared(curves: Mapping[str, tuple[float, Curve]], links: float) -> dict[str, Any]:
    """Curves with the part that they have of what a processor's links carry in a second."""
    return {key: replace(curve, link_share=max(1e-6, min(1.0, rate / links))) for key, (rate, curve) in curves.items()}


def _on_links(
    machine: Cluster, curves: Mapping[str, tuple[float, Curve]], count: int, between: Fit | None, result: Built
) -> Collectives:
    """The library of GPUs, whose links stay as they are: what was measured within a node has its part of these. An all-reduce that
    is faster than rings over them is one that the switch adds up."""
    base = machine.collectives or Collectives(0.0, 0.0, between[1] if between else 0.0, 1.0, 1.0, inf)
    result.kept.append("shape of the network, rates between nodes, and links of single messages: of the machine that it is like")
    if lacks := [what.replace("_", "-") for what in COLLECTIVES if what not in curves]:
        result.kept.append(f"collectives within a node that were not measured ({', '.join(lacks)}): of the machine that it is like")
    if between:
        base = replace(base, network_step_seconds=between[1])
    if not curves:
        return base
    others: dict[str, Any] = {
        what: replace(curve, start_seconds=curve.start_seconds + base.start_seconds)
        for halves, what in enumerate(reversed(COLLECTIVES)) if what not in curves and (curve := base.curve(halves)) is not None
    }
    around = collective(replace(machine, collectives=base), range(min(count, machine.nodes[0].count)))
    links = around.bytes_per_second if isinstance(around, Channels) else max(rate for rate, _ in curves.values())
    switch = base.switch and replace(base.switch, start_seconds=base.switch.start_seconds + base.start_seconds)
    if (measured := curves.get("all_reduce")) is not None:
        (rate, curve), sent = measured, 2 * (count - 1) / count
        switch = SwitchSums(count, curve.start_seconds, rate / sent / links, curve.ramp_seconds) if rate > links else None
    return replace(base, start_seconds=0.0, switch=switch, at_most=(), source="taskflow probe", **others, **_shared(curves, links))


Fit = tuple[float, float, float]  # bytes a second, seconds of the shortest, mean relative error


def _link(found: Measurements, where: str) -> Fit | None:
    """Rate and latency of messages one way: half of what there and back takes, less half of the answer."""
    points = found.of_message("one_way", 2, where)
    if not points:
        return None
    start, each = _line(points)
    errors = [abs((start + each * nbytes) / seconds - 1) for nbytes, seconds in points]
    return (1 / each if each > 0 else 1e12), start / 2, fmean(errors)


def _curve(found: Measurements, what: str, count: int, result: Built) -> tuple[float, Curve]:
    """An operation's rate and curve: start, steps of which there is one here, and bytes at the full rate."""
    points = _points(found, what, count, "within")
    if not points:
        return 1e9, Curve(0.0, 1.0)
    start, ramp, each = _ramped(points)
    errors = [abs((start + each * n + (ramp * each * n) ** 0.5) / seconds - 1) for n, seconds in points]
    result.errors[f"messages: {what}"] = fmean(errors)
    halves = 2 if what == "all_reduce" else 1
    sent = halves * (count - 1) / count  # of the array, over each link
    return (sent / each if each > 0 else 1e12), Curve(start, 1.0, ramp_seconds=ramp)


def _ramped(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Start, ramp and seconds a byte of a curve, by a search over ramps."""
    best: tuple[float, tuple[float, float, float]] = (inf, (0.0, 0.0, 0.0))
    for ramp in (0.0, *np.geomspace(1e-6, 1e-2, 17).tolist()):
        start, each = _line(points)
        for _ in range(8):  # what is left when the ramp is taken off
            rest = [(n, max(0.2 * seconds, seconds - (ramp * each * n) ** 0.5)) for n, seconds in points]
            start, each = _line(rest)
        error = fmean(log((start + each * n + (ramp * each * n) ** 0.5) / seconds) ** 2 for n, seconds in points)
        if error < best[0] - 1e-6:
            best = error, (start, ramp, each)
    return best[1]


def _joined(node: NodeTemplate, kind: str, within: Fit | None, between: Fit | None, fastest: float) -> NodeTemplate:
    """A node whose processors are joined, and that is joined to others."""
    wires, switches = list[Wire](), list[str]()
    if within is not None and node.count > 1:
        wires.append(Wire((f"{kind}*",), fastest, within[1], mesh=True, source="taskflow probe"))
    if between is not None:
        switches.append("card")
        wires.append(Wire((f"{kind}*", "card"), fastest, 0.0, source="not measured: no limit"))
        wires.append(Wire(("card", NETWORK), between[0], between[1] / 2, source="taskflow probe; half of the latency"))
    return replace(node, switches=tuple(switches), wires=tuple(wires))
