"""Executor: trains and evaluates an operator graph under a strategy, on the processors of this and the other ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum, isfinite
from typing import Any

import numpy as np

from taskflow.graph import OperatorGraph
from taskflow.kernels import KernelSet, default_kernels
from taskflow.machine import Machine, host
from taskflow.mapper.mapper import Mapper
from taskflow.mapper.report import Profile
from taskflow.mapper.strategy import Strategy
from taskflow.operators.operator import StepState
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect
from taskflow.rules import UpdateRule
from taskflow.runtime.agree import agree, lines
from taskflow.runtime.bind import bind
from taskflow.runtime.initial import initialise
from taskflow.runtime.local import LocalTransport
from taskflow.runtime.program import Binder, Measured, Program
from taskflow.runtime.schedule import Placement, schedule
from taskflow.runtime.storage import Kept
from taskflow.runtime.transport import Transport
from taskflow.tasks.lower import lower
from taskflow.tasks.simulate import Priority, roofline, simulate
from taskflow.tasks.task import Compute, Task, TaskGraph


class LossError(ArithmeticError):
    """The loss became infinite or not a number."""


class Executor:
    """Runs steps of one graph under one strategy.

    Every rank makes the same Executor and calls the same methods (control replication). ``losses`` come back on the rank
    of processor 0; the others get None. The same seed gives the same numbers under every strategy and number of ranks, up
    to the rounding of reordered sums.
    """

    def __init__(
        self,
        graph: OperatorGraph,
        strategy: Strategy,
        rule: UpdateRule | None = None,
        *,
        transport: Transport | None = None,
        machine: Machine | None = None,
        seed: int = 0,
        clip_norm: float | None = None,
        fetch: Sequence[Tensor] = (),
        kernels: KernelSet | None = None,
        mapper: Mapper | None = None,
        binder: Binder = bind,
    ) -> None:
        self.graph, self.strategy, self.rule = graph, strategy, rule
        self.transport = transport or LocalTransport()
        self.machine = machine or host(strategy.processors)
        self.kernels = kernels or default_kernels()
        self.state = StepState(seed=seed)
        self.kept = Kept()
        self.placement = Placement(strategy.processors, self.transport.size)
        self.mapper = mapper
        select = mapper.select_task_sources if mapper is not None and mapper.selects_sources else None
        self._options: dict[str, Any] = {"clip_norm": clip_norm, "fetch": fetch, "select_source": select}
        self._binder = binder
        self._programs: dict[str, Program] = {}
        self._initialise()

    # ---- steps ---------------------------------------------------------------------------------------------------
    def train(self, feeds: Mapping[str, Any], *, lr: float | None = None) -> float | None:
        """One training step on a batch: ``feeds`` has the whole array of every input, the same on every rank.

        Returns the loss before the update on the rank of processor 0, None elsewhere. Raises LossError there if the loss
        is not finite.
        """
        program = self.program("train")
        self._before(feeds, True, lr)
        if self.mapper is not None and self.mapper.wants_profiling:
            self.mapper.report_profiling(self.profile(program.run_measured()))
        else:
            program.run()
        return self._after(program)

    def train_measured(self, feeds: Mapping[str, Any], *, lr: float | None = None) -> tuple[float | None, Profile]:
        """Like `train`, also returning when everything on this rank ran."""
        program = self.program("train")
        self._before(feeds, True, lr)
        measured = program.run_measured()
        return self._after(program), self.profile(measured)

    def profile(self, measured: Sequence[Measured]) -> Profile:
        """What this rank measured of the present step, in the words of `Mapper.report_profiling`."""
        return Profile(self.transport.rank, self.state.step, tuple(m.describe() for m in measured))

    def evaluate(self, feeds: Mapping[str, Any]) -> float | None:
        """The loss of a batch without training; the carried state of evaluation is separate from training's, but for what
        is lasting (running statistics), which evaluation reads."""
        program = self.program("evaluate")
        self._before(feeds, False, None)
        program.run()
        return self._loss(program)

    def fetched(self, tensor: Tensor, mode: str = "train") -> np.ndarray[Any, Any] | None:
        """The value that a fetched tensor had in the last step, on the rank of processor 0."""
        if self.placement.rank(0) != self.transport.rank:
            return None
        return np.array(self.program(mode).fetched(tensor.name))

    def reset_state(self, mode: str = "train") -> None:
        """Carried state starts from the beginning again; what is lasting stays."""
        self.kept.restart(f"{mode}:")

    def moved_bytes_per_step(self) -> int:
        """Bytes that one training step sends between ranks, summed over all ranks; known on rank 0 (0 elsewhere).

        Copies between processors of one rank are not sent: with one processor a rank this is the task graph's
        ``transfer_bytes``.
        """
        sent = self.transport.gather(self.program("train").bytes_sent)
        return 0 if sent is None else sum(sent)

    def describe(self) -> str:
        """One line about the compiled training step."""
        program = self.program("train" if self.rule is not None else "evaluate")
        memory = (program.plan.memory.nbytes + self.kept.nbytes) / 1e6
        return f"{program.graph!r}; {memory:.1f} MB on rank {self.transport.rank}"

    def close(self) -> None:
        """Wait for what was sent; the transport stays open."""
        for program in self._programs.values():
            program.drain()

    # ---- parameters ----------------------------------------------------------------------------------------------
    def parameters(self) -> dict[str, np.ndarray[Any, Any]] | None:
        """Every parameter's whole value, on rank 0 (None elsewhere)."""
        graph = self._graph()
        mine = {
            (bundle.name, p): self.kept.arrays[graph.buffers[graph.weights[bundle.name, p]].name]
            for bundle in graph.bundles
            for p in bundle.group[:1]
            if self.placement.rank(p) == self.transport.rank
        }
        gathered = self.transport.gather(mine)
        if gathered is None:
            return None
        flats = {name: flat for table in gathered for (name, _), flat in table.items()}
        whole = {p.name: np.zeros(p.shape, p.spec.dtype) for p in self.graph.parameters}
        for bundle in graph.bundles:
            for cell in bundle.cells:
                values = flats[bundle.name][cell.offset : cell.offset + cell.rect.volume]
                whole[cell.parameter][_slices(cell.rect)] = values.reshape(cell.rect.shape)
        return whole

    def set_parameters(self, values: Mapping[str, Any]) -> None:
        """Replace parameters by whole arrays (the same on every rank). Raises ValueError for a wrong name or shape."""
        known = {p.name: p for p in self.graph.parameters}
        for name, value in values.items():
            if name not in known:
                raise ValueError(f"no parameter {name!r}; there are {', '.join(known)}")
            if np.shape(value) != known[name].shape:
                raise ValueError(f"parameter {name}: shape must be {known[name].shape}, got {np.shape(value)}")
        self.close()  # nothing may be on its way out of the memory that is written now
        for bundle, flat in self._weights():
            for cell in bundle.cells:
                if cell.parameter in values:
                    part = flat[cell.offset : cell.offset + cell.rect.volume]
                    part[:] = np.asarray(values[cell.parameter])[_slices(cell.rect)].ravel()

    # ---- compiling -----------------------------------------------------------------------------------------------
    def program(self, mode: str) -> Program:
        """The compiled step ("train" or "evaluate"), compiled at first use."""
        if mode not in self._programs:
            if mode == "train" and self.rule is None:
                raise ValueError("this Executor has no update rule: give one, or only evaluate")
            graph = lower(
                self.graph, self.strategy, self.rule if mode == "train" else None, prefix=f"{mode}:", **self._options
            )
            order = simulate(graph, self.machine, roofline(self.machine), self._priority()).order
            self._agree(mode, graph, order)
            plan = schedule(graph, order, self.placement, self.transport.rank)
            self._programs[mode] = Program(
                graph, plan, self.transport, self.kernels, self.state, self.kept,
                binder=self._binder,
            )
        return self._programs[mode]

    def _agree(self, mode: str, graph: TaskGraph, order: Sequence[int]) -> None:
        """Every rank has compiled the same step, or ValueError on all: nothing else would notice in time."""
        strategy = self.strategy
        agree(
            self.transport, f"Executor ({mode})",
            seed=self.state.seed, update_rule=self.rule, clip_norm=self._options["clip_norm"], model=lines(self.graph),
            strategy=lines(f"{node.name}: {strategy[node.name]}" for node in self.graph),
            task_graph=lines(f"{task} {task.nbytes} {task.after}" for task in graph),
            order_of_tasks=lines(order),
        )

    def _priority(self) -> Priority | None:
        mapper = self.mapper
        if mapper is None or not mapper.orders_tasks:
            return None

        def priority(task: Task) -> int:
            operator = task.work.node.name if isinstance(task.work, Compute) else None
            return mapper.order_tasks(task.name, operator, task.kind.value)

        return priority

    def _graph(self) -> TaskGraph:
        return self.program("train" if self.rule is not None else "evaluate").graph

    def _weights(self) -> list[tuple[Any, Any]]:
        """Every bundle with its flat weights on each processor of this rank."""
        graph = self._graph()
        result = []
        for (_, processor), number in graph.weights.items():
            if self.placement.rank(processor) == self.transport.rank:
                of = graph.buffers[number]
                result.append((next(b for b in graph.bundles if b.name == of.region), self.kept.get(of.name, of.shape, of.dtype)))
        return result

    def _initialise(self) -> None:
        parameters = {p.name: p for p in self.graph.parameters}
        for bundle, flat in self._weights():
            initialise(flat, bundle, parameters, self.kernels, self.state.seed)

    def _before(self, feeds: Mapping[str, Any], training: bool, lr: float | None) -> None:
        self.state.feeds = dict(feeds)
        self.state.run += 1
        self.state.training, self.state.lr = training, lr

    def _after(self, program: Program) -> float | None:
        loss = self._loss(program)
        self.state.step += 1
        if loss is not None and not isfinite(loss):
            raise LossError(
                f"the loss became {loss} at step {self.state.step}; lower the learning rate or clip gradients"
            )
        return loss

    def _loss(self, program: Program) -> float | None:
        if self.placement.rank(0) != self.transport.rank:
            return None
        return fsum(float(program.fetched(loss.name)) for loss in self.graph.losses)


def _slices(rect: Rect) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in zip(rect.lo, rect.hi))
