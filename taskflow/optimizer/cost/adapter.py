"""ModelCosts: adapts a `CostModel` to the interface that evaluators use (`Costs`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache, partial

from taskflow.floats import FLOAT32_BYTES
from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Around, Cluster, Device, Machine, PartOfMachine, collective, exchange
from taskflow.mapper import NARROW_PRODUCTS, NarrowProducts, Strategy, block_of, sample_dim
from taskflow.operators.operator import computes_in
from taskflow.optimizer.cost.accumulated_gradients import adding, target_bytes
from taskflow.optimizer.cost.analytic import AnalyticCosts
from taskflow.optimizer.cost.library import Spent, gradient_width
from taskflow.optimizer.cost.model import CostModel
from taskflow.optimizer.cost.pace import Pacing, paced
from taskflow.optimizer.cost.phases import arrays
from taskflow.optimizer.cost.task_costs import Costs
from taskflow.optimizer.cost.timed import CallPart, parts_of, timed_spent
from taskflow.optimizer.cost.tokens import crossing_bytes, token_routes
from taskflow.regions import Rect
from taskflow.rules import UpdateRule
from taskflow.tasks import AllToAll, Compute, Cost, Kind, Runs, Task, TaskGraph, Update, all_reduce_seconds
from taskflow.tasks.lower import gradient_flow, gradients_given

# Of a piece's backward task: which input gradients it gives; bytes of all gradients that it gives; bytes of what it reads, apart
# from gradients that it adds to.
_Backward = tuple[tuple[bool, ...], int, int]


LINEAR = ("linear", "expert_linear", "routed_linear")


class ModelCosts(Costs):
    """Costs by ``model`` of the tasks of a graph that is trained with ``rule``."""

    def __init__(self, model: CostModel, graph: OperatorGraph, machine: Cluster | PartOfMachine, rule: UpdateRule | None) -> None:
        self.model, self._machine, self._rule, self._graph = model, machine, rule, graph
        self._products: NarrowProducts | None = None  # in which linear layers multiply: the operators ``_narrow``
        self._narrow: frozenset[int] = frozenset()
        self._with_products: dict[str, ModelCosts] = {}
        active, needs, _ = gradient_flow(graph)
        self._given = gradients_given(graph, active, needs)
        self._wanted = [tuple((t.node, t.index) in needs for t in node.inputs) for node in graph]
        timed = graph.calls and any(device.timed for device in machine.kinds)
        self._calls = parts_of(graph) if timed else {}
        self._routes = token_routes(graph, machine)
        self._narrow_sums = gradient_width(graph, machine.processors[0].device) if isinstance(model, AnalyticCosts) else 0
        kinds: dict[str, int] = {}
        self._known: dict[tuple[object, ...], float] = {}
        self._backward: dict[tuple[int, Rect], _Backward] = {}
        self._least: dict[tuple[object, ...], float] = {}
        self._parts: dict[tuple[object, ...], tuple[tuple[float, float], ...]] = {}
        self._around: dict[tuple[tuple[int, ...], bool], Around] = {}
        first: dict[object, int] = {}
        self._like = [first.setdefault((n.operator, n.specs, wanted, given, self._calls.get(n.name)), n.number)
                      for n, wanted, given in zip(graph, self._wanted, self._given)]
        self._classes = [kinds.setdefault(p.device.kind, p.number) for p in machine.processors]

    def task(self, task: Task) -> float:
        if isinstance(task.work, AllToAll) and (route := self._routes.get(task.topic.name)) is not None:
            nbytes = crossing_bytes(task.nbytes, route, self._machine, task.work.group)
            return self.collective(task.work.group, nbytes, task.flops, task.work.halves)
        return super().task(task)

    def piece(self, node: Node, piece: Rect, backward: bool, processor: int, flops: int, nbytes: int) -> float:
        # Pieces that are equally long in every dimension, at the same borders, and touch as many bytes differ only in
        # where they lie: on a thousand processors looking at each would take most of a search's time.
        borders = tuple((a == 0, b == dim.size) for a, b, dim in zip(piece.lo, piece.hi, node.dims))
        narrow = node.number in self._narrow
        key = (self._like[node.number], piece.shape, borders, backward, self._classes[processor], flops, nbytes, narrow)
        if key not in self._known:
            self._known[key] = self._seconds(node, piece, backward, processor, nbytes)
        return self._known[key]

    def _seconds(self, node: Node, piece: Rect, backward: bool, processor: int, nbytes: int) -> float:
        device = self._device(node, processor)
        part = self._calls.get(node.name)
        if not backward:
            if part is not None and (known := self._of_call(part, node, piece, False, (), (), device)) is not None:
                return known.seconds
            return self.model.compute_seconds(node.operator, node.specs, piece, False, device=device)
        wanted, targets, replacing = self._backward_of(node, piece)
        added = nbytes - replacing - targets
        if part is not None and (known := self._of_call(
            part, node, piece, True, wanted, self._adding(node, piece, wanted, max(0, added)), device
        )) is not None:
            return known.seconds

        def seconds(added_bytes: int) -> float:
            return self.model.compute_seconds(
                node.operator, node.specs, piece, True, device=device, gradients=wanted, added_bytes=added_bytes
            )

        # Fewer bytes than any task touches: what is asked for is the least that the piece may take, for a bound.
        return seconds(added) if added >= 0 else min(seconds(0), seconds(targets))

    def _of_call(
        self, part: CallPart, node: Node, piece: Rect, backward: bool, wanted: tuple[bool, ...], adds: tuple[bool, ...],
        device: Device,
    ) -> Spent | None:
        dtype = computes_in(node.operator, node.specs)
        return timed_spent(device, node.operator, node.specs, piece, backward, wanted, adds, dtype, part) if device.timed else None

    def _adding(self, node: Node, piece: Rect, wanted: tuple[bool, ...], nbytes: int) -> tuple[bool, ...]:
        return adding(target_bytes(node.operator, node.specs, piece, wanted), len(node.specs), nbytes)

    def _device(self, node: Node, processor: int) -> Device:
        device = self._machine.processors[processor].device
        return multiplying_in(device, self._products) if self._products and node.number in self._narrow else device

    def _of(self, strategy: Strategy) -> ModelCosts:
        """The costs of a strategy's tasks: these, or those whose linear layers multiply in a narrower type."""
        return self.of_products(strategy.plan.products) if strategy.plan is not None else self

    def of_products(self, products: str) -> ModelCosts:
        """Return the costs with which every plan's products are as ``products`` says (`HybridPlan.products`). Raises ValueError
        that names a kind of device that has no such products."""
        if not products or self._products:
            return self
        kind = NARROW_PRODUCTS[products]
        for device in self._machine.kinds:
            if kind.rate not in dict(device.flops_per_second):
                raise ValueError(
                    f"products={products} needs devices with a rate of {kind.rate}, {device.kind} has none; leave it out, or take "
                    "a machine with one (taskflow machines)"
                )
        if products not in self._with_products:
            narrow = self._with_products[products] = copy(self)
            narrow._known, narrow._least, narrow._parts, narrow._products = {}, {}, {}, kind
            narrow._narrow = frozenset(node.number for node in self._graph if _multiplies_in(node, kind))
        return self._with_products[products]

    def pace(self, graph: TaskGraph, strategy: Strategy, copies: Sequence[int] | None = None) -> Cost:
        if (own := self._of(strategy)) is not self:
            return own.pace(graph, strategy, copies)
        programs = tuple(program for device in self._machine.kinds if (program := device.program) is not None)
        if not programs or not isinstance(self.model, AnalyticCosts):
            return self.task
        several = len({processor.node for processor in self._machine.processors}) > 1
        is_cut = self.by_plan and self._is_cut(strategy)
        pacing = Pacing(programs, several, not self.by_plan or self._replicated(strategy), is_cut)
        cut = pacing.cuts if is_cut and any(map(any, pacing.cuts)) else None
        cost = partial(self._of_parameters, _updated_parameters(graph)) if self.by_plan else self.task
        if strategy.pipeline is None and not pacing.exposed and cut is None and not pacing.units:
            return cost
        spent = self.spent if cut is None else partial(self._spent_cut, cut)
        return paced(graph, strategy, spent, pacing, cost, copies)

    def _of_parameters(self, parameters: Mapping[int, int], task: Task) -> float:
        """A task's seconds; of an update that was timed, as its program calls it: for each of the ``parameters`` of its array."""
        seconds = self.task(task)
        if not isinstance(task.work, Update) or not self._machine.processors[task.processor].device.timed:
            return seconds
        more = parameters.get(task.work.weights.buffer, 1) - 1
        return seconds + more * self.other(Kind.UPDATE, task.processor, 0, 0)

    @property
    def by_plan(self) -> bool:
        return isinstance(self.model, AnalyticCosts) and any(
            device.program is not None and device.program.by_plan for device in self._machine.kinds
        )

    def _replicated(self, strategy: Strategy) -> bool:
        """Whether samples are divided among replicas."""
        dims = ((strategy[node.name].degrees, sample_dim(node)) for node in self._graph)
        return any(dim is not None and degrees[dim] > 1 for degrees, dim in dims)

    def _is_cut(self, strategy: Strategy) -> bool:
        """Whether an operator is cut otherwise than by samples."""
        return any(
            degree > 1 and dim != sample_dim(node)
            for node in self._graph for dim, degree in enumerate(strategy[node.name].degrees)
        )

    def _spent_cut(self, cut: tuple[tuple[float, float], tuple[float, float]], task: Task) -> Spent | None:
        """Like `spent`, with what the host needs more for each operator or call of a network whose layers are cut. ``cut``: seconds
        forward and backward, of functions and of operators with weights."""
        found = self.spent(task)
        if found is None or not isinstance(task.work, Compute):
            return found
        part, program = self._calls.get(task.work.node.name), self._machine.processors[task.processor].device.program
        if program is None or (part is not None and not part.leads) or not task.work.node.inputs:
            return found
        more = cut[bool(task.work.node.parameters)][task.work.backward]
        return Spent(found.device + more * (program.host_seconds == 0), found.host + more)

    def spent(self, task: Task) -> Spent | None:
        """Return the seconds of device and host for the task of a piece; None if the model does not distinguish them."""
        work = task.work
        if not isinstance(work, Compute) or not isinstance(self.model, AnalyticCosts):
            return None
        wanted: tuple[bool, ...] = ()
        device, added = self._device(work.node, task.processor), 0
        if work.backward:
            wanted, targets, replacing = self._backward_of(work.node, work.piece)
            added = max(0, task.nbytes + (work.other.nbytes if work.other else 0) - replacing - targets)
        if (part := self._calls.get(work.node.name)) is not None:
            adds = self._adding(work.node, work.piece, wanted, added) if work.backward else ()
            if (known := self._of_call(part, work.node, work.piece, work.backward, wanted, adds, device)) is not None:
                return known if work.other is None else Spent(known.device / 2, known.host / 2)
        asked = work.node.operator, work.node.specs, work.piece, work.backward, wanted
        both = self.model.spent(*asked, added, device)
        if work.other is None or both is None or (plain := self.model.spent(*asked, 0, device)) is None:
            return both
        return Spent(both.device - plain.device / 2, both.host - plain.host / 2)  # half of it, and all of its own adding

    def _backward_of(self, node: Node, piece: Rect) -> _Backward:
        key = (self._like[node.number], piece)
        if key not in self._backward:
            self._backward[key] = self._of_backward(node, piece)
        return self._backward[key]

    def least(self, node: Node, backward: bool, processor: int) -> float:
        ask = getattr(self.model, "least_seconds", None)
        if ask is None:
            return 0.0
        key = (self._like[node.number], backward, self._classes[processor], node.number in self._narrow)
        if key not in self._least:
            device = self._device(node, processor)
            self._least[key] = ask(node.operator, node.specs, backward, self._wanted[node.number], device)
        return self._least[key]

    def least_parts(self, node: Node, backward: bool, processor: int) -> tuple[tuple[float, float], ...]:
        if not isinstance(self.model, AnalyticCosts):
            return ()
        key = (self._like[node.number], backward, self._classes[processor], node.number in self._narrow)
        if key not in self._parts:
            device = self._device(node, processor)
            wanted = self._wanted[node.number]
            self._parts[key] = tuple(self.model.least_parts(node.operator, node.specs, backward, wanted, device))
        return self._parts[key]

    def _of_backward(self, node: Node, piece: Rect) -> _Backward:
        touched = arrays(node.operator, node.specs, piece)
        wanted = tuple([w and n > 0 for w, n in zip(self._wanted[node.number], touched.input_elements)])
        targets = sum(target_bytes(node.operator, node.specs, piece, wanted))
        weights = sum([n * p.spec.dtype.itemsize for p, n in zip(node.parameters, touched.weight_elements)])
        keeps = node.operator.keeps(node.specs)
        grads = sum([n for n, given in zip(touched.outputs, self._given[node.number]) if given])
        read = sum(touched.inputs) * keeps.inputs + weights * keeps.weights + sum(touched.outputs) * keeps.outputs
        return wanted, targets, read + touched.saved + grads

    @property
    def by_runs(self) -> bool:
        return self.model.by_runs

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def measures(self) -> bool:
        return getattr(self.model, "measures", False)

    def close(self) -> None:
        if (close := getattr(self.model, "close", None)) is not None:
            close()

    def other(self, kind: Kind, processor: int, flops: int, nbytes: int, runs: int = 1) -> float:
        device = self._machine.processors[processor].device
        rule = self._rule if kind is Kind.UPDATE else None
        return self.model.memory_seconds(kind, nbytes, flops, device=device, rule=rule, runs=runs)

    def copy(self, source: int, target: int, nbytes: int, runs: Runs = (1, 1)) -> float:
        return self.model.transfer_seconds(source, target, nbytes, runs)

    def collective(self, group: Sequence[int], nbytes: int, flops: int, halves: int = 2) -> float:
        if self._narrow_sums and nbytes == FLOAT32_BYTES * flops * halves:  # of numbers of so many bytes, which gradients are
            nbytes = nbytes // FLOAT32_BYTES * self._narrow_sums
        return all_reduce_seconds(self._machine, group, nbytes, flops, self._sum, halves, self._among(tuple(group), halves > 0))

    def around(self, machine: Machine, group: Sequence[int]) -> Around:
        return self._among(tuple(group), True) if machine is self._machine else collective(machine, group)

    def _among(self, group: tuple[int, ...], reducing: bool) -> Around:
        key = group, reducing
        if key not in self._around:  # of many messages few groups
            self._around[key] = collective(self._machine, group) if reducing else exchange(self._machine, group)
        return self._around[key]

    def _sum(self, processor: int, flops: int, nbytes: int) -> float:
        return self.other(Kind.SUM, processor, flops, nbytes)

    def processor_class(self, processor: int) -> int:
        return self._classes[processor]

    def route_class(self, source: int, target: int) -> tuple[object, ...]:
        return tuple([(k.latency_seconds, k.bytes_per_second) for k in self._machine.route(source, target)])


