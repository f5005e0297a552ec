"""An event after a fault of the GPU raises the fault; it does not look as if it were still to come."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from taskflow.kernels.gpu.events import Moment


class Fault(RuntimeError):
    """As CuPy raises it."""


def moment(status: int) -> Moment:
    def synchronize() -> None:
        if status not in (0, 600):
            raise Fault("cudaErrorIllegalAddress")

    runtime = SimpleNamespace(eventQuery=lambda ptr: {7: status}[ptr])
    return Moment(runtime, SimpleNamespace(ptr=7, synchronize=synchronize))


def test_done_tells_later_from_never() -> None:
    assert moment(0).done and not moment(600).done and moment(0).ptr == 7
    with pytest.raises(Fault, match="IllegalAddress"):
        assert moment(700).done
    with pytest.raises(Fault, match="IllegalAddress"):
        moment(700).synchronize()
