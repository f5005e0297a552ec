"""Networks whose layers are cut, as exported modules have them: what operators on DTensors take beside the same on plain tensors,
and what bringing them into another layout takes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from taskflow.export.pytorch.support import DTensor, LayerPlan, Partial, Replicate, Shard, cut_layers, divided, placed
from taskflow.probe.script.clock import both_ways, busy, taken
from taskflow.probe.script.parts import Between, agreed

DEPTH = 4  # changes of layouts
WIDTH, HEADS = 64, 4  # so narrow that computing takes next to no time


class LayersInARow(nn.Module):
    """The layers of a block of a decoder, in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out, self.gate, self.up, self.down = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(7))

    def forward(self, x: Any) -> Any:
        """Compute nothing of use."""
        for layer in self.children():
            x = layer(x)
        return x


class CutBlock(LayersInARow):
    """A block of a decoder: the same layers, and the functions between them."""

    def forward(self, x: Any) -> Any:
        """Add attention and a gated perceptron to the input."""
        n, s, w = x.shape
        y = self.norm1(x)
        q, k, v = (f(y).view(n, s, HEADS, w // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, s, w))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def computing_between(module: nn.Module, something: Callable[[], None]) -> nn.Module:
    """Let something be computed behind every layer, forward and backward: in a step large operators stand between Python's code,
    which takes several times as long as in a row."""
    def also_backward(_: Any) -> None:
        something()

    def behind(_: nn.Module, __: Any, output: Any) -> None:
        something()
        output.register_hook(also_backward)

    for layer in module.children():
        layer.register_forward_hook(behind)
    return module


def cut_operators(mesh: Any, device: torch.device, seconds: float, missing: list[str]) -> list[dict[str, Any]]:
    """Return what layers and functions take on DTensors that are cut by samples, so that there are no messages, beside the same on
    plain tensors. What the difference is, Python does."""
    rows: list[dict[str, Any]] = []
    pieces, given = (Shard(0),), torch.randn(2, 8, WIDTH, device=device)
    plan = LayerPlan((pieces,), {}, pieces, pieces)
    for name, kind in (("cut_layers", LayersInARow), ("cut_block", CutBlock)):
        plain = kind().to(device)
        cut = copy.deepcopy(plain)
        cut_layers(cut, {path: plan for path, _ in cut.named_children()}, mesh, {})
        found = []
        try:
            for module in (plain, cut):
                computing_between(module, busy(device))
                x = given if module is plain else DTensor.from_local(given, mesh, pieces, run_check=False)
                with divided():
                    found.append(taken(both_ways(module, [x.requires_grad_()], module), 1, device, seconds / 4))
        except (AttributeError, RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            missing.append(f"{name}: {str(error).splitlines()[0][:120]}")
            break
        for phase, alone, it in zip(("forward", "backward"), *found):
            rows.append({
                "what": name, "phase": phase, "bytes": 0, "layers": len(list(plain.children())), "plain_seconds": alone.seconds,
                "seconds": it.seconds, "plain_host_seconds": alone.host_seconds, "host_seconds": it.host_seconds,
            })  # fmt: skip
    return rows


def changes(mesh: Any, device: torch.device, seconds: float, missing: list[str]) -> list[dict[str, Any]]:
    """Return what it takes to bring DTensors into another layout as exported modules do, and their gradients back: what is cut is
    gathered, and a sum is made of which each rank gets a piece (`change_scattered`) or all (`change_summed`). Messages are part of
    it, and what is taken without a change is beside it; by the bytes of the whole."""
    count, whole, cut, added = dist.get_world_size(), Replicate(), Shard(1), Partial()
    between = Between(device)
    rows: list[dict[str, Any]] = []
    sizes = (1 << 18, 1 << 22, 1 << 25) if device.type == "cuda" else (1 << 14, 1 << 18, 1 << 20)
    kinds = (("gathered", cut, whole, added), ("scattered", added, cut, cut), ("summed", added, whole, whole))
    for name, here, there, back in kinds:
        for nbytes in sizes:
            long = max(1, nbytes // (4 * 8 * 64) // count) * count
            shape = (8, long // count if here is cut else long, 64)
            given = [torch.randn(shape, device=device).requires_grad_() for _ in range(DEPTH)]

            def unchanged(*values: Any) -> Any:
                return [DTensor.from_local(between(x), mesh, (whole,), run_check=False).to_local() for x in values]

            def changed(*values: Any, here: Any = here, there: Any = there, back: Any = back) -> Any:
                found = []
                for x in values:
                    piece = DTensor.from_local(between(x), mesh, (here,), run_check=False)
                    found.append(placed(piece, (there,)).to_local(grad_placements=(back,)))
                return found

            each = seconds / 3 / len(sizes) / 2
            plain = taken(both_ways(unchanged, given), DEPTH, device, each)
            try:
                found = taken(both_ways(changed, given), DEPTH, device, each, lambda x: agreed(x, device))
            except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:  # on all ranks alike
                missing.append(f"change_{name}: {str(error).splitlines()[0][:120]}")
                break
            for phase, alone, it in zip(("forward", "backward"), plain, found):
                rows.append({
                    "what": f"change_{name}", "phase": phase, "bytes": 4 * 8 * 64 * long, "plain_seconds": alone.seconds,
                    "seconds": it.seconds, "plain_host_seconds": alone.host_seconds, "host_seconds": it.host_seconds,
                })  # fmt: skip
    return rows
