"""What an exported module says of a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.distributed.tensor import Placement

Placements = tuple[Placement, ...]  # one for each tensor dimension of the mesh


@dataclass(frozen=True)
class LayerPlan:
    """How a layer is cut: what it takes of each argument, what of each weight (a weight that is not named: all of it), what its
    computation leaves, and what its readers want. ``once``: weights that are added to a sum, which one rank alone adds."""

    inputs: tuple[Placements, ...]
    weights: Mapping[str, Placements]
    makes: Placements
    output: Placements
    once: tuple[str, ...] = ()
    rows: bool = False  # a table whose rows are cut


@dataclass(frozen=True)
class StagePlan:
    """A stage of a pipeline. ``run(part, *values, *inputs)``: its code, of values from the stage before and of what it reads of the
    step's ``inputs``. ``parts``: paths of the modules, parameters and buffers in it. ``arrives``: how those values lie."""

    run: Callable[..., Any]
    parts: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    arrives: tuple[Placements, ...] = ()


@dataclass(frozen=True)
class ParallelPlan:
    """All that an exported module says. In the paths of modules ``#`` stands for any number.

    ``mesh``: its dimensions, which are "pipeline" first if there is one; ``data`` and ``tensor`` say which of them are replicas
    and which cut layers. ``zero``: ZeRO's stage; from 1 on parameters and the optimizer's state lie in shards on the replicas, from
    2 on each micro-batch's gradients do, with 3 weights are gathered for each pass. ``group``: neighbouring replicas that have
    all shards together, 0: all. ``units``: modules that gather their weights and add up their gradients by themselves; other
    weights go with the whole. ``again``: modules that are computed again for the backward pass. ``inputs``: the names of the
    arguments of forward. ``output``, ``target``: how the loss takes what the module returns, and the targets. ``statistics``:
    batch normalisation takes those of all replicas."""

    mesh: Mapping[str, int]
    layers: Mapping[str, LayerPlan]
    data: tuple[str, ...] = ()
    tensor: tuple[str, ...] = ()
    zero: int = 0
    group: int = 0
    units: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    micro_batches: int = 1
    schedule: str = ""
    stages: tuple[StagePlan, ...] = ()
    inputs: tuple[str, ...] = ()
    output: Placements = ()
    target: Placements = ()
    statistics: bool = False
    devices: tuple[int, ...] = ()
