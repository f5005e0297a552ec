"""Checkpoints of an exported module, by torch.distributed.checkpoint: saved under one plan, read under any other."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from taskflow.export.pytorch.support.parallel import Parallel

_METADATA = ".metadata"  # what DCP writes last


def save(model: Parallel, optimizer: torch.optim.Optimizer, folder: str | Path, steps: int, keep: int = 2) -> None:
    """Write weights, buffers and the optimizer's state after ``steps`` steps to ``folder``/stepN, and remove all but the last
    ``keep`` there. Every rank calls it; all must see one folder. Learning rates are yours to set."""
    folder = Path(folder)
    if dist.get_rank() == 0:
        _remove(folder / f"step{steps}")  # of a run that failed in it, maybe with files of more ranks
    dist.barrier()
    dcp.save(_tensors(model, optimizer), checkpoint_id=folder / f"step{steps}")
    dist.barrier()
    if dist.get_rank() == 0:
        last = _complete(folder)[-keep:]
        for old in folder.glob("step*"):
            if old not in last:
                _remove(old)


def resume(model: Parallel, optimizer: torch.optim.Optimizer, folder: str | Path) -> int:
    """Load the newest complete checkpoint of ``folder``, which may be of another number of ranks, and return its steps; 0 if there
    is none. Every rank calls it before the first step."""
    found: list[Any] = [_complete(Path(folder))[-1:]]
    dist.broadcast_object_list(found)
    if not found[0]:
        return 0
    _make_state(optimizer)
    dcp.load(_tensors(model, optimizer), checkpoint_id=found[0][0])
    return _steps(found[0][0])


def _remove(path: Path) -> None:
    """Remove a checkpoint: first what makes it complete, so that none of which a part is gone is taken for one."""
    (path / _METADATA).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def _complete(folder: Path) -> list[Path]:
    return sorted((path.parent for path in folder.glob(f"step*/{_METADATA}")), key=_steps)


def _steps(path: Path) -> int:
    return int(path.name.removeprefix("step"))


def _tensors(model: Parallel, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """This rank's pieces by name, as they lie in memory: loading fills them."""
    found = {f"model.{name}": value for part in model.parts for name, value in part.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                found[f"optimizer.{name}.{key}"] = value
    return found


def _make_state(optimizer: torch.optim.Optimizer) -> None:
    """Let a new optimizer make its arrays: by a step of no length, which the checkpoint then overwrites."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, rate in zip(optimizer.param_groups, rates):
        group["lr"] = rate
