"""Choice of a mapper by the name that a user writes: ``data``, a strategy file, or a class of their own."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable

from taskflow.graph import OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper.expert import Expert
from taskflow.mapper.hybrid import HybridParallel
from taskflow.mapper.mapper import Mapper, map_graph
from taskflow.mapper.megatron import Megatron
from taskflow.mapper.plan import is_plan
from taskflow.mapper.rules import DataParallel, ModelParallel, RandomMapper, RoundRobin
from taskflow.mapper.strategy import Strategy
from taskflow.mapper.strategy_file import load

MAPPERS: dict[str, Callable[[], Mapper]] = {
    "data": DataParallel,
    "model": ModelParallel,
    "expert": Expert,
    "megatron": Megatron,
    "round-robin": RoundRobin,
    "random": RandomMapper,
}


def choose(name: str, graph: OperatorGraph, machine: Machine, *, seed: int = 0) -> tuple[Strategy, Mapper]:
    """Return the strategy that ``name`` stands for, and the mapper that answers the runtime's other questions.

    ``name`` is one of these:

    - one of MAPPERS
    - a plan such as ``t2 p2 mb1`` (`parse_plan`)
    - a strategy file that ends in ``.json``; the mapper then gives its default answers
    - ``package.module:Class``, a Mapper class without required arguments; modules in the current folder are found too

    Raises ValueError, FileNotFoundError or ImportError with what to do.
    """
    if not isinstance(name, str):
        raise ValueError(f"choose: the mapper must be named by text, such as 'data', got {name!r}")
    if not hasattr(machine, "processors"):
        raise ValueError(f"choose: machine must be a machine, such as taskflow.host(4), got {machine!r}")
    if name.endswith(".json"):
        return load(name, graph, len(machine.processors)), DataParallel()
    if name == "random":
        mapper: Mapper = RandomMapper(seed)
    elif name in MAPPERS:
        mapper = MAPPERS[name]()
    elif is_plan(name):
        mapper = HybridParallel(name)
    elif ":" in name:
        mapper = _import(name)
        try:
            return map_graph(mapper, graph, machine), mapper
        except ValueError:
            raise
        except Exception as error:  # the user's own code: any error of it is theirs to correct
            raise ValueError(f"mapper {name}: raised {_message(error)}") from error
    else:
        raise ValueError(
            f"no mapper {name!r}; use {', '.join(MAPPERS)}, a plan such as 't2 p2 mb1', a strategy file FILE.json, or "
            "package.module:Class"
        )
    return map_graph(mapper, graph, machine), mapper


def _import(name: str) -> Mapper:
    module_name, _, class_name = name.partition(":")
    if os.getcwd() not in sys.path:  # a script's sys.path has the script's folder, not the one it was started in
        sys.path.append(os.getcwd())
    if module_name.endswith(".py"):
        meant = module_name.removesuffix(".py").replace("/", ".")
        raise ValueError(f"mapper {name}: write the module's name, not the file's: {meant}:{class_name}")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ImportError(f"mapper {name}: cannot import {module_name}: {error}") from error
    except (Exception, SystemExit) as error:  # of the user's own file
        raise ValueError(f"mapper {name}: cannot import {module_name}: {type(error).__name__}: {error}") from error
    found = getattr(module, class_name, None)
    if not (inspect.isclass(found) and issubclass(found, Mapper)):
        raise ValueError(f"mapper {name}: {module_name} has no class {class_name} that is a taskflow.Mapper")
    if missing := sorted(found.__abstractmethods__):
        raise ValueError(f"mapper {name}: {class_name} lacks {', '.join(missing)}")
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise ValueError(f"mapper {name}: {class_name} must be callable without arguments, but {error}") from error
    try:
        return found()
    except Exception as error:
        raise ValueError(f"mapper {name}: {class_name}() raised {_message(error)}") from error


def _message(error: Exception) -> str:
    """Return an error of a user's code with its last line outside of taskflow."""
    own = os.path.dirname(os.path.dirname(__file__)) + os.sep
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
    where = f" (line {lines[-1].lineno} of {os.path.basename(lines[-1].filename)})" if lines else ""
    return f"{type(error).__name__}: {error}{where}"
