"""Train a Transformer to translate, under a strategy that you can swap, and let it translate.

The default text is the messages of this machine's programs, in English and in another language.
"""

from __future__ import annotations

from taskflow.models import TransformerConfig, transformer
from taskflow.models.decoding import TransformerTranslator
from taskflow.rules import Adam
from taskflow.training import InverseSqrt
from taskflow.training.program import Preset, RunConfig, Training, example
from taskflow.training.translation import DATA_HELP, TranslationOptions, translation, translation_options

PRESETS = {
    "small": Preset(
        TransformerConfig(batch=128, steps=20, vocabulary=4000, hidden=128, inner=256, heads=4, layers=2),
        Adam(lr=2e-3, betas=(0.9, 0.98), eps=1e-9), 300, InverseSqrt(lr=2e-3, warmup=50),
    ),
    # Vaswani et al.'s base model: 4,000 steps of warm-up to 512^-0.5 4000^-0.5.
    "paper": Preset(
        TransformerConfig(batch=64, steps=40, vocabulary=37_000), Adam(lr=7e-4, betas=(0.9, 0.98), eps=1e-9), 100_000,
        InverseSqrt(lr=7e-4, warmup=4_000), per_processor=True,
    ),
}


@example(PRESETS, data="FILE", data_help=DATA_HELP)
@translation_options
def main(run: RunConfig, language: str | None, beams: int, sentences: int, vocabulary: int | None) -> Training:
    """A Transformer on sentences in two languages."""
    return translation(run, transformer, TransformerTranslator, TranslationOptions(language, beams, sentences, vocabulary))
