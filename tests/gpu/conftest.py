import sys
from pathlib import Path

import pytest

for room in (".", "operators", "gpu"):
    sys.path.insert(0, str(Path(__file__).parents[1] / room))

from host_device import compiles, host_kernels  # noqa: E402


@pytest.fixture(params=["host", pytest.param("gpu", marks=pytest.mark.gpu)])
def kernels(request):
    """The GPU's kernel set: compiled for the host, and on a GPU where there is one."""
    if request.param == "host":
        if not compiles():
            pytest.skip("no C++20 compiler: the GPU's kernels cannot be run on the host")
        return host_kernels()
    from taskflow.kernels.gpu import gpu_kernels, gpu_missing

    if missing := gpu_missing():
        pytest.skip(missing)
    return gpu_kernels()