def _updated_parameters(graph: TaskGraph) -> dict[int, int]:
    """The number of parameters in each flat array of weights, by buffer."""
    counts = {bundle.name: len({cell.parameter for cell in bundle.cells}) for bundle in graph.bundles}
    return {buffer: counts[name] for (name, _), buffer in graph.weights.items()}


def _multiplies_in(node: Node, kind: NarrowProducts) -> bool:
    """True for products of layers (not of the last one, over the vocabulary) whose sizes kernels of the narrower type take."""
    if node.operator.kind not in LINEAR or not block_of(node.name):
        return False
    return all(n % kind.divides == 0 for n in node.parameters[0].spec.shape[-2:])


@lru_cache(maxsize=64)
def multiplying_in(device: Device, kind: NarrowProducts) -> Device:
    """Return the device as it multiplies 16- and 32-bit numbers after bringing them into a narrower type."""
    rates, products = dict(device.flops_per_second), dict(device.matrix_products)
    for dtype in ("bfloat16", "float16", "float32"):
        rates[dtype] = rates[kind.rate]
        products.pop(dtype, None)
        if kind.rate in products:
            products[dtype] = products[kind.rate]
    return replace(
        device, kind=f"{device.kind} in {kind.rate}", products=kind.rate, flops_per_second=tuple(rates.items()),
        matrix_products=tuple(products.items()),
    )
