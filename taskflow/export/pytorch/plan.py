"""A strategy as PyTorch needs it: mesh, layers and stages, and what is replicated, sharded and recomputed."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from taskflow.export.across import across_samples
from taskflow.export.cuts import WHOLE
from taskflow.export.difference import LATE, Difference, again_differences
from taskflow.export.mesh import Assignment, Mesh, data_dims, mesh_of, sharing_of
from taskflow.export.pytorch.layers import CutLayer, Expressed, Lying, express
from taskflow.export.pytorch.recomputation import recomputed_modules, rerun_modules
from taskflow.export.pytorch.shares import bytes_of_shares
from taskflow.export.pytorch.stages import StageText, stages_of_module
from taskflow.export.pytorch.units import units_of
from taskflow.floats import is_narrow
from taskflow.graph import OperatorGraph
from taskflow.mapper import (
    BLOCK,
    HadAgain,
    PipelineSchedule,
    Strategy,
    bucket_word,
    gather_units,
    sample_dim,
    samples,
    writes_together,
)
from taskflow.models.pytorch import OperatorSite, origin_of, sites_of

SCHEDULES = {  # (schedule, whether a rank has several stages): the class of torch.distributed.pipelining
    (PipelineSchedule.GPIPE, False): "ScheduleGPipe", (PipelineSchedule.GPIPE, True): "ScheduleLoopedBFS",
    (PipelineSchedule.ONE_F_ONE_B, False): "Schedule1F1B", (PipelineSchedule.ONE_F_ONE_B, True): "ScheduleInterleaved1F1B",
    (PipelineSchedule.ZERO_BUBBLE, False): "ScheduleInterleavedZeroBubble",
}
STATE = 4  # arrays of a weight: it, its gradient, and two of an optimizer's state


@dataclass(slots=True)
class TorchPlan:
    """Contents of a generated module. ``names``: the mesh's dimensions (the pipeline's first). ``nearest``: the strategy that
    it expresses, which is the given one if there are no ``differences``. ``notes``: what is done differently with the same
    result. ``more_bytes``: what a rank needs beyond the plan's memory. ``elements``: of all parameters, 0: unknown. ``samples``: of
    each step, 0: any number. ``modules``: the paths of all modules."""

    mesh: Mesh
    names: Mapping[str, int]
    data: tuple[str, ...]
    tensor: tuple[str, ...]
    layers: Mapping[str, CutLayer]
    nearest: Strategy
    differences: Sequence[Difference]
    zero: int = 0
    group: int = 0
    units: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    micro_batches: int = 1
    schedule: str = ""
    stages: tuple[StageText, ...] = ()
    arrives: tuple[tuple[Lying, ...], ...] = ()
    inputs: tuple[str, ...] = ()
    by_name: bool = False
    output: Lying = ()
    target: Lying = ()
    statistics: bool = False
    devices: tuple[int, ...] = ()
    more_bytes: int = 0
    elements: int = 0
    samples: int = 0
    modules: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)


def torch_plan(graph: OperatorGraph, strategy: Strategy) -> TorchPlan:
    """Return the plan in PyTorch's terms. Raises ValueError if the graph is not of `from_torch`, or if nothing near the plan
    can be expressed."""
    sites, result = sites_of(graph)
    origin = origin_of(graph)
    assert origin is not None and result is not None, "sites_of found them"
    strategy.verify(graph)
    mesh = mesh_of(graph, strategy)
    data = data_dims(graph, mesh)
    _require_own_samples(graph, any(mesh.sizes[j] > 1 for j in data))
    _require_module(origin.module, len(data) == len(mesh.sizes), strategy)
    cuts = {node.name: strategy[node.name].describe(node) for node in graph}
    leaves = {site.path for site in sites.values() if site.kind == "module"}
    classes = {path: type(origin.module.get_submodule(path)).__name__ for path in leaves}
    found = express(graph, mesh, data, sites, result, cuts, classes)
    pipeline = strategy.pipeline
    in_turn = pipeline is not None and pipeline.micro_batches > 1
    everywhere = replace(mesh, copied=frozenset(_on_all(graph, found.assignments, in_turn)))
    configs = {node.name: everywhere.config(node, found.assignments[node.name], pipeline) for node in graph}
    sharing = sharing_of(graph, strategy)
    again, kept = recomputed_modules(graph, strategy, sites, origin.module)
    whole, to_the_end = rerun_modules(graph, strategy, sites, origin.module, again)
    anew = HadAgain(recompute=strategy.again.recompute - set(kept), rerun=to_the_end)
    found.differences += again_differences(
        strategy.again, anew, "only whole modules can be computed again, to their end, and PyTorch keeps what it gathers"
    )
    nearest = strategy if not found.differences else replace(
        strategy, configs=configs, name=f"{strategy.name} (for torch)", again=anew, plan=None,
    )
    names, data_names, tensor_names = _mesh_names(mesh, data)
    _require_layers(origin.module, leaves, bool(tensor_names), found)
    plan = TorchPlan(
        mesh, names, data_names, tensor_names, found.layers if tensor_names else {}, nearest, found.differences,
        zero=sharing.zero, group=sharing.shard_group, again=again, whole=whole,
        units=units_of(graph, origin.module, sites, in_blocks=bool(sharing.bucket or gather_units(graph, strategy))),
        inputs=(inputs := _inputs(graph, sites)), by_name=_by_name(origin.module, inputs), output=found.output, target=found.target,
        statistics=bool(data) and any(node.operator.kind == "running_statistics" for node in graph),
        devices=mesh.devices if list(mesh.devices) != sorted(mesh.devices) else (), elements=_elements(origin.module),
        modules=tuple(path for path, _ in origin.module.named_modules(remove_duplicate=False)),
    )
    if is_narrow(graph.dtype):
        plan.notes.append(
            f"weights, gradients and the optimizer's state are {graph.dtype.name}, as the module has them; the plan's memory and "
            "time count float32 copies of the weights, and gradients and state in float32"
        )
    if plan.data and sharing.bucket:
        plan.notes.append(f"FSDP2 sums gradients block by block, where the plan has bucket={bucket_word(sharing.bucket)}")
    if plan.data and sharing.zero < 3:
        replicas = sharing.shard_group or prod(mesh.sizes[j] for j in data) if sharing.zero else 1
        plan.more_bytes = bytes_of_shares(graph, mesh, pipeline, replicas)
        what = "a rank's shares of the weights" if sharing.zero else "a copy of the weights"
        more = f"{plan.more_bytes / 1e6:,.1f} MB a rank more than predicted"
        plan.notes.append(f"FSDP2 keeps {what} beside those that it computes with: {more}")
    if found.repeated:
        more_bytes = STATE * sum(p.spec.nbytes for node in graph if node.name in found.repeated for p in node.parameters)
        plan.more_bytes += more_bytes
        plan.notes.append(
            f"every rank has all of {', '.join(found.repeated)}, which have no samples: at most {more_bytes / 1e6:,.1f} MB a rank "
            "more than predicted, with gradients and an optimizer's state"
        )
    if plan.data and sharing.zero in (1, 2) and not sharing.late_gather:
        plan.notes.append(LATE)
    if sharing.zero == 3 and sharing.prefetch not in (BLOCK, 1):
        plan.notes.append(f"FSDP2 gathers one layer ahead, the plan {sharing.prefetch}")
    if pipeline is not None:
        plan.micro_batches = pipeline.micro_batches
        if pipeline.count > 1:
            _add_stages(plan, graph, strategy, origin, sites, found)
    return plan


def _on_all(graph: OperatorGraph, assignments: Mapping[str, Assignment], in_turn: bool) -> Iterator[str]:
    """Yield the operators that all ranks compute along a mesh dimension along which they are not cut: all that can have copies.
    ``in_turn``: whether samples are cut into micro-batches."""
    states = {tensor.node for pair in graph.carries for tensor in pair}
    for node in graph:
        cut = {dim for dim in (*assignments[node.name], sample_dim(node) if in_turn else None) if dim is not None}
        if node.number not in states and not any(writes_together(node, dim) for dim in cut):
            yield node.name


def _mesh_names(mesh: Mesh, data: Sequence[int]) -> tuple[dict[str, int], tuple[str, ...], tuple[str, ...]]:
    names: dict[str, int] = {"pipeline": len(mesh.orders)} if len(mesh.orders) > 1 else {}
    found: tuple[list[str], list[str]] = ([], [])
    for j, size in enumerate(mesh.sizes):
        kind = 0 if j in data else 1
        many = (len(data), len(mesh.sizes) - len(data))[kind]
        name = ("data", "tensor")[kind] + (str(len(found[kind])) if many > 1 else "")
        names[name] = size
        found[kind].append(name)
    if not names:
        names = {"data": 1}
        found[0].append("data")
    return names, tuple(found[0]), tuple(found[1])


def _elements(module: Any) -> int:
    """Elements of a module's parameters; 0 for a program of torch.export, which may lack some."""
    from taskflow.models.pytorch.exported import ExportedModule

    return 0 if isinstance(module, ExportedModule) else sum(parameter.numel() for parameter in module.parameters())


