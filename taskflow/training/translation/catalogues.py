"""Translated message catalogues: programs' messages in English and their translations. Most systems have some."""

from __future__ import annotations

import gettext
import struct
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

_MAGIC = 0x950412DE  # of a compiled catalogue (GNU gettext manual, section "The Format of GNU MO Files")


class _Catalogue(gettext.GNUTranslations):
    """A catalogue whose messages can be listed; the module itself only looks single ones up."""

    def messages(self) -> Iterator[tuple[str, str]]:
        """(message, translation); of those with plural forms the first."""
        catalogue: dict[str | tuple[str, int], str] = getattr(self, "_catalog", {})
        for key, translation in catalogue.items():
            message, form = (key, 0) if isinstance(key, str) else key
            if form == 0:
                yield message, translation


def catalogues(folders: Sequence[Path] | None = None) -> dict[str, list[Path]]:
    """Return the catalogues in ``folders`` (default: the system's and this Python's packages'), by language such as ``de`` or
    ``pt_BR``, sorted by path. Catalogues of English, which only translate spelling, are left out."""
    found: dict[str, set[Path]] = {}
    for path in _default() if folders is None else _below(folders):
        language = path.parts[-3].split(".")[0]  # pl.UTF-8 is Polish in another encoding
        if language.split("_")[0].split("@")[0] not in ("en", "C", "POSIX"):
            found.setdefault(language, set()).add(path)
    return {language: sorted(found[language]) for language in sorted(found)}


def largest(table: dict[str, list[Path]]) -> str | None:
    """Return the language with the most messages, the first of equals; None if there is none. Reads only the files' headers."""
    counts: Counter[str] = Counter()
    for language, paths in table.items():
        counts[language] = sum(_count(path) for path in paths)
    return max(sorted(counts), key=lambda language: counts[language], default=None)


def pairs(paths: Sequence[Path]) -> list[tuple[str, str]]:
    """Return every English message once, with its first translation; white space becomes single blanks. Messages that equal
    their translation, such as names, are left out; so are broken files."""
    found: dict[str, str] = {}
    for path in paths:
        try:
            with open(path, "rb") as file:
                messages = list(_Catalogue(file).messages())
        except (OSError, ValueError, UnicodeDecodeError, struct.error):
            continue
        for message, translation in messages:
            source = " ".join(message.rpartition("\x04")[2].split())  # what stands before \x04 tells uses apart
            target = " ".join(translation.split())
            if source and target and source != target:
                found.setdefault(source, target)
    return list(found.items())


def _default() -> Iterator[Path]:
    roots = {Path(sys.base_prefix, "share/locale"), *(Path(p) for p in ("/usr/share/locale", "/usr/local/share/locale"))}
    yield from _below(sorted(roots))
    packages = {Path(sysconfig.get_paths()[which]) for which in ("purelib", "platlib")}
    for root in sorted(packages):  # such as django/conf/locale/de/LC_MESSAGES/django.mo
        for depth in range(3, 6):
            yield from root.glob("*/" * depth + "LC_MESSAGES/*.mo")


def _below(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        yield from folder.glob("*/LC_MESSAGES/*.mo")


def _count(path: Path) -> int:
    """Number of messages that a catalogue states; 0 if it is broken."""
    try:
        with open(path, "rb") as file:
            head = file.read(12)
    except OSError:
        return 0
    for order in "<>":
        if len(head) == 12 and struct.unpack(f"{order}I", head[:4])[0] == _MAGIC:
            return int(struct.unpack(f"{order}I", head[8:])[0])
    return 0
