"""Definition of a training program: its presets, what its function is given, and what that returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from taskflow.graph import OperatorGraph
from taskflow.rules import UpdateRule
from taskflow.training.data import Batches, LazyBatches, Say, Validation, Watch
from taskflow.training.schedules import Schedule


@dataclass(frozen=True, slots=True)
class Preset:
    """Sizes and training settings. ``model``: the network's config, whose ``batch`` is of the whole machine, or of each
    processor if ``per_processor``."""

    model: Any
    rule: UpdateRule
    steps: int
    schedule: Schedule | None = None
    clip_norm: float | None = None
    per_processor: bool = False


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Argument of the function that defines what to train. ``model``: the preset's config, with the ``batch`` of the whole
    machine. ``ranks``: their number; they share this job's cores."""

    model: Any
    batch: int
    data: tuple[str, ...]
    seed: int
    dtype: str
    steps: int
    processors: int
    ranks: int
    say: Say


@dataclass(frozen=True, slots=True)
class Training:
    """Definition of a training: the graph and its data. ``unit``: of the items of ``batches`` ("tokens", "images").
    ``describe``: one line about the data. A report has the last values of ``evaluation``, with ``_valid`` after their names,
    ``facts``, and what ``watch`` measured of training, under its name."""

    graph: OperatorGraph
    batches: Batches
    unit: str
    describe: str
    evaluation: Validation | None = None
    measures: tuple[str, ...] = ()  # the names that a report has, None where nothing could be measured
    lazy: tuple[LazyBatches, ...] = ()  # all batches that are made for this rank alone: training's and validation's
    initial: Mapping[str, Any] = field(default_factory=dict)  # whole arrays that parameters start with in place of their own
    facts: Mapping[str, Any] = field(default_factory=dict)
    watch: Watch | None = None
