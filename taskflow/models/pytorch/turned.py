"""Linear layers whose weights are turned round: (inputs, outputs) instead of (outputs, inputs), as in Hugging Face's GPT-2."""

from __future__ import annotations

from typing import Any

CONV1D = "transformers.pytorch_utils.Conv1D"


def is_turned(part: Any) -> bool:
    """True for a layer x weight + bias that has its weight as (inputs, outputs)."""
    kind = type(part)
    return f"{kind.__module__}.{kind.__qualname__}" == CONV1D
