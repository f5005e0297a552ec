"""Train a translation network of LSTM layers with attention under a strategy that you can swap, and let it translate.

The default text is the messages of this machine's programs, in English and in another language.
"""

from __future__ import annotations

from taskflow.models import NMTConfig, nmt
from taskflow.models.decoding import NMTTranslator
from taskflow.rules import SGD, Adam
from taskflow.training import StepDecay
from taskflow.training.program import Preset, RunConfig, Training, example
from taskflow.training.translation import DATA_HELP, TranslationOptions, translation, translation_options

PRESETS = {
    "small": Preset(NMTConfig(batch=128, steps=20, vocabulary=4000, hidden=128), Adam(lr=4e-3), 300, clip_norm=5.0),
    # Luong et al. train so: rate 1, halved in turn later, gradients clipped to 5; the sizes are those of the paper.
    "paper": Preset(
        NMTConfig(batch=64, steps=40, vocabulary=32_000, hidden=1024, dropout=0.2), SGD(lr=1.0), 10_000,
        StepDecay(lr=1.0, every=5_000, gamma=0.5, by="step"), clip_norm=5.0, per_processor=True,
    ),
}


@example(PRESETS, data="FILE", data_help=DATA_HELP)
@translation_options
def main(run: RunConfig, language: str | None, beams: int, sentences: int, vocabulary: int | None) -> Training:
    """NMT on sentences in two languages."""
    return translation(run, nmt, NMTTranslator, TranslationOptions(language, beams, sentences, vocabulary))
