"""Partitions: how a region is cut into pieces."""

from taskflow.partition.grid import Grid, Tile, Weighted, even_cuts, weighted_cuts
from taskflow.partition.partition import Color, Partition, overlaps
from taskflow.partition.views import Image, Replicate

__all__ = [
    "Color",
    "Grid",
    "Image",
    "Partition",
    "Replicate",
    "Tile",
    "Weighted",
    "even_cuts",
    "overlaps",
    "weighted_cuts",
]
