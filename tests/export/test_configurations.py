"""Plans as DeepSpeed's JSON and Accelerate's configuration: the figures are the plan's, and the projects' own parsers read them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from taskflow.export import Exported, exported
from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import HybridParallel, map_graph, parse_plan
from taskflow.models import build


@cache
def network(dtype: str = "bfloat16") -> OperatorGraph:
    return build("gpt-2", 16, preset="small", steps=8, dtype=dtype)


def written(words: str, target: str, dtype: str = "bfloat16") -> tuple[dict[str, Any], Exported]:
    graph = network(dtype)
    found = exported(graph, map_graph(HybridParallel(parse_plan(words)), graph, load_machine("h100", 4)), target, "x.json")
    assert not found.differences and found.ranks == 4
    return json.loads(found.files["x.json"]), found


def test_deepspeed_has_the_plan_s_batches_types_and_buckets() -> None:
    said, found = written("d4 mb2 zero2 recompute=full", "deepspeed")
    assert (said["train_batch_size"], said["train_micro_batch_size_per_gpu"], said["gradient_accumulation_steps"]) == (16, 2, 2)
    assert said["bf16"] == {"enabled": True} and said["communication_data_type"] == "fp32" and "fp16" not in said
    assert said["zero_optimization"]["stage"] == 2 and said["zero_optimization"]["overlap_comm"]
    assert any("gradient_checkpointing_enable" in note for note in found.notes)
    first, _ = written("d4 mb2 zero1 overlap=none bucket=1M", "deepspeed", "float32")
    zero = first["zero_optimization"]
    assert (zero["reduce_bucket_size"], zero["overlap_comm"]) == (1_000_000, False) and "bf16" not in first
    third, _ = written("d4 mb2 zero3", "deepspeed")
    sizes: dict[int, int] = {}
    for parameter in network().parameters:
        if parameter.name.startswith("h."):
            layer = int(parameter.name.split(".")[1])
            sizes[layer] = sizes.get(layer, 0) + parameter.spec.rect.volume
    zero = third["zero_optimization"]
    assert zero["stage3_prefetch_bucket_size"] >= max(sizes.values())
    for words, dtype, late in (
        ("d4 mb2", "bfloat16", True), ("d4 mb2 zero1", "bfloat16", True), ("d4 mb2 zero1", "float32", False),
        ("d4 mb2 zero2", "bfloat16", False),
    ):
        assert any("overlap=none" in note for note in written(words, "deepspeed", dtype)[1].notes) is late
    for key, dtype in (("fp16", "float16"), ("bf16", "bfloat16")):
        plain, notes = written("d4 mb2", "deepspeed", dtype)
        assert plain[key] == {"enabled": True} and "data_types" not in plain  # DeepSpeed refuses float32 sums of them there
        assert any(f"in {dtype}, the plan in float32" in note for note in notes.notes)
    assert written("d4 mb2 zero1", "deepspeed", "float16")[0]["data_types"] == {"grad_accum_dtype": "fp32"}


def test_transformers_has_the_plan_s_groups_and_shares() -> None:
    """And its own parser finds that they go together."""
    said, found = written("d4 mb2 zero3 hsdp2 recompute=full", "transformers")
    assert said == {"tp_size": 1, "fsdp_size": 2, "dp_replicate_size": 2, "fsdp_mixed_precision": True}
    assert any("gradient_accumulation_steps=2" in note for note in found.notes)
    assert any("load the module in float32" in note for note in found.notes)
    assert any("gradient_checkpointing_enable" in note for note in found.notes)
    both, notes = written("t2 d2 mb4 zero2 nosp", "transformers")
    assert both | {"fsdp_plan": {}} == {
        "tp_size": 2, "fsdp_size": 2, "dp_replicate_size": 1, "fsdp_mixed_precision": True, "fsdp_plan": {},
    }
    assert both["fsdp_plan"] == {"h.*": "keep_full_weight"} and any("own tp_plan" in note for note in notes.notes)
    assert any("bf16=True" in note for note in written("t4 d1 mb4 nosp", "transformers")[1].notes)
    plain, _ = written("d4 mb2", "transformers", "float32")
    assert plain == {"tp_size": 1, "fsdp_size": 1, "dp_replicate_size": 4}
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'soap-taskflow[hf]'")
    from transformers.distributed.configuration_utils import DistributedConfig
    from transformers.distributed.fsdp import ALL_FSDP_STYLES

    for one in (said, both, plain):
        read = DistributedConfig.from_dict(one)
        assert read.tp_size * read.dp_size * read.pp_size == 4 and one.keys() <= read.to_dict().keys()
        assert {*(read.fsdp_plan or {}).values()} <= {*ALL_FSDP_STYLES}


@pytest.mark.parametrize("words,why", [
    ("t2 d2 mb4", "have no sequence parallelism yet; take nosp"), ("p2 d2 mb4", "transformers trains the module as it is.*take p1"),
    ("c2 d2 mb4 zero3", "c2 cuts it"), ("d4 mb2 recompute=selective", "computes whole layers again|differs"),
])
def test_what_transformers_has_not_is_refused(words: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        written(words, "transformers")


def test_accelerate_has_the_plan_s_shares() -> None:
    said, found = written("d4 mb2 zero3 hsdp2 recompute=full", "accelerate")
    assert said["num_processes"] == 4 and said["mixed_precision"] == "bf16" and said["distributed_type"] == "FSDP"
    fsdp, parallel = said["fsdp_config"], said["parallelism_config"]
    assert fsdp["fsdp_reshard_after_forward"] is True and fsdp["fsdp_activation_checkpointing"] is True
    assert parallel["parallelism_config_dp_replicate_size"] * parallel["parallelism_config_dp_shard_size"] == 4
    assert any("gradient_accumulation_steps=2" in note for note in found.notes)
    assert written("d4 mb2 zero2", "accelerate")[0]["fsdp_config"]["fsdp_reshard_after_forward"] is False
    for words, narrow in (("d4 mb2", False), ("d4 mb2 zero2", True)):  # DDP's autocast leaves gradients in float32
        assert any("in the type of mixed_precision" in note for note in written(words, "accelerate")[1].notes) is narrow
    plain, _ = written("d4 mb2", "accelerate", "float32")
    assert plain["distributed_type"] == "MULTI_GPU" and plain["mixed_precision"] == "no" and "fsdp_config" not in plain
    long, _ = written("d2 c2 mb2 zero3", "accelerate")
    assert long["parallelism_config"]["parallelism_config_cp_size"] == 2
    odd = build("llama", 16, preset="small", steps=6)
    with pytest.raises(ValueError, match="Accelerate cuts a sequence into 2 c pieces; 6 positions do not divide by 4"):
        exported(odd, map_graph(HybridParallel(parse_plan("d2 c2 mb2 zero3")), odd, load_machine("h100", 4)), "accelerate", "x")
    graph = build("llama", 16, preset="small", steps=8, key_blocks=2)
    for words, how in (("d2 c2 mb2 zero3", "allgather"), ("d2 c2 ring mb2 zero3", "alltoall")):
        strategy = map_graph(HybridParallel(parse_plan(words)), graph, load_machine("h100", 4))
        said = json.loads(exported(graph, strategy, "accelerate", "x.json").files["x.json"])
        assert said["parallelism_config"]["parallelism_config_cp_comm_strategy"] == how
    one = map_graph(HybridParallel(parse_plan("d1")), graph, load_machine("h100", 1))
    assert json.loads(exported(graph, one, "accelerate", "x.json").files["x.json"])["distributed_type"] == "NO"


@pytest.mark.parametrize(("words", "target", "why"), [
    ("d4 mb2 zero3 hsdp2", "deepspeed", "MiCS is gone"), ("t2 d2 mb2", "deepspeed", "t2 cuts it"),
    ("p2 d2 mb2", "accelerate", "p2 cuts it"), ("d2 c2 mb2 zero3", "deepspeed", "c2 cuts"),
    ("d4 mb2 zero1 overlap=all", "deepspeed", "end of a step"), ("d4 mb2 recompute=selective", "accelerate", "whole layers"),
    ("d4 mb2 zero3 prefetch=2", "deepspeed", "a block at once"), ("d2 c2 mb2", "accelerate", "take cN with zero1"),
])  # fmt: skip
def test_what_they_cannot_have_is_refused(words: str, target: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        written(words, target)


def test_a_layer_run_again_as_a_whole_is_a_difference_for_accelerate() -> None:
    graph = network()
    strategy = map_graph(HybridParallel(parse_plan("d4 mb2 zero3 recompute=whole")), graph, load_machine("h100", 4))
    found = exported(graph, strategy, "accelerate", "x.json")
    assert found.differences and "recompute=full" in str(found.differences[0])
    assert not exported(graph, strategy, "deepspeed", "x.json").differences


@pytest.mark.parametrize("words", ["d4 mb2", "d4 mb2 zero1", "d4 mb2 zero2", "d4 mb2 zero3"])
def test_deepspeed_s_own_parser_reads_it(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = pytest.importorskip("deepspeed.runtime.config", reason="DeepSpeed is not installed: pip install deepspeed")
    said, _ = written(words, "deepspeed")
    monkeypatch.setattr(config.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(config.dist, "get_world_size", lambda: 4)
    read = config.DeepSpeedConfig(said)
    assert (read.train_batch_size, read.gradient_accumulation_steps) == (16, 2) and read.bfloat16_config.enabled
    assert int(read.zero_config.stage) == said["zero_optimization"]["stage"]
    unknown = set(said["zero_optimization"]) - {
        field.alias or name for name, field in type(read.zero_config).model_fields.items()
    }
    assert not unknown


@pytest.mark.parametrize("words", ["d4 mb2", "d4 mb2 zero1", "d4 mb2 zero3", "d4 mb2 zero3 hsdp2", "d2 c2 mb2 zero3"])
def test_accelerate_s_own_parser_reads_it(words: str, tmp_path: Path) -> None:
    arguments = pytest.importorskip(
        "accelerate.commands.config.config_args", reason="Accelerate is not installed: pip install accelerate"
    )
    said, _ = written(words, "accelerate")
    for name in ("plan.json", "plan.yaml"):
        (tmp_path / name).write_text(json.dumps(said))
        read = arguments.load_config_from_file(str(tmp_path / name))
        assert read.num_processes == 4 and read.fsdp_config == said.get("fsdp_config", {})
        assert read.parallelism_config == said.get("parallelism_config", {})
