"""Update rules: how training changes a parameter, given its gradient. Frozen values; the arithmetic is in the kernels.

A rule keeps `buffers` arrays of the weight's shape beside every weight, all zero before the first step. Their owner (the
runtime, a checkpoint) passes them to `update`, which changes weight and buffers in place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf
from numbers import Real
from typing import Any, ClassVar, final

import numpy as np

from taskflow.floats import float_type, sum_bytes, sums_in
from taskflow.kernels import Array, KernelSet

MOST_BETA = 0.99
"""Of second moments in bfloat16. Half of a unit in the last of 8 bits is 0.2 to 0.4 % of a number, which 1 - beta2 must exceed."""


class UpdateRule(ABC):
    """Rule by which weights change in one step. It works element by element, on flat arrays of any cut of the parameters."""

    __slots__ = ()

    lr: float

    @property
    @abstractmethod
    def buffers(self) -> int:
        """Number of arrays of the weight's shape that it keeps from step to step (zero at the start)."""

    def state_type(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the type of these arrays for weights of type ``dtype``: here the one in which weights are updated."""
        return sums_in(dtype)

    @final
    def state_bytes(self, itemsize: int) -> int:
        """Return the bytes of these arrays for each float of a weight, of ``itemsize`` bytes."""
        return self.buffers * self.state_type(np.dtype(f"f{sum_bytes(itemsize)}")).itemsize

    @abstractmethod
    def update(
        self,
        kernels: KernelSet,
        w: Array,
        g: Array,
        buffers: tuple[Array, ...],
        *,
        lr: float,
        step: int,
        scale: float,
    ) -> None:
        """Change w and the buffers in place. All arrays are flat, of one length and type; g is only read.

        ``lr``: this step's learning rate (from a schedule, or the rule's own). ``step`` counts from 1. ``scale`` multiplies the
        gradient first (gradient clipping, loss scaling). Raises ValueError for a wrong number of buffers or a step below 1.
        """

    @abstractmethod
    def flops(self, elements: int) -> int:
        """Return the floating-point operations of one update of ``elements`` weights; a root or a division counts as one."""

    def nbytes(self, elements: int, itemsize: int) -> int:
        """Return the bytes of memory traffic of one update: weight and buffers are read and written, the gradient is read. For
        16-bit weights (whose ``itemsize`` is given), weight and gradient are float32, and the rounded weights are written as
        well."""
        wide = sum_bytes(itemsize)
        return (3 * wide + 2 * self.state_bytes(itemsize) + (itemsize if itemsize != wide else 0)) * elements


@dataclass(frozen=True, slots=True)
class SGD(UpdateRule):
    """Stochastic gradient descent, with momentum if it is not 0 (torch.optim.SGD)."""

    lr: float = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        _not_negative("SGD", lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise ValueError(
                "SGD: nesterov needs a momentum above 0 and a dampening of 0, "
                f"got momentum={self.momentum}, dampening={self.dampening}"
            )

    @property
    def buffers(self) -> int:
        return 1 if self.momentum else 0

    def update(
        self,
        kernels: KernelSet,
        w: Array,
        g: Array,
        buffers: tuple[Array, ...],
        *,
        lr: float,
        step: int,
        scale: float,
    ) -> None:
        _check(self, buffers, step)
        velocity = buffers[0] if buffers else None
        kernels.sgd(
            w, g, velocity, lr, self.momentum, self.dampening, self.weight_decay, self.nesterov, scale, step == 1
        )

    def flops(self, elements: int) -> int:
        # Scaling 1, decay 2, velocity 3, look-ahead 2, the step itself 2.
        return elements * (3 + 2 * bool(self.weight_decay) + 3 * bool(self.momentum) + 2 * self.nesterov)


@dataclass(frozen=True, slots=True)
class Adam(UpdateRule):
    """Adam (Kingma and Ba, arXiv 1412.6980, algorithm 1), with weight decay added to the gradient (torch.optim.Adam)."""

    decoupled: ClassVar[bool] = False  # from the gradient
    moments: ClassVar[str] = ""  # type in which they are kept from step to step; empty: that of the arithmetic

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        name = type(self).__name__
        _not_negative(name, lr=self.lr, eps=self.eps, weight_decay=self.weight_decay)
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"{name}: betas must be two numbers in [0, 1), got {self.betas}")

    @property
    def buffers(self) -> int:
        return 2

    def update(
        self,
        kernels: KernelSet,
        w: Array,
        g: Array,
        buffers: tuple[Array, ...],
        *,
        lr: float,
        step: int,
        scale: float,
    ) -> None:
        _check(self, buffers, step)
        narrow = buffers[0].dtype.itemsize < w.dtype.itemsize  # on GPUs such arrays are uint16
        (m, v), (beta1, beta2) = [kernels.device.widen(b) for b in buffers] if narrow else buffers, self.betas
        kernels.adam(w, g, m, v, lr, beta1, beta2, self.eps, self.weight_decay, self.decoupled, scale, step)
        for exact, kept in zip((m, v), buffers) if narrow else ():
            kernels.device.round_into(exact, kept)

    def state_type(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        wide = sums_in(dtype)
        return float_type(self.moments) if self.moments and wide == np.float32 else wide

    def flops(self, elements: int) -> int:
        # Scaling 1, first moment 3, second moment 4, root 1, correction 1, eps 1, quotient 1, step 2; decay 2 or 1.
        return elements * (14 + (2 - self.decoupled) * bool(self.weight_decay))


@dataclass(frozen=True, slots=True)
class AdamW(Adam):
    """Adam with weight decay applied to the weights directly (Loshchilov and Hutter, arXiv 1711.05101; torch.optim.AdamW)."""

    decoupled: ClassVar[bool] = True

    weight_decay: float = 1e-2


@dataclass(frozen=True, slots=True)
class AdamWInBfloat16(AdamW):
    """AdamW whose moments are kept in bfloat16, rounded after each step: 4 bytes a weight instead of 8 (DeepSeek-V3, arXiv
    2412.19437; Megatron-LM's --exp-avg-dtype and --exp-avg-sq-dtype). float64 weights keep float64 moments.

    A step changes the second moment by the part 1 - beta2. Numbers of bfloat16 have 8 bits, so from beta2 = 0.998 on rounding
    swallows that change, and the moment never becomes smaller. So the default of beta2 is 0.95, and 0.99 is the most.
    """

    moments: ClassVar[str] = "bfloat16"

    betas: tuple[float, float] = (0.9, 0.95)

    def __post_init__(self) -> None:
        AdamW.__post_init__(self)
        if self.betas[1] > MOST_BETA:
            raise ValueError(
                f"AdamWInBfloat16: beta2 must be at most {MOST_BETA}, since 8 bits of a second moment that changes more slowly "
                f"stay as they are; got {self.betas[1]}"
            )


def usable_rate(lr: float | None) -> float | None:
    """Return ``lr``. Raises ValueError if it is neither None nor a number from 0."""
    if lr is not None and not (isinstance(lr, Real) and 0 <= lr < inf):
        raise ValueError(f"train: lr must be a number from 0, got {lr!r}")
    return lr


def _check(rule: UpdateRule, buffers: tuple[Array, ...], step: int) -> None:
    name = type(rule).__name__
    if len(buffers) != rule.buffers:
        raise ValueError(f"{name}.update: needs {rule.buffers} buffers, got {len(buffers)}")
    if step < 1:
        raise ValueError(f"{name}.update: steps count from 1, got {step}")


def _not_negative(rule: str, **values: float) -> None:
    for name, value in values.items():
        if not value >= 0:  # so that NaN is refused too
            raise ValueError(f"{rule}: {name} must be 0 or more, got {value}")
