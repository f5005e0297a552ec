"""Sources of pictures: a folder tree in ImageNet's layout, or scikit-learn's digits."""

from __future__ import annotations

import importlib.util
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from taskflow.training.data.background import Job
from taskflow.training.data.fingerprint import digest_of, digest_of_files
from taskflow.training.data.images.decode import Pixels, enlarged, need_pillow, picture
from taskflow.training.data.rng import Numbers, order

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_HELD_OUT = 0.1  # of the pictures of a tree without validation pictures
_DIGITS_HELD_OUT = 297  # of 1797
# Of ImageNet's pictures, by channel, of values from 0 to 1; and of their grey.
_COLOUR = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_GREY = ((0.449,), (0.226,))


class ImageSource(ABC):
    """Labelled pictures, each made on demand. ``labels`` (count): indices into ``classes``. ``mean`` and ``std``, by channel,
    are of values from 0 to 1."""

    labels: Numbers
    classes: tuple[str, ...]
    shape: tuple[int, int, int]  # (channels, height, width)
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    @abstractmethod
    def digest(self) -> str:
        """Return a text that is equal wherever the pictures and labels are the same."""

    @abstractmethod
    def job(self, index: int, seed: int, number: int | None) -> Job:
        """Return a job that makes picture ``index``: uint8 of ``shape``, augmented at random as sample ``number`` of a run with
        this seed; not augmented if that is None."""


@dataclass(frozen=True, eq=False)
class FolderImages(ImageSource):
    """Picture files, decoded when they are asked for."""

    paths: tuple[str, ...]
    labels: Numbers
    classes: tuple[str, ...]
    shape: tuple[int, int, int]

    @property
    def mean(self) -> tuple[float, ...]:  # type: ignore[override]
        return _COLOUR[0] if self.shape[0] == 3 else _GREY[0]

    @property
    def std(self) -> tuple[float, ...]:  # type: ignore[override]
        return _COLOUR[1] if self.shape[0] == 3 else _GREY[1]

    @property
    def digest(self) -> str:
        """Return a digest of the names below the folder, the sizes of the files, the labels, and the contents of at most 1024
        files, evenly spread (`digest_of_files`); reading all of a large folder would take as long as an epoch. So a picture
        that is replaced by one of the same length is certain to be noticed only in folders of up to 1024."""
        top = os.path.commonpath(self.paths)
        names = [f"{os.path.relpath(path, top)} {os.path.getsize(path)}" for path in self.paths]
        return digest_of("\n".join(names), digest_of_files(self.paths), self.labels, self.classes, self.shape)

    def job(self, index: int, seed: int, number: int | None) -> Job:
        return partial(picture, self.paths[index], self.shape[1], self.shape[0], seed, number)


@dataclass(frozen=True, eq=False)
class Digits(ImageSource):
    """Small grey pictures in memory, enlarged. They are never augmented, since a mirrored digit is not a digit."""

    pixels: Pixels  # (count, 8, 8)
    labels: Numbers
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def digest(self) -> str:
        return digest_of(self.pixels, self.labels, self.shape)

    def job(self, index: int, seed: int, number: int | None) -> Job:
        return partial(enlarged, self.pixels[index], self.shape[1], self.shape[0])


def image_folder(
    folder: str | os.PathLike[str], size: int, channels: int = 3, *, seed: int = 0
) -> tuple[FolderImages, FolderImages]:
    """Return the pictures of a tree in ImageNet's layout, ``train/CLASS/*.jpeg`` and ``val/CLASS/*.jpeg``: those for training,
    and those for validation.

    Without a folder ``train`` the classes are in ``folder`` itself. Without ``val``, a tenth of the pictures, chosen by the
    seed, is held out. Raises OSError or ValueError that says what is missing; ImportError without Pillow.
    """
    need_pillow()
    root = Path(folder)
    if not root.is_dir():
        raise NotADirectoryError(f"images: {root} is no folder; give one that has train/CLASS/*.jpeg and val/CLASS/*.jpeg")
    top = root / "train" if (root / "train").is_dir() else root
    classes = tuple(sorted(entry.name for entry in os.scandir(top) if entry.is_dir()))
    shape = (channels, size, size)
    paths, labels = _files(top, classes, classes)
    if len(classes) < 2:
        raise ValueError(f"images: {top} must have a folder with pictures for each class, got {len(classes)} folders")
    if (root / "val").is_dir() and top is not root:
        theirs = sorted(entry.name for entry in os.scandir(root / "val") if entry.is_dir())
        if unknown := set(theirs) - set(classes):
            raise ValueError(f"images: {root / 'val'} has classes that {top} lacks: {', '.join(sorted(unknown)[:5])}")
        held_paths, held = _files(root / "val", theirs, classes)
    else:
        chosen = order(seed, 0, len(paths))
        first = len(paths) - max(1, int(len(paths) * _HELD_OUT))
        for_training, for_validation = np.sort(chosen[:first]), np.sort(chosen[first:])
        held_paths, held = tuple(paths[i] for i in for_validation), labels[for_validation]
        paths, labels = tuple(paths[i] for i in for_training), labels[for_training]
    return FolderImages(paths, labels, classes, shape), FolderImages(held_paths, held, classes, shape)


def _files(top: Path, folders: Sequence[str], classes: Sequence[str]) -> tuple[tuple[str, ...], Numbers]:
    """Every picture below the folders with the number of its class, in an order that every machine has."""
    numbers = {name: number for number, name in enumerate(classes)}
    paths: list[str] = []
    labels: list[int] = []
    for name in folders:
        before = len(paths)
        for place, below, files in os.walk(top / name):
            below.sort()
            paths += [os.path.join(place, file) for file in sorted(files) if file.lower().endswith(SUFFIXES)]
        if len(paths) == before:
            raise ValueError(f"images: {top / name} has no pictures ({' '.join(SUFFIXES)})")
        labels += [numbers[name]] * (len(paths) - before)
    return tuple(paths), np.array(labels, np.int64)


def digits(size: int, channels: int = 1) -> tuple[Digits, Digits]:
    """Return scikit-learn's 1,797 handwritten digits of 8 x 8, enlarged to ``size``: the first 1,500 for training, the rest for
    validation. Raises ImportError without scikit-learn, or without Pillow where it must enlarge."""
    if size != 8:
        need_pillow()
    images, labels = _load_digits()
    pixels = np.rint(images * (255 / 16)).astype(np.uint8)
    first = len(labels) - _DIGITS_HELD_OUT
    mean, std = float(pixels[:first].mean() / 255), float(pixels[:first].std() / 255)
    about = (tuple("0123456789"), (channels, size, size), (mean,) * channels, (std,) * channels)
    return Digits(pixels[:first], labels[:first], *about), Digits(pixels[first:], labels[first:], *about)


def _load_digits() -> tuple[Any, Numbers]:
    """(count, 8, 8) from 0 to 16, and labels. From scikit-learn's data file if it is where it always was: importing the
    library takes each rank some seconds."""
    spec = importlib.util.find_spec("sklearn")
    file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz" if spec and spec.origin else None
    if file is not None and file.is_file():
        table = np.loadtxt(file, delimiter=",")
        return table[:, :64].reshape(-1, 8, 8), table[:, 64].astype(np.int64)
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            f"the digits come with scikit-learn ({error}); install it: pip install 'soap-taskflow[examples]'; "
            "or give a folder of pictures with --data"
        ) from None
    data: Any = load_digits()
    return data.images, data.target.astype(np.int64)
