"""benchmarks/gpu.py goes on after what fails and keeps what it has; its worker runs on the host's emulation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from host_device import HostDevice, compiles, host_kernels

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import gpu  # noqa: E402
import gpu_smoke  # noqa: E402
import gpu_wheels  # noqa: E402
import gpu_worker  # noqa: E402

LIMITS = (2, 8, 32)  # seconds, one after another until a program comes as far as it must: on a busy machine it starts slowly


def ended(pid: int) -> bool:
    """Whether a process is gone, or only waits to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_what_takes_too_long_is_ended_with_all_its_children(tmp_path: Path) -> None:
    child = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(200)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}, sys.argv[1]])"
    for seconds in LIMITS:
        began = time.perf_counter()
        with pytest.raises(gpu.Failed, match=f"took more than {seconds} s"):
            gpu.run([sys.executable, "-c", parent, str(tmp_path / "pid")], seconds)
        assert time.perf_counter() - began < seconds + 60  # the child goes on for 200 s
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            break
    pid = int((tmp_path / "pid").read_text())
    until = time.perf_counter() + 60
    while not ended(pid):
        assert time.perf_counter() < until, "the child still runs"
        time.sleep(0.05)
    with pytest.raises(gpu.Failed, match="exit code 3: at last"):
        gpu.run([sys.executable, "-c", "import sys; print('first\\nat last', file=sys.stderr); sys.exit(3)"], 200)


def test_what_takes_too_long_says_where_it_stood() -> None:
    code = "import time\ndef stands_here():\n    time.sleep(60)\nprint('so far', flush=True)\nstands_here()"
    for seconds in LIMITS:
        with pytest.raises(gpu.Failed, match=f"took more than {seconds} s") as failed:
            gpu.run([sys.executable, "-c", code], seconds)
        if failed.value.out:
            break
    assert "in stands_here" in failed.value.log and failed.value.out == "so far\n"


def test_a_failure_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(gpu.Failed, match="exit code 1: ValueError: kind must be device") as failed:
        gpu.worker("what", 200, {"device": "cpu"})
    assert "Traceback (most recent call last)" in failed.value.log and "gpu_worker.py" in failed.value.log
    with pytest.raises(gpu.Failed, match="is no JSON"):
        gpu.last_object("words")


SMOKES = """
import json, os, signal, sys, time
after = sys.argv[sys.argv.index("--after") + 1]
names = ["a", "lost", "b", "killed", "c"]
for name in names[names.index(after) + 1 if after else 0:]:
    print(json.dumps({"starts": name}), flush=True)
    if name == "killed":
        print("about to die", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    ok = name != "lost"
    print(json.dumps({"check": name, "ok": ok, **({"note": ""} if ok else {"error": "E: gone", "log": "Traceback"})}), flush=True)
    if not ok:
        sys.exit(3)
"""


def test_a_smoke_goes_on_behind_what_kills_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "smoke.py").write_text(SMOKES)
    monkeypatch.setattr(gpu, "SMOKE", tmp_path / "smoke.py")
    found = gpu.smoke(200, "host")
    assert [(row["check"], row["ok"]) for row in found["checks"]] == [
        ("a", True), ("lost", False), ("b", True), ("killed", False), ("c", True),
    ]
    assert found["failures"] == ["lost", "killed"] and found["summary"] == "3 of 5 checks are fine"
    assert "lost: E: gone\nTraceback" in found["log"] and "about to die" in found["log"]
    (tmp_path / "smoke.py").write_text("import no_such_module")
    with pytest.raises(gpu.Failed, match="no_such_module"):
        gpu.smoke(200, "host")


@pytest.mark.skipif(not compiles(), reason="no C++20 compiler: the GPU's kernels cannot be run on the host")
def test_the_smoke_runs_on_the_hosts_emulation_and_can_fail(capsys: pytest.CaptureFixture[str]) -> None:
    every = list(gpu_smoke.checks("host"))
    assert len({check.name for check in every}) == len(every) > 50
    wanted = (
        "device", "kernels float32", "pinned copies", "product fp32", "convolution fp32", "step LeNet", "operator lstm", "times",
    )
    rows = [gpu_smoke.tried(check) for check in every if check.name in wanted]
    assert [row["check"] for row in rows if not row["ok"]] == [] and len(rows) == len(wanted), rows
    of, numbers = gpu_smoke.kernels_of("host"), np.random.default_rng(0)
    assert np.array_equal(of.device.to_host(gpu_smoke.sent(of, x := numbers.normal(size=(3, 5)), 1)), x)
    assert gpu_smoke.WRONG == gpu.WRONG
    assert gpu_smoke.apart(np.array([np.nan, 1.0]), np.ones(2)) == np.inf and gpu_smoke.apart(np.ones(4), np.full(4, 2.0)) == 0.5


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiles():
        pytest.skip("no C++20 compiler: the GPU's kernels cannot be run on the host")
    plain = HostDevice.gemm

    def halved(self: HostDevice, call: Any, first: Any, second: Any, out: Any, accumulate: bool) -> None:
        plain(self, call, first, second, out, accumulate)
        out *= 1 + 1e-3

    monkeypatch.setattr(HostDevice, "gemm", halved)
    wanted = ("product fp32", "convolution fp32")
    rows = {check.name: gpu_smoke.tried(check) for check in gpu_smoke.checks("host") if check.name in wanted}
    assert [row["ok"] for row in rows.values()] == [False, False]
    assert all("relative error" in row["error"] and "gpu_smoke.py" in row["log"] for row in rows.values())


