"""Recipes of the fixed tensors of one recording: what is small is computed, of what is large it is noted how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from taskflow.models.pytorch import recipes
from taskflow.models.pytorch.calls import DRAWS, QUERIES, changes_an_argument, tensors_of
from taskflow.models.pytorch.parts import cut_dim, indices_of
from taskflow.models.pytorch.recipes import UNSET, Recipe, is_large, plain_name, whole, written
from taskflow.models.pytorch.site import Unsupported
from taskflow.models.pytorch.steps import leaves, mapped

RANDOM = {"uniform", "normal", "bernoulli", "exponential", "random", "geometric", "log_normal", "cauchy"}


class Recipes:
    """The recipes of the fixed tensors of one recording, by the tensors' identity. ``mode``: in which stand-ins are made."""

    def __init__(self, mode: Any, inside: Callable[[], str]) -> None:
        self.mode, self.inside = mode, inside
        self.known: dict[int, Recipe] = {}
        self.stale: dict[int, Any] = {}  # tables of which a part was written: that part's index, or None

    def has(self, value: torch.Tensor) -> bool:
        """True if it is known how a tensor is computed."""
        return id(value) in self.known

    def reads(self, value: torch.Tensor) -> bool:
        """True if something was computed from this tensor."""
        return any(leaf is value for known in self.known.values() for leaf in leaves((known.args, known.kwargs)))

    def unset(self, value: torch.Tensor) -> tuple[torch.Tensor, Any] | None:
        """Return the array without numbers that a tensor is, or is a part of, with the index of that part; None for others."""
        recipe, index = self.known.get(id(value)), slice(None)
        if recipe is not None and plain_name(recipe.function) == "getitem" and isinstance(recipe.args[0], Recipe):
            recipe, index = recipe.args[0], recipe.args[1]
        return (recipe.tensor, index) if recipe is not None and plain_name(recipe.function) in UNSET else None

    def forget(self, value: torch.Tensor) -> None:
        """Forget how a tensor was computed: it is written now."""
        self.known.pop(id(value), None)

    def of(self, value: torch.Tensor) -> Recipe | None:
        """Return how a tensor is computed, if that is known. Raises Unsupported where a part of it was written since."""
        self._require_unwritten(value)
        return self.known.get(id(value))

    def computed(self, name: str, run: Any, args: Any, kwargs: Any) -> Any:
        """Compute a fixed tensor, or note only how, if it is large; what is small and follows from large ones is computed."""
        given = tensors_of((args, kwargs))
        large = any(isinstance(value, FakeTensor) for value in given)
        changes = changes_an_argument(run, args, kwargs)
        if large and plain_name(run) == "setitem" and self._writes_part(*args):
            return None
        for value in given:
            if plain_name(run) != "getitem" or not _apart(self.stale.get(id(value)), args[1]):
                self._require_unwritten(value)
        if large and changes and any(self._shares(args[0], other) for other in self.known.values()):
            where = self.inside() or "forward"
            raise Unsupported(f"{name} in {where} writes into a part of a table of {given[0].numel():,} numbers")
        if name in QUERIES and name != "__get__":
            return run(*args, **kwargs)
        if large and plain_name(run) in RANDOM:
            raise Unsupported(DRAWS)
        recipe = (run, *mapped(self._recipe, (args, kwargs)))
        if large or (not changes and is_large(run, args, kwargs)):
            with self.mode:
                result = run(*mapped(self._fake, args), **mapped(self._fake, kwargs))
            small = isinstance(result, torch.Tensor) and result.numel() <= recipes.LARGE and plain_name(run) not in UNSET
            small = small and not any(self.unset(value) is not None for value in given)
            if not tensors_of(result) or (small and not changes):
                result = run(*mapped(whole, recipe[1]), **mapped(whole, recipe[2])) if tensors_of(result) else result
        else:
            result = run(*args, **kwargs)
        if large and isinstance(result, (tuple, list)) and isinstance(recipe[1][0], Recipe):
            for part, index in indices_of(plain_name(run), result, *args[1:2], **kwargs) or ():
                self.known[id(part)] = Recipe(part, torch.Tensor.__getitem__, (recipe[1][0], index), {})
        if isinstance(result, torch.Tensor):
            if changes and not large:
                self.known.pop(id(result), None)
            else:
                self.known[id(result)] = Recipe(result, *recipe)
        return result

    def _writes_part(self, into: Any, index: Any, value: Any) -> bool:
        """Note that a range of one dimension of a table, or of the table ``base[3]``, has other numbers from there on. False for
        another table or index."""
        recipe = self.known.get(id(into))
        if recipe is None or cut_dim(index, into.ndim) is None or plain_name(recipe.function) in UNSET:
            return False
        base, of = recipe.args[:2] if plain_name(recipe.function) == "getitem" else (None, None)
        new = self._recipe(value)
        for other in self.known.values():
            if self._shares(into, other) and not (
                other.args and other.args[0] is base and plain_name(other.function) == "getitem" and _apart(of, other.args[1])
            ):
                self.stale[id(other.tensor)] = of if other is base else None
        self.known[id(into)] = Recipe(into, written, (recipe, index, new), {})
        return True

    def _require_unwritten(self, value: torch.Tensor) -> None:
        if id(value) in self.stale:
            where = self.inside() or "forward"
            raise Unsupported(f"a part of a table of {value.numel():,} numbers was written, which {where} reads again")

    def _fake(self, value: Any) -> Any:
        """A tensor without numbers; PyTorch would compute with those of a few constants."""
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
            return value
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)

    def _shares(self, value: Any, other: Recipe) -> bool:
        same = other.tensor is not value and isinstance(other.tensor, FakeTensor)
        return same and other.tensor.untyped_storage()._cdata == value.untyped_storage()._cdata

    def _recipe(self, value: Any) -> Any:
        return self.known.get(id(value), value) if isinstance(value, torch.Tensor) else value


def _apart(one: Any, other: Any) -> bool:
    """True for two indices by different whole numbers first."""
    first, second = (index[0] if isinstance(index, tuple) and index else index for index in (one, other))
    return type(first) is type(second) is int and first != second and first >= 0 <= second
