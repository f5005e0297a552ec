"""Checkpoints: everything that a training run needs to continue as if it had never been stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from taskflow.checkpoint.safetensors_file import write_safetensors
from taskflow.checkpoint.stored import Array, StoredWeights
from taskflow.checkpoint.weights import gather_arrays, on_first_rank, put_from, read_weights
from taskflow.floats import sums_in
from taskflow.reading import NotNegative, Whole, parse_json, read_as
from taskflow.runtime import Executor
from taskflow.runtime.weights import ArrayLayout
from taskflow.writing import json_text

_KEY, _VERSION = "taskflow-checkpoint", 2
_WITHOUT_SUMS = 1  # the version before, whose files have no checksums


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Metadata of a checkpoint. ``step``: number of training steps done. ``position``: where the saving program was in its data
    (any JSON value)."""

    step: Whole
    seed: Whole
    rule: str
    model: str
    dtype: str
    position: Any = None
    skipped: Whole = 0  # of these steps, those without an update
    loss_scale: NotNegative = 0.0  # 0: there is none
    steady: Whole = 0  # steps since the scale last changed
    version: Whole = _VERSION


def save_checkpoint(executor: Executor, path: str | Path, *, position: Any = None) -> None:
    """Write weights, running statistics, the update rule's arrays, carried state, step, seed and ``position`` to one
    safetensors file. Every rank calls it. The file appears complete or not at all.

    A run that loads the checkpoint under the same strategy has bit for bit the losses of a run that was never stopped. Under
    another strategy or on other ranks they agree up to the rounding of reordered sums. For 16-bit weights the float32 copies
    are saved, so that a run can continue in another precision. `load_weights` reads the file too. The state that evaluation and
    prediction carry is not saved. Raises on every rank: ImportError, OSError, and ValueError if the Executor has no update
    rule.
    """
    arrays, metadata = gather_checkpoint(executor, Path(path), position)
    on_first_rank(executor.transport, lambda: write_safetensors(path, arrays, metadata))


def gather_checkpoint(
    executor: Executor, path: Path, position: Any = None, into: Mapping[str, Array] = MappingProxyType({})
) -> tuple[dict[str, Array], dict[str, str]]:
    """Return what `save_checkpoint` writes to ``path``: copies of the arrays (none except on rank 0), and the metadata. ``into``:
    what this returned before and is not needed any more; its memory is used again. Every rank calls it. Raises as
    `save_checkpoint`."""
    state, scaler = executor.state, executor.scaler
    header = Checkpoint(
        state.step, state.seed, repr(executor.rule), executor.graph.name, str(executor.graph.dtype), position, state.skipped,
        *((scaler.scale, scaler.steady) if scaler is not None else ()),
    )
    holdings = [*_weights(executor).values(), *executor.training_state().values()]
    return gather_arrays(executor, path, holdings, into), {_KEY: json_text(asdict(header))}


def _weights(executor: Executor) -> dict[str, ArrayLayout]:
    """Parameters as they are updated, 16-bit ones in float32, and running statistics."""
    return executor.weight_holdings | executor.master_holdings


def load_checkpoint(executor: Executor, path: str | Path) -> Checkpoint:
    """Restore everything that `save_checkpoint` wrote, including step and seed. Every rank calls it.

    Raises, on every rank and before anything is changed, FileNotFoundError, ImportError and ValueError, which names an array
    that is not as it was written. The file must be a checkpoint of this model and update rule. If file or Executor is in
    float64, both must be.
    """
    wanted = executor.weight_holdings | executor.training_state()

    def check() -> tuple[StoredWeights, Checkpoint]:
        stored = read_weights(path)
        header = _header_of(stored)
        _fits(stored, header, wanted, executor)
        stored.verify(wanted)
        return stored, header

    found = on_first_rank(executor.transport, check, send=lambda answer: answer[1])
    stored, header = found if executor.transport.rank == 0 else (None, found)
    for holding in wanted.values():
        put_from(executor, holding, stored)
    executor.state.step, executor.state.seed, executor.state.skipped = header.step, header.seed, header.skipped
    if executor.scaler is not None and header.loss_scale:
        executor.scaler.scale, executor.scaler.steady = header.loss_scale, header.steady
    return header  # type: ignore[no-any-return]


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint's metadata, to plan a run before there is an Executor. Raises as `load_checkpoint` does."""
    return _header_of(read_weights(path))


def same_sums(dtype: str, other: np.dtype[Any]) -> bool:
    """True if training keeps its state in the same type for both float types, so that each can load the other's checkpoints."""
    return dtype == str(other) or (sums_in(other) == np.float32 and dtype in ("float32", "float16", "bfloat16"))


def _header_of(stored: StoredWeights) -> Checkpoint:
    text = stored.metadata.get(_KEY)
    if text is None:
        raise ValueError(f"{stored.source}: not a checkpoint, but weights only; load_weights reads it")
    header = parse_json(text, str(stored.source))
    version = header.get("version") if isinstance(header, dict) else None
    if version not in (_VERSION, _WITHOUT_SUMS):
        raise ValueError(f"{stored.source}: version {version} of checkpoints; this taskflow reads {_WITHOUT_SUMS} and {_VERSION}")
    if version == _VERSION and not stored.sealed:
        raise ValueError(f"{stored.source}: damaged: its checksums are gone; restore the file from a copy, or use an older one")
    found = read_as(Checkpoint, header, str(stored.source))
    if found.skipped > found.step:
        raise ValueError(f"{stored.source}: skipped: must be at most its {found.step} steps, got {found.skipped}")
    return found


def _fits(stored: StoredWeights, header: Checkpoint, wanted: dict[str, ArrayLayout], executor: Executor) -> None:
    wrong = [] if same_sums(header.dtype, executor.graph.dtype) else [f"it is in {header.dtype}"]
    wrong += [f"{name} is missing" for name in wanted if name not in stored]
    wrong += [f"{name} is not part of it" for name in stored if name not in wanted]
    for name, holding in wanted.items():
        if name in stored and tuple(stored.shapes[name]) != holding.spec.shape:
            wrong.append(f"{name} must be {holding.spec.shape}, got {stored.shapes[name]}")
    if wrong:
        more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise ValueError(
            f"{stored.source}: a checkpoint of {header.model} with {header.rule} does not fit {executor.graph.name} "
            f"({executor.graph.dtype}) with {executor.rule!r}: {'; '.join(wrong[:3])}{more}"
        )
