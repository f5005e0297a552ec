"""Seconds of training steps on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

Step = Callable[[], Any]


def step_of(model: Any, optimizer: Any, loss: Any, inputs: Sequence[Any], target: Any) -> Step:
    """Return a training step of an exported module, with its update. Nothing in it waits for the loss."""

    def step() -> None:
        optimizer.zero_grad()
        model.gradients(loss, inputs, target)
        optimizer.step()

    return step


def timed_steps(step: Step, count: int, device: torch.device) -> list[float]:
    """Return the seconds of each of ``count`` steps until the slowest rank is done, the same on all ranks. On a GPU steps follow
    each other as in training, and the host runs ahead; elsewhere the ranks begin each step together."""
    own = _between_events(step, count, device) if device.type == "cuda" else [_alone(step) for _ in range(count)]
    slowest = torch.tensor(own, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return [float(seconds) for seconds in slowest]


def _alone(step: Step) -> float:
    dist.barrier()
    began = perf_counter()
    step()
    return perf_counter() - began


def _between_events(step: Step, count: int, device: torch.device) -> list[float]:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    dist.barrier()
    torch.cuda.synchronize(device)
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize(device)
    return [before.elapsed_time(after) / 1e3 for before, after in zip(events, events[1:])]
