"""Tokenisation: how words are found, counted and numbered."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TokenArray = np.ndarray[Any, np.dtype[Any]]

UNKNOWN, END = "<unk>", "<eos>"

# A number with a fraction, a word, the end of a line, the indentation of a line, any other visible character.
TEXT = re.compile(r"\d+\.\d+|\w+|\n|^[ \t]+|[^\w\s]", re.MULTILINE)
# Penn Treebank's files are tokenised already: words between blanks, a sentence a line.
BLANKS = re.compile(r"\S+|\n")

_CHUNK = 1 << 20  # characters tokenised at once, so that a large file never becomes one list of strings


class Numbering(dict[str, int]):
    """Map from words to numbers: every new word gets the next number. `names` lists the words by number. The end of a line is
    <eos>."""

    __slots__ = ("names",)

    def __init__(self) -> None:
        super().__init__({UNKNOWN: 0, END: 1, "\n": 1})
        self.names = [UNKNOWN, END]

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self.names)
        self.names.append(word)
        return number


def number_words(path: Path, pattern: re.Pattern[str], numbering: Numbering) -> TokenArray:
    """Return the file's tokens as numbers, int32; new words are added to ``numbering``. Bytes that are not UTF-8 become U+FFFD;
    a last line without an end gets one."""
    return np.concatenate([np.empty(0, np.int32), *numbered(path, pattern, numbering)])


def numbered(path: Path, pattern: re.Pattern[str], numbering: Numbering) -> Iterator[TokenArray]:
    """Yield the tokens of `number_words` piece by piece, for files that are larger than memory."""
    for chunk in _chunks(path):
        words = pattern.findall(chunk)
        yield np.fromiter(map(numbering.__getitem__, words), np.int32, len(words))


def frequent(pieces: Iterable[TokenArray], names: Sequence[str], size: int) -> tuple[TokenArray, tuple[str, ...]]:
    """Choose <unk> and the ``size - 1`` most frequent words in the pieces of a text, ties in alphabetical order.

    Returns the new number of every old one (0, <unk>, for words left out) and the words by new number.
    """
    counted = np.zeros(len(names), np.int64)
    for tokens in pieces:
        counted += np.bincount(tokens, minlength=len(names))
    counts = counted.tolist()
    seen = [number for number in range(1, len(names)) if counts[number]]
    kept = sorted(seen, key=lambda number: (-counts[number], names[number]))[: size - 1]
    renumber = np.zeros(len(names), token_type(size))
    renumber[kept] = np.arange(1, len(kept) + 1)
    return renumber, (UNKNOWN, *(names[number] for number in kept))


def token_type(size: int) -> np.dtype[Any]:
    """Return the type in which tokens of a vocabulary of this size are stored."""
    return np.dtype(np.uint16 if size <= 1 << 16 else np.int32)


def _chunks(path: Path) -> Iterator[str]:
    """The text in pieces that end where a line ends."""
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        while chunk := file.read(_CHUNK):
            chunk += file.readline()
            yield chunk if chunk.endswith("\n") else chunk + "\n"
