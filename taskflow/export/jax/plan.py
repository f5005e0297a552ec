"""A strategy as GSPMD needs it: a mesh, the layout of each tensor on it, and what is sharded and recomputed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from taskflow.export.cuts import WHOLE, Lies, NotEven, input_lies, output_lies, weight_lies
from taskflow.export.difference import Difference, again_differences
from taskflow.export.jax.pipelines import STAGES, without_stages
from taskflow.export.mesh import Assignment, Mesh, data_dims, mesh_of
from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import HadAgain, ShardedSync, Strategy, sample_dim
from taskflow.operators.operator import Soap, Work

HEAVY = {Work.CONTRACTION, Work.CONVOLUTION, Work.RECURRENT}
Spec = tuple[tuple[str, ...], ...]  # for each axis the mesh's axes along which it is cut


@dataclass(frozen=True, slots=True)
class KeptParameter:
    """``spec``: a parameter's layout when it is read. ``state``: the layout of its optimiser state, sharded by the stage
    ``zero``."""

    shape: tuple[int, ...]
    spec: Spec
    state: Spec
    zero: int


@dataclass(slots=True)
class JaxPlan:
    """Contents of a generated module. ``axes``: the mesh's, the slowest first. ``order``: the plan's processors in the order of
    the mesh. ``samples``: the axes that cut the batch. ``activations``: operator -> the constraints on each of its outputs;
    none: it follows its inputs. ``nearest``: the strategy that it expresses, which is the given one if there are no
    ``differences``."""

    axes: Mapping[str, int]
    order: tuple[int, ...]
    samples: tuple[str, ...]
    micro_batches: int
    parameters: Mapping[str, KeptParameter]
    activations: Mapping[str, tuple[Spec, ...]]
    recompute: frozenset[str]
    nearest: Strategy
    differences: Sequence[Difference]
    notes: list[str] = field(default_factory=list)


def jax_plan(graph: OperatorGraph, strategy: Strategy) -> JaxPlan:
    """Return the plan in JAX's terms. Raises ValueError if nothing near the plan can be expressed."""
    strategy.verify(graph)
    if strategy.pipeline is not None and strategy.pipeline.count > 1:
        near = without_stages(graph, strategy)
        found = jax_plan(graph, near)
        stages = [
            Difference(node.name, strategy[node.name].describe(node), STAGES.format(strategy.pipeline.stage(node.name)))
            for node in graph if node.inputs
        ]
        return replace(found, differences=[*stages, *found.differences])
    mesh = _split(mesh_of(graph, strategy), graph, strategy)
    return _Expression(graph, strategy, mesh).plan()


