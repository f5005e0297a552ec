"""Calls functions of PyTorch with pieces of their arguments, in every layout, as code between an exported module's layers does.
Run by torchrun: each rank writes how far results and gradients are off those of whole arguments."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn import functional as F

from taskflow.export.pytorch.support.layers import divided

INDICES = torch.tensor([2, 0, 3, 2])
PLACES = torch.arange(64).reshape(4, 4, 4) % 4


def triangular(x: Any) -> Any:
    """A lower triangle of (..., 4, 4), with ones on its diagonal."""
    return torch.tril(x, -1) + torch.eye(4)


FUNCTIONS: Mapping[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {  # and the shapes of its arguments
    "conv1d, in groups": (lambda x, w: F.conv1d(x, w, padding=3, groups=4)[..., :8], ((2, 4, 8), (4, 1, 4))),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=1), ((2, 4, 8), (6, 4, 3))),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), ((2, 4, 4, 4), (2, 4, 3, 3))),
    "solve_triangular": (
        lambda a, b: torch.linalg.solve_triangular(triangular(a), b, upper=False, unitriangular=True), ((2, 4, 4, 4), (2, 4, 4, 2)),
    ),
    "index_select": (lambda x: torch.index_select(x, 2, INDICES), ((4, 4, 4),)),
    "index_select, of a tensor": (lambda x: x.index_select(1, INDICES), ((4, 4, 4),)),
    "gather": (lambda x: torch.gather(x, 1, PLACES), ((4, 4, 4),)),
    "take_along_dim": (lambda x: torch.take_along_dim(x, PLACES, 2), ((4, 4, 4),)),
    "view of what is turned": (lambda x: torch.tanh(x).transpose(1, 2).contiguous().view(4, 8, 4).transpose(1, 2), ((4, 4, 8),)),
    "view behind filters": (
        lambda x, w: torch.tanh(F.conv1d(x, w, padding=1)).transpose(1, 2).view(2, 8, 2, 2).square(), ((2, 4, 8), (4, 4, 3)),
    ),
}  # fmt: skip


def difference(function: Callable[..., Any], shapes: Any, layouts: Any, weights: Any, mesh: Any) -> float:
    """The largest between results and gradients of pieces, and of whole arguments."""
    whole = [torch.randn(shape, generator=torch.Generator().manual_seed(k)) for k, shape in enumerate(shapes)]
    plain = [value.clone().requires_grad_() for value in whole]
    wanted = function(*plain)
    factors = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(7))
    (wanted * factors).sum().backward()
    given = [distribute_tensor(value, mesh, (lies,)).requires_grad_() for value, lies in zip(whole, layouts)]
    with divided():
        found = function(*given)
        (found * distribute_tensor(factors, mesh, (weights if weights.dim < found.ndim else Replicate(),))).sum().backward()
    both = [(found, wanted), *((one.grad, other.grad) for one, other in zip(given, plain))]
    return max(float((a.full_tensor() - b).abs().max()) for a, b in both if isinstance(a, DTensor))


def main(folder: str) -> None:
    """Try every function in every layout of its arguments, and of the gradient of its result."""
    dist.init_process_group("gloo")
    mesh, off = init_device_mesh("cpu", (2,)), dict[str, float]()
    for name, (function, shapes) in FUNCTIONS.items():
        ways = [[Replicate(), *map(Shard, range(len(shape) if k == 0 or "solve" in name else 0))] for k, shape in enumerate(shapes)]
        for *layouts, weights in itertools.product(*ways, [Shard(0), Shard(1), Shard(2)]):
            case = f"{name} {layouts} {weights}"
            try:
                off[case] = difference(function, shapes, layouts, weights, mesh)
            except Exception as error:
                off[f"{case}: {error}"] = 1.0
    Path(folder, f"rank{dist.get_rank()}.json").write_text(json.dumps(off))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
