"""Batches of pictures: shuffled and augmented for training, unchanged for validation, prepared ahead in the background."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping

import numpy as np

from taskflow.training.data.background import Array, Background
from taskflow.training.data.fingerprint import digest_of
from taskflow.training.data.images.sources import ImageSource
from taskflow.training.data.protocols import LazyBatches
from taskflow.training.data.sampling import LabelledBatch, Sampling

_AHEAD = 2  # batches that are being made while another is trained on


class PartOfBatch:
    """The pictures of a batch of which this rank needs some rows, with the part of an array's interface that an input operator
    uses. Values are normalised when they are read, and only those that are read."""

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
        rows = (slice(here, here + end - first),)
        return self._pixels[rows + inside] * self._scale[inside] + self._shift[inside]


class ImageBatches(LazyBatches):
    """Batches of a source's pictures, ``batch`` at a time, under the input names ``images`` (or ``name``) and ``labels``.

    `Sampling` chooses the pictures of a batch. For ``training`` they are augmented, depending on the seed and the number of the
    sample. ``background`` prepares the next batches. ``flat``: a picture is one row of numbers (channels x height x width).
    """

    def __init__(
        self, source: ImageSource, batch: int, *, training: bool, seed: int = 0, dtype: str = "float32",
        background: Background | None = None, name: str = "images", flat: bool = False,
    ) -> None:
        self.source, self.name = source, name
        self.sampling = Sampling(len(source.labels), batch, training, seed)
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
        return self.sampling.batch

    @property
    def digest(self) -> str:
        return digest_of("pictures", self.source.digest, self.sampling, self._shape)

    def __len__(self) -> int:
        return self.sampling.steps

    def at(self, k: int) -> LabelledBatch:
        self.sampling.check(k)
        last = k + _AHEAD if self._background.count else k
        if not self.sampling.training:
            last = min(last, len(self) - 1)
        self._begun = {n: self._begun.get(n) or self._start(n) for n in range(k, last + 1)}
        pixels = np.zeros((len(self._rows), *self._shape[1:]), np.uint8)
        for row, picture in enumerate(self._begun.pop(k)()):
            pixels[row] = picture.reshape(self._shape[1:])
        part = PartOfBatch(self._rows, pixels, self._scale, self._shift, self._shape)
        labels = self.sampling.labels(k, self.source.labels)
        return LabelledBatch({self.name: part, "labels": labels}, self.sampling.epoch(k))

    def restrict(self, rows: Mapping[str, tuple[int, ...]]) -> None:
        self._rows = rows.get(self.name, self._rows)
        self._begun.clear()

    def close(self) -> None:
        self._begun.clear()
        self._background.close()

    def _start(self, k: int) -> Callable[[], list[Array]]:
        sampling, jobs = self.sampling, []
        for row in self._rows:
            if (index := sampling.index(k, row)) is not None:
                jobs.append(self.source.job(index, sampling.seed, sampling.number(k, row) if sampling.training else None))
        return self._background.start(jobs)
