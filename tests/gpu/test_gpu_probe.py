"""The probe's file on a GPU that is not there, whose clock goes by the rates of an H100: what it measures are these rates, and the
machine that is built of it has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from absent_gpu import on_absent_gpus

from taskflow.machine import collective, load_machine
from taskflow.probe import built, read_probes
from taskflow.probe.writing import probe_text

FLOPS = {"float32": 45e12, "bfloat16": 620e12, "float8": 1100e12}  # as `fake_cuda.Rates` has them
BYTES = 2.7e12
OPERATORS = [
    ("linear", (8192, 4096, 4096)), ("add", (1 << 27,)), ("experts", (4096, 8, 2, 1024, 2048)), ("layer_norm", (8192, 4096)),
    ("attention", (4, 8, 2048, 2048, 128, 1)), ("conv2d", (32, 256, 256, 28, 28, 3, 1)),
]  # fmt: skip
UNITS = ("replicate", "gathered", "gathered_twice")
CHANGES = ("change_gathered", "change_scattered", "change_summed")


def measured(folder: Path, ranks: int, *words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What rank 0's probe has written, and what its device was asked for."""
    (folder / "probe.py").write_text(probe_text("probe.py", OPERATORS))
    (asked, *_) = on_absent_gpus("probe_program.py", ["probe.py", "--only-plan", *words], 1, folder, among=ranks)
    return json.loads((folder / "probe0.json").read_text()), asked


@pytest.mark.timeout(400)
def test_the_rates_of_the_clock_are_measured_and_built(tmp_path: Path) -> None:
    found, asked = measured(tmp_path, 8, "--nvml")
    assert [line for line in found["missing"] if "experts torch.float32" not in line] == [], "grouped_mm has no float32 on a GPU"
    rows = {(row["name"], row["dtype"], row["backward"]): row for row in found["work"]}
    for kind, rate in FLOPS.items():
        row = rows["linear", kind, False]
        assert 0.88 * rate < row["flops"] / row["seconds"] < 1.001 * rate, kind  # beside the product a bias is added
    add = rows["add", "float32", False]
    assert add["bytes"] / add["seconds"] == pytest.approx(BYTES, rel=0.02)
    assert all(row["host_seconds"] < 5e-4 for row in found["work"]), "none counts the time that the device sleeps"
    assert rows["experts", "bfloat16", False]["host_seconds"] < 2e-4 and "_grouped_mm" in asked["seen"]
    for row in found["messages"]:
        if row["where"] == "within" and row["what"] in ("all_reduce", "all_gather"):
            count, (times, rate) = len(row["ranks"]), {"all_reduce": (2, 360e9), "all_gather": (1, 330e9)}[row["what"]]
            assert row["seconds"] == pytest.approx(12e-6 + times * row["bytes"] * (count - 1) / count / rate, rel=0.01), row
    beside = found["beside"]
    assert beside["both_seconds"] == pytest.approx(max(beside["product_seconds"], beside["sum_seconds"]), rel=0.02)
    about = found["about"]
    assert about["clock_hertz"] == about["clock_after_hertz"] == 1.98e9 and about["power_watts"] == 123.0
    assert about["memory_bytes"] == 85031714816 and about["allocator_bytes"] > 0
    assert {row["what"] for row in found["parts"]} == {*UNITS, "cut_layers", "cut_block", *CHANGES, "eager", "compiled"}
    passes = {(row["what"], row["phase"]): row["seconds"] for row in found["parts"] if row["what"] in ("eager", "compiled")}
    for phase, arrays in (("forward", 9), ("backward", 16)):  # that are read and written
        assert passes["eager", phase] == pytest.approx(arrays * 4 * (1 << 24) / BYTES, rel=0.05)
        assert passes["compiled", phase] == passes["eager", phase], "of tensors without numbers PyTorch compiles nothing"
    assert {row["name"] for row in found["updates"]} == {"sgd", "momentum", "adam", "adam_fused"}
    assert found["host"]["start_seconds"] == pytest.approx(4e-6, rel=0.05)
    machine = built(read_probes([str(tmp_path / "probe0.json")]), "mine", load_machine("h100", 8)).machine
    linear = machine.kinds[0].timed_of("linear", "product", False, "bfloat16")
    row = rows["linear", "bfloat16", False]
    assert linear is not None and linear.seconds(row["flops"], row["bytes"]) == row["seconds"]
    for nbytes in (1 << 20, 1 << 28):
        seconds = collective(machine, range(8)).seconds(2 * 7 * nbytes, 2)
        assert seconds == pytest.approx(12e-6 + 2 * nbytes * 7 / 8 / 360e9, rel=0.05)
