"""Training a module by PyTorch, for tests that compare with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")


def losses_of_pytorch(module: Any, arguments: Sequence[Any], labels: Any, steps: int) -> list[float]:
    """Losses of some steps of SGD with momentum on the cross entropy of a module's scores; the module is trained by them."""
    rule = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(steps):
        scores = module(*arguments)
        loss = torch.nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), labels.reshape(-1))
        rule.zero_grad()
        loss.backward()
        rule.step()
        losses.append(loss.item())
    return losses
