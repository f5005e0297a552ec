"""Messages that are timed: collectives among the local devices, and messages between two of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from taskflow.probe.cases import groups_of, sizes_of
from taskflow.probe.script_jax.clock import taken

AXIS = "devices"


def collectives(count: int) -> dict[str, tuple[Callable[[Any], Any], int]]:
    """Return each operation, and into how many pieces the array is cut that each device is given."""
    found: dict[str, tuple[Callable[[Any], Any], int]] = {
        "all_reduce": (lambda x: jax.lax.psum(x, AXIS), 1),
        "all_gather": (lambda x: jax.lax.all_gather(x, AXIS, tiled=True), count),
        "reduce_scatter": (lambda x: jax.lax.psum_scatter(x, AXIS, tiled=True), 1),
        "all_to_all": (lambda x: jax.lax.all_to_all(x.reshape(count, -1), AXIS, 0, 0), 1),
    }
    if count == 2:
        found["one_way"] = (lambda x: jax.lax.ppermute(jax.lax.ppermute(x, AXIS, [(0, 1)])[:1], AXIS, [(1, 0)]), 1)
        found["both_ways"] = (lambda x: jax.lax.ppermute(x, AXIS, [(0, 1), (1, 0)]), 1)
    return found


def measured(devices: Sequence[Any], gpu: bool, seconds: float, missing: list[str]) -> list[dict[str, Any]]:
    """Return a row for each operation, group and size. ``seconds``: to spend, of all."""
    rows: list[dict[str, Any]] = []
    groups, sizes = groups_of([len(devices)]), sizes_of(gpu)
    each = seconds / max(1, len(groups) * len(sizes) * 6)
    for kind, ranks in groups:
        mesh = Mesh([devices[rank] for rank in ranks], AXIS)
        for what, (call, pieces) in collectives(len(ranks)).items():
            for nbytes in sizes:
                elements = max(1, nbytes // 4 // len(ranks)) * len(ranks) // pieces
                try:
                    took = taken(_on(mesh, call, elements), each, waits=not gpu)  # collectives in flight block each other there
                except Exception as error:  # what a backend does not have is said in many ways
                    missing.append(f"{what}: {str(error).splitlines()[0][:120]}")
                    break
                rows.append({"what": what, "where": kind, "ranks": list(ranks), "bytes": nbytes, "seconds": took.seconds,
                             "spread": took.spread})  # fmt: skip
    return rows


def _on(mesh: Mesh, call: Callable[[Any], Any], elements: int) -> Callable[[], Any]:
    """An operation on arrays of so many numbers on each device."""
    of_devices = PartitionSpec(AXIS)
    given = jax.device_put(jnp.zeros(elements * mesh.size), NamedSharding(mesh, of_devices))
    compiled = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=of_devices, out_specs=of_devices, check_vma=False))
    return lambda: compiled(given)
