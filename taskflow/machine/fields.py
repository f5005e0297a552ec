"""Fields: reads one JSON object and says exactly what is wrong with it."""

from __future__ import annotations

from collections import Counter
from typing import Any

MOST, MOST_COUNT = 1e300, 2**62  # of numbers in a file: sums and products of what is less are finite


class Fields:
    """The entries of a JSON object called ``who``. Every getter raises ValueError with the object, the key, what was required
    and what was given; ``done`` refuses keys that nobody asked for."""

    def __init__(self, who: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{who}: must be an object {{...}}, got {value!r}")
        self.who, self._left, self._known = who, dict(value), list[str]()

    def has(self, key: str) -> bool:
        """True if the key is there and has not been taken yet."""
        return key in self._left

    def peek(self, key: str) -> Any:
        """The value of a key that has not been taken yet; None if it is not there."""
        return self._left.get(key)

    def number(self, key: str, default: float | None = None, *, zero: bool = False) -> float:
        """A finite number above 0 (``zero``: or 0)."""
        value = self._take(key, default)
        return self.positive(key, value, zero=zero)

    def positive(self, key: str, value: Any, *, zero: bool = False) -> float:
        """``value`` if it is a finite number above 0 (``zero``: or 0)."""
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not value <= MOST or value < 0 or (value == 0 and not zero):
            raise ValueError(f"{self.who}: {key!r} must be a number {'0 or more' if zero else 'above 0'}, got {_short(value)}")
        return float(value)

    def count(self, key: str, default: int | None = None, *, zero: bool = False) -> int:
        """An integer above 0 (``zero``: or 0), up to MOST_COUNT."""
        value = self._take(key, default)
        least = 0 if zero else 1
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST_COUNT:
            raise ValueError(f"{self.who}: {key!r} must be an integer, {least} or more, got {_short(value)}")
        return value

    def text(self, key: str, default: str | None = None, *, empty: bool = False) -> str:
        """A text (``empty``: perhaps without a letter)."""
        value = self._take(key, default)
        if not isinstance(value, str) or not (value or empty):
            raise ValueError(f"{self.who}: {key!r} must be a text, got {value!r}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.who}: {key!r} must be true or false, got {value!r}")
        return value

    def choice(self, key: str, options: tuple[str, ...], default: str) -> str:
        """One of these texts."""
        value = self._take(key, default)
        if value not in options:
            raise ValueError(f"{self.who}: {key!r} must be {' or '.join(map(repr, options))}, got {value!r}")
        return str(value)

    def names(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """A list of texts."""
        value = self._take(key, default)
        if not isinstance(value, (list, tuple)) or not all(isinstance(x, str) and x for x in value):
            raise ValueError(f"{self.who}: {key!r} must be a list of names, got {value!r}")
        return tuple(value)

    def rates(self, key: str, default: dict[str, float] | None = None) -> tuple[tuple[str, float], ...]:
        """An object of numbers above 0, sorted by name."""
        value = self._take(key, default)
        if not isinstance(value, dict):
            raise ValueError(f"{self.who}: {key!r} must be an object of numbers, got {value!r}")
        return tuple(sorted((name, self.positive(f"{key}.{name}", x)) for name, x in value.items()))

    def objects(self, key: str, default: list[Any] | None = None) -> list[Any]:
        """A list, whose members the caller checks."""
        value = self._take(key, default)
        if not isinstance(value, list):
            raise ValueError(f"{self.who}: {key!r} must be a list, got {value!r}")
        return value

    def done(self) -> None:
        """Refuse the keys that no getter has taken."""
        if self._left:
            raise ValueError(
                f"{self.who}: unknown key {', '.join(map(repr, sorted(self._left)))}; it may have "
                f"{', '.join(map(repr, self._known))}"
            )

    def _take(self, key: str, default: Any) -> Any:
        self._known.append(key)
        if key in self._left:
            return self._left.pop(key)
        if default is None:
            raise ValueError(f"{self.who}: {key!r} is missing")
        return default


def _short(value: Any) -> str:
    """What was given, as far as it tells what is wrong with it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} characters)"


def distinct(who: str, what: str, names: list[str]) -> None:
    """ValueError if a name occurs twice."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ValueError(f"{who}: {what} {', '.join(map(repr, twice))} declared twice")
