"""Shared parts of the programs that train translation networks: their options, and data, network and validation together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import click

from taskflow.graph import OperatorGraph
from taskflow.training.data import PAD
from taskflow.training.program import RunConfig, Training
from taskflow.training.translation.batches import TranslationBatches
from taskflow.training.translation.evaluation import MakeTranslator, TranslationEvaluation
from taskflow.training.translation.text import load_translation

DATA_HELP = "Two aligned text files, a sentence a line: --data SOURCE --data TARGET."


@dataclass(frozen=True, slots=True)
class TranslationOptions:
    """Options beyond those of all programs."""

    language: str | None
    beams: int
    sentences: int
    vocabulary: int | None


def translation_options(main: Callable[..., Training]) -> Callable[..., Training]:
    """Decorator that adds the options to a program's function, which takes them by name."""
    for option in (
        click.option("--sentences", type=click.IntRange(1), default=128, show_default=True,
                     help="How many held-out sentences to translate for BLEU."),
        click.option("--beams", type=click.IntRange(1), default=4, show_default=True,
                     help="Beams of the search for translations; 1 is greedy."),
        click.option("--vocabulary", type=click.IntRange(259), metavar="SIZE",
                     help="Most subwords for both languages together (default: the preset's)."),
        click.option("--language", metavar="NAME",
                     help="Which of the message catalogues on this machine, such as de (default: the largest)."),
    ):  # fmt: skip
        main = option(main)
    return main


def translation(
    run: RunConfig, build: Callable[[Any, str], OperatorGraph], translator: MakeTranslator, options: TranslationOptions
) -> Training:
    """Return what to train: the network that ``build`` makes of the preset's config, with the text's vocabulary."""
    text = load_translation(run.data, language=options.language, vocabulary_size=options.vocabulary or run.model.vocabulary)
    config = replace(run.model, batch=run.batch, vocabulary=len(text.subwords), padding=PAD)
    batches = TranslationBatches(text.corpus.split("train"), run.batch, config.steps, run.seed)
    held_out = text.corpus.split("valid")
    evaluation = None
    if len(held_out):
        smoothing = getattr(config, "label_smoothing", 0.0)
        evaluation = TranslationEvaluation(
            # In one order for all seeds, so that runs compare, but not the text's, whose neighbours are alike.
            TranslationBatches(held_out, run.batch, config.steps, full=False), text.subwords, config, translator,
            options.beams, options.sentences,
            plain=build(replace(config, label_smoothing=0.0), run.dtype) if smoothing else None,
        )
    described = f"{text!r}; {batches.pair_count:,} pairs fit into {config.steps} tokens, {batches.too_long:,} do not"
    return Training(
        build(config, run.dtype), batches, "tokens", described, evaluation, measures=("loss", "perplexity", "bleu"),
        facts={"text": text.about, "pairs": batches.pair_count},
    )
