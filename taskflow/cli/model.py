"""MODEL on the command line: a built-in network by name, a user's function that returns an OperatorGraph or a PyTorch module,
or a file from another system."""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from taskflow.cli.imported import (
    HUGGING_FACE,
    OPTIONS,
    exported_file,
    graph_of,
    hugging_face,
    importing,
    notes_shown,
    onnx_file,
    without_weights,
)
from taskflow.floats import float_type
from taskflow.graph import OperatorGraph
from taskflow.models import MODELS, build, find, find_sized

FROZEN = "--freeze"  # among settings; no parameter of a function has such a name
_OWN = str(Path(__file__).resolve().parents[1]) + os.sep
_LIBRARY = os.path.dirname(os.__file__) + os.sep


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """Return ``["hidden=512", "steps=20"]`` as a table. Raises ValueError if an entry is not KEY=VALUE or is given twice."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key.isidentifier():
            raise ValueError(f"--set {text}: write KEY=VALUE, for example --set hidden=512")
        if key in found:
            raise ValueError(f"--set {key}: given twice, as {found[key]} and {value.strip()}")
        found[key] = value.strip()
    return found


def build_model(
    name: str, batch: int | None, devices: int, *, size: str = "paper", settings: Mapping[str, str] | None = None
) -> OperatorGraph:
    """Return the graph of a built-in network, of ``package.module:function`` or ``path/to/file.py:function``, of
    ``hf:CONFIG.json``, or of ``FILE.onnx`` or ``FILE.pt2``.

    ``batch``: samples a step of the whole machine; None: the network's own, or the function's default. ``size``: of a built-in
    network ``paper``, ``small`` or the name of a published size (`find_sized`). ``settings``: texts that replace single sizes,
    or keyword arguments of a function; `FROZEN`: patterns of what is not trained. What an import leaves out or replaces is said on
    stderr. Raises ValueError, FileNotFoundError or ImportError with what to do.
    """
    given = dict(settings or {})
    frozen = given.pop(FROZEN, "").split()
    with notes_shown(), importing(name):
        graph = _built(name, batch, devices, size, given)
    graph.freeze(*frozen)
    return graph


def is_function(name: str) -> bool:
    """Return whether a model's name is that of a function of the user's, which may take no --dtype."""
    return ":" in name and not name.startswith(HUGGING_FACE) and not name.endswith((".onnx", ".pt2"))


def _built(name: str, batch: int | None, devices: int, size: str, settings: dict[str, str]) -> OperatorGraph:
    if name.startswith(HUGGING_FACE):
        _require_no_size(name, size)
        return hugging_face(name, batch, settings)
    if name.endswith(".onnx"):
        _require_no_size(name, size)
        return onnx_file(name, batch, settings)
    if name.endswith(".pt2"):
        _require_no_size(name, size)
        return exported_file(name, batch, settings)
    if is_function(name):
        _require_no_size(name, size)
        return _call(name, batch, settings)
    if name.endswith(".py"):
        raise ValueError(f"model {name}: which function of the file? write {name}:FUNCTION")
    if name.endswith(".json"):
        raise ValueError(
            f"model {name}: a config of Hugging Face is hf:{name}; a plan is for 'taskflow explain {name}', or for --strategy, "
            "beside its model"
        )
    known, model = _find(name, size)
    preset = "small" if size == "small" else "paper"
    config = model.small if preset == "small" else model.paper
    if "batch" in settings:
        if batch is not None:
            raise ValueError(f"{known}: --batch {batch} and --set batch={settings['batch']} say the same twice; give one")
        batch = _value(known, "batch", int, settings.pop("batch"))
    dtype = float_type(settings.pop("dtype", "float32")).name
    hints = typing.get_type_hints(type(config))
    there_are = [field.name for field in fields(config)]
    values = {}
    for key, text in settings.items():
        if key not in there_are:
            kinds = ", ".join(f"{f} ({getattr(config, f)!r})" for f in there_are)
            raise ValueError(f"{known}: no size {key!r}{_meant(key, there_are)}; there are {kinds}")
        values[key] = _value(known, key, hints[key], text)
    return build(known, batch, devices, preset=preset, dtype=dtype, **values)


def _require_no_size(name: str, size: str) -> None:
    if size != "paper":
        raise ValueError(f"model {name}: --size {size} is for built-in networks; set the function's parameters with --set")


def _find(name: str, size: str) -> tuple[str, Any]:
    try:
        find(name)
    except ValueError as error:
        head, _, there_are = str(error).partition(";")
        others = "hf:CONFIG.json, FILE.onnx, FILE.pt2, file.py:function or package.module:function"
        raise ValueError(f"{head}{_meant(name, MODELS)};{there_are}; or {others}") from None
    return find_sized(name, size)


def _meant(word: str, there_are: typing.Iterable[str]) -> str:
    lower = {text.lower(): text for text in there_are}
    close = difflib.get_close_matches(word.lower(), lower, 1)
    return f" (did you mean {lower[close[0]]}?)" if close else ""


# ---- functions -------------------------------------------------------------------------------------------------------
def _call(name: str, batch: int | None, settings: dict[str, str]) -> OperatorGraph:
    function = function_at(name)
    signature = inspect.signature(function)
    taken = _taken(function)
    wild = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    hints = _hints(function)
    values: dict[str, Any] = {}
    options = {key: _value(f"model {name}", key, Any, settings[key]) for key in OPTIONS if key in settings and key not in taken}
    for key, text in settings.items():
        if key in options:
            continue
        if key not in taken and not wild:
            there_are = ", ".join(taken) or "none"
            if key == "dtype":
                raise ValueError(
                    f"model {name}: --dtype is for a function that takes the parameter 'dtype' (it has {there_are}); make the "
                    "network of that type in the function, a torch.nn.Module by to(torch.bfloat16), and leave --dtype out"
                )
            raise ValueError(f"model {name}: no parameter {key!r}{_meant(key, taken)}; there are {there_are}")
        values[key] = _argument(f"model {name}", key, text, taken.get(key), hints)
    if batch is not None:
        if "batch" in values:
            raise ValueError(f"model {name}: --batch {batch} and --set batch={values['batch']} say the same twice; give one")
        if "batch" not in taken and not wild:
            raise ValueError(f"model {name}: takes no parameter 'batch', so --batch cannot set it; leave --batch out")
        values["batch"] = batch
    missing = [
        p.name for p in signature.parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in values
    ]
    if missing:
        how = ["--batch N" if m == "batch" else f"--set {m}=VALUE" for m in missing]
        raise ValueError(f"model {name}: needs {', '.join(missing)}; give {' '.join(how)}")
    try:
        answer = without_weights(function, values)
    except SystemExit as error:
        raise ValueError(f"model {name}: the function ends the program (sys.exit){_where(error)}; let it return") from error
    except Exception as error:  # the user's own code: any error of it is theirs to correct
        raise ValueError(f"model {name}: the function raised {type(error).__name__}: {error}{_where(error)}") from error
    graph = graph_of(name, answer, options)
    if not isinstance(graph, OperatorGraph):
        wanted = "a taskflow.OperatorGraph, a torch.nn.Module or an exported program"
        raise ValueError(f"model {name}: must return {wanted}, got {type(graph).__name__}")
    if not len(graph):
        raise ValueError(f"model {name}: returned a graph without operators")
    if graph.name == "model":
        graph.name = name.rpartition(":")[2]
    return graph


def arguments_of(who: str, function: Callable[..., Any], settings: Mapping[str, str]) -> dict[str, Any]:
    """Return those of some settings that a function takes, as the types that it says. Raises ValueError for a text that is none."""
    taken, hints = _taken(function), _hints(function)
    return {key: _argument(who, key, text, taken[key], hints) for key, text in settings.items() if key in taken}


def _taken(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function that have names."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name: p for p in inspect.signature(function).parameters.values() if p.kind in named}


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # names that only a type checker knows
        return {}


def _argument(who: str, key: str, text: str, parameter: inspect.Parameter | None, hints: Mapping[str, Any]) -> Any:
    """A text as the type that a parameter says, or that its default has."""
    default = parameter.default if parameter is not None else inspect.Parameter.empty
    hint = hints.get(key, type(default) if default not in (None, inspect.Parameter.empty) else Any)
    return _value(who, key, hint, text)


def function_at(name: str) -> Callable[..., Any]:
    """Return the function at ``package.module:function`` or ``path/to/file.py:function``. Raises ValueError, FileNotFoundError or
    ImportError with what to do."""
    where, _, attribute = name.rpartition(":")
    module = _from_file(name, Path(where)) if where.endswith(".py") else _from_package(name, where)
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if found is None:
        own = [k for k, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__ and k[0] != "_"]
        there_are = ", ".join(own) or "no function"
        raise ValueError(f"model {name}: {where} has no {attribute!r}{_meant(attribute, own)}; it has {there_are}")
    if not callable(found):
        raise ValueError(f"model {name}: {attribute} must be a function that returns an OperatorGraph, got {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def _from_file(name: str, path: Path) -> types.ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"model {name}: there is no file {path}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # a script may import its neighbours
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(f"taskflow_model_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for the module by name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(f"model {name}: {path} cannot be imported: {_cause(error)}") from error
    return module


def _from_package(name: str, where: str) -> types.ModuleType:
    if os.getcwd() not in sys.path:  # a console script's path does not have the current folder
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(where)
    except ImportError as error:
        raise ImportError(
            f"model {name}: cannot import {where}: {error}; run from the folder it is in, or write path/to/file.py:function"
        ) from error
    except (Exception, SystemExit) as error:
        raise ValueError(f"model {name}: {where} cannot be imported: {_cause(error)}") from error


def _cause(error: BaseException) -> str:
    """Return what was wrong when a user's file was imported, and where."""
    if isinstance(error, SystemExit):
        return f'it ends the program (sys.exit){_where(error)}; put what it runs as a script under if __name__ == "__main__"'
    missing = isinstance(error, ModuleNotFoundError) and error.name
    advice = f"; install it where taskflow is installed (pip install {error.name}), or correct the name" if missing else ""  # type: ignore[attr-defined]
    return f"{type(error).__name__}: {error}{_where(error)}{advice}"


