"""Old names of public modules and classes still import, with a warning that says the new one."""

from __future__ import annotations

import importlib
import pickle
import sys
from enum import EnumMeta

import pytest

import taskflow
from taskflow.mapper import UpdatePlacement
from taskflow.moved import MODULES, NAMES


@pytest.mark.parametrize("old", MODULES)
def test_old_modules_import_with_a_warning(old: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {MODULES[old]}"):
        module = importlib.import_module(old)
    new = importlib.import_module(MODULES[old])
    public = [name for name in vars(new) if not name.startswith("_")]
    assert public and all(getattr(module, name) is getattr(new, name) for name in public)


@pytest.mark.parametrize("module,old,new", [(module, old, new) for module, names in NAMES.items() for old, new in names.items()])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_names_are_the_new_classes(module: str, old: str, new: str) -> None:
    place = importlib.import_module(MODULES.get(module, module))
    assert getattr(importlib.import_module(module), old) is getattr(place, new)


def test_old_names_warn() -> None:
    with pytest.warns(DeprecationWarning, match=r"taskflow\.Travel is now called SyncAlgorithm"):
        assert taskflow.Travel is taskflow.SyncAlgorithm
    with pytest.warns(DeprecationWarning, match=r"taskflow\.mapper\.Place is now called UpdatePlacement"):
        from taskflow.mapper import Place
    assert Place is taskflow.UpdatePlacement


@pytest.mark.parametrize(("old", "new"), [("EVERY", "REPLICATED"), ("SPREAD", "SHARDED")])
def test_old_members_warn_and_are_the_new_ones(old: str, new: str) -> None:
    member = UpdatePlacement.__members__[new]
    with pytest.warns(DeprecationWarning, match=rf"UpdatePlacement\.{old} is now called UpdatePlacement\.{new}") as seen:
        assert getattr(UpdatePlacement, old) is member
    assert seen[0].filename == __file__ and type(UpdatePlacement) is EnumMeta  # which msgspec asks for
    assert old not in UpdatePlacement.__members__ and member.name == new


@pytest.mark.filterwarnings("error")
def test_new_members_do_not_warn() -> None:
    assert [UpdatePlacement[place.name] for place in UpdatePlacement] == list(UpdatePlacement) and len(UpdatePlacement) == 3
    assert pickle.loads(pickle.dumps(UpdatePlacement.SHARDED)) is UpdatePlacement.SHARDED
    assert [place.value for place in UpdatePlacement] == ["every", "owner", "spread"], "as strategy files have them"
    for name in ("EVER", "_missing"):
        with pytest.raises(AttributeError, match=name):
            getattr(UpdatePlacement, name)


def test_what_never_was_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Traveller'"):
        _ = taskflow.Traveller
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("taskflow.optimizer.foundry")
