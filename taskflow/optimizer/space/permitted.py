"""Permitted: the configurations that an operator may have under a user's constraints, and the nearest such one to any other."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

from taskflow.mapper import OpConfig, ranges


@dataclass(frozen=True, slots=True)
class Permitted:
    """Limits of one operator. ``dims``: names; ``caps``: the largest degree of each. ``devices``: the only processors (empty:
    all). ``pieces``: the most in all (0: any number). ``pin``: the only configuration, which respects the other limits."""

    dims: tuple[str, ...]
    caps: tuple[int, ...]
    devices: tuple[int, ...] = ()
    pieces: int = 0
    pin: OpConfig | None = None

    def violation(self, config: OpConfig) -> str:
        """Return what is wrong with a configuration; empty if it is permitted."""
        if self.pin is not None:
            return "" if config == self.pin else f"must be as pinned, degrees {self.pin.degrees} @ {ranges(self.pin.processors)}"
        if why := self.cut(config):
            return why
        if self.devices and not set(config.processors) <= set(self.devices):
            return f"must run on {ranges(self.devices)} only, not {ranges(config.processors)}"
        return ""

    def cut(self, config: OpConfig) -> str:
        """Return what is wrong with the pieces of a configuration, wherever they run; empty if they are permitted."""
        for name, degree, cap in zip(self.dims, config.degrees, self.caps):
            if degree > cap:
                return f"{name} must not be cut" if cap == 1 else f"{name} may have at most {cap} pieces, not {degree}"
        if self.pieces and prod(config.degrees) > self.pieces:
            return f"may have at most {self.pieces} pieces, not {prod(config.degrees)}"
        return ""

    def repair(self, config: OpConfig) -> OpConfig:
        """Return the pinned configuration; else this one with degrees lowered to what is permitted, each piece where the old
        piece of its color ran if that device is permitted; of what has copies, those on permitted devices."""
        if self.pin is not None:
            return self.pin
        if config.copies > 1:
            return self._copied(config)
        degrees = [min(degree, cap) for degree, cap in zip(config.degrees, self.caps)]
        while self.pieces and prod(degrees) > self.pieces:  # the largest first
            i = max(range(len(degrees)), key=lambda i: degrees[i])
            degrees[i] = max(1, min(degrees[i] - 1, self.pieces * degrees[i] // prod(degrees)))
        places, weights = config.processors, config.weights
        if tuple(degrees) != config.degrees:
            places = tuple(config.processors[_number(c, config.degrees)] for c in product(*(range(d) for d in degrees)))
            weights = ()
        if self.devices:
            among = set(self.devices)
            places = tuple(p if p in among else self.devices[p % len(self.devices)] for p in places)
        return OpConfig(tuple(degrees), places, weights)

    def _copied(self, config: OpConfig) -> OpConfig:
        """The copies of what is made of weights alone that are on permitted devices, whole ones if it may not be cut so."""
        among = tuple(p for p in config.processors if not self.devices or p in self.devices) or self.devices
        if not self.cut(config) and len(among) == len(config.processors):
            return config
        among = tuple(sorted(set(among)))
        return OpConfig((1,) * len(config.degrees), among, copies=len(among))


def _number(color: tuple[int, ...], degrees: tuple[int, ...]) -> int:
    """The row-major number of a piece."""
    number = 0
    for at, degree in zip(color, degrees):
        number = number * degree + at
    return number
