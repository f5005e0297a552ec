"""The words of plans: a table, from which the guide's is written (``python tests/mapper/test_plan_words.py``)."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from taskflow.mapper import HybridPlan, is_plan, parse_plan
from taskflow.mapper.plan_words import WORDS, Word

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "pipelines.md"
HEAD = "| word | meaning | default |\n|---|---|---|\n"


def table() -> str:
    """Return the rows of the guide."""
    rows = [(word.form.replace("|", "\\|"), word.says, f"{word.usual} " if word.usual else "") for word in WORDS if word.form]
    return HEAD + "".join(f"| `{form}` | {says} | {usual}|\n" for form, says, usual in rows)


def written(page: str) -> str:
    """Return the guide with the table written anew."""
    return re.sub(re.escape(HEAD) + r"(\|.*\n)*", lambda _: table(), page)


def test_the_guide_has_the_words_of_the_table() -> None:
    assert GUIDE.read_text() == written(GUIDE.read_text()), "python tests/mapper/test_plan_words.py writes it anew"


def test_every_field_has_a_word() -> None:
    assert {word.field for word in WORDS} == {field.name for field in fields(HybridPlan)}


@pytest.mark.parametrize("word", WORDS, ids=lambda word: f"{word.field} {word.form}")
def test_a_word_is_read_as_it_is_written(word: Word) -> None:
    assert word.spelling or (word.form and word.says and word.usual)
    for text in filter(None, (word.example, *word.drawn)):
        match = word.pattern.fullmatch(text)
        assert match is not None and is_plan(text)
        assert word.write(word.read(match[1])) == text


def test_of_all_layers_the_highest_stage_counts() -> None:
    plan = parse_plan("d4 zero=1*1,3*2,0*1")
    assert plan.zero == 3 and plan.zeros == (1, 3, 3, 0) and str(plan) == "t1 p1 d4 zero=1*1,3*2,0*1"
    assert HybridPlan(data=4, zero_layers=(1, 0), recompute="full", recompute_layers=("none", "full")) == parse_plan(
        "d4 zero=1*1,0*1 recompute=none*1,full*1"
    )


if __name__ == "__main__":
    GUIDE.write_text(written(GUIDE.read_text()))
