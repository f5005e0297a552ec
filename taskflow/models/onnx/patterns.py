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


def with_layer_norm(
    onnx: Any, nodes: Sequence[Any], outputs: set[str], number: Number, vectors: set[str]
) -> tuple[tuple[Any, ...], set[str]]:
    """Return nodes in which (x - mean) / sqrt(variance + eps) weight + bias over the last dimension, as exporters write it before
    opset 17, is one LayerNormalization, and the names of the constants that it consists of. ``vectors``: initializers that may be
    weight and bias."""
    readers: dict[str, list[Any]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    gone, instead, constants = set[int](), dict[int, Any](), set[str]()

    def followed(node: Any, *kinds: str) -> list[Any]:
        """Those that read a node's result, if they are of these kinds."""
        found = readers.get(node.output[0], []) if node is not None and node.output[0] not in outputs else []
        return found if sorted(n.op_type for n in found) == sorted(kinds) else []

    def only(node: Any, kind: str) -> Any:
        return next(iter(followed(node, kind)), None)

    def other(node: Any, result: Any) -> str:
        return str(node.input[1] if node.input[0] == result.output[0] else node.input[0])

    for mean in (node for node in nodes if node.op_type == "ReduceMean" and _last(onnx, node)):
        centred = only(mean, "Sub")
        if centred is None or list(centred.input) != [mean.input[0], mean.output[0]]:
            continue
        both = {n.op_type: n for n in followed(centred, "Pow", "Div")}
        variance = only(both.get("Pow"), "ReduceMean")
        plus = only(variance, "Add")
        root = only(plus, "Sqrt")
        quotient, eps = only(root, "Div"), number(other(plus, variance)) if plus is not None else None
        if quotient is None or quotient is not both["Div"] or eps is None or not _last(onnx, variance):
            continue
        if number(both["Pow"].input[1]) != 2.0 or list(quotient.input) != [centred.output[0], root.output[0]]:
            continue
        scaled = only(quotient, "Mul")
        shifted = only(scaled, "Add")
        if shifted is None:
            continue
        own = [mean.input[0], other(scaled, quotient), other(shifted, scaled)]
        if not {*own[1:]} <= vectors:
            continue
        instead[id(shifted)] = onnx.helper.make_node(
            "LayerNormalization", own, list(shifted.output), shifted.name or shifted.output[0], axis=-1, epsilon=eps
        )
        gone |= {id(node) for node in (mean, centred, both["Pow"], variance, plus, root, quotient, scaled)}
        constants |= {both["Pow"].input[1], other(plus, variance)}
    return tuple(instead.get(id(node), node) for node in nodes if id(node) not in gone), constants


def _last(onnx: Any, node: Any) -> bool:
    """True for a mean over the last dimension that keeps it."""
    attrs = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return list(attrs.get("axes", ())) == [-1] and attrs.get("keepdims", 1) == 1


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
