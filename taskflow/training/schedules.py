"""Learning-rate schedules: frozen values that return the rate of each step.

``at(step, epoch)``: ``step`` is the number of updates before this one (0 for the first), ``epoch`` the number of whole passes
over the data. A schedule has no state, so a resumed run gets the same rates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import cos, pi, sqrt


class Schedule(ABC):
    """Learning rate of every step."""

    __slots__ = ()

    @abstractmethod
    def at(self, step: int, epoch: int) -> float:
        """Return the rate of the update that follows ``step`` earlier ones, in epoch ``epoch``; both count from 0."""


@dataclass(frozen=True, slots=True)
class Constant(Schedule):
    """Constant rate ``lr``."""

    lr: float

    def __post_init__(self) -> None:
        _require("Constant", lr=self.lr)

    def at(self, step: int, epoch: int) -> float:
        return self.lr


@dataclass(frozen=True, slots=True)
class StepDecay(Schedule):
    """Rate ``lr``, multiplied by ``gamma`` after every ``every`` epochs, or steps with ``by="step"`` (torch's StepLR)."""

    lr: float
    every: int
    gamma: float = 0.1
    by: str = "epoch"

    def __post_init__(self) -> None:
        _require("StepDecay", lr=self.lr, gamma=self.gamma)
        _require("StepDecay", 1, every=self.every)
        if self.by not in ("epoch", "step"):
            raise ValueError(f"StepDecay: by must be 'epoch' or 'step', got {self.by!r}")

    def at(self, step: int, epoch: int) -> float:
        return self.lr * float(self.gamma ** ((step if self.by == "step" else epoch) // self.every))


@dataclass(frozen=True, slots=True)
class Cosine(Schedule):
    """Rate that rises linearly to ``lr`` in ``warmup`` steps, then falls to ``floor`` at step ``total`` along half a cosine and
    stays there (Loshchilov and Hutter, arXiv 1608.03983, equation 5, without restarts; torch's CosineAnnealingLR after the
    warm-up)."""

    lr: float
    total: int
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        _require("Cosine", lr=self.lr, warmup=self.warmup, floor=self.floor)
        _require("Cosine", self.warmup + 1, total=self.total)

    def at(self, step: int, epoch: int) -> float:
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        done = min(1.0, (step - self.warmup) / (self.total - self.warmup))
        return self.floor + (self.lr - self.floor) * (1 + cos(pi * done)) / 2


@dataclass(frozen=True, slots=True)
class InverseSqrt(Schedule):
    """Rate that rises linearly to ``lr`` in ``warmup`` steps, then falls with the inverse square root of the step number
    (Vaswani et al., arXiv 1706.03762, equation 3, scaled so that its peak is ``lr``)."""

    lr: float
    warmup: int

    def __post_init__(self) -> None:
        _require("InverseSqrt", lr=self.lr)
        _require("InverseSqrt", 1, warmup=self.warmup)

    def at(self, step: int, epoch: int) -> float:
        return self.lr * min((step + 1) / self.warmup, sqrt(self.warmup / (step + 1)))


@dataclass(frozen=True, slots=True)
class ZarembaDecay(Schedule):
    """Rate ``lr`` for ``after_epoch`` epochs, then divided by ``factor`` before every further epoch (Zaremba, Sutskever and
    Vinyals, arXiv 1409.2329, section 4.1: after 6 epochs by 1.2 for the medium model, after 14 by 1.15 for the large one)."""

    lr: float = 1.0
    after_epoch: int = 6
    factor: float = 1.2

    def __post_init__(self) -> None:
        _require("ZarembaDecay", lr=self.lr, after_epoch=self.after_epoch)
        if not self.factor > 0:
            raise ValueError(f"ZarembaDecay: factor must be above 0, got {self.factor}")

    def at(self, step: int, epoch: int) -> float:
        return self.lr / float(self.factor ** max(0, epoch + 1 - self.after_epoch))


def _require(schedule: str, least: float = 0, **values: float) -> None:
    for name, value in values.items():
        if not value >= least:  # so that NaN is refused too
            raise ValueError(f"{schedule}: {name} must be at least {least}, got {value}")
