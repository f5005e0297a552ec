"""Loss scaling: float16 cannot hold small gradients, so the loss is multiplied by a scale and the update divides by it.

The dynamic rule is torch.amp.GradScaler's (Micikevicius et al., "Mixed precision training", arXiv 1710.03740, section 3.2): a step
in which some gradient overflows is skipped and the scale falls; after many steps without one it rises.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

SMALLEST_SCALE = 2.0**-24
"""Below it the scale is not why gradients are not finite."""


@dataclass(frozen=True, slots=True)
class LossScaling:
    """Rule for the loss scale: its start, times ``growth`` after ``interval`` consecutive steps without overflow, times
    ``backoff`` after each step with one. ``LossScaling.fixed(1024)`` never changes. Raises ValueError for numbers that make no
    sense."""

    start: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    def __post_init__(self) -> None:
        if not (isfinite(self.start) and self.start > 0 and self.growth >= 1 and 0 < self.backoff <= 1 and self.interval >= 1):
            raise ValueError(
                "LossScaling: needs a start above 0, a growth of 1 or more, a backoff above 0 and at most 1, and an interval "
                f"of 1 or more, got {self}"
            )

    @classmethod
    def fixed(cls, scale: float) -> LossScaling:
        """Return a rule whose scale never changes. A step with an overflow is skipped all the same."""
        return cls(scale, 1.0, 1.0)


@dataclass(slots=True)
class LossScaler:
    """Scale of a run. ``steady``: steps since it last changed."""

    rule: LossScaling
    scale: float = 0.0
    steady: int = 0

    def __post_init__(self) -> None:
        self.scale = self.scale or self.rule.start

    def __str__(self) -> str:
        fixed = self.rule.backoff == 1
        return f"the loss scale {f'stays {self.scale:g}, as it is fixed' if fixed else f'is {self.scale:g} from here'}"

    def after(self, overflowed: bool) -> None:
        """Adjust the scale at the end of a step."""
        if overflowed:
            self.scale, self.steady = self.scale * self.rule.backoff, 0
            return
        self.steady += 1
        if self.steady == self.rule.interval:
            self.scale, self.steady = self.scale * self.rule.growth, 0
