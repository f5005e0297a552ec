"""Logs of a training run for TensorBoard and Weights & Biases, whose packages are optional."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

KINDS = ("tensorboard", "wandb")


@dataclass(frozen=True, slots=True)
class RunLog:
    """An open log. ``add(step, values)``: numbers of a step, counted from 1, by name. ``close``: when the run has ended."""

    add: Callable[[int, Mapping[str, float]], object]
    close: Callable[[], object]


def open_log(text: str, about: Mapping[str, object]) -> RunLog:
    """Open ``tensorboard:FOLDER`` or ``wandb:PROJECT``. ``about``: what the run is of, as W&B shows it. Raises ValueError for any
    other text, and ImportError that says what to install."""
    kind, _, where = text.partition(":")
    if kind not in KINDS or not where:
        raise ValueError(f"--log {text}: write tensorboard:FOLDER or wandb:PROJECT")
    return _tensorboard(where) if kind == "tensorboard" else _wandb(where, about)


def _tensorboard(folder: str) -> RunLog:
    try:
        from tensorboard.summary import Writer
    except ImportError as error:
        raise ImportError("--log tensorboard: needs tensorboard: pip install 'soap-taskflow[log]'") from error
    writer = Writer(folder)

    def add(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return RunLog(add, writer.close)


def _wandb(project: str, about: Mapping[str, object]) -> RunLog:
    try:
        import wandb
    except ImportError as error:
        raise ImportError("--log wandb: needs wandb: pip install 'soap-taskflow[wandb]'") from error
    run = wandb.init(project=project, config=dict(about))
    return RunLog(lambda step, values: run.log(dict(values), step=step), run.finish)
