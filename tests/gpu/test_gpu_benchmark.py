"""benchmarks/gpu.py goes on after what fails and keeps what it has; its worker runs on the host's emulation."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from host_device import compiles, host_kernels

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import gpu  # noqa: E402
import gpu_worker  # noqa: E402


def ended(pid: int) -> bool:
    """Whether a process is gone, or only waits to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_what_takes_too_long_is_ended_with_all_its_children(tmp_path: Path) -> None:
    child = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}, sys.argv[1]])"
    began = time.perf_counter()
    with pytest.raises(gpu.Failed, match="took more than 2 s"):
        gpu.run([sys.executable, "-c", parent, str(tmp_path / "pid")], 2)
    assert time.perf_counter() - began < 20
    pid = int((tmp_path / "pid").read_text())
    while not ended(pid):
        assert time.perf_counter() - began < 30, "the child still runs"
        time.sleep(0.05)
    with pytest.raises(gpu.Failed, match="exit code 3: at last"):
        gpu.run([sys.executable, "-c", "import sys; print('first\\nat last', file=sys.stderr); sys.exit(3)"], 20)


def test_it_goes_on_and_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def planned(*_: Any) -> Any:
        def measure(name: str, seconds: float) -> Any:
            asked.append(name)
            assert 0 < seconds <= 90
            if name == "bad" and len(asked) < 4:
                raise gpu.Failed("exit code 1: no such thing")
            return {"of": name}

        for name in ("good", "bad", "last"):
            yield "accuracy", name, lambda s, name=name: measure(name, s)

    monkeypatch.setattr(gpu, "tasks", planned)
    monkeypatch.setattr(gpu, "judged", lambda result: {})
    out = tmp_path / "gpu.json"
    command = ["--device", "cpu", "--out", str(out), "--json"]
    first = CliRunner().invoke(gpu.main, command)
    found = json.loads(out.read_text())
    assert first.exit_code == 1 and found["accuracy"] == {"good": {"of": "good"}, "last": {"of": "last"}}
    assert found["failed"] == [{"what": "accuracy bad", "error": "Failed: exit code 1: no such thing"}]
    assert json.loads(first.stdout.splitlines()[-1])["failed"] == found["failed"]
    second = CliRunner().invoke(gpu.main, [*command, "--resume"])
    found = json.loads(out.read_text())
    assert second.exit_code == 0 and asked == ["good", "bad", "last", "bad"]
    assert list(found["accuracy"]) == ["good", "last", "bad"] and not found["failed"]
    out.unlink()
    third = CliRunner().invoke(gpu.main, [*command, "--limit", "0"])
    assert third.exit_code == 0 and len(asked) == 4
    assert json.loads(out.read_text())["left"] == ["accuracy good", "accuracy bad", "accuracy last"]
    assert CliRunner().invoke(gpu.main, ["--parts", "device,speed"]).exit_code == 2


def test_every_part_has_its_measurements() -> None:
    settings = {"preset": "small", "steps": "1", "device": "cpu"}
    planned = list(gpu.tasks(gpu.PARTS, gpu.NETWORKS, gpu.PRECISIONS, settings))
    assert {part for part, _, _ in planned} == set(gpu.PARTS)
    assert len({(part, name) for part, name, _ in planned}) == len(planned)
    names = [name for part, name, _ in planned if part == "training"]
    assert {name.split()[0] for name in names} == set(gpu.NETWORKS) and {name.split()[1] for name in names} == set(gpu.PRECISIONS)
    assert [name for part, name, _ in planned if part == "ranks"] == ["1", "2", "4", "16"]
    assert [name for part, name, _ in planned if part == "cpu"] == [*(f"rnnlm {n}" for n in (1, 2, 4, 8, 16)), "accuracy"]


def test_ratios() -> None:
    result = {
        "device": {"device": {"flops_per_second": {"fp32": 1000.0}}},
        "training": {
            "NMT fp32 taskflow": {"batch": 8, "step_seconds": 2.0, "ask_seconds": 0.5, "flops": 500},
            "NMT fp32 eager": {"step_seconds": 4.0}, "NMT fp32 compile": {"step_seconds": 1.0},
            "NMT bf16 taskflow": {"batch": 8, "step_seconds": 1.0, "ask_seconds": 0.1, "flops": 500},
            "NMT bf16 eager": {"step_seconds": 0.5},
        },
        "launch": {"NMT": {"step_seconds": 3.0}}, "ranks": {"1": [1.0, 2.0], "4": [1.0, 2.002]},
        "accuracy": {"NMT": {"error": 0.1, "kendall_tau": 0.8}},
    }
    found = gpu.judged(result)
    assert found["networks"]["NMT fp32"] == {
        "samples_per_second": 4.0, "ask_share": 0.25, "share_of_products": 0.25, "against_eager": 2.0, "against_compile": 0.5,
        "against_best": 0.5, "against_one_by_one": 1.5,
    }
    assert "share_of_products" not in found["networks"]["NMT bf16"]
    assert found["against_eager"] == pytest.approx(1.0) and found["against_best"] == pytest.approx(0.5)
    assert found["rank_losses_differ_by"] == {"4": pytest.approx(0.001)} and found["kendall_tau"] == {"NMT": 0.8}


@pytest.mark.skipif(not compiles(), reason="no C++20 compiler: the GPU's kernels cannot be run on the host")
def test_the_worker_on_the_hosts_emulation(monkeypatch: pytest.MonkeyPatch) -> None:
    import taskflow.kernels
    from taskflow.optimizer import cost_measured
    from taskflow.runtime import measure, measure_links

    monkeypatch.setattr(taskflow.kernels, "kernels_on", lambda _: host_kernels(records=True))
    monkeypatch.setattr(gpu_worker, "PRODUCT", 16)
    monkeypatch.setattr(gpu_worker, "LOSS_STEPS", 3)
    monkeypatch.setattr(measure, "GPU_EDGE", 16)
    monkeypatch.setattr(measure, "GPU_STREAM_BYTES", 1 << 16)
    monkeypatch.setattr(measure, "SECONDS", 0.002)
    monkeypatch.setattr(measure_links, "SECONDS", 0.002)
    original = cost_measured.MeasuredCosts.__init__
    monkeypatch.setattr(
        cost_measured.MeasuredCosts, "__init__", lambda self, *a, **o: original(self, *a, **{**o, "seconds": 0.001})
    )
    monkeypatch.setitem(os.environ, "TASKFLOW_PRECISION", "fp32")
    monkeypatch.setitem(os.environ, "TASKFLOW_GRAPHS", "1")
    facts = gpu_worker.device_facts("gpu")
    assert set(facts["flops_per_second"]) == {"fp32", "tf32", "bf16"} and facts["multiprocessors"] == 7
    row = gpu_worker.ours("LeNet", "fp32", 1, "gpu", "small", True)
    assert row["recorded_tasks"] > 0.8 * row["tasks"] and row["flops"] > 0 and row["loss"] > 0
    assert gpu_worker.losses("LeNet", "gpu")["within"]
    of = gpu_worker.accuracy("LeNet", "fp32", 1, "gpu", "small")
    assert [one["strategy"] for one in of["strategies"]] == ["one", "data", "model", "expert", "random"]
    assert all(one["predicted_seconds"] > 0 and one["measured_seconds"] > 0 for one in of["strategies"])
