"""Logs of a run for TensorBoard and Weights & Biases: the numbers of each step, and what is said without their packages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from taskflow.cli.main import main

RUN = ("train", "mlp", "--steps", "3", "--processors", "2", "--json", "-q")


def trained(*words: str) -> dict:
    done = CliRunner().invoke(main, [*RUN, *words])
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout.splitlines()[-1])


def test_tensorboard_shows_the_losses_of_the_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'soap-taskflow[log]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    said = trained("--log", f"tensorboard:{tmp_path}")
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    found = {tag: [(e.step, float(e.tensor_proto.float_val[0])) for e in events.Tensors(tag)] for tag in events.Tags()["tensors"]}
    assert found["loss"] == [(i + 1, pytest.approx(loss, rel=1e-6)) for i, loss in enumerate(said["losses"])]
    assert len(found["step_seconds"]) == 3 and all(seconds > 0 for _, seconds in found["step_seconds"])


def test_wandb_gets_the_losses_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="pip install 'soap-taskflow[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    import wandb

    logged: list[tuple[int, dict]] = []
    log = wandb.Run.log
    monkeypatch.setattr(wandb.Run, "log", lambda run, data, step: (logged.append((step, data)), log(run, data, step=step)))
    said = trained("--log", "wandb:trial")
    losses = [(step, values["loss"]) for step, values in logged if "loss" in values]
    assert losses == [(i + 1, loss) for i, loss in enumerate(said["losses"])]
    assert list(tmp_path.rglob("*.wandb")), "the run is on disk"


@pytest.mark.parametrize(("text", "said"), [
    ("tensorboard", "write tensorboard:FOLDER or wandb:PROJECT"), ("csv:x", "write tensorboard:FOLDER or wandb:PROJECT"),
    ("tensorboard:x", "pip install 'soap-taskflow[log]'"), ("wandb:x", "pip install 'soap-taskflow[wandb]'"),
])  # fmt: skip
def test_what_cannot_be_logged_is_said_before_training(text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tensorboard", "tensorboard.summary", "wandb"):
        monkeypatch.setitem(sys.modules, module, None)
    done = CliRunner().invoke(main, [*RUN, "--log", text])
    assert done.exit_code == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1
