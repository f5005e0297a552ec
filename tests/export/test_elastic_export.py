"""Exported plans go on with fewer ranks: torchrun starts those, and DCP reads the checkpoint under another plan."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")

sys.path.insert(0, str(Path(__file__).parent))
import networks  # noqa: E402
from starting import environment, free_port  # noqa: E402

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
    broken_off = tmp_path / "saved" / "step6" / "__9_0.distcp"  # of more ranks
    broken_off.parent.mkdir(parents=True)
    broken_off.touch()
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
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["step6", "step9"] and not broken_off.exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_lost_agent(tmp_path: Path) -> None:
    """Four agents of one rank each, of which one is killed with its rank: torchrun itself goes on with the others. The first one
    has the rendezvous's store and stays."""
    for ranks, plan in {4: "d4 zero3", 3: "d3", 2: "t2"}.items():  # on a busy machine the others may not all meet in time
        write(tmp_path, ranks, plan)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "2:4", "--nproc-per-node", "1", "--max-restarts", "3",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()}", "--rdzv-id", "job",
    ]
    program = [str(PROGRAM), str(STEPS), str(LOST)]
    shared = {**environment(), "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    agents, said = [], [tmp_path / f"said{k}" for k in range(4)]
    try:
        for k, file in enumerate(said):
            with file.open("wb") as out:
                # All are at the endpoint's address: without being told, whichever comes first has the store.
                agents.append(subprocess.Popen(
                    [*command, "--rdzv-conf", f"is_host={k == 0}", *program], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=out,
                    stderr=subprocess.STDOUT, start_new_session=True, env={**shared, "KEEP_OR_LOSE": "lose" if k == 2 else "keep"},
                ))
        ends = [agent.wait(800) for agent in agents]
    finally:
        for agent in agents:
            if agent.poll() is None:
                agent.terminate()  # it ends its ranks, too
                agent.wait(60)
    assert ends == [0, 0, -9, 0], "\n".join(file.read_text()[-3000:] for file in said)
    notes = [json.loads(line) for line in (tmp_path / "notes").read_text().splitlines()]
    parts = [[note[1] for note in part] for _, part in itertools.groupby(notes, key=lambda note: note[0])]
    before, wanted = 0, alone()
    for steps in parts:
        assert steps == list(range(steps[0], steps[-1] + 1)) and steps[0] <= before and steps[0] % 3 == 0, parts
        before = steps[-1] + 1
    assert before == STEPS and len(parts) > 1 and notes[-1][0] < 4
    for _, step, loss in notes:
        assert loss == pytest.approx(wanted[step], rel=1e-4), step
