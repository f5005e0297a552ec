"""Batches for truncated back-propagation through time: parallel streams of one text, cut into windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskflow.training.data.fingerprint import digest_of
from taskflow.training.data.protocols import Batches
from taskflow.training.data.tokens import TokenArray


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Data of one step. ``inputs`` and ``targets`` (batch, steps): a target is the token after its input. ``reset``: the
    streams start again, so carried state must be zeroed first."""

    inputs: TokenArray
    targets: TokenArray
    epoch: int
    index: int  # of the window in its epoch
    reset: bool

    @property
    def feeds(self) -> Mapping[str, TokenArray]:
        """Return the arrays by the names of the language model's inputs."""
        return {"tokens": self.inputs, "targets": self.targets}


@dataclass(frozen=True, slots=True, eq=False)
class LanguageModelBatches(Batches):
    """Batches of ``tokens`` (count), divided into ``batch`` streams of equal length, each read ``steps`` tokens at a time.

    Row r of window k + 1 continues where row r of window k stopped. The contents of a window depend only on tokens, batch and
    steps, never on ranks. Tokens at the end that fill no window are left out.

    Windows are views of ``tokens`` if these have type ``dtype``, else small converted copies.
    """

    tokens: TokenArray
    batch: int
    steps: int
    dtype: np.dtype[Any] = np.dtype(np.int32)  # noqa: RUF009 (a dtype is immutable)

    def __post_init__(self) -> None:
        for name in ("batch", "steps"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"LanguageModelBatches: {name} must be a positive integer, got {value!r}")
        if self.tokens.ndim != 1:
            raise ValueError(f"LanguageModelBatches: tokens must have one dimension, got shape {self.tokens.shape}")
        if self.steps_per_epoch < 1:
            raise ValueError(
                f"LanguageModelBatches: one window of batch {self.batch} x {self.steps} steps needs "
                f"{self.batch * self.steps + 1:,} tokens, got {len(self.tokens):,}; "
                "give more text, a smaller batch or fewer steps"
            )

    @property
    def stream_length(self) -> int:
        """Number of inputs in each stream."""
        return (len(self.tokens) - 1) // self.batch  # one more token is the last target

    @property
    def steps_per_epoch(self) -> int:
        """Number of windows in one pass over the text."""
        return self.stream_length // self.steps

    @property
    def items_per_step(self) -> int:
        """Number of tokens that one window predicts."""
        return self.batch * self.steps

    @property
    def digest(self) -> str:
        return digest_of("windows", self.tokens, self.batch, self.steps)

    def at(self, k: int) -> Window:
        """Return window k, counted from 0 over all epochs: after the last window of an epoch comes the first again."""
        if k < 0:
            raise IndexError(f"LanguageModelBatches: windows count from 0, got {k}")
        epoch, index = divmod(k, self.steps_per_epoch)
        return Window(self._cut(index, 0), self._cut(index, 1), epoch, index, index == 0)

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[Window]:
        """The windows of one epoch."""
        return (self.at(k) for k in range(self.steps_per_epoch))

    def _cut(self, index: int, shift: int) -> TokenArray:
        """Window ``index`` of every stream of the text that starts ``shift`` tokens late: (batch, steps)."""
        # A stream's last target lies one token after its end, so targets come from the shifted text.
        streams = self.tokens[shift : shift + self.batch * self.stream_length].reshape(self.batch, -1)
        return streams[:, index * self.steps : (index + 1) * self.steps].astype(self.dtype, copy=False)
