"""StepUnits: a predicted step in the units in which people compare plans: tokens or samples a second, MFU, hours of devices."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from taskflow.graph import OperatorGraph
from taskflow.machine import Machine
from taskflow.operators.combine_weights import CombineWeights
from taskflow.operators.dispatch import Dispatch
from taskflow.operators.expert_linear import ExpertLinear
from taskflow.operators.operator import Work
from taskflow.rules import UpdateRule
from taskflow.tasks.lower import gradient_flow
from taskflow.wording import a_second

MFU = (
    "MFU: the forward pass's products, three times in training (twice of frozen layers), for each second, as a share of the "
    "devices' peak"
)


@dataclass(frozen=True, slots=True)
class StepUnits:
    """A step of ``samples`` on so many ``devices``. ``tokens``: words of all samples; None for a network whose samples are not rows
    of words. ``model_flops``: the products of its forward pass (matrix products, attention, convolutions, recurrent layers), three
    times if it is trained; what a plan computes again does not count, nor do experts' places beyond an even load.
    ``peak_flops_per_second``: of all devices together, at the rate of the network's products."""

    seconds: float
    devices: int
    samples: int
    tokens: int | None
    model_flops: float
    peak_flops_per_second: float

    @property
    def samples_per_second(self) -> float | None:
        return self.samples / self.seconds if self.seconds > 0 else None

    @property
    def tokens_per_second(self) -> float | None:
        return self.tokens / self.seconds if self.tokens and self.seconds > 0 else None

    @property
    def mfu(self) -> float | None:
        """Model flops utilisation (Chowdhery et al., PaLM, 2022, appendix B); None without products."""
        possible = self.seconds * self.peak_flops_per_second
        return self.model_flops / possible if self.model_flops and possible > 0 else None

    @property
    def device_hours(self) -> float:
        """What the step costs: hours of all devices together."""
        return self.devices * self.seconds / 3600

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON value, with units in the keys."""
        samples, tokens = self.samples_per_second, self.tokens_per_second
        return {
            "samples_per_step": self.samples, "samples_per_second": samples,
            "samples_per_second_per_device": samples / self.devices if samples else None, "tokens_per_step": self.tokens,
            "tokens_per_second": tokens, "tokens_per_second_per_device": tokens / self.devices if tokens else None,
            "model_flops": self.model_flops, "peak_flops_per_second": self.peak_flops_per_second, "mfu": self.mfu, "mfu_is": MFU,
            "device_hours": self.device_hours,
        }

    @property
    def batch(self) -> str:
        """Return the samples of a step and their tokens."""
        return f"{self.samples:,} samples{f' ({self.tokens:,} tokens)' if self.tokens else ''}"

    def __str__(self) -> str:
        parts = [f"a step is {self.batch}"]
        if rate := self.tokens_per_second or self.samples_per_second:
            parts.append(f"{a_second(rate)} {'tokens' if self.tokens else 'samples'}/s, {a_second(rate / self.devices)} a device")
        if self.mfu is not None:
            parts.append(f"MFU {self.mfu:.1%}")
        return "; ".join([*parts, f"{self.device_hours:.3g} device hours"])


def reads_words(graph: OperatorGraph) -> bool:
    """Return whether a network's samples are rows of words."""
    first = graph.nodes[0]
    return len(first.space.shape) == 2 and first.outputs[0].dtype.kind in "iu"


def _times(graph: OperatorGraph) -> list[int]:
    """How often a training step does an operator's products: three times; twice if its weights are frozen, once if no gradient
    comes to it."""
    if graph.trained_count == graph.parameter_count:
        return [3] * len(graph)
    active, _, _ = gradient_flow(graph)
    return [1 + (node.number in active) * (1 if node.operator.frozen else 2) for node in graph]


def expert_imbalance(graph: OperatorGraph) -> float | None:
    """Return how many times the mean of tokens experts have places for, where they have most; None without such places. What a
    device of dealt experts computes, exchanges and holds is so many times what it would be with an even load."""
    found = [
        node.operator.experts * node.operator.capacity / prod(node.specs[1].shape[1:])
        for node in graph if isinstance(node.operator, (Dispatch, CombineWeights))
    ]
    return max(found, default=None)


def step_units(graph: OperatorGraph, machine: Machine, rule: UpdateRule | None, seconds: float) -> StepUnits:
    """Return a step of ``seconds`` in these units. ``rule`` None: forward only."""
    first = graph.nodes[0]
    times = _times(graph) if rule is not None else [1] * len(graph)
    beyond = max(1.0, expert_imbalance(graph) or 1.0)
    products = sum(
        count * node.operator.flops(node.specs, node.space) / (beyond if isinstance(node.operator, ExpertLinear) else 1)
        for node, count in zip(graph, times) if node.operator.work is not Work.MEMORY
    )
    return StepUnits(
        seconds, len(machine.processors), first.space.shape[0], first.space.volume if reads_words(graph) else None,
        float(products),
        sum(processor.device.product_rate(graph.dtype) for processor in machine.processors),
    )  # fmt: skip
