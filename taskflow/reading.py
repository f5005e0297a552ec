"""Strict reading of all JSON files; every error names the file and the place of the key.

The form of a file is an `Entry`, a msgspec Struct. Its types and limits check what was read, and the JSON Schemas in
docs/schema are made from it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from inspect import cleandoc
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType, inspect

T = TypeVar("T")
Place = tuple[str | int, ...]  # the keys and positions that lead to a value

LEAST, MOST = 1e-100, 1e100  # of numbers in a file: their reciprocals, and products of three of them, are finite
MOST_COUNT = 2**62

Name = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=1, le=MOST_COUNT)]
Whole = Annotated[int, Meta(ge=0, le=MOST_COUNT)]
Positive = Annotated[float, Meta(ge=LEAST, le=MOST)]
NotNegative = Annotated[float, Meta(ge=0, le=MOST)]

MADE_FROM = "made_from"  # the key under which files say paths
_NO_TEXT = ("[\ud800-\udfff]", "[\ud800-\udc7f\udd00-\udfff]")  # elsewhere, and in paths (PEP 383)

_SHAPE = re.compile(r"(?P<reason>.*?)(?: - at (?P<key>`key` in )?`\$(?P<place>(?:\.\w+|\[\d+\]|\[\.\.\.\])*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]|\[\.\.\.\]")


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON object with these keys and no others."""


# ---- JSON ------------------------------------------------------------------------------------------------------------
def read_json(path: str | Path, what: str) -> Any:
    """Return the value of a JSON file. ``what``: the expected kind of file ("machine file"). Raises FileNotFoundError if there
    is none, ValueError if it is a folder or not valid (`parse_json`).
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{what} {path}: is a folder, not a file")
    if not path.is_file():
        raise FileNotFoundError(f"{what} {path} does not exist")
    return parse_json(path.read_bytes(), str(path))


def like_path(name: str, path: Path, folder: Path, what: str, on_the_way: tuple[Path, ...]) -> Path:
    """Return the file as which that at ``path`` begins: its ``like`` is a preset of ``folder``, or a file beside it. ``what`` such
    files say ("machine"), and the files that begin as this one, ``on_the_way``. Raises ValueError if there is none, or if it
    begins as this one."""
    there = path.parent / name if name.endswith(".json") else folder / f"{name.lower()}.json"
    if not there.is_file():
        raise ValueError(f"{path}: like: must be a preset with figures of its own or a {what} file, got {name!r}")
    if there.resolve() in (of.resolve() for of in (path, *on_the_way)):
        raise ValueError(f"{path}: like: {name!r} begins as this {what}")
    return there


def parse_json(data: bytes | str, where: str) -> Any:
    """Return the value of a JSON text in UTF-8. Raises ValueError that begins with ``where`` if it is not JSON, or has two
    equal keys in one object, a number that is not finite, or half of a surrogate pair."""
    doubtful: list[object] = []

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) == len(pairs):
            return result
        doubtful.append(result)
        return _Twice(pairs)

    def number(text: str) -> float:
        value = float(text)
        if not isfinite(value):
            doubtful.append(value)
        return value

    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        read: Callable[..., Any] = lambda **ways: json.loads(  # noqa: E731
            text, object_pairs_hook=table, parse_float=number, parse_constant=number, **ways
        )
        try:
            value = read()
        except json.JSONDecodeError:
            raise
        except ValueError:  # Python makes no int of more than 4300 digits
            value = read(parse_int=number)
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not JSON: byte {error.start} ({error.object[error.start]:#x}) is no text in UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON: {error}") from error
    except RecursionError:
        raise ValueError(f"{where}: not JSON that can be read: tables and lists lie too deep in each other") from None
    if doubtful or re.search(r"\\[uU][dD][89a-fA-F]", text):
        _refuse(value, where)
    return value


class _Twice(dict[str, Any]):
    """A JSON object in which a key occurs twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        names = [key for key, _ in pairs]
        self.key = next(key for i, key in enumerate(names) if key in names[:i])


def _refuse(content: Any, where: str) -> None:
    """ValueError for the first value in ``content`` that JSON text can say and that no file may have."""
    for place, value in _values(content):
        if isinstance(value, _Twice):
            raise ValueError(f"{where}: {named((*place, value.key))}: the key is there twice; leave one of the two")
        if isinstance(value, float) and not isfinite(value):
            raise ValueError(f"{where}: {named(place)}: must be a finite number, got {value}")
        for text in value if isinstance(value, dict) else (value,):
            if isinstance(text, str) and not text.isascii() and re.search(_NO_TEXT[place[:1] == (MADE_FROM,)], text):
                raise ValueError(f"{where}: {named(place)}: must be a text, got half of a surrogate pair in {text!a}")


def path_here(text: str) -> str:
    """Return the path of this system that a file's text says (`taskflow.writing.path_text`)."""
    with suppress(UnicodeError):  # the locale cannot say it
        return os.fsdecode(text.encode("utf-8", "surrogateescape"))
    return text


