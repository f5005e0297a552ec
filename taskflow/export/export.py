"""exported: a plan as files for a framework, or as an ONNX file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from taskflow.export.accelerate import accelerate_text
from taskflow.export.deepspeed import deepspeed_text
from taskflow.export.difference import Difference
from taskflow.export.hybrid import Hybrid, hybrid_of
from taskflow.export.megatron import LEVELS as MEGATRON_LEVELS
from taskflow.export.megatron import MORE_WORDS as MEGATRON_WORDS
from taskflow.export.megatron import PRODUCTS as MEGATRON_PRODUCTS
from taskflow.export.megatron import first_again, layers_dealt, megatron_flags, megatron_text, require_transformer
from taskflow.export.torchtitan import CHECKPOINT_MODES, require_decoder, torchtitan_text
from taskflow.export.torchtitan import MORE_WORDS as TORCHTITAN_WORDS
from taskflow.export.torchtitan import PRODUCTS as TORCHTITAN_PRODUCTS
from taskflow.export.transformers import transformers_text
from taskflow.graph import OperatorGraph
from taskflow.mapper import WORDS, Exchange, HybridPlan, Strategy, SyncAlgorithm, attends, joined_parts, sample_dim
from taskflow.programs import TrainingProgram

MOST_PIECES = 20_000
"""Of plans of cuts alone, up to which these are predicted with the collectives that a framework's code sends: they have to be
lowered whole for it, which takes seconds."""


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export. ``files``: name -> text, or bytes. ``nearest``: the strategy that they implement; the given one, with
    tensors exchanged as the framework does it, if there are no ``differences``. These list the operators that it cannot
    express, ``notes`` what is done in another way, with the same result. ``more_bytes``: what a rank needs beyond the memory that
    is predicted."""

    files: Mapping[str, str | bytes]
    ranks: int
    nearest: Strategy
    differences: Sequence[Difference] = ()
    notes: Sequence[str] = ()
    more_bytes: int = 0


def exported(
    graph: OperatorGraph, strategy: Strategy, target: str, file: str, program: TrainingProgram | None = None
) -> Exported:
    """Return a plan for a framework as files, of which the first is called ``file``. ``program``: what the plan was predicted for.
    Raises ValueError that says why it cannot be exported, and what to do."""
    if target not in _WRITERS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}, got {target!r}")
    products = "" if strategy.plan is None else strategy.plan.products
    if products and products not in _PRODUCTS.get(target, ()):
        have = [other for other, known in _PRODUCTS.items() if products in known]
        raise ValueError(f"{target}: code has no products={products}; leave it out, or take the target {' or '.join(have)}")
    _require_trained(graph, target)
    pipeline, write = strategy.pipeline, _WRITERS[target]
    if target == "megatron":
        write = partial(_megatron, once_a_node=program is not None and program.once_a_node)
    if target == "onnx" or pipeline is None or pipeline.split == 1:
        return write(graph, strategy, file)
    found = write(graph, joined_parts(graph, strategy), file)
    split = Difference("all operators", f"split={pipeline.split}", f"{target} takes a micro-batch as a whole")
    return replace(found, differences=(split, *found.differences))


def why_not(program: str, graph: OperatorGraph, strategy: Strategy) -> str:
    """Return why a training program has no such plan of a Transformer, if it is one that is told a plan's words; empty if it has,
    or if that is not known."""
    if (target := _TOLD.get(program)) is None or strategy.plan is None or not attends(graph) or graph.trained_count == 0:
        return ""
    try:
        exported(graph, strategy, target, "plan")
    except ValueError as why:
        return str(why)
    return ""


def require_running(graph: OperatorGraph, found: Exported, target: str) -> None:
    """Raise ValueError if the network's code fails on the pieces that an exported module gives it. Only PyTorch's modules have code
    beside that of their layers; each takes a second or more to be called without numbers."""
    if target == "torch":
        from taskflow.export.pytorch import require_running as of_module

        of_module(graph, str(next(iter(found.files.values()))), found.ranks)


def require_exportable(graph: OperatorGraph, target: str) -> None:
    """Raise ValueError, or ImportError without PyTorch, if no plan of a network can be exported to a framework: before anybody
    searches for one."""
    if target == "torch":
        if find_spec("torch") is None:
            raise ImportError("torch: needs PyTorch, to look at the network's module: pip install 'soap-taskflow[torch]'")
        from taskflow.models.pytorch import require_origin

        require_origin(graph)
    elif target in ("megatron", "torchtitan"):
        require_transformer(graph, target)
        if target == "torchtitan":
            require_decoder(graph)
    _require_trained(graph, target)


