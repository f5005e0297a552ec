"""NumpyKernels: the readable reference, which is every kernel's definition.

The groups of ``definitions/`` name their compiled twins, and the tests that hold each equal. oneDNN's kernels define nothing
themselves: onednn/_onednn.pyx and this are held equal by tests/kernels/test_onednn_kernels.py.
"""

from __future__ import annotations

from taskflow.kernels.kernel_set import KernelSet


class NumpyKernels(KernelSet):
    """Plain numpy; works wherever numpy does."""

    __slots__ = ()
    name = "numpy"
