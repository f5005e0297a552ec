"""Numbers in German and in English words: sentences to translate where a machine has no text in two languages.

The task is artificial, but not trivial: German says units before tens (vierundzwanzig: four and twenty) and writes a number as
one word. So a network has to learn words, their order, and where to look. It translates from German to English, since BLEU
counts runs of words, and a German number is only one word."""

from __future__ import annotations

from random import Random

_LIMIT = 1_000_000

_ENGLISH = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
]
_ENGLISH_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_GERMAN = [
    "null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn",
    "elf", "zwölf", "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn",
    "neunzehn",
]
_GERMAN_TENS = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]


def english(number: int) -> str:
    """Return a number from 0 to 999,999 in words: ``four hundred and twenty-one thousand and five``."""
    _check(number)
    if number < 1000:
        return _english_below_thousand(number)
    thousands, rest = divmod(number, 1000)
    text = f"{_english_below_thousand(thousands)} thousand"
    if rest:
        text += f" {'and ' if rest < 100 else ''}{_english_below_thousand(rest)}"
    return text


def german(number: int) -> str:
    """Return a number from 0 to 999,999 in words: ``vierhunderteinundzwanzigtausendfünf``."""
    _check(number)
    if number < 1000:
        return _german_below_thousand(number)
    thousands, rest = divmod(number, 1000)
    text = _german_below_thousand(thousands)
    if text.endswith("eins"):  # eintausend, not einstausend
        text = text[:-1]
    return f"{text}tausend{_german_below_thousand(rest) if rest else ''}"


def number_pairs(count: int = 20_000, seed: int = 0) -> list[tuple[str, str]]:
    """Return ``count`` different random numbers in German and English words, about equally many of each magnitude from 10^3 to
    10^6."""
    if not 0 < count <= _LIMIT // 10:
        raise ValueError(f"number_pairs: count must be 1 to {_LIMIT // 10}, got {count}")
    random = Random(seed)
    numbers: dict[int, None] = {}
    while len(numbers) < count:
        numbers[random.randrange(10 ** random.randint(3, 6))] = None
    return [(german(number), english(number)) for number in numbers]


def _english_below_thousand(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    parts = [f"{_ENGLISH[hundreds]} hundred"] if hundreds else []
    if rest or not hundreds:
        tens, units = divmod(rest, 10)
        small = _ENGLISH[rest] if rest < 20 else _ENGLISH_TENS[tens - 2] + (f"-{_ENGLISH[units]}" if units else "")
        parts.append(small)
    return " and ".join(parts)


def _german_below_thousand(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    text = f"{'ein' if hundreds == 1 else _GERMAN[hundreds]}hundert" if hundreds else ""
    if rest or not hundreds:
        tens, units = divmod(rest, 10)
        if rest < 20:
            text += _GERMAN[rest]
        else:
            text += f"{'ein' if units == 1 else _GERMAN[units]}und" * bool(units) + _GERMAN_TENS[tens - 2]
    return text


def _check(number: int) -> None:
    if not 0 <= number < _LIMIT:
        raise ValueError(f"numbers in words: needs a number from 0 to {_LIMIT - 1:,}, got {number}")
