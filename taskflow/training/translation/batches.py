"""Batches of sentences in two languages, padded to one length, with labels that leave out padding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from taskflow.training.data import BEGIN, END, PAD, Batches, TokenArray, digest_of

IGNORED = -100
"""The label of positions behind the end of a sentence, which adds nothing to the loss."""


@dataclass(frozen=True, slots=True, eq=False)
class TranslationBatch:
    """Data of one step, all (batch, steps) int64. ``source`` and ``labels`` end with END. ``target``, the decoder's input, is
    BEGIN and the labels without END. After the end: PAD, and IGNORED in ``labels``. ``pairs``: the numbers of the sentences in
    its rows; further rows are empty."""

    source: TokenArray
    target: TokenArray
    labels: TokenArray
    pairs: TokenArray
    epoch: int

    @property
    def feeds(self) -> Mapping[str, TokenArray]:
        """Return the arrays by the names of the networks' inputs."""
        return {"source": self.source, "target": self.target, "labels": self.labels}

    @property
    def reset(self) -> bool:
        """False: sentences carry nothing on to others."""
        return False

    @property
    def label_count(self) -> int:
        """Number of labels that count."""
        return int(np.count_nonzero(self.labels != IGNORED))


@dataclass(frozen=True, slots=True, eq=False)
class TranslationBatches(Batches):
    """Batches of a split of a translation corpus: ``tokens`` (count), where source and target follow each other, each ended by
    END.

    Pairs with a side longer than ``steps``, including END, are left out (``too_long``: how many). ``shuffled``: every epoch has
    another order, drawn from ``seed`` and the epoch alone; else the text's order. ``full``: an incomplete batch at the end of
    an epoch is left out (unless there is no other); else it has empty rows. The contents of a batch depend only on these
    values, never on ranks. Rows are not sorted by length: a compiled step has one length, so batches of short sentences would
    take as long as others.
    """

    tokens: TokenArray
    batch: int
    steps: int
    seed: int = 0
    shuffled: bool = True
    full: bool = True
    ends: TokenArray = field(init=False)  # (pairs, 3): where each pair starts, where its target does, and where it ends
    too_long: int = field(init=False)

    def __post_init__(self) -> None:
        for name in ("batch", "steps"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"TranslationBatches: {name} must be a positive integer, got {value!r}")
        ends = np.flatnonzero(self.tokens == END) + 1
        if len(ends) % 2 or (len(ends) and ends[-1] != len(self.tokens)):
            raise ValueError("TranslationBatches: tokens must be sources and targets in turn, each ended by END")
        middles, lasts = ends[0::2], ends[1::2]
        firsts = np.concatenate([np.zeros(min(1, len(lasts)), lasts.dtype), lasts[:-1]])
        table = np.stack([firsts, middles, lasts], axis=1)
        fits = np.diff(table, axis=1).max(axis=1, initial=0) <= self.steps
        if not fits.any():
            raise ValueError(
                f"TranslationBatches: none of {len(table)} pairs has at most {self.steps} tokens on both sides; "
                "give more text or more steps"
            )
        object.__setattr__(self, "ends", table[fits])
        object.__setattr__(self, "too_long", int(len(table) - np.count_nonzero(fits)))

    @property
    def pair_count(self) -> int:
        """Number of pairs of sentences that are short enough."""
        return len(self.ends)

    @property
    def items_per_step(self) -> int:
        """Average number of labels in a batch."""
        lengths = self.ends[:, 2] - self.ends[:, 1]
        return max(1, round(float(lengths.mean()) * min(self.batch, self.pair_count)))

    @property
    def digest(self) -> str:
        return digest_of("pairs", self.tokens, self.batch, self.steps, self.seed, self.shuffled, self.full)

    def at(self, k: int) -> TranslationBatch:
        """Return batch k, counted from 0 over all epochs."""
        if k < 0:
            raise IndexError(f"TranslationBatches: batches count from 0, got {k}")
        epoch, index = divmod(k, len(self))
        rows = slice(index * self.batch, (index + 1) * self.batch)
        count = self.pair_count
        pairs = _order(count, self.seed, epoch)[rows] if self.shuffled else np.arange(count)[rows]
        shape = (self.batch, self.steps)
        source, target = np.full(shape, PAD, np.int64), np.full(shape, PAD, np.int64)
        labels = np.full(shape, IGNORED, np.int64)
        for row, (first, middle, last) in enumerate(self.ends[pairs]):
            source[row, : middle - first] = self.tokens[first:middle]
            labels[row, : last - middle] = self.tokens[middle:last]
            target[row, 0] = BEGIN
            target[row, 1 : last - middle] = self.tokens[middle : last - 1]
        return TranslationBatch(source, target, labels, pairs, epoch)

    def __len__(self) -> int:
        return max(1, self.pair_count // self.batch) if self.full else -(-self.pair_count // self.batch)

    def __iter__(self) -> Iterator[TranslationBatch]:
        """The batches of one epoch."""
        return (self.at(k) for k in range(len(self)))


@lru_cache(maxsize=4)
def _order(count: int, seed: int, epoch: int) -> Any:
    """The numbers below ``count``, shuffled."""
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(count)
