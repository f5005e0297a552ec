"""Interfaces that a training loop uses for any data and validation: batches by number, and measures by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from taskflow.operators.tensor import Tensor
    from taskflow.runtime import Executor

Say = Callable[[str], None]
"""Tells a person one line; does nothing on ranks other than 0, or if nobody wants to hear."""


class Batch(Protocol):
    """One step's data."""

    @property
    def feeds(self) -> Mapping[str, Any]:
        """Return the whole array of every input, by its name; the same on every rank (but see `LazyBatches`)."""

    @property
    def epoch(self) -> int:
        """Number of whole passes over the data before this batch."""

    @property
    def reset(self) -> bool:
        """True if carried state must be zeroed before this batch."""


class Batches(ABC):
    """Data of a run as batches that are asked for by number, so that a resumed run continues where it stopped. The contents of
    a batch depend only on the data, the sizes and the seed, never on ranks or processors."""

    __slots__ = ()

    @property
    @abstractmethod
    def items_per_step(self) -> int:
        """Number of tokens, images or texts in one batch."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """Return a text that is equal wherever the batches are the same (`digest_of` makes one). Ranks compare it, and
        checkpoints store it."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches in one pass over the data, including a last incomplete one."""

    @abstractmethod
    def at(self, k: int) -> Batch:
        """Return batch k, counted from 0 over all epochs. Raises IndexError below 0."""


class LazyBatches(Batches):
    """Batches whose samples are expensive to make, so that a rank makes only those that its pieces read."""

    __slots__ = ()

    @abstractmethod
    def restrict(self, rows: Mapping[str, tuple[int, ...]]) -> None:
        """Limit every later batch to these rows (indices of samples in a batch) of the named inputs; reading another row raises
        LookupError. `rows_read` returns the rows that a rank needs."""

    @abstractmethod
    def close(self) -> None:
        """End background work. Safe to call twice."""


class Validation(ABC):
    """Validation of a model."""

    __slots__ = ()

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of what `measure` returns, in the order in which a person wants to see them."""

    @property
    @abstractmethod
    def each_epoch(self) -> bool:
        """True to measure after each epoch too, not only at the end."""

    @abstractmethod
    def measure(self, executor: Executor, say: Say) -> dict[str, float] | None:
        """Return every name's value, on rank 0 (None elsewhere). Every rank calls it."""


class Watch(ABC):
    """Measurement of training itself, beside the loss."""

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of what is measured."""

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """Tensors that it needs on processor 0 in each training step."""

    @abstractmethod
    def add(self, executor: Executor) -> None:
        """Count a finished training step. Every rank calls it."""

    @abstractmethod
    def take(self) -> dict[str, float] | None:
        """Return the measurement of the steps since the last call, on rank 0 (None elsewhere, and if there were none)."""

    @abstractmethod
    def line(self, found: Mapping[str, float]) -> str:
        """Return the same as a line for people."""
