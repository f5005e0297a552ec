"""Layers that drop something at random in training, and do nothing in evaluation."""

from __future__ import annotations

from typing import Any

from torch import nn

PATHS = ("transformers.models.", "timm.")  # packages whose ...DropPath leaves out whole samples


def is_drop_path(part: nn.Module) -> bool:
    """True for stochastic depth as Hugging Face and timm write it: a class ...DropPath with ``drop_prob``."""
    kind = type(part)
    return kind.__name__.endswith("DropPath") and kind.__module__.startswith(PATHS) and hasattr(part, "drop_prob")


def probability_of(part: Any) -> float:
    """Return with which probability a layer drops; 0 for all layers that do not drop."""
    name = probability_name(part)
    return 0.0 if name is None else float(getattr(part, name) or 0.0)


def probability_name(part: Any) -> str | None:
    """Return the attribute with the probability of dropping of such a layer; None for all other modules."""
    if type(part).__name__ in ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "StochasticDepth"):
        return "p"
    return "drop_prob" if is_drop_path(part) else None
