"""Train Mixtral on real text under a strategy that you can swap.

The default text is the source of Python's own standard library, which every machine has.
"""

from __future__ import annotations

from dataclasses import replace

import click

from taskflow.models import MixtralConfig, mixtral
from taskflow.rules import AdamW
from taskflow.training import Cosine
from taskflow.training.evaluation import ExpertEvaluation, ExpertWatch
from taskflow.training.program import DATA_HELP, Preset, RunConfig, Training, example, language_model, text_options

PRESETS = {
    "small": Preset(
        MixtralConfig(
            batch=64, steps=32, vocabulary=4000, hidden=128, inner=176, heads=4, key_heads=2, layers=2, theta=10_000.0, balance=0.01
        ),
        AdamW(lr=3e-3), 300, clip_norm=1.0,
    ),
    # Nothing is published of its training; rate and rule are those of Llama 2 of a like size (arXiv 2307.09288, section 2.2).
    "paper": Preset(
        MixtralConfig(), AdamW(lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1), 500_000,
        Cosine(lr=3e-4, total=500_000, warmup=2_000, floor=3e-5), clip_norm=1.0, per_processor=True,
    ),
}


@example(PRESETS, data="FILE", data_help=DATA_HELP)
@text_options
@click.option("--places", type=click.FloatRange(1), metavar="FACTOR",
              help="Give experts places for so many times the mean of tokens, for plans with eN; experts / chosen: for all tokens, "
              "with the losses of a run without.")
def main(run: RunConfig, ptb: str | None, level: str, places: float | None) -> Training:
    """Mixtral on windows of text."""
    return language_model(replace(run, model=replace(run.model, places=places)), mixtral, ptb, level, ExpertEvaluation, ExpertWatch)
