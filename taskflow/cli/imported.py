"""Models from elsewhere: Hugging Face's config.json, files of ONNX and torch.export, and PyTorch modules that a function returns,
without weights."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from taskflow.cli.tables import told
from taskflow.graph import OperatorGraph
from taskflow.models import notes_kept
from taskflow.runtime.job import say_once
from taskflow.working import Working
from taskflow.writing import shown

HUGGING_FACE = "hf:"
PATIENCE_SECONDS = 2.0  # before it is said that a network is being read
OPTIONS = ("loss", "verify")  # settings of every import


def hugging_face(name: str, batch: int | None, settings: Mapping[str, str]) -> OperatorGraph:
    """Return the graph of ``hf:CONFIG.json``, or of its text part: ``hf:CONFIG.json#text``. ``settings``: steps, loss, verify, and
    entries of the config to override."""
    from taskflow.models.huggingface import from_config

    values = {key: _plain(text) for key, text in settings.items()}
    if "batch" in values:
        if batch is not None:
            raise ValueError(f"model {name}: --batch {batch} and --set batch={values['batch']} say the same twice; give one")
        batch = values.pop("batch")
    options = _options(values)
    file, _, part = name.removeprefix(HUGGING_FACE).partition("#")
    graph = from_config(file, batch, part=part or None, **options, **values)
    _say_unverified(name, bool(options["verify"]))
    return graph


def onnx_file(name: str, batch: int | None, settings: Mapping[str, str]) -> OperatorGraph:
    """Return the graph of an ONNX file. ``settings``: loss, and verify (default True)."""
    from taskflow.models.onnx import from_onnx

    values = {key: _plain(text) for key, text in settings.items()}
    if other := sorted(values.keys() - {*OPTIONS}):
        raise ValueError(f"model {name}: an ONNX file has no setting {other[0]!r}; there are {', '.join(OPTIONS)}")
    options = _options({"verify": True} | values)
    return from_onnx(name, loss=options["loss"] or "cross_entropy", batch=batch, verify=bool(options["verify"]))


def exported_file(name: str, batch: int | None, settings: Mapping[str, str]) -> OperatorGraph:
    """Return the graph of a program that torch.export.save wrote. ``settings``: loss, and verify (default True)."""
    values = {key: _plain(text) for key, text in settings.items()}
    if other := sorted(values.keys() - {*OPTIONS}):
        raise ValueError(f"model {name}: an exported program has no setting {other[0]!r}; there are {', '.join(OPTIONS)}")
    options = _options({"verify": True} | values)
    if not Path(name).is_file():  # before the seconds that imports take
        raise FileNotFoundError(f"model {name}: there is no file {name}")
    from taskflow.models.pytorch import from_torch
    from taskflow.models.pytorch.exported import examples_of_batch, load_exported

    exported = load_exported(name)
    loss, verify = options["loss"] or "cross_entropy", bool(options["verify"])
    return from_torch(exported, keywords=examples_of_batch(exported, batch), loss=loss, verify=verify, name=shown(Path(name).stem))


def without_weights(function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Return what a user's function returns. If torch is loaded, modules that the function makes have no weights, unless it
    imports them itself."""
    if "torch" not in sys.modules:
        return function(**values)
    from taskflow.models.pytorch import NumbersWantedError, on_meta
    from taskflow.models.pytorch.exported import why_not_exported

    try:
        with on_meta():
            return function(**values)
    except NumbersWantedError:
        return function(**values)
    except Exception as error:
        if why_not_exported(error) is None:
            raise
    try:  # what is exported must lie where its examples lie
        return function(**values)
    except Exception as error:
        if (why := why_not_exported(error)) is None:
            raise
        raise ValueError(why) from error


def graph_of(name: str, answer: Any, options: Mapping[str, Any]) -> Any:
    """Return the graph of a PyTorch module that a function returned, alone or with example inputs; anything else is returned
    unchanged."""
    if isinstance(answer, OperatorGraph) or "torch" not in sys.modules:
        return answer
    from torch import nn
    from torch.export import ExportedProgram

    from taskflow.models.huggingface import DEFAULT_BATCH, examples_for
    from taskflow.models.pytorch import from_torch

    module, *examples = answer if isinstance(answer, tuple) and answer else (answer,)
    if not isinstance(module, (nn.Module, ExportedProgram)):
        return answer
    exported = isinstance(module, ExportedProgram)
    chosen = _options({"verify": exported} | dict(options))
    loss, verify = chosen["loss"] or "cross_entropy", bool(chosen["verify"])
    keywords: dict[str, Any] = {}
    if examples and isinstance(examples[-1], Mapping):
        keywords = dict(examples.pop())
    elif not examples and hasattr(module, "main_input_name") and hasattr(module, "config"):
        examples, keywords = examples_for(module, DEFAULT_BATCH, None)
    elif not examples and not exported:
        raise ValueError(
            f"model {name}: returned a {type(module).__name__} alone; return (module, example, ...): for each argument of forward "
            "a shape, or a tensor like those of the steps, or at the end a dict of examples by name"
        )
    graph = from_torch(module, *examples, keywords=keywords, loss=loss, verify=verify)
    _say_unverified(name, verify)
    return graph


@contextmanager
def notes_shown() -> Iterator[None]:
    """Say what imports in the block leave out or replace, each in one line; also if they fail then."""
    notes: list[str] = []
    try:
        with notes_kept() as notes:
            yield
    finally:
        for text in notes:
            say_once(told(text, sys.stderr))


@contextmanager
def importing(name: str) -> Iterator[None]:
    """Say that a network from elsewhere is being read, if that takes longer than two seconds."""
    context = click.get_current_context(silent=True)
    options = context.params if context is not None else {}
    quiet = bool(options.get("quiet") or options.get("as_json")) or context is None or not is_imported(name)
    with Working(f"{name}: reading the network", quiet=quiet, patience=PATIENCE_SECONDS):
        yield


def is_imported(name: str) -> bool:
    """True for networks that are not built in."""
    return ":" in name or name.endswith((".onnx", ".pt2"))


def _options(values: dict[str, Any]) -> dict[str, Any]:
    """Take the settings of the import itself out of ``values``."""
    found = {key: values.pop(key, None) for key in OPTIONS}
    if found["verify"] not in (None, True, False):
        raise ValueError(f"--set verify={found['verify']}: must be True or False")
    return found | {"verify": bool(found["verify"])}


def _say_unverified(name: str, verified: bool) -> None:
    context = click.get_current_context(silent=True)
    if not verified and not (context is not None and context.params.get("quiet")):
        say_once(f"{name}: imported without weights, so not verified (--set verify=True compares it with PyTorch)")


def _plain(text: str) -> Any:
    """The value of a setting written as a Python literal, or its text."""
    known = {"true": True, "false": False, "yes": True, "no": False, "none": None, "null": None}
    try:
        return known[text.lower()] if text.lower() in known else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
