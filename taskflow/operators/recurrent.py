"""Recurrent: what layers over a sequence share (lstm, gru): weights of several gates, dimensions, reads, stacks of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from taskflow.operators.concat import concat
from taskflow.operators.dropout import dropout as drop
from taskflow.operators.operator import Array, Call, Keeps, Operator, Reads, Work
from taskflow.operators.spec import Dim, Init, Soap, Spec, WeightSpec, positive, takes
from taskflow.operators.split import split
from taskflow.operators.state import state as zeros
from taskflow.operators.tensor import Builder, Parameter, Tensor
from taskflow.regions import Rect


class Recurrent(Operator):
    """Base of one layer over T steps: x (N, T, I) and `states` states (N, H), of which the first is h, -> y (N, T, H), and the
    states after the last step.

    The first dimension of the weights is its `gates`; reshaped to (gates H, ...) they are PyTorch's. H cuts the weights
    (parameter). But each step needs the whole h of the one before, so H can be cut only if T = 1.

    ``reverse``: steps go from the last to the first, each output at its own step, as the second direction of a bidirectional layer.
    """

    __slots__ = ()

    work = Work.RECURRENT
    gates: ClassVar[int]
    states: ClassVar[int]

    hidden_size: int
    reverse: bool

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes(self.kind, inputs, 1 + self.states)
        return self.outputs_of(inputs)

    def outputs_of(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        """Return y and the last states. Raises ValueError for states or an input of other shapes."""
        positive(self.kind, hidden_size=self.hidden_size)
        x, *given = inputs[: 1 + self.states]
        if len(x.shape) != 3 or not x.differentiable:
            raise ValueError(f"{self.kind}: input must be a float tensor (N, T, features), got {x}")
        state = Spec((x.shape[0], self.hidden_size), x.dtype)
        if any(each != state for each in given):
            text = " and ".join(map(str, given))
            raise ValueError(f"{self.kind}: initial states must be {state} as the input is {x}, got {text}")
        return (Spec((*x.shape[:2], self.hidden_size), x.dtype), *(state,) * self.states)

    def weights(self, inputs: Sequence[Spec]) -> tuple[WeightSpec, ...]:
        hidden, features = self.hidden_size, inputs[0].shape[2]
        init = Init("uniform", hidden**-0.5)  # as PyTorch's layers start
        return (
            WeightSpec("weight_ih", (self.gates, hidden, features), init),
            WeightSpec("weight_hh", (self.gates, hidden, hidden), init),
            WeightSpec("bias_ih", (self.gates, hidden), init),
            WeightSpec("bias_hh", (self.gates, hidden), init),
        )

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        samples, steps, _ = inputs[0].shape
        return (Dim("n", samples, Soap.SAMPLE), Dim("h", self.hidden_size, Soap.PARAMETER, divisible=steps == 1))

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        (n0, a), (n1, b) = piece.lo, piece.hi
        _, steps, features = inputs[0].shape
        hidden, gates = self.hidden_size, self.gates
        bias = Rect((0, a), (gates, b))
        return Reads(
            (
                Rect((n0, 0, 0), (n1, steps, features)), Rect((n0, 0), (n1, hidden)), *(piece,) * (self.states - 1),
                *(Rect((n0, 0), (n1, steps)) for _ in inputs[1 + self.states :]),
            ),
            (Rect((0, a, 0), (gates, b, features)), Rect((0, a, 0), (gates, b, hidden)), bias, bias),
        )

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        (n0, a), (n1, b) = piece.lo, piece.hi
        return (Rect((n0, 0, a), (n1, inputs[0].shape[1], b)), *(piece,) * self.states)

    def keeps(self, inputs: Sequence[Spec]) -> Keeps:
        return Keeps(outputs=inputs[0].shape[1] > 1)  # y holds the h that each step but the first started from

    def lays_out(self, inputs: Sequence[Spec], piece: Rect) -> tuple[int, ...]:
        return (1,) if inputs[0].shape[1] > 1 else ()

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        _, steps, features = inputs[0].shape
        # Two products for each gate; 4 operations on its elements: sums and activations, then the cell.
        return piece.volume * steps * self.gates * (2 * (features + self.hidden_size) + 4)

    # ---- arrays ----------------------------------------------------------------------------------------------------------

    def turned(self, array: Array) -> Array:
        """(N, T, ...) in the order in which steps are computed; the same memory."""
        return array[:, ::-1] if self.reverse and array.shape[1] > 1 else array

    def own(self, call: Call, h: Array) -> Array:
        """The columns of an h (N, H) that this piece computes the next value of."""
        return h[:, call.piece.lo[1] : call.piece.hi[1]]

    def put_input_gradient(self, call: Call, rows: Array, steps: int) -> None:
        """Put the gradient of x, from the gradients of the gates ``rows`` (T N, gates h)."""
        dx, w_ih = call.grad_inputs[0], call.weights[0]
        if dx is None:
            return
        samples = len(rows) // steps
        flat = dx if steps == 1 else None  # for one step the gradient of x already lies in order
        out = flat.array.reshape(samples, -1) if flat else np.empty_like(rows, shape=(len(rows), w_ih.shape[2]))
        call.kernels.matmul(rows, rows_of(w_ih), out=out, accumulate=dx.accumulate and flat is not None)
        if flat is None:
            dx.put(self.turned(out.reshape(steps, samples, -1).swapaxes(0, 1)))

    def put_weight_gradients(self, call: Call, of_input: Array, of_state: Array) -> None:
        """Put the gradients of weights and biases. ``of_input``, ``of_state`` (T N, gates h): gradients of what x and h add to the
        gates, often the same array."""
        dw_ih, dw_hh, db_ih, db_hh = call.grad_weights
        if dw_ih is not None:
            x = steps_first(self.turned(call.inputs[0]))
            call.kernels.matmul(of_input.T, x, out=rows_of(dw_ih.array), accumulate=dw_ih.accumulate)
        if dw_hh is not None:
            before = steps_before(call.inputs[1], self.turned(call.outputs[0])) if len(call.saved[0]) > 1 else call.inputs[1]
            call.kernels.matmul(of_state.T, before, out=rows_of(dw_hh.array), accumulate=dw_hh.accumulate)
        total: Array | None = None
        for rows, target in ((of_input, db_ih), (of_state, db_hh)):
            if target is not None:
                if total is None or of_input is not of_state:
                    total = np.empty_like(rows, shape=rows.shape[1:])
                    call.kernels.sum_rows(rows, out=total)
                target.put(total.reshape(target.array.shape))


def rows_of(weight: Array) -> Array:
    """(gates, h, K) as (gates h, K), the same memory."""
    return weight.reshape(-1, weight.shape[-1])


def steps_first(x: Array) -> Array:
    """(N, T, K) -> (T N, K)."""
    rows = x.swapaxes(0, 1).reshape(-1, x.shape[-1])
    return rows if rows.flags.c_contiguous else rows.copy()  # not where steps are read from the last one on


def steps_before(h0: Array, y: Array) -> Array:
    """The h that every step started from: h0 (N, H), y (N, T, H) -> (T N, H)."""
    samples, steps, hidden = y.shape
    before = np.empty_like(y, shape=(steps, samples, hidden))
    before[0] = h0
    before[1:] = y[:, :-1].swapaxes(0, 1)
    return before.reshape(-1, hidden)


def first_states(graph: Builder, shape: tuple[int, int], dtype: Any, names: Sequence[str]) -> list[Tensor]:
    """Return zeros for the states of layers before the first step."""
    return [zeros(graph, shape, dtype, name=name) for name in names]


Layer = Callable[..., tuple[Tensor, ...]]  # (x, states, reverse=, name=, parameters=) -> y and the last states
States = list[tuple[Tensor, ...]]


def stacked(
    input: Tensor, layer: Layer, start: Sequence[tuple[Tensor, ...]], *, steps: int | None = None, dropout: float = 0.0,
    both_ways: bool = False, name: str,
) -> tuple[Tensor, States]:
    """Add layers, one above the other, each from its states of ``start`` on; ``both_ways``: two for each, whose outputs are side by
    side, and ``start`` has the second's states behind the first's. Other arguments and the order of operators as `lstm`."""
    steps = input.shape[1] if steps is None else steps
    positive(name, steps=steps)
    ways, now = 2 if both_ways else 1, [*start]
    whole = steps >= input.shape[1]
    if both_ways and not whole:
        raise ValueError(f"{name}: the second direction begins with the last step, so that one operator covers all steps")
    shared: list[Sequence[Parameter] | None] = [None] * len(now)
    tops = []
    for chunk, x in enumerate((input,) if whole else split(input, steps, 1, name=f"{name}.split")):
        suffix = f".{chunk}" if chunk else ""
        for number in range(len(now) // ways):
            if number and dropout:
                x = drop(x, dropout, name=f"{name}.drop{number}{suffix}")
            each = []
            for way in range(ways):
                at = number * ways + way
                y, *states = layer(
                    x, now[at], reverse=way == 1, name=f"{name}.l{number}{'_reverse' * way}{suffix}", parameters=shared[at],
                )
                now[at], shared[at] = tuple(states), input.graph.parameters_of(y)
                each.append(y)
            x = each[0] if ways == 1 else concat(each, 2, name=f"{name}.both{number}")
        tops.append(x)
    return (tops[0] if whole else concat(tops, 1, name=f"{name}.concat")), now
