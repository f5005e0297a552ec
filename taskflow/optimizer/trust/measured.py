"""MeasuredPlan: published figures of training steps, each with its source and its prediction.

Predictions are those of this version, composed from one layer (benchmarks/layers_alone.py); a test predicts them again.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskflow.optimizer.trust.features import Features

VTRAIN = "Bang et al., vTrain (MICRO 2024, arXiv 2312.12391), data set of the repository VIA-Research/vTrain"
MEGATRON = "Narayanan et al. (SC21, arXiv 2104.04473), table 1"
KORTHIKANTI = "Korthikanti et al. (arXiv 2205.05198), table 5"
BLOOM = "BigScience, tr11-176B-ml, chronicles-prequel"


@dataclass(frozen=True, slots=True)
class MeasuredPlan:
    """A decoder's step: sizes, the plan in Megatron's notation (layers recomputed), its measured and predicted seconds."""

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

    @property
    def parameters(self) -> float:
        """Number of weights of the layers and of the embedding."""
        return float(12 * self.hidden**2 * self.layers + self.vocabulary * self.hidden)

    @property
    def features(self) -> Features:
        """Features by which plans are compared."""
        degrees = {word.rstrip("0123456789"): int(word.lstrip("tpdmb")) for word in self.plan.split()}
        return Features(self.parameters, degrees["t"], degrees["p"], degrees["d"], float(degrees["mb"] * self.sequence))

    def __str__(self) -> str:
        return f"{self.parameters / 1e9:.3g} billion parameters on {self.devices} {self.device}, {self.plan}"


def _v(*figures: object) -> MeasuredPlan:
    return MeasuredPlan(VTRAIN, "a100", *figures)  # type: ignore[arg-type]


def _bloom(plan: str, seconds: float, predicted: float) -> MeasuredPlan:
    return MeasuredPlan(BLOOM, "a100", 384, 14_336, 64, 72, 2048, 2048, plan, seconds, predicted, 250_880)


MEASURED = (
    _v(4, 1024, 16, 12, 1024, 8, "t1 p4 d1 mb1", 0.15251, 0.1456),
    _v(4, 1024, 16, 24, 1024, 32, "t1 p1 d4 mb4", 0.28885, 0.2817),
    _v(8, 1024, 16, 12, 1024, 16, "t2 p1 d4 mb1", 0.17808, 0.1744),
    _v(8, 1024, 16, 12, 1024, 16, "t2 p2 d2 mb4", 0.073246, 0.08093),
    _v(8, 1024, 16, 12, 1024, 32, "t4 p1 d2 mb1", 0.71072, 0.688),
    _v(8, 1024, 16, 16, 1024, 16, "t4 p1 d2 mb4", 0.13861, 0.1152),
    _v(8, 1024, 16, 16, 1024, 4, "t8 p1 d1 mb1", 0.32854, 0.258),
    _v(8, 1024, 16, 16, 1024, 16, "t8 p1 d1 mb4", 0.25506, 0.2266),
    _v(4, 2048, 16, 16, 1024, 64, "t1 p1 d4 mb1", 1.0292, 1.098),
    _v(4, 2048, 16, 20, 1024, 64, "t1 p1 d4 mb4", 0.87797, 1.025),
    _v(4, 2048, 16, 16, 1024, 8, "t2 p2 d1 mb1", 0.28005, 0.2747),
    _v(4, 2048, 16, 24, 1024, 8, "t2 p2 d1 mb4", 0.25061, 0.2844),
    _v(8, 2048, 16, 16, 1024, 16, "t4 p1 d2 mb1", 0.41694, 0.4576),
    _v(8, 2048, 16, 16, 1024, 16, "t4 p1 d2 mb4", 0.1818, 0.1617),
    _v(8, 2048, 16, 24, 1024, 2, "t8 p1 d1 mb1", 0.23849, 0.1932),
    _v(8, 2048, 16, 12, 1024, 8, "t8 p1 d1 mb4", 0.1236, 0.09234),
    _v(64, 3072, 32, 30, 2048, 512, "t1 p1 d64 mb8", 3.5665, 3.544),
    _v(64, 3072, 32, 30, 2048, 512, "t2 p1 d32 mb2", 4.2642, 4.12),
    _v(64, 3072, 32, 30, 2048, 512, "t1 p2 d32 mb2", 4.0349, 4.18),
    _v(64, 3072, 32, 30, 2048, 512, "t8 p1 d8 mb8", 5.178, 4.986),
    _v(64, 3072, 32, 30, 2048, 512, "t16 p1 d4 mb4", 11.96, 11.86),
    _v(512, 8192, 64, 48, 2048, 1536, "t4 p4 d32 mb4", 15.626, 14.54),
    _v(512, 8192, 64, 48, 2048, 1536, "t4 p8 d16 mb4", 17.414, 15.08),
    _v(512, 8192, 64, 48, 2048, 1536, "t8 p2 d32 mb3", 14.85, 14.73),
    _v(512, 8192, 64, 48, 2048, 1536, "t8 p4 d16 mb3", 14.834, 14.85),
    _v(512, 8192, 64, 48, 2048, 1536, "t8 p8 d8 mb4", 14.967, 15.07),
    _v(512, 8192, 64, 48, 2048, 1536, "t2 p8 d32 mb6", 23.063, 20.3),
    _v(512, 8192, 64, 48, 2048, 1536, "t8 p8 d8 mb12", 18, 18.11),
    _v(512, 8192, 64, 48, 2048, 1536, "t8 p16 d4 mb24", 24.17, 24.34),
    MeasuredPlan(MEGATRON, "a100", 512, 8192, 64, 48, 2048, 1536, "t8 p2 d32 mb4", 14.45, 14.04),  # 138 TFLOP/s a GPU
    MeasuredPlan(KORTHIKANTI, "a100", 8, 6144, 64, 48, 2048, 4, "t8 p1 d1 mb4", 1.42, 1.421),
    _bloom("t8 p12 d4 mb4", 117.07, 106.8),
    _bloom("t8 p6 d8 mb4", 114.11, 99.9),
    _bloom("t4 p12 d8 mb2", 110.48, 103.3),
    _bloom("t2 p12 d16 mb2", 112.50, 106.2),
    # The same plan and others of its micro-batches on another day.
    _bloom("t8 p12 d4 mb1", 143.31, 116.7),
    _bloom("t8 p12 d4 mb2", 134.02, 108.3),
    _bloom("t8 p12 d4 mb8", 129.26, 111.2),
)
"""Plans whose steps were measured. A100 of 80 GB, 8 a node."""
