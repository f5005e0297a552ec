"""lstm: long short-term memory over a sequence (PyTorch: torch.nn.LSTM, batch first).

Hochreiter and Schmidhuber, "Long short-term memory", Neural Computation 9 (1997); with forget gates, Gers, Schmidhuber
and Cummins, "Learning to forget", Neural Computation 12 (2000).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from taskflow.operators.operator import Array, Call, Example, Spec, positive, register, takes
from taskflow.operators.recurrent import Recurrent, first_states, rows_of, stacked, steps_first
from taskflow.operators.tensor import Parameter, Tensor
from taskflow.regions import Rect


@register("lstm")
class LSTM(Recurrent):
    """x (N, T, I), h0 (N, H), c0 (N, H) -> y (N, T, H), h_n (N, H), c_n (N, H): one layer over T steps.

        i, f, g, o = sigmoid, sigmoid, tanh, sigmoid of x_t W_ih^T + b_ih + h W_hh^T + b_hh
        c = f c + i g
        h = o tanh(c)

    With ``padding`` there is a fourth input, tokens (N, T) integers. Where the token is ``padding``, h and c keep the values of
    the previous step, so that a sentence's last state does not depend on the padding of its row.
    """

    gates = 4
    states = 2

    hidden_size: int
    padding: int | None = None
    reverse: bool = False

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("lstm", inputs, 3 if self.padding is None else 4)
        if inputs[3:] and (inputs[3].shape != inputs[0].shape[:2] or inputs[3].dtype.kind not in "iu"):
            raise ValueError(f"lstm: tokens must be integers {inputs[0].shape[:2]} as the input is {inputs[0]}, got {inputs[3]}")
        return self.outputs_of(inputs)

    def saves(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Spec, ...]:
        """Save activations of the gates (T, N, 4, h) and cells (T, N, h), steps first, so that the data of one step are
        contiguous."""
        steps, dtype = inputs[0].shape[1], inputs[0].dtype
        samples, hidden = piece.shape
        return (Spec((steps, samples, 4, hidden), dtype), Spec((steps, samples, hidden), dtype))

    def forward(self, call: Call) -> None:
        (x, h0, c, *_), (y, h_n, c_n), (gates, cells) = call.inputs, call.outputs, call.saved
        w_ih, w_hh, b_ih, b_hh = call.weights
        y, (steps, samples, _, hidden) = self.turned(y), gates.shape
        flat = gates.reshape(steps, samples, 4 * hidden)
        # What comes from x, for all steps in one product; then what comes from h, step by step.
        call.kernels.matmul(steps_first(self.turned(x)), rows_of(w_ih).T, out=flat.reshape(steps * samples, 4 * hidden))
        flat += (b_ih + b_hh).reshape(4 * hidden)
        add_product = call.kernels.multiplier(rows_of(w_hh).T, samples, steps, call.stamp(1), call.scratch(1))
        for t in range(steps):
            add_product(h_n if t else h0, flat[t])
            call.kernels.lstm_cell(gates[t], c, cells[t], h_n)
            if (padded := self._padded(call, t)) is not None:
                np.copyto(h_n, y[:, t - 1] if t else self.own(call, h0), where=padded)
                np.copyto(cells[t], c, where=padded)
            y[:, t] = h_n
            c = cells[t]
        c_n[...] = c

    def backward(self, call: Call) -> None:
        w_hh = call.weights[1]
        _, dh0, dc0, *_ = call.grad_inputs
        dgates, dc, dh = self._through_time(call)
        rows = dgates.reshape(-1, dgates.shape[-1])
        self.put_input_gradient(call, rows, len(dgates))
        if dh0 is not None:
            call.kernels.matmul(dgates[0], rows_of(w_hh), out=dh0.array, accumulate=dh0.accumulate)
            if dh is not None:
                self.own(call, dh0.array)[...] += dh
        if dc0 is not None:
            dc0.put(dc)
        self.put_weight_gradients(call, rows, rows)

    def _through_time(self, call: Call) -> tuple[Array, Array, Array | None]:
        """Gradients, from the last step to the first: of the gates before activation (T, N, 4 h), of c0 (N, h), and the part of
        h0's (N, h) that bypasses the gates, where the first token is padding."""
        dy, dh_n, dc_n = call.grad_outputs
        gates, cells = call.saved
        c0 = call.inputs[2]
        dy = None if dy is None else self.turned(dy)
        w_hh = rows_of(call.weights[1])
        dh, dc = (np.zeros_like(c0) if d is None else d.copy() for d in (dh_n, dc_n))
        dgates = np.empty_like(gates)
        flat = dgates.reshape(*gates.shape[:2], -1)
        for t in reversed(range(len(gates))):
            if dy is not None:
                dh += dy[:, t]
            padded = self._padded(call, t)
            if padded is not None:  # these go past the gates
                kept_h, kept_c = np.where(padded, dh, 0), dc.copy()
            call.kernels.lstm_cell_backward(gates[t], cells[t - 1] if t else c0, cells[t], dh, dc, dgates[t])
            if padded is not None:
                np.copyto(dgates[t], 0, where=padded[:, :, None])
                np.copyto(dc, kept_c, where=padded)
            if t:
                call.kernels.matmul(flat[t], w_hh, out=dh)
                if padded is not None:
                    dh += kept_h
        return flat, dc, None if padded is None else kept_h

    def _padded(self, call: Call, step: int) -> Array | None:
        """True for samples whose token is padding, (N, 1); None if it is known that there are none."""
        if self.padding is None:
            return None
        padded = self.turned(call.inputs[3])[:, step : step + 1] == self.padding
        return None if call.kernels.device.waits and not padded.any() else padded

    @classmethod
    def example(cls, random: Random) -> Example:
        samples, features, hidden = (random.randint(1, 4) for _ in range(3))
        steps = random.choice((1, 1, 2, 3, 4))
        dtype = np.dtype(np.float64)
        state = Spec((samples, hidden), dtype)
        specs = (Spec((samples, steps, features), dtype), state, state)
        if random.random() < 0.4:
            tokens = Spec((samples, steps), np.dtype(np.int64))
            return Example(cls(hidden, random.randrange(2), random.random() < 0.3), (*specs, tokens))
        return Example(cls(hidden, None, random.random() < 0.3), specs)


