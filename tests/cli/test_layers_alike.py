"""Layers that are alike are one row of an explanation, and no word of a table is broken in 80 columns."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from taskflow.cli.explain_text import layers_alike
from taskflow.cli.main import main

MODEL = ("--model", "llama", "--size", "small", "--set", "layers=6", "--batch", "8", "-m", "h100", "-n", "4")


def test_groups_have_one_number_and_the_same_figures() -> None:
    items = [("embed", 1), ("h.0.mlp", 5), ("h.0.attn", 7), ("h.1.mlp", 5), ("h.2.mlp", 6), ("h.3.mlp", 5), ("h.10.attn", 7)]
    groups = layers_alike(items, lambda one: one[0], lambda one: one[1])
    assert [(name, len(of)) for name, of in groups] == [
        ("embed", 1), ("h.0-1,3.mlp", 3), ("h.0,10.attn", 2), ("h.2.mlp", 1),
    ]  # fmt: skip
    assert sum(value for _, of in groups for _, value in of) == sum(value for _, value in items)
    assert [name for name, _ in layers_alike(["0.a", "1.a", "lstm1", "lstm2"], str)] == ["0-1.a", "lstm1", "lstm2"]


def test_an_explanation_adds_layers_up_and_breaks_no_word() -> None:
    run = CliRunner()
    done = run.invoke(main, ["explain", "data", *MODEL, "--top", "100"], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    operators = json.loads(run.invoke(main, ["explain", "data", *MODEL, "--json"]).stdout)["operators"]
    one = [row for row in operators if re.fullmatch(r"layers\.\d\.mlp\.gate_proj", row["operator"])]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("layers.0-5.mlp.gate_proj ")]
    assert len(one) == 6 and not re.search(r"^layers\.\d\.mlp", done.stdout, re.MULTILINE)
    assert float(line.split()[1]) * {"us": 1e-6, "ms": 1e-3}[line.split()[2]] == pytest.approx(
        sum(row["critical_seconds"] for row in one), rel=1e-3
    )
    assert all(len(row) <= 80 for row in done.stdout.splitlines() if "  " in row.strip())
    words = set(re.findall(r"[\w.,-]+", done.stdout))
    for name in ("layers.0-5.post_attention_layernorm", "layers.0-5.self_attn.attention"):
        assert name in words
