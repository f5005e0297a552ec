"""Blocks of a vocabulary: how the loss of networks that predict words divides it, so that the loss can be cut."""

from __future__ import annotations

BLOCKS = 64
"""Of a large vocabulary: a layer of scores can be cut by classes over so many processors and keep its scores where they are.
64 divides evenly over 2, 4, ... 64; and what 64 blocks say of a word, a kilobyte, is little beside its scores."""

LEAST = 4
"""Classes of a block of a small vocabulary: what a block says of itself is two numbers."""


def blocks_of(vocabulary: int) -> int:
    """Return the number of blocks into which the loss divides a vocabulary (`taskflow.cross_entropy`). It depends on the
    network alone, so that losses do not depend on how it is cut."""
    return max(1, min(BLOCKS, vocabulary // LEAST))
