"""Batch normalisation over replicas: one message each way, and the numbers of one device that has all samples."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from taskflow.export.pytorch.support import statistics  # noqa: E402


class Ranks:
    """Stands for torch.distributed on one of several ranks whose messages are known: those of a run of the ranks in turn."""

    def __init__(self, size: int) -> None:
        self.size, self.rank, self.calls, self.said = size, 0, 0, dict[tuple[int, int], Any]()

    def get_world_size(self, group: Any) -> int:
        return self.size

    def gather(self, every: Any, own: Any, group: Any) -> None:
        self.said[self.rank, self.calls] = own.clone()
        every.copy_(torch.cat([self.said.get((rank, self.calls), torch.zeros_like(own)) for rank in range(self.size)]))
        self.calls += 1

    def all_reduce(self, value: Any, group: Any) -> None:
        self.said[self.rank, self.calls] = value.clone()
        value.copy_(sum(self.said.get((rank, self.calls), torch.zeros_like(value)) for rank in range(self.size)))
        self.calls += 1


def run(ranks: Ranks, parts: list[Any], samples: list[Any], wanted: list[Any]) -> list[tuple[Any, ...]]:
    found = []
    for rank, (part, x, w) in enumerate(zip(parts, samples, wanted)):
        ranks.rank, ranks.calls = rank, 0
        x = x.clone().requires_grad_()
        y = statistics.SharedStatistics(part, None)(x)
        part.zero_grad()
        y.backward(w)
        found.append((y.detach(), x.grad, part.weight.grad.clone(), part.bias.grad.clone()))
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_replicas_normalise_as_one_device_does(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, w = (torch.randn(2 * ranks, 5, 3, 4, dtype=torch.float64) * 3 + 100 * add for add in (1, 0))
    whole = torch.nn.BatchNorm2d(5, dtype=torch.float64)
    torch.nn.init.normal_(whole.weight)
    parts = [torch.nn.BatchNorm2d(5, dtype=torch.float64) for _ in range(ranks)]
    for part in parts:
        part.load_state_dict(whole.state_dict())
    of_all = x.clone().requires_grad_()
    y = whole(of_all)
    y.backward(w)
    fake = Ranks(ranks)
    monkeypatch.setattr(statistics, "dist", fake)
    monkeypatch.setattr(statistics, "gather", fake.gather)
    for _ in range(3):  # until all have what the others say: forward, then backward
        for part in parts:
            part.reset_running_stats()
        found = run(fake, parts, list(x.chunk(ranks)), list(w.chunk(ranks)))
    assert fake.calls == 2, "one message forward and one back"
    torch.testing.assert_close(torch.cat([part[0] for part in found]), y.detach())
    torch.testing.assert_close(torch.cat([part[1] for part in found]), of_all.grad)
    torch.testing.assert_close(sum(part[2] for part in found), whole.weight.grad)
    torch.testing.assert_close(sum(part[3] for part in found), whole.bias.grad)
    for part in parts:
        torch.testing.assert_close(part.running_mean, whole.running_mean)
        torch.testing.assert_close(part.running_var, whole.running_var)
