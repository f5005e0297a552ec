"""The compiled twin of kernels/definitions/updates.py: its methods have the definition's types."""

from taskflow.kernels.definitions import UpdateKernels

class NativeUpdates(UpdateKernels): ...
