"""What is matched when several functions are one operator (`Fusion`), and who reads what in a recording (`Look`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from taskflow.models.pytorch.recipes import SAME
from taskflow.models.pytorch.steps import Ref, TorchRecording, TorchStep, leaves


@dataclass(frozen=True, slots=True)
class Fusion:
    """``inside``: numbers of the steps that its last step stands for, with it. ``needs``: what it is built of. ``build``: of a name
    and these; None if it is not to be fused after all. ``takes_later``: it takes what is to be swapped (`Later`)."""

    inside: frozenset[int]
    needs: tuple[Ref, ...]
    build: Callable[..., Any]
    takes_later: bool = False


class Look:
    """The steps of a recording, and who reads what they return."""

    def __init__(self, recording: TorchRecording, module: Any) -> None:
        self.steps, self.module = recording.steps, module
        self.taken: set[int] = set()
        self.known: dict[Any, Any] = {}  # what matches have found out already
        self.readers: dict[int, list[int]] = defaultdict(list)
        for step in recording.steps:
            for ref in refs_in((step.args, step.kwargs)) if step.kind != "unused" else ():
                self.readers[ref.step].append(step.number)
        for ref in refs_in(recording.output):
            self.readers[ref.step].append(-1)

    def closed(self, fusion: Fusion) -> bool:
        """True if nobody else reads what is inside, and nothing of it is in another."""
        last = max(fusion.inside)
        return not fusion.inside & self.taken and all(
            set(self.readers[number]) <= fusion.inside for number in fusion.inside if number != last
        )

    def step(self, value: Any, *names: str) -> TorchStep | None:
        """The step that returned a value, if it is a function of one of these names."""
        return function_at(self.steps, value, *names)

    def source(self, value: Any, inside: set[int]) -> Any:
        """What a value was before it was converted to other types; those steps are ``inside``."""
        while (step := self.step(value, *SAME)) is not None:
            inside.add(step.number)
            value = step.args[0]
        return value

    def reader(self, step: TorchStep) -> TorchStep | None:
        """The only function that reads what a step returns."""
        readers = self.readers[step.number]
        found = self.steps[readers[0]] if len(readers) == 1 and readers[0] >= 0 else None
        return found if found is not None and found.kind == "function" else None

    def type(self, ref: Ref) -> torch.dtype:
        """The type of a value."""
        return self.steps[ref.step].values[ref.index].dtype

    def shape(self, ref: Ref) -> tuple[int, ...]:
        """The shape of a value."""
        return tuple(self.steps[ref.step].values[ref.index].shape)

    def parameter(self, value: Any) -> bool:
        """True for a parameter of the module's."""
        return isinstance(value, Ref) and self.steps[value.step].kind == "parameter"


def function_at(steps: Sequence[TorchStep], value: Any, *names: str) -> TorchStep | None:
    """Return the step that returned a value, if it is a function of one of these names."""
    step = steps[value.step] if isinstance(value, Ref) else None
    return step if step is not None and step.kind == "function" and step.name in names else None


def refs_in(nest: Any) -> Iterator[Ref]:
    """Yield the references in a nest."""
    return (leaf for leaf in leaves(nest) if isinstance(leaf, Ref))


def other_operand(step: TorchStep, value: Any) -> Any:
    """Return the other operand of a step of two."""
    if len(step.args) != 2 or step.kwargs:
        return None
    return step.args[1] if step.args[0] == value else step.args[0]
