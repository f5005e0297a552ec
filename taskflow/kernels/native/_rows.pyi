"""The compiled twin of kernels/definitions/rows.py: its methods have the definition's types."""

from taskflow.kernels.definitions import RowKernels

class NativeRows(RowKernels): ...
