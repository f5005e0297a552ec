"""Notes of imports: what of a given model is left out or replaced, each in one line."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from taskflow.wording import some

MOST_NAMED = 4


class ImportNote(UserWarning):
    """Warning: an import leaves something of the given model out, or plans something else in its place."""


def note(text: str) -> None:
    """Say in one line what is left out."""
    warnings.warn(text, ImportNote, stacklevel=4)


def listed(names: Sequence[object]) -> str:
    """Return the first few names, and how many more there are."""
    return some([str(name) for name in names], MOST_NAMED)


@contextmanager
def notes_kept() -> Iterator[list[str]]:
    """Collect the warnings of a block as texts, each once."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            yield found
        finally:
            for warning in caught:
                text = str(warning.message)
                if issubclass(warning.category, UserWarning) and text not in found:
                    found.append(text)
    for warning in caught:
        if not issubclass(warning.category, UserWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
