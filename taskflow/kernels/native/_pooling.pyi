"""The compiled twin of kernels/definitions/pooling.py: its methods have the definition's types."""

from taskflow.kernels.definitions import PoolingKernels

class NativePooling(PoolingKernels): ...
