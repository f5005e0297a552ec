"""Recording of a module in training and in evaluation, which must compute the same; the module is left as it was."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from taskflow.models.pytorch import heads_apart, losses, numbers_apart  # noqa: F401  they are taken apart, too
from taskflow.models.pytorch.batch_norms import BATCH_NORM, evaluation_arguments, trains
from taskflow.models.pytorch.calls import DRAWS
from taskflow.models.pytorch.dropping import probability_name
from taskflow.models.pytorch.masks import OF_MASKS
from taskflow.models.pytorch.meta import quietly
from taskflow.models.pytorch.places import place_text
from taskflow.models.pytorch.recipes import lacks_numbers, numbers_of
from taskflow.models.pytorch.recorder import TorchRecorder
from taskflow.models.pytorch.refused import only_keeps_results
from taskflow.models.pytorch.registry import FUNCTIONS
from taskflow.models.pytorch.shadow import Shadow
from taskflow.models.pytorch.site import Unsupported
from taskflow.models.pytorch.steps import Fixed, Ref, TorchRecording, TorchStep, leaves, mapped

CONTAINERS = (list, dict, set)
RANDOM_IN_TRAINING = ("MultiheadAttention", "LSTM", "GRU")  # layers with a ``dropout``
ATTENTION = F.scaled_dot_product_attention


def record_both(
    module: nn.Module, examples: Sequence[Any], shadow: Callable[[], Shadow], leaf: Callable[[nn.Module], bool]
) -> TorchRecording:
    """Return what forward computes in training. Raises Unsupported if evaluation computes something else, unless our operators
    make that difference themselves; also if it sets attributes or draws random numbers. The module is left as it was."""
    flags = [(part, part.training) for part in module.modules()]
    given = module.training
    try:
        with _unchanged(module, leaf) as settle, quietly():
            if not given:
                module.train()
            training = _recorded(module, examples, shadow, leaf)
            if filled := settle():
                training = _recorded(module, examples, shadow, leaf, filled)
                filled = settle()
            module.eval()
            evaluation = _recorded(module, examples, shadow, leaf, filled)
    finally:
        for part, flag in flags:
            part.__dict__["training"] = flag
    if not given and any(_depends_on_mode(module, step) for step in training.steps):
        raise Unsupported(
            "it is in evaluation mode, but dropout or batch normalisation would train; call module.train() first (the graph's "
            "evaluation does what module.eval() does anyway)"
        )
    _require_equal(module, training, evaluation)
    return training


def _recorded(
    module: nn.Module, examples: Sequence[Any], shadow: Callable[[], Shadow], leaf: Callable[[nn.Module], bool],
    filled: Set[str] = frozenset(),
) -> TorchRecording:
    """One run of a module as it is. ``filled``: buffers that a run before has filled, which are no buffers then but their numbers;
    each layer is recorded by itself, so that each fills its own."""
    own_shadow = shadow()
    recorder = TorchRecorder(module, own_shadow, leaf)
    recorder.repeats = not filled
    recorder.names = {key: path for key, path in recorder.names.items() if path not in filled}
    return recorder.run(examples_in(own_shadow, examples))


def recorded_once(recorder: TorchRecorder, examples: Sequence[Any]) -> Any:
    """Return what forward returns when a recorder runs a module in training, with references for tensors. The module is left as
    it was."""
    module, flags = recorder.module, [(part, part.training) for part in recorder.module.modules()]
    try:
        with _unchanged(module, recorder.leaf), quietly():
            module.train()
            return recorder.run(examples_in(recorder.shadow, examples)).output
    finally:
        for part, flag in flags:
            part.__dict__["training"] = flag


def examples_in(shadow: Shadow, examples: Sequence[Any]) -> list[Any]:
    """Return examples as the shadow's tensors; numbers, texts and None are unchanged."""
    return [*mapped(lambda value: shadow.example(value) if isinstance(value, torch.Tensor) else value, list(examples))]


def _depends_on_mode(module: nn.Module, step: TorchStep) -> bool:
    if step.kind != "module" or not step.training:
        norms = step.target is BATCH_NORM and trains(step.args, step.kwargs)
        return step.kind == "function" and (step.target is F.dropout or norms)
    part = module.get_submodule(step.target)
    drops = bool(getattr(part, probability_name(part) or "dropout", 0))
    return drops or isinstance(part, nn.modules.batchnorm._BatchNorm)


# ---- what else forward does ------------------------------------------------------------------------------------------------


