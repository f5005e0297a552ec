"""from_torch: the operator graph of a PyTorch module, with a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.notes import listed, note
from taskflow.models.pytorch.idle import idle_parts, own_losses, sparse_tables
from taskflow.models.pytorch.origin import first_output, remember
from taskflow.models.vocabulary import blocks_of
from taskflow.operators.tensor import Tensor

MANY_CLASSES = 8192  # from so many on their scores can be cut by classes
Loss = Callable[[Any], Tensor]


def from_torch(
    module: Any, *examples: Any, loss: str | Loss | None = "cross_entropy", name: str | None = None, verify: bool = True,
    keywords: Mapping[str, Any] | None = None,
) -> OperatorGraph:
    """Return the operator graph of a torch.nn.Module, to plan or to train. It computes what the module computes, or there is an
    error.

    - ``module``: the module, or what ``torch.export.export`` or ``torch.export.load`` returned, whose examples may be left out.
    - ``examples``: for each argument of ``forward`` its shape, a tensor, or a value that is no tensor. A shape is of the whole
      batch, and stands for floats of the type of the module's parameters. A tensor has the shape and type that each step will be
      given. Arguments with defaults may be left out. Inputs of the graph have the names of the arguments (with ``_in`` added if
      a layer has that name).
    - ``keywords``: examples for arguments by their names.
    - ``loss``: "cross_entropy", "mse_loss", a function from the module's result (with `taskflow`'s tensors) to a scalar, or
      None. Cross-entropy is of scores (N, ..., classes) and an input ``labels`` (N, ...) int64: the mean over those that are not
      -100. The square error is of the output and an input ``targets`` of its shape. If the module returns several tensors, these
      two use the first one; of a mapping, such as Hugging Face's outputs, they use ``logits``.
    - ``verify``: run the module and the graph on small random numbers, and where operators have corners, in training and in
      evaluation, and compare all outputs, gradients and running statistics. Networks too large for that
      (`verify.MOST_PARAMETERS`, `MOST_FLOPS`) are not verified, with a warning.

    Layers are named by their paths, as in ``state_dict``: `weights_of` gives the module's weights under these names. Training
    steps do what the module does after ``module.train()``, evaluation what it does after ``module.eval()``; a layer that is
    kept in evaluation while the rest trains has no dropout. The module is left as it is.

    Warns of parameters that no loss depends on (`ImportNote`). Raises ImportError without torch. Raises ValueError that lists
    the functions and layers that taskflow does not have, or names what is not understood. That may be a hook, a value written in
    place and read again by another view, state that forward keeps, control flow that depends on numbers in tensors, or whatever
    verification finds.
    """
    try:
        from taskflow.models.pytorch.examples import examples_of, module_and_name
        from taskflow.models.pytorch.follow import follow
        from taskflow.models.pytorch.meta import require_numbers
        from taskflow.models.pytorch.verify import verified
    except ImportError as error:
        raise ImportError("from_torch: needs PyTorch, to read the module: pip install torch") from error
    require_numbers()
    module, title = module_and_name(module, name)
    given = examples_of(module, examples, keywords or {})
    followed = follow(module, given, title)
    if verify:
        verified(module, given, followed)
    graph, result = followed.graph, followed.result
    remember(graph, module, given)
    output = first_output(result)
    if not isinstance(output, Tensor):
        raise ValueError(
            f"from_torch: {graph.name} must return a tensor, or several in a tuple or a mapping, got {type(output).__name__}"
        )
    if isinstance(loss, str) and not output.shape:
        raise ValueError(
            f"from_torch: {graph.name} returns a single number, of which {loss} is no loss: it is one itself, with loss=lambda "
            "result: result, or return the scores"
        )
    if callable(loss):
        graph.minimize(loss(Outputs(result) if isinstance(result, dict) else result))
    else:
        _add_loss(graph, output, loss)
    for saver in followed.savers:
        note(f"from_torch: {graph.name}: forward {saver}")
    if isinstance(loss, str) and (others := own_losses(result)):
        note(f"from_torch: {graph.name}: the loss is {loss} alone, without {listed(others)}, which forward returns")
    if tables := sparse_tables(module):
        note(f"from_torch: {graph.name}: gradients of {listed(tables)} (sparse=True) are planned as whole tables")
    if idle := idle_parts(graph, module):
        note(f"from_torch: {graph.name}: no loss depends on {listed(idle)}: in the graph, but never trained")
    return graph


class Outputs(dict[str, Any]):
    """What a module returned in a mapping or a dataclass, for a loss: ``outputs["logits"]`` or ``outputs.logits``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the module returns no {name}, but {', '.join(self)}") from None


def _add_loss(graph: OperatorGraph, output: Tensor, loss: str | None) -> None:
    if loss == "cross_entropy":
        labels = ops.input(graph, output.shape[:-1], "int64", name="labels")
        blocks = blocks_of(output.shape[-1]) if output.shape[-1] >= MANY_CLASSES else None
        graph.minimize(ops.cross_entropy(output, labels, blocks=blocks, name="loss"))
    elif loss == "mse_loss":
        graph.minimize(ops.mse_loss(output, ops.input(graph, output.shape, name="targets"), name="loss"))
    elif loss is not None:
        raise ValueError(f"from_torch: loss must be 'cross_entropy', 'mse_loss', a function or None, got {loss!r}")
