"""Plans as the configuration of Hugging Face's Accelerate: DDP, or FSDP2 with replicas of shares and context parallelism.

The keys are those of accelerate/commands/config/config_args.py and utils/dataclasses.py (FSDP2). The file is JSON, which is YAML
too: ``accelerate launch --config_file FILE``.
"""

from __future__ import annotations

from taskflow.export.deepspeed import CHECKPOINTS, require_replicas
from taskflow.export.difference import LATE
from taskflow.export.hybrid import Hybrid
from taskflow.export.megatron import require_positions
from taskflow.graph import OperatorGraph
from taskflow.mapper import samples
from taskflow.writing import json_text

PRECISIONS = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}


def accelerate_text(graph: OperatorGraph, hybrid: Hybrid) -> tuple[str, tuple[str, ...]]:
    """Return the configuration, and notes on what it cannot say. Raises ValueError with the reason if Accelerate has no such
    plan."""
    plan = hybrid.plan
    require_replicas(plan, "Accelerate", context=hybrid.ranks)
    require_positions(graph, plan, "Accelerate")
    if plan.context > 1 and not plan.zero:
        raise ValueError("Accelerate shares weights among the ranks of a sequence (FSDP2); take cN with zero1 to zero3")
    if graph.dtype.name not in PRECISIONS:
        raise ValueError(f"Accelerate's mixed precision is {', '.join(PRECISIONS)}; {graph.name} is in {graph.dtype.name}")
    data, micro = plan.data or 1, plan.micro_batch or 1
    many = samples(graph) // (data * micro)
    config: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if plan.zero else "MULTI_GPU" if hybrid.ranks > 1 else "NO",
        "mixed_precision": PRECISIONS[graph.dtype.name], "machine_rank": 0, "num_machines": 1, "num_processes": hybrid.ranks,
    }
    if plan.zero:
        config["fsdp_config"] = {
            "fsdp_version": 2, "fsdp_reshard_after_forward": plan.zero == 3, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": plan.recompute != "none", "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            "fsdp_cpu_ram_efficient_loading": True, "fsdp_offload_params": False,
        }
    shares = plan.shard_group or data
    if plan.zero and (shares < data or plan.context > 1):
        config["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": data // shares, "parallelism_config_dp_shard_size": shares,
            "parallelism_config_cp_size": plan.context,
            "parallelism_config_cp_comm_strategy": "alltoall" if plan.ring else "allgather",  # a ring, or keys and values at once
        }
    notes = [
        f"{micro} samples a replica at a time, {many} times: per_device_train_batch_size={micro} and "
        f"gradient_accumulation_steps={many} of the Trainer, or of Accelerator and your loader",
        "num_machines and machine_rank are of one node: on several say them",
    ]
    if not plan.zero and (again := CHECKPOINTS[plan.recompute]):
        notes.append(f"recompute={plan.recompute} is no key of DDP's: {again}")
    if plan.zero in (1, 2) and not plan.gathers_late:
        notes.append(LATE)
    if graph.dtype.itemsize == 2 and plan.zero:  # DDP's autocast leaves weights, and so their gradients, in float32
        notes.append("Accelerate sums gradients in the type of mixed_precision, the plan in float32")
    return json_text(config, 2) + "\n", tuple(notes)
