"""The compiled twin of kernels/definitions/scans.py: its methods have the definition's types."""

from taskflow.kernels.definitions import ScanKernels

class NativeScans(ScanKernels): ...
