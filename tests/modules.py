"""Modules that packages hide: ``taskflow.optimizer.search`` is the function, and the module of that name has what it looks up."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def module_of(function: Callable[..., Any]) -> ModuleType:
    """Where ``function`` is written, and so where a test must replace what it uses."""
    return sys.modules[function.__module__]
