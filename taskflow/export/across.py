"""Whether samples of a step meet in an operator: a framework that gives each rank its own samples would compute another network."""

from __future__ import annotations

from taskflow.graph import OperatorGraph


def across_samples(graph: OperatorGraph) -> str:
    """Return the first operator that combines each sample of one tensor with those of another, such as the scores of a contrastive
    loss; empty if there is none. (What takes the mean over samples of one tensor, as batch normalisation, is none.)"""
    axes: dict[tuple[int, int], int] = {}  # tensor: the axis along which its samples lie
    for node in graph:
        if node.operator.kind == "input":
            axes.update({(node.number, tensor.index): 0 for tensor in node.outputs if tensor.shape})
            continue
        dims = {
            i for index, tensor in enumerate(node.inputs) if (axis := axes.get((tensor.node, tensor.index))) is not None
            for i in range(len(node.dims)) if node.read_axis(i, index) == axis
        }
        if len(dims) > 1:
            return node.name
        for i in dims:
            for tensor in node.outputs:
                if (axis := node.written_axis(i, tensor.index)) is not None:
                    axes[node.number, tensor.index] = axis
    return ""
