"""search --also-for: plans for smaller machines, written beside the first, that training which has lost devices takes."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from taskflow.cli.main import main


def test_plans_for_smaller_machines_are_written_and_read(tmp_path: Path) -> None:
    """Of two nodes of four GPUs each one is lost; the batch stays as it was, which three devices could not have equal parts of."""
    asked = ["mlp", "-m", "p100", "--batch", "64"]
    words = ["search", *asked, "-n", "8", "--budget", "100p", "--out", str(tmp_path / "plan.json"), "--also-for", "1", "--json"]
    made = CliRunner().invoke(main, words)
    assert made.exit_code == 0, made.output
    (smaller,) = json.loads(made.stdout)["also_for"]
    assert smaller["devices"] == 4 and smaller["file"] == str(tmp_path / "plan.4.json"), smaller
    again = CliRunner().invoke(main, ["simulate", *asked, "-n", "4", "--strategy", smaller["file"], "--json"])
    assert again.exit_code == 0, again.output
    row = json.loads(again.stdout)
    assert abs(row["iteration_seconds"] / smaller["iteration_seconds"] - 1) < 1e-6
    few = [*words[:-3], "--also-for", "3,1", "--quiet"]
    few[few.index("-n") + 1] = "4"
    made = CliRunner().invoke(main, few)  # one node: numbers of devices
    assert made.exit_code == 0 and [made.output.count(f"{n} devices: ") for n in (3, 1)] == [1, 1], made.output
    assert (tmp_path / "plan.3.json").exists() and (tmp_path / "plan.1.json").exists()


def test_what_is_not_said_is_asked_for(tmp_path: Path) -> None:
    for more, said in ((["--also-for", "1"], "--also-for: say with --out where"), (["--also-for", "0,x"], "write numbers such as")):
        made = CliRunner().invoke(main, ["search", "mlp", "-m", "p100", "-n", "8", *more])
        assert made.exit_code == 2 and said in made.output, made.output


def test_a_smaller_machine_without_a_plan_takes_nothing_away(tmp_path: Path) -> None:
    """What was found for all devices is printed and written; why there is none for fewer is said."""
    network = ["llama", "--set", "hidden=8192", "--set", "layers=1", "--batch", "8", "--rule", "adam"]
    out = str(tmp_path / "plan.json")
    words = ["search", *network, "-m", "p100", "-n", "4", "--budget", "5p", "--out", out, "--also-for", "1"]
    made = CliRunner().invoke(main, [*words, "--json"])
    assert made.exit_code == 0, made.output
    row = json.loads(made.stdout)
    assert row["iteration_seconds"] > 0 and (tmp_path / "plan.json").exists() and not (tmp_path / "plan.1.json").exists()
    (smaller,) = row["also_for"]
    assert smaller["devices"] == 1 and smaller["file"] is None and "found no plan" in smaller["why"], smaller
    more = CliRunner().invoke(main, [*words[:-1], "9000"])
    assert more.exit_code == 2 and "9000" in more.output and "a step is" not in more.output, "said before the search"
