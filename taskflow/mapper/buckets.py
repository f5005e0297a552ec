"""Buckets: layers whose gradients are summed together, and whose new weights are gathered together.

PyTorch's DistributedDataParallel and Megatron-LM fill buckets in the order in which gradients are made, the last layer's first. A
bucket is closed as soon as it has a certain size (Li et al., "PyTorch distributed: Experiences on accelerating data parallel
training", arXiv 2006.15704, section 3.2.3).
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import groupby

DDP_BUCKET = 25 * 2**20 // 4
"""Elements of DistributedDataParallel's 25 MiB (``bucket_cap_mb``), of float32 gradients."""
MEGATRON_BUCKET, MEGATRON_BUCKET_EACH = 40_000_000, 1_000_000
"""Elements of Megatron-LM's buckets (``--ddp-bucket-size``) at least, and for each replica, so that what travels around long rings
is long enough (its distributed_data_parallel.py)."""
LAYER = "layer"
_SIZE = re.compile(r"([1-9]\d*)([KMG]?)")
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True, slots=True)
class BucketLayer:
    """Layer of weights. ``block``: the layers that are divided only if they are larger than a bucket; ``elements``: on one device;
    ``kind``: equal for layers that may share a bucket; ``size``: of these buckets."""

    name: str
    block: str
    elements: int
    kind: Hashable
    size: int


def divided(layers: Iterable[BucketLayer]) -> list[list[BucketLayer]]:
    """Return the buckets of layers that come in the order in which their gradients are made. A block that is no larger than a
    bucket is not divided; of a larger one each bucket has at least the size. So a bucket ends with a block, or lies within one but
    for smaller blocks before it."""
    found: list[list[BucketLayer]] = []
    now: list[BucketLayer] = []
    held = 0
    for _, run in groupby(layers, key=lambda layer: (layer.kind, layer.block)):
        block = list(run)
        if now and now[0].kind != block[0].kind:
            found.append(now)
            now, held = [], 0
        left, whole = sum(layer.elements for layer in block), block[0].size
        large = left > whole
        for layer in block:
            now.append(layer)
            held, left = held + layer.elements, left - layer.elements
            if held >= whole and (left == 0 or (large and left >= whole)):
                found.append(now)
                now, held = [], 0
    return [*found, now] if now else found


def default_bucket(zero: int, sharers: int) -> int:
    """Return the elements of a bucket in the libraries that have plans of a stage of ZeRO; 0: they have none. ``sharers``: devices
    that hold the same weights."""
    if sharers == 1 or zero > 1:
        return 0
    return max(MEGATRON_BUCKET, MEGATRON_BUCKET_EACH * sharers) if zero else DDP_BUCKET


def parse_bucket(text: str) -> int:
    """Return the elements of ``40M``; 0 for ``layer``. Raises ValueError for anything else."""
    match = _SIZE.fullmatch(text)
    if text != LAYER and match is None:
        raise ValueError(f"plan: bucket must be a number of elements such as 40M, or {LAYER}, got {text!r}")
    return int(match[1]) * _UNITS[match[2]] if match is not None else 0


def bucket_word(elements: int) -> str:
    """Return what `parse_bucket` reads."""
    if not elements:
        return LAYER
    unit = next(unit for unit in reversed(_UNITS) if elements % _UNITS[unit] == 0)
    return f"{elements // _UNITS[unit]}{unit}"
