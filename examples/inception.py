"""Train Inception-v3 on pictures under a strategy that you can swap.

    mpirun -n 4 python examples/inception.py                      # small; scikit-learn's digits, enlarged
    mpirun -n 4 python examples/inception.py --mapper search      # finds a plan first, for 5 seconds
    mpirun -n 4 python examples/inception.py --preset paper --data DIR  # full size; DIR has train/CLASS/*.jpeg and val/CLASS/*.jpeg
"""

from __future__ import annotations

from dataclasses import replace

from taskflow import SGD, Adam
from taskflow.models.inception import InceptionConfig, inception_v3
from taskflow.training import StepDecay
from taskflow.training.example import Preset, Run, Training, example
from taskflow.training.images import DATA, load_images, workers_option

PRESETS = {
    "small": Preset(InceptionConfig(batch=32, image=75, divide=16, dropout=0.1), Adam(lr=3e-3), 60),
    # Szegedy et al. used RMSProp; this is momentum with their rate of 0.045, falling by 0.94 every two epochs.
    "paper": Preset(
        InceptionConfig(), SGD(lr=0.045, momentum=0.9, weight_decay=4e-5), 1000,
        StepDecay(0.045, every=2, gamma=0.94), clip_norm=2.0, per_processor=True,
    ),
}


@example(PRESETS, **DATA)
@workers_option
def main(run: Run, workers: int | None) -> Training:
    images = load_images(run, run.model.image, 3, workers)
    return images.training(inception_v3(replace(run.model, batch=run.batch, classes=images.classes), run.dtype))


if __name__ == "__main__":
    main()