def _where(error: BaseException) -> str:
    """Return " (line 7 of net.py)", the last line of the user's own code that an error came through, unless the error says it."""
    found, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not (file.startswith((_OWN, _LIBRARY, "<")) or "site-packages" in file):
            found = f" (line {trace.tb_lineno} of {os.path.basename(file)})"
        trace = trace.tb_next
    return "" if "(line " in str(error) or isinstance(error, SyntaxError) else found


# ---- values ----------------------------------------------------------------------------------------------------------
def _value(who: str, key: str, hint: Any, text: str) -> Any:
    """``text`` as a value of the annotated type; ValueError if it is none."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union else (hint,)
    if type(None) in options and text.lower() == "none":
        return None
    for option in options:
        if option is not type(None):
            try:
                return _as(option, text)
            except (ValueError, SyntaxError):
                continue
    kinds = " or ".join(_in_words(option) for option in options)
    raise ValueError(f"{who}: {key} must be {kinds}, got {text!r}")


def _in_words(kind: Any) -> str:
    if kind is type(None):
        return "none"
    if kind is tuple or typing.get_origin(kind) is tuple:
        count = _length(kind)
        return f"{f'{count} ' if count else ''}values with commas between them ({','.join(['512'] * (count or 2))})"
    return str(getattr(kind, "__name__", kind))


def _length(kind: Any) -> int | None:
    """How many values a tuple of this type has; None: any number."""
    of = typing.get_args(kind)
    return None if not of or of[-1] is Ellipsis or typing.get_origin(kind) is not tuple else len(of)


def _as(kind: Any, text: str) -> Any:
    if kind is bool:
        if text.lower() not in ("true", "false", "yes", "no", "1", "0"):
            raise ValueError(text)
        return text.lower() in ("true", "yes", "1")
    if kind in (int, float, str):
        return kind(text)
    origin = typing.get_origin(kind) or kind
    if origin in (tuple, list):
        found = origin(ast.literal_eval(text if text[:1] in ("(", "[") else f"({text},)"))
        if _length(kind) not in (None, len(found)):
            raise ValueError(text)
        return found
    if is_dataclass(kind):
        raise ValueError(text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text  # no annotation: a plain word
