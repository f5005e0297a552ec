"""Train AlexNet on pictures under a strategy that you can swap."""

from __future__ import annotations

from dataclasses import replace

from taskflow.models import AlexNetConfig, alexnet
from taskflow.rules import SGD, Adam
from taskflow.training import StepDecay
from taskflow.training.program import DATA, Preset, RunConfig, Training, example, load_images, workers_option

PRESETS = {
    # With the usual eps of 1e-8, Adam makes steps of gradients that are nothing but rounding.
    "small": Preset(
        AlexNetConfig(batch=64, image=63, channels=(16, 24, 32, 24, 24), pooled=2, hidden=128, dropout=0.1),
        Adam(lr=2e-3, eps=1e-6), 120,
    ),
    # As Krizhevsky, Sutskever and Hinton trained it, at the rate that "One weird trick" has for each 256 pictures.
    "paper": Preset(
        AlexNetConfig(), SGD(lr=0.01, momentum=0.9, weight_decay=5e-4), 1000, StepDecay(0.01, every=30), per_processor=True
    ),
}


@example(PRESETS, **DATA)
@workers_option
def main(run: RunConfig, workers: int | None) -> Training:
    """AlexNet on pictures."""
    images = load_images(run, run.model.image, 3, workers)
    return images.training(alexnet(replace(run.model, batch=run.batch, classes=images.classes), run.dtype))
