"""Parallel text: subwords, message catalogues, numbers in words, files, and the cache between them."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from taskflow.training.data.subwords import BEGIN, END, PAD, Subwords
from taskflow.training.translation import text as translation
from taskflow.training.translation.catalogues import catalogues, largest, pairs
from taskflow.training.translation.evaluation import bleu
from taskflow.training.translation.numbers import english, german, number_pairs
from taskflow.training.translation.text import load_translation, parallel_text

pytest.importorskip("tokenizers", reason="pip install 'soap-taskflow[examples]'")


# ---- subwords ----------------------------------------------------------------------------------------------------
TEXT = [text for pair in number_pairs(400) for text in pair]


def test_subwords_spell_any_text() -> None:
    learned = Subwords.learn(TEXT, 400)
    assert len(learned) == len(learned.words) == 400
    for text in (*TEXT[:50], 'quoted "so" — ünïcode 漢字 \U0001f600', "<s> and </s> and <pad> are text like any other"):
        (numbers,) = learned.encode([text])
        assert learned.decode(numbers) == text
        assert min(numbers) > max(PAD, BEGIN, END) and max(numbers) < 400
    (common,), (rare,) = learned.encode(["hundred"]), learned.encode(["ghdunre"])
    assert len(common) == 1 < len(rare)


def test_subwords_stop_at_the_end_and_skip_what_is_no_text() -> None:
    learned = Subwords.learn(TEXT, 300)
    one, two = learned.encode(["one", "two"])
    assert learned.decode([BEGIN, *one, END, *two, PAD]) == "one"
    assert learned.decode([]) == learned.decode([END, *two]) == ""


def test_the_same_text_gives_the_same_subwords() -> None:
    learned = Subwords.learn(TEXT, 500)
    again = Subwords.learn(iter(TEXT), 500)
    assert again.to_json() == learned.to_json()
    assert Subwords.from_json(learned.to_json()).words == learned.words


def test_wrong_vocabularies() -> None:
    with pytest.raises(ValueError, match="needs at least 259 words, got a size of 258"):
        Subwords.learn(TEXT, 258)
    with pytest.raises(ValueError, match="not a vocabulary of the library tokenizers"):
        Subwords.from_json("{}")


def test_missing_libraries_are_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    monkeypatch.setitem(__import__("sys").modules, "sacrebleu", None)
    for act in (lambda: Subwords.learn(TEXT, 300), lambda: bleu(["a"], ["a"])):
        with pytest.raises(ImportError, match=r"pip install 'soap-taskflow\[examples\]'") as caught:
            act()
        assert "\n" not in str(caught.value)


# ---- BLEU --------------------------------------------------------------------------------------------------------
def test_bleu_by_hand() -> None:
    reference = "the cat sat on the mat today ."
    assert bleu([reference], [reference]) == pytest.approx(100)
    assert bleu(["dogs bark"], [reference]) < 5
    # Of 8 words one is wrong at the end: 7/8 words, 6/7 pairs, 5/6 and 4/5 of the longer runs; lengths are equal.
    expected = 100 * (7 / 8 * 6 / 7 * 5 / 6 * 4 / 5) ** 0.25
    assert bleu(["the cat sat on the mat today !"], [reference]) == pytest.approx(expected)
    for wrong in (([], []), (["a"], ["a", "b"])):
        with pytest.raises(ValueError, match="as many translations as references"):
            bleu(*wrong)


# ---- catalogues --------------------------------------------------------------------------------------------------
def compiled(messages: dict[str, str], order: str = "<") -> bytes:
    """A catalogue as msgfmt compiles it."""
    entries = sorted({"": "Content-Type: text/plain; charset=UTF-8\nPlural-Forms: nplurals=2; plural=n != 1;\n",
                      **messages}.items())
    head, texts, tables = 28, b"", [b"", b""]
    start = head + 16 * len(entries)
    for column in (0, 1):
        for entry in entries:
            raw = entry[column].encode()
            tables[column] += struct.pack(f"{order}II", len(raw), start + len(texts))
            texts += raw + b"\0"
    fields = (0x950412DE, 0, len(entries), head, head + 8 * len(entries), 0, 0)
    return struct.pack(f"{order}7I", *fields) + tables[0] + tables[1] + texts


def store(folder: Path, language: str, name: str, content: bytes) -> Path:
    path = folder / language / "LC_MESSAGES" / f"{name}.mo"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_catalogues_are_found_counted_and_read(tmp_path: Path) -> None:
    store(tmp_path, "de", "one", compiled({"Open file": "Datei öffnen", "name": "name", "menu\x04Close": "Schließen"}))
    store(tmp_path, "de", "two", compiled({"Open file": "Öffnen", "%d file\0%d files": "%d Datei\0%d Dateien"}, ">"))
    store(tmp_path, "pl.UTF-8", "one", compiled({"Two\n  lines": "Dwa\nwiersze"}))
    store(tmp_path, "fr", "broken", b"\xde\x12\x04\x95 nothing that follows from this")
    store(tmp_path, "en_GB", "one", compiled({"color": "colour", **{str(n): f"number {n}" for n in range(9)}}))
    found = catalogues([tmp_path])
    assert {language: [p.name for p in paths] for language, paths in found.items()} == {
        "de": ["one.mo", "two.mo"], "fr": ["broken.mo"], "pl": ["one.mo"]
    }
    assert dict(pairs(found["de"])) == {
        "Open file": "Datei öffnen", "Close": "Schließen", "%d file": "%d Datei"
    }
    assert pairs(found["pl"]) == [("Two lines", "Dwa wiersze")]
    assert pairs(found["fr"]) == []
    assert largest({k: found[k] for k in ("de", "pl")}) == "de"
    assert largest({}) is None


# ---- numbers -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("number", "one", "other"), [
    (0, "zero", "null"), (1, "one", "eins"), (16, "sixteen", "sechzehn"), (17, "seventeen", "siebzehn"),
    (21, "twenty-one", "einundzwanzig"), (30, "thirty", "dreißig"), (101, "one hundred and one", "einhunderteins"),
    (999, "nine hundred and ninety-nine", "neunhundertneunundneunzig"), (1000, "one thousand", "eintausend"),
    (1001, "one thousand and one", "eintausendeins"), (1100, "one thousand one hundred", "eintausendeinhundert"),
    (421_005, "four hundred and twenty-one thousand and five", "vierhunderteinundzwanzigtausendfünf"),
    (201_376, "two hundred and one thousand three hundred and seventy-six",
     "zweihunderteintausenddreihundertsechsundsiebzig"),
])
def test_numbers_in_words(number: int, one: str, other: str) -> None:
    assert (english(number), german(number)) == (one, other)


def test_every_number_has_its_own_words() -> None:
    numbers = [*range(2500), *range(2500, 1_000_000, 997)]
    assert len({english(n) for n in numbers}) == len({german(n) for n in numbers}) == len(numbers)
    found = number_pairs(3000)
    assert len(dict(found)) == 3000 and found == number_pairs(3000) != number_pairs(3000, seed=1)
    for wrong in (-1, 1_000_000):
        with pytest.raises(ValueError, match="needs a number from 0 to 999,999"):
            english(wrong)


# ---- where the text comes from -----------------------------------------------------------------------------------
@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    sides = list(zip(*number_pairs(300)))
    result = [tmp_path / "numbers.de", tmp_path / "numbers.en"]
    for path, side in zip(result, sides):
        path.write_text("\n".join((*side[:100], "", *side[100:])) + "\n", encoding="utf-8")  # a pair of empty lines
    return result


def test_files_become_tokens_and_are_kept_by_content(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    text = load_translation(files, vocabulary_size=320)
    decoded = []
    for name in ("train", "valid"):
        tokens = text.corpus.split(name)
        ends = [0, *(np.flatnonzero(tokens == END) + 1)]
        assert ends[-1] == len(tokens)
        sentences = [text.subwords.decode(tokens[a:b]) for a, b in zip(ends, ends[1:])]
        decoded.append(list(zip(sentences[::2], sentences[1::2])))
    train, valid = decoded
    assert sorted(train + valid) == sorted(number_pairs(300))
    assert 5 <= len(valid) <= 30
    assert len(text.subwords) == len(text.corpus.vocabulary) == 320

    calls: list[object] = []
    learn = Subwords.learn
    monkeypatch.setattr(Subwords, "learn", staticmethod(lambda *given: calls.append(given) or learn(*given)))
    moved = [path.rename(path.with_name(f"other-{path.name}")) for path in files]
    again = load_translation(moved, vocabulary_size=320)
    assert not calls and again.corpus.digest() == text.corpus.digest()
    assert again.subwords.to_json() == text.subwords.to_json()
    with open(moved[0], "a", encoding="utf-8") as one, open(moved[1], "a", encoding="utf-8") as two:
        one.write("one more\n")
        two.write("noch eine\n")
    assert load_translation(moved, vocabulary_size=320).corpus.digest() != text.corpus.digest() and len(calls) == 1


def test_a_lost_or_broken_vocabulary_is_learned_again(files: list[Path], cache: Path) -> None:
    text = load_translation(files, vocabulary_size=300)
    (kept,) = cache.glob("subwords-*.json")
    for spoil in (lambda: kept.unlink(), lambda: kept.write_text("{")):
        spoil()
        again = load_translation(files, vocabulary_size=300)
        assert again.subwords.to_json() == text.subwords.to_json() == kept.read_text(encoding="utf-8")


def test_mistakes_are_named(files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="give two files, the source's and the target's, got 1"):
        load_translation(files[:1])
    with pytest.raises(ValueError, match="two files or a language"):
        load_translation(files, language="de")
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nothing"):
        load_translation([files[0], tmp_path / "nothing"])
    short = tmp_path / "short"
    short.write_text("eins\nzwei\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"as many lines, but .*short ends after 2"):
        load_translation([files[0], short])
    empty = tmp_path / "empty"
    empty.write_text("\n\n")
    with pytest.raises(ValueError, match="no pair of sentences to train on"):
        load_translation([empty, empty], vocabulary_size=300)
    monkeypatch.setattr(translation, "catalogues", lambda: {"de": []})
    with pytest.raises(ValueError, match="is in 'xx'; there are de"):
        load_translation(language="xx")
    with pytest.raises(ValueError, match="have 0 messages, fewer than 2000"):
        load_translation(language="de")


def test_without_catalogues_there_are_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "catalogues", dict)
    text = parallel_text()
    assert text.words == 600
    assert "made-up" in text.about and list(text.read()) == number_pairs()
    few = store(tmp_path, "de", "one", compiled({"Open file": "Datei öffnen"}))
    monkeypatch.setattr(translation, "catalogues", lambda: {"de": [few]})
    assert "made-up" in parallel_text().about
    monkeypatch.setattr(translation, "_ENOUGH", 1)
    assert parallel_text().about == "1 messages of the 1 catalogues on this machine, English to de"
    assert list(parallel_text().read()) == [("Open file", "Datei öffnen")]
