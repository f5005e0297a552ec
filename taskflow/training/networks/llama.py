"""Train Llama on real text under a strategy that you can swap.

The default text is the source of Python's own standard library, which every machine has.
"""

from __future__ import annotations

from dataclasses import replace

import click

from taskflow.models import LlamaConfig, llama
from taskflow.rules import AdamW
from taskflow.training import Cosine
from taskflow.training.program import DATA_HELP, Preset, RunConfig, Training, example, language_model, text_options

PRESETS = {
    "small": Preset(
        LlamaConfig(
            batch=64, steps=32, vocabulary=4000, hidden=128, inner=352, heads=4, key_heads=2, layers=2, theta=10_000.0, scaling=None
        ),
        AdamW(lr=3e-3), 300, clip_norm=1.0,
    ),
    # Grattafiori et al., arXiv 2407.21783, table 3 and section 3.4.1: 8B.
    "paper": Preset(
        LlamaConfig(), AdamW(lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1), 1_200_000,
        Cosine(lr=3e-4, total=1_200_000, warmup=8_000, floor=3e-6), clip_norm=1.0, per_processor=True,
    ),
}


@example(PRESETS, data="FILE", data_help=DATA_HELP)
@text_options
@click.option("--key-blocks", type=click.IntRange(1), metavar="N",
              help="Attention in N blocks of keys, which plans such as 'c4 ring' deal out (default: all keys together).")
def main(run: RunConfig, ptb: str | None, level: str, key_blocks: int | None) -> Training:
    """Llama on windows of text."""
    return language_model(replace(run, model=replace(run.model, key_blocks=key_blocks)), llama, ptb, level)
