"""What a program needs to know to train a network without taskflow: module, inputs, targets, loss and update."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from taskflow.graph import Node, OperatorGraph
from taskflow.models.pytorch import require_origin

UPDATES = ("sgd", "momentum", "adam")  # names of update rules that the program has


@dataclass(frozen=True, slots=True)
class StepData:
    """What a step is given. ``inputs``, ``target``: shape, type, and ``below``, which integers are less than (0: they are ones).
    ``loss``: its kind."""

    inputs: Sequence[Mapping[str, Any]]
    target: Mapping[str, Any]
    loss: str


@dataclass(frozen=True, slots=True)
class TriedNetwork:
    """A network for `try.py`. ``module``: how it is made. ``inputs``, ``target``, ``loss``: of `StepData`. ``rule``: the update's
    name."""

    module: Mapping[str, Any]
    inputs: Sequence[Mapping[str, Any]]
    target: Mapping[str, Any]
    loss: str
    rule: str

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON value."""
        return asdict(self)


def tried_network(graph: OperatorGraph, rule: str, function: str | None, values: Mapping[str, Any]) -> TriedNetwork:
    """Return what `try.py` needs. ``function``: FILE.py:FUNCTION that makes the module, with ``values``; None for modules of
    transformers, which their configs make. Raises ValueError if the network's loss or update is none that the program has."""
    if rule not in UPDATES:
        raise ValueError(f"--rule {rule}: steps that are tried have an update; give one of {', '.join(UPDATES)}")
    step = step_of(graph)
    module = module_spec(graph, function, values, [str(one["name"]) for one in step.inputs])
    return TriedNetwork(module, step.inputs, step.target, step.loss, rule)


def step_of(graph: OperatorGraph) -> StepData:
    """Return what a step of a network is given. Raises ValueError if its loss is none that the program has."""
    losses = [node for node in graph if node.outputs and node.outputs[0] in graph.losses]
    kind = losses[0].operator.kind if len(losses) == 1 else ""
    loss = "cross_entropy" if kind.startswith("cross_entropy") else kind
    if loss not in ("cross_entropy", "mse_loss"):
        raise ValueError(
            f"{graph.name}: its loss is {kind or 'of several operators'}; plans are tried with cross_entropy or mse_loss. Plan "
            "with one of these (loss= of from_torch), or export the plans and time your own steps"
        )
    given = {node.name: node for node in graph if node.operator.kind == "input"}
    target = given.pop(losses[0].inputs[-1].name, None)
    if target is None:
        raise ValueError(f"{graph.name}: the loss does not read its {losses[0].inputs[-1].name} from an input")
    return StepData([_input_spec(graph, node) for node in given.values()], _input_spec(graph, target), loss)


def _input_spec(graph: OperatorGraph, node: Node) -> dict[str, Any]:
    """Shape and type of an input, and the number that its integers are below, as the operators that read it say."""
    (tensor,) = node.outputs
    below = [of for reader in graph if tensor in reader.inputs if (of := reader.operator.integers_below(reader.specs)) is not None]
    return {"name": node.name, "shape": list(tensor.shape), "dtype": tensor.dtype.name, "below": min(below, default=0)}


def module_spec(graph: OperatorGraph, function: str | None, values: Mapping[str, Any], inputs: Sequence[str]) -> dict[str, Any]:
    """Return how the module is made. Raises ValueError if nobody says it, or if forward's arguments cannot be told apart."""
    import torch

    origin = require_origin(graph)
    module, parameters = origin.module, [*origin.module.parameters()]
    spec: dict[str, Any] = {
        "bytes": sum(p.numel() * p.element_size() for p in parameters),
        "tied": len(parameters) != len([*module.named_parameters(remove_duplicate=False)]),
    }
    if function is not None:
        spec |= {"function": function, "values": dict(values)}
    elif type(module).__module__.startswith("transformers."):
        config = json.loads(module.config.to_json_string())
        spec |= {"class": type(module).__name__, "config": config, "dtype": str(module.dtype).removeprefix("torch.")}
    else:
        raise ValueError(
            f"{graph.name}: which function makes the module? give --module FILE.py:FUNCTION, which returns the torch.nn.Module"
        )
    tensors = sum(isinstance(example, torch.Tensor) for example in origin.examples)
    if tensors != len(inputs):
        raise ValueError(
            f"{graph.name}: forward is given {tensors} tensors, and the graph has the inputs {', '.join(inputs)}; export the "
            "plans and time your own steps"
        )
    return spec

