"""Parts of a training program that are timed whole: updates, units of FSDP2, operators on DTensors, products beside collectives."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from taskflow.export.pytorch.support import placed
from taskflow.probe.script.clock import busy, taken

DEPTH = 4  # layers that make up a small network
UNITS = 8  # of a network whose layers are units
COUNT = 8  # parameters of an update
ROWS, ROWS_GPU = 512, 32
"""Of what units are given. Messages and computing share the cores of a CPU, so that they are timed in turn as in a step; of a GPU
the host is timed, which does not wait for it."""


def updates(device: torch.device) -> list[tuple[str, Callable[[Any], Any]]]:
    """Return the updates that are timed, and what makes each from parameters."""
    found = [
        ("sgd", lambda p: torch.optim.SGD(p, lr=1e-4)), ("momentum", lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9)),
        ("adam", lambda p: torch.optim.Adam(p, lr=1e-4)), ("adam_fused", lambda p: torch.optim.Adam(p, lr=1e-4, fused=True)),
    ]
    return found if device.type == "cuda" else found[1:]


def placed_parameters(elements: int, mesh: Any, device: torch.device) -> list[nn.Parameter]:
    """Return parameters with gradients; on a mesh, as FSDP2 has them."""
    found = []
    for _ in range(COUNT):
        value, grad = torch.randn(max(8, elements // 64), 64, device=device), torch.randn(max(8, elements // 64), 64, device=device)
        if mesh is not None:
            tensor = distributed_tensors()
            value, grad = (tensor.DTensor.from_local(x, mesh, (tensor.Replicate(),), run_check=False) for x in (value, grad))
        parameter = nn.Parameter(value)
        parameter.grad = grad
        found.append(parameter)
    return found


def distributed_tensors() -> Any:
    """Return PyTorch's module of DTensor and its placements. Raises ImportError on versions that lack it."""
    from torch.distributed import tensor

    if not hasattr(tensor, "DTensor"):  # before torch 2.5
        from torch.distributed import _tensor as tensor
    return tensor


def sharded_fully() -> Callable[..., Any]:
    """Return FSDP2's function. Raises ImportError on versions that lack it."""
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # before torch 2.6
        from torch.distributed._composable.fsdp import fully_shard
    return fully_shard  # type: ignore[no-any-return]


class Computing(torch.autograd.Function):
    """Gives what it gets, and computes something else meanwhile, in both directions."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor, something: Callable[[], None]) -> torch.Tensor:
        context.something = something
        something()
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        context.something()
        return gradients[0], None


class Between(nn.Module):
    """What a step computes between two layers whose messages are timed."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.something = busy(device)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Give the value as it is."""
        return Computing.apply(value, self.something)  # type: ignore[no-any-return]


def network(width: int, depth: int, device: torch.device) -> nn.Sequential:
    """Layers and functions between them, as a block has them."""
    between = Between(device)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width, bias=False), nn.GELU(), between) for _ in range(depth))
    ).to(device)


def spread(module: nn.Sequential, how: str, mesh: Any) -> nn.Module:
    """Return a network whose layers gather their weights and sum their gradients each by itself. Raises ImportError on versions of
    torch that lack it."""
    fully_shard = sharded_fully()
    made: Any = copy.deepcopy(module)
    for layer in made:
        if how == "replicate":
            from torch.distributed._composable.replicate_with_fsdp import replicate

            replicate(layer[0], mesh=mesh)
        else:
            fully_shard(layer[0], mesh=mesh, reshard_after_forward=how == "gathered_twice")
    if how == "replicate":
        replicate(made, mesh=mesh)
    else:
        fully_shard(made, mesh=mesh, reshard_after_forward=how == "gathered_twice")
    return made  # type: ignore[no-any-return]


def steps_of(module: nn.Module, width: int, rows: int, device: torch.device) -> list[Callable[[], Any]]:
    """Return forward and backward of a network."""
    given, made = torch.randn(rows, width, device=device), list[Any]()

    def forward() -> None:
        made[:] = [module(given)]

    def backward() -> None:
        for parameter in module.parameters():
            parameter.grad = None
        torch.autograd.backward(made.pop().sum())

    return [forward, backward]


def units(mesh: Any, device: torch.device, seconds: float, missing: list[str]) -> list[dict[str, Any]]:
    """Return what small networks take whose layers gather their weights and sum their gradients each by itself, beside what they
    take alone, by the weight's bytes. Messages are part of it."""
    rows: list[dict[str, Any]] = []
    widths, rows_each = ((256, 1024, 4096), ROWS_GPU) if device.type == "cuda" else ((32, 160, 480), ROWS)
    for width in widths:
        plain, each = network(width, UNITS, device), seconds / len(widths) / 4
        base = taken(steps_of(plain, width, rows_each, device), 1, device, each)
        for how in ("replicate", "gathered", "gathered_twice"):
            try:
                module = spread(plain, how, mesh)
                found = taken(steps_of(module, width, rows_each, device), 1, device, each, lambda x: agreed(x, device))
            except (ImportError, AttributeError, RuntimeError, TypeError, ValueError) as error:
                missing.append(f"{how}: {str(error).splitlines()[0][:120]}")
                continue
            for phase, alone, it in zip(("forward", "backward"), base, found):
                rows.append({
                    "what": how, "phase": phase, "bytes": 4 * width * width, "layers": UNITS, "plain_seconds": alone.seconds,
                    "seconds": it.seconds, "plain_host_seconds": alone.host_seconds, "host_seconds": it.host_seconds,
                })  # fmt: skip
    return rows


