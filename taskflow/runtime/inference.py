"""Inference: which tensors a prediction returns, checks of its inputs, and any number of samples in batches of the graph's
size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from taskflow.graph import Node, OperatorGraph
from taskflow.operators.tensor import Tensor
from taskflow.tasks.lower import needed_for
from taskflow.wording import some

if TYPE_CHECKING:
    from taskflow.runtime.executor import Executor

Array = np.ndarray[Any, Any]
Outputs = Tensor | str | Sequence[Tensor | str] | None
Predictions = Array | dict[str, Array]
_COMPARING = ("class_blocks", "cross_entropy", "mse_loss")  # losses whose first input is what the network answers


def predict(executor: Executor, feeds: Mapping[str, Any], outputs: Outputs, everywhere: bool) -> Predictions | None:
    """See `Executor.predict`."""
    graph = executor.graph
    wanted = answers_of(graph) if outputs is None else outputs_of(graph, outputs)
    arrays, samples = _checked(graph, wanted, feeds)
    batch = _batch(graph, wanted)
    parts: list[dict[str, Array]] = []
    for first in range(0, samples, batch):
        here = min(batch, samples - first)
        program = executor.forward("predict", wanted, {k: _rows(a, first, here, batch) for k, a in arrays.items()})
        if executor.placement.rank(0) == executor.transport.rank:
            values = {t.name: program.fetched(t.name) for t in wanted}
            parts.append(values if here == batch else {name: value[:here] for name, value in values.items()})
    result: dict[str, Array] | None = None
    if parts:
        result = {t.name: parts[0][t.name] if len(parts) == 1 else np.concatenate([p[t.name] for p in parts]) for t in wanted}
    if everywhere:
        result = executor.transport.broadcast(result, executor.placement.rank(0))
    if result is None or len(wanted) > 1 or (outputs is not None and not isinstance(outputs, (str, Tensor))):
        return result
    return result[wanted[0].name]


def outputs_of(graph: OperatorGraph, outputs: Tensor | str | Sequence[Tensor | str]) -> tuple[Tensor, ...]:
    """Return the tensors of these names, without repetitions. Raises ValueError that lists the names that exist."""
    given = (outputs,) if isinstance(outputs, (str, Tensor)) else tuple(outputs)
    known = {tensor.name: tensor for node in graph for tensor in node.outputs}
    found: dict[str, Tensor] = {}
    for output in given:
        name = output if isinstance(output, str) else output.name
        if name not in known:
            raise ValueError(f"{graph.name} has no output {name!r}; there are {some(list(known), 20)}")
        if isinstance(output, Tensor) and output is not known[name]:
            raise ValueError(f"output {name} belongs to another graph; give its name, or the tensor of this one")
        found[name] = known[name]
    return tuple(found.values())


def answers_of(graph: OperatorGraph) -> tuple[Tensor, ...]:
    """Return the tensors that the losses compare with labels, in program order; without a loss, those that no operator reads.
    Raises ValueError if there are none."""
    needed = needed_for(graph, graph.losses)
    found = {n.inputs[0].name: n.inputs[0] for n in graph if n.number in needed and n.operator.kind in _COMPARING}
    if not found and not graph.losses:
        kept = {tensor for pair in graph.carries for tensor in pair}
        read = {tensor for node in graph for tensor in node.inputs}
        found = {t.name: t for n in graph for t in n.outputs if t not in read and t not in kept}
    if not found:
        raise ValueError(f"predict: which tensors of {graph.name} are its answer cannot be told; name them as outputs")
    return tuple(sorted(found.values(), key=lambda t: (t.node, t.index)))


def inputs_of(graph: OperatorGraph, feeds: Mapping[str, Any], who: str) -> dict[str, Node]:
    """Return the graph's inputs by name. Raises ValueError for a name in ``feeds`` that is none of theirs."""
    inputs = {node.name: node for node in graph if node.operator.kind == "input"}
    for name in feeds:
        if name not in inputs:
            raise ValueError(f"{who}: {graph.name} has no input {name!r}; there are {', '.join(inputs) or 'none'}")
    return inputs


def _checked(graph: OperatorGraph, wanted: Sequence[Tensor], feeds: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the needed arrays and their number of samples."""
    inputs = inputs_of(graph, feeds, "predict")
    needed = needed_for(graph, wanted)
    arrays: dict[str, Any] = {}
    for name, node in inputs.items():
        if node.number not in needed:
            continue
        spec = node.outputs[0].spec
        if name not in feeds:
            given = ", ".join(feeds) or "none"
            raise ValueError(f"predict: {', '.join(t.name for t in wanted)} needs the input {name} ({spec}), got {given}")
        array = feeds[name]
        shape = getattr(array, "shape", None)
        if shape is None or tuple(shape[1:]) != spec.shape[1:] or len(shape) != len(spec.shape) or array.dtype != spec.dtype:
            given = type(array).__name__ if shape is None else f"{array.dtype}{list(shape)}"
            wanted_shape = ", ".join(map(str, ("samples", *spec.shape[1:])))
            raise ValueError(f"predict: {name} must be an array {spec.dtype}[{wanted_shape}], got {given}; convert it before")
        arrays[name] = array
    counts = {name: len(array) for name, array in arrays.items()}
    whole = {name: inputs[name].outputs[0].shape[0] for name in arrays}
    if counts == whole:  # one batch of the graph's size, even if its inputs differ in length
        return arrays, max(counts.values(), default=_batch(graph, wanted))
    if len(set(counts.values())) > 1 or len(set(whole.values())) > 1 or 0 in counts.values():
        raise ValueError(f"predict: inputs must have equally many samples, and not 0, got {counts} (the graph's: {whole})")
    (batch,), (count,) = set(whole.values()), set(counts.values())
    _check_batches(graph, wanted, needed, batch, count)
    return arrays, count


def _check_batches(graph: OperatorGraph, wanted: Sequence[Tensor], needed: set[int], batch: int, count: int) -> None:
    """Raise ValueError if a number of samples other than the graph's would change results, because samples depend on each
    other."""
    say = f"predict: {graph.name} takes {batch} samples at a time, got {count}"
    for tensor in wanted:
        if not tensor.shape or tensor.shape[0] != batch:
            raise ValueError(f"{say}, and {tensor.name} ({tensor.spec}) has no row for each; give {batch}")
    carried = [c.name for c, b in graph.carries if c.node in needed and b.node in needed]
    if carried:
        raise ValueError(f"{say}, and it carries {carried[0]} from batch to batch; give {batch}")


def _batch(graph: OperatorGraph, wanted: Sequence[Tensor]) -> int:
    """Number of samples in one pass: the length of the longest input that is needed."""
    needed = needed_for(graph, wanted)
    inputs = [n for n in graph if n.operator.kind == "input" and n.number in needed]
    return max((n.outputs[0].shape[0] for n in inputs), default=1)


def _rows(array: Any, first: int, here: int, batch: int) -> Any:
    """``here`` samples from ``first``, made up to a batch by repeating the last."""
    rows = array[first : first + here]
    if here == batch:
        return rows
    return np.concatenate([rows, np.repeat(rows[-1:], batch - here, axis=0)])
