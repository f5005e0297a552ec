"""Brings random DTensors from one layout into another, and their gradients back, beside DTensor's own way. Run by torchrun."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from taskflow.export.pytorch.support import exchange

CASES = 60


def placement(random: Random, ndim: int) -> Placement:
    """A placement along a dimension of a mesh."""
    return random.choice([Replicate(), Partial(), *map(Shard, range(ndim))])


def compared(random: Random, mesh: Any, seed: int) -> bool:
    """Bring a tensor into another layout in both ways; whether values and gradients are equal on this rank."""
    sizes = [random.choice([4, 8, 6, 5]) for _ in range(random.choice([2, 3]))]
    here = tuple(placement(random, len(sizes)) for _ in range(mesh.ndim))
    there = tuple(
        p if random.random() < 0.4 else random.choice([Replicate(), *map(Shard, range(len(sizes)))]) for p in here
    )
    whole = torch.randn(sizes, generator=torch.Generator().manual_seed(seed))
    lies = tuple(Replicate() if isinstance(p, Partial) else p for p in here)
    local = distribute_tensor(whole, mesh, lies).to_local()
    back = tuple(Partial() if isinstance(p, Replicate) and random.random() < 0.5 else p for p in there)
    found = []
    for bring in (exchange.placed, lambda value, placements: value.redistribute(placements=placements)):
        given = local.clone().requires_grad_()
        value = DTensor.from_local(given, mesh, here, run_check=False, shape=whole.shape, stride=whole.stride())
        made = bring(value, there).to_local(grad_placements=back)
        weights = torch.randn(made.shape, generator=torch.Generator().manual_seed(seed + dist.get_rank()))
        (made * weights).sum().backward()
        found.append((made.detach(), given.grad))
    return all(torch.allclose(one, other, atol=1e-5) for one, other in zip(*found))


def says_how_it_lies(mesh: Any) -> bool:
    """Bring a transposed tensor into other layouts: whether each result lies in memory as it says, so that views of it can be."""
    value = DTensor.from_local(torch.randn(4, 2, 8), mesh, (Shard(2),), run_check=False).transpose(0, 1)
    made = [exchange.placed(value, (there,)) for there in (Replicate(), Shard(1))]
    return all(one.stride() == torch.empty(one.shape).stride() and one.to_local().is_contiguous() for one in made)


def brought_at_once(random: Random, mesh: Any) -> bool:
    """Bring sums of different sizes and types, and other layouts, at once: whether each is as by itself, with a sum a message of a
    type, dimension of the mesh and 100 bytes."""
    values, layouts, sent = [], [], []
    for number in range(12):
        here = [Replicate() for _ in range(mesh.ndim)]
        here[number % mesh.ndim] = Partial() if number % 4 else Shard(0)
        whole = torch.randint(-9, 10, (random.choice([2, 4]), random.choice([2, 3])))  # sums are exact in any order
        local = whole.to((torch.float32, torch.float64)[number % 3 == 0])
        values.append(DTensor.from_local(local.T.contiguous().T, mesh, tuple(here), run_check=False))
        layouts.append((Replicate(),) * mesh.ndim)
    all_reduce, exchange.SLAB = dist.all_reduce, 100
    exchange.dist.all_reduce = lambda flat, group: (sent.append(flat.nbytes), all_reduce(flat, group=group))
    found = list(exchange.brought_together(values, layouts))
    exchange.dist.all_reduce, exchange.SLAB = all_reduce, 1 << 27
    wanted = [value.redistribute(placements=placements) for value, placements in zip(values, layouts)]
    right = all(torch.equal(one.to_local(), other.to_local()) and one.placements == other.placements
                and one.shape == other.shape for one, other in zip(found, wanted))  # fmt: skip
    return right and len(sent) < sum(any(isinstance(p, Partial) for p in value.placements) for value in values)


def main(folder: str) -> None:
    """Compare on a mesh of one dimension, and of two."""
    dist.init_process_group("gloo")
    ranks, random, right, plain = dist.get_world_size(), Random(5), [], 0
    by_one_message = exchange._by_one_message

    def counted(*args: Any) -> Any:
        nonlocal plain
        made = by_one_message(*args)
        plain += made is not None
        return made

    exchange._by_one_message = counted
    for mesh in (init_device_mesh("cpu", (ranks,)), init_device_mesh("cpu", (2, ranks // 2))):
        right += [compared(random, mesh, seed) for seed in range(CASES)]
        right.append(brought_at_once(random, mesh))
    right.append(says_how_it_lies(init_device_mesh("cpu", (ranks,))))
    Path(folder, f"rank{dist.get_rank()}.json").write_text(json.dumps({"right": right, "by_one_message": plain}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
