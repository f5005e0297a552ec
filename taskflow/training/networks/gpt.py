"""Train GPT-2 on real text under a strategy that you can swap.

The default text is the source of Python's own standard library, which every machine has.
"""

from __future__ import annotations

from taskflow.models import GPTConfig, gpt
from taskflow.rules import AdamW
from taskflow.training import Cosine
from taskflow.training.program import DATA_HELP, Preset, RunConfig, Training, example, language_model, text_options

PRESETS = {
    "small": Preset(
        GPTConfig(batch=64, steps=32, vocabulary=4000, hidden=128, heads=4, layers=2, dropout=0.0), AdamW(lr=3e-3), 300,
        clip_norm=1.0,
    ),
    # GPT-2's authors say neither rate nor rule; these are of GPT-3's model of the same size (arXiv 2005.14165, table 2.1 and
    # appendix B).
    "paper": Preset(
        GPTConfig(), AdamW(lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1), 100_000,
        Cosine(lr=6e-4, total=100_000, warmup=700, floor=6e-5), clip_norm=1.0, per_processor=True,
    ),
}


@example(PRESETS, data="FILE", data_help=DATA_HELP)
@text_options
def main(run: RunConfig, ptb: str | None, level: str) -> Training:
    """GPT-2 on windows of text."""
    return language_model(run, gpt, ptb, level)
