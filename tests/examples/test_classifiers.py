"""The classifiers' examples as a user starts them: their losses fall, under every strategy alike, in one process and under
mpirun; on pictures and texts of the user's own; and with what cannot work."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image
from starting import ROOT, needs_mpi, run_python

MAPPERS = (("data",), ("expert",), ("search", "--search-budget", "100p"))
SAME = 20  # steps over which the losses are the same
LIMIT_SECONDS = 240
# Steps after which the mean loss of the last five lies below this share of the mean of the first five.
FALLS = {
    "mlp": (20, 0.4), "lenet": (40, 0.6), "rnntc": (100, 0.95), "resnet": (20, 0.6), "alexnet": (30, 0.9),
    "inception": (20, 0.9),
}  # fmt: skip
SLOW = ("alexnet", "inception", "resnet", "rnntc")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKFLOW_CACHE", str(tmp_path / "cache"))


def load(name: str) -> ModuleType:
    """The example as a module of its own."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def start(name: str | ModuleType, *arguments: str) -> Result:
    """In this process, without MPI."""
    module = load(name) if isinstance(name, str) else name
    return CliRunner().invoke(module.main, ["--json", "--quiet", *arguments], catch_exceptions=False)


def report(done: Result | subprocess.CompletedProcess[str]) -> dict:
    status = done.exit_code if isinstance(done, Result) else done.returncode
    assert status == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def under_mpirun(name: str, *arguments: str, ranks: int = 4) -> dict:
    return report(run_python(f"examples/{name}.py", "--json", "--quiet", *arguments, ranks=ranks, limit=LIMIT_SECONDS))


def falls(found: dict, share: float) -> None:
    losses = found["losses"]
    assert np.mean(losses[-5:]) < share * np.mean(losses[:5]), losses


def same(found: dict, reference: dict) -> None:
    np.testing.assert_allclose(found["losses"][:SAME], reference["losses"][:SAME], rtol=1e-3)


NETWORKS = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in FALLS]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NETWORKS)
def test_losses_fall_and_are_the_same_under_every_strategy(name: str) -> None:
    steps, share = FALLS[name]
    reports = [report(start(name, "--processors", "4", "--steps", str(steps), "--mapper", *mapper)) for mapper in MAPPERS]
    for mapper, found in zip(MAPPERS, reports):
        assert (found["processors"], found["mapper"], found["steps"]) == (4, mapper[0], steps)
        falls(found, share)
        same(found, reports[0])
        assert 0 <= found["top1_valid"] <= found["top5_valid"] <= 1 and found["loss_valid"] > 0


@pytest.mark.slow
@pytest.mark.mpi
@needs_mpi
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", list(FALLS))
def test_under_mpirun_on_four_ranks(name: str) -> None:
    steps, share = FALLS[name]
    reference = report(start(name, "--processors", "1", "--steps", str(SAME)))
    for mapper in MAPPERS:
        found = under_mpirun(name, "--steps", str(steps), "--mapper", *mapper)
        assert (found["ranks"], found["processors"]) == (4, 4)
        falls(found, share)
        same(found, reference)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name,least", [
    ("mlp", 0.9), ("lenet", 0.85), ("alexnet", 0.75), ("resnet", 0.85), ("inception", 0.75), ("rnntc", 0.35),
])
def test_a_whole_run_learns(name: str, least: float) -> None:
    assert report(start(name, "--processors", "1"))["top1_valid"] > least


