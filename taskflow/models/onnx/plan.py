"""Plans as ONNX: device configurations and sharding specs of each node (ONNX IR version 14).

A node's specs say how its inputs, weights and outputs are laid out. ONNX cannot express contracted dimensions that are cut,
uneven pieces, synchronisation and schedules; these are in metadata in the form of a strategy file. So is each operator's
configuration, which files of other writers lack.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from taskflow.annotations import FREE, CutLinks, links
from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig, Strategy, as_content, config_entry, from_content
from taskflow.models.onnx.needed import onnx_package
from taskflow.writing import json_text

CONFIGURATION, DOMAIN, IR = "plan", "taskflow", 14
STRATEGY = f"{DOMAIN}.strategy"  # metadata of a model: a strategy file without its operators
CONFIG = f"{DOMAIN}.config"  # metadata of a node: its entry in a strategy file
NOT_SAID = "its sharding specs are not those of a configuration of the operator"
MOST_PIECES = 1 << 26  # that a model says one by one: 11 to 13 bytes each, and protobuf writes 2 GB at most
Spec = tuple[str, tuple[int, ...], tuple[tuple[int, ...], ...]]
"""A tensor, its pieces along each dimension, and for each piece (the last dimension fastest) the devices that have it."""


def export_onnx(graph: OperatorGraph, strategy: Strategy, path: str | Path | None = None) -> Any:
    """Return a plan as an ONNX model, and write it to ``path``. Nodes are taskflow's operators in a domain of their own;
    weights are inputs, without numbers. Raises ImportError without onnx, ValueError for plans of more than `MOST_PIECES`."""
    onnx = onnx_package()
    _require_few(graph, strategy)
    strategy.verify(graph)
    types = onnx.helper.np_dtype_to_tensor_dtype
    infos = {
        t.name: onnx.helper.make_tensor_value_info(t.name, types(t.spec.dtype), t.shape) for node in graph for t in node.outputs
    }
    weights = [onnx.helper.make_tensor_value_info(p.name, types(p.spec.dtype), p.shape) for p in graph.parameters]
    alike: dict[Any, Any] = {}
    nodes = [_node(onnx, node, strategy, alike) for node in graph]
    outputs = [infos[t.name] for t in (graph.losses or [graph.nodes[-1].outputs[0]])]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, graph.name, weights, outputs, value_info=list(infos.values())),
        opset_imports=[onnx.helper.make_opsetid(DOMAIN, 1)], ir_version=IR, producer_name="taskflow",
    )
    devices = model.configuration.add(name=CONFIGURATION, num_devices=strategy.processors)
    devices.device.extend(str(number) for number in range(strategy.processors))
    content = as_content(strategy, graph, "")
    del content["operators"]  # each node says its own
    model.metadata_props.add(key=STRATEGY, value=json_text(content))
    if path is not None:
        onnx.save(model, str(path))
    return model


def _require_few(graph: OperatorGraph, strategy: Strategy) -> None:
    """Raise ValueError if a plan has more pieces than a model can say."""
    pieces = sum(len(strategy[node.name].processors) for node in graph)
    if pieces > MOST_PIECES:
        raise ValueError(
            f"onnx: the plan has {pieces:,} pieces of operators, and an ONNX model, which says the device of each, at most "
            f"{MOST_PIECES:,}; write the plan of one replica (d1, with its devices and batch), or keep the strategy file"
        )


def read_onnx_plan(model: Any, graph: OperatorGraph) -> Strategy:
    """Return the plan for a graph that an ONNX model (or its file) holds. Configurations come from metadata where present, and
    must then agree with the specs; else from the specs alone. Raises ValueError if the model is of another graph, or names what
    is ambiguous."""
    onnx = onnx_package()
    where = str(model) if isinstance(model, (str, Path)) else "ONNX model"
    model = onnx.load(str(model)) if isinstance(model, (str, Path)) else model
    stored = next((dict(json.loads(entry.value)) for entry in model.metadata_props if entry.key == STRATEGY), {})
    if stored.get("graph", graph.fingerprint()) != graph.fingerprint():
        raise ValueError(f"{where}: the plan is of another graph than {graph.name}; make the model as it was for the plan")
    found = next((c for c in model.configuration if c.name == CONFIGURATION), None) or next(iter(model.configuration), None)
    if found is None:
        raise ValueError(f"{where}: has no device configuration")
    there = {node.name: node for node in model.graph.node}
    operators, wanted = {}, {}
    for node in graph:
        if node.name not in there:
            raise ValueError(f"{where}: has no node {node.name}")
        theirs = next((c for c in there[node.name].device_configurations if c.configuration_id == found.name), None)
        if theirs is None:
            raise ValueError(f"{where}: node {node.name} has no device configuration {found.name!r}")
        wanted[node.name] = [_read_spec(spec, node) for spec in theirs.sharding_spec]
        entry = _entry({entry.key: entry.value for entry in there[node.name].metadata_props}, node, wanted[node.name])
        if entry is None:
            raise ValueError(f"{where}: node {node.name}: {NOT_SAID}")
        operators[node.name] = entry
    strategy = from_content({**stored, "processors": found.num_devices, "operators": operators}, graph, where)
    for node in graph:
        if list(specs_of(node, strategy[node.name])) != wanted[node.name]:
            raise ValueError(f"{where}: node {node.name}: {NOT_SAID}")
    return strategy


# ---- specs -------------------------------------------------------------------------------------------------------------------


def specs_of(node: Node, config: OpConfig) -> Iterator[Spec]:
    """Return how an operator's inputs, weights and outputs are laid out under a configuration. A tensor whose pieces overlap in
    more than one dimension is given as a whole, on all devices of the operator."""
    cut = [i for i, k in enumerate(config.degrees) if k > 1]
    of_dims = {i: links(node, i, config.degrees[i], {}) for i in cut}
    for tensor, axes in _axes_of(node, of_dims):
        yield _spec(config, tensor.name, tensor.shape, axes)


def _spec(config: OpConfig, name: str, shape: Sequence[int], axes: dict[int, int]) -> Spec:
    cut = [axis for axis in axes.values() if axis != FREE]
    if any(axis < 0 for axis in cut) or len(set(cut)) < len(cut):
        return name, (1,) * len(shape), (tuple(dict.fromkeys(config.processors)),)
    degrees = [1] * len(shape)
    for dim, axis in axes.items():
        if axis != FREE:
            degrees[axis] = config.degrees[dim]
    holders: dict[tuple[int, ...], dict[int, None]] = {}
    for color, processor in zip(product(*map(range, config.degrees)), config.processors):
        place = [0] * len(shape)
        for dim, axis in axes.items():
            if axis != FREE:
                place[axis] = color[dim]
        holders.setdefault(tuple(place), {})[processor] = None
    return name, tuple(degrees), tuple(tuple(holders[place]) for place in product(*map(range, degrees)))


def config_of(node: Node, specs: Sequence[Spec]) -> OpConfig | None:
    """Return the configuration that these specs describe; None if they describe none. Degrees are taken from those of the
    specs; a piece runs on the device that all its shards have in common."""
    wanted = list(specs)
    if not wanted:
        return None
    degrees_there = sorted({k for _, degrees, _ in wanted for k in degrees if k > 1})
    choices = [
        [1, *(k for k in degrees_there if dim.divisible and k <= dim.size and _seen(node, i, k))] for i, dim in enumerate(node.dims)
    ]
    for degrees in product(*choices):
        cut = [i for i, k in enumerate(degrees) if k > 1]
        of_dims = {i: links(node, i, degrees[i], {}) for i in cut}
        processors = []
        for color in product(*map(range, degrees)):
            having: set[int] | None = None
            for (_, parts, devices), (_, axes) in zip(wanted, _axes_of(node, of_dims)):
                index, clear = [0] * len(parts), all(axis >= 0 for axis in axes.values() if axis != FREE)
                for dim, axis in axes.items():
                    if clear and axis != FREE:
                        index[axis] = color[dim]
                if clear and all(at < part for at, part in zip(index, parts)):
                    number = sum(at * prod(parts[j + 1 :]) for j, at in enumerate(index))
                    having = set(devices[number]) if having is None else having & set(devices[number])
            if having is None or len(having) != 1:
                break
            processors.append(having.pop())
        else:
            config = OpConfig(degrees, tuple(processors))
            if list(specs_of(node, config)) == wanted:
                return config
    return None


def _seen(node: Node, dim: int, degree: int) -> bool:
    of = links(node, dim, degree, {})
    return any(axis >= 0 for axis in (*of.inputs, *of.weights, *of.outputs))


def _axes_of(node: Node, of_dims: dict[int, CutLinks]) -> Iterator[tuple[Any, dict[int, int]]]:
    """Each tensor once, in the order of `specs_of`, and the dimension that is cut with each of the operator's dimensions."""
    seen: set[str] = set()
    groups: Sequence[tuple[str, Sequence[Any]]] = (
        ("inputs", node.inputs), ("weights", node.parameters), ("outputs", node.outputs)
    )
    for group, tensors in groups:
        for number, tensor in enumerate(tensors):
            if tensor.name not in seen:
                seen.add(tensor.name)
                yield tensor, {i: int(getattr(of, group)[number]) for i, of in of_dims.items()}