def cut_operators(mesh: Any, device: torch.device, seconds: float, missing: list[str]) -> list[dict[str, Any]]:
    """Return what functions and layers take on DTensors, and on plain tensors: what the difference is, Python does."""
    try:
        tensor = distributed_tensors()
    except ImportError as error:
        missing.append(f"DTensor: {error}")
        return []

    def placed(value: torch.Tensor) -> Any:
        return tensor.DTensor.from_local(value, mesh, (tensor.Replicate(),), run_check=False)

    def functions(x: Any) -> Any:
        for _ in range(DEPTH):
            x = nn.functional.gelu(x + x).view(x.shape)
        return x

    def layers(x: Any, weight: Any) -> Any:
        for _ in range(DEPTH):
            x = placed(nn.functional.linear(x.to_local(), weight.to_local())) if isinstance(x, tensor.DTensor) else (
                nn.functional.linear(x, weight))
        return x

    rows: list[dict[str, Any]] = []
    changes: tuple[Callable[[Any], Any], ...] = (lambda value: value, placed)
    for name, call, many, shapes in (
        ("functions", functions, 3 * DEPTH, ((32, 64),)), ("layers", layers, DEPTH, ((32, 64), (64, 64))),
    ):
        found = []
        for change in changes:
            given = [change(torch.randn(shape, device=device)).requires_grad_() for shape in shapes]
            found.append(taken(both_ways(call, given), many, device, seconds / 4))
        for phase, plain, it in zip(("forward", "backward"), *found):
            rows.append({
                "what": f"cut_{name}", "phase": phase, "bytes": 0, "plain_seconds": plain.seconds, "seconds": it.seconds,
                "plain_host_seconds": plain.host_seconds, "host_seconds": it.host_seconds,
            })  # fmt: skip
    return rows


def changes(mesh: Any, device: torch.device, seconds: float, missing: list[str]) -> list[dict[str, Any]]:
    """Return what it takes to bring DTensors into another layout as exported modules do, and their gradients back: what is cut is
    gathered, and a sum is made of which each rank gets a piece (`change_scattered`) or all (`change_summed`). Messages are part of
    it, and what is taken without a change is beside it; by the bytes of the whole."""
    try:
        tensor = distributed_tensors()
    except ImportError as error:
        missing.append(f"DTensor: {error}")
        return []
    count, whole, cut, added = dist.get_world_size(), tensor.Replicate(), tensor.Shard(1), tensor.Partial()
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
                return [tensor.DTensor.from_local(between(x), mesh, (whole,), run_check=False).to_local() for x in values]

            def changed(*values: Any, here: Any = here, there: Any = there, back: Any = back) -> Any:
                found = []
                for x in values:
                    piece = tensor.DTensor.from_local(between(x), mesh, (here,), run_check=False)
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


def both_ways(call: Callable[..., Any], given: Sequence[Any]) -> list[Callable[[], Any]]:
    """Return forward and backward of a function of one result or several."""
    made: list[Any] = []

    def forward() -> None:
        found = call(*given)
        made[:] = found if isinstance(found, list) else [found]

    def backward() -> Any:
        return torch.autograd.grad(made, given, [torch.ones_like(one) for one in made])

    return [forward, backward]


def beside(device: torch.device, seconds: float) -> dict[str, float]:
    """Return what a product and a sum over all ranks take alone, and both begun at once."""
    edge, elements = (8192, 1 << 26) if device.type == "cuda" else (384, 1 << 18)
    a, b = torch.randn(edge, edge, device=device), torch.randn(edge, edge, device=device)
    values = torch.zeros(elements, device=device)

    def sums() -> Any:
        return dist.all_reduce(values, async_op=True)

    def product() -> Any:
        return a @ b

    def both() -> None:
        work = sums()
        product()
        work.wait()

    found = {}
    for name, action in (("product", product), ("sum", lambda: sums().wait()), ("both", both)):
        dist.barrier()
        (one,) = taken([action], 1, device, seconds / 3, lambda x: agreed(x, device))
        found[f"{name}_seconds"] = agreed(one.seconds, device)
    return found


def agreed(value: float, device: torch.device) -> float:
    """Return the largest value of the ranks."""
    found = torch.tensor(value, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def compiled(device: torch.device, seconds: float, missing: list[str]) -> list[dict[str, Any]]:
    """Return what some passes in a row take one by one, and compiled into one."""
    def passes(x: Any) -> Any:
        return nn.functional.gelu(x * 2 + 1) * x

    value = torch.randn((1 << 24) if device.type == "cuda" else (1 << 16), device=device, requires_grad=True)
    rows = []
    for name in ("eager", "compiled"):
        try:
            call = passes if name == "eager" else torch.compile(passes)
            found = taken(both_ways(call, [value]), 1, device, seconds / 2)
        except Exception as error:  # compilers fail in many ways
            missing.append(f"torch.compile: {str(error).splitlines()[0][:120]}")
            continue
        rows += [{"what": name, "phase": phase, "seconds": it.seconds, "host_seconds": it.host_seconds}
                 for phase, it in zip(("forward", "backward"), found)]
    return rows
