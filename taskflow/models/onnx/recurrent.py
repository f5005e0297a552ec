"""Handlers of LSTM and GRU, whose initializers have the arrays of both directions, in ONNX's order of gates."""

from __future__ import annotations

from typing import Any

from taskflow import operators as ops
from taskflow.models.onnx.context import ArrayPart, Context, Unknown, name_of, says
from taskflow.operators.gru import gru_layer
from taskflow.operators.lstm import lstm_layer
from taskflow.operators.recurrent import first_states
from taskflow.operators.tensor import Tensor

GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}
"""Where ours are among theirs: input, output, forget, cell; update, reset, hidden."""


@says("LSTM", "GRU")
def recurrent(c: Context, node: Any) -> tuple[Tensor, ...]:
    """A layer over (T, N, I), in one direction or in both: y (T, directions, N, H), and its last states (directions, N, H)."""
    kind, name, order = node.op_type, name_of(node), GATES[node.op_type]
    attrs = c.attributes(
        node, direction="forward", hidden_size=None, layout=0, activations=None, **(
            {"input_forget": 0} if kind == "LSTM" else {"linear_before_reset": 0}
        ),
    )
    _require_usual(c, node, attrs)
    ways = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[attrs["direction"]]
    x, w, r, b = c.tensor(node, 0), c.weight(node, 1), c.weight(node, 2), c.weight(node, 3)
    hidden, gates = r.array.shape[2], len(order)
    x = ops.transpose(x, 0, 1, name=f"{name}.samples")
    shape = (x.shape[0], hidden)
    states = [_first(c, node, number, len(ways)) for number in range(5, 5 + (2 if kind == "LSTM" else 1))]
    each: list[tuple[Tensor, ...]] = []
    for way, reverse in enumerate(ways):
        at = f"{name}.way{way}" if len(ways) > 1 else name
        both = (gates, hidden)
        own = [
            w.part(ArrayPart((*both, x.shape[2]), way, order=order)), r.part(ArrayPart((*both, hidden), way, order=order)),
            b.part(ArrayPart(both, way, 0, gates * hidden, order)), b.part(ArrayPart(both, way, gates * hidden, None, order)),
        ]
        start = [
            first_states(c.graph, shape, x.dtype, [f"{at}.state{k}"])[0] if given is None
            else ops.select(given, 0, way, name=f"{at}.state{k}") for k, given in enumerate(states)
        ]
        each.append(_layer(kind, x, hidden, start, reverse, at))
        c.own(each[-1][0], *own)
    ends = [_joined([part[k] for part in each], 0, f"{name}.last{k}") for k in range(1, 1 + len(states))]
    rows = [ops.transpose(part[0], 0, 1, name=f"{name}.steps{i}") for i, part in enumerate(each)]
    return (_joined(rows, 1, f"{name}.both"), *ends)


def _layer(kind: str, x: Tensor, hidden: int, start: list[Tensor], reverse: bool, name: str) -> tuple[Tensor, ...]:
    if kind == "LSTM":
        return lstm_layer(x, hidden, (start[0], start[1]), reverse=reverse, name=name)
    return gru_layer(x, hidden, start[0], reverse=reverse, name=name)


def _joined(parts: list[Tensor], dim: int, name: str) -> Tensor:
    """Tensors along a new dimension of the directions."""
    alone = [ops.reshape(p, (*p.shape[:dim], 1, *p.shape[dim:]), name=f"{name}.{i}") for i, p in enumerate(parts)]
    return alone[0] if len(alone) == 1 else ops.concat(alone, dim, name=name)


def _first(c: Context, node: Any, number: int, ways: int) -> Tensor | None:
    """The first states (directions, N, H) that a node is given; None for zeros."""
    if not c.has(node, number):
        return None
    known = c.arrays.get(node.input[number])
    if known is not None and not known.any():
        c.constant(node, number)
        return None
    return c.tensor(node, number)


def _require_usual(c: Context, node: Any, attrs: dict[str, Any]) -> None:
    """Raise Unknown for what PyTorch's exporter does not write."""
    usual = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}[node.op_type]
    given = [text.decode(errors="backslashreplace") if isinstance(text, bytes) else text for text in attrs["activations"] or ()]
    if given not in ([], usual, usual * 2):
        raise Unknown(f"activations {given}; only {usual}")
    if attrs["layout"] or attrs.get("input_forget") or attrs.get("linear_before_reset") == 0:
        raise Unknown("layout and input_forget must be 0, and linear_before_reset 1")
    if c.has(node, 4):
        lengths = c.arrays.get(node.input[4])
        if lengths is None or (lengths != (c.shape(node, 0) or (0,))[0]).any():
            raise Unknown("sequence_lens: each sample has a length of its own; pad the sequences and leave it out")
        c.constant(node, 4)
    if c.has(node, 7):
        raise Unknown("peepholes have no counterpart")
    if not c.has(node, 3):
        raise Unknown("only with biases")