def _require_trained(graph: OperatorGraph, target: str) -> None:
    """ValueError for frozen layers where the framework would train them. A module of PyTorch knows its own."""
    if target == "onnx" or graph.trained_count == graph.parameter_count:
        return
    if target != "torch":
        raise ValueError(f"{target}: {graph.name} has frozen layers, which its configurations do not say; take the target torch")
    from taskflow.models.pytorch import require_origin

    trained = sum(parameter.numel() for parameter in require_origin(graph).module.parameters() if parameter.requires_grad)
    if trained != graph.trained_count:
        raise ValueError(
            f"torch: the module of {graph.name} trains {trained:,} parameters and the graph {graph.trained_count:,}; freeze layers "
            "in the module itself: layer.requires_grad_(False)"
        )


def nearest_plan(graph: OperatorGraph, strategy: Strategy, target: str) -> Strategy:
    """Return the strategy itself if a framework can express it, else the nearest that it can, found in one step or two."""
    name = NAMES.get(target, "plan")
    found = exported(graph, strategy, target, name)
    if not found.differences:
        return found.nearest if target in ("torch", "jax") else strategy
    again = exported(graph, found.nearest, target, name)
    if again.differences:
        raise ValueError(f"{target}: the nearest plan is none that it can express: {again.differences[0]}")
    return found.nearest


def _torch(graph: OperatorGraph, strategy: Strategy, file: str) -> Exported:
    require_exportable(graph, "torch")
    from taskflow.export.pytorch import torch_code, torch_plan

    if not file.endswith(".py"):
        raise ValueError(f"--to torch writes a Python module; call it parallel.py, not {file}")
    plan = torch_plan(graph, strategy)
    about = f"The plan is {plan.nearest.name}."
    files = {file: torch_code(plan, graph.name, about, file)}
    if plan.devices:
        files[f"{file.removesuffix('.py')}.ranks"] = _rank_file(plan.devices)
    nearest = by_collectives(graph, plan.nearest)
    return Exported(files, plan.mesh.ranks, nearest, plan.differences, plan.notes, plan.more_bytes)


def by_collectives(graph: OperatorGraph, strategy: Strategy) -> Strategy:
    """Return a plan of cuts alone with its tensors resharded by collectives, as meshes of PyTorch and JAX do. It is the strategy
    itself if nothing but samples is cut, if it is another kind of plan, or if it has more than `MOST_PIECES`."""
    if strategy.plan is not None or strategy.exchange is not Exchange.COPIES:
        return strategy
    cut = any(
        degree > 1 and dim != sample_dim(node) for node in graph for dim, degree in enumerate(strategy[node.name].degrees)
    )
    if not cut or sum(len(config.processors) for config in strategy.configs.values()) > MOST_PIECES:
        return strategy
    return replace(strategy, exchange=Exchange.COLLECTIVES, sums=SyncAlgorithm.COLLECTIVE)


def _rank_file(devices: Sequence[int]) -> str:
    lines = [f"{rank} {device}" for rank, device in enumerate(devices)]
    return "# rank, and the device of the plan that it must be: start each rank there\n" + "\n".join(lines) + "\n"


def _jax(graph: OperatorGraph, strategy: Strategy, file: str) -> Exported:
    from taskflow.export.jax import jax_code, jax_plan

    if not file.endswith(".py"):
        raise ValueError(f"--to jax writes a Python module; call it parallel.py, not {file}")
    plan = jax_plan(graph, strategy)
    text = jax_code(plan, graph.name, f"The plan is {plan.nearest.name}.", file)
    return Exported({file: text}, len(plan.order), by_collectives(graph, plan.nearest), plan.differences, plan.notes)


def _megatron(graph: OperatorGraph, strategy: Strategy, file: str, once_a_node: bool = False) -> Exported:
    hybrid = _hybrid(graph, strategy, "megatron", MEGATRON_LEVELS)
    return _told(hybrid, file, megatron_text(megatron_flags(graph, hybrid, once_a_node), f"{graph.name} as {hybrid.plan}"))


def _torchtitan(graph: OperatorGraph, strategy: Strategy, file: str) -> Exported:
    hybrid = _hybrid(graph, strategy, "torchtitan", tuple(CHECKPOINT_MODES))
    return _told(hybrid, file, torchtitan_text(graph, hybrid, f"{graph.name} as {hybrid.plan}"))


