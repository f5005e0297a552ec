"""Operator: the meaning of one node of a network, wherever its pieces run. Each concrete operator is one file of this package.

An operator is cut over its *iteration space*: one dimension for each dimension along which its work can be divided (SOAP:
sample, attribute, parameter) plus the contracted ones (reduction). A piece is a Rect of that space. `writes` and `reads` map a
piece to the Rects of outputs, inputs and weights that its task touches; everything else (copies, halos, gradient sums, weight
synchronisation, memory, cost) is derived from these two maps.

Its shapes, dimensions and parameters are of spec.py; they can be imported from here as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, final

import numpy as np

from taskflow.kernels import KernelSet
from taskflow.operators.spec import Dim as Dim
from taskflow.operators.spec import Init as Init
from taskflow.operators.spec import Soap as Soap
from taskflow.operators.spec import Spec as Spec
from taskflow.operators.spec import WeightSpec as WeightSpec
from taskflow.operators.spec import axis as axis
from taskflow.operators.spec import positive as positive
from taskflow.operators.spec import sample_and_attributes as sample_and_attributes
from taskflow.operators.spec import takes as takes
from taskflow.regions import Rect

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # typing has it from Python 3.11 on
    def dataclass_transform(**_: Any) -> Callable[[Any], Any]:
        return lambda function: function

Array = Any  # numpy.ndarray or cupy.ndarray


@dataclass(frozen=True, slots=True)
class Reads:
    """Rects that one piece reads, one for each input and weight (an empty Rect: nothing of it)."""

    inputs: tuple[Rect, ...]
    weights: tuple[Rect, ...] = ()


@dataclass(frozen=True, slots=True)
class Keeps:
    """The arrays of the forward task that the backward task reads again; the memory of all others is freed earlier."""

    inputs: bool = True
    weights: bool = True
    outputs: bool = True


NOTHING = Keeps(inputs=False, weights=False, outputs=False)
INPUTS = Keeps(weights=False, outputs=False)
OUTPUTS = Keeps(inputs=False, weights=False)


@dataclass(slots=True)
class Target:
    """Destination of a gradient: the first task to reach ``array`` replaces its contents, later ones add to it."""

    array: Array
    accumulate: bool

    def put(self, value: Array) -> None:
        """Write or add ``value`` (broadcastable to ``array``)."""
        if self.accumulate:
            self.array += value
        else:
            self.array[...] = value


class Scaling(Protocol):
    """Factor of the gradients of a step, so that float16 can hold the small ones."""

    @property
    def scale(self) -> float:
        """Factor of this step."""


@dataclass(slots=True)
class StepState:
    """Values that change from step to step; all tasks of a run share one."""

    seed: int = 0
    step: int = 0
    skipped: int = 0  # of these steps, those without an update, since gradients had overflowed
    run: int = 0  # of the compiled program, training or not; weights that live on from step to step change only between runs
    training: bool = True
    lr: float | None = None  # None: the update rule's own
    scaling: Scaling | None = None
    labels: Mapping[str, int] | None = None  # by loss, the number of this step's labels that count; None: all do
    feeds: dict[str, Array] = field(default_factory=dict)
    identity: object = field(default_factory=object)


@dataclass(slots=True)
class Call:
    """The arguments of one task, bound once when the step is compiled. Every array holds exactly the Rect of its entry in
    ``reads`` or ``writes``. For an empty Rect, and for an input that this step does not read, it has no elements."""

    name: str
    specs: tuple[Spec, ...]  # the whole inputs
    piece: Rect
    reads: Reads
    writes: tuple[Rect, ...]
    kernels: KernelSet
    state: StepState
    inputs: tuple[Array, ...] = ()
    weights: tuple[Array, ...] = ()
    outputs: tuple[Array, ...] = ()
    saved: tuple[Array, ...] = ()
    grad_outputs: tuple[Array | None, ...] = ()  # None: no gradient reaches this output (take it as zero)
    grad_inputs: tuple[Target | None, ...] = ()  # None: nobody needs this gradient
    grad_weights: tuple[Target | None, ...] = ()
    steady: tuple[bool, ...] = ()  # for each weight: nothing else comes to lie in its memory, before the update changes it
    scratches: tuple[Array | None, ...] = ()  # for each weight: see `scratch`

    def stamp(self, weight: int) -> object:
        """Return a version of this weight's memory, which is equal as long as its contents are the same; None if that is not
        known."""
        return (self.state.identity, self.state.run) if self.steady and self.steady[weight] else None

    def scratch(self, weight: int) -> Array | None:
        """Return memory in which a kernel may prepack this weight, if the operator asks for it (`Operator.lays_out`) and the
        step has planned for it. Its contents last from the step's first forward task with this weight to the last."""
        return self.scratches[weight] if self.scratches else None

    @property
    def grad(self) -> Array:
        """Return the gradient of the only output. It exists: backward is not called without any gradient."""
        return self.grad_outputs[0]


