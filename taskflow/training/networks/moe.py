"""Train GShard's mixture of experts on real text under a strategy that you can swap.

The default text is the source of Python's own standard library, which every machine has.
"""

from __future__ import annotations

from taskflow.models import MoEConfig, moe
from taskflow.rules import Adam, AdamW
from taskflow.training import InverseSqrt
from taskflow.training.evaluation import ExpertEvaluation, ExpertWatch
from taskflow.training.program import DATA_HELP, Preset, RunConfig, Training, example, language_model, text_options

PRESETS = {
    "small": Preset(
        MoEConfig(
            batch=64, steps=32, vocabulary=4000, hidden=128, inner=256, heads=4, head_size=32, layers=2, experts=8, group=128
        ),
        AdamW(lr=3e-3), 300, clip_norm=1.0,
    ),
    # GShard was trained by Adafactor, which taskflow does not have; the schedule is the Transformer's, as there.
    "paper": Preset(
        MoEConfig(), Adam(lr=1e-3, betas=(0.9, 0.98), eps=1e-9), 250_000, InverseSqrt(lr=1e-3, warmup=10_000), per_processor=True
    ),
}


@example(PRESETS, data="FILE", data_help=DATA_HELP)
@text_options
def main(run: RunConfig, ptb: str | None, level: str) -> Training:
    """A decoder with experts on windows of text."""
    return language_model(run, moe, ptb, level, ExpertEvaluation, ExpertWatch)