def _require_own_samples(graph: OperatorGraph, divided: bool) -> None:
    """Raise ValueError if samples are divided among ranks, and the network compares them."""
    if divided and (name := across_samples(graph)):
        raise ValueError(
            f"{name} compares all samples of a step with one another, and a rank's module has its own alone, which is another "
            "loss; export a plan that divides no samples, or to jax"
        )


def _require_module(module: Any, by_samples: bool, strategy: Strategy) -> None:
    """Raise ValueError for what cannot be done with a program of torch.export, which has functions in place of layers."""
    from taskflow.models.pytorch.exported import ExportedModule

    stages = strategy.pipeline.count if strategy.pipeline is not None else 1
    if isinstance(module, ExportedModule) and not (by_samples and stages == 1 and not strategy.again.recompute):
        raise ValueError(
            "the network was imported from a program of torch.export, which has functions in place of the module's layers, so that "
            "only plans that divide samples alone (data, zero1 to zero3) can be exported; import the torch.nn.Module itself"
        )


def _require_layers(module: Any, paths: Iterable[str], tensor: bool, found: Expressed) -> None:
    """Raise ValueError for layers whose parameters cannot be DTensors."""
    from torch import nn

    if not tensor:
        return
    for path in sorted(paths):
        part = module.get_submodule(path)
        if isinstance(part, (nn.LSTM, nn.GRU, nn.MultiheadAttention, nn.Conv1d, nn.ConvTranspose1d, nn.Conv3d)):
            raise ValueError(
                f"{path} is a torch.nn.{type(part).__name__}, which PyTorch cannot have beside layers that are cut; export a "
                "plan that cuts samples alone (such as data), or write it with Linear layers"
            )