@dataclass(frozen=True, slots=True)
class Example:
    """An operator with inputs so small that every cut can be tried; the property suite draws many."""

    operator: Operator
    inputs: tuple[Spec, ...]
    high: int = 2  # integer inputs are drawn from range(high)
    positive: bool = False  # float inputs are drawn above 0


class Work(Enum):
    """Classes of kernels by what limits their speed; machine files name them in ``efficiency``."""

    CONTRACTION = "contraction"  # matrix products
    CONVOLUTION = "convolution"
    RECURRENT = "recurrent"  # products, most of them one time step after the other
    MEMORY = "memory"  # one pass over its arrays


class Operator(ABC):
    """Base of all operators. Subclasses are frozen dataclasses whose fields are the operator's attributes. They hold no shapes
    and no state, so one object may serve many nodes. ``inputs`` are always the specs of the whole input tensors."""

    __slots__ = ()

    kind: ClassVar[str]
    work: ClassVar[Work] = Work.MEMORY
    """What its kernels do, which decides how fast they are predicted to be on a described device."""
    dense_dim: ClassVar[str | None] = None
    """The dimension that the experts' mapper cuts instead of samples in networks that are not recurrent, such as channels."""
    uniform: ClassVar[bool] = True
    """Whether `flops` of a piece follow from the shapes of what it reads and writes. If not, they are a part of `cost_key`."""
    calculates: ClassVar[bool] = True
    """Whether its tasks calculate; if not, they put numbers elsewhere, and 16-bit ones need no conversion."""
    linear: ClassVar[bool] = False
    """Whether its outputs are linear in all of its float inputs together, and `backward` reads none of these, but perhaps its
    integer inputs."""
    stops_gradient: ClassVar[bool] = False
    """Whether no gradient goes through it, as if its inputs did not depend on anything trained."""
    splits_backward: ClassVar[bool] = False
    """Whether `backward` gives the gradients of inputs, and those of weights, by work of their own of about the same size, so that
    a schedule may put one off (zero bubble)."""
    inputs_for_weights: ClassVar[bool] = False  # whether `backward` reads the inputs for the gradients of weights alone
    kept: ClassVar[Keeps] = Keeps()
    """Which forward arrays `backward` reads, unless `keeps` depends on the inputs."""
    flops_per_element: ClassVar[int]
    """Floating-point operations of the forward task for each element of its piece, unless `flops` are counted in another way."""
    backward_flops_per_element: ClassVar[int | None] = None
    """Those of the backward task, if they are not twice the forward's, unless `backward_flops` are counted in another way."""
    summed: ClassVar[int] = 0
    """How many of the last dimensions of its iteration space are summed over, so that its only output has the others."""
    frozen: ClassVar[bool] = False  # whether none of its weights are trained (`taskflow.operators.frozen`)

    @abstractmethod
    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        """Return the outputs' specs. Raises ValueError that says what was required and given if the inputs do not fit."""

    def weights(self, inputs: Sequence[Spec]) -> tuple[WeightSpec, ...]:
        """Return the parameters it needs, of the type of its first output."""
        return ()

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        """Return the iteration space: here the first output's dimensions, all of which can be cut."""
        return sample_and_attributes(outputs_of(self, tuple(inputs))[0].shape)

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        """Return what the task of ``piece`` reads, no more than it needs: here the piece itself, of each input."""
        return Reads((piece,) * len(inputs))

    def unread(self, training: bool) -> tuple[int, ...]:
        """Return the inputs that `forward` (and in training `backward`) does not use. They come as arrays without elements,
        nothing is moved for them, and operators that compute only them do not run in evaluation."""
        return ()

    @final
    def reads_in(self, inputs: Sequence[Spec], piece: Rect, training: bool) -> Reads:
        """Return what the task of ``piece`` reads in training or in evaluation: `reads` without what is `unread` there."""
        reads, unread = self.reads(inputs, piece), self.unread(training)
        if not unread:
            return reads
        nothing = [Rect((0,) * rect.ndim, (0,) * rect.ndim) for rect in reads.inputs]
        return Reads(tuple(nothing[i] if i in unread else rect for i, rect in enumerate(reads.inputs)), reads.weights)

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        """Return what the task of ``piece`` writes of each output: here the piece itself, without dimensions that are `summed`, of
        the only output. Two pieces write disjoint Rects or the same Rect. Pieces that write the same Rect each write a partial
        value, and the output is their sum."""
        return (Rect(piece.lo[: -self.summed], piece.hi[: -self.summed]) if self.summed else piece,)

    def keeps(self, inputs: Sequence[Spec]) -> Keeps:
        """Return which forward arrays `backward` reads: here `kept`."""
        return self.kept

    def saves(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Spec, ...]:
        """Return the buffers that `forward` fills and `backward` reads."""
        return ()

    def lays_out(self, inputs: Sequence[Spec], piece: Rect) -> tuple[int, ...]:
        """Return the weights that `forward` multiplies by so often that prepacking pays; kernels get `Call.scratch` for them."""
        return ()

    def picks(self, inputs: Sequence[Spec], piece: Rect) -> Mapping[int, int]:
        """Return, by the weight's number, the most elements of a weight that a task uses if the data choose them, such as rows
        of a table. The gradient is zero elsewhere. Predicted costs count these instead of everything in `reads`."""
        return {}

    def integers_below(self, inputs: Sequence[Spec]) -> int | None:
        """Return the upper bound (exclusive) of its integer inputs (rows of a table, classes), which are at least 0; None if
        others are permitted too. Random data, for measuring and profiling, respect it."""
        return None

    @abstractmethod
    def forward(self, call: Call) -> None:
        """Fill ``call.outputs`` (and ``call.saved``) from ``call.inputs`` and ``call.weights``."""

    def backward(self, call: Call) -> None:
        """Put the gradients into ``call.grad_inputs`` and ``call.grad_weights``, for the Rects that forward reads.
        ``call.grad_outputs`` has those of the outputs, for the Rects that forward writes. Inputs are handled in order: if two
        are the same tensor, the first replaces its gradient and the second adds to it. Here there are none: of operators that
        stop gradients, or of integers, steps have no backward task; and of flat functions they are 0."""
        for target in call.grad_inputs:
            if target is not None:
                target.put(0.0)

    def computes_in(self, inputs: Sequence[Spec]) -> np.dtype[Any]:
        """Return the type of most of its arithmetic: that of its first float output, else of its first float input, else
        float32."""
        types = (s.dtype for s in (*self.output(inputs), *inputs) if s.differentiable)
        return next(types, np.dtype(np.float32))

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        """Return the floating-point operations of the forward task: here `flops_per_element` for each element of the piece. The
        sum over pieces is that of the whole."""
        return self.flops_per_element * piece.volume

    def backward_flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        """Return the floating-point operations of the backward task; for a contraction there are two products of the forward's
        size."""
        each = self.backward_flops_per_element
        return 2 * self.flops(inputs, piece) if each is None else each * piece.volume

    @classmethod
    @abstractmethod
    def example(cls, random: Random) -> Example:
        """Draw a small random instance for the property suite: odd sizes, every attribute varied."""


