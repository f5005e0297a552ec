"""Steps of exported modules on GPUs that are not there: PyTorch's own code runs, up to kernels and NCCL. Nothing lies elsewhere
than on the rank's device, no message is of a tensor of the host's, and within a step the host waits for nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from absent_gpu import on_absent_gpus

sys.path.insert(0, str(Path(__file__).parents[1] / "export"))

Case = tuple[str, str, str]
TWO: list[Case] = [
    ("llama", "t2", "bfloat16"), ("llama", "d2 zero3 mb2", "bfloat16"), ("gpt", "p2 mb2 schedule=zb-h1", "float32"),
    ("resnet", "data", "bfloat16"),
]  # fmt: skip
MORE: list[Case] = [
    ("llama", "data", "float32"), ("llama", "p2 mb2 recompute=full", "float32"),
    ("cnn", "expert", "float32"), ("llama", "d2 zero1 mb2", "float32"), ("llama", "d2 zero2 mb2", "bfloat16"),
    ("gpt", "p2 v2 mb2", "bfloat16"), ("gpt", "p2 mb2 schedule=gpipe", "float32"), ("t5", "t2", "float32"),
    ("gpt2", "p2 mb2", "float32"), ("adapted", "d2 zero3 mb2", "float32"), ("llama", "d2 recompute=whole", "bfloat16"),
    ("mixtral", "d2 zero1 mb2", "bfloat16"), ("gpt", "t2 recompute=full", "float32"),
    ("llama", "t2 nosp", "float32"), ("resnet", "data", "float32"),
]  # fmt: skip
FOUR: list[Case] = [
    ("llama", "megatron", "bfloat16"), ("llama", "t2 p2 mb2", "float32"), ("llama", "t2 d2 zero3 mb2", "bfloat16"),
    ("llama", "d4 zero3 hsdp2", "float32"), ("gpt", "t2 p2 mb2", "bfloat16"), ("llama", "p2 d2 mb1 zero1", "bfloat16"),
    ("t5", "t2 d2 zero1 mb2", "float32"), ("llama", "t2 d2 recompute=whole", "float32"), ("cnn", "expert", "bfloat16"),
    ("mixtral", "d4 zero3 mb1", "bfloat16"),
]  # fmt: skip


def check(cases: list[Case], ranks: int, folder: Path) -> None:
    from test_torch_export import plan_for

    if {name for name, _, _ in cases} & {"gpt2", "mixtral", "t5"}:
        pytest.importorskip("transformers", reason="transformers is not installed: pip install 'soap-taskflow[hf]'")
    given = []
    for number, (name, plan, kind) in enumerate(cases):
        file = folder / f"plan{number}.py"
        file.write_text(plan_for(name, plan, ranks)[2])
        given.append((name, str(file), kind))
    (folder / "cases.json").write_text(json.dumps(given))
    for rank, rows in enumerate(on_absent_gpus("exported_program.py", ["cases.json"], ranks, folder)):
        for case, row in zip(cases, rows, strict=True):
            assert not row["elsewhere"] and not row["waited"] and not row["copied"], (rank, case, row)
            assert len(row["seconds"]) == 2, "the timing of `try`"
            assert row["gradients"] > 3 and row["messages"] > 0, (rank, case, row)
        assert any(row["threads"] for row in rows), "the backward pass runs in a thread of the device, as on a GPU"


def test_steps_on_two_gpus_stay_there(tmp_path: Path) -> None:
    check(TWO, 2, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(950)
def test_steps_of_more_plans_on_two_gpus_stay_there(tmp_path: Path) -> None:
    check(MORE, 2, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(950)
@pytest.mark.parametrize("first", [0, 5])
def test_steps_on_four_gpus_stay_there(first: int, tmp_path: Path) -> None:
    check(FOUR[first : first + 5], 4, tmp_path)
