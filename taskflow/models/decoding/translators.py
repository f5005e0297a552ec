"""Translators: NMT and Transformer as speakers, for `beam_search`.

The encoder runs once for a batch of sentences, the decoder once for each word, each under its own strategy, with the trained
weights.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskflow.graph import OperatorGraph
from taskflow.mapper import Strategy
from taskflow.models.decoding.beam_search import Array, Speaker
from taskflow.models.nmt import NMTConfig, nmt_decoder, nmt_encoder
from taskflow.models.transformer import TransformerConfig, transformer_decoder, transformer_encoder
from taskflow.operators.positional_encoding import waves
from taskflow.operators.tensor import Tensor
from taskflow.runtime import Executor

Plan = Callable[[OperatorGraph], Strategy]


@dataclass(frozen=True, slots=True)
class Parts:
    """A network's encoder and decoder. ``passed``: which output of the encoder becomes which state of the decoder."""

    encoder: OperatorGraph
    decoder: OperatorGraph
    passed: tuple[tuple[Tensor, Tensor], ...]
    source: Tensor | None  # the decoder's state that holds the source
    scores: Tensor


class Translator(Speaker):
    """Base of the translators: two forward-only executors, and how values pass from one to the other.

    ``config``: of the trained network, perhaps with another batch or fewer steps. ``trained``: an Executor of it; each
    translation uses its current weights. ``plan`` returns a strategy for each of the two graphs (`taskflow.mapper.alike`
    derives one from the training strategy). Every rank makes the same Translator.
    """

    def __init__(self, config: Any, beams: int, plan: Plan, trained: Executor, *, begin: int, end: int) -> None:
        if beams < 1:
            raise ValueError(f"Translator: beams must be at least 1, got {beams}")
        self.batch, self.beams, self.steps, self.begin, self.end = config.batch, beams, config.steps, begin, end
        self.transport = trained.transport
        self._parts = self._build(config, trained.graph.dtype.name)

        def executor(graph: OperatorGraph) -> Executor:
            strategy = plan(graph)
            machine = trained.machine if strategy.processors == trained.strategy.processors else None
            return Executor(graph, strategy, machine=machine, weights=trained)

        self._encoder, self._decoder = executor(self._parts.encoder), executor(self._parts.decoder)

    @abstractmethod
    def _build(self, config: Any, dtype: str) -> Parts:
        """The network's graphs."""

    @abstractmethod
    def _restart(self) -> None:
        """Forget the words so far."""

    def hear(self, source: Array) -> None:
        self._restart()
        wanted = [given for given, _ in self._parts.passed]
        found: Any = self._encoder.predict({"source": source}, wanted, everywhere=True)
        told = {state.name: _beside(found[given.name], state) for given, state in self._parts.passed}
        if self._parts.source is not None:
            told[self._parts.source.name] = source
        self._decoder.set_state(told)

    def close(self) -> None:
        """Wait until all sends have ended."""
        self._encoder.close()
        self._decoder.close()


class NMTTranslator(Translator):
    """NMT: the decoder's states are carried from word to word, on the processors where the strategy puts them."""

    def _build(self, config: NMTConfig, dtype: str) -> Parts:
        encoder, decoder = nmt_encoder(config, dtype), nmt_decoder(config, self.beams, dtype)
        states = [pair for given, held in zip(encoder.state, decoder.state) for pair in zip(given, held)]
        passed = ((encoder.memory, decoder.memory), *states)
        return Parts(encoder.graph, decoder.graph, passed, decoder.source, decoder.scores)

    def _restart(self) -> None:
        pass  # the states are set anew with each source

    def scores(self, words: Array, parents: Array) -> Array | None:
        return self._decoder.predict({"words": words, "parents": parents}, self._parts.scores)


class TransformerTranslator(Translator):
    """Transformer: keys and values of earlier words are carried from word to word, where the strategy puts them, so that each
    word costs only its own attention to them."""

    def _build(self, config: TransformerConfig, dtype: str) -> Parts:
        encoder, decoder = transformer_encoder(config, dtype), transformer_decoder(config, self.beams, dtype)
        passed = tuple(pair for given, held in zip(encoder.cross_states, decoder.cross_states) for pair in zip(given, held))
        self._waves = waves(config.steps, config.hidden, dtype)
        return Parts(encoder.graph, decoder.graph, passed, decoder.source, decoder.scores)

    def _restart(self) -> None:
        self._decoder.close()  # nothing may be on its way out of the memory that is written now
        self._decoder.reset_state("predict")
        self._count = 0

    def scores(self, words: Array, parents: Array) -> Array | None:
        rows, at = self.batch * self.beams, self._count
        now = np.zeros((rows, self.steps), self._waves.dtype)
        now[:, at] = 1
        here = np.broadcast_to(self._waves[at], (rows, 1, self._waves.shape[1]))
        self._count += 1
        feeds = {"words": words, "parents": parents, "waves": here, "now": now, "lengths": np.full(rows, self._count)}
        return self._decoder.predict(feeds, self._parts.scores)


def _beside(value: Array, state: Tensor) -> Array:
    """The value for each of a sentence's translations, where the decoder has one for each."""
    if value.shape == state.shape:
        return value
    return np.broadcast_to(value[:, None], state.shape).copy()