def _values(content: Any) -> Iterator[tuple[Place, Any]]:
    """Every value with its place, in the order of the file."""
    left: list[tuple[Place, Any]] = [((), content)]
    while left:
        place, value = left.pop()
        yield place, value
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        left += reversed([((*place, key), x) for key, x in inner])


def named(place: Place) -> str:
    """Return the place of a key, such as ``operators.conv1.degrees[2]``."""
    parts = [
        f"[{step}]" if isinstance(step, int) else f".{step}" if re.fullmatch(r"[\w*/-]+", step) else f"[{short(step)}]"
        for step in place
    ]
    return "".join(parts).removeprefix(".") or "the file"


def short(value: Any) -> str:
    """Shorten a given value to the part that shows what is wrong with it."""
    text = str(value).lower() if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} characters)"


# ---- forms -----------------------------------------------------------------------------------------------------------
def read_as(form: type[T], content: Any, where: str) -> T:
    """Convert ``content``, a JSON value, to the type ``form``. Raises ValueError that begins with ``where`` and says which key
    is wrong, what is required there and what was given."""
    try:
        return msgspec.convert(content, form)
    except msgspec.ValidationError as error:
        place, reason = _explain(form, content, str(error))
    except RecursionError:
        place, reason = (), "tables and lists lie too deep in each other"
    raise ValueError(": ".join([where, *([named(place)] if place else []), reason]))


def read_format(form: type[T], content: Any, where: str, what: str) -> T:
    """Convert ``content`` as `read_as` does, if it has the ``format`` and the ``version`` that the form has. ``what``: the expected
    kind of file ("a machine file")."""
    kinds = get_type_hints(form)
    (named,), (version,) = get_args(kinds["format"]), get_args(kinds["version"])
    if not isinstance(content, dict) or content.get("format") != named:
        raise ValueError(f"{where}: not {what} (its format must be {named!r})")
    if content.get("version") != version:
        raise ValueError(f"{where}: version {content.get('version')!r} of the format; this taskflow reads {version}")
    return read_as(form, content, where)


@cache
def form_of(kind: Any, **instead: Any) -> Any:
    """Return the form that a file has for a type of ours: of a frozen dataclass an `Entry` with the same fields, of a tuple a list,
    and of one of pairs a table. A field with a default need not be said; one that is None by default is never null. The types of
    fields carry limits and texts (`msgspec.Meta`). ``instead``: types of fields that a file says in another way."""
    if is_dataclass(kind):
        hints, told = get_type_hints(kind, include_extras=True), cleandoc(kind.__doc__ or "").replace("\n", " ")
        forms = {f.name: instead[f.name] if f.name in instead else form_of(hints[f.name]) for f in fields(kind)}
        return msgspec.defstruct(
            f"{kind.__name__}Entry", [_field(f.name, forms[f.name], f.default) for f in fields(kind)], bases=(Entry,),  # type: ignore
            namespace={"__doc__": told.partition(". ")[0].removesuffix(".") + ".", "value_class": kind}, module=kind.__module__,
            frozen=True, kw_only=True,
        )  # fmt: skip
    if get_origin(kind) is Annotated:
        return Annotated[(form_of(kind.__origin__), *kind.__metadata__)]
    if get_origin(kind) is tuple:
        of = get_args(kind)[0]
        if get_origin(of) is tuple:
            return dict[tuple(map(form_of, get_args(of)))]  # type: ignore[misc]
        return list[form_of(of)]  # type: ignore[misc]
    if get_origin(kind) in (Union, UnionType):
        return form_of(get_args(kind)[0])
    return kind


def _field(name: str, form: Any, default: Any) -> tuple[Any, ...]:
    if default is MISSING:
        return name, form
    says = isinstance(default, (bool, int, str)) or (isinstance(default, float) and isfinite(default))
    return (name, form, default) if says else (name, form | UnsetType, UNSET)


def value_of(entry: Any) -> Any:
    """Return the dataclass that an entry of its form says (`form_of`)."""
    if isinstance(entry, Entry):
        said = {name: value_of(getattr(entry, name)) for name in entry.__struct_fields__ if getattr(entry, name) is not UNSET}
        return type(entry).value_class(**said)  # type: ignore[attr-defined]
    if isinstance(entry, dict):
        return tuple((key, value_of(entry[key])) for key in sorted(entry))
    return tuple(map(value_of, entry)) if isinstance(entry, list) else entry


def table_of(value: Any) -> Any:
    """Return the JSON value of a dataclass, in its form: fields at their defaults are left out, pairs that begin with texts are a
    table."""
    if is_dataclass(value):
        return {f.name: table_of(own) for f in fields(value) if (own := getattr(value, f.name)) != f.default}
    if isinstance(value, tuple) and value and all(isinstance(one, tuple) and isinstance(one[0], str) for one in value):
        return {key: table_of(own) for key, own in value}
    return list(map(table_of, value)) if isinstance(value, tuple) else value


