"""Pictures for a program's `RunConfig`: those of ``--data``, or scikit-learn's digits, as batches with their validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

from taskflow.floats import float_type, sums_in
from taskflow.graph import OperatorGraph
from taskflow.runtime.job import node_cores
from taskflow.training.data import Background
from taskflow.training.data.images import ImageBatches, ImageSource, digits, image_folder
from taskflow.training.evaluation import MEASURES, ClassifierEvaluation, scores_of
from taskflow.training.program.example import RunConfig, Training

DATA: Any = {
    "data": "DIR",
    "data_help": "Pictures: DIR/train/CLASS/*.jpeg and DIR/val/CLASS/*.jpeg (default: scikit-learn's digits).",
}
"""The arguments about data of `example`, for every example that trains on pictures."""
_VALIDATED = 5000  # pictures at most

workers_option = click.option(
    "--workers", type=click.IntRange(0), metavar="N",
    help="Background processes of each rank that decode (default: its share of the cores; 0: none).",
)


@dataclass(frozen=True, slots=True)
class Images:
    """Batches of one source of pictures; ``describe``: one line about it."""

    train: ImageBatches
    valid: ImageBatches
    describe: str

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.train.source.classes)

    def training(self, graph: OperatorGraph, initial: Mapping[str, Any] | None = None) -> Training:
        """Return the Training of a classifier (a graph whose loss is called ``loss``) on them. ``initial``: initial values of
        some parameters."""
        limit = -(-_VALIDATED // self.valid.items_per_step)
        evaluation = ClassifierEvaluation(self.valid, scores_of(graph), limit)
        return Training(
            graph, self.train, "images", self.describe, evaluation, measures=MEASURES, lazy=(self.train, self.valid),
            initial=initial or {},
        )


def load_images(
    run: RunConfig, size: int, channels: int, workers: int | None = None, *, name: str = "images", flat: bool = False
) -> Images:
    """Return pictures of (channels, size, size) from the folder that ``--data`` names, else the digits. ``workers``: background
    processes that decode; None: the rank's share of the cores. ``name``: of the graph's input. Raises ValueError, OSError or
    ImportError that says what to do."""
    if len(run.data) > 1:
        raise ValueError(f"images: give one folder with --data, got {len(run.data)}")
    train: ImageSource
    valid: ImageSource
    if run.data:
        train, valid = image_folder(run.data[0], size, channels, seed=run.seed)
        background = Background(max(1, node_cores() // run.ranks) if workers is None else workers)
        where = f"{run.data[0]}, {background.count} processes a rank decode"
    else:
        train, valid = digits(size, channels)
        background = Background(workers or 0)  # enlarging 8 x 8 pixels is not worth a process
        where = "scikit-learn's digits"
    shared: dict[str, Any] = {
        "seed": run.seed, "dtype": sums_in(float_type(run.dtype)).name, "background": background, "name": name, "flat": flat
    }
    describe = (
        f"{len(train.labels):,} pictures of {len(train.classes)} classes, {len(valid.labels):,} for validation ({where})"
    )
    return Images(
        ImageBatches(train, run.batch, training=True, **shared), ImageBatches(valid, run.batch, training=False, **shared),
        describe,
    )


Array = np.ndarray[Any, np.dtype[Any]]


def normalised_above_zero(graph: OperatorGraph, weight: float = 0.2, bias: float = 1.0) -> dict[str, Array]:
    """Return initial values for all batch normalisation, with which its output to a relu is hardly ever negative: 5 standard
    deviations above zero by default.

    In a deep, narrow network with few samples the usual values (weight 1, bias 0) give gradients that are little more than
    noise. If a rounding error moves one relu of thousands across zero, the next step changes by a percent. So two runs that
    differ in the order of their sums soon have different losses. Started on their linear side, such networks train steadily,
    and alike under every strategy.
    """
    values = {}
    for node in graph:
        if node.operator.kind == "normalize":
            for parameter, value in zip(node.parameters, (weight, bias)):
                values[parameter.name] = np.full(parameter.shape, value, parameter.spec.dtype)
    return values
