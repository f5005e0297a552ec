"""Exported plans go on with fewer ranks: torchrun starts those, and DCP reads the checkpoint under another plan."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")

sys.path.insert(0, str(Path(__file__).parent))
import networks  # noqa: E402
from starting import environment  # noqa: E402

import taskflow  # noqa: E402
from taskflow.export import exported  # noqa: E402

STEPS, LOST, BATCH = 9, 4, 12
PROGRAM = Path(__file__).parent / "train_elastic.py"


def alone() -> list[float]:
    """The losses of PyTorch alone."""
    torch.manual_seed(0)
    module = networks.MODULES["llama"]()
    optimizer, losses = torch.optim.Adam(module.parameters(), lr=0.01), []
    for step in range(STEPS):
        tokens = torch.randint(networks.WORDS, (BATCH, networks.STEPS + 1), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = networks.loss(module(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def write(folder: Path, ranks: int, plan: str) -> None:
    graph = taskflow.from_torch(networks.Llama(), torch.zeros(BATCH, networks.STEPS, dtype=torch.long))
    strategy = taskflow.choose(plan, graph, taskflow.load_machine("p100", ranks))[0]
    name = f"parallel{ranks}.py"
    (folder / name).write_text(exported(graph, strategy, "torch", name).files[name])


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("plans", [{4: "d4 zero3", 3: "d3"}, {4: "t2 d2 zero2", 2: "t2"}, {4: "t4", 2: "p2 mb2"}])
def test_a_lost_rank(tmp_path: Path, plans: dict[int, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun starts four ranks, of which one is killed, and then as many as are left, under their plan."""
    for ranks, plan in plans.items():
        write(tmp_path, ranks, plan)
    left, there = min(plans), iter(plans)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    torchrun = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node {{ranks}}"
    status = taskflow.run_elastic(
        [str(PROGRAM), str(STEPS), str(LOST)], (2, 4), max_restarts=1, launcher=torchrun, hosts=lambda: {"here": next(there)}
    )
    assert status == 0
    notes = [json.loads(line) for line in (tmp_path / "notes").read_text().splitlines()]
    assert [note[:2] for note in notes] == [[4, step] for step in range(LOST)] + [[left, step] for step in range(3, STEPS)]
    wanted = alone()
    for _, step, loss in notes:
        assert loss == pytest.approx(wanted[step], rel=1e-4), (step, plans)
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["step6", "step9"]
