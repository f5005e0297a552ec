"""Checkpoints beside training: steps go on while a file is written, the last ones are kept, and the newest whole one is found."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from taskflow.checkpoint.checkpoint import Checkpoint, gather_checkpoint, read_checkpoint
from taskflow.checkpoint.safetensors_file import write_safetensors
from taskflow.checkpoint.stored import Array
from taskflow.checkpoint.weights import on_first_rank, read_weights
from taskflow.runtime import Executor

_NICE = 5  # so that what trains on the same core has three times as much of it


@dataclass(frozen=True, slots=True)
class Written:
    """Checkpoint after ``step`` steps that is on the disk: how many ``seconds`` its writing took, beside training, and how many
    training was ``held`` up before, while the arrays were gathered and the file before was finished."""

    step: int
    held: float
    seconds: float


class CheckpointWriter:
    """Writer of an Executor's checkpoints to one file, beside training. Of those before it, the last ``keep`` - 1 stay as
    ``NAME.stepN.safetensors``.

    Rank 0 holds a copy of all arrays from the first checkpoint on, so that the next ones need no new memory. Every rank makes the
    same calls.
    """

    def __init__(
        self, executor: Executor, path: str | Path, *, keep: int = 1, tell: Callable[[Written], None] = lambda written: None
    ) -> None:
        """``tell`` is called on rank 0, by the thread that writes, when a file is complete. Raises ValueError if ``keep`` is
        less than 1."""
        if keep < 1:
            raise ValueError(f"CheckpointWriter: keep must be at least 1, got {keep}")
        self._executor, self._path, self._keep, self._tell = executor, Path(path), keep, tell
        self._thread = ThreadPoolExecutor(1, "checkpoint", initializer=_yield_to_training)
        self._writing: Future[None] | None = None
        self._arrays: dict[str, Array] = {}

    def save(self, position: Any = None) -> None:
        """Gather a checkpoint as `save_checkpoint` does, and begin to write it, once the one before is complete. Raises, on
        every rank, what `save_checkpoint` raises, also for the file before."""
        began = perf_counter()
        self.wait()
        arrays, metadata = gather_checkpoint(self._executor, self._path, position, self._arrays)
        self._arrays = arrays
        if self._executor.transport.rank == 0:
            held = perf_counter() - began
            self._writing = self._thread.submit(self._write, arrays, metadata, self._executor.state.step, held)

    def wait(self) -> None:
        """Wait until the last file is complete. Raises, on every rank, OSError if it could not be written."""
        writing, self._writing = self._writing, None
        on_first_rank(self._executor.transport, (lambda: None) if writing is None else writing.result)

    def tidy(self) -> None:
        """Remove what a run has left that was killed when its last file had just taken its place: more older ones than are kept.
        For a run that writes nothing; every file that is written does this. What cannot be removed stays."""
        if self._executor.transport.rank == 0 and self._path.is_file():
            with suppress(OSError):
                self._remove_oldest()

    def close(self) -> None:
        """Let the thread end, and wait as `wait` does."""
        self.wait()
        self._thread.shutdown()

    def _write(self, arrays: dict[str, Array], metadata: dict[str, str], step: int, held: float) -> None:
        began = perf_counter()
        if self._keep > 1:
            _set_aside(self._path)
        write_safetensors(self._path, arrays, metadata)
        self._remove_oldest()
        self._tell(Written(step, held, perf_counter() - began))

    def _remove_oldest(self) -> None:
        for old in _older(self._path)[self._keep - 1 :]:
            old.unlink(missing_ok=True)


def newest_checkpoint(path: str | Path, tell: Callable[[str], None] = lambda text: None) -> tuple[Path, Checkpoint] | None:
    """Return the newest whole file of those that a `CheckpointWriter` has written under the name ``path``, with its metadata;
    None without one. ``tell`` is told of damaged ones. Reads each file whole until one is good."""
    path = Path(path)
    for file in filter(Path.is_file, (path, *_older(path))):
        try:
            found, stored = read_checkpoint(file), read_weights(file)
            stored.verify(stored)
            return file, found
        except ValueError as error:
            tell(f"{error}; looking for an older one")
    return None


def _set_aside(path: Path) -> None:
    """Give the file that is there a second name, under which it stays."""
    with suppress(FileNotFoundError, ValueError):  # ValueError: not a checkpoint, or a damaged one, which nobody wants
        older = path.with_name(f"{path.stem}.step{read_checkpoint(path).step}{path.suffix}")
        older.unlink(missing_ok=True)
        try:
            os.link(path, older)
        except OSError:  # a file system without links
            shutil.copyfile(path, older)


def _older(path: Path) -> list[Path]:
    """Those that stay beside ``path``, the newest first. A run before may have left some with more steps."""
    named = re.compile(rf"{re.escape(path.stem)}\.step(\d+){re.escape(path.suffix)}")
    with suppress(FileNotFoundError):
        found = filter(None, map(named.fullmatch, os.listdir(path.absolute().parent)))
        steps = {path.with_name(match[0]): int(match[1]) for match in found}
        return sorted(steps, key=lambda file: (file.stat().st_mtime_ns, steps[file]), reverse=True)
    return []


def _yield_to_training() -> None:
    if sys.platform == "linux":  # where a thread has a priority of its own
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + _NICE)
