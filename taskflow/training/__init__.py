"""Update rules, learning-rate schedules, data, metrics and the progress display of a training run."""

from taskflow.rules import SGD, Adam, AdamW, UpdateRule
from taskflow.training.metrics import Throughput, perplexity
from taskflow.training.schedules import Constant, Cosine, InverseSqrt, Schedule, StepDecay, ZarembaDecay

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "InverseSqrt",
    "Schedule",
    "StepDecay",
    "Throughput",
    "UpdateRule",
    "ZarembaDecay",
    "perplexity",
]
