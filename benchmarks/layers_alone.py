"""A step of a decoder under a plan, put together from one layer: for fitting constants and for hundreds of rows in seconds.

The cost model prices each operator of a network of one layer, and the library each collective, with the same functions that
evaluators ask. What a stage's passes take follows from how many layers it has, and the step from the passes' order. Whole steps
(`make_evaluator`) take minutes for the same rows; the two are within some per cent of each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from taskflow.floats import sum_bytes
from taskflow.machine import Cluster, collective, ring_bytes
from taskflow.mapper import PassKind, Pipeline, map_graph
from taskflow.mapper.hybrid import HybridParallel
from taskflow.mapper.notation import parse_plan
from taskflow.models import build
from taskflow.optimizer.cost import AnalyticCosts

ADAM_BYTES = 18  # read and written for each weight of two bytes: gradient, two moments and a master copy of four


@dataclass(frozen=True, slots=True)
class Sizes:
    """A decoder and its batch."""

    hidden: int
    heads: int
    layers: int
    sequence: int
    batch: int
    vocabulary: int = 51_200


@dataclass(slots=True)
class LayersAlone:
    """Steps on one machine. Tables are kept between rows."""

    machine: Cluster
    _parts: dict[object, dict[str, np.ndarray]] = field(default_factory=dict)
    _around: dict[object, object] = field(default_factory=dict)

    def seconds(self, sizes: Sizes, notation: str, sequence_parallel: bool = True) -> float:
        """Predicted seconds of a step under a plan of t, p, d and mb (1F1B, no interleaving) whose layers are recomputed or not.

        Without ``sequence_parallel`` a group sums its activations by all-reduces, and each member does all of what lies
        between shared layers and sends all of it to the next stage (Megatron-LM before Korthikanti et al., arXiv 2205.05198).
        """
        plan = parse_plan(notation)
        t, p, d, mb = plan.tensor, plan.pipeline, plan.data or 1, plan.micro_batch or 1
        again = {"full": 1, "none": 0}[plan.recompute]
        count = sizes.batch // d // mb
        part = self._layer(sizes, mb, t, sequence_parallel)
        device = self.machine.processors[0].device
        stream = mb * sizes.sequence * sizes.hidden * 2
        sent = stream // t if sequence_parallel else stream
        message = device.program.waits(sent) if device.program else 0.0
        # A layer sums its activations twice forward and twice backward; cut along the sequence they are first put together.
        halves, each = (1, 4) if sequence_parallel else (2, 2)
        sums = each * self._collective(range(t), stream, halves) if t > 1 else 0.0
        ahead, back = [], []
        stages = _dealt(sizes.layers, p)
        for stage, layers in enumerate(stages):
            forward, backward = part["layer"][:2] * layers, (again * part["layer"][:2] + part["layer"][2:]) * layers
            if stage == 0:
                forward, backward = forward + part["embedding"][:2], backward + part["embedding"][2:]
            if stage == p - 1:
                forward, backward = forward + part["head"][:2], backward + part["head"][2:]
            waits = ((stage > 0) + (stage < p - 1)) * message
            # The host runs ahead while a collective goes on, as it does through long kernels.
            ahead.append(max(forward[0] + sums * layers, forward[1]) + waits)
            back.append(max(backward[0] + sums * (1 + again) * layers, backward[1]) + waits)
        route = self.machine.route(0, t * d) if p > 1 else ()
        travels = sum(k.latency_seconds for k in route) + sent / min((k.bytes_per_second for k in route), default=1.0)
        return _in_order(ahead, back, count, travels if p > 1 else 0.0) + float(self._after(sizes, t, p, d, stages))

    def _after(self, sizes: Sizes, t: int, p: int, d: int, stages: Sequence[int]) -> float:
        """The slowest stage's sum of gradients and its update. Groups whose members share cards of a node go one after another."""
        h, words = sizes.hidden, sizes.vocabulary * sizes.hidden
        device, slowest = self.machine.processors[0].device, 0.0
        memory = device.memory_bytes_per_second * device.reaches("memory", 0.8)
        for stage, layers in enumerate(stages):
            weights = (12 * h * h * layers + words * ((stage == 0) + (p > 1 and stage == p - 1))) / t
            summed = 0.0
            if d > 1:
                group = range(0, t * d, t)
                summed = self._collective(group, int(2 * weights), 2) * self._sharing(group, t)
            slowest = max(slowest, summed + weights * ADAM_BYTES / memory)
        return slowest

    def _sharing(self, group: range, t: int) -> int:
        """How many groups of a tensor-parallel node send over each card at the same time."""
        nodes = {self.machine.processors[p].node for p in group}
        if len(nodes) == 1:
            return 1
        local = sum(self.machine.processors[p].node == self.machine.processors[group[0]].node for p in group)
        ways = [
            {min(self.machine.way_out(p), key=lambda k: k.bytes_per_second).number for p in range(i, i + local * t, t)}
            for i in range(min(t, 8))
        ]
        return max(sum(link in way for way in ways) for link in set().union(*ways))

    def _collective(self, group: range, nbytes: int, halves: int) -> float:
        if group not in self._around:
            self._around[group] = collective(self.machine, group)
        return self._around[group].seconds(ring_bytes(len(group), nbytes, halves), halves)  # type: ignore[attr-defined]

    def _layer(self, sizes: Sizes, mb: int, t: int, sequence_parallel: bool) -> dict[str, np.ndarray]:
        """Seconds of device and host, forward and backward, of a layer, of what is before all layers and of what is after them."""
        key = (sizes.hidden, sizes.heads, sizes.sequence, sizes.vocabulary, mb, t, sequence_parallel)
        if key in self._parts:
            return self._parts[key]
        graph = build(
            "GPT-2", batch=mb, steps=sizes.sequence, vocabulary=sizes.vocabulary, hidden=sizes.hidden, heads=sizes.heads, layers=1,
            dtype="float16",
        )
        machine = self.machine.prefix(t)
        mapper, costs = HybridParallel(f"t{t}"), AnalyticCosts(machine)
        strategy = map_graph(mapper, graph, machine)
        found = {name: np.zeros(4) for name in ("embedding", "layer", "head")}
        device = machine.processors[0].device
        for node in graph:
            late = node.name in ("ln_f", "lm_head", "loss.blocks", "loss")
            where = "layer" if node.name.startswith("h.") else "head" if late else "embedding"
            for piece, processor in strategy[node.name].pieces(node) if node.inputs else ():
                if processor:
                    continue
                if not sequence_parallel and mapper.between(node):
                    piece = node.space
                reads = node.reads(piece)
                # Gradients of weights are added to those of earlier micro-batches, and at each fork to the other branch's.
                added = sum(rect.volume * sum_bytes(2) for rect in reads.weights)
                added += reads.inputs[0].volume * 2 if node.name.endswith(("ln_1", "ln_2")) else 0
                wanted = tuple(spec.differentiable for spec in node.specs)
                ahead = costs.spent(node.operator, node.specs, piece, False, (), 0, device)
                back = costs.spent(node.operator, node.specs, piece, True, wanted, added, device)
                assert ahead is not None and back is not None
                found[where] += (ahead.device, ahead.host, back.device, back.host)
        self._parts[key] = found
        return found


def _dealt(layers: int, stages: int) -> list[int]:
    whole, more = divmod(layers, stages)
    return [whole + (stage < more) for stage in range(stages)]


def _in_order(ahead: Sequence[float], back: Sequence[float], count: int, message: float) -> float:
    """Seconds of all passes of 1F1B, given those of a pass of each stage."""
    stages = len(ahead)
    if stages == 1:
        return float(count * (ahead[0] + back[0]))
    order = Pipeline(count, {str(s): s for s in range(stages)}, stages).passes()
    ends: dict[tuple[PassKind, int, int], float] = {}
    free = [0.0] * stages
    for one in order:
        forward, s = one.kind is PassKind.FORWARD, one.stage
        before = (one.kind, one.micro_batch, s - 1 if forward else s + 1)
        ready = ends[before] + message if before in ends else 0.0
        free[s] = ends[one.kind, one.micro_batch, s] = max(free[s], ready) + (ahead if forward else back)[s]
    return float(max(free))
