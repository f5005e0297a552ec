"""NumpyKernels: the readable reference, which uses every kernel's definition.

The groups of ``definitions/`` name their compiled twins and the tests that hold each pair equal. oneDNN's kernels
(onednn/_onednn.pyx) have no definitions of their own; tests/kernels/test_onednn_kernels.py holds them equal to these.
"""

from __future__ import annotations

from taskflow.kernels.kernel_set import KernelSet


class NumpyKernels(KernelSet):
    """Kernels in plain numpy; work wherever numpy does."""

    __slots__ = ()
    name = "numpy"
