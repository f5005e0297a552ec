"""Text for language models: given files, Penn Treebank's folder, or Python's own standard library.

Texts may be larger than memory: they are read, numbered and renumbered piece by piece, and the tokens stay in memory-mapped
files. Only the set of distinct words must fit.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from taskflow.cache import cache_folder
from taskflow.training.data.corpus import Corpus, cached
from taskflow.training.data.tokens import BLANKS, TEXT, Numbering, TokenArray, frequent, numbered, token_type

_FORMAT = 1  # raise it when the same files would give other tokens
_LEVELS = ("word", "byte")
_PTB = {"train": "ptb.train.txt", "valid": "ptb.valid.txt", "test": "ptb.test.txt"}
# After the modules at the top, in this order, until there is enough.
_PACKAGES = (
    "asyncio", "collections", "concurrent/futures", "email", "html", "http", "importlib", "json", "logging",
    "multiprocessing", "unittest", "urllib", "xml/dom", "xml/etree", "xmlrpc",
)  # fmt: skip


def load_corpus(
    data: Sequence[str | os.PathLike[str]] = (),
    ptb: str | os.PathLike[str] | None = None,
    *,
    level: str = "word",
    vocabulary_size: int = 10_000,
    cache: bool = True,
) -> Corpus:
    """Return the corpus that a command's ``--data FILE...`` or ``--ptb DIR`` names, else the standard library's source.

    Raises ValueError if both are given or the text is empty, OSError if a file is missing or unreadable.
    """
    if data and ptb is not None:
        raise ValueError("corpus: give text files or a Penn Treebank folder, not both")
    if ptb is not None:
        if level != "word":
            raise ValueError(f"corpus: Penn Treebank is read by words, got level {level!r}; give its files as text")
        return load_ptb(ptb, vocabulary_size=vocabulary_size, cache=cache)
    if data:
        return load_files(data, level=level, vocabulary_size=vocabulary_size, cache=cache)
    return load_stdlib(level=level, vocabulary_size=vocabulary_size, cache=cache)


def load_files(
    paths: Sequence[str | os.PathLike[str]],
    *,
    level: str = "word",
    vocabulary_size: int = 10_000,
    valid: float = 0.05,
    test: float = 0.05,
    cache: bool = True,
) -> Corpus:
    """Return the files one after the other as a corpus; the last ``valid + test`` of the tokens (shares of 1) are held out.

    ``level``: "word" (words, numbers, single punctuation marks, indentation and line ends; the vocabulary is <unk> and the
    ``vocabulary_size - 1`` words most frequent in the training split) or "byte" (256 values, nothing to choose). Raises
    ValueError for files without any token, OSError for files that are missing or unreadable.
    """
    if not paths:
        raise ValueError("corpus: needs at least one text file, got none")
    if level not in _LEVELS:
        raise ValueError(f"corpus: level must be one of {', '.join(_LEVELS)}, got {level!r}")
    if not (valid >= 0 and test >= 0 and valid + test < 1):
        raise ValueError(f"corpus: the shares of valid and test must leave some for training, got {valid} and {test}")
    sources = [_checked(path) for path in paths]
    size = _checked_size(vocabulary_size) if level == "word" else 256

    def build() -> Corpus:
        if level == "byte":
            tokens = on_disk((piece for path in sources for piece in _bytes(path)), token_type(256))
            splits = _cut(len(tokens), valid, test, sources)
            return Corpus(tokens, tuple(map(chr, range(256))), splits)
        numbering = Numbering()
        words = on_disk((piece for path in sources for piece in numbered(path, TEXT, numbering)), np.dtype(np.int32))
        return _with_vocabulary(words, numbering, size, _cut(len(words), valid, test, sources))

    return _load(sources, ["files", level, size, valid, test], build, cache)


def load_ptb(directory: str | os.PathLike[str], *, vocabulary_size: int = 10_000, cache: bool = True) -> Corpus:
    """Return Penn Treebank as Mikolov prepared it: ptb.train.txt, ptb.valid.txt and ptb.test.txt, with one sentence on each
    line and blanks between words. Each line end is <eos>. Its 10,000 words, including <unk> and <eos>, are the default
    vocabulary."""
    folder = Path(directory)
    if missing := [name for name in _PTB.values() if not (folder / name).is_file()]:
        raise FileNotFoundError(
            f"corpus: a Penn Treebank folder holds {', '.join(_PTB.values())}; {folder} lacks {', '.join(missing)}"
        )
    sources = [_checked(folder / name) for name in _PTB.values()]
    size = _checked_size(vocabulary_size)

    def build() -> Corpus:
        numbering = Numbering()
        counts = dict.fromkeys(sources, 0)

        def pieces() -> Iterator[TokenArray]:
            for path in sources:
                for piece in numbered(path, BLANKS, numbering):
                    counts[path] += len(piece)
                    yield piece

        words = on_disk(pieces(), np.dtype(np.int32))
        for path, count in counts.items():
            if not count:
                raise ValueError(f"corpus: {path} holds no words")
        ends = np.cumsum(list(counts.values())).tolist()
        splits = tuple(zip(_PTB, [0, *ends], ends))
        return _with_vocabulary(words, numbering, size, splits)

    return _load(sources, ["ptb", size], build, cache)


def load_stdlib(
    *, target_bytes: int = 6_000_000, level: str = "word", vocabulary_size: int = 10_000, cache: bool = True
) -> Corpus:
    """Return the source text of this Python's standard library, a corpus that every machine has. It differs between Python
    versions, so compare runs by `Corpus.digest`. Takes whole files until there are ``target_bytes``."""
    return load_files(stdlib_files(target_bytes), level=level, vocabulary_size=vocabulary_size, cache=cache)


def stdlib_files(target_bytes: int) -> list[Path]:
    """Return the standard library's top-level modules by name, then those of some packages, until their sizes reach
    ``target_bytes``; unreadable ones are skipped. Raises FileNotFoundError if Python came without its source."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files: list[Path] = []
    nbytes = 0
    for folder in (root, *(root / package for package in _PACKAGES)):
        for path in sorted(folder.glob("*.py")):
            if nbytes >= target_bytes:
                return files
            # What an installation adds itself is not the library.
            if path.name.startswith(("_sysconfigdata", "sitecustomize")) or not os.access(path, os.R_OK):
                continue
            files.append(path)
            nbytes += path.stat().st_size
    if not files:
        raise FileNotFoundError(f"corpus: this Python has no standard library source in {root}; give text files")
    return files


