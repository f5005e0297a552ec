"""Sampling: which samples of a labelled set are in a batch, for training and for validation, of pictures or texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskflow.training.data.rng import Numbers, order

IGNORED = -100
"""The label of a row that is no sample: cross_entropy leaves it out."""


@dataclass(frozen=True, slots=True)
class LabelledBatch:
    """Samples of one step, each independent: no state is carried from one batch to the next."""

    feeds: Mapping[str, Any]
    epoch: int
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Sampling:
    """Choice of ``batch`` of ``count`` samples at a time.

    With ``training``, each epoch has a random order of its own. Samples are numbered over all epochs, and the nth depends only
    on the seed and n, so batches of any size see the same sequence. Otherwise every sample comes once, in one random order that
    is always the same, so that the first batches have all classes; the last batch may have rows without a sample.
    """

    count: int
    batch: int
    training: bool
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch < 1 or self.count < 1:
            raise ValueError(f"Sampling: batch and count of samples must be positive, got {self.batch} and {self.count}")

    @property
    def steps(self) -> int:
        """Number of batches in one pass, including a last incomplete one."""
        return -(-self.count // self.batch)

    def epoch(self, k: int) -> int:
        """Return the number of complete passes before batch k."""
        return k * self.batch // self.count

    def check(self, k: int) -> None:
        """Raise IndexError if there is no batch k."""
        if k < 0 or (not self.training and k >= self.steps):
            raise IndexError(f"batches for {'training' if self.training else 'validation'} count from 0, got {k} of {self.steps}")

    def number(self, k: int, row: int) -> int:
        """Return the number, counted over all epochs, of the sample in a row of batch k."""
        return k * self.batch + row

    def index(self, k: int, row: int) -> int | None:
        """Return the index of the sample in a row of batch k; None for a row without one."""
        epoch, position = divmod(self.number(k, row), self.count)
        if self.training:
            return int(order(self.seed, epoch, self.count)[position])
        return None if epoch else int(order(0, 0, self.count)[position])

    def labels(self, k: int, labels: Numbers) -> Numbers:
        """Return the labels of batch k, with `IGNORED` for rows without a sample."""
        result = np.full(self.batch, IGNORED, np.int64)
        for row in range(self.batch):
            if (index := self.index(k, row)) is not None:
                result[row] = labels[index]
        return result
