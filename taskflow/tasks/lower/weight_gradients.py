"""Gradients of weights: where backward tasks write them, and how they are collected in the flat buffer of a bundle."""

from __future__ import annotations

from taskflow.floats import sums_in
from taskflow.operators.tensor import Parameter
from taskflow.regions import Rect
from taskflow.tasks.lower.state import Lowering
from taskflow.tasks.task import Bundle, GradientTo, Part
from taskflow.tasks.topic import Purpose, Topic


def weight_target(state: Lowering, parameter: Parameter, rect: Rect, processor: int) -> GradientTo | None:
    """Return where a task on a processor writes the gradient of a parameter's Rect: straight into the flat buffer, if the Rect
    is one piece there and nobody has written it before. None if there is nothing to write."""
    if rect.empty:
        return None
    key = (parameter.name, processor, rect)
    if key in state.weight_gradients:
        return GradientTo(state.weight_gradients[key], True)
    cells = state.layout.covering(parameter, rect)
    if len(cells) == 1 and cells[0][1] not in state.filled_cells.get((cells[0][0].name, processor), ()):
        bundle, cell = cells[0]
        buffer = state.emit.alias(
            flat_gradient(state, bundle, processor),
            Rect((cell.offset,), (cell.offset + rect.volume,)), f"d {parameter.name}", rect,
        )
        state.filled_cells.setdefault((bundle.name, processor), set()).add(cell)
    else:
        buffer = state.emit.buffer(f"d {parameter.name}", rect, processor, sums_in(parameter.spec.dtype))
    state.weight_gradients[key] = buffer
    return GradientTo(buffer, False)


def flat_gradient(state: Lowering, bundle: Bundle, processor: int) -> int:
    """Return the flat gradient buffer of a bundle on a processor: float32 for 16-bit weights, so that micro-batches and
    processors are added in float32."""
    key = (bundle.name, processor)
    if key not in state.flat_gradients:
        whole = Rect((0,), (bundle.size,))
        state.flat_gradients[key] = state.emit.buffer(f"d {bundle.name}", whole, processor, sums_in(bundle.dtype))
    return state.flat_gradients[key]


def collect_weight_gradients(state: Lowering, layer: str | None = None) -> None:
    """Move gradients that were accumulated over several cells into the flat buffers, and zero what no gradient reached.
    ``layer``: only those of one layer (or block), with zeros in those of its bundles that are kept as shares."""
    emit = state.emit
    for (name, processor, rect), buffer in list(state.weight_gradients.items()):
        if emit.graph.buffers[buffer].base is not None:
            continue
        if layer is not None and state.layout.cells[name][0][0].unit != layer:
            continue
        for bundle, cell in [(b, c) for b, c in state.layout.cells[name] if rect.contains(c.rect)]:
            emit.topic = Topic(Purpose.WEIGHT_GRADIENTS, bundle.unit)
            flat = flat_gradient(state, bundle, processor)
            span = Rect((cell.offset,), (cell.offset + cell.rect.volume,))
            into = emit.alias(flat, span, f"d {name}", cell.rect)
            filled = state.filled_cells.setdefault((bundle.name, processor), set())
            emit.transfer(
                f"d {name}{cell.rect}", emit.part(buffer, cell.rect), emit.whole(into), add=cell in filled
            )
            filled.add(cell)
    for bundle in state.layout.bundles if layer is None else state.sharded_layers[layer]:
        emit.topic = Topic(Purpose.WEIGHT_GRADIENTS, bundle.unit)
        for processor in bundle.group:
            flat_or_none = state.flat_gradients.get((bundle.name, processor))
            if flat_or_none is None:
                continue
            for cell in bundle.cells:
                if cell not in state.filled_cells.get((bundle.name, processor), ()):
                    span = Rect((cell.offset,), (cell.offset + cell.rect.volume,))
                    emit.fill(f"d {bundle.name}", Part(flat_or_none, span), 0.0)