# ---- ONNX's messages -----------------------------------------------------------------------------------------------------------


def _node(onnx: Any, node: Node, strategy: Strategy, alike: dict[Any, Any]) -> Any:
    """A node with its layout. ``alike``: a cache of layouts, shared by operators that differ in names alone."""
    inputs = [*(t.name for t in node.inputs), *(p.name for p in node.parameters)]
    outputs = [t.name for t in node.outputs]
    result = onnx.helper.make_node(node.operator.kind, inputs, outputs, name=node.name, domain=DOMAIN)
    names, config = list(dict.fromkeys([*inputs, *outputs])), strategy[node.name]
    key = (node.operator, node.specs, config, tuple(map(names.index, [*inputs, *outputs])))
    if key not in alike:
        alike[key] = _layout(onnx, node, config), json_text(config_entry(node, config))
    layout, text = alike[key]
    theirs = result.device_configurations.add()
    theirs.CopyFrom(layout)
    if strategy.pipeline is not None:
        theirs.pipeline_stage = strategy.pipeline.stages.get(node.name, 0)
    for spec, name in zip(theirs.sharding_spec, names, strict=True):
        spec.tensor_name = name
    result.metadata_props.add(key=CONFIG, value=text)
    return result


def _layout(onnx: Any, node: Node, config: OpConfig) -> Any:
    """An operator's configuration as ONNX's message."""
    theirs, shapes = onnx.NodeDeviceConfigurationProto(configuration_id=CONFIGURATION), _shapes(node)
    for name, degrees, devices in specs_of(node, config):
        spec, keys = theirs.sharding_spec.add(tensor_name=name), dict[tuple[int, ...], int]()
        for group in devices:
            if len(group) > 1 and group not in keys:  # a group has a negative number, since devices have the others
                keys[group] = -1 - len(keys)
                spec.index_to_device_group_map.add(key=keys[group]).value.extend(group)
        spec.device.extend(keys.get(group, group[0]) for group in devices)
        for axis, degree in enumerate(degrees):
            if degree > 1:
                spec.sharded_dim.add(axis=axis).simple_sharding.add(dim_value=shapes[name][axis], num_shards=degree)
    return theirs


def _shapes(node: Node) -> dict[str, tuple[int, ...]]:
    found = {t.name: t.shape for t in (*node.inputs, *node.outputs)}
    return found | {p.name: p.shape for p in node.parameters}


def _read_spec(spec: Any, node: Node) -> Spec:
    shapes = _shapes(node)
    if spec.tensor_name not in shapes:
        raise ValueError(f"node {node.name}: a sharding spec is of {spec.tensor_name!r}, which it neither reads nor writes")
    degrees = [1] * len(shapes[spec.tensor_name])
    for dim in spec.sharded_dim:
        degrees[dim.axis] = prod(s.num_shards for s in dim.simple_sharding)
    groups = {entry.key: tuple(entry.value) for entry in spec.index_to_device_group_map}
    return spec.tensor_name, tuple(degrees), tuple(groups.get(d, (d,)) for d in spec.device)


def _entry(meta: dict[str, str], node: Node, specs: Sequence[Spec]) -> dict[str, Any] | None:
    """A node's entry in a strategy file: what its metadata says, else its specs; None if they leave open which it is."""
    if CONFIG in meta:
        return dict(json.loads(meta[CONFIG]))
    config = config_of(node, specs)
    return None if config is None else config_entry(node, config)
