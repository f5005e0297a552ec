"""Calls of functions of torch: which only ask, which write into an argument, which look at shapes alone."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
from torch import nn
from torch.nn import _reduction
from torch.nn import functional as F

from taskflow.models.pytorch.steps import leaves

QUERIES = {  # methods that say something about a tensor and change nothing
    "__get__", "__len__", "__format__", "__repr__", "__hash__", "size", "dim", "ndimension", "numel", "nelement", "stride",
    "storage_offset", "is_contiguous", "is_floating_point", "is_complex", "is_signed", "element_size", "get_device", "type",
    "is_same_size", "result_type", "can_cast", "_assert", "promote_types", "is_tensor", "broadcast_shapes", "is_grad_enabled",
}
NEVER = {"_nested_tensor_from_mask_left_aligned"}  # questions about numbers that only choose another way to the same result
WITHOUT_SHAPE = {  # functions whose results have shapes that depend on numbers: what to do instead
    "_pack_padded_sequence": "packs sequences, whose number of rows depends on their lengths, and a plan is of fixed shapes: hand "
    "padded sequences to the layer as they are (pack_padded_sequence only saves the work on padding)",
    "nonzero": "has as many results as there are numbers that are not 0: multiply by a mask instead",
    "masked_select": "has as many results as the mask has True: multiply by the mask, or use where",
    "grad": "asks for a gradient within forward, and a graph has the gradients of its losses alone: write out the derivative with "
    "functions of torch, or train this loss with PyTorch",
    "ctc_loss": "adds up all ways to write a text in so many steps, for which there is no operator: plan the network with another "
    "loss, such as loss=mse_loss of its scores",
    "unique": "has as many results as there are different numbers",
}
DRAWS = "forward draws random numbers that no function of torch returns for each sample: give noise to forward as an argument"
TO_FLOAT: dict[str, torch.dtype] = {  # methods that bring numbers into a type
    "float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16
}
IGNORED = -100  # PyTorch's number of labels that do not count
OF_FINITE = {"isfinite": True, "isinf": False, "isnan": False}  # what these say of all numbers of a training that goes well
NUMPYS_NAMES = {"axis": "dim", "keepdims": "keepdim"}  # of arguments, which functions of torch know too
STATE = {"grad", "_grad", "_version"}  # properties that say what happened before
ONLY_SHAPES = {  # functions that look at nothing but the shape and the type of their tensor
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_tensor", "new_empty",
}
AS_ANOTHER = {"to", "type_as", "expand_as", "view_as", "reshape_as"}  # those that look so at their second tensor
INDEX_ASSIGNMENT = "__setitem__"


def without_shape(name: str, args: Any) -> str | None:
    """Return why the result of a function of this name has no fixed shape, or another reason to refuse it; None for most."""
    return WITHOUT_SHAPE.get("nonzero" if name == "where" and len(args) == 1 else name)


def asks_for_gradient(name: str, target: Any, args: Any) -> bool:
    """True for a call from which on a tensor without a gradient has one: ``x.requires_grad_()``, ``x.requires_grad = True``."""
    given = name == "__set__" and target.__self__ is torch.Tensor.requires_grad and args[1] is True
    return (given or (name == "requires_grad_" and args[1:] in ((), (True,)))) and not args[0].requires_grad


def numbers_like(value: Any) -> Any:
    """A tensor of its shape and type that has numbers, whichever; all else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty((1,) * value.ndim, dtype=value.dtype).expand(value.shape)  # in the memory of one number


def is_in_place(target: Any, args: Any, kwargs: Any) -> bool:
    """True if a function is called, or a layer made, with ``inplace``."""
    if isinstance(target, nn.Module):
        return bool(getattr(target, "inplace", False))
    try:
        return bool(inspect.signature(target).bind(*args, **kwargs).arguments.get("inplace"))
    except (TypeError, ValueError):  # built in: those have no such argument
        return False


def all_arguments(target: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments with which a module's code calls a function. PyTorch hands on those of ``l1_loss`` to modes
    without its weight, which is still among its variables."""
    frame = sys._getframe() if target is F.l1_loss and "weight" not in kwargs else None
    while frame is not None and frame.f_code is not F.l1_loss.__code__:
        frame = frame.f_back
    return kwargs if frame is None else kwargs | {"weight": frame.f_locals["weight"]}


def by_torchs_names(target: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all keyword arguments of a call by PyTorch's names for them."""
    return {NUMPYS_NAMES.get(key, key): value for key, value in all_arguments(target, kwargs).items()}


def reduction_of(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """Return how a loss becomes one number: its ``reduction``, unless PyTorch's two arguments of before say something else."""
    if size_average is None and reduce is None:
        return reduction
    return str(_reduction.legacy_get_string(size_average, reduce, emit_warning=False))


def tensors_of(nest: Any) -> list[torch.Tensor]:
    """Return the tensors among the leaves of a nest."""
    return [value for value in leaves(nest) if isinstance(value, torch.Tensor)]


def changes_by_name(name: str, kwargs: dict[str, Any]) -> bool:
    """True if a function of this name, called with ``kwargs``, writes into one of its arguments."""
    in_place = name.endswith("_") and not name.startswith("__")
    return in_place or name == INDEX_ASSIGNMENT or kwargs.get("out") is not None


def changes_an_argument(target: Any, args: Any, kwargs: Any) -> bool:
    """True if a function, called so, writes into one of its arguments."""
    return changes_by_name(getattr(target, "__name__", ""), kwargs) or is_in_place(target, args, kwargs)
