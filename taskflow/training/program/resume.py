"""Resume: what ``--checkpoint`` and ``--resume`` do; `taskflow.checkpoint.checkpoint` defines the files."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from taskflow.checkpoint import Checkpoint, on_first_rank, read_checkpoint, same_sums, save_checkpoint
from taskflow.floats import float_type
from taskflow.reading import Whole, read_as
from taskflow.runtime import Executor
from taskflow.runtime.transport import Transport
from taskflow.training.data import Say
from taskflow.training.program.options import Options
from taskflow.training.program.rank_agreement import writable
from taskflow.writing import one_line


class CheckpointError(OSError):
    """Error, raised on all ranks, for a checkpoint that could not be written."""


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a run in its data: the number of ``steps`` done (which is the number of the next batch), the ``epoch`` of the
    last batch, the ``batch`` size, and the ``digest`` of the data."""

    steps: Whole = 0
    epoch: Whole = 0
    batch: Whole = 0
    digest: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it as a checkpoint stores it."""
        return {"steps": self.steps, "epoch": self.epoch, "batch": self.batch, "digest": self.digest}


def read_resume(transport: Transport, options: Options, steps: int) -> tuple[Checkpoint, Position] | None:
    """Return the checkpoint that ``--resume`` names, read by rank 0; None without it. Every rank calls it. Raises, on every
    rank, FileNotFoundError, ImportError and ValueError. It must be a checkpoint of a training program, with the seed of
    ``--seed`` if that is given, and fewer steps than ``steps``."""
    if options.checkpoint_every is not None and options.checkpoint is None:
        raise ValueError("--checkpoint-every: say with --checkpoint FILE what to write")
    if options.resume is None:
        return None
    path = options.resume

    def read() -> tuple[Checkpoint, Position]:
        said = read_checkpoint(path)
        try:
            Position(**said.position)  # not another program's table
            position = read_as(Position, said.position, str(path))
        except (TypeError, ValueError):
            raise ValueError(f"{path}: a checkpoint, but not of this program: it does not say how far its data were read") from None
        if options.seed not in (None, said.seed):
            raise ValueError(f"--seed {options.seed}: {path} is of a run with seed {said.seed}; leave --seed out")
        if position.steps != said.step:
            raise ValueError(f"{path}: damaged: it has {said.step} steps, but its data were read up to step {position.steps}")
        if position.steps >= steps:
            raise ValueError(f"{path}: has {position.steps} steps already; to go on, give --steps more than that, got {steps}")
        return said, position

    found: tuple[Checkpoint, Position] = on_first_rank(transport, read)
    return found


def check_resume(options: Options, saved: tuple[Checkpoint, Position], model: str, dtype: str, digest: str) -> None:
    """Raise ValueError if the checkpoint is of another network than ``model``, of another float type, or of other data."""
    if saved[0].model != model:
        raise ValueError(f"{options.resume}: is a checkpoint of {saved[0].model}, but this trains {model}")
    if not same_sums(saved[0].dtype, float_type(dtype)):
        raise ValueError(f"{options.resume}: is in {saved[0].dtype}, this run in {dtype}; give --dtype {saved[0].dtype}")
    if digest != saved[1].digest:
        raise ValueError(
            f"{options.resume}: is of a run on other data than this one's (or of another version of what is read without --data); "
            "give the same files and options"
        )


def can_be_written(transport: Transport, options: Options) -> None:
    """Raise OSError or ImportError on every rank if the files that the run will write cannot be written."""
    writable(transport, options.trace, "trace")
    writable(transport, options.checkpoint, "checkpoint")
    writable(transport, options.save_strategy, "strategy file")
    if options.checkpoint is not None and importlib.util.find_spec("safetensors") is None:
        raise ImportError("--checkpoint needs safetensors: pip install 'soap-taskflow[weights]'")


def saver(executor: Executor, options: Options, start: Position, steps: int, say: Say) -> Callable[[int, int], None] | None:
    """Return a function that the training loop calls with the number of steps done and the epoch, and that writes checkpoints
    when they are due. It raises CheckpointError on every rank if one cannot be written. None without ``--checkpoint``."""
    path, every = options.checkpoint, options.checkpoint_every
    if path is None:
        return None

    def after(done: int, epoch: int) -> None:
        if done == steps or (every is not None and done % every == 0):
            try:
                save_checkpoint(executor, path, position=replace(start, steps=done, epoch=epoch).as_json())
            except OSError as error:
                raise CheckpointError(f"checkpoint after step {done}: {one_line(error)}") from error
            say(f"checkpoint after step {done}: {path}")

    return after