def _explain(form: Any, content: Any, message: str) -> tuple[Place, str]:
    """The place of the value that msgspec refused, and what is wrong with it."""
    shape = _SHAPE.fullmatch(message)
    assert shape is not None  # both of its parts may be empty
    reason, place = shape["reason"], _place(form, content, message, shape["place"] or "", bool(shape["key"]))
    kind = _type_at(form, place[:-1] if shape["key"] else place)
    if name := re.fullmatch(r"Object missing required field `(.*)`", reason, re.DOTALL):
        return place, f"{name[1]!r} is missing"
    if name := re.fullmatch(r"Object contains unknown field `(.*)`", reason, re.DOTALL):
        known = [field.encode_name for field in kind.fields] if isinstance(kind, inspect.StructType) else []
        near = get_close_matches(name[1], known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"it may have {', '.join(map(repr, known))}"
        return place, f"unknown key {short(name[1])}; {hint}"
    if not reason.startswith(("Expected `", "Invalid ", "Number ")):
        return place, reason  # by a check of our own
    if shape["key"]:
        kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
        return place, f"the key must be {_either([required(k.key_type) for k in kinds if isinstance(k, inspect.DictType)])}"
    return place, f"must be {required(kind)}, got {short(_at(content, place))}"


def _place(form: Any, content: Any, message: str, path: str, key: bool) -> Place:
    """msgspec writes ``[...]`` for an entry of a table; here the entry's key is found by halves: which of them is refused?"""
    place: Place = ()
    for step in [*_STEP.finditer(path), *([None] if key else [])]:
        if step is not None and (step[1] or step[2]):
            place += (step[1] or int(step[2]),)
            continue
        table = _at(content, place)
        keys = list(table)
        while len(keys) > 1:
            half = keys[: len(keys) // 2]
            refused = _refusal(form, _with(content, place, {k: table[k] for k in half}))
            keys = half if refused == message else keys[len(half) :]
        place += (keys[0],)
    return place


def _refusal(form: Any, content: Any) -> str:
    try:
        msgspec.convert(content, form)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def _at(content: Any, place: Place) -> Any:
    for step in place:
        content = content[step]
    return content


def _with(content: Any, place: Place, value: Any) -> Any:
    """A copy of ``content`` with another value at ``place``."""
    if not place:
        return value
    copy: Any = dict(content) if isinstance(content, Mapping) else list(content)
    copy[place[0]] = _with(copy[place[0]], place[1:], value)
    return copy


def _type_at(form: Any, place: Place) -> Any:
    """msgspec's type of the value at ``place``."""
    found = _plain(inspect.type_info(form))
    for step in place:
        for option in found.types if isinstance(found, inspect.UnionType) else (found,):
            option = _plain(option)
            if isinstance(step, int) and isinstance(option, inspect.ListType):
                found = _plain(option.item_type)
            elif isinstance(step, str) and isinstance(option, inspect.DictType):
                found = _plain(option.value_type)
            elif isinstance(step, str) and isinstance(option, inspect.StructType):
                found = _plain(next(field.type for field in option.fields if field.encode_name == step))
    return found


def _plain(kind: Any) -> Any:
    return kind.type if isinstance(kind, inspect.Metadata) else kind


def required(kind: Any) -> str:
    """Say in words what a type of msgspec's `inspect` requires."""
    kind = _plain(kind)
    if isinstance(kind, inspect.UnionType):
        return _either([required(option) for option in kind.types])
    if isinstance(kind, inspect.LiteralType):
        return _either(list(map(repr, kind.values)))
    if isinstance(kind, inspect.EnumType):
        return _either([repr(member.value) for member in kind.cls])
    if isinstance(kind, (inspect.IntType, inspect.FloatType)):
        name = "an integer" if isinstance(kind, inspect.IntType) else "a number"
        most = "2**62" if kind.le == MOST_COUNT else kind.le
        if most is None:
            return name if kind.ge is None else f"{name}, {kind.ge} or more"
        return f"{name} from {kind.ge} to {most}"
    if isinstance(kind, (inspect.ListType, inspect.StrType)):
        name = "a list" if isinstance(kind, inspect.ListType) else "a text"
        least, most = kind.min_length or 0, kind.max_length
        size = f"of {least}" if least == most else f"of {least} or more" if least > 1 else "that is not empty" if least else ""
        return f"{name} {size}".rstrip()
    simple = {inspect.BoolType: "true or false", inspect.NoneType: "null", inspect.AnyType: "anything"}
    return simple.get(type(kind), "an object {...}")


def _either(options: list[str]) -> str:
    return " or ".join([", ".join(options[:-1]), options[-1]] if len(options) > 1 else options)


def schema(form: Any, title: str) -> str:
    """Return the JSON Schema (2020-12) of a file's form, as text."""
    result = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **_steady(msgspec.json.schema(form))}
    return json.dumps(result, indent=1) + "\n"


def _steady(value: Any) -> Any:
    """The schema as all versions of msgspec write it: alternatives in alphabetical order, descriptions without indentation, and no
    lists of keys' names, which versions before 0.23 leave out."""
    if isinstance(value, str):
        return cleandoc(value)
    if isinstance(value, list):
        return [_steady(x) for x in value]
    if not isinstance(value, dict):
        return value
    return {
        k: sorted(map(_steady, v), key=json.dumps) if k == "anyOf" else _steady(v) for k, v in value.items()
        if k != "propertyNames" or "enum" not in v
    }
