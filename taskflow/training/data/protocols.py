"""What a training loop needs of data and of validation, whatever they are: batches by number, and measures by name."""

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
        """The whole array of every input, by its name; the same on every rank (but see `LazyBatches`)."""

    @property
    def epoch(self) -> int:
        """How many whole passes over the data came before, from 0."""

    @property
    def reset(self) -> bool:
        """Carried state must be zeroed before this batch."""


class Batches(ABC):
    """A run's data as batches that are asked for by number, so that a resumed run goes on where it stopped. What a batch
    holds depends on the data, the sizes and the seed only, never on ranks or processors."""

    __slots__ = ()

    @property
    @abstractmethod
    def items_per_step(self) -> int:
        """How many tokens, images or texts one batch has."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """A text that is equal wherever the batches are the same (`digest_of` makes one): ranks compare it, and checkpoints
        keep it."""

    @abstractmethod
    def __len__(self) -> int:
        """How many batches one pass over the data has, a last incomplete one included if there is one."""

    @abstractmethod
    def at(self, k: int) -> Batch:
        """Batch k, counted from 0 over all epochs. IndexError below 0."""


class LazyBatches(Batches):
    """Batches whose samples cost something to make, so that a rank makes only those that its pieces read."""

    __slots__ = ()

    @abstractmethod
    def restrict(self, rows: Mapping[str, tuple[int, ...]]) -> None:
        """From now on every batch needs only these rows (numbers of samples in a batch) of the inputs that are named;
        reading another one raises LookupError. `rows_read` says which a rank needs."""

    @abstractmethod
    def close(self) -> None:
        """End what works in the background. Safe to call twice."""


class Validation(ABC):
    """How a model is validated."""

    __slots__ = ()

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """What `measure` gives, in the order in which a person wants to see it."""

    @property
    @abstractmethod
    def each_epoch(self) -> bool:
        """Measure after each epoch too, not only at the end."""

    @abstractmethod
    def measure(self, executor: Executor, say: Say) -> dict[str, float] | None:
        """Every name's value, on rank 0 (None elsewhere). Every rank calls it."""


class Watch(ABC):
    """What is measured of training itself, beside the loss."""

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is about."""

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """What is brought to processor 0 in each training step for it."""

    @abstractmethod
    def add(self, executor: Executor) -> None:
        """A training step is done. Every rank calls it."""

    @abstractmethod
    def take(self) -> dict[str, float] | None:
        """What the steps since it was asked last had, on rank 0 (None elsewhere, and if there were none)."""

    @abstractmethod
    def line(self, found: Mapping[str, float]) -> str:
        """The same for a person."""
