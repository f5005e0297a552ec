"""Layers of torch.nn that keep state or have several arrays, recovered from a program: batch normalisation and LSTMs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

DROPOUTS = ("dropout", "dropout_", "native_dropout")
ATTENTION = "scaled_dot_product_attention"
NEVER_TRAINS = "_native_batch_norm_legit_no_training"  # which has no argument that says so
NORMS = ("batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional", "native_batch_norm", NEVER_TRAINS)
KEPT = ("weight", "bias", "running_mean", "running_var")
COUNTER = "num_batches_tracked"


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """A layer that an operator was exported from. ``options``: arguments of its class. ``args``: arguments of its call.
    ``trains``: True if it is in training mode. ``flat``: True if the operator returns several tensors where the layer returns a
    nest."""

    path: str
    kind: type[nn.Module]
    options: Mapping[str, Any]
    args: tuple[Any, ...]
    trains: bool
    flat: bool


def base_of(target: Any) -> str:
    """Return the name of an ATen operator without its overload; empty for anything else."""
    return str(target._schema.name).partition("::")[2] if isinstance(target, torch._ops.OpOverload) else ""


def drops_nothing(module: GraphModule) -> bool:
    """True if a program has dropout, and none of it trains: it was exported in evaluation mode."""
    found = []
    for part in module.modules():
        for node in part.graph.nodes if isinstance(part, GraphModule) else ():
            kind, args = base_of(node.target), node.args
            if kind in DROPOUTS and len(args) > 2 and args[1]:
                found.append(bool(args[2]))
            elif kind == ATTENTION and len(args) > 4 and args[4]:
                found.append(True)
    return bool(found) and not any(found)


def layer_of_operator(node: Node, held: Mapping[str, str]) -> LayerSpec | None:
    """Return the layer that an operator was exported from, if its arrays belong to one layer. ``held``: name in the graph ->
    path of the parameter or buffer."""
    kind = base_of(node.target)
    if kind in NORMS:
        return _batch_norm(node, kind, held)
    return _lstm(node, held) if kind == "lstm" else None


def counts_batches(node: Node, held: Mapping[str, str]) -> bool:
    """True for the operator that counts the batches of batch normalisation; the layer counts them by itself."""
    first = node.args[0] if node.args else None
    return base_of(node.target) in ("add", "add_") and isinstance(first, Node) and held.get(first.name, "").endswith(COUNTER)


def _owner(values: Any, names: tuple[str, ...], held: Mapping[str, str]) -> str | None:
    """The path of the module that holds these arrays under these names; None if there is no single one."""
    paths = [held.get(value.name, "") if isinstance(value, Node) else "" for value in values]
    owners = {path.removesuffix(f".{name}") for path, name in zip(paths, names) if path.endswith(f".{name}")}
    return owners.pop() if len(owners) == 1 and all(p.endswith(f".{n}") for p, n in zip(paths, names)) else None


def _batch_norm(node: Node, kind: str, held: Mapping[str, str]) -> LayerSpec | None:
    args: Any = node.args
    path = _owner(args[1:5], KEPT, held)
    images = args[0].meta["val"].ndim - 2
    if path is None or images > 3:
        return None
    trains, (momentum, eps) = (False, args[5:7]) if kind == NEVER_TRAINS else (bool(args[5]), args[6:8])
    cls = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[images]
    options = dict(num_features=args[1].meta["val"].shape[0], eps=eps, momentum=momentum)
    return LayerSpec(path, cls, options, (args[0],), trains, kind != "batch_norm")


def _lstm(node: Node, held: Mapping[str, str]) -> LayerSpec | None:
    args: Any = node.args
    if len(args) != 9 or not isinstance(args[1], (list, tuple)):  # of sequences of several lengths
        return None
    input, state, arrays, biases, layers, dropout, trains, two_ways, batch_first = args
    kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh") if biases else ("weight_ih", "weight_hh")
    names = tuple(f"{kind}_l{layer}{way}" for layer in range(layers) for way in ("", "_reverse")[: 1 + two_ways] for kind in kinds)
    path = _owner(arrays, names, held) if len(names) == len(arrays) else None
    if path is None:
        return None
    options = dict(
        input_size=arrays[0].meta["val"].shape[1], hidden_size=arrays[1].meta["val"].shape[1], num_layers=layers, bias=biases,
        batch_first=batch_first, dropout=dropout, bidirectional=two_ways,
    )
    zeros = all(isinstance(part, Node) and base_of(part.target) == "zeros" for part in state)
    return LayerSpec(path, nn.LSTM, options, (input,) if zeros else (input, tuple(state)), bool(trains), True)
