"""from_onnx: the operator graph of an ONNX file, to plan its training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.notes import listed, note
from taskflow.models.onnx.follow import FollowedModel, follow, numbers_of
from taskflow.models.onnx.needed import first_line, onnx_package
from taskflow.models.onnx.verify import verified
from taskflow.operators.tensor import Tensor
from taskflow.writing import shown


def from_onnx(
    model: Any, *, loss: str | None = "cross_entropy", batch: int | None = None, name: str | None = None,
    weights: dict[str, Any] | None = None, verify: bool = True,
) -> OperatorGraph:
    """Return the graph of an ONNX model or file. Float initializers of several numbers become parameters, named after the
    operators that read them; running means and variances become lasting states. Other initializers, and values computed only
    from them, become constants. An initializer that an operator needs is one of these, or there is an error.

    Args: ``loss``: "cross_entropy" of the first output (N, ..., classes) and an input ``labels`` (N, ...) int64, "mse_loss" of
    it and an input ``targets``, or None. ``batch``: for inputs whose first dimension has a name but no size. ``weights``: a
    dict that receives the file's numbers under the names of our parameters and states, for `Executor.set_parameters`.
    ``verify``: compare predictions on random numbers with onnx's reference evaluator. Models too large for that
    (`verify.MOST_PARAMETERS`, `verify.MOST_FLOPS`) are not verified, with a warning. Warns, too, if initializers, inputs or
    outputs are left out. Raises ImportError without onnx, FileNotFoundError, and ValueError that names the node without a
    counterpart, and why.
    """
    onnx = onnx_package()
    own = shown(Path(str(model)).stem) if isinstance(model, (str, Path)) else " ".join(str(model.graph.name).split())
    title = name or own or "model"
    model = _loaded(onnx, model)
    followed = follow(onnx, model, title, batch)
    graph, context, account = followed.graph, followed.context, followed.account
    if weights is not None:
        weights |= numbers_of(account, context.arrays)
    output = context.values.get(model.graph.output[0].name) if model.graph.output else None
    if not isinstance(output, Tensor) or model.graph.output[0].name in context.truth:
        raise ValueError(f"from_onnx: {title}: its first output is not computed from its inputs")
    if verify:
        verified(onnx, model, followed, batch)
    _say_left_out(model, followed, loss)
    if loss == "cross_entropy" and output.ndim < 2:
        raise ValueError(f"from_onnx: {title}: its first output is {output}, not scores (N, ..., classes); choose another loss")
    if loss is not None and not output.spec.differentiable:
        raise ValueError(f"from_onnx: {graph.name}: output {output.name} is integers, of which there is no loss: give loss=None")
    if loss == "cross_entropy":
        labels = ops.input(graph, output.shape[:-1], "int64", name="labels")
        graph.minimize(ops.cross_entropy(output, labels, name="loss"))
    elif loss == "mse_loss":
        graph.minimize(ops.mse_loss(output, ops.input(graph, output.shape, name="targets"), name="loss"))
    elif loss is not None:
        raise ValueError(f"from_onnx: loss must be 'cross_entropy', 'mse_loss' or None, got {loss!r}")
    return graph


def _loaded(onnx: Any, model: Any) -> Any:
    """A model with its functions inlined, from a file or from memory."""
    if isinstance(model, (str, Path)):
        if not Path(model).is_file():
            raise FileNotFoundError(f"from_onnx: there is no file {model}")
        where = str(model)
        try:
            model = onnx.load(where)
        except Exception as error:  # of protobuf, for what is no model; of files with weights that are missing
            raise ValueError(f"from_onnx: {where} is no ONNX model: {first_line(error)}") from error
        if not model.graph.node:
            raise ValueError(f"from_onnx: {Path(where).stem} has no nodes; is the file a whole ONNX model?")
    if model.functions:
        from onnx.inliner import inline_local_functions

        model = inline_local_functions(model)
    return model


def _say_left_out(model: Any, followed: FollowedModel, loss: str | None) -> None:
    title, context = followed.graph.name, followed.context
    if followed.account.unused:
        note(f"from_onnx: {title}: no operator of the graph needs initializer {listed(followed.account.unused)}: left out")
    parameters = followed.account.parameters.items()
    if copied := [name for name, own in parameters if len(own) > 1 and all(isinstance(turned, bool) for _, turned in own)]:
        note(
            f"from_onnx: {title}: several layers read the vector {listed(copied)}: each has a copy, which is trained by itself "
            "(exporters merge equal vectors)"
        )
    inputs = [v.name for v in model.graph.input if v.name not in context.values and v.name not in context.initial]
    if inputs:
        note(f"from_onnx: {title}: no operator of the graph needs input {listed(inputs)}: left out")
    if loss is not None and (others := [value.name for value in model.graph.output[1:]]):
        note(f"from_onnx: {title}: the loss is of output {model.graph.output[0].name} alone, not of {listed(others)}")
