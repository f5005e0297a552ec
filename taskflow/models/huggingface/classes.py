"""Class of transformers that stands for a config, and why one cannot be built."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from taskflow.models.notes import note

TASKS = ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "IMAGE_CLASSIFICATION")
"""Heads that are looked for where a config names no architecture, in this order."""
HEAD = re.compile(r"(For[A-Z]\w*|LMHeadModel|Model)$")


def class_of(transformers: Any, config: Any) -> Any:
    """Return the class that the config names. For a name that there is not, as of older or foreign code: the one of its model_type
    with the same head, as AutoModel does, which is said. Without a name: the first head there is."""
    names = list(config.architectures or ())
    for name in names:
        found = getattr(transformers, name, None) or _of_type(transformers, config.model_type, name)
        if found is None:
            raise ValueError(
                f"hf: transformers {transformers.__version__} has no class {name}, which the config names, and its model_type "
                f"{config.model_type} has no such head"
            )
        if found.__name__ != name:
            given = f"{found.__name__}, by its model_type, is planned"
            note(f"hf: transformers {transformers.__version__} has no class {name}; {given}")
        if len(names) > 1:
            note(f"hf: the config names {', '.join(names)}; {found.__name__} is planned")
        return found
    for task in TASKS:
        name = _mapping(transformers, f"MODEL_FOR_{task}_MAPPING_NAMES").get(config.model_type)
        if name is not None:
            return getattr(transformers, name if isinstance(name, str) else name[0])
    raise ValueError(f'hf: the config names no "architectures", and {config.model_type} has no head for {", ".join(TASKS).lower()}')


def known_type(transformers: Any, kind: str, names: Iterable[str]) -> str:
    """Return a config's model_type. One that transformers does not know, as of code of the model's own, is that of the first class
    among ``names`` that it has, which is said."""
    if kind in transformers.CONFIG_MAPPING:
        return kind
    found = (getattr(getattr(transformers, name, None), "config_class", None) for name in names)
    other = next((config.model_type for config in found if config is not None), None)
    if other is None:  # `module_of` says it
        return kind
    none = f"hf: transformers {transformers.__version__} has no model_type {kind!r}"
    note(f"{none}; planned as {other!r}, whose class the config names")
    return str(other)


def _mapping(transformers: Any, name: str) -> Any:
    return getattr(transformers.models.auto.modeling_auto, name, {})


def _of_type(transformers: Any, kind: str, wanted: str) -> Any:
    """The class of a model_type with the head that a name asks for; None if there is none."""
    head = HEAD.search(wanted)
    if head is None:
        return None
    heads = {head[0], "ForCausalLM" if head[0] == "LMHeadModel" else "LMHeadModel" if head[0] == "ForCausalLM" else head[0]}
    for mapping in vars(transformers.models.auto.modeling_auto):
        if mapping.startswith("MODEL_") and mapping.endswith("MAPPING_NAMES"):
            names = _mapping(transformers, mapping).get(kind, ())
            for name in (names,) if isinstance(names, str) else names:
                own = HEAD.search(name)
                if own is not None and own[0] in heads:
                    return getattr(transformers, name)
    return None


def one_line(error: Exception) -> str:
    """Return an error as one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:300]}"


def last_line(error: Exception) -> str:
    """Return the last line of an error, which says the reason where checks are named before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1].removeprefix("ValueError: ")[:300]


def why_not_built(config: Any, error: Exception) -> str:
    """Return why a class cannot be built of a config: the entry whose value is not known, or what was raised, and where."""
    if isinstance(error, TypeError) and (text := next(_texts(config.to_dict().get("rope_parameters") or {}), None)):
        return f"{text[0]} must be a number, got {text[1]!r}"
    if not isinstance(error, KeyError) or not error.args:
        plain = isinstance(error, (ValueError, RuntimeError, NotImplementedError, ImportError))
        together = "" if plain else "its entries do not go together, or one has a value that it cannot have: "
        from taskflow.models.pytorch import places

        return f"{together}{one_line(error)}{places.place_text(places.raising_line(error.__traceback__))}"
    given = {**config.to_dict(), **(config.to_dict().get("rope_scaling") or {}), **(config.to_dict().get("rope_parameters") or {})}
    entry = next((key for key, value in given.items() if isinstance(value, str) and value == error.args[0]), None)
    if entry is None:
        return one_line(error)
    close: list[str] = []
    if "act" in entry:
        from transformers.activations import ACT2FN

        close = get_close_matches(str(error.args[0]), [str(name) for name in ACT2FN], 3, 0.5)
    there_is = f"; did you mean {' or '.join(close)}?" if close else ""
    return f"transformers has no {entry} {error.args[0]!r}{there_is}"


def _texts(parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Texts among a rope's numbers, also of the kinds of layers that have their own."""
    for key, value in parameters.items():
        if isinstance(value, Mapping):
            yield from _texts(value)
        elif isinstance(value, str) and key not in ("rope_type", "type"):
            yield key, value
