"""Text to tokens: vocabularies, splits, sources, and what goes wrong with files."""

import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskflow.training import Corpus, LanguageModelBatches, load_corpus, load_files, load_ptb, load_stdlib
from taskflow.training.data import tokens as tokens_module
from taskflow.training.data.text import stdlib_files


def words_of(corpus: Corpus) -> list[str]:
    return [corpus.vocabulary[token] for token in corpus.tokens]


def write(folder: Path, text: str | bytes, name: str = "text.txt") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_words_numbers_marks_indents_and_lines(tmp_path: Path) -> None:
    corpus = load_files([write(tmp_path, "def f_1(x):\n    return x*3.14, 'é'\r\n\n")], valid=0, test=0)
    assert words_of(corpus) == [
        "def", "f_1", "(", "x", ")", ":", "<eos>", "    ", "return", "x", "*", "3.14",
        ",", "'", "é", "'", "<eos>", "<eos>",
    ]  # fmt: skip


def test_every_visible_character_is_kept(tmp_path: Path) -> None:
    path = Path(tokens_module.__file__)
    corpus = load_files([path], valid=0, test=0)
    text = "".join("\n" if word == "<eos>" else word for word in words_of(corpus))
    assert "".join(text.split()) == "".join(path.read_text().split())
    assert text.count("\n") == path.read_text().count("\n")


def test_vocabulary_is_the_most_frequent_words_of_the_training_part(tmp_path: Path) -> None:
    path = write(tmp_path, "a a a b b c c d\n" * 9 + "zz zz zz zz zz zz zz zz\n")
    corpus = load_files([path], vocabulary_size=4, valid=0, test=0.1)
    assert corpus.vocabulary == ("<unk>", "a", "b", "c")  # b before c: equally frequent
    assert words_of(corpus)[:9] == ["a", "a", "a", "b", "b", "c", "c", "<unk>", "<unk>"]
    assert corpus.split("test").tolist() == [0] * 9
    assert "zz" not in load_files([path], valid=0, test=0.1).vocabulary


@given(st.lists(st.sampled_from(["a", "b", "c", "dd", ".", ",", "7", "\n"]), min_size=1), st.integers(2, 9))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_vocabulary_against_a_counter(tmp_path: Path, words: list[str], size: int) -> None:
    path = write(tmp_path, " ".join(words) + "\n")
    corpus = load_files([path], vocabulary_size=size, valid=0, test=0, cache=False)
    whole = load_files([path], vocabulary_size=99, valid=0, test=0, cache=False)
    # Words first seen and counted by hand; a line that starts with a blank begins with an indentation token.
    counts = Counter(words_of(whole))
    expected = sorted(counts, key=lambda word: (-counts[word], word))[: size - 1]
    assert corpus.vocabulary == ("<unk>", *expected)
    assert words_of(corpus) == [word if word in expected else "<unk>" for word in words_of(whole)]
    assert [w for w in words_of(whole) if w.strip()] == [w if w != "\n" else "<eos>" for w in words] + ["<eos>"]


def test_a_text_longer_than_one_chunk_reads_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "".join(f"{'  ' * (i % 3)}word{i % 50} = {i}.5\n" for i in range(500)))
    whole = load_files([path], cache=False)
    monkeypatch.setattr(tokens_module, "_CHUNK", 7)
    pieces = load_files([path], cache=False)
    assert np.array_equal(whole.tokens, pieces.tokens) and whole.vocabulary == pieces.vocabulary


@pytest.mark.parametrize("level", ["word", "byte"])
def test_splits_by_position(tmp_path: Path, level: str) -> None:
    corpus = load_files([write(tmp_path, "x y z w " * 500)], level=level, valid=0.1, test=0.2)
    n = len(corpus.tokens)
    assert [(name, end - first) for name, first, end in corpus.splits] == [
        ("train", n - int(n * 0.1) - int(n * 0.2)), ("valid", int(n * 0.1)), ("test", int(n * 0.2)),
    ]  # fmt: skip
    joined = np.concatenate([corpus.split(name) for name in ("train", "valid", "test")])
    assert np.array_equal(joined, corpus.tokens)
    with pytest.raises(KeyError, match="no split 'dev' in this corpus; there are train, valid, test"):
        corpus.split("dev")


def test_bytes(tmp_path: Path) -> None:
    content = bytes(range(256)) * 3
    corpus = load_files([write(tmp_path, content), write(tmp_path, b"\n!", "b.txt")], level="byte")
    assert corpus.tokens.astype(np.uint8).tobytes() == content + b"\n!"
    assert len(corpus.vocabulary) == 256 and corpus.vocabulary[65] == "A"


def test_large_vocabulary_needs_a_wider_type(tmp_path: Path) -> None:
    path = write(tmp_path, " ".join(f"w{i}" for i in range(70_000)))
    for _ in range(2):  # built, then from the cache
        corpus = load_files([path], vocabulary_size=100_000, valid=0, test=0)
        assert corpus.tokens.dtype == np.int32
        assert words_of(corpus)[-2:] == ["w69999", "<eos>"]
    assert load_files([path], vocabulary_size=50_000, valid=0, test=0).tokens.dtype == np.uint16


