"""Arithmetic on arrays, under the operators: numpy, compiled loops, oneDNN, GPUs.

``KernelSet`` is the interface; ``definitions/`` has what each kernel does, in numpy. Imports nothing of taskflow's other
packages.
"""

from taskflow.kernels.build import REBUILD
from taskflow.kernels.choose import busy, default_kernels, kernels_on, native_built, onednn_missing
from taskflow.kernels.device import HOST, ArrayDevice, DeviceMissing, NotRecorded, Recorder
from taskflow.kernels.kernel_set import KERNELS, Array, KernelSet, Key, NumpyKernels
