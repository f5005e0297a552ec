"""Patterns: operators that exporters write as several nodes become one node again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

SQRT2 = 2**0.5
Number = Callable[[str], float | None]


def with_gelu(onnx: Any, nodes: Sequence[Any], outputs: set[str], number: Number) -> tuple[tuple[Any, ...], set[str]]:
    """Return nodes in which x (1 + erf(x / sqrt 2)) / 2, in any order of the factors, is one Gelu, and the names of the constants
    that it consists of. ``number``: a constant's only number. ``outputs``: of the graph, which have to stay."""
    readers: dict[str, list[Any]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    maker = {name: node for node in nodes for name in node.output}
    gone: set[int] = set()
    instead: dict[int, Any] = {}
    constants: set[str] = set()

    def only(node: Any) -> Any:
        """The only node that reads a node's result."""
        found = readers.get(node.output[0], []) if node.output else []
        return found[0] if len(found) == 1 and node.output[0] not in outputs else None

    def with_number(node: Any, kinds: tuple[str, ...], value: float) -> str | None:
        """The other input of a node that combines it with a certain number; None if it does not."""
        if node is None or node.op_type not in kinds or len(node.input) != 2:
            return None
        for own, other in ((0, 1), (1, 0)):
            found = number(node.input[other])
            if found is not None and np.isclose(found, value, rtol=1e-5) and (node.op_type != "Div" or other == 1):
                taken.add(node.input[other])
                return str(node.input[own])
        return None

    for erf in (node for node in nodes if node.op_type == "Erf" and len(node.input) == 1 and node.output):
        taken: set[str] = set()
        inner = maker.get(erf.input[0])
        x = with_number(inner, ("Div",), SQRT2) or with_number(inner, ("Mul",), 1 / SQRT2)
        plus = only(erf) if x is not None and only(inner) is erf else None
        if plus is None or with_number(plus, ("Add",), 1.0) != erf.output[0]:
            continue
        whole = _factors(only(plus), plus.output[0], x, maker, only, lambda node: with_number(node, ("Mul",), 0.5))
        if whole is None:
            continue
        last, between = whole
        instead[id(last)] = onnx.helper.make_node("Gelu", [x], list(last.output), last.name or last.output[0])
        gone |= {id(node) for node in (inner, erf, plus, *between)}
        constants |= taken
    return tuple(instead.get(id(node), node) for node in nodes if id(node) not in gone), constants


def _factors(
    node: Any, plus: str, x: str | None, maker: dict[str, Any], only: Callable[[Any], Any], halved: Callable[[Any], str | None]
) -> tuple[Any, list[Any]] | None:
    """The node whose result is x times ``plus`` times a half, and the nodes between; None if there is no such node."""
    if node is None or node.op_type != "Mul" or len(node.input) != 2:
        return None
    if halved(node) == plus:  # (plus / 2) x
        last = only(node)
        return (last, [node]) if last is not None and last.op_type == "Mul" and {*last.input} == {x, node.output[0]} else None
    other = node.input[1] if node.input[0] == plus else node.input[0]
    if other == x:  # (x plus) / 2
        last = only(node)
        return (last, [node]) if last is not None and halved(last) == node.output[0] else None
    half = maker.get(other)  # (x / 2) plus
    return (node, [half]) if half is not None and half.op_type == "Mul" and halved(half) == x and only(half) is node else None
