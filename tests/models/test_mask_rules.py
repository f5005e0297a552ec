"""Fixed masks as rules: chunks, ALiBi, causal masks before a softmax, and recipes that are reshaped on the way, at any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskflow
from taskflow.operators.constant import ConstantArray

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
from taskflow.models.pytorch import from_torch  # noqa: E402
from taskflow.models.pytorch.attention_masks import causal_bias, chunk_of  # noqa: E402
from taskflow.models.pytorch.recipes import block, derived, varies, whole  # noqa: E402
from taskflow.models.pytorch.steps import Fixed  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
LONG = 16_384
AT = torch.arange(12)
CHUNKS = (AT[:, None] >= AT) & (AT[:, None] // 4 == AT // 4)
SLOPES = torch.tensor([0.5, 0.3])[:, None, None]
LATER = torch.full((12, 12), -torch.inf).triu(1)


@pytest.mark.parametrize("mask, size", [
    (CHUNKS, 4), ((AT[:, None] >= AT) & (AT[:, None] // 5 == AT // 5), None), (CHUNKS | CHUNKS.T, None), (CHUNKS.roll(1, 0), None),
    (torch.where(CHUNKS, 0.0, -torch.inf), 4), (torch.where(CHUNKS, 0.5, -torch.inf), None),
])
def test_chunks_of_masks(mask: Any, size: int | None) -> None:
    assert chunk_of(Fixed(mask, 0), 12, 12) == size


@pytest.mark.parametrize("mask, fits", [
    (SLOPES * AT + LATER, True), (SLOPES * (AT - AT[:, None]) + LATER, True),
    ((SLOPES * AT + LATER)[None].expand(3, -1, -1, -1), True),
    (SLOPES * (AT - AT[:, None]).abs() + LATER.T, False), (SLOPES * AT * AT[:, None] + LATER, False),
    (SLOPES * AT + LATER.roll(1, 1), False), (SLOPES * AT + torch.zeros(12, 12), False),
    ((SLOPES * AT + LATER).to(torch.bfloat16), True),
])
def test_a_bias_of_keys_behind_a_causal_mask(mask: Any, fits: bool) -> None:
    """What is found gives the same weights under a causal softmax as the mask itself."""
    found = causal_bias(Fixed(mask, 0), 12, 12)
    assert (found is not None) == fits
    if found is not None:
        assert found.tensor.shape[-2:] == (1, 12)
        scores = torch.randn(2, 12, 12, generator=torch.Generator().manual_seed(0))
        ours = (scores + found.tensor.float().reshape(2, 1, 12) + LATER).softmax(-1)
        torch.testing.assert_close(ours, (scores + mask.reshape(-1, 12, 12)[:2].float()).softmax(-1))


class ALiBi(torch.nn.Module):
    """Attention with slopes: by hand with a mask that fills, by hand with one that is added, or by PyTorch's function."""

    def __init__(self, way: str, heads: int = 2) -> None:
        super().__init__()
        self.qkv, self.way, self.heads = torch.nn.Linear(8, 24), way, heads

    def forward(self, x: Any) -> Any:
        n, steps, _ = x.shape
        q, k, v = (part.view(n, steps, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        at = torch.arange(steps)
        slopes = 2.0 ** -torch.arange(1, self.heads + 1)
        later = (at[None, :] > at[:, None])[None, None].expand(n, 1, -1, -1)
        bias = (slopes[:, None] * at)[None].expand(n, -1, -1)
        if self.way == "filled":
            scores = (q @ k.transpose(2, 3) + bias[:, :, None]).masked_fill(later, torch.finfo(x.dtype).min)
            return (scores.float().softmax(-1).to(x.dtype) @ v).transpose(1, 2).reshape(n, steps, -1)
        merged = bias.reshape(n * self.heads, 1, steps).to(x.dtype).reshape(n, self.heads, 1, steps)
        mask = merged.masked_fill(later, -torch.inf)
        if self.way == "added":
            return ((q @ k.transpose(2, 3) + mask).softmax(-1) @ v).transpose(1, 2).reshape(n, steps, -1)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return y.transpose(1, 2).reshape(n, steps, -1)


@pytest.mark.parametrize("way", ["filled", "added", "sdpa"])
def test_masks_of_hundreds_of_millions_of_numbers_are_rules(way: str) -> None:
    """What is kept are numbers for each head and key; at a small size the same operators compute what PyTorch computes."""
    graphs = [from_torch(ALiBi(way).float(), (4, steps, 8), loss=None, verify=steps == 12) for steps in (12, LONG)]
    assert [n.operator.kind for n in graphs[0]] == [n.operator.kind for n in graphs[1]]
    (table,) = (node.operator for node in graphs[1] if isinstance(node.operator, ConstantArray))
    assert table.shape == (1, 2, 1, LONG)
    (softmax,) = (node.operator for node in graphs[1] if node.operator.kind == "softmax")
    assert softmax.causal
    np.testing.assert_array_equal(np.asarray(table.values).reshape(2, LONG)[:, 5], [2.5, 1.25])


def test_a_mask_that_fills_without_a_rule_is_computed_part_by_part() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            at = torch.arange(x.shape[1])
            y = self.a(x)
            hidden = ((at[:, None] * 7 + at) % 3 == 0)[None].expand(x.shape[0], -1, -1)
            return (y @ y.transpose(1, 2)).masked_fill(hidden, -1e9).softmax(-1) @ x

    graph = from_torch(Net(), (3, LONG, 2), loss=None, verify=False)
    tables = [node.operator for node in graph if isinstance(node.operator, ConstantArray)]
    mask = next(table for table in tables if table.shape != (1,))
    assert [table.shape for table in tables if table is not mask] == [(1,)] and mask.shape == (1, LONG, LONG)
    part = mask.values[slice(0, 1), slice(LONG - 3, LONG), slice(0, 4)]
    rows = np.arange(LONG - 3, LONG)[:, None]
    np.testing.assert_array_equal(part[0], (rows * 7 + np.arange(4)) % 3 == 0)
    from_torch(Net(), (3, 9, 2), loss=None)  # which is verified


def test_recipes_see_through_reshapes() -> None:
    """(N, H, T) as (N H, 1, T), converted, as (N, H, 1, T): which dimensions repeat themselves, and parts of it."""
    table = (torch.tensor([[0.5], [0.25], [2.0]]) * torch.arange(5.0))[None].expand(4, -1, -1).clone()
    merged = derived(torch.Tensor.reshape, table, 12, 1, 5)
    shaped = derived(torch.Tensor.reshape, derived(torch.Tensor.to, merged, torch.float64), 4, 3, 1, 5)
    assert [varies(shaped, dim) for dim in (-4, -3, -2, -1)] == [False, True, False, True]
    spans = [(1, 3), (1, 3), (0, 1), (2, 5)]
    torch.testing.assert_close(block(shaped, spans), table.double().reshape(4, 3, 1, 5)[1:3, 1:3, :, 2:5], rtol=0, atol=0)
    torch.testing.assert_close(whole(shaped), table.double().reshape(4, 3, 1, 5), rtol=0, atol=0)


def test_recipes_see_through_running_sums_and_picked_elements() -> None:
    """The mask of sequences that are packed into a sample: whether as many breaks lie before a query as before a key."""
    breaks = torch.tensor([0, 0, 1, 0, 1, 0]).expand(4, 6)
    apart = torch.tensor([[0, 1, 0], [2, 0, 1]])
    samples, places = torch.arange(4)[:, None, None], torch.arange(6)[None, :, None]
    for table, alike in ((breaks, True), (breaks * torch.arange(4)[:, None], False)):
        sums = derived(torch.Tensor.cumsum, table, -1)
        picked = derived(torch.Tensor.__getitem__, sums, (samples, places))
        assert [varies(sums, dim) for dim in (-2, -1)] == [not alike, True]
        assert [varies(picked, dim) for dim in (-3, -2, -1)] == [not alike, True, False]
        torch.testing.assert_close(block(sums, [(1, 3), (2, 5)]), table.cumsum(-1)[1:3, 2:5])
        torch.testing.assert_close(block(picked, [(1, 3), (2, 5), (0, 1)]), table.cumsum(-1)[1:3, 2:5, None])
    places = torch.tensor([[1, 0, 1]]), torch.tensor([[2], [0]])
    again = derived(torch.Tensor.__getitem__, derived(torch.Tensor.cumsum, apart, 0), places)
    torch.testing.assert_close(block(again, [(1, 2), (0, 3)]), apart.cumsum(0)[places][1:2])


def test_a_causal_softmax_trains_as_pytorch_does_in_pieces() -> None:
    module = ALiBi("filled")
    graph = from_torch(module, (4, 12, 8), loss="mse_loss", verify=False)
    rows = np.random.default_rng(0).standard_normal((2, 4, 12, 8)).astype(np.float32)
    losses = []
    for plan in ("d1", "d2 mb1"):
        run = taskflow.Executor(graph, taskflow.choose(plan, graph, taskflow.host(int(plan[1])))[0], taskflow.SGD(lr=0.1))
        losses.append([run.train({"x": rows[0], "targets": rows[1]}) for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and losses[0][2] < losses[0][0]
