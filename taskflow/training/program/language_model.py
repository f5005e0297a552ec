"""Shared parts of the language models' programs: their text, its windows, and their validation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
import numpy as np

from taskflow.graph import OperatorGraph
from taskflow.training.data import LanguageModelBatches, Validation, Watch, load_corpus
from taskflow.training.evaluation import LanguageModelEvaluation
from taskflow.training.program.example import RunConfig, Training

DATA_HELP = "Text file to train on; may be given several times."
Function = Callable[..., Any]


def text_options(function: Function) -> Function:
    """Add the options ``ptb`` and ``level``, for `language_model`."""
    for option in (
        click.option("--level", type=click.Choice(["word", "byte"]), default="word", show_default=True),
        click.option("--ptb", metavar="DIR", help="Folder with ptb.train.txt, ptb.valid.txt and ptb.test.txt."),
    ):
        function = option(function)
    return function


def language_model(
    run: RunConfig, network: Callable[[Any, str], OperatorGraph], ptb: str | None, level: str,
    validate: Callable[[LanguageModelBatches], Validation] = LanguageModelEvaluation,
    watch: Callable[[OperatorGraph], Watch] | None = None,
) -> Training:
    """Return the Training of ``network`` (config, dtype), with inputs tokens and targets (batch, steps), on windows of text.
    ``validate`` makes the validation over windows of other text, ``watch`` what is measured of training."""
    corpus = load_corpus(run.data, ptb, level=level, vocabulary_size=run.model.vocabulary)
    config, integers = replace(run.model, batch=run.batch, vocabulary=len(corpus.vocabulary)), np.dtype("int64")
    batches, valid = LanguageModelBatches(corpus.split("train"), run.batch, config.steps, integers), corpus.split("valid")
    evaluation, names = None, LanguageModelEvaluation.NAMES
    if len(valid) > batches.items_per_step:
        evaluation = validate(LanguageModelBatches(valid, run.batch, config.steps, integers))
        names = evaluation.names
    graph = network(config, run.dtype)
    return Training(
        graph, batches, "tokens", repr(corpus), evaluation, measures=names, watch=None if watch is None else watch(graph)
    )
