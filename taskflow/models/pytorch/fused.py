"""Several functions that one operator computes: norms, rotary positions, gated feed-forward layers, images among words.

As a module's code writes them, each makes half a dozen arrays, and in bfloat16 some of them in float32. The operators of our own
networks keep no more than backward reads. What is matched here is their formula, in whatever module it stands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from taskflow import operators as ops
from taskflow.models.pytorch.placing import picked, placed
from taskflow.models.pytorch.recipes import CASTS, SAME, exact, varies
from taskflow.models.pytorch.registry import Again, Later, number_of, swapped
from taskflow.models.pytorch.site import Held
from taskflow.models.pytorch.steps import Fixed, Ref, TorchRecording, TorchStep, leaves
from taskflow.operators.rotary import frequencies
from taskflow.operators.tensor import Tensor

CHECKED = 64  # positions of a table that are all compared with the rule; of the others some


Rates = tuple[int, tuple[float, ...], float]
"""The dimension of the positions, the radians a position of each pair of features, and a factor of all."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """``inside``: numbers of the steps that its last step stands for, with it. ``needs``: what it is built of. ``build``: of a name
    and these; None if it is not to be fused after all. ``takes_later``: it takes what is to be swapped (`Later`)."""

    inside: frozenset[int]
    needs: tuple[Ref, ...]
    build: Callable[..., Any]
    takes_later: bool = False


def fusions_of(recording: TorchRecording, module: Any) -> dict[int, Fusion]:
    """Return the fusions of a recording by their last steps; no step is in two."""
    found: dict[int, Fusion] = {}
    look = _Look(recording, module)
    for step in recording.steps:
        for match in (_rms_norm, _rotary, _swiglu, _again, _placed, _picked):
            made = match(look, step)
            if made is not None and look.closed(made):
                found[max(made.inside)] = made
                look.taken |= made.inside
                break
    return found


class _Look:
    """The steps of a recording, and who reads what they return."""

    def __init__(self, recording: TorchRecording, module: Any) -> None:
        self.steps, self.module = recording.steps, module
        self.taken: set[int] = set()
        self.rates: dict[tuple[int, int, int], Rates | None] = {}  # by the identity of tables, which the recording holds
        self.readers: dict[int, list[int]] = defaultdict(list)
        for step in recording.steps:
            for ref in _refs((step.args, step.kwargs)) if step.kind != "unused" else ():
                self.readers[ref.step].append(step.number)
        for ref in _refs(recording.output):
            self.readers[ref.step].append(-1)

    def rates_of(self, cosine: Fixed, sine: Fixed, dims: int) -> Rates | None:
        """What two tables say of rotary positions."""
        key = (id(cosine), id(sine), dims)
        if key not in self.rates:
            self.rates[key] = _rates(cosine, sine, dims)
        return self.rates[key]

    def closed(self, fusion: Fusion) -> bool:
        """True if nobody else reads what is inside, and nothing of it is in another."""
        last = max(fusion.inside)
        return not fusion.inside & self.taken and all(
            set(self.readers[number]) <= fusion.inside for number in fusion.inside if number != last
        )

    def step(self, value: Any, *names: str) -> TorchStep | None:
        """The step that returned a value, if it is a function of one of these names."""
        step = self.steps[value.step] if isinstance(value, Ref) else None
        return step if step is not None and step.kind == "function" and step.name in names else None

    def source(self, value: Any, inside: set[int]) -> Any:
        """What a value was before it was converted to other types; those steps are ``inside``."""
        while (step := self.step(value, *SAME)) is not None:
            inside.add(step.number)
            value = step.args[0]
        return value

    def reader(self, step: TorchStep) -> TorchStep | None:
        """The only function that reads what a step returns."""
        readers = self.readers[step.number]
        found = self.steps[readers[0]] if len(readers) == 1 and readers[0] >= 0 else None
        return found if found is not None and found.kind == "function" else None

    def parameter(self, value: Any) -> bool:
        return isinstance(value, Ref) and self.steps[value.step].kind == "parameter"


def _refs(nest: Any) -> Iterator[Ref]:
    return (leaf for leaf in leaves(nest) if isinstance(leaf, Ref))


def _other(step: TorchStep, value: Any) -> Any:
    """The other operand of a step of two."""
    if len(step.args) != 2 or step.kwargs:
        return None
    return step.args[1] if step.args[0] == value else step.args[0]


# ---- x / sqrt(mean of x^2 + eps) weight ---------------------------------------------------------------------------------------


def _rms_norm(look: _Look, step: TorchStep) -> Fusion | None:
    if step.kind != "function" or step.name != "rsqrt" or len(step.args) != 1:
        return None
    inside = {step.number}
    shifted = look.step(step.args[0], "add", "radd")
    if shifted is None or len(shifted.args) != 2 or shifted.kwargs:
        return None
    variance, eps = (shifted.args if isinstance(shifted.args[0], Ref) else shifted.args[::-1])
    mean, number = look.step(variance, "mean"), number_of(eps)
    if mean is None or number is None or not _over_last(mean):
        return None
    squares = look.step(mean.args[0], "pow", "square", "mul")
    if squares is None or not _squares(squares):
        return None
    inside |= {shifted.number, mean.number, squares.number}
    x = look.source(squares.args[0], inside)
    product = look.reader(step)
    if product is None or product.name not in ("mul", "rmul"):
        return None
    inside.add(product.number)
    if look.source(_other(product, Ref(step.number)), inside) != x:
        return None
    return _weighted(look, product, x, number, inside)


def _weighted(look: _Look, last: TorchStep, x: Ref, eps: float, inside: set[int]) -> Fusion | None:
    """The fusion whose last step multiplies by a weight, or by 1 + weight, and converts the result back."""
    weight, offset = None, 0.0
    while True:
        following = look.reader(last)
        if following is None:
            break
        if following.name in SAME and following.args[0] == Ref(last.number):
            if weight is not None and last.values[0].dtype is _type(look, x):
                break
        elif following.name in ("mul", "rmul") and weight is None:
            with_weight = set(inside)
            weight, offset = _weight(look, _other(following, Ref(last.number)), with_weight)
            if weight is None:
                return None
            inside |= with_weight
        else:
            break
        last = following
        inside.add(last.number)
    if weight is None:
        return None

    def build(name: str, value: Any, held: Any) -> Any:
        if not isinstance(value, Tensor) or not isinstance(held, Held) or held.shape != value.shape[-1:] or value.ndim < 2:
            return None
        if not held.site.name.endswith(".weight"):
            return None
        site = held.layer
        made = ops.rms_norm(value, eps, offset=offset, name=site.name, parameters=site.shared(held.tensor))
        return site.own(made, held.tensor)

    return Fusion(frozenset(inside), (x, weight), build)


def _weight(look: _Look, value: Any, inside: set[int]) -> tuple[Ref | None, float]:
    value = look.source(value, inside)
    shifted = look.step(value, "add", "radd")
    if shifted is not None and len(shifted.args) == 2 and not shifted.kwargs:
        one = next((number_of(arg) for arg in shifted.args if number_of(arg) is not None), None)
        inner = next((arg for arg in shifted.args if isinstance(arg, Ref)), None)
        inside.add(shifted.number)
        inner = look.source(inner, inside)
        return (inner, float(one)) if one is not None and look.parameter(inner) else (None, 0.0)
    return (value, 0.0) if look.parameter(value) else (None, 0.0)


def _over_last(mean: TorchStep) -> bool:
    said = dict(zip(("input", "dim", "keepdim"), mean.args)) | mean.kwargs
    dim = said.get("dim")
    last = mean.values[0].ndim - 1
    return said.get("keepdim") is True and (dim in (-1, last) or (isinstance(dim, (tuple, list)) and list(dim) in ([-1], [last])))


def _squares(step: TorchStep) -> bool:
    if step.name == "mul":
        return len(step.args) == 2 and step.args[0] == step.args[1]
    return step.name == "square" or (len(step.args) == 2 and not step.kwargs and step.args[1] == 2)


# ---- x cos + rotate_half(x) sin -----------------------------------------------------------------------------------------------


def _rotary(look: _Look, step: TorchStep) -> Fusion | None:
    if step.kind != "function" or step.name != "add" or len(step.args) != 2 or step.kwargs:
        return None
    inside = {step.number}
    products = [look.step(look.source(arg, inside), "mul") for arg in step.args]
    pairs = [None if product is None else _with_table(product) for product in products]
    if None in pairs:
        return None
    (x, cosine), (turned, sine) = pairs  # type: ignore[misc]
    inside |= {product.number for product in products if product is not None}
    x, joined = look.source(x, inside), look.step(look.source(turned, inside), "cat", "concat", "concatenate")
    if joined is None or (joined.args[1:] or (joined.kwargs.get("dim"),)) not in ((-1,), (step.values[0].ndim - 1,)):
        return None
    parts = joined.args[0]
    minus = look.step(parts[0], "neg") if len(parts) == 2 else None
    halves = [look.step(part, "getitem") for part in (parts[1], minus.args[0])] if minus is not None else [None]
    half = step.values[0].shape[-1] // 2
    if None in halves or [_half(one, half) for one in halves] != [0, 1]:
        return None
    if any(look.source(one.args[0], inside) != x for one in halves if one is not None):
        return None
    inside |= {joined.number, minus.number, *(one.number for one in halves if one is not None)}  # type: ignore[union-attr]
    back = look.reader(step)
    if back is not None and back.name in CASTS and _type(look, x) is back.values[0].dtype is not step.values[0].dtype:
        inside.add(back.number)

    def build(name: str, value: Any) -> Any:
        return _rotated(name, value, look.rates_of(cosine, sine, len(value.shape)))

    return Fusion(frozenset(inside), (x,), build, True)


def _type(look: _Look, ref: Ref) -> torch.dtype:
    return look.steps[ref.step].values[ref.index].dtype


def _with_table(product: TorchStep) -> tuple[Ref, Fixed] | None:
    if len(product.args) != 2 or product.kwargs:
        return None
    x, table = product.args if isinstance(product.args[0], Ref) else product.args[::-1]
    return (x, table) if isinstance(x, Ref) and isinstance(table, Fixed) else None


def _half(step: TorchStep | None, half: int) -> int:
    """0 for the first half of the last dimension, 1 for the second, -1 for anything else."""
    index = step.args[1] if step is not None else None
    if not isinstance(index, tuple) or len(index) != 2 or index[0] is not Ellipsis or not isinstance(index[1], slice):
        return -1
    bounds = index[1].indices(2 * half)
    return {(0, half, 1): 0, (half, 2 * half, 1): 1}.get(bounds, -1)


def _rotated(name: str, value: Any, found: Rates | None) -> Any:
    """The rotated tensor, or None if the tables are no rotation by positions along one dimension."""
    if found is None or len(value.shape) != 4:
        return None
    dim, rates, factor = found
    if dim == 1 and isinstance(value, Tensor):
        return ops.rotary(value, rates=rates, factor=factor, name=name)
    if dim != 2:
        return None
    base = swapped(value, 1, 2, f"{name}.turned")
    return Later(ops.rotary(base, rates=rates, factor=factor, name=name), (1, 2), f"{name}.back")


def _rates(cosine: Fixed, sine: Fixed, dims: int) -> Rates | None:
    """What two tables say of rotary positions; None for other tables."""
    sources = [table.recipe or table.tensor for table in (cosine, sine)]
    if any(len(source.shape) > dims or source.shape[-1] % 2 for source in sources) or sources[0].shape != sources[1].shape:
        return None
    along = [dim for dim in range(-len(sources[0].shape), -1) if any(varies(source, dim) for source in sources)]
    if len(along) != 1:
        return None
    index = tuple(slice(None) if dim in (along[0], -1) else 0 for dim in range(-len(sources[0].shape), 0))
    c, s = (exact(source)[index].double().numpy() for source in sources)
    half = c.shape[-1] // 2
    factor = float(np.hypot(c[0, 0], s[0, 0]))
    if factor == 0 or (c[:, :half] != c[:, half:]).any() or (s[:, :half] != s[:, half:]).any():
        return None
    rates = _said_rates(np.arctan2(s[1, :half], c[1, :half]), 2 * half)
    at = np.unique(np.concatenate([np.arange(min(CHECKED, len(c))), np.linspace(0, len(c) - 1, CHECKED).astype(int)]))
    angles = at[:, None] * rates
    off = np.maximum(abs(np.cos(angles) * factor - c[at, :half]), abs(np.sin(angles) * factor - s[at, :half]))
    fits = (off <= factor * (1e-5 + 1e-6 * at[:, None])).all()  # angles of float32 are off by as many ulps as they are large
    return (dims + along[0], tuple(float(rate) for rate in rates), _rounded(factor)) if fits else None


def _said_rates(rates: np.ndarray[Any, Any], features: int) -> np.ndarray[Any, Any]:
    """The rates without the rounding of tables, if they follow from one base."""
    if len(rates) < 2 or not 0 < rates[1] < 1:
        return rates
    theta = float(rates[1] ** (-features / 2))
    for base in (round(theta), round(theta, -int(np.log10(theta)) + 4) if theta >= 1e5 else theta, theta):
        said = frequencies(features, base)
        if base > 1 and np.allclose(said, rates, rtol=1e-4, atol=0):
            return said
    return rates


def _rounded(factor: float) -> float:
    return 1.0 if abs(factor - 1) < 1e-6 else factor


# ---- silu(gate) x -------------------------------------------------------------------------------------------------------------


def _swiglu(look: _Look, step: TorchStep) -> Fusion | None:
    if step.kind != "function" or step.name != "mul" or len(step.args) != 2 or step.kwargs:
        return None
    for gate, x in (step.args, step.args[::-1]):
        made = look.steps[gate.step] if isinstance(gate, Ref) and isinstance(x, Ref) else None
        if made is None or not _is_silu(look, made) or not made.args or not isinstance(made.args[0], Ref):
            continue
        if look.readers[made.number] != [step.number] or made.values[0].shape != look.steps[x.step].values[x.index].shape:
            continue

        def build(name: str, gate: Any, x: Any) -> Any:
            fits = isinstance(gate, Tensor) and isinstance(x, Tensor) and gate.spec == x.spec
            return ops.swiglu(gate, x, name=name) if fits else None

        return Fusion(frozenset({step.number, made.number}), (made.args[0], x), build)
    return None


def _is_silu(look: _Look, step: TorchStep) -> bool:
    if step.kind == "module":
        return type(look.module.get_submodule(step.target)).__name__ in ("SiLU", "SiLUActivation")
    return step.kind == "function" and step.name == "silu"


# ---- heads of keys and values, each for several heads of queries ---------------------------------------------------------------


def _again(look: _Look, step: TorchStep) -> Fusion | None:
    """``x[:, :, None].expand(N, G, times, T, D).reshape(N, G times, T, D)``."""
    if step.kind != "function" or step.name not in ("reshape", "flatten", "view") or step.values[0].ndim != 4:
        return None
    repeated = look.step(step.args[0], "expand")
    alone = look.step(repeated.args[0], "getitem", "unsqueeze") if repeated is not None else None
    x = alone.args[0] if alone is not None else None
    if repeated is None or alone is None or not isinstance(x, Ref):
        return None
    before, after = alone.values[0].shape, repeated.values[0].shape
    given = look.steps[x.step].values[x.index].shape
    grouped = len(given) == 4 and before == (*given[:2], 1, *given[2:]) and after == (*given[:2], after[2], *given[2:])
    if not grouped or step.values[0].shape != (given[0], given[1] * after[2], *given[2:]):
        return None
    times = int(after[2])
    inside = frozenset({step.number, repeated.number, alone.number})
    return Fusion(inside, (x,), lambda name, value: Again(value, times, name), True)


# ---- features put where a token is, and taken from there -----------------------------------------------------------------------


def _placed(look: _Look, step: TorchStep) -> Fusion | None:
    found = placed(look, step)
    return None if found is None else Fusion(*found)


def _picked(look: _Look, step: TorchStep) -> Fusion | None:
    found = picked(look, step)
    return None if found is None else Fusion(*found)
