"""torchvision, where it is installed, also beside a torch that its compiled part is not built for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest


@pytest.fixture(scope="session")
def torchvision() -> Iterator[Any]:
    """torchvision without its compiled part, which may be built for another torch; the networks do not need it."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
    # These names must be known before the import; the object must live as long as the names. Where the compiled part is
    # there, they are taken.
    library = torch.library.Library("torchvision", "DEF")
    with suppress(RuntimeError):
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    yield pytest.importorskip("torchvision", reason="torchvision is not installed: pip install torchvision")
    del library