def _inputs(graph: OperatorGraph, sites: Mapping[str, OperatorSite]) -> tuple[str, ...]:
    """The names of forward's arguments."""
    return tuple(sites[node.name].name for node in graph if node.name in sites and sites[node.name].kind == "input")


def _by_name(module: Any, inputs: Sequence[str]) -> bool:
    """True if forward's first arguments are not just these, so that they must be given by name."""
    parameters = [*inspect.signature(type(module).forward).parameters.values()][1:]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return False
    first = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY][: len(inputs)]
    return [*inputs] != first


def _add_stages(
    plan: TorchPlan, graph: OperatorGraph, strategy: Strategy, origin: Any, sites: Mapping[str, OperatorSite], found: Expressed
) -> None:
    pipeline = strategy.pipeline
    assert pipeline is not None, "it has stages"
    several = pipeline.count > pipeline.ranks
    if pipeline.schedule.in_a_v:
        raise ValueError(
            f"the generated module deals stages to ranks in turn, and {pipeline.schedule.value} has its second stages in reverse; "
            "use schedule=zb-h1, or another target: torchtitan"
        )
    if (pipeline.schedule, several) not in SCHEDULES:
        many = "several stages" if several else "one stage"
        raise ValueError(f"the generated module has no schedule={pipeline.schedule.value} with {many} a rank; use 1f1b")
    plan.schedule = SCHEDULES[pipeline.schedule, several]
    if plan.schedule == "Schedule1F1B" and pipeline.micro_batches < pipeline.count:
        plan.schedule = "ScheduleGPipe"
        plan.notes.append("PyTorch's 1F1B needs as many micro-batches as stages; with fewer its GPipe runs, with the same results")
    batch = samples(graph)
    rows = max(1, batch // (prod(plan.names[name] for name in plan.data) * pipeline.micro_batches))
    plan.stages, fixed = stages_of_module(origin.module, origin.examples, rows, pipeline, sites)
    if fixed:
        plan.samples = batch
        plan.notes.append(f"a step has {batch} samples: the stages' code has sizes as numbers; the loss is given scores alone")
    plan.arrives = tuple(_arriving(graph, strategy, number, len(stage.arrives), plan, found)
                         for number, stage in enumerate(plan.stages))


def _arriving(
    graph: OperatorGraph, strategy: Strategy, number: int, count: int, plan: TorchPlan, found: Expressed
) -> tuple[Lying, ...]:
    """Layout of each value that a stage receives along the tensor dimensions: as its operators read it, if it is one value."""
    pipeline = strategy.pipeline
    assert pipeline is not None
    crossing = {
        tensor.name for node in graph for tensor in node.inputs
        if pipeline.stage(node.name) >= number > pipeline.stage(graph.nodes[tensor.node].name) and tensor.spec.differentiable
        and graph.nodes[tensor.node].inputs
    }
    if count == 1 and len(crossing) == 1:
        return (found.lies[crossing.pop()],)
    return ((WHOLE,) * len(plan.tensor),) * count
