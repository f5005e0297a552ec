"""Update rules, learning-rate schedules, data, metrics, evaluation, weights in files, checkpoints and progress display."""

from taskflow.checkpoint import (
    Checkpoint,
    CheckpointWriter,
    StoredWeights,
    load_checkpoint,
    load_weights,
    newest_checkpoint,
    read_checkpoint,
    read_weights,
    save_checkpoint,
    save_weights,
)
from taskflow.rules import SGD, Adam, AdamW, UpdateRule
from taskflow.training.data import Corpus, LanguageModelBatches, Window, load_corpus, load_files, load_ptb, load_stdlib
from taskflow.training.evaluation import Evaluation, Throughput, evaluate, perplexity
from taskflow.training.program import TrainingProgress
from taskflow.training.schedules import Constant, Cosine, InverseSqrt, Schedule, StepDecay, ZarembaDecay

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Checkpoint",
    "CheckpointWriter",
    "Constant",
    "Corpus",
    "Cosine",
    "Evaluation",
    "InverseSqrt",
    "LanguageModelBatches",
    "Schedule",
    "StepDecay",
    "StoredWeights",
    "Throughput",
    "TrainingProgress",
    "UpdateRule",
    "Window",
    "ZarembaDecay",
    "evaluate",
    "load_checkpoint",
    "load_corpus",
    "load_files",
    "load_ptb",
    "load_stdlib",
    "load_weights",
    "newest_checkpoint",
    "perplexity",
    "read_checkpoint",
    "read_weights",
    "save_checkpoint",
    "save_weights",
]
