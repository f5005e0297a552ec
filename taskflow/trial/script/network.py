"""The network that plans are tried with: its module, inputs and targets that are drawn, its loss and its optimizer."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from taskflow.models.pytorch import on_meta

LARGE = 4e9  # bytes of weights from which ranks make the module without numbers, and get those of their own pieces alone
SPREAD = 0.02  # of such numbers


def module_of(spec: Mapping[str, Any]) -> nn.Module:
    """Return the module that is described: of transformers by its config, or what a user's function makes. One of many weights is
    without numbers. Raises ValueError or ImportError that says what to do."""
    empty = spec["bytes"] > LARGE and not spec["tied"]
    with on_meta() if empty else nullcontext():
        return _of_transformers(spec) if "config" in spec else _of_function(spec)


def _of_transformers(spec: Mapping[str, Any]) -> nn.Module:
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(f"{spec['class']} is a class of transformers: pip install transformers ({error})") from error
    config = transformers.AutoConfig.for_model(**spec["config"])
    for each in (config, config.get_text_config()):
        each.use_cache = each.output_router_logits = False
    make = getattr(transformers, spec["class"])._from_config
    dtype = getattr(torch, spec["dtype"])
    try:
        return make(config, dtype=dtype).train()  # type: ignore[no-any-return]
    except TypeError:  # its name before transformers 4.56
        return make(config, torch_dtype=dtype).train()  # type: ignore[no-any-return]


def _of_function(spec: Mapping[str, Any]) -> nn.Module:
    result = function_at(spec["function"])(**spec["values"])
    module = result[0] if isinstance(result, tuple) else result
    if not isinstance(module, nn.Module):
        raise ValueError(f"--module {spec['function']}: must return a torch.nn.Module, got {type(module).__name__}")
    return module.train()


def function_at(where: str) -> Callable[..., Any]:
    """Return a function by ``path/to/file.py:function`` or ``package.module:function``. Files are looked for in the current folder
    and beside this program. Raises ValueError or ImportError that says what to do."""
    place, _, name = where.rpartition(":")
    here = Path(__file__).resolve().parent
    sys.path[:0] = [path for path in (os.getcwd(), str(here)) if path not in sys.path]
    try:
        if not place.endswith(".py"):
            return getattr(importlib.import_module(place), name)  # type: ignore[no-any-return]
        found = next((path for path in (Path(place), here / Path(place).name) if path.is_file()), None)
        if found is None:
            raise ValueError(f"{place} is neither here nor beside try.py: copy it there, or say --module FILE.py:FUNCTION")
        sys.path.insert(0, str(found.resolve().parent))
        return getattr(loaded(found, f"tried_{found.stem}"), name)  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        if error.name != "taskflow":
            raise
        raise ImportError(
            f"{place} imports taskflow, which is not installed here; import it within the functions that need it, such as the one "
            "that makes the graph"
        ) from error


def loaded(path: Path, name: str) -> Any:
    """Return the module of a Python file."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def with_numbers(model: Any) -> None:
    """Give a rank's pieces of a module without numbers random ones: small, and ones where they scale."""
    for part in model.parts:
        part._apply(lambda value: torch.empty_like(value, device=model.device) if value.is_meta else value.to(model.device))
        with torch.no_grad():
            for parameter in part.parameters():
                parameter.normal_(0.0, SPREAD) if parameter.ndim > 1 else parameter.fill_(1.0)


# ---- what each step is given -----------------------------------------------------------------------------------------
def drawn(spec: Mapping[str, Any], generator: torch.Generator) -> torch.Tensor:
    """Return a random tensor of a described shape and type: integers below ``below`` (0: ones), or normal numbers."""
    shape, dtype = tuple(spec["shape"]), getattr(torch, spec["dtype"])
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(spec["below"], shape, generator=generator).to(dtype) if spec["below"] else torch.ones(shape, dtype=dtype)


def first_tensor(output: Any) -> torch.Tensor:
    """Return what the loss reads of a module's result: of a mapping its logits, of several values the first."""
    if hasattr(output, "keys"):
        output = output["logits"] if "logits" in output else next(iter(output.values()))
    return output[0] if isinstance(output, (tuple, list)) else output  # type: ignore[no-any-return]


def cross_entropy(output: Any, target: torch.Tensor) -> torch.Tensor:
    """The mean over labels of scores (N, ..., classes)."""
    return nn.functional.cross_entropy(first_tensor(output).flatten(0, -2), target.flatten())


def mse_loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    """The mean square of differences."""
    return nn.functional.mse_loss(first_tensor(output), target)


LOSSES = {"cross_entropy": cross_entropy, "mse_loss": mse_loss}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-4),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-5),
}
