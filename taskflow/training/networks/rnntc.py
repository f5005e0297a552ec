"""Train an LSTM text classifier on real text under a strategy that you can swap."""

from __future__ import annotations

from dataclasses import replace

from taskflow.models import RNNTCConfig, rnntc
from taskflow.rules import Adam
from taskflow.training.data import TextBatches, load_labelled
from taskflow.training.evaluation import MEASURES, ClassifierEvaluation, scores_of
from taskflow.training.program import Preset, RunConfig, Training, example

PRESETS = {
    # With the usual eps of 1e-8, Adam makes steps of gradients that are nothing but rounding.
    "small": Preset(
        RNNTCConfig(batch=128, steps=20, vocabulary=4000, hidden=64), Adam(lr=1e-2, eps=1e-6), 200, clip_norm=5.0
    ),
    "paper": Preset(RNNTCConfig(dropout=0.3), Adam(lr=1e-3), 1000, clip_norm=5.0, per_processor=True),
}


@example(PRESETS, data="PATH", data_help="Folder of texts by class, or CSV or TSV; a second one is for validation.")
def main(run: RunConfig) -> Training:
    """RNNTC on texts with labels."""
    text = load_labelled(run.data, steps=run.model.steps, vocabulary_size=run.model.vocabulary, seed=run.seed)
    config = replace(run.model, batch=run.batch, vocabulary=len(text.vocabulary), classes=len(text.classes))
    graph = rnntc(config, run.dtype)
    batches, valid = (TextBatches(text, run.batch, training=training, seed=run.seed) for training in (True, False))
    evaluation = ClassifierEvaluation(valid, scores_of(graph), limit=-(-5000 // run.batch))
    return Training(graph, batches, "texts", repr(text), evaluation, measures=MEASURES)
