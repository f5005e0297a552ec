"""Old names of public modules and classes still import, with a warning that says the new one."""

from __future__ import annotations

import importlib
import sys

import pytest

import taskflow
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


def test_what_never_was_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Traveller'"):
        _ = taskflow.Traveller
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("taskflow.optimizer.foundry")
