"""Adapters of peft beside the layers of a network, which then trains them alone."""

from __future__ import annotations

import warnings
from typing import Any


def with_adapters(module: Any, rank: int) -> Any:
    """Return a module whose dense layers, all but the one that gives the scores, have adapters of this ``rank``: LoRA, as peft has
    it for ``target_modules="all-linear"`` without dropout (Hu et al., "LoRA: Low-rank adaptation of large language models", arXiv
    2106.09685). Nothing else of it is trained. Changes the module. Raises ImportError without peft, and ValueError for a rank below
    1 or a module that peft has no place for."""
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ValueError(f"hf: lora must be a rank, an integer of 1 or more, got {rank!r}")
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ImportError("hf: lora needs peft: pip install peft") from error
    asked = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what transformers will change
            return get_peft_model(module, asked, autocast_adapter_dtype=False).base_model.model
    except ValueError as error:
        raise ValueError(f"hf: lora: {type(module).__name__}: {error}") from error
