"""An exported module's code, called once as a rank of the plan and without numbers: what it cannot compute on pieces shows at the
export, not on the cluster."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from taskflow.graph import OperatorGraph
from taskflow.models.pytorch import place_text, raising_line, require_origin, sites_of

OF_MESHES = ("__init__", "_flatten", "_unflatten", "__getitem__")


def require_running(graph: OperatorGraph, text: str, ranks: int) -> None:
    """Raise ValueError if the module of a graph fails on the pieces that a generated module (``text``) gives it. Not looked at:
    plans that cut no layers, pipelines, and modules that need numbers even alone. Changes nothing outside; in a process that has
    a process group it does nothing."""
    import torch.distributed as dist

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
    """What a call on pieces raises. None if nothing, if it asks for numbers, or if the whole module raises as well."""
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensorMode,
        UnsupportedFakeTensorException,
    )

    with _one_of(ranks), real_meshes(generated), FakeTensorMode(allow_non_fake_inputs=True):
        try:
            _without_numbers(module)(**{name: _fake(tensor) for name, tensor in inputs})
        except Exception:
            return None
        try:
            model = generated.parallelize(_without_numbers(module), "cpu")
            model(*(model.rows(_fake(tensor)) for _, tensor in inputs))
        except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException):
            return None
        except Exception as error:
            return error
    return None


def _without_numbers(module: Any) -> Any:
    """A copy of a module whose tensors have shapes alone."""
    import torch

    made: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        fake = torch.empty(tensor.shape, dtype=tensor.dtype)
        of_weight = isinstance(tensor, torch.nn.Parameter)
        made[id(tensor)] = torch.nn.Parameter(fake, requires_grad=tensor.requires_grad) if of_weight else fake
    return copy.deepcopy(module, made)


def _fake(tensor: Any) -> Any:
    import torch

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
    import torch.distributed as dist
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
