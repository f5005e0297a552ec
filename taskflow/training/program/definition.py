"""What a training program is made of: its presets, what it is told, and what it says to train."""

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
    """What the function that says what to train is told. ``model`` is the preset's config, ``batch`` of the whole machine;
    ``ranks`` share this job's cores."""

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
    """What to train on what. ``unit``: what the items of ``batches`` are ("tokens", "images"); ``describe``: one line about
    the data. A report has the last measure of ``evaluation`` under its names with ``_valid``, ``facts``, and what
    ``watch`` found of training's steps under its name."""

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
