"""gru: gated recurrent units over a sequence (PyTorch: torch.nn.GRU, batch first).

Cho et al., "Learning phrase representations using RNN encoder-decoder", arXiv 1406.1078; PyTorch's order of the product and the
reset gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from taskflow.operators.operator import Array, Call, Example, Spec, positive, register
from taskflow.operators.recurrent import Recurrent, first_states, rows_of, stacked, steps_first
from taskflow.operators.tensor import Parameter, Tensor
from taskflow.regions import Rect


@register("gru")
class GRU(Recurrent):
    """x (N, T, I), h0 (N, H) -> y (N, T, H), h_n (N, H): one layer over T steps.

        r, z = sigmoid of x_t W_ih^T + b_ih + h W_hh^T + b_hh
        n = tanh(x_t W_ih^T + b_ih + r (h W_hh^T + b_hh))
        h = (1 - z) n + z h
    """

    gates = 3
    states = 1

    hidden_size: int
    reverse: bool = False

    def saves(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Spec, ...]:
        """Save r, z, n and what h adds to n before r (T, N, 4, h), steps first."""
        samples, hidden = piece.shape
        return (Spec((inputs[0].shape[1], samples, 4, hidden), inputs[0].dtype),)

    def forward(self, call: Call) -> None:
        (x, h0), (y, h_n), (saved,) = call.inputs, call.outputs, call.saved
        w_ih, w_hh, b_ih, b_hh = call.weights
        y, (steps, samples, _, hidden) = self.turned(y), saved.shape
        given = np.empty_like(saved, shape=(steps, samples, 3, hidden))
        call.kernels.matmul(steps_first(self.turned(x)), rows_of(w_ih).T, out=given.reshape(steps * samples, 3 * hidden))
        given += b_ih
        added = np.empty_like(given[0])
        for t in range(steps):
            call.kernels.matmul(h_n if t else h0, rows_of(w_hh).T, out=added.reshape(samples, 3 * hidden))
            added += b_hh
            gates, here = saved[t], given[t]
            gates[:, :2] = _sigmoid(here[:, :2] + added[:, :2])
            gates[:, 3] = added[:, 2]
            gates[:, 2] = np.tanh(here[:, 2] + gates[:, 0] * added[:, 2])
            before = h_n if t else self.own(call, h0)
            h_n[...] = gates[:, 2] + gates[:, 1] * (before - gates[:, 2])
            y[:, t] = h_n

    def backward(self, call: Call) -> None:
        dh0, w_hh = call.grad_inputs[1], rows_of(call.weights[1])
        of_input, of_state, dh = self._through_time(call)
        steps, samples, width = of_input.shape
        rows = of_input.reshape(steps * samples, width)
        self.put_input_gradient(call, rows, steps)
        if dh0 is not None:
            call.kernels.matmul(of_state[0], w_hh, out=dh0.array, accumulate=dh0.accumulate)
            self.own(call, dh0.array)[...] += dh
        self.put_weight_gradients(call, rows, of_state.reshape(rows.shape))

    def _through_time(self, call: Call) -> tuple[Array, Array, Array]:
        """Gradients of what x and what h add to the gates, (T, N, 3 h) each, and the part of h0's (N, h) that goes past them."""
        (dy, dh_n), (saved,), w_hh = call.grad_outputs, call.saved, rows_of(call.weights[1])
        h0, y = self.own(call, call.inputs[1]), self.turned(call.outputs[0]) if len(call.saved[0]) > 1 else None
        dh = np.zeros_like(saved[0, :, 0]) if dh_n is None else dh_n.copy()
        of_input = np.empty_like(saved, shape=(*saved.shape[:2], 3, saved.shape[3]))
        of_state = np.empty_like(of_input)
        for t in reversed(range(len(saved))):
            if dy is not None:
                dh += self.turned(dy)[:, t]
            r, z, n, added = saved[t].swapaxes(0, 1)
            before = y[:, t - 1] if t and y is not None else h0
            dn = dh * (1 - z) * (1 - n * n)
            dz = dh * (before - n) * z * (1 - z)
            for gate, value in enumerate((dn * added * r * (1 - r), dz, dn)):
                of_input[t, :, gate] = value
            of_state[t] = of_input[t]
            of_state[t, :, 2] *= r
            dh = dh * z
            if t:
                back = np.empty_like(dh)
                call.kernels.matmul(of_state[t].reshape(len(dh), -1), w_hh, out=back)
                dh += back
        shape = (*saved.shape[:2], -1)
        return of_input.reshape(shape), of_state.reshape(shape), dh

    @classmethod
    def example(cls, random: Random) -> Example:
        samples, features, hidden = (random.randint(1, 4) for _ in range(3))
        dtype = np.dtype(np.float64)
        specs = (Spec((samples, random.choice((1, 1, 2, 3, 4)), features), dtype), Spec((samples, hidden), dtype))
        return Example(cls(hidden, random.random() < 0.3), specs)


def _sigmoid(x: Array) -> Array:
    return 0.5 * np.tanh(0.5 * x) + 0.5


def gru_layer(
    input: Tensor, hidden_size: int, h0: Tensor, *, reverse: bool = False, name: str | None = None,
    parameters: Sequence[Parameter] | None = None,
) -> tuple[Tensor, Tensor]:
    """Add one operator: one layer over all steps of ``input`` (N, T, I), from the state h0 (N, hidden_size) on. ``reverse`` and
    ``parameters`` as `lstm_layer` has them. Returns y (N, T, hidden_size) and the state after the last step."""
    y, h = input.graph.apply(GRU(hidden_size, reverse), (input, h0), name=name, parameters=parameters)
    return y, h


def gru(
    input: Tensor, hidden_size: int, num_layers: int = 1, *, state: Sequence[Tensor] | None = None, dropout: float = 0.0,
    both_ways: bool = False, name: str | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """Add layers of gated recurrent units, one above the other.

    Args: input (N, T, I). ``state``: for every layer h (N, hidden_size); zeros if not given. ``dropout``: probability of zeroing,
    between layers. ``both_ways``: as `lstm` has it. Returns the last layer's output (N, T, hidden_size, or twice that), and for
    every layer h after the last step. Its layers are named ``name.l<layer>``.
    """
    name = name or "gru"
    positive(name, num_layers=num_layers, hidden_size=hidden_size)
    count = num_layers * (2 if both_ways else 1)
    h = list(state) if state is not None else first_states(
        input.graph, (input.shape[0], hidden_size), input.dtype, [f"{name}.h{i}" for i in range(count)]
    )
    if len(h) != count:
        raise ValueError(f"{name}: state must have h of {count} layers, got {len(h)}")

    def layer(x: Tensor, states: tuple[Tensor], **options: Any) -> tuple[Tensor, ...]:
        return gru_layer(x, hidden_size, *states, **options)

    y, ends = stacked(input, layer, [(each,) for each in h], dropout=dropout, both_ways=both_ways, name=name)
    return y, [end[0] for end in ends]