class _Expression:
    """Assignments of operators, changed to what GSPMD can express, and the specs that follow."""

    def __init__(self, graph: OperatorGraph, strategy: Strategy, mesh: Mesh) -> None:
        self.graph, self.strategy, self.mesh = graph, strategy, mesh
        self.data = data_dims(graph, mesh)
        self.assignments: dict[str, Assignment] = dict(mesh.assignments)
        self.differences: list[Difference] = []
        self.notes: list[str] = []
        self.names = _axis_names(graph, mesh, self.data)

    def plan(self) -> JaxPlan:
        self._replace_refused()
        parameters = self._parameters()
        configs = {node.name: self.mesh.config(node, self.assignments[node.name], self.strategy.pipeline) for node in self.graph}
        again = HadAgain(recompute=self.strategy.again.recompute)
        self.differences += again_differences(self.strategy.again, again, "XLA decides what it keeps and runs again")
        nearest = self.strategy if not self.differences else replace(
            self.strategy, configs=configs, name=f"{self.strategy.name} (for jax)", again=again, plan=None,
        )
        if any(sync.late_gather for sync in self.strategy.syncs.values()):
            self.notes.append("XLA decides when new weights are gathered: overlap=all is not said to it")
        pipeline = self.strategy.pipeline
        return JaxPlan(
            dict(zip(self.names, self.mesh.sizes)), self.mesh.orders[0], self._samples(),
            pipeline.micro_batches if pipeline is not None else 1, parameters, self._activations(), again.recompute,
            nearest, self.differences, self.notes,
        )

    def _replace_refused(self) -> None:
        nodes = {node.name: node for node in self.graph}
        for name, why in self.mesh.refused.items():
            self.assignments[name] = self._spread(nodes[name], (None,) * len(self.names))
            self._differs(nodes[name], why)
        everywhere = []
        for name in self.mesh.redundant:
            node, known = nodes[name], self.assignments[name]
            if not node.inputs or (node.operator.work not in HEAVY and not node.parameters):
                continue
            small = sample_dim(node) is None and node.operator.work not in HEAVY
            spread = known if small else self._spread(node, known)
            if spread == known:
                everywhere.append(name)
            else:
                self.assignments[name] = spread
                self._differs(node, "runs on some of the devices only; under GSPMD all devices of the mesh hold and compute it")
        if everywhere:
            self.notes.append(f"computed on all devices instead of some, as nothing divides them: {', '.join(everywhere)}")

    def _spread(self, node: Node, known: Assignment) -> Assignment:
        """An operator cut along as many mesh dimensions as possible: samples first, and no sums."""
        found = list(known)
        sample = sample_dim(node)
        order = sorted(range(len(node.dims)), key=lambda i: i != sample)
        taken = [prod(s for s, d in zip(self.mesh.sizes, found) if d == i) for i in range(len(node.dims))]
        many = self.strategy.pipeline.micro_batches if self.strategy.pipeline is not None else 1
        for j, size in enumerate(self.mesh.sizes):
            for i in order if found[j] is None else ():
                dim = node.dims[i]
                parts = taken[i] * size * (many if i == sample else 1)
                if dim.divisible and dim.soap is not Soap.REDUCTION and dim.size % parts == 0:
                    found[j] = i
                    taken[i] *= size
                    break
        return tuple(found)

    # ---- parameters --------------------------------------------------------------------------------------------------

    def _parameters(self) -> dict[str, KeptParameter]:
        found: dict[str, KeptParameter] = {}
        whole = []
        for node in self.graph:
            for k, parameter in enumerate(node.parameters):
                lying = self._weight(node, k)
                spec = self._spec(lying, len(parameter.shape))
                if parameter.name in found:
                    if found[parameter.name].spec != spec:
                        self.notes.append(f"{node.name} reads {parameter.name}, which lies as {parameter.layer} cuts it")
                    continue
                sync = self.strategy.sync(parameter.layer)
                zero, among = sync.zero, sync if isinstance(sync, ShardedSync) else None
                free = [j for j, lies in enumerate(lying) if lies.axis is None]
                if among and 0 < among.replicas < prod(self.mesh.sizes[j] for j in free):
                    free = self._within(free, among.replicas, node)
                if among and among.shard_group:
                    free = self._within(free[::-1], among.shard_group, node)
                state = self._shared(spec, parameter.shape, free) if zero and free else spec
                if zero and free and state == spec:
                    whole.append(parameter.name)
                found[parameter.name] = KeptParameter(tuple(parameter.shape), spec, state, zero if state != spec else 0)
        if whole:
            self.notes.append(f"kept whole, as no axis divides evenly into shares: {', '.join(whole)}")
        return found

    def _weight(self, node: Node, k: int) -> list[Lies]:
        lying = []
        for j, dim in enumerate(self.assignments[node.name]):
            try:
                lying.append(weight_lies(node, dim, k, self.mesh.sizes[j]))
            except NotEven as error:
                self._differs(node, str(error))
                known = self.assignments[node.name]
                self.assignments[node.name] = (*known[:j], None, *known[j + 1 :])
                lying.append(WHOLE)
        return lying

    def _within(self, free: Sequence[int], many: int, node: Node) -> list[int]:
        """The first of the mesh dimensions, as many as ``many`` devices need, in ascending order. Replicas are the slowest, and
        neighbours the fastest. Notes a difference if there are none."""
        found: list[int] = []
        for j in free:
            if prod(self.mesh.sizes[i] for i in found) < many:
                found.append(j)
        if prod(self.mesh.sizes[i] for i in found) != many:
            axes = ", ".join(f"{name} {size}" for name, size in zip(self.names, self.mesh.sizes))
            self._differs(node, f"shares within {many} devices are no dimension of the mesh ({axes})")
        return sorted(found)

    def _shared(self, spec: Spec, shape: Sequence[int], free: Sequence[int]) -> Spec:
        """A spec that is also sharded along further mesh dimensions: on the largest axis that they divide."""
        axes, many = tuple(self.names[j] for j in free), prod(self.mesh.sizes[j] for j in free)
        sizes = dict(zip(self.names, self.mesh.sizes))
        for axis in sorted(range(len(shape)), key=lambda a: -shape[a]):
            if shape[axis] % (many * prod(sizes[name] for name in spec[axis])) == 0:
                return (*spec[:axis], spec[axis] + axes, *spec[axis + 1 :])
        return spec

    # ---- activations -------------------------------------------------------------------------------------------------

    def _activations(self) -> dict[str, tuple[Spec, ...]]:
        result: dict[tuple[int, int], list[Lies]] = {}
        found: dict[str, tuple[Spec, ...]] = {}
        readers: dict[tuple[int, int], list[tuple[Node, int]]] = {}
        for node in self.graph:
            for k, tensor in enumerate(node.inputs):
                readers.setdefault((tensor.node, tensor.index), []).append((node, k))
        for node in self.graph:
            if not node.inputs:
                continue
            for tensor in node.outputs:
                key, rank = (tensor.node, tensor.index), len(tensor.spec.shape)
                if not rank or not tensor.spec.differentiable:
                    continue
                lying = [output_lies(node, dim, tensor.index) for dim in self.assignments[node.name]]
                read = self._read(readers.get(key, []))
                summed = any(lies.partial for lies in lying)
                kept = read if summed and read is not None else [WHOLE if lies.partial else lies for lies in lying]
                result[key] = kept
                specs = [self._spec(kept, rank)]
                # Before a product with a weight the compiler gathers by itself, and adds gradients up in pieces.
                if read is not None and read != kept and not any(n.parameters for n, _ in readers[key]):
                    specs.append(self._spec(read, rank))
                says = summed or len(specs) > 1 or self._changes(node, result)
                found[tensor.name] = tuple(specs) if says else ()
        return found

    def _changes(self, node: Node, result: Mapping[tuple[int, int], list[Lies]]) -> bool:
        """True if an operator's cut differs from the one that its inputs imply."""
        if node.parameters or node.operator.work in HEAVY:
            return True
        for k, tensor in enumerate(node.inputs):
            if (tensor.node, tensor.index) not in result or result[tensor.node, tensor.index] != self._input(node, k):
                return True
        return False

    def _read(self, readers: Sequence[tuple[Node, int]]) -> list[Lies] | None:
        """The layout of a tensor where it is read, if all readers agree."""
        found = [self._input(node, k) for node, k in readers]
        return found[0] if found and None not in found and all(lying == found[0] for lying in found) else None

    def _input(self, node: Node, k: int) -> list[Lies] | None:
        """The layout of an input; None if pieces read beyond an even share, since the compiler exchanges halos by itself."""
        try:
            return [input_lies(node, dim, k, self.mesh.sizes[j]) for j, dim in enumerate(self.assignments[node.name])]
        except NotEven:
            return None

    # ---- shared ------------------------------------------------------------------------------------------------------

    def _samples(self) -> tuple[str, ...]:
        """The axes along which samples are cut at the network's inputs."""
        for node in self.graph:
            if not node.inputs and not node.parameters and any(t.spec.shape for t in node.outputs):
                spec = self._spec([output_lies(node, dim) for dim in self.assignments[node.name]], len(node.outputs[0].spec.shape))
                if spec and spec[0]:
                    return spec[0]
        return tuple(self.names[j] for j in self.data)

    def _spec(self, lying: Sequence[Lies], rank: int) -> Spec:
        return tuple(tuple(name for name, lies in zip(self.names, lying) if lies.axis == axis) for axis in range(rank))

    def _differs(self, node: Node, why: str) -> None:
        if all(known.operator != node.name for known in self.differences):
            self.differences.append(Difference(node.name, self.strategy[node.name].describe(node), why))


