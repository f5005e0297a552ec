"""What the commands say of a plan in people's units, and the plans that they put beside it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from taskflow.cli.beside import beside_table
from taskflow.cli.main import main

DECODER = ("llama", "--size", "small", "--batch", "16", "--dtype", "bf16", "-m", "h100", "-n", "8", "--rule", "adam")


def run(*words: str) -> str:
    done = CliRunner().invoke(main, [*words])
    assert done.exit_code == 0, (done.stderr, done.exception)
    return done.stdout


def test_simulate_says_tokens_and_mfu() -> None:
    row = json.loads(run("simulate", *DECODER, "--strategy", "d8", "--json"))
    steps = row["tokens_per_step"] / row["samples_per_step"]
    assert row["samples_per_step"] == 16 and steps == int(steps) > 1
    assert row["tokens_per_second"] == pytest.approx(row["tokens_per_step"] / row["iteration_seconds"])
    assert row["tokens_per_second_per_device"] == pytest.approx(row["tokens_per_second"] / 8)
    assert row["mfu"] == pytest.approx(row["model_flops"] / row["iteration_seconds"] / (8 * 989.4e12))
    assert row["device_hours"] == pytest.approx(8 * row["iteration_seconds"] / 3600)
    text = run("simulate", *DECODER, "--strategy", "d8")
    assert "tokens/s" in text and f"{row['mfu']:.1%}" in text
    assert f"a step is 16 samples ({row['tokens_per_step']:,} tokens)" in text
    assert "moved MB" not in text


def test_search_puts_the_usual_plans_beside_what_it_found(tmp_path: Path) -> None:
    row = json.loads(run("search", *DECODER, "--budget", "20p", "--json"))
    assert [(one["name"], one["fits_memory"]) for one in row["beside"]] == [("DDP", True), ("FSDP", True), ("Megatron-LM", True)]
    assert [one["plan"] for one in row["beside"]] == ["d8 mb2", "d8 mb2 zero3", "t1 p1 d8 mb2 zero1"]
    for one in row["beside"]:
        alone = json.loads(run("simulate", *DECODER, "--strategy", one["plan"], "--json"))
        assert alone["iteration_seconds"] == one["iteration_seconds"] >= row["iteration_seconds"] * (1 - 1e-9)
        assert alone["peak_memory_bytes"] == one["peak_memory_bytes"]
    text = run("search", *DECODER, "--budget", "20p")
    for name in ("found", "DDP d8 mb2", "FSDP d8 mb2 zero3", "Megatron-LM t1 p1 d8 mb2 zero1"):
        assert re.search(rf"^{name} .* yes$", text, re.MULTILINE), text
    assert "\nfound t1 p1 d8 zero2 " in f"\n{beside_table(row, 't1 p1 d8 zero2', row['beside'])}"


def test_plans_beside_it_say_what_does_not_fit_and_why_there_is_none(tmp_path: Path) -> None:
    content = json.loads(run("machine", "show", "h100", "--json"))
    assert content["kinds"][0]["memory_bytes"] == 80e9
    small = {
        "format": "taskflow-machine", "version": 1, "name": "small", "like": "h100",
        "devices": [{"like": "h100", "kind": "h100", "memory_bytes": 20_000}],
    }
    (tmp_path / "small.json").write_text(json.dumps(small))
    words = [*DECODER]
    words[words.index("h100")] = str(tmp_path / "small.json")
    row = json.loads(run("search", *words, "--budget", "5p", "--no-memory", "--json"))
    assert any(not one["fits_memory"] and one["lacks"] for one in row["beside"])
    words[words.index("16")], words[words.index("8")] = "9", "2"
    row = json.loads(run("search", *words, "--budget", "5p", "--no-memory", "--json"))
    assert "divided evenly" in row["beside"][0]["why"] and "iteration_seconds" not in row["beside"][0]
    assert "divided evenly" in run("search", *words, "--budget", "5p", "--no-memory", "-q")


def test_other_networks_have_no_plans_beside() -> None:
    row = json.loads(run("search", "lenet", "-m", "h100", "-n", "2", "--budget", "5p", "--json"))
    assert row["beside"] == [] and row["tokens_per_second"] is None and 0 < row["mfu"] < 1
    assert row["samples_per_second_per_device"] == pytest.approx(row["samples_per_step"] / row["iteration_seconds"] / 2)
    text = run("search", "lenet", "-m", "h100", "-n", "2", "--budget", "5p", "-q")
    assert "tokens" not in text and f"{row['samples_per_second']:,.0f} samples/s, " in text
    assert "samples/s" in run("simulate", "lenet", "-m", "h100", "-n", "2", "--strategy", "data").splitlines()[1]


def test_machines_say_the_rates_of_tensor_cores_first() -> None:
    text = run("machines")
    head = text.splitlines()[0].split()
    assert head[:6] == ["machine", "device", "devices", "nodes", "bf16", "TFLOP/s"]
    (line,) = [line for line in text.splitlines() if line.startswith("b200 ")]
    assert line.split() == ["b200", "b200", "32", "4", "2250", "4500", "75", "180", "8"]
    machines = {one["name"]: one for one in json.loads(run("machines", "--json"))["machines"]}
    assert machines["gb200"]["kinds"][0]["rates"]["bfloat16"] == 2.5e15
