"""Validation: losses and metrics of a network over held-out data."""

from taskflow.training.evaluation.classify import MEASURES, ClassifierEvaluation, scores_of
from taskflow.training.evaluation.evaluate import Evaluation, evaluate
from taskflow.training.evaluation.expert_load import ExpertWatch
from taskflow.training.evaluation.language_model import ExpertEvaluation, LanguageModelEvaluation
from taskflow.training.evaluation.metrics import Throughput, perplexity
