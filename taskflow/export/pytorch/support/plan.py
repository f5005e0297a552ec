"""Plan of an exported module: its layers, stages and mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from taskflow.export.pytorch.support.exchange import Placement

Placements = tuple[Placement, ...]  # one for each tensor dimension of the mesh


@dataclass(frozen=True)
class LayerPlan:
    """Cut of a layer: the layout of each argument, of each weight (whole if not named), of its result, and the one that its
    readers want. ``once``: weights that are added to a sum; only one rank adds them."""

    inputs: tuple[Placements, ...]
    weights: Mapping[str, Placements]
    makes: Placements
    output: Placements
    once: tuple[str, ...] = ()
    rows: bool = False  # a table whose rows are cut


@dataclass(frozen=True)
class StagePlan:
    """A stage of a pipeline. ``run(part, *values, *inputs)``: its code, called with the values from the previous stage and
    those of the step's ``inputs`` that it reads. ``parts``: paths of its modules, parameters and buffers. ``arrives``: the
    layouts of those values."""

    run: Callable[..., Any]
    parts: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    arrives: tuple[Placements, ...] = ()


@dataclass(frozen=True)
class ParallelPlan:
    """The whole plan of an exported module. In the paths of modules ``#`` stands for any number. ``mesh``: its dimensions, the
    first named "pipeline" if there is one; ``data`` and ``tensor``: which of them are replicas and which cut layers. ``zero``:
    the stage of ZeRO. From 1 on, parameters and the optimizer's state are sharded over the replicas; from 2 on, so are the
    gradients of each micro-batch; with 3, weights are gathered for each pass. ``group``: neighbouring replicas that hold all
    shards together, 0: all. ``units``: modules that gather their weights and reduce their gradients by themselves; other
    weights belong to the whole module. ``again``: modules that are recomputed for the backward pass; ``whole``: those of
    them that are to their end, also where the backward pass reads nothing. ``inputs``: the names of forward's
    arguments, if it is called by them, and of pipelines.
    ``output``, ``target``: the layouts in which the loss takes the module's result and the targets. ``statistics``: batch
    normalisation uses the samples of all replicas. ``elements``: of all parameters of the module, 0: not known. ``samples``: of
    each step, 0: any number."""

    mesh: Mapping[str, int]
    layers: Mapping[str, LayerPlan]
    data: tuple[str, ...] = ()
    tensor: tuple[str, ...] = ()
    zero: int = 0
    group: int = 0
    units: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    micro_batches: int = 1
    schedule: str = ""
    stages: tuple[StagePlan, ...] = ()
    inputs: tuple[str, ...] = ()
    output: Placements = ()
    target: Placements = ()
    statistics: bool = False
    devices: tuple[int, ...] = ()
    elements: int = 0
    samples: int = 0
