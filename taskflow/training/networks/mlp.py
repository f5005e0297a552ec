"""Train a network of linear layers on handwritten digits under a strategy that you can swap."""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

from taskflow.models import MLPConfig, mlp
from taskflow.rules import SGD
from taskflow.training.program import DATA, Preset, RunConfig, Training, example, load_images, workers_option

PRESETS = {
    "small": Preset(MLPConfig(batch=64, features=64, hidden=(128, 128)), SGD(lr=0.1, momentum=0.9), 150),
    "paper": Preset(
        MLPConfig(batch=64, features=784, hidden=(1024, 1024)), SGD(lr=0.05, momentum=0.9), 1000, per_processor=True
    ),
}


@example(PRESETS, **DATA)
@workers_option
def main(run: RunConfig, workers: int | None) -> Training:
    """Linear layers on grey pictures."""
    images = load_images(run, isqrt(run.model.features), 1, workers, name="features", flat=True)
    return images.training(mlp(replace(run.model, batch=run.batch, classes=images.classes), run.dtype))
