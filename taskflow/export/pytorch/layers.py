"""Layers and functions of a module as a plan cuts them, and what PyTorch cannot express of that.

A layer (a module of torch.nn) computes on its pieces, so its cut determines the layout of its arguments, weights and results. A
function in a module's code takes DTensors and follows them: its cut must be that of its inputs, or the previous layer must
return them cut that way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from taskflow.export.cuts import WHOLE, Lies, NotEven, added_once, dim_that_reads, input_lies, output_lies, weight_lies
from taskflow.export.difference import Difference
from taskflow.export.mesh import Assignment, Mesh
from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import sample_dim
from taskflow.models.pytorch import OperatorSite
from taskflow.operators.operator import Soap, Work
from taskflow.operators.transpose import Transpose

Lying = tuple[Lies, ...]  # along each mesh dimension
ROWS = "embedding"  # tables, whose rows may be cut
CUT_WEIGHTS = {"linear", "embedding", "conv2d"}  # operators that compute on pieces of their weights as on whole ones
UNCUT = {  # what takes a batch's statistics, or keeps state
    "lstm", "gru", "causal_conv1d", "selective_scan", "cumsum", "moments", "normalize", "running_statistics",
}
SIZED = {"Flatten", "Unflatten", "Upsample"}  # layers that name sizes, or that DTensor cuts as well
APART = {  # functions that are computed on pieces (`support.OnPieces`): how many axes, from the left, may be cut
    "scaled_dot_product_attention": -2, "max_pool2d": 2, "avg_pool2d": 2, "adaptive_avg_pool2d": 2, "interpolate": 2,
    "conv1d": 1, "conv2d": 1, "conv3d": 1,
}
TURNED = "Conv1D"  # Hugging Face's linear layer, which has its weight as (inputs, outputs)
HEAVY = {Work.CONTRACTION, Work.CONVOLUTION, Work.RECURRENT}


@dataclass(slots=True)
class CutLayer:
    """A layer in the form of `support.Layer`. ``inputs``: one for each argument."""

    path: str
    inputs: tuple[Lying, ...]
    weights: dict[str, Lying]
    makes: Lying
    output: Lying
    once: tuple[str, ...] = ()
    rows: bool = False


@dataclass(slots=True)
class Expressed:
    """Result of `express`. ``assignments``: how operators are cut in the export. ``layers``: those that have a cut or a layout.
    ``repeated``: layers without samples that the plan has on some ranks, or in pieces; each rank has all of them."""

    assignments: dict[str, Assignment]
    layers: dict[str, CutLayer] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    output: Lying = ()
    target: Lying = ()
    lies: dict[str, Lying] = field(default_factory=dict)  # tensor's name -> how it lies when it is read
    repeated: list[str] = field(default_factory=list)


def express(
    graph: OperatorGraph, mesh: Mesh, data: Sequence[int], sites: Mapping[str, OperatorSite], result: str,
    cuts: Mapping[str, str], classes: Mapping[str, str],
) -> Expressed:
    """Express the plan as layers, along the mesh dimensions that are not in ``data``. ``cuts``: operator -> its cut in words;
    ``classes``: path of a layer -> the name of its class."""
    return _Walk(graph, mesh, data, sites, result, cuts, classes).expressed()


def _is_table(node: Node) -> bool:
    """True for a small layer without samples, such as a table of positions, or for what such a layer reads: a rank that computes
    more of it than planned needs no time for that."""
    return (bool(node.parameters) or not node.inputs) and node.operator.work not in HEAVY and sample_dim(node) is None


def _turned(lies: Lies) -> Lies:
    return lies if lies.axis is None else Lies(1 - lies.axis)


class _Walk:
    def __init__(
        self, graph: OperatorGraph, mesh: Mesh, data: Sequence[int], sites: Mapping[str, OperatorSite], result: str,
        cuts: Mapping[str, str], classes: Mapping[str, str],
    ) -> None:
        self.classes = classes
        self.graph, self.mesh, self.sites, self.result, self.cuts = graph, mesh, sites, result, cuts
        self.data = set(data)
        self.tensor = [j for j in range(len(mesh.sizes)) if j not in self.data]
        self.none: Assignment = (None,) * len(mesh.sizes)
        self.found = Expressed(dict(mesh.assignments))
        self.nodes = {node.name: node for node in graph}
        self.lies: dict[tuple[int, int], list[Lies]] = {}  # tensor -> how it lies along each tensor dimension
        self.makers: dict[tuple[int, int], CutLayer] = {}  # tensors that a layer hands out, which nobody has read yet
        self.names = {tensor.name: tensor for node in graph for tensor in node.outputs}

    def expressed(self) -> Expressed:
        for name, why in self.mesh.refused.items():
            self._differs(name, why)
            self.found.assignments[name] = self._data_only(self.nodes[name])
        for name in self.mesh.redundant:
            node = self.nodes[name]
            if _is_table(node):
                self._repeat(node)
            elif node.operator.work in HEAVY or node.parameters:
                self._differs(name, "runs on some of the ranks only; in a mesh all ranks hold and compute it")
        done: set[str] = set()
        for node in self.graph:
            if node.name in done:
                continue
            site = self.sites.get(node.name)
            group = [self.nodes[name] for name in site.operators] if site is not None else [node]
            done.update(member.name for member in group)
            if site is not None and site.kind == "module":
                self._layer(site, group)
            elif site is not None and site.kind != "input":
                for member in group:
                    self._function(member)
            elif site is None:
                self._loss(node)
            else:
                self._lie(node, [WHOLE] * len(self.tensor))
        self.found.lies = {name: tuple(self.lies[tensor.node, tensor.index]) for name, tensor in self.names.items()}
        return self.found

    # ---- layers ------------------------------------------------------------------------------------------------------

    def _layer(self, site: OperatorSite, group: Sequence[Node]) -> None:
        kind = {member.operator.kind for member in group}
        for j in self.tensor:
            why = self._cannot(group, kind, j)
            if why:
                for member in group:
                    if self.found.assignments[member.name][j] is None:
                        continue
                    self._set(member, j, None)
                    if all(map(_is_table, group)):
                        self._repeat(member)
                    else:
                        self._differs(member.name, why)
                self._follow_inside(group, j)
        layer = self._as_layer(site, group)
        for member in group:
            self._lie(member, [output_lies(member, self.found.assignments[member.name][j]) for j in self.tensor])
        if layer is None:
            return
        for tensor in (self.names[name] for name in site.outputs if name is not None):
            self.makers[tensor.node, tensor.index] = layer
            self.lies[tensor.node, tensor.index] = list(layer.output)
        self.found.layers[site.path] = layer

    def _cannot(self, group: Sequence[Node], kinds: set[str], j: int) -> str:
        """Why a layer's cut along a mesh dimension cannot be computed piecewise; empty if it can."""
        inside = {(tensor.node, tensor.index): member for member in group for tensor in member.outputs}
        for member in group:
            dim = self.found.assignments[member.name][j]
            if dim is not None and kinds & UNCUT:
                return "takes statistics of the batch or keeps state, which PyTorch has whole on each rank or replica"
            try:
                weights = [weight_lies(member, dim, k, self.mesh.sizes[j]) for k in range(len(member.parameters))]
                reads = [input_lies(member, dim, k, self.mesh.sizes[j]) for k in range(len(member.inputs))]
            except NotEven as error:
                return f"{error}; DTensor gathers such a tensor without a word"
            if dim is not None and member.operator.kind not in CUT_WEIGHTS:
                if any(lies != WHOLE for lies in weights):
                    return "its weights cannot be cut in PyTorch's layer"
                if member.dims[dim].soap is Soap.REDUCTION:
                    return "a sum inside of the layer cannot be cut"
                if len(group) > 1 and not member.inputs:
                    return "its parts are made within the layer"
            if member.operator.kind == "conv2d" and getattr(member.operator, "groups", 1) > 1 and any(w != WHOLE for w in weights):
                return "a convolution in groups cannot be cut by channels in PyTorch's layer"
            for k, tensor in enumerate(member.inputs):
                maker = inside.get((tensor.node, tensor.index))
                if maker is not None and output_lies(maker, self.found.assignments[maker.name][j], tensor.index) != reads[k]:
                    return "its parts are cut in different ways, but PyTorch has them as one layer"
        return ""

    def _follow_inside(self, group: Sequence[Node], j: int) -> None:
        """Make the parts of a layer that is whole along a mesh dimension whole as well."""
        for member in group:
            self._set(member, j, None)

    def _as_layer(self, site: OperatorSite, group: Sequence[Node]) -> CutLayer | None:
        if not self.tensor or self.classes[site.path] in SIZED:
            return None
        assignments = self.found.assignments
        inputs = []
        for name in site.inputs:
            if name is None or name not in self.names:
                inputs.append((WHOLE,) * len(self.tensor))
                continue
            tensor = self.names[name]
            reader = next(
                ((m, k) for m in group for k, t in enumerate(m.inputs) if (t.node, t.index) == (tensor.node, tensor.index)), None
            )
            inputs.append(tuple(
                input_lies(reader[0], assignments[reader[0].name][j], reader[1], self.mesh.sizes[j]) if reader else WHOLE
                for j in self.tensor
            ))
            self._hand_out(tensor.node, tensor.index, inputs[-1])
        if not site.outputs or site.outputs[0] is None:
            return None
        last = self.names[site.outputs[0]]
        maker = self.graph.nodes[last.node]
        if maker not in group:  # it hands on what it is given
            return None
        weights: dict[str, Lying] = {}
        once: list[str] = []
        for member in group:
            for k, parameter in enumerate(member.parameters):
                own = parameter.name.startswith(f"{site.path}.")  # else it is shared, and named by another layer
                local = parameter.name.removeprefix(f"{site.path}.") if own else ("weight", "bias")[k]
                lying = tuple(weight_lies(member, assignments[member.name][j], k, self.mesh.sizes[j]) for j in self.tensor)
                if any(lies != WHOLE for lies in lying):
                    turned = local == "weight" and self.classes[site.path] == TURNED
                    weights[local] = tuple(map(_turned, lying)) if turned else lying
                if any(added_once(member, assignments[member.name][j], k) for j in self.tensor):
                    once.append(local)
        makes = tuple(output_lies(maker, assignments[maker.name][j], last.index) for j in self.tensor)
        kept = tuple(WHOLE if lies.partial else lies for lies in makes)
        rows = maker.operator.kind == ROWS and any(lies.partial for lies in makes)
        return CutLayer(site.path, tuple(inputs), weights, makes, kept, tuple(once), rows)

    # ---- functions ---------------------------------------------------------------------------------------------------

    def _function(self, node: Node) -> None:
        """Cut a function as the layouts of its inputs determine; a layer returns what its first reader wants."""
        if not node.inputs:
            self._lie(node, [WHOLE] * len(self.tensor))
            return
        for j in self.tensor:
            self._function_along(node, j)
        for k, tensor in enumerate(node.inputs):
            if not tensor.spec.differentiable:
                continue
            try:
                wanted = tuple(
                    input_lies(node, self.found.assignments[node.name][j], k, self.mesh.sizes[j]) for j in self.tensor
                )
            except NotEven:
                continue
            self._hand_out(tensor.node, tensor.index, wanted)
        self._lie(node, [output_lies(node, self.found.assignments[node.name][j]) for j in self.tensor])

    def _function_along(self, node: Node, j: int) -> None:
        at = self.tensor.index(j)
        dim = self.found.assignments[node.name][j]
        lies = [self.lies[tensor.node, tensor.index][at] for tensor in node.inputs]
        free = [(tensor.node, tensor.index) in self.makers for tensor in node.inputs]
        why = "a function in the module's code follows its inputs"
        try:
            wanted = [input_lies(node, dim, k, self.mesh.sizes[j]) for k in range(len(node.inputs))]
        except NotEven as error:
            wanted, why = [], str(error)
        whole = self._taken_whole(node)  # of other axes of these, all is gathered
        lies = [WHOLE if one.axis in axes else one for one, axes in zip(lies, whole)]
        if any(one.axis in axes for one, axes in zip(wanted, whole)) or (not wanted and any(whole)):
            self._set(node, j, None)
            self._differs(node.name, "each rank computes all positions of its samples, heads or channels")
            return
        summed = dim is not None and node.dims[dim].soap is Soap.REDUCTION
        as_wanted = [a in (b, WHOLE) or can for a, b, can in zip(lies, wanted, free)]
        reached = bool(wanted) and all(as_wanted) and (
            dim is None or any(b != WHOLE and (a == b or can) for a, b, can in zip(lies, wanted, free))
        )
        if reached and not summed:
            return
        dims = [dim_that_reads(node, k, a.axis) for k, a in enumerate(lies) if a.axis is not None]
        follows = next((found for found in dims if found is not None), None)
        if dim == follows:  # cut as they are, or gathered from them
            return
        self._set(node, j, follows)
        if node.operator.work is not Work.MEMORY or any(t.spec.differentiable for t in node.inputs):
            self._differs(node.name, f"{why}, which lie {', '.join(map(str, lies))}")

    def _taken_whole(self, node: Node) -> list[frozenset[int]]:
        """For each input, its axes that may not be in pieces: none, except for inputs of functions in `APART`, which count axes as
        PyTorch's argument has them."""
        site = self.sites.get(node.name)
        count = APART.get(site.name) if site is not None else None
        if site is None or count is None:
            return [frozenset()] * len(node.inputs)
        found = []
        for tensor in node.inputs:
            axes = list(range(len(tensor.shape)))
            if node.operator.kind == "flash_attention":  # heads are behind steps here
                axes[1], axes[2] = 2, 1
            elif isinstance(node.operator, Transpose) and {output.name for output in node.outputs} & set(site.inputs):
                first, second = node.operator.dim0, node.operator.dim1
                axes[first], axes[second] = axes[second], axes[first]
            apart = count if count > 0 else len(axes) + count
            own = self.graph.nodes[tensor.node].name in site.operators
            found.append(frozenset() if own else frozenset(axis for axis, there in enumerate(axes) if there >= apart))
        return found

    def _hand_out(self, node: int, index: int, wanted: Lying) -> None:
        """Let the first reader of a layer's result determine the layout in which the layer returns it."""
        layer = self.makers.pop((node, index), None)
        if layer is not None:
            layer.output = wanted
            self.lies[node, index] = list(wanted)

    # ---- the loss ----------------------------------------------------------------------------------------------------

    def _loss(self, node: Node) -> None:
        self._lie(node, [WHOLE] * len(self.tensor))
        if self.result not in {tensor.name for tensor in node.inputs}:
            return
        index = next(k for k, tensor in enumerate(node.inputs) if tensor.name == self.result)
        tensor = node.inputs[index]
        output, target = [], []
        for j in self.tensor:
            dim = self.found.assignments[node.name][j]
            lies, other = self._lie_for_loss(node, index, j, dim)
            if dim is not None and WHOLE in (lies, other):
                free = {*range(len(node.dims))} - {sample_dim(node), *self.found.assignments[node.name]}  # positions
                dim = next((k for k in sorted(free) if WHOLE not in self._lie_for_loss(node, index, j, k)), None)
                lies, other = self._lie_for_loss(node, index, j, dim)
                self._set(node, j, dim)
                self._differs(node.name, "the loss is code of your own: it is given samples and positions, all classes of each")
            output.append(lies)
            target.append(other)
        if not self.found.output:
            self.found.output, self.found.target = tuple(output), tuple(target)
            self._hand_out(tensor.node, tensor.index, self.found.output)

    def _lie_for_loss(self, node: Node, index: int, j: int, dim: int | None) -> tuple[Lies, Lies]:
        """How the result and the targets lie along a dimension of the mesh that cuts a loss's ``dim``: both whole, or in pieces."""
        size = self.mesh.sizes[j]
        try:
            lies = input_lies(node, dim, index, size)
            other = input_lies(node, dim, 1 - index, size) if len(node.inputs) == 2 else WHOLE
        except NotEven:
            return WHOLE, WHOLE
        return (WHOLE, WHOLE) if WHOLE in (lies, other) else (lies, other)

    # ---- shared ------------------------------------------------------------------------------------------------------

    def _repeat(self, node: Node) -> None:
        if node.parameters and node.name not in self.found.repeated:
            self.found.repeated.append(node.name)

    def _lie(self, node: Node, lying: list[Lies]) -> None:
        for tensor in node.outputs:
            self.lies[tensor.node, tensor.index] = [WHOLE if lies.partial else lies for lies in lying]

    def _set(self, node: Node, j: int, dim: int | None) -> None:
        before = self.found.assignments[node.name]
        self.found.assignments[node.name] = (*before[:j], dim, *before[j + 1 :])

    def _data_only(self, node: Node) -> Assignment:
        """Cut an operator that is not expressed along its samples only, over the data dimensions."""
        dim = sample_dim(node)
        return tuple(dim if j in self.data else None for j in range(len(self.mesh.sizes)))

    def _differs(self, name: str, why: str) -> None:
        if all(known.operator != name for known in self.found.differences):
            self.found.differences.append(Difference(name, self.cuts.get(name, "?"), why))