def _load(sources: Sequence[Path], settings: Sequence[object], build: Callable[[], Corpus], cache: bool) -> Corpus:
    """Through the cache, under a key that changes with any file's path, size or time and with any setting."""
    if not cache:
        return build()
    stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    key = hashlib.sha256(json.dumps([_FORMAT, *settings, stats]).encode()).hexdigest()[:24]
    return cached(key, build)


def _checked(path: str | os.PathLike[str]) -> Path:
    file = Path(path).absolute()
    if file.is_dir():
        raise IsADirectoryError(f"corpus: {file} is a folder; give text files")
    if not file.is_file():
        raise FileNotFoundError(f"corpus: there is no file {file}")
    if not os.access(file, os.R_OK):
        raise PermissionError(f"corpus: {file} may not be read by this user")
    return file


def _checked_size(vocabulary_size: int) -> int:
    if vocabulary_size < 2:
        raise ValueError(f"corpus: a vocabulary needs room for <unk> and one word, got a size of {vocabulary_size}")
    return vocabulary_size


def _cut(count: int, valid: float, test: float, sources: Sequence[Path]) -> tuple[tuple[str, int, int], ...]:
    """Split ``count`` tokens by position; a text too small for its shares is all training."""
    if not count:
        raise ValueError(f"corpus: no text in {', '.join(map(str, sources))}; give a file that has some")
    held, last = int(count * valid), int(count * test)
    middle, end = count - held - last, count - last
    return ("train", 0, middle), ("valid", middle, end), ("test", end, count)


def _bytes(path: Path) -> Iterator[TokenArray]:
    with open(path, "rb") as file:
        while piece := file.read(PART):
            yield np.frombuffer(piece, np.uint8)


def _with_vocabulary(
    words: TokenArray, numbering: Numbering, size: int, splits: tuple[tuple[str, int, int], ...]
) -> Corpus:
    """The vocabulary comes from the training split alone, as it would for text that nobody has seen yet."""
    _, first, end = splits[0]
    renumber, vocabulary = frequent(parts(words[first:end]), numbering.names, size)
    # numpy's name for the type must follow the words that are really there: the cache derives it from their number.
    tokens = on_disk((renumber[part] for part in parts(words)), token_type(len(vocabulary)))
    return Corpus(tokens, vocabulary, splits)


PART = 1 << 20
"""Tokens that are worked on at once."""


def on_disk(pieces: Iterator[TokenArray], dtype: np.dtype[Any]) -> TokenArray:
    """Return all pieces one after the other, as a read-only memory map of a file without a name, which is deleted with the map.

    The file is made in the cache folder, or in the folder for temporary files if that cannot be written. Raises OSError if
    there is no room.
    """
    folder = _folder() or tempfile.gettempdir()
    with tempfile.TemporaryFile(buffering=0, dir=folder) as file:  # a buffer would fail once more when it is closed
        count = 0
        for piece in pieces:
            _write(file, np.ascontiguousarray(piece, dtype), folder)
            count += len(piece)
        if not count:
            return np.empty(0, dtype)
        return np.asarray(np.memmap(file, dtype, "r", 0, (count,)))


def _write(file: io.FileIO, piece: TokenArray, folder: str | Path) -> None:
    rest = memoryview(piece.tobytes())
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as error:
        raise OSError(
            f"the text's tokens cannot be kept in {folder}: {error.strerror}; make room there, or set TASKFLOW_CACHE to a "
            f"folder that has it"
        ) from error


def parts(tokens: TokenArray) -> Iterator[TokenArray]:
    """Yield views of the tokens, `PART` at a time."""
    for first in range(0, len(tokens), PART):
        yield tokens[first : first + PART]


def _folder() -> Path | None:
    folder = cache_folder()
    if folder is not None:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    return None