REGISTRY: dict[str, type[Operator]] = {}
O = TypeVar("O", bound=type[Operator])


@dataclass_transform(frozen_default=True)
def register(kind: str) -> Callable[[O], O]:
    """Class decorator that makes an operator a frozen dataclass, names its kind and puts it in the registry."""

    def add(of: O) -> O:
        cls: Any = of if "__dataclass_fields__" in vars(of) else dataclass(frozen=True, slots=True)(of)
        if kind in REGISTRY:
            raise ValueError(f"operator kind {kind!r} is registered twice: {REGISTRY[kind].__name__}, {cls.__name__}")
        if cls.backward is Operator.backward and cls.kept != NOTHING:
            raise TypeError(f"operator {kind!r}: {cls.__name__} must have a method backward, or keep NOTHING for one")
        if cls.flops is Operator.flops and not hasattr(cls, "flops_per_element"):
            raise TypeError(f"operator {kind!r}: {cls.__name__} must have flops_per_element, or a method flops")
        cls.kind = kind
        REGISTRY[kind] = cls
        return cls  # type: ignore[no-any-return]

    return add


def iteration_space(operator: Operator, inputs: Sequence[Spec]) -> Rect:
    """Return the whole iteration space as a Rect."""
    return Rect.of([dim.size for dim in operator.dims(inputs)])


@lru_cache(maxsize=1 << 12)
def outputs_of(operator: Operator, inputs: tuple[Spec, ...]) -> tuple[Spec, ...]:
    """Return `Operator.output`, cached."""
    return operator.output(inputs)


@lru_cache(maxsize=1 << 12)
def computes_in(operator: Operator, inputs: tuple[Spec, ...]) -> np.dtype[Any]:
    """Return `Operator.computes_in`, cached."""
    return operator.computes_in(inputs)
