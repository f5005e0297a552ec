"""Translators: NMT and Transformer as speakers, for `taskflow.models.decode`. The encoder runs once a batch of sentences,
the decoder once a word, each under a strategy of its own, with the weights of training."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskflow.graph import OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import Strategy
from taskflow.models.decode import Array, Speaker
from taskflow.models.nmt import NMTConfig, nmt_decoder, nmt_encoder
from taskflow.models.transformer import TransformerConfig, transformer_decoder, transformer_encoder
from taskflow.operators.tensor import Tensor
from taskflow.runtime.executor import Executor
from taskflow.runtime.local import LocalTransport
from taskflow.runtime.transport import Transport

Plan = Callable[[OperatorGraph], Strategy]


@dataclass(frozen=True, slots=True)
class Parts:
    """A network's encoder and decoder. ``passed``: what the encoder gives, and the decoder's state that it becomes."""

    encoder: OperatorGraph
    decoder: OperatorGraph
    passed: tuple[tuple[Tensor, Tensor], ...]
    source: Tensor | None  # the decoder's state that holds the source
    scores: Tensor


class Translator(Speaker):
    """What the translators share: two executors, forward only, and how values pass from one to the other.

    ``plan`` gives a strategy for each of the two graphs (`taskflow.mapper.alike` that of training).
    """

    def __init__(
        self, config: Any, beams: int, plan: Plan, *, begin: int, end: int, transport: Transport | None = None,
        machine: Machine | None = None, dtype: str = "float32",
    ) -> None:
        if beams < 1:
            raise ValueError(f"Translator: beams must be at least 1, got {beams}")
        self.batch, self.beams, self.steps, self.begin, self.end = config.batch, beams, config.steps, begin, end
        self.transport = transport or LocalTransport()
        self._parts = self._build(config, dtype)

        def executor(graph: OperatorGraph, fetch: Sequence[Tensor]) -> Executor:
            return Executor(graph, plan(graph), transport=self.transport, machine=machine, fetch=fetch)

        self._encoder = executor(self._parts.encoder, [given for given, _ in self._parts.passed])
        self._decoder = executor(self._parts.decoder, [self._parts.scores])

    @abstractmethod
    def _build(self, config: Any, dtype: str) -> Parts:
        """The network's graphs."""

    @abstractmethod
    def _restart(self) -> None:
        """Forget what was said."""

    def load(self, parameters: Mapping[str, Any] | None) -> None:
        """Take over the trained network's whole parameters by name: what `Executor.parameters` returned on this rank, so
        that only rank 0 needs to have any. Raises ValueError if one is missing or of another shape."""
        for part in (self._encoder, self._decoder):
            mine: dict[str, Any] | str = {}
            if self.transport.rank == 0:
                given, names = parameters or {}, [p.name for p in part.graph.parameters]
                missing = [name for name in names if name not in given]
                mine = f"{part.graph.name}: no parameter {', '.join(missing)} given" if missing else {n: given[n] for n in names}
            mine = self.transport.broadcast(mine)
            if isinstance(mine, str):
                raise ValueError(mine)
            part.set_parameters(mine)

    def hear(self, source: Array) -> None:
        self._restart()
        self._encoder.evaluate({"source": source})
        told = self.transport.broadcast({
            state.name: _beside(self._encoder.fetched(given, "evaluate"), state) for given, state in self._parts.passed
        })
        if self._parts.source is not None:
            told[self._parts.source.name] = source
        self._decoder.set_state(told)

    def close(self) -> None:
        """Wait for what was sent."""
        self._encoder.close()
        self._decoder.close()


class NMTTranslator(Translator):
    """NMT: the decoder's states are carried from word to word, where the strategy puts them."""

    def _build(self, config: NMTConfig, dtype: str) -> Parts:
        encoder, decoder = nmt_encoder(config, dtype), nmt_decoder(config, self.beams, dtype)
        states = [pair for given, held in zip(encoder.state, decoder.state) for pair in zip(given, held)]
        passed = ((encoder.memory, decoder.memory), *states)
        return Parts(encoder.graph, decoder.graph, passed, decoder.source, decoder.scores)

    def _restart(self) -> None:
        pass  # the states are set anew with each source

    def scores(self, words: Array, parents: Array) -> Array | None:
        self._decoder.evaluate({"words": words, "parents": parents})
        return self._decoder.fetched(self._parts.scores, "evaluate")


class TransformerTranslator(Translator):
    """Transformer: the decoder goes over the words said so far again for each new one."""

    def _build(self, config: TransformerConfig, dtype: str) -> Parts:
        encoder, decoder = transformer_encoder(config, dtype), transformer_decoder(config, self.beams, dtype)
        passed = ((encoder.memory, decoder.memory),)
        return Parts(encoder.graph, decoder.graph, passed, decoder.source, decoder.scores)

    def _restart(self) -> None:
        self._said, self._count = np.zeros((self.batch, self.beams, self.steps), np.int64), 0

    def scores(self, words: Array, parents: Array) -> Array | None:
        self._said = np.take_along_axis(self._said, parents[:, :, None], axis=1)
        self._said[:, :, self._count] = words
        last = np.full((self.batch * self.beams, 1), self._count, np.int64)
        self._count += 1
        self._decoder.evaluate({"target": self._said, "last": last})
        return self._decoder.fetched(self._parts.scores, "evaluate")


def _beside(value: Array | None, state: Tensor) -> Array | None:
    """The value for each of a sentence's translations, where the decoder has one for each."""
    if value is None or value.shape == state.shape:
        return value
    return np.broadcast_to(value[:, None], state.shape).copy()