def lstm_layer(
    input: Tensor,
    hidden_size: int,
    hx: tuple[Tensor, Tensor],
    *,
    padding: tuple[Tensor, int] | None = None,
    reverse: bool = False,
    name: str | None = None,
    parameters: Sequence[Parameter] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Add one operator: one layer over all steps of ``input``.

    Args: input (N, T, I); hx: the states (h0, c0), each (N, hidden_size), from which the first step starts. ``padding``: tokens
    (N, T) integers, and the padding token, at which the states do not change. ``reverse``: from the last step to the first.
    Returns y (N, T, hidden_size) and the states after the last step, each (N, hidden_size). ``parameters`` shares another
    layer's (weight_ih, weight_hh, bias_ih, bias_hh).
    """
    tokens, value = padding or (None, None)
    inputs = (input, *hx) if tokens is None else (input, *hx, tokens)
    y, h_n, c_n = input.graph.apply(LSTM(hidden_size, value, reverse), inputs, name=name, parameters=parameters)
    return y, h_n, c_n


def lstm(
    input: Tensor,
    hidden_size: int,
    num_layers: int = 1,
    *,
    state: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None,
    steps: int | None = None,
    dropout: float = 0.0,
    both_ways: bool = False,
    name: str | None = None,
) -> tuple[Tensor, tuple[list[Tensor], list[Tensor]]]:
    """Add LSTM layers, one above the other.

    Args: input (N, T, I). ``state``: for every layer h, for every layer c, each (N, hidden_size); zeros if not given.
    ``steps``: how many steps one operator covers (default: all); a layer's operators share its parameters, and each can be cut
    and placed independently. ``dropout``: probability of zeroing, between layers. ``both_ways``: every layer has a second one
    from the last step to the first, and hands on both outputs side by side; states are of layer 0, its second, layer 1 and so
    on. Returns the last layer's output (N, T, hidden_size, or twice that), and for every layer h and c after the last step.

    Operators are added chunk by chunk and within a chunk layer by layer. So program order is that of a wavefront: layer k can
    work on chunk j while layer k + 1 works on chunk j - 1. The first chunk's operator is named ``name.l<layer>`` and declares
    the parameters, whatever ``steps`` is; later ones are ``name.l<layer>.<chunk>``.
    """
    name = name or "lstm"
    if input.ndim != 3:
        raise ValueError(f"{name}: input must be (N, T, features), got {input}")
    positive(name, num_layers=num_layers, hidden_size=hidden_size)
    count = num_layers * (2 if both_ways else 1)
    if state is None:
        shape = (input.shape[0], hidden_size)
        h, c = (
            first_states(input.graph, shape, input.dtype, [f"{name}.{which}{i}" for i in range(count)]) for which in "hc"
        )
    else:
        h, c = list(state[0]), list(state[1])
    if len(h) != count or len(c) != count:
        raise ValueError(f"{name}: state must have h and c of {count} layers, got {len(h)} and {len(c)}")

    def layer(x: Tensor, states: tuple[Tensor, Tensor], **options: Any) -> tuple[Tensor, ...]:
        return lstm_layer(x, hidden_size, states, **options)

    y, ends = stacked(input, layer, [*zip(h, c)], steps=steps, dropout=dropout, both_ways=both_ways, name=name)
    return y, ([end[0] for end in ends], [end[1] for end in ends])
