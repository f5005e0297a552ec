"""The probe for JAX needs JAX alone, times the same cases, and becomes a machine as PyTorch's does."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import Any

import pytest

from taskflow.probe import built, probe_text, read_probes
from taskflow.probe.cases import MAKERS, cases_of, usual

SMALL = [("linear", (16, 8, 24)), ("cross_entropy", (16, 10)), ("embedding", (16, 10, 8)), ("add", (128,))]
OTHERS = [("depthwise", (2, 6, 5, 4, 3)), ("lstm", (2, 3, 4, 5)), ("gru", (2, 3, 4, 5)), ("rotary", (2, 3, 2, 4)),
          ("swiglu", (128,)), ("rms_norm_parts", (3, 8))]  # fmt: skip
SEEN = [*usual(False)[::7], ("conv2d", (2, 3, 4, 6, 5, 3, 2)), ("pool", (2, 3, 4, 4)), *OTHERS, ("experts", (6, 3, 2, 4, 8))]
TWO_CORES = Path(__file__).with_name("two_cores.json")


def test_the_text_needs_jax_alone_and_has_a_plans_operators() -> None:
    text = probe_text("probe.py", SMALL, [1000], "jax")
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name) or ""
        for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    own = {name.split(".")[0] for name in imported}
    assert "jax" in own and own - {"jax"} <= set(sys.stdlib_module_names) | {"__future__"}
    assert all(repr(one) in text for one in SMALL) and "OF_A_PLAN_BYTES: list[int] = [1000]" in text


def test_every_case_has_a_call_in_both_frameworks() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    from taskflow.probe.script import work as of_torch
    from taskflow.probe.script_jax import work as of_jax

    for work in (of_torch, of_jax):
        assert {*work.CALLS, *work.OF_SIZES} == set(MAKERS) and not {*work.CALLS} & {*work.OF_SIZES}


@pytest.mark.parametrize("name,sizes", SEEN)
def test_cases_have_the_results_that_they_say(name: str, sizes: tuple[int, ...]) -> None:
    jax = pytest.importorskip("jax")
    from taskflow.probe.script_jax.work import arrays_of, call_of, placed, timed_case

    (case,) = cases_of([(name, sizes)])
    integers, numbers = arrays_of(case, jax.numpy.float32)
    assert prod(placed(case, call_of(case)[0], integers, *numbers).shape) == case.results
    assert all(one.seconds > 0 for one in timed_case(case, jax.numpy.float32, jax.local_devices()[:1], 0.0))


def test_a_machine_is_built_of_what_jax_took(tmp_path: Path) -> None:
    content = json.loads(TWO_CORES.read_text())
    content["about"] |= {"torch": "none", "jax": "0.10.2", "backend": "xla cpu"}
    for row in content["work"] + content["updates"]:
        row.pop("host_seconds")  # XLA starts kernels by itself
    file = tmp_path / "jax.json"
    file.write_text(json.dumps({**content, "parts": [], "beside": {}}))
    result = built(read_probes([str(file)]), "mine")
    assert "JAX 0.10.2, xla cpu" in result.machine.source and result.machine.kinds[0].timed
    program = result.machine.kinds[0].program
    assert program is not None and program.name == "probed" and program.cut_seconds == 0
    with pytest.raises(ValueError, match=r"measured by JAX, and .* by PyTorch"):
        read_probes([str(TWO_CORES), str(file)])


@pytest.mark.slow
def test_the_file_runs_alone_on_two_devices(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    tmp_path.joinpath("probe.py").write_text(probe_text("probe.py", SMALL, framework="jax"))
    done = subprocess.run(
        [sys.executable, "probe.py", "--seconds", "0.3", "--only-plan", "--out", "found.json"], cwd=tmp_path, text=True,
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}, capture_output=True, timeout=250,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(tmp_path.joinpath("found.json").read_text())
    assert found["about"]["ranks"] == 2 and found["about"]["nodes"] == [2] and not found["missing"]
    assert {(row["name"], row["backward"]) for row in found["work"]} == {(name, way) for name, _ in SMALL for way in (False, True)}
    wanted = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "one_way", "both_ways"}
    assert {row["what"] for row in found["messages"]} == wanted
    machine = built(read_probes([str(tmp_path / "found.json")]), "mine").machine
    assert len(machine.processors) == 2 and machine.collectives is not None
