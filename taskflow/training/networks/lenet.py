"""Train LeNet-5 on handwritten digits under a strategy that you can swap."""

from __future__ import annotations

from dataclasses import replace

from taskflow.models import LeNetConfig, lenet
from taskflow.rules import Adam
from taskflow.training.program import DATA, Preset, RunConfig, Training, example, load_images, workers_option

PRESETS = {
    # With the usual eps of 1e-8, Adam makes steps of gradients that are nothing but rounding.
    "small": Preset(LeNetConfig(batch=64, image=8), Adam(lr=2e-3, eps=1e-6), 150),
    "paper": Preset(LeNetConfig(batch=64, image=28), Adam(lr=1e-3), 1000, per_processor=True),
}


@example(PRESETS, **DATA)
@workers_option
def main(run: RunConfig, workers: int | None) -> Training:
    """LeNet-5 on grey pictures."""
    images = load_images(run, run.model.image, run.model.channels, workers)
    return images.training(lenet(replace(run.model, batch=run.batch, classes=images.classes), run.dtype))
