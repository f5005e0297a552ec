"""lstm: long short-term memory over a sequence (PyTorch: torch.nn.LSTM, batch first).

Hochreiter and Schmidhuber, "Long short-term memory", Neural Computation 9 (1997); with forget gates, Gers, Schmidhuber
and Cummins, "Learning to forget", Neural Computation 12 (2000).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import numpy as np

from taskflow.operators.concat import concat
from taskflow.operators.dropout import dropout as drop
from taskflow.operators.operator import (
    Array,
    Call,
    Dim,
    Example,
    Init,
    Keeps,
    Operator,
    Reads,
    Soap,
    Spec,
    WeightSpec,
    Work,
    positive,
    register,
    takes,
)
from taskflow.operators.split import split
from taskflow.operators.state import state as zeros
from taskflow.operators.tensor import Parameter, Tensor
from taskflow.regions import Rect


@register("lstm")
@dataclass(frozen=True, slots=True)
class LSTM(Operator):
    """x (N, T, I), h0 (N, H), c0 (N, H) -> y (N, T, H), h_n (N, H), c_n (N, H): one layer over T steps.

        i, f, g, o = sigmoid, sigmoid, tanh, sigmoid of x_t W_ih^T + b_ih + h W_hh^T + b_hh
        c = f c + i g
        h = o tanh(c)

    The first dimension of the weights is the four gates in this order; reshaped to (4 H, ...) they are PyTorch's. H cuts the
    weights (parameter). But each step needs the whole h of the previous one, so H can be cut only if T = 1.

    With ``padding`` there is a fourth input, tokens (N, T) integers. Where the token is ``padding``, h and c keep the values of
    the previous step, so that a sentence's last state does not depend on the padding of its row.
    """

    work: ClassVar[Work] = Work.RECURRENT

    hidden_size: int
    padding: int | None = None

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("lstm", inputs, 3 if self.padding is None else 4)
        positive("lstm", hidden_size=self.hidden_size)
        x, h0, c0 = inputs[:3]
        if len(x.shape) != 3 or not x.differentiable:
            raise ValueError(f"lstm: input must be a float tensor (N, T, features), got {x}")
        state = Spec((x.shape[0], self.hidden_size), x.dtype)
        if h0 != state or c0 != state:
            raise ValueError(f"lstm: initial states must be {state} as the input is {x}, got {h0} and {c0}")
        if inputs[3:] and (inputs[3].shape != x.shape[:2] or inputs[3].dtype.kind not in "iu"):
            raise ValueError(f"lstm: tokens must be integers {x.shape[:2]} as the input is {x}, got {inputs[3]}")
        return (Spec((*x.shape[:2], self.hidden_size), x.dtype), state, state)

    def weights(self, inputs: Sequence[Spec]) -> tuple[WeightSpec, ...]:
        hidden, features = self.hidden_size, inputs[0].shape[2]
        init = Init("uniform", hidden**-0.5)  # torch.nn.LSTM's start
        return (
            WeightSpec("weight_ih", (4, hidden, features), init),
            WeightSpec("weight_hh", (4, hidden, hidden), init),
            WeightSpec("bias_ih", (4, hidden), init),
            WeightSpec("bias_hh", (4, hidden), init),
        )

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        samples, steps, _ = inputs[0].shape
        return (Dim("n", samples, Soap.SAMPLE), Dim("h", self.hidden_size, Soap.PARAMETER, divisible=steps == 1))

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        (n0, a), (n1, b) = piece.lo, piece.hi
        _, steps, features = inputs[0].shape
        hidden = self.hidden_size
        bias = Rect((0, a), (4, b))
        return Reads(
            (
                Rect((n0, 0, 0), (n1, steps, features)), Rect((n0, 0), (n1, hidden)), piece,
                *(Rect((n0, 0), (n1, steps)) for _ in inputs[3:]),
            ),
            (Rect((0, a, 0), (4, b, features)), Rect((0, a, 0), (4, b, hidden)), bias, bias),
        )

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        (n0, a), (n1, b) = piece.lo, piece.hi
        return (Rect((n0, 0, a), (n1, inputs[0].shape[1], b)), piece, piece)

    def keeps(self, inputs: Sequence[Spec]) -> Keeps:
        return Keeps(outputs=inputs[0].shape[1] > 1)  # y holds the h that each step but the first started from

    def saves(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Spec, ...]:
        """Save activations of the gates (T, N, 4, h) and cells (T, N, h), steps first, so that the data of one step are
        contiguous."""
        steps, dtype = inputs[0].shape[1], inputs[0].dtype
        samples, hidden = piece.shape
        return (Spec((steps, samples, 4, hidden), dtype), Spec((steps, samples, hidden), dtype))

    def lays_out(self, inputs: Sequence[Spec], piece: Rect) -> tuple[int, ...]:
        return (1,) if inputs[0].shape[1] > 1 else ()

    def forward(self, call: Call) -> None:
        (x, h0, c, *_), (y, h_n, c_n), (gates, cells) = call.inputs, call.outputs, call.saved
        w_ih, w_hh, b_ih, b_hh = call.weights
        steps, samples, _, hidden = gates.shape
        flat = gates.reshape(steps, samples, 4 * hidden)
        # What comes from x, for all steps in one product; then what comes from h, step by step.
        call.kernels.matmul(_steps_first(x), _rows(w_ih).T, out=flat.reshape(steps * samples, 4 * hidden))
        flat += (b_ih + b_hh).reshape(4 * hidden)
        add_product = call.kernels.multiplier(_rows(w_hh).T, samples, steps, call.stamp(1), call.room(1))
        for t in range(steps):
            add_product(h_n if t else h0, flat[t])
            call.kernels.lstm_cell(gates[t], c, cells[t], h_n)
            if (padded := self._padded(call, t)) is not None:
                np.copyto(h_n, y[:, t - 1] if t else self._own(call, h0), where=padded)
                np.copyto(cells[t], c, where=padded)
            y[:, t] = h_n
            c = cells[t]
        c_n[...] = c

    def backward(self, call: Call) -> None:
        w_ih, w_hh, _, _ = call.weights
        dx, dh0, dc0, *_ = call.grad_inputs
        dgates, dc, dh = self._through_time(call)
        steps, samples, width = dgates.shape
        rows = dgates.reshape(steps * samples, width)
        if dx is not None:
            flat = dx if steps == 1 else None  # for one step the gradient of x already lies in order
            out = flat.array.reshape(samples, -1) if flat else np.empty_like(rows, shape=(len(rows), w_ih.shape[2]))
            call.kernels.matmul(rows, _rows(w_ih), out=out, accumulate=dx.accumulate and flat is not None)
            if flat is None:
                dx.put(out.reshape(steps, samples, -1).swapaxes(0, 1))
        if dh0 is not None:
            call.kernels.matmul(dgates[0], _rows(w_hh), out=dh0.array, accumulate=dh0.accumulate)
            if dh is not None:
                self._own(call, dh0.array)[...] += dh
        if dc0 is not None:
            dc0.put(dc)
        self._weight_gradients(call, rows)

    def _through_time(self, call: Call) -> tuple[Array, Array, Array | None]:
        """Gradients, from the last step to the first: of the gates before activation (T, N, 4 h), of c0 (N, h), and the part of
        h0's (N, h) that bypasses the gates, where the first token is padding."""
        dy, dh_n, dc_n = call.grad_outputs
        gates, cells = call.saved
        c0 = call.inputs[2]
        w_hh = _rows(call.weights[1])
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
        padded = call.inputs[3][:, step : step + 1] == self.padding
        return None if call.kernels.device.waits and not padded.any() else padded

    def _own(self, call: Call, h: Array) -> Array:
        """The columns of an h (N, H) that this piece computes the next value of."""
        return h[:, call.piece.lo[1] : call.piece.hi[1]]

    def _weight_gradients(self, call: Call, rows: Array) -> None:
        """rows (T N, 4 h): gradients of the gates before activation."""
        dw_ih, dw_hh, *biases = call.grad_weights
        if dw_ih is not None:
            x = _steps_first(call.inputs[0])
            call.kernels.matmul(rows.T, x, out=_rows(dw_ih.array), accumulate=dw_ih.accumulate)
        if dw_hh is not None:
            before = _steps_before(call.inputs[1], call.outputs[0]) if len(call.saved[0]) > 1 else call.inputs[1]
            call.kernels.matmul(rows.T, before, out=_rows(dw_hh.array), accumulate=dw_hh.accumulate)
        if any(target is not None for target in biases):
            total = np.empty_like(rows, shape=rows.shape[1:])
            call.kernels.sum_rows(rows, out=total)
            for target in biases:
                if target is not None:
                    target.put(total.reshape(target.array.shape))

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        _, steps, features = inputs[0].shape
        # Two products for four gates; 16 operations on elements: sums and activations of gates, then the cell.
        return piece.volume * steps * (8 * (features + self.hidden_size) + 16)

    @classmethod
    def example(cls, random: Random) -> Example:
        samples, features, hidden = (random.randint(1, 4) for _ in range(3))
        steps = random.choice((1, 1, 2, 3, 4))
        dtype = np.dtype(np.float64)
        state = Spec((samples, hidden), dtype)
        specs = (Spec((samples, steps, features), dtype), state, state)
        if random.random() < 0.4:
            return Example(cls(hidden, random.randrange(2)), (*specs, Spec((samples, steps), np.dtype(np.int64))))
        return Example(cls(hidden), specs)


