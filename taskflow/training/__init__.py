"""Update rules, learning-rate schedules, data, metrics, evaluation, weights in files, checkpoints and progress display."""

from taskflow.rules import SGD, Adam, AdamW, UpdateRule
from taskflow.training.batches import LanguageModelBatches, Window
from taskflow.training.checkpoint import Checkpoint, load_checkpoint, read_checkpoint, save_checkpoint
from taskflow.training.corpus import Corpus
from taskflow.training.evaluation import Evaluation, evaluate
from taskflow.training.metrics import Throughput, perplexity
from taskflow.training.progress import TrainingProgress
from taskflow.training.schedules import Constant, Cosine, InverseSqrt, Schedule, StepDecay, ZarembaDecay
from taskflow.training.text import load_corpus, load_files, load_ptb, load_stdlib
from taskflow.training.weights import StoredWeights, load_weights, read_weights, save_weights

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Checkpoint",
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
    "perplexity",
    "read_checkpoint",
    "read_weights",
    "save_checkpoint",
    "save_weights",
]
