"""The compiled twin of kernels/definitions/pointwise.py: its methods have the definition's types."""

from taskflow.kernels.definitions import Array, PointwiseKernels

class NativePointwise(PointwiseKernels): ...

def elementwise(function: str, x: Array, out: Array) -> None: ...
