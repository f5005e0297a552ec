"""A step of a decoder under a plan, put together from one layer: for fitting constants and for hundreds of rows in seconds.

The cost model prices each operator of a network of one layer, and the library each collective, with the same functions that
evaluators ask. What a stage's passes take follows from how many layers it has, and the step from the passes' order. Whole steps
(`make_evaluator`) take minutes for the same rows; the two are within some per cent of each other. `taskflow.optimizer.grid`
does the same for any network; here are the decoder of the measured rows, and the closed forms that constants were fitted with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Cluster
from taskflow.mapper import HybridParallel, HybridPlan, level_again, map_graph, parse_plan
from taskflow.models import build
from taskflow.optimizer.grid import GraphTables, PlanSums, WeightGroups, passes_seconds

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
    _around: GraphTables | None = None

    def seconds(self, sizes: Sizes, notation: str) -> float:
        """Predicted seconds of a step under a plan of t, p, d and mb (1F1B, no interleaving) whose layers are recomputed
        (``recompute=whole`` or ``full``) or not.

        With ``nosp`` a group sums its activations by all-reduces, and each member does all of what lies between shared
        layers and sends all of it to the next stage (Megatron-LM before Korthikanti et al., arXiv 2205.05198).
        """
        plan = parse_plan(notation)
        sequence_parallel = plan.sequence_parallel
        t, p, d, mb = plan.tensor, plan.pipeline, plan.data or 1, plan.micro_batch or 1
        count = sizes.batch // d // mb
        part = self._layer(sizes, mb, t, sequence_parallel)
        device = self.machine.processors[0].device
        stream = mb * sizes.sequence * sizes.hidden * 2
        sent = stream // t if sequence_parallel else stream
        message = device.program.waits(sent) if device.program else 0.0
        # A layer sums its activations twice forward and twice backward; cut along the sequence they are first put together.
        halves, each = (1, 4) if sequence_parallel else (2, 2)
        one = self._collective(range(t), stream, halves) if t > 1 else 0.0
        sums = each * one
        between = p > 1 and len({processor.node for processor in self.machine.processors}) > 1
        starts = each * t * device.program.collective_seconds if t > 1 and device.program and between else 0.0
        again = {"none": 0, "full": 1, "whole": 1}[plan.recompute]
        computed, summed = again * part["layer"][:2], again * sums
        if plan.recompute == "full":
            computed, summed = computed - part["unread"][:2], summed - one * part["unread_sums"][0]
        ahead, back = [], []
        stages = _dealt(sizes.layers, p)
        for stage, layers in enumerate(stages):
            forward, backward = part["layer"][:2] * layers, (computed + part["layer"][2:]) * layers
            if stage == 0:
                forward, backward = forward + part["embedding"][:2], backward + part["embedding"][2:]
            if stage == p - 1:
                forward, backward = forward + part["head"][:2], backward + part["head"][2:]
            waits = ((stage > 0) + (stage < p - 1)) * message
            # The host runs ahead while a collective goes on, as it does through long kernels.
            ahead.append(float(max(forward[0] + sums * layers, forward[1] + starts * layers) + waits))
            begun = starts * (1 + again) * layers
            back.append(float(max(backward[0] + (sums + summed) * layers, backward[1] + begun) + waits))
        route = self.machine.route(0, t * d) if p > 1 else ()
        travels = sum(k.latency_seconds for k in route) + sent / min((k.bytes_per_second for k in route), default=1.0)
        passes = passes_seconds(ahead, back, count, travels if p > 1 else 0.0, ranks=p)
        return float(passes + self._after(sizes, t, p, d, stages))

    def layer_seconds(self, sizes: Sizes, mb: int, t: int) -> tuple[float, float]:
        """Seconds of the device, with the sums of activations, and of the host for a layer's forward and backward pass, without
        sequence parallelism."""
        forward, backward = np.split(self._layer(sizes, mb, t, False)["layer"], 2)
        sums = 4 * self._collective(range(t), mb * sizes.sequence * sizes.hidden * 2, 2) if t > 1 else 0.0
        device, host = forward + backward
        return float(device + sums), float(host)

    def _after(self, sizes: Sizes, t: int, p: int, d: int, stages: Sequence[int]) -> float:
        """The slowest stage's sum of gradients and its update. Groups whose members share cards of a node go one after another."""
        h, words = sizes.hidden, sizes.vocabulary * sizes.hidden
        device, slowest = self.machine.processors[0].device, 0.0
        memory = device.memory_rate / device.update_times
        for stage, layers in enumerate(stages):
            weights = (12 * h * h * layers + words * ((stage == 0) + (p > 1 and stage == p - 1))) / t
            summed = 0.0
            if d > 1:
                summed = WeightGroups(self.machine, range(t * d), HybridPlan(tensor=t)).seconds(t, int(2 * weights), 2)
            slowest = max(slowest, summed + weights * ADAM_BYTES / memory)
        return slowest

    def _collective(self, group: range, nbytes: int, halves: int) -> float:
        assert self._around is not None  # a layer comes first
        return self._around.collective_seconds(group, nbytes, halves)

    def _layer(self, sizes: Sizes, mb: int, t: int, sequence_parallel: bool) -> dict[str, np.ndarray]:
        """Seconds of device and host, forward and backward, of a layer, of what is before all layers and of what is after them."""
        key = (sizes.hidden, sizes.heads, sizes.sequence, sizes.vocabulary, mb, t, sequence_parallel)
        if key in self._parts:
            return self._parts[key]
        graph = build(
            "GPT-2", batch=mb, steps=sizes.sequence, vocabulary=sizes.vocabulary, hidden=sizes.hidden, heads=sizes.heads, layers=1,
            dtype="float16",
        )
        mapper, tables = HybridParallel(f"t{t}"), GraphTables(graph, self.machine)
        strategy = map_graph(mapper, graph, self.machine.prefix(t))
        self._around = self._around or tables
        unread = level_again(graph, "whole").rerun - again_in_full(graph, tables)
        found = {name: np.zeros(4) for name in ("embedding", "layer", "unread", "unread_sums", "head")}
        found["unread_sums"] += sum(node.name in unread and bool(node.parameters) for node in graph)
        for node in graph:
            for piece, processor in strategy[node.name].pieces(node) if node.inputs else ():
                if not processor:
                    if not sequence_parallel and mapper.between(node):
                        piece = node.space
                    # Gradients are added to those of earlier micro-batches, and at each fork to the other branch's.
                    adds = [i == 0 and node.name.endswith(("ln_1", "ln_2")) for i in range(len(node.inputs))]
                    takes = tables.piece_seconds(node, piece, adds, True)
                    found[_part(node)] += takes
                    found["unread"] += takes if node.name in unread else np.zeros(4)
        self._parts[key] = found
        return found


def again_in_full(graph: OperatorGraph, tables: GraphTables) -> set[str]:
    """The operators that ``recompute=full`` computes again: not the last product of a layer, unless dropout comes after it."""
    mask = PlanSums(tables, None).masks["full"]
    return {node.name for node in graph if mask[node.number]}


def _part(node: Node) -> str:
    if node.name in ("ln_f", "lm_head", "loss.blocks", "loss"):
        return "head"
    return "layer" if node.name.startswith("h.") else "embedding"


def _dealt(layers: int, stages: int) -> list[int]:
    whole, more = divmod(layers, stages)
    return [whole + (stage < more) for stage in range(stages)]