def test_wheels_are_installed_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel as MPICH's: its programs and libraries are data, which pip --target would drop."""
    name, monkeys = "brought-1.0", tmp_path / "tmp"
    monkeys.mkdir()
    with zipfile.ZipFile(tmp_path / f"{name}-py3-none-any.whl", "w") as wheel:
        files = {
            "brought.py": "value = 7", f"{name}.data/data/bin/brings": "#!/bin/sh\necho it runs\n",
            f"{name}.data/data/lib/libit.so": "",
            f"{name}.dist-info/METADATA": "Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n",
            f"{name}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        for path, text in files.items():
            info = zipfile.ZipInfo(path)
            info.external_attr = 0o100755 << 16
            wheel.writestr(info, text)
        wheel.writestr(f"{name}.dist-info/RECORD", "".join(f"{path},,\n" for path in [*files, f"{name}.dist-info/RECORD"]))
    monkeypatch.setattr(gpu_wheels, "gettempdir", lambda: str(monkeys))
    with pytest.raises(RuntimeError, match="has no wheels"):
        gpu_wheels.installed(monkeys)
    place = gpu_wheels.installed(tmp_path)
    assert gpu_wheels.installed(tmp_path) == place and (place / "lib" / "libit.so").exists()
    where = gpu_wheels.environment(place, {**os.environ, "LD_LIBRARY_PATH": "/elsewhere"})
    assert where["LD_LIBRARY_PATH"] == f"{place / 'lib'}{os.pathsep}/elsewhere"
    program = "import brought, subprocess; print(brought.value, subprocess.check_output('brings', text=True))"
    done = subprocess.run([sys.executable, "-c", program], env=where, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "7 it runs"


def test_what_was_never_tried_comes_first() -> None:
    todo = [("smoke", "smoke", None), ("losses", "a", None), ("losses", "b", None), ("ranks", "1", None), ("tests", "t", None)]
    result = {"losses": {"b": {}}, "ranks": {"1": [1.0]}, "smoke": {"smoke": {"failures": ["x"]}}, "tests": {"t": {"failures": []}}}
    result["failed"] = [{"what": "smoke smoke"}]
    assert [task[:2] for task in gpu.planned(result, iter(todo))] == [("losses", "a"), ("smoke", "smoke")]


def test_failing_tests_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "F.\nFAILED tests/gpu/test_a.py::test_b - assert 1 == 2\nERROR tests/gpu/test_a.py::test_c\n1 failed, 1 passed in 2s"
    program = f"import os, sys; assert os.environ['TASKFLOW_GRAPHS'] == '0'; print({said!r}); sys.exit(1)"
    plain = gpu.run
    monkeypatch.setattr(gpu, "run", lambda command, *rest, **more: plain([sys.executable, "-c", program], *rest, **more))
    found = gpu.tests(200, "not graphs", "0")
    assert found["summary"] == "1 failed, 1 passed in 2s"
    assert [line.split()[1].split("::")[1] for line in found["failures"]] == ["test_b", "test_c"]


def test_it_goes_on_and_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def planned(*_: Any) -> Any:
        def measure(name: str, seconds: float) -> Any:
            asked.append(name)
            assert 0 < seconds <= gpu.SECONDS["accuracy"]
            if name == "bad" and len(asked) < 4:
                raise gpu.Failed("exit code 1: no such thing", log="all that it said")
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
    assert found["failed"] == [{"what": "accuracy bad", "error": "Failed: exit code 1: no such thing", "log": "all that it said"}]
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
    from taskflow.optimizer.cost.measured import model as cost_measured
    from taskflow.runtime.calibrate import links as measure_links
    from taskflow.runtime.calibrate import machine as measure

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
