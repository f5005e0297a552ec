"""Operators and messages of a plan, as a probe times them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import Strategy
from taskflow.optimizer.cost import arrays, name_of, parts_of
from taskflow.probe.writing import Named
from taskflow.regions import Rect
from taskflow.rules import UpdateRule
from taskflow.tasks import Collective, Kind
from taskflow.tasks.lower import lower

BY_ELEMENTS = ("gelu", "silu", "relu", "add", "mul", "dropout", "mean", "swiglu")


def operators_of(graph: OperatorGraph, strategy: Strategy) -> list[Named]:
    """Return the names and sizes of a plan's operators that a probe can time, on one rank, each once."""
    calls, found = parts_of(graph), dict[Named, None]()
    for node in graph:
        call = calls.get(node.name)
        name = call.name if call is not None else name_of(node.operator)
        if call is not None and not call.leads:
            continue
        for rect, _ in strategy[node.name].pieces(node):
            found.update(dict.fromkeys(_named(name, node, rect)))
    return list(found)


def message_sizes(graph: OperatorGraph, strategy: Strategy, rule: UpdateRule | None) -> list[int]:
    """Return the bytes of the arrays that a plan's messages carry, smallest first."""
    found = set()
    for task in lower(graph, strategy, rule).tasks:
        work = task.work
        if isinstance(work, Collective):
            found.add(task.nbytes // (work.halves or 1) // max(1, len(work.group) - 1))
        elif task.kind is Kind.COPY:
            found.add(task.nbytes)
    return sorted(size for size in found if size >= 4)


def _named(name: str, node: Node, piece: Rect) -> Iterator[Named]:
    if name in BY_ELEMENTS:
        elements = max(prod(rect.shape) for rect in (*node.writes(piece), *node.reads(piece).inputs))
        if elements >= 64:
            yield name, (elements // 64 * 64,)
    elif (sizes := SIZES.get(name)) is not None and len(node.reads(piece).inputs):
        found = sizes(node, piece)
        if found and min(found[:-1], default=1) > 0:
            yield ("matmul" if name == "linear" and len(found) == 4 else name), found


def _product(node: Node, piece: Rect) -> tuple[int, ...]:
    touched = arrays(node.operator, node.specs, piece)
    results = touched.output_elements[0]
    if touched.weight_elements and len(node.inputs) == 1:
        columns = round((results * touched.weight_elements[0] / touched.input_elements[0]) ** 0.5)
        return results // columns, touched.weight_elements[0] // columns, columns
    if len(touched.input_elements) < 2:
        return ()
    terms = round(node.operator.flops(node.specs, piece) / 2 / results)
    rows, columns = (results * terms // touched.input_elements[i] for i in (1, 0))
    return (max(1, results // (rows * columns)), rows, terms, columns) if rows and columns and terms else ()


def _convolution(node: Node, piece: Rect) -> tuple[int, ...]:
    given, weight = node.reads(piece).inputs[0].shape, node.reads(piece).weights[0].shape
    result = node.writes(piece)[0].shape
    if len(given) != 4 or len(weight) != 4:
        return ()
    return given[0], given[1], result[1], given[2], given[3], weight[-1], max(1, round(given[2] / result[2]))


def _depthwise(node: Node, piece: Rect) -> tuple[int, ...]:
    given, weight = node.reads(piece).inputs[0].shape, node.reads(piece).weights[0].shape
    return (*given, weight[-1]) if len(given) == 4 else ()


def _recurrent(node: Node, piece: Rect) -> tuple[int, ...]:
    return (*node.reads(piece).inputs[0].shape, node.writes(piece)[0].shape[-1])


def _heads(node: Node, piece: Rect) -> tuple[int, ...]:
    shape = node.writes(piece)[0].shape
    return shape if len(shape) == 4 else ()


def _attention(node: Node, piece: Rect) -> tuple[int, ...]:
    q, k = (rect.shape for rect in node.reads(piece).inputs[:2])
    if len(q) != 4:
        return ()
    return q[0], q[2], q[1], k[1], q[3], int(getattr(node.operator, "causal", False))


def _rows(node: Node, piece: Rect) -> tuple[int, ...]:
    shape = node.writes(piece)[0].shape
    return prod(shape[:-1]), shape[-1]


def _scores(node: Node, piece: Rect) -> tuple[int, ...]:
    shape = node.reads(piece).inputs[0].shape
    return prod(shape[:-1]), shape[-1]


def _table(node: Node, piece: Rect) -> tuple[int, ...]:
    words, width = node.reads(piece).weights[0].shape
    return prod(node.reads(piece).inputs[0].shape), words, width


def _channels(node: Node, piece: Rect) -> tuple[int, ...]:
    shape = node.writes(piece)[0].shape
    return shape[0], shape[1], max(1, prod(shape[2:]))


def _images(node: Node, piece: Rect) -> tuple[int, ...]:
    shape = node.reads(piece).inputs[0].shape
    return shape if len(shape) == 4 and min(shape[2:]) > 1 else ()


def _experts(node: Node, piece: Rect) -> tuple[int, ...]:
    chosen, weights = node.reads(piece).inputs[1].shape, node.reads(piece).weights[0].shape
    return prod(chosen[:-1]), weights[0], chosen[-1], weights[2], weights[1]


SIZES: dict[str, Callable[[Node, Rect], tuple[int, ...]]] = {
    "linear": _product, "conv2d": _convolution, "attention": _attention, "layer_norm": _rows, "rms_norm": _rows,
    "softmax": _rows, "cross_entropy": _scores, "embedding": _table, "batch_norm": _channels, "pool": _images,
    "experts": _experts, "depthwise": _depthwise, "lstm": _recurrent, "gru": _recurrent, "rms_norm_parts": _rows, "rotary": _heads,
}  # fmt: skip
