"""Train an LSTM language model on real text under a strategy that you can swap.

The default text is the source of Python's own standard library, which every machine has.
"""

from __future__ import annotations

from taskflow.models import RNNLMConfig, rnnlm
from taskflow.rules import SGD, Adam
from taskflow.training import ZarembaDecay
from taskflow.training.program import DATA_HELP, Preset, RunConfig, Training, example, language_model, text_options

PRESETS = {
    "small": Preset(RNNLMConfig(batch=256, steps=20, vocabulary=4000, hidden=128), Adam(lr=4e-3), 150, clip_norm=5.0),
    # Zaremba et al.'s large model trains so; the sizes are those of the paper (2 layers of 2048, 40 steps).
    "paper": Preset(
        RNNLMConfig(batch=64, steps=40, vocabulary=10_000, hidden=2048, dropout=0.65), SGD(lr=1.0), 1000,
        ZarembaDecay(lr=1.0, after_epoch=14, factor=1.15), clip_norm=10.0, per_processor=True,
    ),
}


@example(PRESETS, data="FILE", data_help=DATA_HELP)
@text_options
def main(run: RunConfig, ptb: str | None, level: str) -> Training:
    """RNNLM on windows of text."""
    return language_model(run, rnnlm, ptb, level)