def _axis_names(graph: OperatorGraph, mesh: Mesh, data: Sequence[int]) -> list[str]:
    def kind(j: int) -> str:
        if j in data:
            return "data"
        for node in graph:
            dim = mesh.assignments.get(node.name, (None,) * len(mesh.sizes))[j]
            if dim is not None and node.operator.kind == "expert_linear" and node.dims[dim].name == "e":
                return "expert"
        return "tensor"

    kinds = [kind(j) for j in range(len(mesh.sizes))]
    return [k if kinds.count(k) == 1 else f"{k}{kinds[:j].count(k)}" for j, k in enumerate(kinds)]


def _split(mesh: Mesh, graph: OperatorGraph, strategy: Strategy) -> Mesh:
    """The mesh with its replicas split into two dimensions, groups and their members, if weights are sharded within groups."""
    syncs = [strategy.sync(p.layer) for p in graph.parameters]
    groups = {sync.shard_group for sync in syncs if isinstance(sync, ShardedSync)} - {0}
    data = data_dims(graph, mesh)
    if len(groups) != 1 or len(data) != 1:
        return mesh
    (group,), (j,) = groups, data
    if mesh.sizes[j] % group or mesh.sizes[j] == group:
        return mesh
    sizes = (*mesh.sizes[:j], mesh.sizes[j] // group, group, *mesh.sizes[j + 1 :])
    assignments = {name: (*found[: j + 1], *found[j:]) for name, found in mesh.assignments.items()}
    return replace(mesh, sizes=sizes, assignments=assignments)
