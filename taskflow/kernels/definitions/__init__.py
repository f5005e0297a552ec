"""Definitions of all kernels, by groups: each is stated in a docstring and defined in numpy under it.

Every kernel set inherits these and replaces some by faster ones. Every array is C-contiguous unless a docstring says otherwise.
A kernel fills ``out``; with ``accumulate`` it adds to it.
"""

from taskflow.kernels.definitions.arrays import Array, Key, Padding, Pair, Split, put
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
from taskflow.kernels.definitions.scans import ScanKernels
from taskflow.kernels.definitions.updates import UpdateKernels
