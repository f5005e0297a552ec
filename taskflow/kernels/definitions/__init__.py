"""What every kernel does, by groups: each stated in a docstring and defined in numpy under it.

A kernel set has these until it brings faster ones of its own. Every array is C-contiguous unless a docstring says otherwise.
``out`` is filled; with ``accumulate`` it is added to.
"""

from taskflow.kernels.definitions.arrays import Array, Key, Padding, Pair, Split
from taskflow.kernels.definitions.busy import busy
from taskflow.kernels.definitions.channels import ChannelKernels
from taskflow.kernels.definitions.convolutions import ConvolutionKernels
from taskflow.kernels.definitions.losses import LossKernels
from taskflow.kernels.definitions.parts import PartKernels
from taskflow.kernels.definitions.pointwise import PointwiseKernels
from taskflow.kernels.definitions.pooling import PoolingKernels
from taskflow.kernels.definitions.products import ProductKernels
from taskflow.kernels.definitions.random import RandomKernels
from taskflow.kernels.definitions.rows import RowKernels
from taskflow.kernels.definitions.updates import UpdateKernels

__all__ = [
    "Array",
    "ChannelKernels",
    "ConvolutionKernels",
    "Key",
    "LossKernels",
    "Padding",
    "Pair",
    "PartKernels",
    "PointwiseKernels",
    "PoolingKernels",
    "ProductKernels",
    "RandomKernels",
    "RowKernels",
    "Split",
    "UpdateKernels",
    "busy",
]
