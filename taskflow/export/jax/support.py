"""Support: code that every exported module for JAX contains. `code.py` replaces the tables between the two marks by those of a
plan."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


@dataclass(frozen=True)
class Kept:
    """Parameter. ``spec``: its layout when it is read. ``state``: the layout of its optimiser state. ``zero``: the stage of
    ZeRO: from 1 the update is computed in the layout ``state``, from 2 gradients are added up in it, with 3 the parameter is
    kept in it."""

    shape: tuple[int, ...]
    spec: P
    state: P
    zero: int = 0


@dataclass(frozen=True)
class Leaf:
    """Description of a leaf of your parameters: the plan's ``name``, and for each axis of the leaf the plan's axis (None: none,
    such as that of stacked layers). ``axes`` None: the same axes."""

    name: str
    axes: tuple[int | None, ...] | None = None


Names = Callable[[tuple[str, ...]], "str | Leaf"]
Counted = Callable[[Any], Any]
# <plan>
AXES: dict[str, int] = {}
ORDER: tuple[int, ...] = ()
SAMPLES: tuple[str, ...] = ()
MICRO_BATCHES = 1
PARAMETERS: dict[str, Kept] = {}
ACTIVATIONS: dict[str, tuple[P, ...]] = {}
RECOMPUTED: tuple[str, ...] = ()
# </plan>


# ---- names -----------------------------------------------------------------------------------------------------------

def dotted(path: tuple[str, ...]) -> str | Leaf:
    """Return the plan's name of a leaf or module, given its path: keys joined by dots. ``layers_0`` of Flax becomes
    ``layers.0``, ``kernel`` a weight with its axes in the other order, ``scale`` and ``embedding`` weights; ``params`` is left
    out."""
    parts = [re.sub(r"_(\d+)$", r".\1", part) for part in path if part != "params"]
    name, last = ".".join(parts), path[-1] if path else ""
    if last in ("kernel", "scale", "embedding"):
        name = ".".join([*parts[:-1], "weight"])
    if last == "kernel" and len(_found(PARAMETERS, name).shape) == 2:
        return Leaf(name, (1, 0))
    if last == "kernel":  # a convolution's: space first there, channels first here
        many = len(_found(PARAMETERS, name).shape)
        return Leaf(name, (*range(2, many), 1, 0))
    return name


def _pattern(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)", "#", name)


def _found(table: Mapping[str, Any], name: str) -> Any:
    """The entry of a name or of its pattern, in which # stands for numbers. KeyError with the names there are."""
    for key in (name, _pattern(name)):
        if key in table:
            return table[key]
    raise KeyError(f"the plan has no {name!r}; give a function `names` that maps your paths to its names: {', '.join(table)}")


def _keys(path: Any) -> tuple[str, ...]:
    return tuple(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)


def _known(path: Any, leaf: Any, names: Names) -> Kept:
    """The plan's entry of a leaf, with specs in the order of the leaf's axes. ValueError if shapes differ."""
    named = names(_keys(path))
    given = named if isinstance(named, Leaf) else Leaf(named)
    kept: Kept = _found(PARAMETERS, given.name)
    axes = given.axes if given.axes is not None else tuple(range(len(kept.shape)))
    wanted = tuple(size if axis is None else kept.shape[axis] for axis, size in zip(axes, leaf.shape))
    named_all = sorted(axis for axis in axes if axis is not None) == [*range(len(kept.shape))]
    if len(axes) != len(leaf.shape) or wanted != tuple(leaf.shape) or not named_all:
        raise ValueError(
            f"{'.'.join(_keys(path))} has the shape {tuple(leaf.shape)}, but the plan's {given.name} is {kept.shape}, read with "
            f"axes {axes}; let `names` return Leaf(name, axes)"
        )
    specs = [P(*(None if axis is None else spec[axis] for axis in axes)) for spec in (kept.spec, kept.state)]
    return Kept(tuple(leaf.shape), specs[0], specs[1], kept.zero)


# ---- the mesh and what lies on it ------------------------------------------------------------------------------------

_active: ContextVar[Mesh | None] = ContextVar("mesh of the step that is traced", default=None)


def mesh(devices: Any = None) -> Mesh:
    """Return the plan's mesh. ``devices``: as many as it has, in the order of the plan's numbers; None: the first of
    jax.devices()."""
    given = list(jax.devices() if devices is None else devices)
    if len(given) < len(ORDER) or max(ORDER) >= len(given):
        raise ValueError(f"the plan is for devices 0 to {max(ORDER)}, but there are {len(given)}")
    return Mesh(np.array([given[number] for number in ORDER], dtype=object).reshape(tuple(AXES.values())), tuple(AXES))


