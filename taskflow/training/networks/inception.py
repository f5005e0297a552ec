"""Train Inception-v3 on pictures under a strategy that you can swap."""

from __future__ import annotations

from dataclasses import replace

from taskflow.models import InceptionConfig, inception_v3
from taskflow.rules import SGD
from taskflow.training import Cosine, StepDecay
from taskflow.training.program import (
    DATA,
    Preset,
    RunConfig,
    Training,
    example,
    load_images,
    normalised_above_zero,
    workers_option,
)

PRESETS = {
    # The rate falls to nothing, so that the running statistics of so narrow a network settle.
    "small": Preset(
        InceptionConfig(batch=32, image=75, divide=16, dropout=0.1), SGD(lr=5e-3, momentum=0.9), 150,
        Cosine(5e-3, total=150),
    ),
    # Szegedy et al. used RMSProp; this is momentum with their rate of 0.045, falling by 0.94 every two epochs.
    "paper": Preset(
        InceptionConfig(), SGD(lr=0.045, momentum=0.9, weight_decay=4e-5), 1000,
        StepDecay(0.045, every=2, gamma=0.94), clip_norm=2.0, per_processor=True,
    ),
}


@example(PRESETS, **DATA)
@workers_option
def main(run: RunConfig, workers: int | None) -> Training:
    """Inception-v3 on pictures."""
    images = load_images(run, run.model.image, 3, workers)
    graph = inception_v3(replace(run.model, batch=run.batch, classes=images.classes), run.dtype)
    narrow = run.model.divide > 1
    return images.training(graph, normalised_above_zero(graph) if narrow else None)
