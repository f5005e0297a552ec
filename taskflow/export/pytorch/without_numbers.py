"""An exported module's step, computed once as a rank of the plan and without numbers: what its code cannot compute on pieces shows
at the export, not on the cluster."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from taskflow.graph import OperatorGraph
from taskflow.models.pytorch import place_text, quietly, raising_line, require_origin, sites_of

MOST_ZEROS = 1 << 28  # bytes of a function's arguments as zeros
OF_MESHES = ("__init__", "_flatten", "_unflatten", "__getitem__")


def require_running(graph: OperatorGraph, text: str, ranks: int) -> None:
    """Raise ValueError if the module of a graph fails on the pieces that a generated module (``text``) gives it. Not looked at:
    plans that cut no layers, pipelines, and modules that need numbers even alone. Changes nothing outside; in a process that has
    a process group it does nothing."""
    from taskflow.models.pytorch.exported import ExportedModule

    module = require_origin(graph).module
    if isinstance(module, ExportedModule) or dist.is_initialized():
        return
    generated = _loaded(text)
    plan = generated.plan()
    if not plan.tensor or plan.stages:
        return
    sites, _ = sites_of(graph)
    inputs = [(sites[node.name].name, node.outputs[0]) for node in graph if node.name in sites and sites[node.name].kind == "input"]
    error = _error(generated, module, inputs, ranks)
    if error is not None:
        line = str(error).strip().splitlines()[0]
        raise ValueError(
            f"torch: the code of {type(module).__name__} does not work on pieces of what this plan cuts within layers: {line}"
            f"{place_text(raising_line(error.__traceback__))}; export a plan that cuts samples or stages alone (such as "
            f"d{ranks}), or let the code take sizes from what it is given"
        )


def _error(generated: Any, module: Any, inputs: Sequence[tuple[str, Any]], ranks: int) -> Exception | None:
    """What a step on pieces raises. None if nothing, if it asks for numbers, or if the whole module raises as well."""
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensorMode,
        UnsupportedFakeTensorException,
    )

    with _one_of(ranks), real_meshes(generated), FakeTensorMode(allow_non_fake_inputs=True), quietly(), OnZeros():
        try:
            result = without_numbers(module)(**{name: _fake(tensor) for name, tensor in inputs})
            target = _target(result)
        except Exception:
            return None
        try:
            model = generated.parallelize(without_numbers(module), "cpu")
            model.gradients(_sum_of, [_fake(tensor) for _, tensor in inputs], target)
        except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException):
            return None
        except Exception as error:
            return error if _goes_back(result, target) else None
    return None


def _goes_back(result: Any, target: Any) -> bool:
    """True if the backward pass of a whole module works."""
    try:
        _sum_of(result, target).backward()
    except Exception:
        return False
    return True


class OnZeros(TorchDispatchMode):
    """Context that computes on zeros what fails on tensors without numbers, and looks at the sizes of pieces. Of some functions,
    PyTorch knows fewer types without numbers than it computes, such as of products in groups on a CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

        kwargs = kwargs or {}
        try:
            found = func(*args, **kwargs)
            _require_pieces(func, found)
            return found
        except RuntimeError:
            given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
            if not all(type(value) is FakeTensor for value in given) or sum(value.nbytes for value in given) > MOST_ZEROS:
                raise
            with unset_fake_temporarily():
                zeros = tree_map_only(torch.Tensor, lambda value: torch.zeros(value.shape, dtype=value.dtype), (args, kwargs))
                found = func(*zeros[0], **zeros[1])
            return tree_map_only(torch.Tensor, lambda value: torch.empty(value.shape, dtype=value.dtype), found)


def _require_pieces(func: Any, found: Any) -> None:
    """Raise ValueError where a function of DTensors returns another piece than the first rank has of what it says."""
    for value in tree_leaves(found):
        if not isinstance(value, DTensor) or not all(type(p) in (Shard, Replicate, Partial) for p in value.placements):
            continue
        sizes, piece = list(value.shape), tuple(value._local_tensor.shape)
        for j, placement in enumerate(value.placements):
            if type(placement) is Shard:
                sizes[placement.dim] = -(-sizes[placement.dim] // value.device_mesh.size(j))
        if tuple(sizes) != piece:
            raise ValueError(f"{func} makes a piece of {piece} where PyTorch counts on {tuple(sizes)}")


def _leaves(result: Any) -> list[Any]:
    """The tensors that a module returns, of which a gradient can be taken."""
    found = [*result.values()] if isinstance(result, dict) else result
    return [value for value in tree_leaves(found) if isinstance(value, torch.Tensor) and value.requires_grad]


def _target(result: Any) -> Any:
    """As many labels as a module's first result has rows of scores."""
    first = _leaves(result)[0]
    return torch.zeros(first.shape[:-1] if first.ndim > 1 else first.shape, dtype=torch.int64)


def _sum_of(result: Any, target: Any) -> Any:
    """Loss: the sum of all that is returned."""
    return sum(value.float().sum() for value in _leaves(result))


def without_numbers(module: Any) -> Any:
    """A copy of a module whose tensors have shapes alone."""
    made: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        fake = torch.empty(tensor.shape, dtype=tensor.dtype)
        of_weight = isinstance(tensor, torch.nn.Parameter)
        made[id(tensor)] = torch.nn.Parameter(fake, requires_grad=tensor.requires_grad) if of_weight else fake
    return copy.deepcopy(module, made)


def _fake(tensor: Any) -> Any:
    return torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype.name))


def _loaded(text: str) -> Any:
    generated = ModuleType("taskflow_generated")
    sys.modules[generated.__name__] = generated  # where dataclasses look
    try:
        exec(compile(text, "<generated>", "exec"), generated.__dict__)
    finally:
        del sys.modules[generated.__name__]
    return generated


@contextmanager
def _one_of(ranks: int) -> Iterator[None]:
    """A process group in which nothing is sent, as its first rank."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def real_meshes(generated: Any) -> Iterator[None]:
    """A context in which a generated module and PyTorch make meshes of real tensors: what they hold are ranks."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.distributed.device_mesh import DeviceMesh

    def real(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*given: Any, **named: Any) -> Any:
            with unset_fake_temporarily():
                return make(*given, **named)

        return made

    before: Mapping[str, Any] = {name: getattr(DeviceMesh, name) for name in OF_MESHES}
    generated.init_device_mesh = real(generated.init_device_mesh)
    for name, make in before.items():
        setattr(DeviceMesh, name, real(make))
    try:
        yield
    finally:
        for name, make in before.items():
            setattr(DeviceMesh, name, make)