def _rows(weight: Array) -> Array:
    """(4, h, K) as (4 h, K), the same memory."""
    return weight.reshape(-1, weight.shape[-1])


def _steps_first(x: Array) -> Array:
    """(N, T, K) -> (T N, K)."""
    return x.swapaxes(0, 1).reshape(-1, x.shape[-1])


def _steps_before(h0: Array, y: Array) -> Array:
    """The h that every step started from: h0 (N, H), y (N, T, H) -> (T N, H)."""
    samples, steps, hidden = y.shape
    before = np.empty_like(y, shape=(steps, samples, hidden))
    before[0] = h0
    before[1:] = y[:, :-1].swapaxes(0, 1)
    return before.reshape(-1, hidden)


def lstm_layer(
    input: Tensor,
    hidden_size: int,
    hx: tuple[Tensor, Tensor],
    *,
    padding: tuple[Tensor, int] | None = None,
    name: str | None = None,
    parameters: Sequence[Parameter] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Add one operator: one layer over all steps of ``input``.

    Args: input (N, T, I); hx: the states (h0, c0), each (N, hidden_size), from which the first step starts. ``padding``: tokens
    (N, T) integers, and the padding token, at which the states do not change. Returns y (N, T, hidden_size) and the states
    after the last step, each (N, hidden_size). ``parameters`` shares another layer's (weight_ih, weight_hh, bias_ih, bias_hh).
    """
    tokens, value = padding or (None, None)
    inputs = (input, *hx) if tokens is None else (input, *hx, tokens)
    y, h_n, c_n = input.graph.apply(LSTM(hidden_size, value), inputs, name=name, parameters=parameters)
    return y, h_n, c_n


def lstm(
    input: Tensor,
    hidden_size: int,
    num_layers: int = 1,
    *,
    state: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None,
    steps: int | None = None,
    dropout: float = 0.0,
    name: str | None = None,
) -> tuple[Tensor, tuple[list[Tensor], list[Tensor]]]:
    """Add LSTM layers, one above the other.

    Args: input (N, T, I). ``state``: for every layer h, for every layer c, each (N, hidden_size); zeros if not given.
    ``steps``: how many steps one operator covers (default: all); a layer's operators share its parameters, and each can be cut
    and placed independently. ``dropout``: probability of zeroing, between layers. Returns the last layer's output (N, T,
    hidden_size), and for every layer h and c after the last step.

    Operators are added chunk by chunk and within a chunk layer by layer. So program order is that of a wavefront: layer k can
    work on chunk j while layer k + 1 works on chunk j - 1. The first chunk's operator is named ``name.l<layer>`` and declares
    the parameters, whatever ``steps`` is; later ones are ``name.l<layer>.<chunk>``.
    """
    name = name or "lstm"
    if input.ndim != 3:
        raise ValueError(f"{name}: input must be (N, T, features), got {input}")
    steps = input.shape[1] if steps is None else steps
    positive(name, num_layers=num_layers, hidden_size=hidden_size, steps=steps)
    h, c = _start(input, hidden_size, num_layers, state, name)
    whole = steps >= input.shape[1]
    chunks = (input,) if whole else split(input, steps, 1, name=f"{name}.split")
    shared: list[Sequence[Parameter] | None] = [None] * num_layers
    tops = []
    for chunk, x in enumerate(chunks):
        suffix = f".{chunk}" if chunk else ""
        for layer in range(num_layers):
            if layer and dropout:
                x = drop(x, dropout, name=f"{name}.drop{layer}{suffix}")
            x, h[layer], c[layer] = lstm_layer(
                x, hidden_size, (h[layer], c[layer]), name=f"{name}.l{layer}{suffix}", parameters=shared[layer]
            )
            shared[layer] = input.graph.parameters_of(x)
        tops.append(x)
    return (tops[0] if whole else concat(tops, 1, name=f"{name}.concat")), (h, c)


def _start(
    input: Tensor,
    hidden_size: int,
    num_layers: int,
    state: tuple[Sequence[Tensor], Sequence[Tensor]] | None,
    name: str,
) -> tuple[list[Tensor], list[Tensor]]:
    """The states (h, c) of every layer before the first step."""
    if state is None:
        shape = (input.shape[0], hidden_size)
        h, c = (
            [zeros(input.graph, shape, input.dtype, name=f"{name}.{which}{i}") for i in range(num_layers)]
            for which in "hc"
        )
        return h, c
    h, c = list(state[0]), list(state[1])
    if len(h) != num_layers or len(c) != num_layers:
        raise ValueError(f"{name}: state must have h and c of {num_layers} layers, got {len(h)} and {len(c)}")
    return h, c
