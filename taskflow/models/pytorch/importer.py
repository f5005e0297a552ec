"""from_torch: the operator graph of a PyTorch module, with a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.operators.tensor import Tensor

Loss = Callable[[Any], Tensor]


def from_torch(
    module: Any, *examples: Any, loss: str | Loss | None = "cross_entropy", name: str | None = None
) -> OperatorGraph:
    """The operator graph of a torch.nn.Module, to plan or to train.

    Args: ``examples``: for each argument of ``forward`` a shape (of the whole batch; floats of the type of the module's
    parameters) or a tensor of the shape and type that each step will be given; arguments with defaults may be left out.
    Inputs of the graph are named as the arguments (with ``_in`` behind it where a layer has that name). ``loss``:
    "cross_entropy" of scores (N, ..., classes) and an input ``labels`` (N, ...) int64, "mse_loss" of the output and an input
    ``targets`` of its shape, a function from what the module returns (with `taskflow`'s tensors) to a scalar, or None. If the
    module returns several tensors, the two losses that have names count the first.

    Layers are named by their paths, as in ``state_dict``: `weights_of` gives the module's weights under these names. What depends
    on ``module.training`` is taken as it is when this is called (heads that only training has; `dropout` of a module in
    evaluation is kept). Operators for LSTMs cover all steps.

    Raises ImportError without torch, and ValueError that lists what has no counterpart: control flow that depends
    on numbers in tensors, buffers used outside of layers, functions and layers that taskflow does not have.
    """
    try:
        from taskflow.models.pytorch.follow import follow
    except ImportError as error:
        raise ImportError("from_torch: needs PyTorch, to read the module: pip install torch") from error
    graph, result = follow(module, examples, name or type(module).__name__)
    output = result[0] if isinstance(result, (tuple, list)) and result else result
    if not isinstance(output, Tensor):
        raise ValueError(f"from_torch: {graph.name} must return a tensor, or several in a tuple, got {type(output).__name__}")
    if callable(loss):
        graph.minimize(loss(result))
    else:
        _add_loss(graph, output, loss)
    return graph


def _add_loss(graph: OperatorGraph, output: Tensor, loss: str | None) -> None:
    if loss == "cross_entropy":
        labels = ops.input(graph, output.shape[:-1], "int64", name="labels")
        graph.minimize(ops.cross_entropy(output, labels, name="loss"))
    elif loss == "mse_loss":
        graph.minimize(ops.mse_loss(output, ops.input(graph, output.shape, name="targets"), name="loss"))
    elif loss is not None:
        raise ValueError(f"from_torch: loss must be 'cross_entropy', 'mse_loss', a function or None, got {loss!r}")