def specs(params: Any, names: Names = dotted) -> Any:
    """Return the layout in which parameters are kept: a PartitionSpec for each leaf."""
    return _each(lambda kept: kept.state if kept.zero == 3 else kept.spec, params, names)


def shard(params: Any, on: Mesh, names: Names = dotted) -> Any:
    """Move parameters to where the plan keeps them."""

    def put(x: Any, spec: P) -> Any:  # a copy: a step gives its arguments' memory away, which must not be yours
        return jax.device_put(x.copy(), NamedSharding(on, spec))

    return jax.tree.map(put, params, specs(params, names))


def shard_batch(batch: Any, on: Mesh) -> Any:
    """Move a whole batch, samples first, to where the plan has its samples."""
    return jax.tree.map(lambda x: jax.device_put(x, NamedSharding(on, P(SAMPLES or None))), batch)


def init_state(optimizer: Any, params: Any, on: Mesh, names: Names = dotted) -> Any:
    """Return an optax optimiser's state for parameters that are in place, where the plan keeps it."""
    by = jax.tree.map(lambda spec: NamedSharding(on, spec), state_specs(optimizer, params, names))
    return jax.jit(optimizer.init, out_shardings=by)(params)


def state_specs(optimizer: Any, params: Any, names: Names = dotted) -> Any:
    """Return a PartitionSpec for each leaf of an optimiser's state. Leaves with a parameter's path and shape get the plan's
    layout."""
    known = {_keys(path): _known(path, leaf, names) for path, leaf in jax.tree_util.tree_leaves_with_path(params)}

    def spec(path: Any, leaf: Any) -> P:
        keys = _keys(path)
        for start in range(len(keys)):
            kept = known.get(keys[start:])
            if kept is not None and kept.shape == tuple(leaf.shape):
                return kept.state if kept.zero else kept.spec
        return P()

    return jax.tree_util.tree_map_with_path(spec, jax.eval_shape(optimizer.init, params))


def constrain(x: Any, name: str) -> Any:
    """Return the output ``x`` of operator ``name`` in the plan's layout. Outside a step of this plan it is ``x`` itself, so
    that the same code runs alone. Raises ValueError for axes that a cut does not divide, since jax.jit would silently replicate
    them."""
    on = _active.get()
    if on is None:
        return x
    for spec in _found(ACTIVATIONS, name):
        _check(x.shape, spec, name)
        x = jax.lax.with_sharding_constraint(x, NamedSharding(on, spec))
    return checkpoint_name(x, name)


def _check(shape: tuple[int, ...], spec: P, name: str) -> None:
    if len(spec) > len(shape):
        raise ValueError(f"{name}: the plan has {len(spec)} axes as {spec}, but it is given the shape {shape}")
    for axis, (size, entry) in enumerate(zip(shape, spec)):
        many = prod(AXES[key] for key in ((entry,) if isinstance(entry, str) else entry or ()))
        if size % many:
            raise ValueError(f"{name}: axis {axis} of {shape} cannot be cut evenly in {many}, as the plan says ({spec})")


def constrained_flax(names: Callable[[tuple[str, ...]], Any] = dotted) -> Any:
    """Return a context in which each module of flax.linen whose path is an operator of the plan returns its output in the
    plan's layout."""
    import flax.linen as nn

    def intercept(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        result = call(*args, **kwargs)
        if context.method_name != "__call__" or not context.module.path:
            return result
        name = names(context.module.path)
        name = name.name if isinstance(name, Leaf) else name
        return constrain(result, name) if name in ACTIVATIONS or _pattern(name) in ACTIVATIONS else result

    return nn.intercept_methods(intercept)


def _each(what: Callable[[Kept], Any], params: Any, names: Names) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, leaf: what(_known(path, leaf, names)), params)


def _lay(tree: Any, by: Any, on: Mesh) -> Any:
    return jax.tree.map(lambda x, spec: jax.lax.with_sharding_constraint(x, NamedSharding(on, spec)), tree, by)


@contextlib.contextmanager
def _within(on: Mesh) -> Iterator[None]:
    before = _active.set(on)
    try:
        yield
    finally:
        _active.reset(before)


# ---- steps -----------------------------------------------------------------------------------------------------------

GATHERED = "weights gathered from shares"