def test_files_follow_one_another(tmp_path: Path) -> None:
    paths = [write(tmp_path, "one two", "a"), write(tmp_path, "", "empty"), write(tmp_path, "three", "b")]
    assert words_of(load_files(paths, valid=0, test=0)) == ["one", "two", "<eos>", "three", "<eos>"]


def test_odd_bytes(tmp_path: Path) -> None:
    path = write(tmp_path, b"\xef\xbb\xbfcaf\xe9 \xff\xfe ok\n")  # a byte order mark, then Latin-1 and nonsense
    assert words_of(load_files([path], valid=0, test=0)) == ["caf", "\ufffd", "\ufffd", "\ufffd", "ok", "<eos>"]


def test_penn_treebank(tmp_path: Path) -> None:
    write(tmp_path, " no it was n't <unk> N\n we 're u.s. <unk>\n", "ptb.train.txt")
    write(tmp_path, " it was N \n", "ptb.valid.txt")
    write(tmp_path, " never seen\n", "ptb.test.txt")
    corpus = load_corpus(ptb=tmp_path)
    text = "no it was n't <unk> N <eos> we 're u.s. <unk> <eos> it was N <eos> <unk> <unk> <eos>"
    assert " ".join(words_of(corpus)) == text
    assert corpus.splits == (("train", 0, 12), ("valid", 12, 16), ("test", 16, 19))
    assert sorted(corpus.vocabulary) == sorted(set(text.split()))
    assert len(load_ptb(tmp_path, vocabulary_size=3).vocabulary) == 3


def test_penn_treebank_without_its_files(tmp_path: Path) -> None:
    write(tmp_path, "a b\n", "ptb.train.txt")
    write(tmp_path, "", "ptb.test.txt")
    with pytest.raises(FileNotFoundError, match=r"lacks ptb\.valid\.txt$"):
        load_ptb(tmp_path)
    write(tmp_path, "a\n", "ptb.valid.txt")
    with pytest.raises(ValueError, match=r"ptb\.test\.txt holds no words"):
        load_ptb(tmp_path)


def test_standard_library_is_fast_and_large_enough() -> None:
    start = time.process_time()  # of this process alone, whatever else runs
    built = load_corpus()
    middle = time.process_time()
    loaded = load_stdlib()
    end = time.process_time()
    assert middle - start < 15  # about 0.5 s
    assert end - middle < (middle - start) / 3
    assert len(built.tokens) > 1_000_000 and len(built.vocabulary) == 10_000
    assert built.digest() == loaded.digest()
    assert {"def", "import", "self", "<eos>", "<unk>"} <= set(built.vocabulary)
    assert (built.split("train") == 0).mean() < 0.1  # few words are left out
    assert len(LanguageModelBatches(built.split("train"), 64, 20)) > 1000


def test_standard_library_files_in_a_fixed_order() -> None:
    few, many = stdlib_files(400_000), stdlib_files(6_000_000)
    assert many[: len(few)] == few
    size = sum(path.stat().st_size for path in few)
    assert size >= 400_000 > size - few[-1].stat().st_size
    assert len(set(many)) == len(many)


def test_standard_library_skips_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "lib"
    (library / "json").mkdir(parents=True)
    for name in ("b.py", "a.py", "_sysconfigdata_x.py", "json/z.py"):
        write(library, "x = 1\n", name)
    (library / "gone.py").symlink_to(library / "nowhere.py")
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(library)})
    assert [path.relative_to(library).as_posix() for path in stdlib_files(10**6)] == ["a.py", "b.py", "json/z.py"]
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path / "none")})
    with pytest.raises(FileNotFoundError, match="no standard library source"):
        load_stdlib()


def test_missing_empty_and_wrong_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file .*absent\.txt"):
        load_files([tmp_path / "absent.txt"])
    with pytest.raises(IsADirectoryError, match="is a folder; give text files"):
        load_files([tmp_path])
    for level in ("word", "byte"):
        with pytest.raises(ValueError, match=r"no text in .*text\.txt"):
            load_files([write(tmp_path, b"")], level=level)
    with pytest.raises(ValueError, match="no text in"):
        load_files([write(tmp_path, b"  \t "), write(tmp_path, b"", "b")][1:])
    with pytest.raises(ValueError, match="at least one text file"):
        load_files([])
    with pytest.raises(ValueError, match="not both"):
        load_corpus([tmp_path / "a"], tmp_path)


@pytest.mark.parametrize("arguments, message", [
    ({"level": "letter"}, "level must be one of word, byte"),
    ({"vocabulary_size": 1}, "needs room for <unk> and one word"),
    ({"valid": 0.5, "test": 0.5}, "leave some for training"), ({"valid": -0.1}, "leave some for training"),
])  # fmt: skip
def test_refused_settings(tmp_path: Path, arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_files([write(tmp_path, "some text")], **arguments)


def test_a_text_of_one_token_is_all_training(tmp_path: Path) -> None:
    corpus = load_files([write(tmp_path, "\n")])
    assert corpus.splits == (("train", 0, 1), ("valid", 1, 1), ("test", 1, 1))
    with pytest.raises(ValueError, match="give more text"):
        LanguageModelBatches(corpus.split("train"), 1, 1)


def test_reading_starts_no_machinery() -> None:
    import subprocess

    program = "import sys, taskflow.training; print([m for m in ('mpi4py', 'rich', 'torch') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
