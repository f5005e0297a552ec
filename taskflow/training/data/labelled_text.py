"""Labelled text for a classifier, from folders of files, CSV or TSV files, or Python's own packages; as numbers of words."""

from __future__ import annotations

import csv
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from taskflow.training.data.fingerprint import digest_of
from taskflow.training.data.protocols import Batches
from taskflow.training.data.rng import Numbers, order
from taskflow.training.data.sampling import LabelledBatch, Sampling
from taskflow.training.data.tokens import TEXT, Numbering, TokenArray, frequent, number_words

# Packages of the standard library that every installation has, each with some hundred kilobytes of source.
PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "urllib", "xml")
_HELD_OUT = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class LabelledText:
    """Texts as numbers. ``tokens`` (count, steps): the first ``steps`` words of each text; shorter ones are padded in front
    with <unk>, number 0 of ``vocabulary``. ``labels`` (count): indices into ``classes``. ``train`` and ``valid``: the indices
    of the texts for training and for validation."""

    tokens: TokenArray
    labels: Numbers
    classes: tuple[str, ...]
    vocabulary: tuple[str, ...]
    train: Numbers
    valid: Numbers

    def __repr__(self) -> str:
        share = np.bincount(self.labels[self.valid]).max() / len(self.valid)
        return (
            f"{len(self.train):,} texts of {self.tokens.shape[1]} words ({len(self.vocabulary):,} different), {len(self.valid):,} "
            f"for validation; classes {', '.join(self.classes[:12])}{' ...' if len(self.classes) > 12 else ''}; "
            f"always naming one would be right for {share:.0%}"
        )


def load_labelled(
    data: Sequence[str | os.PathLike[str]] = (), *, steps: int, vocabulary_size: int, seed: int = 0
) -> LabelledText:
    """Return the texts that ``--data`` names, else pieces of Python's packages.

    ``data``: a folder with a folder of text files for each class, or one with such folders ``train`` and ``test`` (or ``val``,
    ``valid``); or a file ``.csv`` or ``.tsv`` with a label and a text in each row. A second one is for validation. A header may
    name the columns ``label`` (or ``class``) and ``text``; else the first column is the label and the others together are the
    text. Without texts for validation, a tenth, chosen by the seed, is held out. Raises ValueError or OSError that says what is
    wrong.
    """
    paths = [Path(path) for path in data]
    if not paths:
        return _stdlib(steps, vocabulary_size)
    if len(paths) > 2:
        raise ValueError(f"texts: give one file or folder, or one for training and one for validation, got {len(paths)}")
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"texts: there is no file or folder {path}")
    top = paths[0]
    if len(paths) == 1 and top.is_dir() and (top / "train").is_dir():
        held = next((top / name for name in ("test", "val", "valid") if (top / name).is_dir()), None)
        paths = [top / "train", *([held] if held is not None else [])]
    reader = _Reader(steps)
    reader.read(paths[0])
    count = len(reader.labels)
    if len(paths) == 2:
        reader.read(paths[1], known=True)
        train: Numbers = np.arange(count)
        valid: Numbers = np.arange(count, len(reader.labels))
    else:
        chosen = order(seed, 0, count)
        first = count - max(1, int(count * _HELD_OUT))
        train, valid = np.sort(chosen[:first]), np.sort(chosen[first:])
    return reader.result(vocabulary_size, train, valid)


