"""Parallel text: sources of sentences in two languages, and their tokens."""

from __future__ import annotations

import contextlib
import hashlib
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from taskflow.cache import cache_folder
from taskflow.training.data import END, Corpus, Subwords, cached, token_type
from taskflow.training.translation.catalogues import catalogues, largest, pairs
from taskflow.training.translation.numbers import number_pairs
from taskflow.writing import replacing

_FORMAT = 1  # raise it when the same text would give other tokens
_ENOUGH = 2_000  # pairs of messages; fewer are not worth training on
_NUMBER_WORDS = 600  # of made-up numbers: with more, whole numbers would be words to learn by heart
_HELD_OUT = 20  # one pair in so many is for validation
_CHUNK = 4_096  # sentences encoded at once

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class ParallelText:
    """Sentences in two languages. ``read`` iterates over the pairs, any number of times. ``digest`` changes with any of them.
    ``about`` describes them in words. ``words``: the largest useful number of subwords."""

    read: Callable[[], Iterable[Pair]]
    digest: str
    about: str
    words: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TranslationCorpus:
    """Parallel text as tokens. ``corpus`` has the splits ``train`` and ``valid``; in both, source and target follow each other,
    each ended by END."""

    corpus: Corpus
    subwords: Subwords
    about: str

    def __repr__(self) -> str:
        return f"{self.about}; {self.corpus!r}"


def load_translation(
    data: Sequence[str | os.PathLike[str]] = (), *, language: str | None = None, vocabulary_size: int = 4_000,
    cache: bool = True,
) -> TranslationCorpus:
    """Return the tokens of the text that a command names, or of text on this machine: see `parallel_text`.

    One vocabulary of at most ``vocabulary_size`` subwords, for both languages, is learned from the training split. One pair in
    twenty, chosen by its source's checksum, is held out. Vocabulary and tokens are kept in the cache folder under a name made
    from the text's digest. Tokens from there are a memory map, so that text larger than memory works.
    """
    text = parallel_text(data, language)
    size = min(vocabulary_size, text.words or vocabulary_size)
    key = hashlib.sha256(f"{_FORMAT} {text.digest} {size}".encode()).hexdigest()[:24]
    found: list[Subwords] = []

    def build() -> Corpus:
        found.append(_vocabulary(text, size, key, cache))
        return _encode(text, found[0])

    corpus = cached(f"translation-{key}", build) if cache else build()
    subwords = found[0] if found else _vocabulary(text, size, key, cache)
    return TranslationCorpus(corpus, subwords, text.about)


def parallel_text(data: Sequence[str | os.PathLike[str]] = (), language: str | None = None) -> ParallelText:
    """Return two aligned files (source and target, a sentence a line), if given. Else the message catalogues found on this
    machine, from English into ``language`` (default: the one with the most messages). Else numbers in German and English words.

    Raises ValueError unless there are two files, aligned, or for a language that no catalogue has; OSError for missing files.
    """
    if data:
        return _files([Path(path).absolute() for path in data], language)
    table = catalogues()
    if language is not None and language not in table:
        raise ValueError(f"translation: no message catalogue on this machine is in {language!r}; there are "
                         f"{', '.join(table) or 'none'}; or give two files")
    chosen = language or largest(table)
    messages = pairs(table[chosen]) if chosen is not None else []
    if chosen is not None and len(messages) >= _ENOUGH:
        where = f"messages of the {len(table[chosen])} catalogues on this machine, English to {chosen}"
        return _text(messages, f"{len(messages):,} {where}")
    if language is not None:
        raise ValueError(f"translation: the catalogues in {language!r} have {len(messages)} messages, fewer than {_ENOUGH}; "
                         "choose another language, or give two files")
    numbers = number_pairs()
    about = f"made-up text, as this machine has no catalogues: {len(numbers):,} numbers in German and English words"
    return _text(numbers, about, _NUMBER_WORDS)


def _text(found: Sequence[Pair], about: str, words: int | None = None) -> ParallelText:
    value = hashlib.sha256()
    for pair in found:
        value.update("\0".join((*pair, "")).encode())
    return ParallelText(lambda: found, value.hexdigest(), about, words)


def _files(paths: Sequence[Path], language: str | None) -> ParallelText:
    if len(paths) != 2:
        raise ValueError(f"translation: give two files, the source's and the target's, got {len(paths)}")
    if language is not None:
        raise ValueError("translation: give two files or a language of this machine's catalogues, not both")
    value = hashlib.sha256()
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"translation: there is no file {path}")
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                value.update(block)
        value.update(b"\0\0")
    return ParallelText(lambda: _lines(*paths), value.hexdigest(), f"{paths[0].name} to {paths[1].name}")


def _lines(source: Path, target: Path) -> Iterator[Pair]:
    """The files' lines side by side; pairs with an empty side are left out."""
    with open(source, encoding="utf-8", errors="replace") as left, open(target, encoding="utf-8", errors="replace") as right:
        for number, (a, b) in enumerate(zip_longest(left, right)):
            if a is None or b is None:
                shorter = source if a is None else target
                raise ValueError(f"translation: {source} and {target} must have as many lines, but {shorter} ends after {number}")
            if a.strip() and b.strip():
                yield " ".join(a.split()), " ".join(b.split())


def _held_out(source: str) -> bool:
    return crc32(source.encode()) % _HELD_OUT == 0


def _vocabulary(text: ParallelText, size: int, key: str, cache: bool) -> Subwords:
    """Vocabulary from the cache, or learned from the training split and then cached."""
    folder = cache_folder() if cache else None
    path = None if folder is None else folder / f"subwords-{key}.json"
    if path is not None:
        with contextlib.suppress(OSError, ValueError):
            return Subwords.from_json(path.read_text(encoding="utf-8"))
    learned = Subwords.learn((side for pair in text.read() if not _held_out(pair[0]) for side in pair), size)
    if path is not None:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as fresh:
                fresh.write_text(learned.to_json(), encoding="utf-8")
    return learned


def _encode(text: ParallelText, subwords: Subwords) -> Corpus:
    """All pairs as tokens, those held out at the end."""
    train: Any = array("i")
    valid: Any = array("i")
    every = iter(text.read())
    while chunk := list(islice(every, _CHUNK)):
        tokens = iter(subwords.encode([side for pair in chunk for side in pair]))
        for source, _ in chunk:
            split = valid if _held_out(source) else train
            for side in (next(tokens), next(tokens)):
                split.extend(side)
                split.append(END)
    if not train:
        raise ValueError(f"translation: {text.about} has no pair of sentences to train on; give more text")
    words = subwords.words
    joined = np.concatenate([np.frombuffer(part, np.int32) if part else np.empty(0, np.int32) for part in (train, valid)])
    splits = (("train", 0, len(train)), ("valid", len(train), len(joined)))
    return Corpus(joined.astype(token_type(len(words))), words, splits)
