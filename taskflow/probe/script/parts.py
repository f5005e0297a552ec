"""Parts of a training program that are timed whole: updates, units of FSDP2, products beside collectives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from taskflow.export.pytorch.support import DTensor, Replicate
from taskflow.probe.script.clock import both_ways, busy, taken

STAGE_ROWS, STAGE_WIDTH, MICRO_BATCHES = 64, 256, (2, 10)
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
            value, grad = (DTensor.from_local(x, mesh, (Replicate(),), run_check=False) for x in (value, grad))
        parameter = nn.Parameter(value)
        parameter.grad = grad
        found.append(parameter)
    return found


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
        """Compute, and return the value."""
        context.something = something
        something()
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Compute, and return the gradient."""
        context.something()
        return gradients[0], None


class Between(nn.Module):
    """What a step computes between two layers whose messages are timed."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.something = busy(device)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Give the value as it is."""
        return Computing.apply(value, self.something)


def network(width: int, depth: int, device: torch.device) -> nn.Sequential:
    """Layers and functions between them, as a block has them."""
    between = Between(device)
    return nn.Sequential(
        *(nn.Sequential(between, nn.Linear(width, width, bias=False), nn.GELU()) for _ in range(depth))
    ).to(device)


def spread(module: nn.Sequential, how: str, mesh: Any) -> nn.Module:
    """Return a network whose layers gather their weights and sum their gradients each by itself. Raises ImportError on versions of
    torch that lack it."""
    fully_shard = sharded_fully()
    result: Any = copy.deepcopy(module)
    for layer in result:
        if how == "replicate":
            from torch.distributed._composable.replicate_with_fsdp import replicate

            replicate(layer[1], mesh=mesh)
        else:
            fully_shard(layer[1], mesh=mesh, reshard_after_forward=how == "gathered_twice")
    if how == "replicate":
        replicate(result, mesh=mesh)
    else:
        fully_shard(result, mesh=mesh, reshard_after_forward=how == "gathered_twice")
    return result  # type: ignore[no-any-return]


def steps_of(module: nn.Module, width: int, rows: int, device: torch.device) -> list[Callable[[], Any]]:
    """Return forward and backward of a network."""
    given, result = torch.randn(rows, width, device=device), list[Any]()

    def forward() -> None:
        result[:] = [module(given)]

    def backward() -> None:
        for parameter in module.parameters():
            parameter.grad = None
        torch.autograd.backward(result.pop().sum())

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


def stages(device: torch.device, seconds: float, missing: list[str]) -> list[dict[str, Any]]:
    """Return what some micro-batches more take in a pipeline of the first two ranks, beside what their passes take alone: what is
    left, PyTorch's stages and schedule need for them. On CPUs, where it is part of a step; a GPU's host runs ahead."""
    if device.type == "cuda" or dist.get_world_size() < 2:
        return []
    group, rank, found = dist.new_group([0, 1]), dist.get_rank(), list[float]()
    part = nn.Sequential(nn.Linear(STAGE_WIDTH, STAGE_WIDTH), Between(device), nn.GELU())
    given = torch.randn(STAGE_ROWS, STAGE_WIDTH)
    alone = sum(one.seconds for one in taken(both_ways(lambda: part(given), [], part), 1, device, seconds / 4))
    for count in MICRO_BATCHES:
        def step() -> None:
            """Nothing, on other ranks."""

        why = ""
        try:
            if rank < 2:
                step = pipeline(part, count, rank, device, group)
                step()
        except (ImportError, AttributeError, RuntimeError, TypeError, ValueError) as error:
            why = str(error).splitlines()[0][:120]
        if agreed(float(bool(why)), device):  # other ranks have to know: they would wait
            missing.append(f"stages: {why or 'another rank cannot'}")
            return []
        (one,) = taken([step], 1, device, seconds / 3, lambda x: agreed(x, device))
        found.append(agreed(one.seconds, device))
    more = MICRO_BATCHES[1] - MICRO_BATCHES[0]
    return [{"what": "stages", "phase": "forward", "bytes": given.nbytes, "layers": more, "plain_seconds": more * alone,
             "seconds": max(1e-9, found[1] - found[0]), "plain_host_seconds": 0.0, "host_seconds": 0.0}]  # fmt: skip


def pipeline(part: nn.Module, count: int, rank: int, device: torch.device, group: Any) -> Callable[[], Any]:
    """Return a step of so many micro-batches of a pipeline of two stages. Raises ImportError on versions of torch that lack it."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    stage = PipelineStage(copy.deepcopy(part), rank, 2, device, group=group)
    schedule = Schedule1F1B(stage, count, loss_fn=nn.functional.mse_loss)
    batch = torch.randn(count * STAGE_ROWS, STAGE_WIDTH)
    return (lambda: schedule.step(batch)) if rank == 0 else (lambda: schedule.step(target=batch))


def beside(device: torch.device, seconds: float) -> dict[str, float]:
    """Return what a product and a sum over all ranks take alone, and both begun at once."""
    edge, elements, dtype = (8192, 1 << 26, torch.bfloat16) if device.type == "cuda" else (384, 1 << 18, torch.float32)
    a, b = (torch.randn(edge, edge, device=device).to(dtype) for _ in range(2))
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
