"""Resume: what ``--checkpoint`` and ``--resume`` do; `taskflow.checkpoint.checkpoint` defines the files."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from taskflow.checkpoint import (
    Checkpoint,
    CheckpointWriter,
    Written,
    newest_checkpoint,
    on_first_rank,
    read_checkpoint,
    same_sums,
)
from taskflow.floats import float_type
from taskflow.reading import Whole, read_as
from taskflow.runtime import Executor
from taskflow.runtime.transport import Transport
from taskflow.training.data import Say
from taskflow.training.program.options import Every, Options
from taskflow.training.program.rank_agreement import writable
from taskflow.writing import one_line

AUTO = "auto"


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


@dataclass(frozen=True, slots=True)
class Saved:
    """Checkpoint that a run goes on from: its file, its metadata and its position in the data."""

    path: str
    about: Checkpoint
    position: Position


def read_resume(transport: Transport, options: Options, steps: int, say: Say) -> Saved | None:
    """Return the checkpoint that ``--resume`` names, read by rank 0; None without it. ``auto``, or ``--elastic``: the newest whole
    one of those that ``--checkpoint`` has written, if there is one, which may have all of the ``steps``. Every rank calls it.
    Raises, on every rank, FileNotFoundError, ImportError and ValueError. It must be a checkpoint of a training program, with the
    seed of ``--seed`` if that is given, and fewer steps than ``steps``."""
    if options.checkpoint_every is not None and options.checkpoint is None:
        raise ValueError("--checkpoint-every: say with --checkpoint FILE what to write")
    if options.resume == AUTO and options.checkpoint is None:
        raise ValueError("--resume auto: say with --checkpoint FILE which one")

    def read() -> Saved | None:
        newest = options.resume == AUTO or options.elastic is not None
        found = newest_checkpoint(str(options.checkpoint), say) if newest else None
        if found is not None:
            return _saved(str(found[0]), found[1], options, steps)
        if options.resume in (None, AUTO):
            return None
        saved = _saved(options.resume, read_checkpoint(options.resume), options, steps)
        if saved.position.steps >= steps:
            raise ValueError(
                f"{saved.path}: has {saved.position.steps} steps already; to go on, give --steps more than that, got {steps}"
            )
        return saved

    return on_first_rank(transport, read)  # type: ignore[no-any-return]


def _saved(path: str, header: Checkpoint, options: Options, steps: int) -> Saved:
    try:
        Position(**header.position)  # not another program's table
        position = read_as(Position, header.position, str(path))
    except (TypeError, ValueError):
        raise ValueError(f"{path}: a checkpoint, but not of this program: it does not say how far its data were read") from None
    if options.seed not in (None, header.seed):
        raise ValueError(f"--seed {options.seed}: {path} is of a run with seed {header.seed}; leave --seed out")
    if position.steps != header.step:
        raise ValueError(f"{path}: damaged: it has {header.step} steps, but its data were read up to step {position.steps}")
    if position.steps > steps:
        raise ValueError(f"{path}: has {position.steps} steps already; to go on, give --steps more than that, got {steps}")
    return Saved(path, header, position)


def check_resume(saved: Saved, model: str, dtype: str, digest: str) -> None:
    """Raise ValueError if the checkpoint is of another network than ``model``, of another float type, or of other data."""
    if saved.about.model != model:
        raise ValueError(f"{saved.path}: is a checkpoint of {saved.about.model}, but this trains {model}")
    if not same_sums(saved.about.dtype, float_type(dtype)):
        raise ValueError(f"{saved.path}: is in {saved.about.dtype}, this run in {dtype}; give --dtype {saved.about.dtype}")
    if digest != saved.position.digest:
        raise ValueError(
            f"{saved.path}: is of a run on other data than this one's (or of another version of what is read without --data); "
            "give the same files and options"
        )


def can_be_written(transport: Transport, options: Options) -> None:
    """Raise OSError or ImportError on every rank if the files that the run will write cannot be written."""
    writable(transport, options.trace, "trace")
    writable(transport, options.checkpoint, "checkpoint")
    writable(transport, options.save_strategy, "strategy file")
    if options.checkpoint is not None and importlib.util.find_spec("safetensors") is None:
        raise ImportError("--checkpoint needs safetensors: pip install 'soap-taskflow[weights]'")


class Saver:
    """Writer of a run's checkpoints when they are due, beside training. Raises CheckpointError on every rank if one cannot be
    written. Every rank makes the same calls."""

    def __init__(self, executor: Executor, options: Options, start: Position, steps: int, say: Say) -> None:
        """``options``: with ``checkpoint``."""
        self._every, self._start, self._steps, self._first = options.checkpoint_every or Every(), start, steps, start.steps
        self._transport = executor.transport
        self._last, self._next, self._saved = monotonic(), start.steps + 1, start.steps

        def tell(written: Written) -> None:
            after = f"checkpoint after step {written.step}: {options.checkpoint}"
            say(f"{after} (training waited {written.held:.2g} s, written beside it in {written.seconds:.2g} s)")

        self._writer = CheckpointWriter(executor, str(options.checkpoint), keep=options.keep, tell=tell)
        if start.steps == steps:
            self._writer.tidy()

    def __call__(self, done: int, epoch: int) -> None:
        """Begin a checkpoint if one is due after ``done`` steps, in ``epoch``; the last one is complete when this returns."""
        due = self._due(done)
        if due or done == self._steps:
            self._try(self._writer.wait)
            self._saved = done
            self._try(lambda: self._writer.save(replace(self._start, steps=done, epoch=epoch).as_json()))
        if done == self._steps:
            self._try(self._writer.close)

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except OSError as error:
            raise CheckpointError(f"checkpoint after step {self._saved}: {one_line(error)}") from error

    def _due(self, done: int) -> bool:
        if self._every.steps:
            return done % self._every.steps == 0
        return bool(self._every.seconds) and done == self._next and self._clock(done)

    def _clock(self, done: int) -> bool:
        """Ask rank 0's clock whether it is time, and after which step to ask it again: sooner while steps are few."""
        passed = monotonic() - self._last
        left = self._every.seconds - passed
        many = (done - self._first) * max(0.0, left) / max(passed, 1e-9)
        due, self._next = self._transport.broadcast((left <= 0, done + max(1, min(int(many / 2), done - self._start.steps))))
        if due:
            self._last, self._first = monotonic(), done
        return bool(due)
