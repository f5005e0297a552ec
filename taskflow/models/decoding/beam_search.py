"""Decoding: the words of a translation network, found greedily or by beam search.

Every rank makes the same calls. A network's scores are known only on the rank of processor 0, which chooses the next words and
sends them to the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from taskflow.runtime.transport import Transport

Array = Any  # numpy.ndarray

ALPHA = 0.6
"""How far scores are normalised by length: Wu et al. found 0.6 to 0.7 best (arXiv 1609.08144, section 7)."""


@dataclass(frozen=True, slots=True)
class Translation:
    """Translation of one sentence. ``words``: its words, including the end word unless it was cut off at the longest length.
    ``log_probability``: of all words together, in nats. ``score``: ``log_probability`` normalised by length, by which beam
    search ranks."""

    words: tuple[int, ...]
    log_probability: float
    score: float


class Speaker(ABC):
    """Translation network that produces one word at a time, for ``beams`` translations of each of ``batch`` sentences side by
    side, at most ``steps`` words. ``begin`` and ``end``: the words that start and end a sentence."""

    batch: int
    beams: int
    steps: int
    begin: int
    end: int
    transport: Transport

    @abstractmethod
    def hear(self, source: Array) -> None:
        """Start with new sentences: source (batch, steps) int64, filled with padding."""

    @abstractmethod
    def scores(self, words: Array, parents: Array) -> Array | None:
        """Return unnormalised scores (batch, beams, vocabulary) of the next word on rank 0, None elsewhere. ``words`` (batch,
        beams): the last word of each translation. Translation b of sentence n continues translation parents[n, b] of the
        previous call."""


def length_penalty(length: int, alpha: float = ALPHA) -> float:
    """Return the number by which log probabilities of ``length`` words are divided for comparison (Wu et al., equation 14)."""
    return float(((5 + length) / 6) ** alpha)


def greedy(speaker: Speaker, source: Array, *, alpha: float = 0.0) -> list[Translation]:
    """Translate by always taking the likeliest word, up to the end word: one translation for each row of source (batch, steps)."""
    speaker.hear(source)
    words, parents = _first(speaker)
    spoken: list[list[int]] = [[] for _ in range(speaker.batch)]
    totals, open_rows = [0.0] * speaker.batch, set(range(speaker.batch))
    for _ in range(speaker.steps):
        scores = speaker.scores(words, parents)
        if scores is not None:
            logs = log_softmax(scores[:, 0])
            words[:] = logs.argmax(axis=1)[:, None]
            for n in sorted(open_rows):
                spoken[n].append(int(words[n, 0]))
                totals[n] += float(logs[n, words[n, 0]])
                if words[n, 0] == speaker.end:
                    open_rows.remove(n)
        words, more = speaker.transport.broadcast((words, bool(open_rows)))
        if not more:
            break
    found = [
        Translation(tuple(s), total, total / length_penalty(len(s), alpha) if s else 0.0) for s, total in zip(spoken, totals)
    ]
    return list(speaker.transport.broadcast(found))


def beam_search(speaker: Speaker, source: Array, *, alpha: float = ALPHA) -> list[list[Translation]]:
    """Return for each row of source (batch, steps) at most ``speaker.beams`` translations, the best first.

    In each step the likeliest continuations are kept, as many as there are beams. A translation that ends keeps its place, so
    with one beam this is `greedy`. Translations that ended or were cut off after ``speaker.steps`` words are ranked by log
    probability / `length_penalty`.
    """
    speaker.hear(source)
    words, parents = _first(speaker)
    beams = [_Beams(speaker.beams, speaker.end) for _ in range(speaker.batch)]
    for step in range(speaker.steps):
        scores = speaker.scores(words, parents)
        if scores is not None:
            logs = log_softmax(scores)
            for n, beam in enumerate(beams):
                words[n], parents[n] = beam.advance(logs[n], last=step == speaker.steps - 1)
        words, parents, more = speaker.transport.broadcast((words, parents, any(b.alive for b in beams)))
        if not more:
            break
    return list(speaker.transport.broadcast([beam.ranked(alpha) for beam in beams]))


@dataclass(slots=True)
class _Beams:
    """Partial translations of one sentence that are still followed, and the translations that ended."""

    width: int
    end: int
    alive: list[tuple[tuple[int, ...], float]] = field(default_factory=lambda: [((), 0.0)])  # words, log probability
    ended: list[tuple[tuple[int, ...], float]] = field(default_factory=list)

    def advance(self, logs: Array, last: bool) -> tuple[Array, Array]:
        """logs (beams, vocabulary) of the next word -> the last word of each beginning and where it goes on from, both
        (beams,); the places that nobody has any more repeat word 0 of beginning 0."""
        words, parents = np.zeros(self.width, np.int64), np.zeros(self.width, np.int64)
        if not self.alive:
            return words, parents
        totals = np.array([total for _, total in self.alive])[:, None] + logs[: len(self.alive)]
        flat, before, self.alive = totals.ravel(), self.alive, []
        for at in _largest(flat, self.width - len(self.ended)):
            parent, word = divmod(int(at), totals.shape[1])
            spoken = ((*before[parent][0], word), float(flat[at]))
            if word == self.end or last:
                self.ended.append(spoken)
            else:
                words[len(self.alive)], parents[len(self.alive)] = word, parent
                self.alive.append(spoken)
        return words, parents

    def ranked(self, alpha: float) -> list[Translation]:
        found = [Translation(words, total, total / length_penalty(len(words), alpha)) for words, total in self.ended]
        return sorted(found, key=lambda t: (-t.score, t.words))


def log_softmax(scores: Array) -> Array:
    """Return the logarithm of softmax over the last dimension of (..., V), in float64."""
    wide = np.asarray(scores, np.float64)
    away = wide - wide.max(axis=-1, keepdims=True)
    return away - np.log(np.exp(away).sum(axis=-1, keepdims=True))


def _largest(values: Array, count: int) -> Array:
    """The places of the ``count`` largest values, the largest first; of equal ones the first."""
    if count < len(values):  # all that equal the last of them too, so that ties do not depend on how it partitions
        limit = -np.partition(-values, count - 1)[count - 1]
        places = np.flatnonzero(values >= limit)
    else:
        places = np.arange(len(values))
    return places[np.argsort(-values[places], kind="stable")][:count]


def _first(speaker: Speaker) -> tuple[Array, Array]:
    """The words and parents of the first step."""
    shape = (speaker.batch, speaker.beams)
    return np.full(shape, speaker.begin, np.int64), np.zeros(shape, np.int64)