# ---- data of the user's own ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes that one can tell apart: bright on the left, bright at the top."""
    root = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(1)
    ramp = np.linspace(220, 20, 40)
    for part, count in (("train", 12), ("val", 5)):
        for name, bright in (("across", ramp[None, :, None]), ("down", ramp[:, None, None])):
            (root / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = np.clip(bright + draw.normal(0, 20, (40, 40, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{i}.jpeg")
    return root


def short(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example's program with batches of eight."""
    module = importlib.import_module(f"taskflow.training.networks.{name}")
    small = module.PRESETS["small"]
    monkeypatch.setitem(module.PRESETS, "small", replace(small, model=replace(small.model, batch=8)))
    return module


@pytest.mark.parametrize("name", ["mlp", "lenet", "alexnet", "resnet"])
def test_pictures_of_a_folder(pictures: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("--data", str(pictures), "--steps", "3", "--workers", "0")
    one = report(start(short(name, monkeypatch), *arguments, "--processors", "1"))
    two = report(start(short(name, monkeypatch), *arguments, "--processors", "3", "--mapper", "random"))
    same(two, one)
    assert two["top5_valid"] is None and 0 <= two["top1_valid"] <= 1  # of two classes
    assert report(start(short(name, monkeypatch), *arguments, "--seed", "1"))["losses"] != one["losses"]


@pytest.mark.mpi
@needs_mpi
@pytest.mark.timeout(2 * LIMIT_SECONDS)
def test_ranks_decode_in_the_background(pictures: Path) -> None:
    arguments = ("--data", str(pictures), "--steps", "4")
    alone = report(start("lenet", *arguments, "--workers", "0", "--processors", "1"))
    same(under_mpirun("lenet", *arguments, ranks=2), alone)


def test_pictures_can_be_told_apart(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = report(start(short("lenet", monkeypatch), "--data", str(pictures), "--steps", "60", "--workers", "0"))
    falls(found, 0.8)
    assert found["top1_valid"] > 0.7


def test_texts_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{'good,fine nice' if i % 2 else 'bad,poor dull'} word{i % 7}" for i in range(200)]
    (tmp_path / "texts.csv").write_text("\n".join(lines))
    found = report(start(short("rnntc", monkeypatch), "--data", str(tmp_path / "texts.csv"), "--steps", "40"))
    falls(found, 0.5)
    assert found["top1_valid"] == 1.0 and found["top5_valid"] is None
    assert found["texts_per_second"] > 0


# ---- what a user sees ------------------------------------------------------------------------------------------------


def test_what_is_printed() -> None:
    done = CliRunner().invoke(load("mlp").main, ["--processors", "2", "--steps", "3", "--json"])
    assert done.exit_code == 0, done.stderr
    assert "1,500 pictures of 10 classes, 297 for validation (scikit-learn's digits)" in done.stderr
    assert "step 3/3  loss" in done.stderr and "images/s" in done.stderr and "perplexity" not in done.stderr
    assert "validation loss" in done.stderr and "top1" in done.stderr
    (line,) = done.stdout.splitlines()
    assert {"ranks", "loss_valid", "top1_valid", "top5_valid", "images_per_second", "losses"} <= set(json.loads(line))


@pytest.mark.parametrize("name,arguments,message", [
    ("mlp", ("--data", "nowhere"), "nowhere is no folder"),
    ("rnntc", ("--data", "nowhere"), "there is no file or folder nowhere"),
    ("lenet", ("--data", ".", "--data", "."), "give one folder with --data, got 2"),
    ("mlp", ("--mapper", "fastest"), "no mapper 'fastest'"),
])
def test_mistakes_are_named_in_one_line(name: str, arguments: tuple[str, ...], message: str) -> None:
    done = start(name, *arguments)
    (line,) = done.stderr.splitlines()
    assert done.exit_code == 2 and line.startswith(f"{name}.py: ") and message in line


@pytest.mark.parametrize("name,module,message", [
    ("alexnet", "PIL.Image", "images need Pillow"), ("mlp", "sklearn", "the digits come with scikit-learn"),
])
def test_what_is_not_installed_is_named(name: str, module: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in [loaded for loaded in sys.modules if loaded.startswith("sklearn")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)  # importing it fails
    done = start(name, "--steps", "1")
    assert done.exit_code == 2 and message in done.stderr and "pip install 'soap-taskflow[examples]'" in done.stderr


def test_every_example_has_help() -> None:
    for name in FALLS:
        done = CliRunner().invoke(load(name).main, ["--help"])
        assert done.exit_code == 0
        for option in ("--mapper", "--preset", "--data", "--steps", "--json", "--processors", "--seed"):
            assert option in done.stdout