def gradients(
    loss: Callable[..., Any], params: Any, batch: Any, *rest: Any, on: Mesh, names: Names = dotted, counted: Counted | None = None
) -> tuple[Any, Any]:
    """Return the loss of a batch and its gradients, within a jitted function. ``loss(params, batch, *rest)``: a mean over
    samples, which are the first axis of everything in ``batch``; or over the labels that count, of which ``counted(batch)``
    returns the number. A micro-batch then weighs as much as it has of them."""
    known = _each(lambda kept: (kept,), params, names)

    def used(x: Any, kept: tuple[Kept]) -> Any:
        return _gathered(x, kept[0], on) if kept[0].zero == 3 else x

    def whole(params: Any, batch: Any) -> Any:
        with _within(on):
            return loss(jax.tree.map(used, params, known), batch, *rest)

    shared = any(kept.zero == 3 for kept in PARAMETERS.values())
    if RECOMPUTED:
        whole = jax.checkpoint(whole, policy=_keep)
    elif shared:  # gathered once for each pass
        whole = jax.checkpoint(whole, policy=jax.checkpoint_policies.save_anything_except_these_names(GATHERED))
    find: Any = jax.value_and_grad(whole)
    found: tuple[Any, Any]
    if MICRO_BATCHES == 1:
        found = find(params, batch)
        return found
    summed = _each(lambda kept: kept.state if kept.zero > 1 else kept.spec, params, names)

    def parts(x: Any) -> Any:  # every so-many-th sample, so that each stays where it is
        if x.shape[0] % (MICRO_BATCHES * prod(AXES[key] for key in SAMPLES)):
            raise ValueError(f"{x.shape[0]} samples cannot be taken in {MICRO_BATCHES} micro-batches of the plan")
        x = x.reshape(-1, MICRO_BATCHES, *x.shape[1:]).swapaxes(0, 1)
        return jax.lax.with_sharding_constraint(x, NamedSharding(on, P(None, SAMPLES or None)))

    every = None if counted is None else counted(batch)

    def share(x: Any, part: Any) -> Any:
        if counted is None:
            return x / MICRO_BATCHES
        count = counted(part)  # a mean over no labels may be nan
        return jax.numpy.where(count > 0, x * (count / every).astype(x.dtype), jax.numpy.zeros_like(x))

    def add(total: Any, part: Any) -> Any:
        value, grads = jax.tree.map(lambda a, b: a + share(b, part), total, find(params, part))
        return (value, _lay(grads, summed, on)), None

    zeros = _lay(jax.tree.map(lambda x: x * 0, params), summed, on)
    found, _ = jax.lax.scan(add, (0.0, zeros), jax.tree.map(parts, batch))
    return found


def train_step(
    loss: Callable[..., Any], optimizer: Any, on: Mesh, names: Names = dotted, donate: bool = True, counted: Counted | None = None
) -> Callable[..., tuple[Any, Any, Any]]:
    """Return ``step(params, state, batch, *rest)`` -> params, state and the loss before the update, for an optax optimiser.
    With ``donate``, the memory of the given params and state is reused. ``counted``: see `gradients`."""

    def step(params: Any, state: Any, batch: Any, *rest: Any) -> tuple[Any, Any, Any]:
        value, grads = gradients(loss, params, batch, *rest, on=on, names=names, counted=counted)
        updated = _each(lambda kept: kept.state if kept.zero else kept.spec, params, names)
        states = state_specs(optimizer, params, names)
        ours = _lay(params, updated, on)
        changes, state = optimizer.update(_lay(grads, updated, on), state, ours)
        params = jax.tree.map(lambda x, change: x + change.astype(x.dtype), ours, changes)
        return _lay(params, specs(params, names), on), _lay(state, states, on), value

    compiled: Callable[..., tuple[Any, Any, Any]] = jax.jit(step, donate_argnums=(0, 1) if donate else ())
    return compiled


def _gathered(x: Any, kept: Kept, on: Mesh) -> Any:
    """A parameter whole along the replicas; its gradient is added up in shares."""

    def whole(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x, NamedSharding(on, kept.spec))

    def back(_: None, change: Any) -> tuple[Any]:
        return (jax.lax.with_sharding_constraint(change, NamedSharding(on, kept.state)),)

    gather: Any = jax.custom_vjp(whole)
    gather.defvjp(lambda x: (whole(x), None), back)
    return checkpoint_name(gather(x), GATHERED)


def _keep(primitive: Any, *_: Any, **params: Any) -> bool:
    """Policy of what is kept for the backward pass: results of named operators, except for those that the plan recomputes."""
    name = str(params.get("name"))
    if primitive.name != "name" or name == GATHERED:
        return False
    return name not in RECOMPUTED and _pattern(name) not in RECOMPUTED
