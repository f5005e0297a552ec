"""Update rules, learning-rate schedules, data, metrics and the progress display of a training run."""

from taskflow.rules import SGD, Adam, AdamW, UpdateRule
from taskflow.training.batches import LanguageModelBatches, Window
from taskflow.training.corpus import Corpus
from taskflow.training.metrics import Throughput, perplexity
from taskflow.training.progress import TrainingProgress
from taskflow.training.schedules import Constant, Cosine, InverseSqrt, Schedule, StepDecay, ZarembaDecay
from taskflow.training.text import load_corpus, load_files, load_ptb, load_stdlib

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Constant",
    "Corpus",
    "Cosine",
    "InverseSqrt",
    "LanguageModelBatches",
    "Schedule",
    "StepDecay",
    "Throughput",
    "TrainingProgress",
    "UpdateRule",
    "Window",
    "ZarembaDecay",
    "load_corpus",
    "load_files",
    "load_ptb",
    "load_stdlib",
    "perplexity",
]
