"""Plans as the DistributedConfig of Hugging Face's transformers: replicas, shares by FSDP2, and tensor groups by the class's own
``tp_plan``.

The keys are those of transformers/distributed/configuration_utils.py (5.24). ``DistributedConfig.from_dict`` reads the file;
``from_pretrained(..., distributed_config=)`` and the Trainer take it.
"""

from __future__ import annotations

from taskflow.export.deepspeed import CHECKPOINTS, require_replicas
from taskflow.export.difference import LATE
from taskflow.export.hybrid import Hybrid
from taskflow.export.megatron import layers_read
from taskflow.graph import OperatorGraph
from taskflow.mapper import HybridPlan, samples
from taskflow.writing import json_text

KEEPS = "keep_full_weight"  # until the backward pass, in the words of its ``fsdp_plan``
WIDE = "load the module in float32: FSDP2 computes in bfloat16, sums gradients in float32 and updates float32 weights then"
ALONE = "without replicas nothing is said of types: load the module in float32 and give the Trainer bf16=True, as the plan counts"


def transformers_text(graph: OperatorGraph, hybrid: Hybrid) -> tuple[str, tuple[str, ...]]:
    """Return the configuration as JSON, and notes on what it cannot say. Raises ValueError with the reason if transformers has no
    such plan."""
    plan = hybrid.plan
    require_replicas(plan, "transformers", tensor=hybrid.ranks)
    if plan.along:
        raise ValueError("transformers' tensor groups have no sequence parallelism yet; take nosp, or another target: torchtitan")
    if graph.dtype.name not in ("float32", "bfloat16"):
        raise ValueError(f"transformers' mixed precision is bfloat16; {graph.name} is in {graph.dtype.name}")
    data, micro = plan.data or 1, plan.micro_batch or 1
    shares = (plan.shard_group or data) if plan.zero else 1
    config: dict[str, object] = {"tp_size": plan.tensor, "fsdp_size": shares, "dp_replicate_size": data // shares}
    if graph.dtype.name == "bfloat16" and data > 1:
        config["fsdp_mixed_precision"] = True
    if plan.zero in (1, 2):
        config["fsdp_plan"] = {f"{layers}.*": KEEPS for layers in _lists(graph)}
    return json_text(config, 2) + "\n", tuple(_notes(graph, plan, samples(graph) // (data * micro)))


def _notes(graph: OperatorGraph, plan: HybridPlan, many: int) -> list[str]:
    micro = plan.micro_batch or 1
    notes = [
        f"{micro} samples a replica at a time, {many} times: per_device_train_batch_size={micro} and "
        f"gradient_accumulation_steps={many} of the Trainer"
    ]
    if graph.dtype.itemsize == 2:
        notes.append(WIDE if (plan.data or 1) > 1 else ALONE)
    if plan.tensor > 1:
        notes.append("layers are cut as the class's own tp_plan says, which leaves tables whole and gathers scores")
    if again := CHECKPOINTS[plan.recompute]:
        notes.append(f"recompute={plan.recompute} is no key of it: {again}")
    if plan.zero in (1, 2) and not plan.gathers_late:
        notes.append(LATE)
    return notes


def _lists(graph: OperatorGraph) -> list[str]:
    """The lists of layers of a network, by their names."""
    parts = (name.partition(f".{number}.") for name, number in layers_read(graph).items())
    return list(dict.fromkeys(of for of, found, _ in parts if found))
