"""What a module has and its graph does not train or say: parameters that nothing minimised depends on, losses that forward
returns, ways of saving memory and time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from taskflow.graph import OperatorGraph
from taskflow.operators.tensor import Tensor


def idle_parts(graph: OperatorGraph, module: Any) -> list[str]:
    """Return the outermost parts of a module of which no loss depends on any parameter, each with its number of parameters. Of a
    graph without a loss: none."""
    used, left = set(), [tensor.node for tensor in graph.losses]
    while left:
        if (number := left.pop()) not in used:
            used.add(number)
            if graph.nodes[number].operator.stops_gradient:
                continue
            left += [tensor.node for tensor in graph.nodes[number].inputs]
    trained = {p.name for number in used for p in graph.nodes[number].parameters}
    idle = {p.name: p for p in graph.parameters if p.trained and p.name not in trained}
    if not graph.losses or not idle:
        return []
    paths = [path for path, _ in module.named_modules() if path]
    found: list[str] = []
    for path in (*paths, *idle):
        inside = [name for name in idle if name == path or name.startswith(f"{path}.")]
        whole = not any(name == path or name.startswith(f"{path}.") for name in trained)
        if inside and whole and not any(path.startswith(f"{other.partition(' ')[0]}.") for other in found):
            found.append(f"{path} ({sum(idle[name].spec.rect.volume for name in inside):,} parameters)")
    return found


def sparse_tables(module: Any) -> list[str]:
    """Return the paths of tables whose gradients PyTorch keeps as the rows that were read."""
    return [path for path, part in module.named_modules() if getattr(part, "sparse", False) is True and hasattr(part, "weight")]


def own_losses(result: Any) -> list[str]:
    """Return the names of the losses that forward itself returns, in a mapping beside its scores."""
    if not isinstance(result, Mapping):
        return []
    return [str(key) for key, value in result.items() if str(key).endswith("loss") and isinstance(value, Tensor)]


@contextmanager
def memory_savers() -> Iterator[set[str]]:
    """Collect how the block saves memory or time in ways that are a plan's choice: recomputation, copies on the CPU, autocast."""
    from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
    from torch.utils.checkpoint import CheckpointFunction

    chosen = "which is left out: a plan chooses what is recomputed"
    recomputes, found = f"recomputes activations (torch.utils.checkpoint), {chosen}", set[str]()
    plain = saved_tensors_hooks.__enter__

    def enter(hooks: Any) -> Any:
        kept = isinstance(hooks, save_on_cpu)
        found.add(f"keeps activations on the CPU, {chosen}" if kept else recomputes)
        return plain(hooks)

    def apply(function: Any, preserve: bool, *args: Any) -> Any:  # of use_reentrant=True
        found.add(recomputes)
        return function(*args)

    saved_tensors_hooks.__enter__ = enter  # type: ignore[method-assign]
    CheckpointFunction.apply = apply  # type: ignore[method-assign,assignment]
    try:
        with as_written(found):
            yield found
    finally:
        del CheckpointFunction.apply  # the one that it inherits is there again
        saved_tensors_hooks.__enter__ = plain  # type: ignore[method-assign]


@contextmanager
def as_written(found: set[str] | None = None) -> Iterator[None]:
    """Compute what stands under autocast in its own type, and what is compiled by its own code, within the block. ``found``: gets
    what is said of autocast."""
    import torch

    kind = torch.autocast
    plain = kind.__enter__, kind.__exit__

    def enter(block: Any) -> Any:
        if block._enabled and found is not None:
            kind_of = str(block.fast_dtype).removeprefix("torch.")
            found.add(f"uses autocast ({kind_of}), which is left out: a module in 16 bits (module.bfloat16()) is planned so")
        return block

    kind.__enter__, kind.__exit__ = enter, lambda block, *error: None  # type: ignore[method-assign,assignment]
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        kind.__enter__, kind.__exit__ = plain  # type: ignore[method-assign]
