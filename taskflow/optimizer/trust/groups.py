"""MeasuredGroup: how far predictions of measured steps were off, by program, device and what of a plan lies on several nodes.

Most of these steps are files of others that are not part of taskflow; what is here are the errors of our predictions for them.
benchmarks/error_ranges.py computes this table, and how often steps lie in the range that the other groups give them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from math import log

from taskflow.optimizer.trust.features import Features, Reach
from taskflow.optimizer.trust.measured import MEASURED, VTRAIN

SIMUMAX = "SimuMax, Llama 3 70B cut short on B200"
LLM_FOUNDRY = "MosaicML, llm-foundry"
FMS = "fms-fsdp (IBM and PyTorch)"
LAYOUTS = "Aleph Alpha, efficient parallelization layouts"
ULTRASCALE = "Hugging Face, Ultra-Scale Playbook"
TENTH = 0.1
"""The range of a group leaves out this share of its errors at either end, if it has ten or more."""


@dataclass(frozen=True, slots=True)
class MeasuredGroup:
    """Steps that one ``program`` ran on such a ``device``. ``reach``: what of their plans lies on several nodes. ``least`` and
    ``most``: their smallest and largest sizes. ``low``, ``high``: the logarithm of measured by predicted seconds, from
    the tenth to the ninetieth percentile; of fewer than ten steps, from the lowest to the highest."""

    source: str
    device: str
    program: str
    reach: Reach
    steps: int
    least: Features
    most: Features
    low: float
    high: float

    def distance(self, plan: Features) -> float:
        """Return the distance of a plan from the nearest sizes within the group's, in doublings."""
        return plan.distance(plan.within(self.least, self.most))


def group_of(
    source: str, device: str, program: str, reach: Reach, steps: Sequence[tuple[Features, float, float]]
) -> MeasuredGroup:
    """Return the group of measured steps, of each its features, measured and predicted seconds."""
    errors = sorted(log(measured / predicted) for _, measured, predicted in steps)
    out = round(TENTH * len(errors)) if len(errors) >= 1 / TENTH else 0
    each = list(zip(*(astuple(of)[:5] for of, *_ in steps)))
    return MeasuredGroup(
        source, device, program, reach, len(steps), Features(*map(min, each)), Features(*map(max, each)), errors[out],
        errors[-1 - out],
    )  # fmt: skip


def _group(
    source: str, device: str, program: str, reach: Reach, steps: int,
    sizes: tuple[tuple[float, int, int, int, float], tuple[float, int, int, int, float]], low: float, high: float,
) -> MeasuredGroup:
    """A group with its smallest and largest weights, t, p, d and tokens."""
    return MeasuredGroup(source, device, program, reach, steps, Features(*sizes[0]), Features(*sizes[1]), low, high)


OF_FILES: tuple[MeasuredGroup, ...] = (
    _group(SIMUMAX, "b200", "megatron", "replicas", 12, ((1.24e10, 1, 1, 1, 4096), (1.24e10, 8, 2, 4, 4096)), -0.036, 0.042),
    _group(LLM_FOUNDRY, "h100", "fsdp", "replicas", 7, ((1.31e9, 1, 1, 8, 4096), (1.28e10, 1, 1, 512, 65536)), -0.035, 0.096),
    _group(FMS, "a100", "fsdp-compiled", "replicas", 2, ((6.74e9, 1, 1, 128, 8192), (6.90e10, 1, 1, 128, 8192)), -0.013, -0.004),
    _group(LLM_FOUNDRY, "a100", "fsdp", "replicas", 4, ((6.65e9, 1, 1, 8, 4096), (6.48e10, 1, 1, 64, 24576)), -0.048, 0.021),
    _group(LAYOUTS, "a100", "aleph-alpha", "replicas", 40, ((1.40e10, 1, 1, 8, 2048), (3.38e10, 8, 1, 64, 16384)), -0.072, 0.072),
    _group(LAYOUTS, "a100", "aleph-alpha", "stages", 79, ((1.40e10, 1, 2, 2, 2048), (3.38e10, 8, 4, 32, 16384)), -0.048, 0.109),
    _group(ULTRASCALE, "h100", "nanotron", "replicas", 157, ((1.34e9, 1, 1, 1, 4096), (8.86e9, 8, 8, 256, 65536)), -0.111, 0.161),
    _group(ULTRASCALE, "h100", "nanotron", "stages", 299, ((1.34e9, 1, 2, 1, 4096), (8.00e10, 8, 32, 128, 131072)), -0.189, 0.210),
    _group(ULTRASCALE, "h100", "nanotron", "layers", 122, ((1.34e9, 16, 1, 1, 4096), (8.00e10, 32, 8, 16, 524288)), -0.059, 1.126),
    _group(VTRAIN, "a100", "deepspeed", "replicas", 18, ((3.55e9, 1, 1, 8, 4096), (3.55e9, 8, 1, 64, 131072)), 0.008, 0.307),
    _group(VTRAIN, "a100", "deepspeed", "stages", 50, ((3.55e9, 1, 2, 4, 4096), (3.91e10, 8, 16, 32, 49152)), -0.031, 0.184),
    _group(VTRAIN, "a100", "deepspeed", "layers", 5, ((3.55e9, 16, 1, 4, 4096), (3.55e9, 16, 1, 4, 65536)), -0.063, -0.001),
)
"""Of files that are not part of taskflow: of steps that did not stall, on up to 256 GPUs of nanotron's."""


def _own_groups() -> Iterable[MeasuredGroup]:
    """The groups of the plans in `MEASURED` that are from no file."""
    found: dict[tuple[str, str, str, Reach], list[tuple[Features, float, float]]] = {}
    for one in MEASURED:
        if one.source != VTRAIN:
            key = one.source, one.device, one.program, one.features.reach
            found.setdefault(key, []).append((one.features, one.seconds, one.predicted))
    return (group_of(*key, steps) for key, steps in found.items())


GROUPS = (*OF_FILES, *_own_groups())
