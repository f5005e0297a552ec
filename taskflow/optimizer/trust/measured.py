"""MeasuredPlan: published figures of training steps, each with its source and its prediction; and whether predictions order plans
as measurements do.

Predictions are those of this version, priced as a search prices its plans; a test predicts them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import mean, median

from taskflow.mapper import parse_plan
from taskflow.optimizer.grid import kendall
from taskflow.optimizer.trust.features import Features, reach_of

VTRAIN = "Bang et al., vTrain (MICRO 2024, arXiv 2312.12391), data set of the repository VIA-Research/vTrain"
MEGATRON = "Narayanan et al. (SC21, arXiv 2104.04473), table 1"
KORTHIKANTI = "Korthikanti et al. (arXiv 2205.05198), table 5"
BLOOM = "BigScience, tr11-176B-ml, chronicles-prequel"
TORCHTITAN = "torchtitan (arXiv 2410.06511), Llama 3.1 8B, not compiled, H100 of 500 W, 96 GB and 2.4 TB/s"
NODE = 8  # devices, of all of these
PROGRAMS = {VTRAIN: "deepspeed", BLOOM: "bigscience", MEGATRON: "megatron", KORTHIKANTI: "megatron", TORCHTITAN: "torchtitan"}


@dataclass(frozen=True, slots=True)
class MeasuredPlan:
    """A decoder's step: sizes, the plan in Megatron's notation, its measured and predicted seconds.

    ``session``: plans of one source and session were measured together, so that their times can be compared. ``network``: a
    name of `taskflow.models`; ``weights``: how many it has, if not those of GPT's layers and of one embedding.
    """

    source: str
    device: str
    devices: int
    hidden: int
    heads: int
    layers: int
    sequence: int
    batch: int
    plan: str
    seconds: float
    predicted: float
    vocabulary: int = 51_200
    session: str = ""
    network: str = "GPT-2"
    weights: float = 0.0

    @property
    def parameters(self) -> float:
        """Number of weights."""
        return self.weights or float(12 * self.hidden**2 * self.layers + self.vocabulary * self.hidden)

    @property
    def program(self) -> str:
        """Name of the program that ran it, as `taskflow.programs` calls it."""
        return PROGRAMS[self.source]

    @property
    def features(self) -> Features:
        """Features by which plans are compared."""
        plan = parse_plan(self.plan)
        tokens = float((plan.micro_batch or self.batch) * self.sequence)
        reach = reach_of(plan.tensor, plan.pipeline, self.devices, NODE)
        return Features(self.parameters, plan.tensor, plan.pipeline, plan.data or 1, tokens, reach=reach)

    def __str__(self) -> str:
        return f"{self.parameters / 1e9:.3g} billion parameters on {self.devices} {self.device}, {self.plan}"


def _v(*figures: object) -> MeasuredPlan:
    return MeasuredPlan(VTRAIN, "a100", *figures)  # type: ignore[arg-type]


def _bloom(plan: str, seconds: float, predicted: float, session: str = "topologies") -> MeasuredPlan:
    return MeasuredPlan(BLOOM, "a100", 384, 14_336, 64, 72, 2048, 2048, plan, seconds, predicted, 250_880, session)


MEASURED = (
    _v(64, 3072, 32, 30, 2048, 512, "t1 p1 d64 mb8 recompute=whole overlap=none", 3.5665, 3.544),
    _v(64, 3072, 32, 30, 2048, 512, "t2 nosp p1 d32 mb2 recompute=whole overlap=none", 4.2642, 3.999),
    _v(64, 3072, 32, 30, 2048, 512, "t1 p2 d32 mb2 recompute=whole overlap=none", 4.0349, 4.045),
    _v(64, 3072, 32, 30, 2048, 512, "t8 nosp p1 d8 mb8 recompute=whole overlap=none", 5.178, 5.135),
    _v(64, 3072, 32, 30, 2048, 512, "t16 nosp p1 d4 mb4 recompute=whole overlap=none", 11.96, 12.28),
    _v(512, 8192, 64, 48, 2048, 1536, "t4 nosp p4 d32 mb4 recompute=whole overlap=none", 15.626, 14.73),
    _v(512, 8192, 64, 48, 2048, 1536, "t4 nosp p8 d16 mb4 recompute=whole overlap=none", 17.414, 15.26),
    _v(512, 8192, 64, 48, 2048, 1536, "t8 nosp p2 d32 mb3 recompute=whole overlap=none", 14.85, 14.79),
    _v(512, 8192, 64, 48, 2048, 1536, "t8 nosp p4 d16 mb3 recompute=whole overlap=none", 14.834, 14.82),
    _v(512, 8192, 64, 48, 2048, 1536, "t8 nosp p8 d8 mb4 recompute=whole overlap=none", 14.967, 15.36),
    _v(512, 8192, 64, 48, 2048, 1536, "t2 nosp p8 d32 mb6 recompute=whole overlap=none", 23.063, 20.15),
    _v(512, 8192, 64, 48, 2048, 1536, "t8 nosp p8 d8 mb12 recompute=whole overlap=none", 18, 18.35),
    _v(512, 8192, 64, 48, 2048, 1536, "t8 nosp p16 d4 mb24 recompute=whole overlap=none", 24.17, 24.87),
    # 138 TFLOP/s a GPU
    MeasuredPlan(MEGATRON, "a100", 512, 8192, 64, 48, 2048, 1536, "t8 nosp p2 d32 mb4 recompute=whole overlap=none", 14.45, 14.2),
    MeasuredPlan(KORTHIKANTI, "a100", 8, 6144, 64, 48, 2048, 4, "t8 nosp p1 d1 mb4 recompute=whole", 1.42, 1.419),
    _bloom("t8 nosp p12 d4 mb4 recompute=whole overlap=none", 117.07, 116.8),
    _bloom("t8 nosp p6 d8 mb4 recompute=whole overlap=none", 114.11, 111.8),
    _bloom("t4 nosp p12 d8 mb2 recompute=whole overlap=none", 110.48, 112.4),
    _bloom("t2 nosp p12 d16 mb2 recompute=whole overlap=none", 112.50, 114.1),
    # The first of these with other micro-batches, on another day.
    _bloom("t8 nosp p12 d4 mb1 recompute=whole overlap=none", 143.31, 126.4, "micro-batches"),
    _bloom("t8 nosp p12 d4 mb2 recompute=whole overlap=none", 134.02, 118.4, "micro-batches"),
    _bloom("t8 nosp p12 d4 mb4 recompute=whole overlap=none", 123.69, 116.8, "micro-batches"),
    _bloom("t8 nosp p12 d4 mb8 recompute=whole overlap=none", 129.26, 121.6, "micro-batches"),
    MeasuredPlan(
        TORCHTITAN, "h100", 8, 4096, 32, 32, 8192, 16, "d8 mb2 zero3 recompute=alternate", 2.8435, 2.768, 128_256, "", "Llama",
        8.03e9,
    ),
)
"""Plans whose steps were measured. A100 of 80 GB, 8 a node; H100 as their source says. Megatron-LM and DeepSpeed run a recomputed
layer again as a whole. torchtitan recomputes every other product (``alternate``)."""


APART = 0.1
"""By how much of the faster one two measured times must differ for their order to count: repeated runs differ by half of that."""

Pairs = Sequence[tuple[float, float]]
"""Predicted and measured seconds of the plans of one task."""


@dataclass(frozen=True, slots=True)
class PlanOrder:
    """``pairs`` of plans of one task whose measured times differ by `APART`, and how many are ``in_order``. ``tau``: Kendall's, of
    all plans, the median over tasks of three or more. ``regret``: how much slower the plan that was predicted to be the fastest
    was than the fastest, the median and the mean over tasks. None where no task has so many plans."""

    tasks: int
    pairs: int
    in_order: int
    tau: float | None
    regret: tuple[float, float] | None


def order_of(tasks: Iterable[Pairs]) -> PlanOrder:
    """Return how often the order of plans was right within each task."""
    several = [task for task in tasks if len(task) > 1]
    pairs, right = pairs_in_order(several)
    regrets = [regret(task) for task in several]
    taus = [kendall(task) for task in several if len(task) > 2]
    return PlanOrder(
        len(several), pairs, right, median(taus) if taus else None, (median(regrets), mean(regrets)) if regrets else None
    )


def pairs_in_order(tasks: Iterable[Pairs], within: float | None = None) -> tuple[int, int]:
    """Return how many pairs of a task's plans have measured times that differ by `APART`, and how many of these are predicted in
    that order. ``within``: only plans that took at most so many times as long as the fastest."""
    pairs = right = 0
    for task in tasks:
        most = within * min(measured for _, measured in task) if within is not None and task else None
        near = [one for one in task if most is None or one[1] <= most]
        for (first, took), (second, other) in combinations(near, 2):
            if abs(took - other) >= APART * min(took, other):
                pairs += 1
                right += (first - second) * (took - other) > 0
    return pairs, right


def regret(task: Pairs) -> float:
    """Return how much slower the plan that is predicted to be the fastest was than the fastest, as a share."""
    return min(task)[1] / min(measured for _, measured in task) - 1
