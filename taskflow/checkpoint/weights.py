"""Weights in files: writes safetensors, reads safetensors and PyTorch's state_dicts. Names and shapes do not depend on the
strategy.

A name is the layer's name followed by PyTorch's name for the parameter, such as ``conv1.weight``, ``encoder.lstm0.weight_ih``
or ``bn1.running_mean``. The arrays are whole, so that a file written by 4 ranks under one strategy is read by 2 under another.
An LSTM's arrays have an extra first dimension for the four gates: (4, hidden, features).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from taskflow.checkpoint.safetensors_file import need_safetensors, read_safetensors, write_safetensors
from taskflow.checkpoint.stored import Array, StoredWeights
from taskflow.floats import sums_in
from taskflow.runtime import Executor
from taskflow.runtime.transport import Transport
from taskflow.runtime.weights import TRAINING, ArrayLayout
from taskflow.writing import unwritable

Rename = Callable[["StoredWeights"], "StoredWeights"]


def save_weights(executor: Executor, path: str | Path, *, metadata: Mapping[str, str] | None = None) -> None:
    """Write parameters and running statistics to a safetensors file. Every rank calls it, and rank 0 writes the file. An
    existing file is replaced only when the new one is complete.

    ``metadata``: texts to keep in the file. Raises, on every rank, ImportError without safetensors and OSError.
    """
    executor.renew()
    arrays = gather_arrays(executor, Path(path), executor.weight_holdings.values())
    on_first_rank(executor.transport, lambda: write_safetensors(path, arrays, metadata or {}))


def load_weights(
    executor: Executor, path: str | Path | StoredWeights, *, strict: bool = True, rename: Rename | None = None
) -> tuple[str, ...]:
    """Set parameters and running statistics from a file or from arrays. Every rank calls it; rank 0 alone reads the file, one
    array at a time.

    The file is safetensors (also a checkpoint) or a state_dict that torch.save wrote (``.pth``, ``.pt``, ``.bin``; needs
    torch). Arrays are what `taskflow.models.pytorch.weights_of` returns for a module, for example. ``rename`` maps the file's
    names to ours, such as `taskflow.models.torchvision_weights.of`. Other float types are converted. Returns the names that
    were set. Raises, on every rank and before anything is changed, FileNotFoundError, ImportError, and ValueError that names
    arrays of another shape, one whose checksum is not the file's and, if ``strict``, those that are missing or unexpected.
    """

    def check() -> tuple[StoredWeights, list[str]]:
        file = path if isinstance(path, StoredWeights) else read_weights(path)
        stored = file if rename is None else rename(file)
        names = _fitting(stored, executor.weight_holdings, strict, executor.graph.name)
        file.verify(name for name in file if not name.startswith(TRAINING))
        return stored, names

    found = on_first_rank(executor.transport, check, send=lambda answer: answer[1])
    stored, names = found if executor.transport.rank == 0 else (None, found)
    for name in names:
        put_from(executor, executor.weight_holdings[name], stored)
    return tuple(names)


def read_weights(path: str | Path) -> StoredWeights:
    """Return the arrays of a safetensors file or of a PyTorch state_dict, by name. Raises FileNotFoundError, ImportError, and
    ValueError for a file that is neither."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"weights file {path} {'is a folder' if path.is_dir() else 'does not exist'}")
    return _read_torch(path) if path.suffix in (".pth", ".pt", ".bin") else read_safetensors(path)


def gather_arrays(
    executor: Executor, path: Path, holdings: Iterable[ArrayLayout], into: Mapping[str, Array] = MappingProxyType({})
) -> dict[str, Array]:
    """Return copies of whole arrays on rank 0, and nothing elsewhere, in the memory of ``into`` where they fit. Raises, on every
    rank and before that, OSError and ImportError if a safetensors file ``path`` cannot be written."""

    def ready() -> None:
        need_safetensors()
        if (problem := unwritable(path)) is not None:
            kind = OSError if path.absolute().parent.is_dir() else FileNotFoundError
            raise kind(f"cannot write {path}: {problem}")

    on_first_rank(executor.transport, ready)
    return {name: _kept(name, value) for name, value in executor.gather(holdings, into) if value is not None}


def _kept(name: str, value: Array) -> Array:
    """An array as a file has it: 16-bit ones of training's own (carried state) in float32, which every precision reads."""
    return value.astype(sums_in(value.dtype), copy=False) if name.startswith(TRAINING) else value


def put_from(executor: Executor, holding: ArrayLayout, stored: Mapping[str, Array] | None) -> None:
    """Send an array of ``stored``, which only rank 0 has, to all ranks; each keeps its own parts of it."""

    def read() -> Array:
        assert stored is not None
        return np.ascontiguousarray(stored[holding.name], sums_in(holding.spec.dtype))  # 16-bit ones are rounded where they are put

    value = on_first_rank(executor.transport, read)
    executor.put(holding, value.reshape(holding.spec.shape))


def on_first_rank(
    transport: Transport, act: Callable[[], Any], send: Callable[[Any], Any] = lambda answer: answer
) -> Any:
    """Return what ``act`` returns on rank 0, and on the other ranks what ``send`` makes of that. An error is raised on every
    rank."""
    answer: Any = None
    message: tuple[bool, Any] = (True, None)
    if transport.rank == 0:
        try:
            answer = act()
            message = (True, None if transport.size == 1 else send(answer))
        except (ValueError, OSError, ImportError) as error:
            if transport.size == 1:
                raise
            message = (False, error)
    good, value = transport.broadcast(message)
    if not good:
        raise value
    return answer if transport.rank == 0 else value


def _fitting(stored: StoredWeights, holdings: Mapping[str, ArrayLayout], strict: bool, model: str) -> list[str]:
    """The names to set; ValueError says what does not fit."""
    given = {name: shape for name, shape in stored.shapes.items() if not name.startswith(TRAINING)}
    wrong = [
        f"{name} must be {holdings[name].spec.shape}, got {shape}"
        for name, shape in given.items() if name in holdings and tuple(shape) != holdings[name].spec.shape
    ]
    if strict:
        wrong += [f"{name} is missing" for name in holdings if name not in given]
        wrong += [f"{name} is not a weight of the model" for name in given if name not in holdings]
    if wrong:
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise ValueError(f"{stored.source} does not fit {model}: {'; '.join(wrong[:5])}{more}")
    return [name for name in holdings if name in given]


def _read_torch(path: Path) -> StoredWeights:
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"{path}: reading PyTorch's format needs torch: pip install torch; or save it as .safetensors there"
        ) from error
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds, all for files that are not what they should be
        raise ValueError(f"{path}: torch cannot read it: {str(error).splitlines()[0]}") from error
    if not isinstance(content, Mapping) or not all(isinstance(v, torch.Tensor) for v in content.values()):
        raise ValueError(f"{path}: must hold a state_dict (names and tensors), got {type(content).__name__}")

    def read(name: str) -> Array:
        tensor = content[name].detach()
        known = tensor.float() if tensor.dtype == torch.bfloat16 else tensor  # numpy has no bfloat16
        return np.asarray(known.numpy())

    return StoredWeights(str(path), {name: tuple(tensor.shape) for name, tensor in content.items()}, read)