@contextmanager
def _unchanged(module: nn.Module, leaf: Callable[[nn.Module], bool]) -> Iterator[Callable[[], set[str]]]:
    """Put back what the block changes of the module and of random generators; Unsupported if forward changed something. Layers
    are not looked at: copies of them run, and to copy an LSTM changes its lists of weights. Sizes that forward has found when the
    block calls what it is given, and that are the same in the end, are no state: such as a window no larger than the image. Nor
    are buffers that it has filled by then from sizes alone, such as tables of positions: their names are returned."""
    settled: dict[str, dict[str, Any]] = {}
    kept = {path: _attributes(part) for path, part in module.named_modules()}
    tensors = [
        (f"{path}.{name}", value, value._version, value.detach().clone() if _plain(value) else None)
        for path, part in module.named_modules()
        for name, value in (*part._buffers.items(), *_others(part)) if value is not None and not value.is_inference()
    ]
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002  what a module may draw from

    def settle() -> set[str]:
        settled.update({path: _attributes(part) for path, part in module.named_modules()})
        return {
            f"{path}.{name}" if path else name for path, part in module.named_modules() for name, value in part._buffers.items()
            if value is not kept.get(path, {}).get("_buffers", {}).get(name)
        }

    try:
        yield settle
        changed = [
            f"{path or 'the module'}.{name}" for path, part in module.named_modules() if not (path and leaf(part))
            for name in _differences(kept.get(path, {}), _attributes(part))
            if not _is_settled(name, kept.get(path, {}), settled.get(path, {}), vars(part))
        ]
        changed += [name for name, value, version, _ in tensors if value._version != version]
        drawn = not torch.equal(states[0], torch.get_rng_state()) or states[2] != random.getstate()
        drawn = drawn or repr(states[1]) != repr(np.random.get_state())  # noqa: NPY002
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])
        for path, part in module.named_modules():
            _restore(part, kept.get(path, {}))
        for _, value, version, copy in tensors:
            if copy is not None and value._version != version:
                value.data.copy_(copy)
    if changed:
        raise Unsupported(f"forward changes {', '.join(changed[:4])}; a graph has no such state: return it instead")
    if drawn:
        raise Unsupported(DRAWS)


def _plain(value: torch.Tensor) -> bool:
    return not value.is_meta and value.numel() <= 1_000_000


