"""--freeze: layers that are not trained, in plans and what is made of them."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from taskflow.cli.main import main

FROZEN = ("--freeze", "layers.*", "--freeze", "norm")


def test_the_command_line_freezes_layers(tmp_path: Path) -> None:
    plan, asked = tmp_path / "plan.json", ["llama", "--size", "small", "-m", "h100", "-n", "2", "--rule", "adam"]
    made = CliRunner().invoke(main, ["search", *asked, *FROZEN, "--budget", "50p", "--out", str(plan)])
    assert made.exit_code == 0 and " trained)" in made.output, made.output
    again = CliRunner().invoke(main, ["explain", str(plan)])
    assert again.exit_code == 0 and " trained)" in again.output, again.output
    wrong = CliRunner().invoke(main, ["simulate", *asked, "--strategy", "data", "--freeze", "layer.*"])
    assert wrong.exit_code == 2 and "freeze: 'layer.*' matches no parameter of " in wrong.output
    refused = CliRunner().invoke(main, ["export", str(plan), "--to", "megatron", "--out", str(tmp_path / "run.sh")])
    assert refused.exit_code == 2 and "has frozen layers, which its configurations do not say" in refused.output, refused.output
