"""A module on the ranks of a plan."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import DTensor, Replicate, Shard

from taskflow.export.pytorch.support.clipping import clipped
from taskflow.export.pytorch.support.exchange import brought_together
from taskflow.export.pytorch.support.layers import (
    as_placed,
    bring_once,
    cut_layers,
    divided,
    local_piece,
    mapped_leaves,
    plain_is_whole,
)
from taskflow.export.pytorch.support.means import Criterion, MeanOverAll
from taskflow.export.pytorch.support.modules import (
    broadcast,
    matching,
    moved,
    moved_buffers,
    recompute,
    require_planned,
)
from taskflow.export.pytorch.support.naming import name_modules, named
from taskflow.export.pytorch.support.plan import ParallelPlan
from taskflow.export.pytorch.support.stages import StagePart, parameters_of
from taskflow.export.pytorch.support.statistics import share_statistics


class Parallel:
    """A module on the ranks of a plan. `step` computes one step except for the optimizer's update; pass `parameters` to the
    optimizer."""

    def __init__(self, module: nn.Module, plan: ParallelPlan, device: str | None = None) -> None:
        require_planned(module, plan)
        self.plan, self.device = plan, started(plan, device)
        self.mesh = init_device_mesh(self.device.type, tuple(plan.mesh.values()), mesh_dim_names=tuple(plan.mesh))
        self.tensor = self.mesh[plan.tensor] if plan.tensor else None
        self.data = self._data_mesh()
        broadcast(module, self.device)
        moved_buffers(module, self.device)
        whole = matching(module, plan.whole)
        for path in matching(module, plan.again):
            around = divided if self.tensor is not None else contextlib.nullcontext
            recompute(module.get_submodule(path), around, whole=path in whole)
        if plan.statistics and self.data is not None:
            share_statistics(module, self.data.get_group())
        self.tied = self._tied(module)
        self._tied_groups = [self._group_of_stages(found) for found in self.tied]
        self.parts = self._parts(module)
        for part in self.parts:
            name_modules(part)
        self.schedule: Any = None
        self._no_outputs: dict[str, bool] = {}
        self._losses: list[torch.Tensor] = []
        self._criterion: Criterion | None = None
        self._mean: MeanOverAll
        if plan.stages:
            self.schedule = self._pipeline()

    # ---- what users call ---------------------------------------------------------------------------------------------

    @property
    def replicas(self) -> int:
        """Among how many replicas the samples of a batch are divided; `replica` is this rank's. A sampler may take both."""
        return 1 if self.data is None else self.data.size()

    @property
    def replica(self) -> int:
        """This rank's replica. Ranks that share layers, or have different stages of them, are of one."""
        return 0 if self.data is None else self.data.get_local_rank()

    def step(self, loss: Criterion, inputs: Sequence[Any], target: Any, ignore_index: int = -100, own: bool = False) -> float:
        """Forward and backward of one step; gradients are in the parameters' ``grad`` afterwards. ``inputs``, ``target``: the whole
        batch, the same on every rank, or with ``own`` this replica's samples alone, as many on each; inputs in the order of
        forward's arguments. ``loss(output, target)``: a mean over the elements of the target, of integers over those that are not
        ``ignore_index``, as PyTorch's losses are. Returns that mean over the whole batch (0 if there are none), whatever share of
        them each rank and micro-batch has."""
        return float(self.gradients(loss, inputs, target, ignore_index, own))

    def gradients(
        self, loss: Criterion, inputs: Sequence[Any], target: Any, ignore_index: int = -100, own: bool = False
    ) -> torch.Tensor:
        """Like `step`, but the loss stays on the device, so that nothing waits for it."""
        with named("step"):
            return self._gradients(loss, inputs, target, ignore_index, own)

    def _gradients(self, loss: Criterion, inputs: Sequence[Any], target: Any, ignore_index: int, own: bool) -> torch.Tensor:
        samples = len(inputs[0]) * (self.replicas if own else 1)
        if self.plan.samples and samples != self.plan.samples:
            raise ValueError(
                f"the plan's stages are written for {self.plan.samples} samples, got {samples}; export a plan for as many"
            )
        counted = self.data.get_group() if own and self.data is not None else None
        self._mean = MeanOverAll(target, ignore_index, self.replicas, self.device, counted)
        inputs, target = [self.rows(value, own) for value in inputs], self.rows(target, own)
        if self.schedule is not None:
            found = self._step_of_stages(loss, inputs, target)
        else:
            found = torch.zeros((), device=self.device)
            chunks = zip(*(value.chunk(self.plan.micro_batches) for value in (*inputs, target)))
            for number, (*given, wanted) in enumerate(chunks):
                self._synchronise(self.plan.zero > 1 or number == self.plan.micro_batches - 1)
                part = self._named_loss(loss)(self._run(self.parts[0], given), wanted)
                with plain_is_whole():
                    torch.autograd.backward(part)
                found += part.detach()
        with named("sums"):
            self._finish()
        with named("finish"):
            dist.all_reduce(found)
        return found * self._loss_pieces() * self.plan.mesh.get("pipeline", 1) / dist.get_world_size()

    def rows(self, value: Any, own: bool = False) -> Any:
        """Return this replica's samples of a batch, on its device; ``own``: of these samples alone. The host does not wait for
        copies out of pinned memory."""
        if not isinstance(value, torch.Tensor):
            return value
        if self.data is None:
            return value.to(self.device, non_blocking=True)
        replicas, many = 1 if own else self.replicas, self.plan.micro_batches
        if len(value) % (replicas * many):
            given = "each replica" if own else "every rank the whole batch,"
            raise ValueError(
                f"{len(value)} samples do not divide into {replicas} replicas x {many} micro-batches; give {given} a multiple of "
                f"{replicas * many} samples"
            )
        return (value if own else value.chunk(replicas)[self.replica]).to(self.device, non_blocking=True)

    def __call__(self, *inputs: Any) -> Any:
        """Return the module's result for this replica's inputs, whole on every rank. Not for pipelines, which only have `step`."""
        if self.schedule is not None:
            raise ValueError("a rank of a pipeline has a part of the module; call step")
        return mapped_leaves(_whole, self._run(self.parts[0], inputs))

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield this rank's pieces of the parameters, each once."""
        return (parameter for _, parameter in self.named_parameters())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the same with the module's names for them; stages of one rank may share some."""
        found: dict[int, tuple[str, nn.Parameter]] = {}
        for name, parameter in itertools.chain.from_iterable(part.named_parameters() for part in self.parts):
            found.setdefault(id(parameter), (name, parameter))
        return iter(found.values())

    def train(self, mode: bool = True) -> Parallel:
        """Put this rank's modules in training mode, in which they are at first if the module is, or in evaluation mode."""
        for part in self.parts:
            part.train(mode)
        return self

    def eval(self) -> Parallel:
        """Put this rank's modules in evaluation mode: no dropout, running statistics."""
        return self.train(False)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scale the gradients if the norm of all of the module's is above ``max_norm``; returns that norm. All ranks must call it,
        between `step` and the optimizer's. (PyTorch's function of this name knows only this rank's stages.)"""
        pipeline = self.mesh.get_group("pipeline") if self.plan.stages else None
        return clipped(self.parameters(), self._counted_elsewhere(), max_norm, norm_type, pipeline, self.device)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the whole weights of this rank's stages, by the module's names. All ranks must call it."""
        found = {name: value for part in self.parts for name, value in part.state_dict().items()}
        return {name: _whole(value) for name, value in found.items()}

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _data_mesh(self) -> DeviceMesh | None:
        if not self.plan.data:
            return None
        mesh = self.mesh[self.plan.data]
        return mesh if mesh.ndim == 1 else mesh._flatten("replicas")

    def _parts(self, module: nn.Module) -> list[nn.Module]:
        parts, plan = [module], self.plan
        if plan.stages:
            count, rank = plan.mesh["pipeline"], self.mesh.get_local_rank("pipeline")
            mine = range(rank, len(plan.stages), count)
            parts = [StagePart(module, plan, number, self.tensor) for number in mine]
        result: dict[int, nn.Parameter] = {}
        for part in parts:
            if self.tensor is not None:
                cut_layers(part, plan.layers, self.tensor, result)
            if self.data is not None:
                spread: Any = fully_shard if plan.zero else replicate
                options: dict[str, Any] = {"reshard_after_forward": plan.zero == 3} if plan.zero else {}
                options["mesh"] = self.data
                if plan.zero and plan.group:
                    options["mesh"] = self.data._unflatten(0, (self.data.size() // plan.group, plan.group), ("groups", "shards"))
                units = [path for path in matching(part, plan.units) if not isinstance(part, StagePart) or part.stage_has(path)]
                again = {*matching(part, plan.again)}
                for path in sorted(units, key=lambda path: -path.count(".")):  # what is within another comes first
                    unit: Any = part.get_submodule(path)
                    moved(unit, self.device)  # one after the other: a device need not have room for all before they are spread
                    spread(unit, **options)
                    if plan.zero == 3 and type(unit).forward is nn.Embedding.forward and path not in again:
                        unit.set_unshard_in_backward(False)  # the gradient of a table needs no table
                moved(part, self.device)
                spread(part, **options)
                if self.tensor is not None:
                    bring_once(part, plan.layers, self.tensor)
            moved(part, self.device)
        return parts

    def _run(self, part: nn.Module, inputs: Sequence[Any]) -> Any:
        if self.tensor is None:
            return self._called(part, inputs)
        whole = (Replicate(),) * self.tensor.ndim
        placed = [as_placed(value, self.tensor, whole) if isinstance(value, torch.Tensor) else value for value in inputs]
        with divided():
            return self._called(part, placed)

    def _called(self, part: nn.Module, inputs: Sequence[Any]) -> Any:
        """Call a whole module, by the names of its arguments if the plan has them."""
        return part(**self._by_name(inputs)) if self.plan.inputs else part(*inputs)

    def _by_name(self, inputs: Sequence[Any]) -> dict[str, Any]:
        if len(inputs) != len(self.plan.inputs):
            raise ValueError(f"this plan is for the inputs {', '.join(self.plan.inputs)}, in this order; got {len(inputs)}")
        return dict(zip(self.plan.inputs, inputs))

    def _loss(self, loss: Criterion) -> Criterion:
        """What the elements that this rank has of a micro-batch add to the mean, times the replicas."""
        mesh, mean = self.tensor, self._mean
        if mesh is None:
            return lambda output, target: mean.of(loss, output, target)

        def piece(value: Any) -> Any:  # a stage returns its piece as it is
            return local_piece(value, mesh, self.plan.output) if isinstance(value, DTensor) else value

        def local(output: Any, target: Any) -> torch.Tensor:
            output = mapped_leaves(piece, output)
            return mean.of(loss, output, local_piece(target, mesh, self.plan.target))

        return local

    def _named_loss(self, loss: Criterion) -> Criterion:
        """The same, named ``loss``."""
        compute = self._loss(loss)

        def of_loss(output: Any, target: Any) -> torch.Tensor:
            with named("loss"):
                return compute(output, target)

        return of_loss

    def _loss_pieces(self) -> int:
        """The number of ranks over which the positions of a sample are distributed when the loss is computed."""
        sizes = self.tensor.shape if self.tensor is not None else ()
        return math.prod(size for size, placement in zip(sizes, self.plan.output) if isinstance(placement, Shard))

    # ---- gradients ---------------------------------------------------------------------------------------------------

    def _synchronise(self, now: bool) -> None:
        """Set whether the next backward pass sums gradients over the replicas."""
        for part in self.parts:
            if isinstance(part, FSDPModule):
                part.set_requires_gradient_sync(now)

    def _finish(self) -> None:
        """Sum the ranks' gradients of one weight: of a weight that several ranks hold whole, and of one of several stages."""
        changed = [p for p in self.parameters() if isinstance(p, DTensor) and isinstance(p.grad, DTensor)]
        changed = [p for p in changed if p.grad.placements != p.placements]
        for parameter, grad in zip(changed, brought_together([p.grad for p in changed], [p.placements for p in changed])):
            parameter.grad = grad
        for parameter, group in self._tied_here():
            grad = parameter.grad
            if grad is not None:
                dist.all_reduce(grad.to_local() if isinstance(grad, DTensor) else grad, group=group)

    def _tied(self, module: nn.Module) -> list[list[str]]:
        """Parameters that several stages share: for each, its name in each stage ("": not there). All ranks have them in one order,
        in which they sum their gradients."""
        names = [parameters_of(module, stage.parts) for stage in self.plan.stages]
        every = dict.fromkeys(key for found in names for key in found)
        return [[found.get(key, "") for found in names] for key in every if sum(key in found for found in names) > 1]

    def _counted_elsewhere(self) -> set[int]:
        """Parameters that a stage of another rank has, too, and that belong to the first such stage."""
        if not self.tied:
            return set()
        count, rank = self.plan.mesh["pipeline"], self.mesh.get_local_rank("pipeline")
        here = {name: p for part in self.parts for name, p in part.named_parameters(remove_duplicate=False)}
        elsewhere = [names for names in self.tied if next(i for i, name in enumerate(names) if name) % count != rank]
        return {id(here[name]) for names in elsewhere for name in names if name in here}

    def _tied_here(self) -> Iterator[tuple[nn.Parameter, Any]]:
        for found, group in zip(self.tied, self._tied_groups):
            here = {name: p for part in self.parts for name, p in part.named_parameters(remove_duplicate=False)}
            name = next((name for name in found if name in here), None)
            if name is not None and group is not None:
                yield here[name], group

    # ---- pipelines ---------------------------------------------------------------------------------------------------

    def _pipeline(self) -> Any:
        plan, group = self.plan, self.mesh.get_group("pipeline")
        count, rank = plan.mesh["pipeline"], self.mesh.get_local_rank("pipeline")
        stages = [
            PipelineStage(part, rank + i * count, len(plan.stages), self.device, group=group) for i, part in enumerate(self.parts)
        ]
        kind = getattr(schedules, plan.schedule)
        options = {"loss_fn": self._loss_of_stage, "scale_grads": False}
        if "return_outputs" in inspect.signature(kind.step).parameters:  # joining them fails if one is a number
            self._no_outputs = {"return_outputs": False}
        several = issubclass(kind, schedules.PipelineScheduleMulti)
        return kind(stages if several else stages[0], plan.micro_batches, **options)

    def _group_of_stages(self, names: Sequence[str]) -> Any:
        """The ranks, at this rank's place among the replicas, of the stages that have a parameter. All ranks create all groups."""
        count = self.plan.mesh["pipeline"]
        holders = sorted({number % count for number, name in enumerate(names) if name})
        mine = None
        for column in self.mesh.mesh.flatten(1).T.tolist() if self.mesh.ndim > 1 else [self.mesh.mesh.tolist()]:
            ranks = [column[number] for number in holders]
            group = dist.new_group(ranks) if len(ranks) > 1 else None
            if dist.get_rank() in ranks:
                mine = group
        return mine

    def _loss_of_stage(self, output: Any, target: Any) -> torch.Tensor:
        assert self._criterion is not None, "step sets it"
        found = self._named_loss(self._criterion)(output, target)
        self._losses.append(found.detach())
        return found

    def _step_of_stages(self, loss: Criterion, inputs: Sequence[Any], target: Any) -> torch.Tensor:
        self._criterion = loss
        self._losses = []
        rank, last = self.mesh.get_local_rank("pipeline"), (len(self.plan.stages) - 1) % self.plan.mesh["pipeline"]
        behind = [part for part in self.parts if isinstance(part, StagePart) and not part.stage_first]
        here = {name for part in behind for name in part.stage_plan.inputs}
        given = self._by_name(inputs)
        first = [given[name] for name in self.plan.stages[0].inputs] if rank == 0 else []
        later = {name: given[name] for name in self.plan.inputs if name in here}
        with plain_is_whole():
            self.schedule.step(*first, **later, **({"target": target} if rank == last else {}), **self._no_outputs)
        found = self._losses[-self.plan.micro_batches :]  # the first step's begin with those of a trial that finds shapes
        return sum(found, torch.zeros((), device=self.device))


def _whole(value: Any) -> Any:
    return value.full_tensor() if isinstance(value, DTensor) else value


def started(plan: ParallelPlan, device: str | None) -> torch.device:
    """Start the process group and return this rank's device. Raises ValueError if the number of ranks is not the plan's."""
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if not dist.is_initialized():
        dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    ranks = 1
    for size in plan.mesh.values():
        ranks *= size
    if dist.get_world_size() != ranks:
        raise ValueError(
            f"this plan is for {ranks} ranks ({plan.mesh}), but there are {dist.get_world_size()}; start torchrun with {ranks} in "
            "all (--nnodes times --nproc-per-node), or export a plan for as many as there are"
        )
    if kind == "cuda":
        local = int(os.environ.get("LOCAL_RANK", 0))
        torch.cuda.set_device(plan.devices[dist.get_rank()] % torch.cuda.device_count() if plan.devices else local)
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(kind)
