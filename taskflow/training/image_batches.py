"""Batches of pictures: shuffled and altered for training, as they are for validation, made ahead in the background."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskflow.training.background import Array, Background
from taskflow.training.draws import order, sample_at
from taskflow.training.image_sources import ImageSource
from taskflow.training.stream import LazyBatches

IGNORED = -100  # the label of a row that is no sample: cross_entropy leaves it out
_AHEAD = 2  # batches that are being made while another is trained on


@dataclass(frozen=True, slots=True)
class ImageBatch:
    """One step's pictures; ``reset``: carried state does not matter, each picture is for itself."""

    feeds: Mapping[str, Any]
    epoch: int
    reset: bool = False


class PartOfBatch:
    """The pictures of a batch, of which this rank has some rows: what an input operator needs of an array. Values are
    normalised when they are read, and only where."""

    __slots__ = ("_pixels", "_rows", "_scale", "_shift", "dtype", "shape")

    def __init__(
        self, rows: tuple[int, ...], pixels: Array, scale: Array, shift: Array, shape: tuple[int, ...]
    ) -> None:
        self._rows, self._pixels, self._scale, self._shift = rows, pixels, scale, shift
        self.shape, self.dtype = shape, scale.dtype

    def __getitem__(self, key: tuple[slice, ...]) -> Array:
        """The values of a Rect. LookupError if it has rows that this rank did not ask for."""
        first, end = key[0].start, key[0].stop
        here = bisect_left(self._rows, first)
        if self._rows[here : here + end - first] != tuple(range(first, end)):
            raise LookupError(f"samples {first} to {end - 1} of the batch are not all made on this rank; restrict() named others")
        inside = key[1:]
        return self._pixels[(slice(here, here + end - first), *inside)] * self._scale[inside] + self._shift[inside]


class ImageBatches(LazyBatches):
    """Pictures of a source, ``batch`` at a time, under the input names ``images`` (or ``name``) and ``labels``.

    ``training``: each epoch in a random order, altered; the order and what happens to sample n depend on the seed and n
    only, where n counts samples over all epochs, so batches of any size see the same sequence. Otherwise as they
    are, in one random order that is always the same, so that the first batches have all classes; the last batch is filled
    up with rows labelled -100.
    ``flat``: a picture is one row of numbers (channels x height x width).
    """

    def __init__(
        self, source: ImageSource, batch: int, *, training: bool, seed: int = 0, dtype: str = "float32",
        background: Background | None = None, name: str = "images", flat: bool = False,
    ) -> None:
        if batch < 1:
            raise ValueError(f"ImageBatches: batch must be a positive integer, got {batch!r}")
        self.source, self.batch, self.training, self.seed, self.name = source, batch, training, seed, name
        self._background = background or Background(0)
        sample = (int(np.prod(source.shape)),) if flat else source.shape
        self._shape = (batch, *sample)
        std = np.array(source.std)[:, None, None]
        mean = np.array(source.mean)[:, None, None]
        self._scale = np.broadcast_to(1 / (255 * std), source.shape).reshape(sample).astype(dtype)
        self._shift = np.broadcast_to(-mean / std, source.shape).reshape(sample).astype(dtype)
        self._rows = tuple(range(batch))
        self._begun: dict[int, Callable[[], list[Array]]] = {}

    @property
    def items_per_step(self) -> int:
        return self.batch

    def __len__(self) -> int:
        return -(-len(self.source.labels) // self.batch)

    def at(self, k: int) -> ImageBatch:
        if k < 0 or (not self.training and k >= len(self)):
            raise IndexError(f"ImageBatches: batches count from 0 to {len(self) - 1}, got {k}")
        for later in range(k, k + 1 + _AHEAD if self._background.count else k + 1):
            if later not in self._begun and (self.training or later < len(self)):
                self._begun[later] = self._start(later)
        for other in [other for other in self._begun if not k <= other <= k + _AHEAD]:
            del self._begun[other]  # asked for out of order
        made = self._begun.pop(k)()
        pixels = np.zeros((len(self._rows), *self._shape[1:]), np.uint8)
        for row, picture in enumerate(made):
            pixels[row] = picture.reshape(self._shape[1:])
        part = PartOfBatch(self._rows, pixels, self._scale, self._shift, self._shape)
        return ImageBatch({self.name: part, "labels": self._labels(k)}, k * self.batch // len(self.source.labels))

    def restrict(self, rows: Mapping[str, tuple[int, ...]]) -> None:
        self._rows = rows.get(self.name, self._rows)
        self._begun.clear()

    def close(self) -> None:
        self._begun.clear()
        self._background.close()

    def _sample(self, number: int) -> int | None:
        """The picture of the sample of this number; None after the end of validation."""
        count = len(self.source.labels)
        if self.training:
            return sample_at(self.seed, number, count)
        return int(order(0, 0, count)[number]) if number < count else None

    def _start(self, k: int) -> Callable[[], list[Array]]:
        jobs = []
        for row in self._rows:
            number = k * self.batch + row
            if (index := self._sample(number)) is not None:
                jobs.append(self.source.job(index, self.seed, number if self.training else None))
        return self._background.start(jobs)

    def _labels(self, k: int) -> Array:
        result = np.full(self.batch, IGNORED, np.int64)
        for row in range(self.batch):
            if (index := self._sample(k * self.batch + row)) is not None:
                result[row] = self.source.labels[index]
        return result
