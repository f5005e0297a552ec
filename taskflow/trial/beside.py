"""What ranks found of an exported module beside the module alone."""

from __future__ import annotations

from dataclasses import dataclass

RELATIVE, LEAST = 1e-2, 1e-4  # of the largest number; of the largest of all gradients: what rounding in float32 is below


@dataclass(frozen=True, slots=True)
class Beside:
    """What ranks found. ``loss``: how far it is off that of the module alone, relatively; ``gradient``: the same of gradients, of
    the largest of all. ``name``: of a parameter whose gradient is off by more than rounding. ``failed``: the error of the exported
    module; ``unknown``: why nothing can be compared. ``names``: parameters with a gradient."""

    loss: float = 0.0
    gradient: float = 0.0
    name: str = ""
    failed: str = ""
    unknown: str = ""
    names: frozenset[str] = frozenset()

    @property
    def wrong(self) -> bool:
        """True if values differ by more than float32's rounding."""
        return bool(self.name) or not self.loss <= RELATIVE