def _others(part: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Tensors that are attributes of a module, but neither parameters nor buffers."""
    return [(name, value) for name, value in vars(part).items() if isinstance(value, torch.Tensor)]


def _attributes(part: nn.Module) -> dict[str, Any]:
    """Return what a module holds, with copies of its containers."""
    return {name: value.copy() if isinstance(value, CONTAINERS) else value for name, value in vars(part).items()}


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name in (*before, *(name for name in after if name not in before)):
        if name in ("training", "_output_capturing_hooks_installed", "_flat_weights", "_flat_weight_refs"):  # of recurrent layers
            continue
        old, new = before.get(name, _differences), after.get(name, _differences)
        if name == "_forward_hooks":
            old, new = ([hook for hook in hooks.values() if not only_keeps_results(hook)] for hooks in (old, new))
        if not _same(old, new) and (name in ("_parameters", "_buffers", "_modules") or not _only_results(new)):
            yield name


def _is_settled(name: str, before: Mapping[str, Any], between: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """True for a size, or buffers, that the second run leaves as the first has set them."""
    if name == "_buffers" and name in between:
        return now[name].keys() == before[name].keys() and all(
            value is before[name][key] or (value is between[name][key] and not lacks_numbers(value))
            for key, value in now[name].items()
        )
    plain = isinstance(now.get(name), (int, float, str, tuple, list))
    return plain and name in between and _same(between[name], now[name])


def _same(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, dict):
        return list(old) == list(new) and all(_same(old[key], new[key]) for key in old)
    if isinstance(old, (list, tuple)):
        return len(old) == len(new) and all(map(_same, old, new))
    if isinstance(old, (int, float, str, bool, set, type(None))):
        return bool(old == new)
    return False


def _only_results(value: Any) -> bool:
    """True for tensors that a forward has left behind: the recorder sees to it that no other forward reads them."""
    found = [*leaves(value)]
    return bool(found) and all(isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter) for part in found)


def _restore(part: nn.Module, kept: Mapping[str, Any]) -> None:
    now: Any
    for name in [name for name in vars(part) if name not in kept]:
        del vars(part)[name]
    for name, value in kept.items():
        now = vars(part).get(name)
        if isinstance(value, CONTAINERS) and type(now) is type(value) and not _same(now, value):
            now.clear()
            now.extend(value) if isinstance(now, list) else now.update(value)
        elif not isinstance(value, CONTAINERS):
            vars(part)[name] = value


# ---- training and evaluation -------------------------------------------------------------------------------------------------


def _require_equal(module: nn.Module, training: TorchRecording, evaluation: TorchRecording) -> None:
    """Unsupported unless our operators, in evaluation, compute of ``training`` what PyTorch computes in ``evaluation``."""
    numbers: dict[Any, int] = {}
    ours, theirs = (_Numbers(module, numbers, ours) for ours in (True, False))
    for step in training.steps:
        ours.add(step)
    known = len(numbers)
    first = None
    for step in evaluation.steps:
        if ours_is_new := theirs.add(step) >= known:
            first = first or (step if ours_is_new else None)
    a, b = (
        [kind.of(leaf) for leaf in leaves(run.output) if isinstance(leaf, (Ref, Fixed))]
        for kind, run in ((ours, training), (theirs, evaluation))
    )
    count = len(a) if len(a) == len(b) else 1
    if a[:count] != b[:count]:
        if first is not None and first.kind == "function" and not any(first.target in known for known in (FUNCTIONS, OF_MASKS)):
            return  # it has no counterpart, which is said where the graph is built
        where = f": {first.describe()} is not the same{place_text(first.line)}" if first is not None else ""
        raise Unsupported(
            f"forward does in evaluation what it does not do in training (or something else in every call){where}; only dropout "
            "and batch normalisation may depend on it: let the rest do the same in both, such as a rate of dropped labels of 0"
        )


class _Numbers:
    """Gives equal numbers to values that are computed alike in evaluation. ``ours``: by our operators, of what was recorded in
    training; else by PyTorch."""

    def __init__(self, module: nn.Module, numbers: dict[Any, int], ours: bool) -> None:
        self.module, self.numbers, self.ours = module, numbers, ours
        self.found: list[Any] = []
        self.digests: dict[int, str] = {}  # of fixed tensors by identity: the recording holds them

    def add(self, step: TorchStep) -> int:
        """The number of a step; the highest so far and one more if no step before computes the same."""
        key: tuple[Any, ...] = (step.kind, str(step.target), mapped(self.of, step.args), _frozen(mapped(self.of, step.kwargs)))
        if step.kind == "unused":
            self.found.append(None)
            return 0
        passes = self._passes_on(step)
        if passes is not None:
            self.found.append(self.of(passes))
            return 0
        if not self.ours and self._is_random(step):
            key = (*key, step.number)
        elif step.target is ATTENTION:
            key = (*key[:2], _frozen(_attention(*step.args, **step.kwargs), self.of))
        elif step.target is BATCH_NORM:
            key = (*key[:2], _frozen(mapped(self.of, evaluation_arguments(step.args, step.kwargs))))
        self.found.append(self.numbers.setdefault(_frozen(key), len(self.numbers)))
        return int(self.found[-1]) if isinstance(self.found[-1], int) else 0

    def of(self, value: Any) -> Any:
        if isinstance(value, Ref):
            found = self.found[value.step]
            return found if isinstance(found, tuple) and found[0] == "value" else ("value", found, value.index)
        if isinstance(value, Fixed):
            if id(value) not in self.digests:
                large = value.recipe is not None and lacks_numbers(value.tensor)
                self.digests[id(value)] = value.recipe.digest() if large else value.name or _digest(value.tensor)
            return ("fixed", self.digests[id(value)])
        return value

    def _passes_on(self, step: TorchStep) -> Any:
        """Return what a step hands on as it is in evaluation; None for others."""
        if step.kind == "function" and step.target is torch.Tensor.contiguous:
            return step.args[0]  # it is no step where the layout is so already, which dropout may change
        if step.kind == "function" and step.target is F.dropout:
            p, training = dropout_of(*step.args, **step.kwargs)
            return step.args[0] if step.args and (self.ours or not training or p == 0) else None
        if step.kind == "module" and probability_name(self.module.get_submodule(step.target)) is not None:
            return step.args[0] if step.args and (self.ours or not step.training) else None
        return None

    def _is_random(self, step: TorchStep) -> bool:
        """True if PyTorch makes something else of it in evaluation than we do."""
        if step.kind == "function":
            return step.target is F.dropout or (
                step.target is ATTENTION and bool(_attention(*step.args, **step.kwargs)["dropout_p"])
            ) or (step.target is BATCH_NORM and trains(step.args, step.kwargs))
        if step.kind != "module":
            return False
        part = self.module.get_submodule(step.target)
        kinds = isinstance(part, nn.modules.batchnorm._BatchNorm) or type(part).__name__ in RANDOM_IN_TRAINING
        return (kinds or probability_name(part) is not None) and step.training


def dropout_of(input: Any = None, p: float = 0.5, training: bool = True, inplace: bool = False) -> tuple[float, bool]:
    """Return the rate of a call of torch.nn.functional.dropout, and whether it drops."""
    return p, training


def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: Any = None, enable_gqa: bool = False,
) -> dict[str, Any]:
    """The arguments of torch.nn.functional.scaled_dot_product_attention by name."""
    return dict(locals())


def _frozen(value: Any, of: Callable[[Any], Any] | None = None) -> Any:
    """A nest as something to look up by."""
    if of is not None:
        value = {key: of(part) for key, part in value.items() if key != "dropout_p"}
    if isinstance(value, dict):
        return tuple((key, _frozen(part)) for key, part in sorted(value.items()))
    if isinstance(value, (tuple, list)):
        return tuple(_frozen(part) for part in value)
    if isinstance(value, slice):
        return ("slice", value.start, value.stop, value.step)
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return (type(value).__name__, value)


def _digest(tensor: torch.Tensor) -> str:
    """A short name for the numbers of a fixed tensor."""
    if tensor.is_meta:
        return f"meta {tuple(tensor.shape)} {tensor.dtype}"
    return f"{tuple(tensor.shape)} {tensor.dtype} {hashlib.sha256(numbers_of(tensor).data).hexdigest()}"
