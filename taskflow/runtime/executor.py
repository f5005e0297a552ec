"""Executor: trains and evaluates an operator graph under a strategy, on the processors of all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import fsum
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

import numpy as np

from taskflow.collector import paused_collector
from taskflow.graph import OperatorGraph
from taskflow.kernels import KernelSet, kernels_on
from taskflow.loss_scaling import LossScaling
from taskflow.machine import Machine, host
from taskflow.mapper import Mapper, Profile, Strategy
from taskflow.operators.operator import StepState
from taskflow.operators.tensor import Tensor
from taskflow.rules import UpdateRule, usable_rate
from taskflow.runtime.consistency import agree, lines
from taskflow.runtime.inference import Outputs, Predictions, inputs_of, outputs_of, predict
from taskflow.runtime.labels import LabelCounts
from taskflow.runtime.overflow import DYNAMIC, note_overflow, require_finite, scaler_of, told
from taskflow.runtime.overflow import LossError as LossError
from taskflow.runtime.profiler import Clock, Subject, Tracer, profile_of, run_observed
from taskflow.runtime.program import Binder, PersistentBuffers, Placement, Program, bind, schedule
from taskflow.runtime.transport import LocalTransport, Transport, for_device
from taskflow.runtime.weights import (
    ArrayLayout,
    HeldElements,
    SharedWeights,
    carried_of,
    fill_part,
    flat_memory,
    gathered,
    initialise,
    masters_of,
    share_weights,
    training_state_of,
    weights_of,
)
from taskflow.tasks import Compute, Cost, Priority, Task, TaskGraph, roofline, simulate
from taskflow.tasks.lower import cut_graph, lower


class Executor:
    """Runner of steps of one graph under one strategy. Without an update rule it only evaluates and predicts.

    ``weights``: another Executor, perhaps with another batch or strategy, whose weights and running statistics this one uses.
    They share memory wherever both place the same elements on a processor; elsewhere they are copied before a step if they have
    changed. Such an Executor has no rule, and takes transport and kernels from the other. ``device``: "cpu" or "gpu", instead
    of ``kernels``. ``loss_scaling``: how a float16 graph's loss is scaled (None: not at all).

    Every rank makes the same Executor and calls the same methods (control replication). Losses are returned on the rank of
    processor 0; the others get None. The same seed gives the same numbers under every strategy and number of ranks, up to the
    rounding of reordered sums.
    """

    def __init__(
        self,
        graph: OperatorGraph,
        strategy: Strategy,
        rule: UpdateRule | None = None,
        *,
        transport: Transport | None = None,
        machine: Machine | None = None,
        seed: int = 0, clip_norm: float | None = None,
        loss_scaling: LossScaling | None = DYNAMIC,
        fetch: Sequence[Tensor] = (),
        kernels: KernelSet | None = None,
        mapper: Mapper | None = None,
        binder: Binder = bind,
        weights: Executor | None = None, device: str | None = None,
    ) -> None:
        if weights is not None and rule is not None:
            raise ValueError("Executor: one that uses the weights of another has no update rule; train the other")
        if strategy.plan is not None:
            strategy.plan.verify_runs()
        self.graph, self.strategy, self.rule = graph, strategy, rule
        self.transport: Transport = transport or (weights.transport if weights is not None else LocalTransport())
        self.kernels: KernelSet = kernels or (weights.kernels if weights is not None else kernels_on(device or "cpu"))
        self.transport = for_device(self.transport, self.kernels.device)
        self.machine = machine or host(strategy.processors, "cpu" if self.kernels.device.waits else "gpu")
        self._labels = LabelCounts(graph)
        self.scaler = None if rule is None else scaler_of(graph, loss_scaling)
        self.state = StepState(seed=seed, scaling=self.scaler)
        self.kept: PersistentBuffers = PersistentBuffers(self.kernels.device)
        self.placement: Placement = Placement(strategy.processors, self.transport.size)
        self.mapper = mapper
        select = mapper.select_task_sources if mapper is not None and mapper.selects_sources else None
        self._options: dict[str, Any] = {"clip_norm": clip_norm, "fetch": fetch, "select_source": select}
        self._factor: Any = None  # of a loss with a scale: see `told`
        self._binder = binder
        self._programs: dict[tuple[str, tuple[str, ...]], Program] = {}
        self._tracer: Tracer | None = None
        self.changes = 0  # how often the weights were changed
        self.cut = cut_graph(graph, strategy)
        self.weight_holdings = weights_of(graph, self.cut)
        self.master_holdings: dict[str, ArrayLayout] = {}  # of 16-bit parameters, the float32 copies that training updates
        if rule is not None:
            self.program("train")
        self._shared = None if weights is None else SharedWeights(self, weights)
        if self._shared is None:
            self._initialise()

    # ---- steps ---------------------------------------------------------------------------------------------------
    def train(self, feeds: Mapping[str, Any], *, lr: float | None = None) -> float | None:
        """Run one training step on a batch. ``feeds`` has the whole array of every input, the same on every rank.

        Returns the loss before the update on the rank of processor 0, None elsewhere. Raises LossError there unless finite.
        """
        program = self.program("train")
        self._before(feeds, True, lr)
        run_observed(program, self.state.step, self._tracer, self.mapper)
        return self._after(program)

    def trace(
        self, path: str | Path | None, steps: range | None = None, *, cost: Cost | None = None,
        about: Mapping[str, Any] | None = None, clock: Clock = perf_counter,
    ) -> Tracer:
        """Write what all ranks do in some of the next training steps, with the predicted timeline beside it, to a file for
        Perfetto or chrome://tracing (gzipped for ``.gz``; None: no file, see `Tracer.content`). Every rank calls it.

        ``steps``: numbers of steps, counted from 0 over the whole training (default: the third to the fifth from now). The file
        is written when the last of them has run, or when the Tracer is closed. ``cost``: seconds of a task, for the prediction
        (default: the machine's roofline). ``about``: further facts for the file. Raises ValueError and OSError.
        """
        first = self.state.step + 2
        facts = {
            "model": self.graph.name, "strategy": self.strategy.name, "update_rule": repr(self.rule), "kernels": self.kernels.name,
            "plan": {node.name: self.strategy[node.name].describe(node) for node in self.graph}, **(about or {}),
        }
        subject = Subject(self.machine, self.placement, cost, self._priority(), facts)
        self._tracer = Tracer(self.transport, path, range(first, first + 3) if steps is None else steps, subject, clock)
        return self._tracer

    def train_measured(self, feeds: Mapping[str, Any], *, lr: float | None = None) -> tuple[float | None, Profile]:
        """Run a training step like `train`, and also return when each item ran on this rank."""
        program = self.program("train")
        self._before(feeds, True, lr)
        measured = program.run_measured()
        return self._after(program), profile_of(program, self.state.step, measured)

    def evaluate(self, feeds: Mapping[str, Any]) -> float | None:
        """Return the loss of a batch without training, on the rank of processor 0; None elsewhere. Evaluation carries its own
        state, except for lasting state (running statistics), which it reads from training."""
        return self.evaluate_with(feeds)[0]

    def evaluate_with(
        self, feeds: Mapping[str, Any], outputs: Sequence[Tensor | str] = ()
    ) -> tuple[float | None, dict[str, np.ndarray[Any, Any]] | None]:
        """Return a batch's loss and the values of ``outputs`` from one pass, on the rank of processor 0; (None, None)
        elsewhere."""
        if not self.graph.losses:
            raise ValueError(f"evaluate: {self.graph.name} minimises no loss; call graph.minimize, or predict")
        named = outputs_of(self.graph, outputs)
        program = self.forward("evaluate", named, feeds)
        if self.placement.rank(0) != self.transport.rank:
            return None, None
        return self._loss(program), {tensor.name: program.fetched(tensor.name) for tensor in named}

    def predict(
        self, feeds: Mapping[str, Any], outputs: Outputs = None, *, everywhere: bool = False
    ) -> Predictions | None:
        """Return the network's predictions for inputs: the whole values of ``outputs``, without training.

        ``feeds`` has the arrays of the needed inputs (no labels), the same on every rank. Any number of samples will do; they
        go through the network in batches of its size. ``outputs``: tensors or names of operators; by default the scores that
        the losses compare (without a loss: the tensors that nobody reads). Returns an array for one output, or a dict by name
        for a sequence or for several; on the rank of processor 0, or with ``everywhere`` on all ranks (None elsewhere).

        Prediction has its own carried state, which continues from call to call until ``reset_state("predict")``. Raises
        ValueError for unknown outputs and missing or wrong inputs.
        """
        return predict(self, feeds, outputs, everywhere)

    def forward(self, mode: str, outputs: Sequence[Tensor], feeds: Mapping[str, Any]) -> Program:
        """Run the forward pass for ``outputs``; return the program, which holds them. ``mode``: "evaluate" (with losses) or
        "predict"."""
        program = self.program(mode, outputs)
        self.renew()
        self._before(feeds, False, None)
        program.run()
        self.kernels.device.verify()
        return program

    def renew(self) -> None:
        """Update weights that are copies of another Executor's. Every rank calls it."""
        if self._shared is not None:
            self._shared.refresh()

    def fetched(self, tensor: Tensor, mode: str = "train") -> np.ndarray[Any, Any] | None:
        """Return the value that a fetched tensor had in the last step, on the rank of processor 0."""
        if self.placement.rank(0) != self.transport.rank:
            return None
        return self.program(mode).fetched(tensor.name)

    def reset_state(self, mode: str = "train") -> None:
        """Reset carried state to its beginning; lasting state stays."""
        self.kept.restart(f"{mode}:")

    def set_state(self, values: Mapping[str, Any], mode: str = "predict") -> None:
        """Set carried states, by name, to whole arrays (the same on every rank), with which the next step starts. Raises
        ValueError for a name that no state has, or a wrong shape."""
        carried = carried_of(self.graph, self.cut, f"{mode}:")
        for name, value in values.items():
            if name not in carried:
                raise ValueError(f"{self.graph.name} has no state {name!r}; there are {', '.join(carried) or 'none'}")
            if np.shape(value) != carried[name].spec.shape:
                raise ValueError(f"state {name}: shape must be {carried[name].spec.shape}, got {np.shape(value)}")
        self.close()  # nothing may be on its way out of the memory that is written now
        for name, value in values.items():
            carried[name].put(self.kept, self._local(carried[name]), np.asarray(value))

    def moved_bytes_per_step(self) -> int:
        """Bytes that one training step sends between ranks, summed over all ranks; known on rank 0 (0 elsewhere).

        Copies within a rank are not sent: with one processor for each rank this equals the task graph's ``transfer_bytes``.
        """
        sent = self.transport.gather(self.program("train").bytes_sent)
        return 0 if sent is None else sum(sent)

    def describe(self) -> str:
        """Describe the compiled training step in one line."""
        program = self.program("train" if self.rule is not None else "evaluate")
        memory = (program.plan.memory.nbytes + self.kept.nbytes) / 1e6
        device, transfers = self.kernels.device, self.transport.describe()
        where = "" if device.waits else f" on {device.name}{transfers and f', transfers by {transfers}'}"
        return f"{program.graph!r}; {memory:.1f} MB on rank {self.transport.rank}; {self.kernels.name} kernels{where}"

    def close(self) -> None:
        """Wait until all sends have ended; the transport stays open."""
        for program in self._programs.values():
            program.drain()

    # ---- parameters ----------------------------------------------------------------------------------------------
    def parameters(self) -> dict[str, np.ndarray[Any, Any]] | None:
        """Return every parameter's whole value, on rank 0 (None elsewhere)."""
        weights = self.weights()
        return None if weights is None else {p.name: weights[p.name] for p in self.graph.parameters}

    def weights(self) -> dict[str, np.ndarray[Any, Any]] | None:
        """Return the parameters and lasting state (running statistics), whole, on rank 0 (None elsewhere)."""
        self.renew()
        found = {name: value for name, value in self.gather(self.weight_holdings.values()) if value is not None}
        return found if self.transport.rank == 0 else None

    def set_parameters(self, values: Mapping[str, Any]) -> None:
        """Set parameters and running statistics to whole arrays (the same on all ranks). Raises ValueError for a bad name or
        shape."""
        for name, value in values.items():
            if name not in self.weight_holdings:
                raise ValueError(f"no parameter {name!r}; there are {', '.join(self.weight_holdings)}")
            if np.shape(value) != self.weight_holdings[name].spec.shape:
                wanted = self.weight_holdings[name].spec.shape
                raise ValueError(f"parameter {name}: shape must be {wanted}, got {np.shape(value)}")
        for name, value in values.items():
            self.put(self.weight_holdings[name], np.asarray(value))

    def training_state(self) -> dict[str, ArrayLayout]:
        """Return what a checkpoint has beside the weights: the update rule's arrays and the state that training carries."""
        return training_state_of(self.graph, self.cut, self.program("train").graph, "train:")

    def gather(
        self, holdings: Iterable[ArrayLayout], into: Mapping[str, np.ndarray[Any, Any]] = MappingProxyType({})
    ) -> Iterator[tuple[str, np.ndarray[Any, Any] | None]]:
        """Yield the name and whole value (None except on rank 0) of one array after the other. Every rank iterates to the end;
        ranks other than 0 hold only their own pieces. ``into``: arrays by name, whose memory is used for the values."""
        return gathered(holdings, self.kept, self.placement.rank, self.transport, into)

    def put(self, holding: ArrayLayout, value: np.ndarray[Any, Any]) -> None:
        """Replace this rank's parts of an array. Every rank calls it with the same whole value."""
        if self._shared is not None:
            raise ValueError(f"{holding.name}: this Executor uses the weights of another; set them there")
        self.close()  # nothing may be on its way out of the memory that is written now
        self._meet()
        for one in filter(None, (holding, self.master_holdings.get(holding.name))):
            one.put(self.kept, self._local(one), value)
        self.changes += 1

    def _local(self, holding: ArrayLayout) -> Iterator[HeldElements]:
        """The part of an array that this rank holds."""
        return (h for h in holding.held if self.placement.rank(h.memory.processor) == self.transport.rank)

    # ---- compiling -----------------------------------------------------------------------------------------------
    def program(self, mode: str, outputs: Sequence[Tensor] = ()) -> Program:
        """Return the compiled step of a mode, compiled at first use: "train", "evaluate" (losses, ``outputs``), "predict"
        (``outputs``)."""
        key = mode, tuple(tensor.name for tensor in outputs)
        if key not in self._programs:
            if mode == "train" and self.rule is None:
                raise ValueError("this Executor has no update rule: give one, or only evaluate")
            with paused_collector():
                self._programs[key] = self._compile(mode, outputs)
        return self._programs[key]

    def _compile(self, mode: str, outputs: Sequence[Tensor]) -> Program:
        training = mode == "train"
        losses = (*self.graph.losses, *self._options["fetch"]) if mode == "evaluate" else ()
        graph = lower(
            self.graph, self.strategy, self.rule if training else None, prefix=f"{mode}:", shared=self.cut,
            wanted=None if training else (*losses, *outputs), scaled=training and self.scaler is not None, **self._options,
        )
        order = simulate(graph, self.machine, roofline(self.machine), self._priority()).begun(graph)
        self._agree(mode, graph, order)
        plan = schedule(graph, order, self.placement, self.transport.rank)
        if training and self._binder is bind and self.kernels.device.waits:
            share_weights(self.kept, graph, order, self.placement, self.transport)
        program = Program(graph, plan, self.transport, self.kernels, self.state, self.kept, binder=self._binder)
        if training:
            self.master_holdings = masters_of(self.graph, self.cut, graph)
            self._factor = told(program, self.placement, self.transport.rank)
        return program

    def _agree(self, mode: str, graph: TaskGraph, order: Sequence[int]) -> None:
        """Every rank has compiled the same step, or ValueError on all: nothing else would notice in time."""
        if self.transport.size == 1:
            return
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

    def _initialise(self) -> None:
        parameters = {p.name: p for p in self.graph.parameters}
        for bundle in self.cut.layout.bundles:
            for processor in bundle.group:
                memory = flat_memory(bundle, processor, span := self.cut.kept(bundle, processor))
                here = self.placement.rank(processor) == self.transport.rank and not span.empty
                if here and not self.kept.lent(memory.name):
                    initialise(memory.flat(self.kept), bundle, span, parameters, self.kernels, self.state.seed)
        for name, masters in self.master_holdings.items():
            for held in self._local(masters):
                fill_part(held.view(self.kept), parameters[name], held, self.kernels, self.state.seed)
        self._meet()

    def _meet(self) -> None:
        """Wait for all ranks if they share memory, before it is read or written by other means than a step."""
        if self.kept.common:
            self.transport.barrier()

    def _before(self, feeds: Mapping[str, Any], training: bool, lr: float | None) -> None:
        inputs_of(self.graph, feeds, "feeds")
        self.state.feeds, self.state.labels = dict(feeds), self._labels.count(feeds)
        self.state.run, self.state.training, self.state.lr = self.state.run + 1, training, usable_rate(lr)

    def _after(self, program: Program) -> float | None:
        loss = self._loss(program)
        self.kernels.device.verify()
        self.state.step += 1
        self.changes += 1
        if self.scaler is not None:
            note_overflow(self.scaler, self.state, self._factor)
        return require_finite(loss, self.state.step)

    def _loss(self, program: Program) -> float | None:
        if self.placement.rank(0) != self.transport.rank:
            return None
        return fsum(float(program.fetched(loss.name)) for loss in self.graph.losses)