def _stdlib(steps: int, vocabulary_size: int) -> LabelledText:
    """Consecutive pieces of the source of some packages; the class is the package, the last tenth of each file is for
    validation."""
    root = Path(sysconfig.get_paths()["stdlib"])
    reader = _Reader(steps)
    valid: list[bool] = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            if {"test", "tests"} & set(path.parts) or not os.access(path, os.R_OK):
                continue
            tokens = number_words(path, TEXT, reader.numbering)
            count = len(tokens) // steps
            for i in range(count):
                reader.add(package, tokens[i * steps : (i + 1) * steps])
            valid += [i >= count - count // 10 for i in range(count)]
    if len(reader.classes) < 2:
        raise FileNotFoundError(f"texts: this Python has no standard library source in {root}; give texts with --data")
    held = np.array(valid)
    return reader.result(vocabulary_size, np.flatnonzero(~held), np.flatnonzero(held))


class _Reader:
    """Collects texts as rows of numbers of words."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.numbering = Numbering()
        self.classes: dict[str, int] = {}
        self.labels: list[int] = []
        self.rows: list[TokenArray] = []

    def add(self, name: str, words: TokenArray) -> None:
        row = np.zeros(self.steps, np.int32)
        words = words[: self.steps]
        row[self.steps - len(words) :] = words
        self.rows.append(row)
        self.labels.append(self.classes.setdefault(name, len(self.classes)))

    def read(self, path: Path, known: bool = False) -> None:
        """All texts of a folder or of a CSV or TSV file. ``known``: there must be no new class."""
        before, classes = len(self.rows), len(self.classes)
        for name, words in self._folder(path) if path.is_dir() else self._table(path):
            self.add(name, words)
        if len(self.rows) == before:
            raise ValueError(f"texts: {path} has no texts")
        if known and len(self.classes) > classes:
            new = ", ".join(list(self.classes)[classes:][:5])
            raise ValueError(f"texts: {path} has classes that the texts for training lack: {new}")
        if len(self.classes) < 2:
            raise ValueError(f"texts: {path} must have texts of at least two classes, got only {', '.join(self.classes)}")

    def result(self, vocabulary_size: int, train: Numbers, valid: Numbers) -> LabelledText:
        tokens = np.stack(self.rows)
        # As for texts that nobody has seen yet: the vocabulary is that of the training part.
        renumber, vocabulary = frequent([tokens[train].reshape(-1)], self.numbering.names, vocabulary_size)
        return LabelledText(
            renumber[tokens], np.array(self.labels, np.int64), tuple(self.classes), vocabulary, train, valid
        )

    def _folder(self, top: Path) -> Iterator[tuple[str, TokenArray]]:
        for folder in sorted(entry for entry in top.iterdir() if entry.is_dir()):
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    yield folder.name, number_words(path, TEXT, self.numbering)

    def _table(self, path: Path) -> Iterator[tuple[str, TokenArray]]:
        delimiter = {".csv": ",", ".tsv": "\t"}.get(path.suffix.lower())
        if delimiter is None:
            raise ValueError(f"texts: {path} must be a folder, or a file whose name ends in .csv or .tsv")
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
            # In TSV files a quotation mark is usually just that.
            rows = csv.reader(file, delimiter=delimiter, quoting=csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL)
            label, text = 0, None
            for number, row in enumerate(rows, 1):
                if number == 1 and (columns := _header(row)) is not None:
                    label, text = columns
                    continue
                if not row:
                    continue
                if len(row) < 2 or (text is not None and len(row) <= max(label, text)):
                    raise ValueError(f"texts: {path}, row {number}: must have a label and a text, got {len(row)} columns")
                words = " ".join(row[1:]) if text is None else row[text]
                found = TEXT.findall(words)
                yield row[label], np.fromiter(map(self.numbering.__getitem__, islice(found, self.steps)), np.int32)


def _header(row: Sequence[str]) -> tuple[int, int] | None:
    """Columns of label and text, if the row names them."""
    names = [name.strip().lower() for name in row]
    labels = [i for i, name in enumerate(names) if name in ("label", "class")]
    return (labels[0], names.index("text")) if labels and "text" in names else None


class TextBatches(Batches):
    """Batches of the texts of a `LabelledText`, those for training or those for validation, as the inputs ``tokens`` (batch,
    steps) and ``labels`` (batch) of int64. `Sampling` chooses the texts of a batch."""

    def __init__(self, text: LabelledText, batch: int, *, training: bool, seed: int = 0) -> None:
        self.text = text
        self.sampling = Sampling(len(text.train if training else text.valid), batch, training, seed)
        self._texts = text.train if training else text.valid
        self._labels = text.labels[self._texts]

    @property
    def items_per_step(self) -> int:
        return self.sampling.batch

    @property
    def digest(self) -> str:
        return digest_of("texts", self.text.tokens, self._texts, self._labels, self.sampling)

    def __len__(self) -> int:
        return self.sampling.steps

    def at(self, k: int) -> LabelledBatch:
        self.sampling.check(k)
        tokens = np.zeros((self.sampling.batch, self.text.tokens.shape[1]), np.int64)
        for row in range(self.sampling.batch):
            if (index := self.sampling.index(k, row)) is not None:
                tokens[row] = self.text.tokens[self._texts[index]]
        labels = self.sampling.labels(k, self._labels)
        return LabelledBatch({"tokens": tokens, "labels": labels}, self.sampling.epoch(k))
