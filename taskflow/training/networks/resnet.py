"""Train ResNet-101 on pictures under a strategy that you can swap."""

from __future__ import annotations

from dataclasses import replace

from taskflow.models import ResNetConfig, resnet
from taskflow.rules import SGD, Adam
from taskflow.training import StepDecay
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
    # With the usual eps of 1e-8, Adam makes steps of gradients that are nothing but rounding.
    "small": Preset(ResNetConfig(batch=64, image=32, blocks=(1, 2, 1, 1), width=8), Adam(lr=1e-3, eps=1e-6), 100),
    # As He et al. trained it (section 3.4); the batch is 64 a processor, theirs was 256 together.
    "paper": Preset(
        ResNetConfig(), SGD(lr=0.1, momentum=0.9, weight_decay=1e-4), 1000, StepDecay(0.1, every=30), per_processor=True
    ),
}


@example(PRESETS, **DATA)
@workers_option
def main(run: RunConfig, workers: int | None) -> Training:
    """ResNet on pictures."""
    images = load_images(run, run.model.image, 3, workers)
    graph = resnet(replace(run.model, batch=run.batch, classes=images.classes), run.dtype)
    narrow = run.model.width < 64
    return images.training(graph, normalised_above_zero(graph) if narrow else None)
