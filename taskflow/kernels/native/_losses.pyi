"""The compiled twin of kernels/definitions/losses.py: its methods have the definition's types."""

from taskflow.kernels.definitions import LossKernels

class NativeLosses(LossKernels): ...
