"""Origin of a graph's operators: the module that it was made from, and for each operator the step of the module's code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from taskflow.graph import OperatorGraph
from taskflow.operators.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Origin:
    """A module and the examples with which its forward was tried, one for each argument."""

    module: Any
    examples: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class OperatorSite:
    """Step of a module's code. ``path``: of the layer that it is, or of the module in whose code the function is called.
    ``inputs``: what it takes, in the order of its arguments, and ``outputs``: what it returns; by the names of our tensors,
    None for anything that is no tensor of the graph. ``operators``: what it became."""

    step: int
    kind: str
    path: str
    name: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]
    operators: tuple[str, ...]


_ORIGINS: WeakKeyDictionary[OperatorGraph, Origin] = WeakKeyDictionary()
_SITES: WeakKeyDictionary[OperatorGraph, tuple[Mapping[str, OperatorSite], str | None]] = WeakKeyDictionary()
"""What `sites_of` has found: following a large module takes seconds."""


def remember(graph: OperatorGraph, module: Any, examples: Any) -> None:
    """Record from what a graph was made."""
    _ORIGINS[graph] = Origin(module, tuple(examples))
    _SITES.pop(graph, None)


def origin_of(graph: OperatorGraph) -> Origin | None:
    """Return what `from_torch` made a graph from; None if the graph is not from there."""
    return _ORIGINS.get(graph)


def require_origin(graph: OperatorGraph) -> Origin:
    """Return what `from_torch` made a graph from. Raises ValueError if the graph is not from there."""
    origin = origin_of(graph)
    if origin is None:
        raise ValueError(
            f"{graph.name} was not made by taskflow.from_torch, so that there is no module to go back to; import the "
            "torch.nn.Module itself (docs/guide/pytorch.md)"
        )
    return origin


def first_output(result: Any) -> Any:
    """Return the tensor that a named loss uses: the first of several; of a mapping ``logits``, or the first."""
    if isinstance(result, Mapping):
        return result.get("logits", next((value for value in result.values() if isinstance(value, Tensor)), result))
    return result[0] if isinstance(result, (tuple, list)) and result else result


def sites_of(graph: OperatorGraph) -> tuple[Mapping[str, OperatorSite], str | None]:
    """Return each operator's step (the loss has none), and the name of the tensor that the module returns (the first of
    several). Raises ValueError if the graph is not from `from_torch`."""
    if graph not in _SITES:
        _SITES[graph] = _sites(graph)
    return _SITES[graph]


def graph_around(module: Any, examples: Sequence[Any], leaf: Callable[[Any], bool]) -> Any:
    """Return what forward computes on ``examples`` as a graph of torch.fx whose modules are those for which ``leaf`` is true, with
    the examples' sizes as numbers. Raises ValueError that says what has no code."""
    from taskflow.models.pytorch.around import graph_around

    return graph_around(module, examples, leaf)


def _sites(graph: OperatorGraph) -> tuple[Mapping[str, OperatorSite], str | None]:
    from taskflow.models.pytorch.follow import follow
    from taskflow.models.pytorch.registry import Lazy, graph_of, origin_tensor
    from taskflow.models.pytorch.steps import Ref, leaves

    origin = require_origin(graph)
    ends: dict[int, int] = {}  # step -> how many operators there are after it

    def watch(step: Any, index: int, ours: Any) -> Any:
        ends[step.number] = len(graph_of(ours).nodes)  # type: ignore[attr-defined]
        return ours

    followed = follow(origin.module, list(origin.examples), graph.name, watch)

    def name_of(value: Any) -> str | None:
        found = followed.values.get(value) if isinstance(value, Ref) else None
        if isinstance(found, Lazy):
            found = getattr(found, "cached", None) or origin_tensor(found)
        return found.name if isinstance(found, Tensor) else None

    found: dict[str, OperatorSite] = {}
    begin = 0
    for step in followed.recording.steps:
        end = ends.get(step.number, begin)
        nodes = followed.graph.nodes[begin:end]
        begin = max(begin, end)
        site = OperatorSite(
            step.number, step.kind, step.target if step.kind == "module" else step.where, step.name,
            tuple(name_of(value) for value in (*leaves(step.args), *leaves(step.kwargs))),
            tuple(name_of(value) for value in leaves(step.result)), tuple(node.name for node in nodes),
        )
        found.update(dict.fromkeys(site.operators, site))
    output = first_output(followed.result)
    return found, output.name if isinstance(output, Tensor) else None
