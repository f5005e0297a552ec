"""Corpus: a tokenised text with its vocabulary and its splits, and the file in which it is cached."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taskflow.cache import cache_folder
from taskflow.training.data.tokens import TokenArray, token_type
from taskflow.writing import replacing

try:
    import fcntl
except ImportError:  # not a POSIX system: ranks may then build the same corpus side by side, which is only slower
    fcntl = None  # type: ignore[assignment]

_MAGIC = b"taskflow corpus 1\n"
_LOCK_SECONDS = 120.0


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """Tokenised text. ``tokens`` (count), uint16 or int32, are indices into ``vocabulary``. ``splits``: named ranges of them,
    as (name, first, end). ``tokens`` is read-only; from a cache file, it is a memory map."""

    tokens: TokenArray
    vocabulary: tuple[str, ...]
    splits: tuple[tuple[str, int, int], ...]

    def __post_init__(self) -> None:
        view = self.tokens.view()  # the caller's own array stays as it is
        view.flags.writeable = False
        object.__setattr__(self, "tokens", view)

    def split(self, name: str) -> TokenArray:
        """Return the tokens of one split, a view. Raises KeyError with the splits that exist."""
        for split, first, end in self.splits:
            if split == name:
                return self.tokens[first:end]
        raise KeyError(f"no split {name!r} in this corpus; there are {', '.join(s[0] for s in self.splits)}")

    def digest(self) -> str:
        """Return sixteen hex digits of the content: equal on all ranks that train on the same text."""
        value = hashlib.sha256(json.dumps([self.vocabulary, self.splits, str(self.tokens.dtype)]).encode())
        value.update(np.ascontiguousarray(self.tokens).data)
        return value.hexdigest()[:16]

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {end - first:,}" for name, first, end in self.splits)
        return f"{len(self.tokens):,} tokens of {len(self.vocabulary):,} ({parts})"


def cached(key: str, build: Callable[[], Corpus]) -> Corpus:
    """Return the corpus that the cache holds under ``key``, else the result of ``build``, which is then cached.

    Any number of processes may call it at once: one builds, the others wait for its file. A broken file is rebuilt. If the
    cache folder cannot be written, the corpus is built every time.
    """
    folder = cache_folder()
    if folder is None:
        return build()
    path = folder / f"corpus-{key}.bin"
    if (corpus := _read(path)) is not None:
        return corpus
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return build()
    if not os.access(folder, os.W_OK):
        return build()
    with _one_builder(folder):
        if (corpus := _read(path)) is not None:
            return corpus
        corpus = build()
        with contextlib.suppress(OSError):
            _write(path, corpus)
        return corpus


def _read(path: Path) -> Corpus | None:
    """None if the file is missing, cut short or changed."""
    try:
        with open(path, "rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return None
            header: dict[str, Any] = json.loads(file.readline())
            start = _aligned(file.tell())
        vocabulary = tuple(header["vocabulary"])
        tokens = np.memmap(path, token_type(len(vocabulary)), "r", start, (header["count"],))
        splits = tuple((str(name), int(first), int(end)) for name, first, end in header["splits"])
        corpus = Corpus(np.asarray(tokens), vocabulary, splits)
        return corpus if corpus.digest() == header["digest"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, corpus: Corpus) -> None:
    """Atomic: readers see no file, the old one or the whole new one."""
    header = {
        "count": len(corpus.tokens), "splits": corpus.splits, "vocabulary": corpus.vocabulary, "digest": corpus.digest()
    }  # fmt: skip
    head = _MAGIC + json.dumps(header).encode() + b"\n"
    with replacing(path) as fresh, open(fresh, "wb") as file:
        file.write(head.ljust(_aligned(len(head)), b"\0"))
        file.write(np.ascontiguousarray(corpus.tokens).data)


def _aligned(position: int) -> int:
    return -(-position // 64) * 64


@contextlib.contextmanager
def _one_builder(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so that sixteen ranks do not all tokenise the same text. The kernel frees it when its
    holder ends. Where there are no locks, or the holder takes too long, go on without: `_write` is safe either way."""
    if fcntl is None:
        yield
        return
    descriptor = None
    try:
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            _wait_for_lock(descriptor)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _wait_for_lock(descriptor: int) -> None:
    deadline = time.monotonic() + _LOCK_SECONDS
    while time.monotonic() < deadline:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.02)
