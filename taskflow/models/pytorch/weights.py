"""Weights of a PyTorch module under our names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # imports the runtime, which plans do not need
    from taskflow.checkpoint import StoredWeights

STATISTICS = ("running_mean", "running_var")  # of batch normalisation


def weights_of(module: Any) -> StoredWeights:
    """Parameters and running statistics of a module (or an exported program) that `from_torch` made a graph of, for
    `load_weights`. Parameters that several layers share come once; other buffers are in the graph as they were. Arrays are read
    when they are asked for: later changes of the module are seen."""
    from taskflow.checkpoint import StoredWeights
    from taskflow.models.pytorch.examples import module_and_name

    module, _ = module_and_name(module, None)
    arrays = dict(_all(module))
    shapes = {name: tuple(shape) for name, (shape, _) in arrays.items()}
    return StoredWeights(f"PyTorch's {type(module).__name__}", shapes, lambda name: arrays[name][1]())


def shapes_of(module: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a module's `weights_of` by name."""
    return {name: tuple(shape) for name, (shape, _) in _all(module)}


def _all(module: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    import torch

    from taskflow.models.pytorch.convolving import as_planes
    from taskflow.models.pytorch.experts import layout_of, parts_of
    from taskflow.models.pytorch.mixers import is_mixer
    from taskflow.models.pytorch.recurrent import gates_of
    from taskflow.models.pytorch.turned import is_turned
    from taskflow.models.pytorch.weight_norm import name_of_direction

    seen: set[int] = set()
    filters = {id(part.conv1d) for part in module.modules() if is_mixer(part)}  # of a mixer, which are as they are there
    for path, part in module.named_modules():
        prefix, layout = f"{path}." if path else "", layout_of(part)
        for name, tensor in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)):
            kept = isinstance(tensor, torch.nn.Parameter) or (
                isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and name in STATISTICS
            )
            if id(tensor) in seen or not kept:
                continue
            seen.add(id(tensor))
            tensor = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor
            if gates := gates_of(part):  # weight_ih_l0 (4 h, i) of all layers in one module; ours have one each
                kind, _, layer = name.rpartition("_l")
                shape = (gates, tensor.shape[0] // gates, *tensor.shape[1:])
                yield f"{prefix}l{layer}.{kind}", (shape, _reader(tensor, shape))
            elif isinstance(part, torch.nn.MultiheadAttention) and name.startswith("in_proj_"):
                third = tensor.shape[0] // 3
                shape = (third, *tensor.shape[1:])
                for i, which in enumerate("qkv"):
                    rows = itemgetter(slice(i * third, (i + 1) * third))
                    yield f"{prefix}{which}_proj.{name[8:]}", (shape, _reader(tensor, shape, rows))
            elif isinstance(part, torch.nn.MultiheadAttention) and name.endswith("_proj_weight"):
                yield f"{prefix}{name[0]}_proj.weight", (tensor.shape, _reader(tensor, tuple(tensor.shape)))
            elif layout is not None:
                for ours in parts_of(part, layout):
                    if ours.of == name:
                        shape = tuple(ours.take(tensor).shape)
                        yield f"{prefix}{ours.name}", (shape, _reader(tensor, shape, ours.take))
            elif is_turned(part) and name == "weight":
                yield f"{prefix}{name}", (tensor.T.shape, _reader(tensor.T, tuple(tensor.T.shape)))
            else:
                renamed = name_of_direction(path, name, module)
                owner = part if renamed is None else module.get_submodule(renamed.rpartition(".")[0])
                planes = (renamed or name == "weight") and id(part) not in filters
                shape = as_planes(type(owner), tuple(tensor.shape)) if planes else tuple(tensor.shape)
                yield renamed or f"{prefix}{name}", (shape, _reader(tensor, shape))


def _reader(tensor: Any, shape: tuple[int, ...], take: Callable[[Any], Any] | None = None) -> Any:
    def read() -> np.ndarray[Any, Any]:
        from taskflow.models.pytorch.recipes import numpy_of

        array = numpy_of(tensor)
        return np.asarray(array if take is None else take(array)).reshape(shape)

    return read