def _deepspeed(graph: OperatorGraph, strategy: Strategy, file: str) -> Exported:
    hybrid = _hybrid(graph, strategy, "deepspeed", ("full", "whole"))
    return _told(hybrid, file, *deepspeed_text(graph, hybrid))


def _accelerate(graph: OperatorGraph, strategy: Strategy, file: str) -> Exported:
    hybrid = _hybrid(graph, strategy, "accelerate", ("full",))  # its wrapper of FSDP2 is not reentrant
    return _told(hybrid, file, *accelerate_text(graph, hybrid))


def _transformers(graph: OperatorGraph, strategy: Strategy, file: str) -> Exported:
    hybrid = _hybrid(graph, strategy, "transformers", ("full", "whole"))
    return _told(hybrid, file, *transformers_text(graph, hybrid))


def _told(hybrid: Hybrid, file: str, text: str, notes: Sequence[str] = ()) -> Exported:
    """The files of a target that is told a plan's words: what it reads, and where each rank must be if not at the device of its
    number."""
    files = {file: text}
    if (placed := hybrid.strategy.plan) is not None and placed.devices:
        files[f"{Path(file).stem}.ranks"] = _rank_file([int(device) for device in placed.devices])
    return Exported(files, hybrid.ranks, hybrid.strategy, hybrid.differences, (f"as {hybrid.plan}", *notes))


def _hybrid(graph: OperatorGraph, strategy: Strategy, target: str, levels: Sequence[str]) -> Hybrid:
    """The plan in notation for a target that is told its words, not its cuts. ``levels``: the target's words for recomputation.
    Raises ValueError that names a word which the target's file does not know."""
    hybrid = hybrid_of(graph, strategy, levels, lambda plan: says_layers(graph, plan, target))
    for word in WORDS:
        if (text := word.text(hybrid.plan)) and word.field not in (*KNOWN_WORDS, *_MORE_WORDS.get(target, ())):
            raise ValueError(f"{target}: has no {text}; leave it out, or take the target torch or jax")
    return hybrid


def says_layers(graph: OperatorGraph, plan: HybridPlan, target: str) -> bool:
    """True if a target recomputes as a plan does that says it by layer: those with code of their own compute any operators again,
    Megatron-LM the first layers of each stage, others all layers alike."""
    if target == "megatron":
        return first_again(plan, layers_dealt(graph, plan)) > 0
    return target in ("torch", "jax")


def _onnx(graph: OperatorGraph, strategy: Strategy, file: str) -> Exported:
    from taskflow.models.onnx import export_onnx

    if not file.endswith(".onnx"):
        raise ValueError(f"--to onnx writes an ONNX file; call it plan.onnx, not {file}")
    return Exported({file: export_onnx(graph, strategy).SerializeToString()}, strategy.processors, strategy)


KNOWN_WORDS = (
    "tensor", "context", "pipeline", "data", "micro_batch", "experts", "virtual", "sequence_parallel", "ring", "zero",
    "shard_group", "prefetch", "overlap", "bucket", "schedule", "stages", "devices", "recompute",
)
"""Fields of plans that every target which is told words says, or refuses with its reason. Others are refused."""
_MORE_WORDS = {"torchtitan": TORCHTITAN_WORDS, "megatron": MEGATRON_WORDS}
_WRITERS: dict[str, Callable[[OperatorGraph, Strategy, str], Exported]] = {
    "torch": _torch, "jax": _jax, "megatron": _megatron, "torchtitan": _torchtitan, "deepspeed": _deepspeed,
    "accelerate": _accelerate, "transformers": _transformers, "onnx": _onnx,
}
TARGETS = tuple(_WRITERS)
_PRODUCTS: dict[str, Collection[str]] = {"torchtitan": TORCHTITAN_PRODUCTS, "megatron": MEGATRON_PRODUCTS}  # that a target has
NAMES = {"torch": "plan.py", "jax": "plan.py"}  # of files, where nobody has chosen one
PROGRAM_OF = {
    "torch": "fsdp", "accelerate": "fsdp", "torchtitan": "torchtitan", "megatron": "megatron",
    "deepspeed": "deepspeed-eager", "transformers": "fsdp",
}
"""Of a framework's plans, the program that runs them."""
_TOLD = {"megatron": "megatron", "megatron-deepep": "megatron", "torchtitan": "torchtitan", "torchtitan-compiled": "torchtitan"}
"""Of a program, the target that it is told plans by."""
RESTRICTING = tuple(target for target in TARGETS if target != "onnx")  # those that cannot express every plan
