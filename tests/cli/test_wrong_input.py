"""Wrong input that once gave a traceback, no message, or a message that did not help: each is one line and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from starting import environment

import taskflow
from taskflow.cli.main import main
from taskflow.optimizer.grid.tables import corner
from taskflow.partition import even_cuts

MLP = ("mlp", "--size", "small", "-m", "p100", "-n", "2")
SHARE = ("share", "mlp", "lenet", "-m", "p100", "-n", "4")
FILES = {
    "leaves.py": "import sys\ndef net():\n    sys.exit(0)\n",
    "script.py": "import sys\ndef net(): ...\nsys.exit(3)\n",
    "wrong.py": "def net(:\n",
    "empty.onnx": "",
    "deep.json": "[" * 100_000,
    "cuts.py": (
        "from taskflow.mapper import DataParallel\n"
        "class Raises(DataParallel):\n    def prepare(self, graph, machine):\n        1 / 0\n"
        "class Ring(DataParallel):\n    def select_exchange(self, graph, machine):\n        return 'ring'\n"
        "class Stages(DataParallel):\n    def select_pipeline(self, graph, machine):\n        return 4\n"
        "class Made(DataParallel):\n    def __init__(self):\n        self.x = {}['x']\n"
    ),
}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("simulate", "leaves.py:net", "-n", "2"), "the function ends the program (sys.exit) (line 3 of leaves.py)"),
        (("simulate", "leaves.py:net", "-n", "2", "--dtype", "bf16"), "by to(torch.bfloat16), and leave --dtype out"),
        (("simulate", "script.py:net", "-n", "2"), "it ends the program (sys.exit) (line 3 of script.py); put what it runs"),
        (("simulate", "gpt-2", "--set", "layers=-1", "-n", "2"), "GPT-2: layers must be a positive integer, got -1"),
        (("simulate", "moe", "--set", "experts=0", "-n", "2"), "MoE: experts must be a positive integer, got 0"),
        (("simulate", "moe", "--set", "factor=nan", "-n", "2"), "factor must be a number above 0, got nan"),
        (("simulate", "resnet-101", "--set", "blocks=3", "-n", "2"), "blocks must be 4 values with commas between them"),
        (("simulate", "hf:nowhere", "-n", "2"), "hf: there is no file nowhere; give a config.json, or the folder of a model"),
        (("simulate", "hf:deep.json", "-n", "2"), "hf: deep.json is not JSON: "),
        (("simulate", "nowhere.pt2", "-n", "2"), "model nowhere.pt2: there is no file nowhere.pt2"),
        (("simulate", "plan.json", "-n", "2"), "a config of Hugging Face is hf:plan.json; a plan is "),
        (("simulate", *MLP, "--batch", str(10**24)), "has more than 2**50 elements, which no machine holds"),
        (("simulate", *MLP, "--strategy", "wrong.py:Mine"), "write the module's name, not the file's: wrong:Mine"),
        (("simulate", *MLP, "--strategy", "wrong:Mine"), "cannot import wrong: SyntaxError: "),
        (("simulate", *MLP, "--strategy", "cuts:Raises"), "raised ZeroDivisionError: division by zero (line 4 of cuts.py)"),
        (("simulate", *MLP, "--strategy", "cuts:Ring"), "select_exchange must return an Exchange, got 'ring'"),
        (("simulate", *MLP, "--strategy", "cuts:Stages"), "select_pipeline must return a Pipeline or None, got 4"),
        (("simulate", *MLP, "--strategy", "cuts:Made"), "Made() raised KeyError: 'x' (line 13 of cuts.py)"),
        (("search", *MLP, "--budget", "0s"), "more than 0 seconds, or a whole number of proposals, got '0s'"),
        (("search", *MLP, "--budget", "1e400s"), "more than 0 seconds, or a whole number of proposals, got '1e400s'"),
        (("search", *MLP, "--budget", "1.5p"), "more than 0 seconds, or a whole number of proposals, got '1.5p'"),
        (("search", *MLP, "--budget", "1s", "--workers", "100000"), "workers must be 1 to 256, got 100000"),
        (("compare", *MLP, "--budget", "5p", "--pin", "no=whole @ 0"), "no operator of MLP matches 'no'; there are "),
        (("compare", *MLP, "--budget", "5p", "--pin-sync", "no=ring/every"), "that has weights matches 'no'"),
        (("explain", "data", "--model", *MLP, "--what-if", "links=0x"), "must be a number from 1e-06 to 1e+06, got 0"),
        (("explain", "data", "--model", *MLP, "--what-if", "links=-2x"), "must be a number from 1e-06 to 1e+06, got -2"),
        ((*SHARE, "--budget", "5p", "--out", ""), "the name of the folder to write is empty"),
        (("machine", "measure", "--out", ""), "the name of the file to write is empty"),
        (("train", "wrong:net", "--steps", "1"), "cannot import wrong (SyntaxError: "),
        (("train", "mlp", "--checkpoint", "folder", "--steps", "1"), "cannot write checkpoint folder: it is a folder"),
        (("train", "mlp", "--save-strategy", "folder", "--steps", "1"), "cannot write strategy file folder: it is a folder"),
        (("train", "mlp", "--resume", "folder", "--steps", "1"), "weights file folder is a folder"),
    ],
)
def test_wrong_input_is_one_line(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "folder").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2 and message in result.stderr and result.stderr.count("\n") == 1, result.output


def test_an_empty_onnx_file_is_said(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    (tmp_path / "empty.onnx").write_text("")
    result = CliRunner().invoke(main, ["simulate", str(tmp_path / "empty.onnx"), "-n", "2"])
    assert result.exit_code == 2 and "empty has no nodes; is the file a whole ONNX model?" in result.stderr


def test_a_misspelt_command() -> None:
    result = CliRunner().invoke(main, ["serach", "mlp"])
    assert result.exit_code == 2 and "No such command 'serach'. Did you mean 'search'?" in result.stderr


def test_corners_are_those_of_even_cuts_and_need_no_list_of_them() -> None:
    graph = taskflow.OperatorGraph()
    x = taskflow.input(graph, (10**13, 7), name="x")
    node = graph.node(taskflow.linear(x, 5, name="fc").name)
    assert corner(node, (10**13, 1, 1), False).hi == (1, 5, 7)
    for c, k in ((1, 1), (2, 3), (3, 2), (5, 7), (6, 9)):
        first, last = corner(node, (1, c, k), False), corner(node, (1, c, k), True)
        for dim, size, degree in ((1, 5, c), (2, 7, k)):
            cuts = even_cuts(size, degree)
            assert (first.lo[dim], first.hi[dim]) == cuts[:2] and (last.lo[dim], last.hi[dim]) == cuts[-2:]


def test_closed_streams_lose_no_result(tmp_path: Path) -> None:
    """A shell may start a command without standard error (``2>&-``) or output."""
    words = f"{sys.executable} -m taskflow simulate mlp --size small -m p100 -n 2 --strategy data"
    done = subprocess.run(["sh", "-c", f"{words} 2>&-"], capture_output=True, text=True, env=environment(), cwd=tmp_path)
    assert done.returncode == 0 and "step ms" in done.stdout, done
    for closed in (">&-", ">&- 2>&-"):
        assert subprocess.run(["sh", "-c", f"{words} {closed}"], env=environment(), cwd=tmp_path).returncode == 0


def test_a_file_that_ends_early_is_no_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    """Click calls an EOFError "Aborted!", and says no more."""

    def ends(*_: object, **__: object) -> None:
        raise EOFError("marshal data too short")

    monkeypatch.setattr("taskflow.cli.simulate.make_problem", ends)
    done = CliRunner().invoke(main, ["simulate", *MLP, "--strategy", "data"])
    assert done.exit_code == 1 and "marshal data too short" in str(done.exception), done.output
