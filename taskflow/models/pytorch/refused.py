"""Refusals: behaviour of a module beyond its classes' code, which no recording of its operations shows: hooks, patches,
parametrizations."""

from __future__ import annotations

from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule
from torch.nn.modules import module as modules

from taskflow.models.pytorch.site import Unsupported
from taskflow.models.pytorch.weight_norm import is_weight_norm

HOOKS = {
    "_forward_hooks": "forward hook", "_forward_pre_hooks": "forward pre-hook", "_backward_hooks": "backward hook",
    "_backward_pre_hooks": "backward pre-hook",
}
GLOBAL_HOOKS = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks",
)
DOES_NOT_COMPUTE = {
    "__init__", "__module__", "__doc__", "__qualname__", "__annotations__", "__firstlineno__", "__static_attributes__",
    "__parameters__", "__constants__", "__dict__", "__weakref__", "__slots__", "__annotate_func__", "extra_repr",
    "reset_parameters", "_reset_parameters",
}  # what a subclass of a layer may have of its own and still be that layer
PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer)


def require_plain(module: nn.Module) -> None:
    """Raise Unsupported, with the place, if some module is more than its classes say."""
    for name in GLOBAL_HOOKS:
        if getattr(modules, name, None):
            raise Unsupported(f"torch.nn.modules.module.{name} has hooks for all modules; remove them first")
    owners: dict[int, str] = {}  # storages: whose they are
    for path, part in module.named_modules():
        where = path or "the module itself"
        why = next(more_than_its_class(part), None)
        if why:
            raise Unsupported(f"{where} ({type(part).__name__}) {why}")
        for name, tensor in (*part._parameters.items(), *part._buffers.items()):
            if tensor is not None:
                _require_plain_tensor(f"{path}.{name}" if path else name, tensor, owners)


def only_keeps_results(hook: Any) -> bool:
    """True for a hook that collects what a layer returns, for forward to return it too, as transformers' modules install them."""
    return getattr(hook, "__module__", "") == "transformers.utils.output_capturing"


def more_than_its_class(part: nn.Module) -> Iterator[str]:
    """Yield what a module has that its classes do not tell (compilation, hooks and so on), as the end of a sentence."""
    if isinstance(part, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        yield "is compiled by torch.jit; import the module that it was compiled from"
    if any(kind.__name__ == "_StatefulGraphModule" for kind in type(part).__mro__):
        yield "is what .module() of an exported program returns; hand over the exported program itself"
    for attribute, kind in HOOKS.items():
        if any(not only_keeps_results(hook) for hook in (getattr(part, attribute, None) or {}).values()):
            yield (
                f"has a {kind} (also torch.nn.utils.weight_norm and spectral_norm are hooks: use "
                "torch.nn.utils.parametrizations.weight_norm); remove it, or do what it does in forward"
            )
    if "parametrizations" in part._modules and not is_weight_norm(part):
        kept = "SpectralNorm" in str(part._modules["parametrizations"])
        why = "in every step spectral_norm changes vectors that it keeps, and a graph has no such state" if kept else (
            "only weight_norm is understood"
        )
        yield f"is parametrized: {why}; torch.nn.utils.parametrize.remove_parametrizations makes it plain"
    patched = [
        name for name, value in vars(part).items()
        if callable(value) and not isinstance(value, (nn.Module, type)) and callable(getattr(type(part), name, None))
        and not isinstance(part, OptimizedModule) and not _is_another_of_its_own(part, value)
    ]
    if patched:
        yield f"has a {patched[0]} of its own, patched onto the instance; write a class that overrides {patched[0]}"
    called = type(part).__call__
    if called is not nn.Module.__call__ and not getattr(called, "__module__", "").startswith("torch."):
        yield "overrides __call__; override forward instead"
    if isinstance(part, nn.TransformerEncoderLayer) and isinstance(part.activation, (nn.GELU, nn.ReLU)):
        plain = type(part.activation) in (nn.GELU, nn.ReLU) and getattr(part.activation, "approximate", "none") == "none"
        if not plain:  # why_not_sparsity_fast_path in its forward: torch knows but one ReLU and one GELU there
            yield (
                f"has the activation {part.activation}, which PyTorch takes for its plain form in evaluation without gradients; "
                "hand over a function, such as functools.partial(F.gelu, approximate='tanh')"
            )
    if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.track_running_stats and part.momentum is None:
        yield "needs a momentum: the mean of all steps' statistics is not understood"
    forward = type(part).forward
    if type(part).__module__.startswith("torch.nn.") and not forward.__module__.startswith("torch."):
        yield f"has the forward of {forward.__module__}, patched onto PyTorch's class; write a class that overrides forward"


def _is_another_of_its_own(part: nn.Module, value: Any) -> bool:
    """True for one of the methods of a module's own class, which stands for another one: ``self.forward = self.forward_fast``."""
    own = isinstance(value, MethodType) and value.__self__ is part and not type(part).__module__.startswith("torch.nn.")
    return own and getattr(type(part), value.__name__, None) is value.__func__


def _require_plain_tensor(path: str, tensor: torch.Tensor, owners: dict[int, str]) -> None:
    if type(tensor) not in PLAIN:
        raise Unsupported(f"{path} is a {type(tensor).__name__}; only plain parameters and buffers are understood")
    if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
        raise Unsupported(f"{path} has a hook on its gradient; remove it first")
    if tensor.is_sparse or tensor.layout is not torch.strided or tensor.is_quantized:
        raise Unsupported(f"{path} is not a dense array")
    if not tensor.is_leaf:
        raise Unsupported(f"{path} is computed from other parameters; compute it in forward")
    address = 0 if tensor.is_meta else tensor.untyped_storage().data_ptr()
    if address and owners.setdefault(address, str(id(tensor))) != str(id(tensor)):
        raise Unsupported(f"{path} lies in the memory of another parameter or buffer; share the whole parameter instead")


def class_of(module: nn.Module, known: Any) -> type[nn.Module] | None:
    """The class among ``known`` whose code a module runs: its own, or a base that it changes nothing of; None if there is none."""
    own: set[str] = set()
    if "forward" in vars(module):
        return None
    for base in type(module).__mro__:
        if base in known:
            held = {*vars(module), *module._parameters, *module._buffers, *module._modules}
            return None if own & (held | {*dir(base)}) else base  # type: ignore[no-any-return]
        own |= vars(base).keys() - DOES_NOT_COMPUTE
    return None


def replaced(part: nn.Module) -> bool:
    """True for a layer whose parameters are computed, as `torch.func.functional_call` has them: its code is followed."""
    return any(not isinstance(p, nn.Parameter) for p in part._parameters.values() if p is not None)


def cannot_follow(title: str, error: Exception) -> str:
    """Return a sentence for whatever PyTorch or the module's code raises when it meets what has no numbers."""
    why = (str(error).splitlines() or [""])[0]
    if type(error).__name__ == "DataDependentOutputException":
        return (
            f"from_torch: cannot follow {title}: its forward must not depend on numbers in tensors, only on shapes, but decides "
            "by one (such as by if, .item() or .any()): choose by torch.where, or by an argument that is no tensor"
        )
    if "BatchedTensor" in why or "TensorWrapper" in why:
        why += "; vmap, grad and others of torch.func are not understood: write the function for the whole batch"
    return (
        f"from_torch: cannot follow {title} ({type(error).__name__}: {why}); its forward must run on examples of these shapes, and "
        "must not depend on numbers in tensors, only on shapes"
    )
