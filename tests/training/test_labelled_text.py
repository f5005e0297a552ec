"""Texts with labels: folders, CSV and TSV files, Python's packages, and what goes wrong with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from taskflow.training.data.labelled_text import PACKAGES, LabelledText, TextBatches, load_labelled
from taskflow.training.data.sampling import IGNORED


def rows(text: LabelledText, which: np.ndarray) -> list[tuple[str, str]]:
    """Class and words of some texts."""
    return [(text.classes[text.labels[i]], " ".join(text.vocabulary[t] for t in text.tokens[i])) for i in which]


def load(*paths: Path, steps: int = 4, vocabulary_size: int = 50) -> LabelledText:
    return load_labelled(paths, steps=steps, vocabulary_size=vocabulary_size)


def test_long_texts_are_cut_and_short_ones_filled_in_front(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("good,one two three four five\nbad,six\n")
    (tmp_path / "b.csv").write_text("bad,one six seven\n")
    text = load(tmp_path / "a.csv", tmp_path / "b.csv")
    assert rows(text, text.train) == [("good", "one two three four"), ("bad", "<unk> <unk> <unk> six")]
    assert rows(text, text.valid) == [("bad", "<unk> one six <unk>")]  # seven is unknown to the training part


@pytest.mark.parametrize("name,content", [
    ("plain.csv", 'x,"a, ""b"""\ny,c\n'), ("headed.csv", 'id,Text,label\n1,"a, ""b""",x\n2,c,y\n'),
    ("plain.tsv", 'x\ta, "b"\ny\tc\n'), ("more.csv", 'x,"a,","""b"""\ny,c,\n'),
])
def test_tables(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    text = load(tmp_path / name, tmp_path / name, steps=5)
    assert rows(text, text.train) == [("x", 'a , " b "'), ("y", "<unk> <unk> <unk> <unk> c")]


def test_folders_with_and_without_a_part_for_validation(tmp_path: Path) -> None:
    for part, count in (("train", 10), ("test", 3)):
        for name in ("neg", "pos"):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                (tmp_path / part / name / f"{i}.txt").write_text(f"{name} {part} {i}")
    text = load(tmp_path, steps=3)
    assert text.classes == ("neg", "pos") and (len(text.train), len(text.valid)) == (20, 6)
    assert rows(text, text.train)[0] == ("neg", "neg train 0")
    alone = load(tmp_path / "train", steps=3)
    assert (len(alone.train), len(alone.valid)) == (18, 2)
    assert sorted([*alone.train, *alone.valid]) == list(range(20))


def test_the_standard_library_by_package() -> None:
    text = load_labelled(steps=20, vocabulary_size=4000)
    assert set(text.classes) <= set(PACKAGES) and len(text.classes) >= 8
    assert len(text.train) > 10_000 and len(text.valid) > 1000
    assert not set(text.train.tolist()) & set(text.valid.tolist())
    assert "always naming one would be right for" in repr(text)


def test_batches_have_each_text_once_an_epoch(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("".join(f"{'xy'[i % 2]},word{i}\n" for i in range(20)))
    text = load(tmp_path / "a.csv", steps=2)
    train, valid = (TextBatches(text, 5, training=training, seed=3) for training in (True, False))
    seen = np.concatenate([train.at(k).feeds["tokens"][:, 1] for k in range(18)])
    for epoch in range(5):
        assert sorted(seen[18 * epoch : 18 * epoch + 18]) == sorted(text.tokens[text.train][:, 1])
    feeds = train.at(2).feeds
    assert feeds["tokens"].dtype == feeds["labels"].dtype == np.int64
    (only,) = [valid.at(k).feeds for k in range(len(valid))]
    assert sorted(only["labels"]) == sorted([*text.labels[text.valid], IGNORED, IGNORED, IGNORED])


MISTAKES = [
    ("nothing.csv", None, "there is no file or folder"), ("text.txt", "x y", "must be a folder, or a file"),
    ("empty.csv", "", "has no texts"), ("one.csv", "x,a\nx,b\n", "at least two classes, got only x"),
    ("short.csv", "x,a\ny\n", r"short\.csv, row 2: must have a label and a text, got 1 columns"),
]


@pytest.mark.parametrize("name,content,message", MISTAKES)
def test_mistakes_are_named(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises((ValueError, OSError), match=message):
        load(tmp_path / name)


def test_a_class_that_only_validation_has(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,a\ny,b\n")
    (tmp_path / "b.csv").write_text("z,a\n")
    with pytest.raises(ValueError, match="has classes that the texts for training lack: z"):
        load(tmp_path / "a.csv", tmp_path / "b.csv")
