"""A plan for many GPUs, exported to PyTorch and run for a step as one of its ranks, on this machine and without numbers.

    python benchmarks/export_dry_run.py
    python benchmarks/export_dry_run.py --network small --plan "t2 d4 zero3 mb2 recompute=full" --devices 8
    python benchmarks/export_dry_run.py --config llama-70b.json
    taskflow search hf:llama-70b.json -m h100 -n 64 --batch 64 --set steps=4096 --for torch --budget 240s --out found.json
    python benchmarks/export_dry_run.py --plan found.json

The module runs on a fake process group of all ranks (which sends nothing) with fake tensors (which have shapes alone). Compared
with the plan: the local shape of every parameter, the local shape of what every layer makes, and the most memory that the rank has
had at once, counted from the storages that its operators make and drop, beside what `taskflow simulate` predicts. ``--config``
writes the network as a config of Hugging Face's, for searches. The default plan has four micro-batches: the steps of zero3 with
more of them are not folded, and have too many tasks to be planned.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import taskflow
from taskflow.export import exported
from taskflow.export.pytorch.without_numbers import real_meshes
from taskflow.mapper import ShardedSync, Strategy
from taskflow.models.huggingface import from_config, module_of
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.memory_check import MemoryCheck
from taskflow.rules import SGD, Adam, UpdateRule

RULES: Mapping[str, UpdateRule] = {"momentum": SGD(lr=0.1, momentum=0.9), "adam": Adam()}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama-70b": dict(
        model_type="llama", hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64,
        num_key_value_heads=8, vocab_size=128256, max_position_embeddings=8192,
    ),
    "small": dict(
        model_type="llama", hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, vocab_size=1024, max_position_embeddings=512,
    ),
}  # fmt: skip


MAKERS = {  # file and function, or how they begin: what is made while they run; the first that does counts
    "_fsdp_collectives.py:foreach_reduce": "sums of gradients", "_fsdp_collectives.py": "gathered weights",
    "_fsdp_param.py:alloc_all_gather_outputs": "gathered weights", "_fsdp_param.py:init_all_gather_outputs": "gathered weights",
    "sgd.py": "optimizer", "adam.py": "optimizer",
    "export_dry_run.py:_loss": "loss", "graph.py:_engine_run_backward": "gradients and what is recomputed",
    "parallel.py:__init__": "weights", "parallel.py:_run": "activations",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DryRun:
    """What one rank did. ``wrong``: parameters and layers whose shape is another than planned. ``peak``, ``predicted``: bytes;
    ``more``: what the export says that a rank needs beyond the prediction."""

    parameters: int
    layers: int
    wrong: tuple[str, ...]
    peak: int
    parts: Mapping[str, int]
    predicted: int
    more: int
    seconds: float


def dry_run(
    config: Mapping[str, Any], plan: str, devices: int, batch: int, steps: int, rank: int = 0, rule: str = "momentum"
) -> DryRun:
    """A rank of a Llama under a plan for so many devices. ``rule``: of `RULES`."""
    start = time.perf_counter()
    graph = from_config(config, batch, steps)
    machine = taskflow.load_machine("h100", devices)
    wanted, _ = taskflow.choose(plan, graph, machine)
    found = exported(graph, wanted, "torch", "parallel.py")
    if found.differences:
        print(f"the nearest plan: {len(found.differences)} operators cannot be as planned, first {found.differences[0]}")
        wanted = found.nearest
    evaluator = make_evaluator(graph, machine, rule=RULES[rule])
    evaluator.set(wanted)
    predicted = MemoryCheck(evaluator).peaks(wanted)[0][rank]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "parallel.py")
        path.write_text(str(found.files["parallel.py"]))
        spec = importlib.util.spec_from_file_location("parallel", path)
        assert spec is not None and spec.loader is not None
        parallel = sys.modules["parallel"] = importlib.util.module_from_spec(spec)  # dataclasses look there
        spec.loader.exec_module(parallel)
    parameters, layers, wrong, parts = _run(parallel, config, graph, wanted, (batch, steps), rank, rule)
    return DryRun(
        parameters, layers, tuple(wrong), parts["peak"], parts, predicted, found.more_bytes, time.perf_counter() - start
    )


def _run(
    parallel: Any, config: Mapping[str, Any], graph: taskflow.OperatorGraph, wanted: Strategy, shape: tuple[int, int], rank: int,
    rule: str,
) -> tuple[int, int, list[str], dict[str, int]]:
    import torch
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=wanted.processors, store=FakeStore())
    shapes: dict[str, tuple[int, ...]] = {}
    try:
        memory = _memory()
        without_numbers = FakeTensorMode(allow_non_fake_inputs=True)
        with real_meshes(parallel), without_numbers, memory, _shapes_apart(memory), _all_to_all(), _one_sequence():
            model = parallel.parallelize(module_of(config, weights=True), "cpu")
            optimizer: torch.optim.Optimizer = (
                torch.optim.Adam(model.parameters()) if rule == "adam" else torch.optim.SGD(model.parameters(), 0.1, 0.9)
            )
            for path, part in model.parts[0].named_modules():
                part.register_forward_hook(_noting(shapes, path))
            tokens = torch.zeros(shape, dtype=torch.long)
            parts = {"weights": memory.now}
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()  # the optimizer's state is there from now on
            optimizer.zero_grad()
            parts["between steps"], memory.most = memory.now, memory.now
            model.gradients(_loss, [tokens], tokens)
            parts["peak"] = memory.most
            optimizer.step()
            parts |= {f"of that {kind}": nbytes for kind, nbytes in memory.at_most.most_common()}
            here = dict(model.named_parameters())
            replicas = model.data.size() if model.data is not None else 1
    finally:
        dist.destroy_process_group()
    wrong = [*_wrong_parameters(here, graph, wanted, rank, replicas), *_wrong_layers(shapes, graph, wanted, rank)]
    return len(here), len(_layers(shapes, graph)), wrong, parts


def _memory() -> Any:
    """A mode that counts bytes of the storages that are there, ``now`` and at ``most``. (PyTorch's MemTracker refuses modules that
    are computed again within FSDP's.)"""
    import torch
    from torch.distributed.tensor import DTensor
    from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
    from torch.utils._pytree import tree_leaves

    resize = torch.UntypedStorage.resize_

    class Memory(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.now = self.most = 0
            self.sizes: dict[int, int] = {}
            self.kinds: dict[int, str] = {}  # who made a storage
            self.alive: Counter[str] = Counter()
            self.at_most: Counter[str] = Counter()
            self.apart = False  # whether what is made now takes no memory on a real rank

        def __enter__(self) -> Any:
            def resized(storage: Any, size: int) -> Any:
                made = resize(storage, size)
                self.count(storage)
                return made

            torch.UntypedStorage.resize_ = resized  # type: ignore[method-assign]
            return super().__enter__()

        def __exit__(self, *of: Any) -> None:
            torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]
            super().__exit__(*of)

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if any(issubclass(kind, DTensor) for kind in types):
                return NotImplemented
            if func is torch.ops._c10d_functional.wait_tensor.default:
                return args[0]  # as it is on a rank; without numbers it would be one more
            made = func(*args, **(kwargs or {}))
            for leaf in tree_leaves(made):
                self.see(leaf)
            return made

        def see(self, value: Any) -> None:
            if not isinstance(value, torch.Tensor) or value.device.type == "meta":  # such as one that is made to ask its strides
                return
            if is_traceable_wrapper_subclass(value):
                for name in value.__tensor_flatten__()[0]:
                    self.see(getattr(value, name))
            else:
                self.count(value.untyped_storage())

        def count(self, storage: Any) -> None:
            key = id(storage)
            if key not in self.sizes:
                if self.apart:
                    return
                weakref.finalize(storage, self.drop, key)
                self.kinds[key] = _maker()
            more = storage.nbytes() - self.sizes.get(key, 0)
            self.sizes[key] = storage.nbytes()
            self.now += more
            self.alive[self.kinds[key]] += more
            if self.now > self.most:
                self.most, self.at_most = self.now, +self.alive

        def drop(self, key: int) -> None:
            nbytes = self.sizes.pop(key)
            self.now -= nbytes
            self.alive[self.kinds.pop(key)] -= nbytes

    return Memory()


def _maker() -> str:
    """Which part of the program makes a storage now."""
    frame: Any = sys._getframe(2)
    stack: list[str] = []
    while frame is not None:
        stack.append(f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_code.co_name}")
        frame = frame.f_back
    return next((kind for begin, kind in MAKERS.items() if any(one.startswith(begin) for one in stack)), "other")


def _loss(output: Any, target: Any) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(output.logits.flatten(0, -2), target.flatten())


@contextmanager
def _shapes_apart(memory: Any) -> Iterator[None]:
    """What DTensor makes without numbers to learn whole shapes does not count: on a rank it has no memory."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    before = ShardingPropagator._propagate_tensor_meta_non_cached

    def learn(self: Any, schema: Any) -> Any:
        was, memory.apart = memory.apart, True
        try:
            return before(self, schema)
        finally:
            memory.apart = was

    ShardingPropagator._propagate_tensor_meta_non_cached = learn  # type: ignore[method-assign]
    try:
        yield
    finally:
        ShardingPropagator._propagate_tensor_meta_non_cached = before  # type: ignore[method-assign]


@contextmanager
def _all_to_all() -> Iterator[None]:
    """What is cut anew goes in an all-to-all, as on GPUs. (On CPUs PyTorch gathers all of it and drops what it does not need.)"""
    import torch
    from torch.distributed.tensor import placement_types

    def anew(value: Any, gathered: int, cut: int, mesh: Any, dim: int) -> Any:
        count = mesh.size(dim)
        sent = torch.stack([part.contiguous() for part in value.chunk(count, cut)])
        return torch.cat(torch.empty_like(sent).unbind(), gathered)

    before = placement_types.shard_dim_alltoall
    placement_types.shard_dim_alltoall = anew
    try:
        yield
    finally:
        placement_types.shard_dim_alltoall = before


@contextmanager
def _one_sequence() -> Iterator[None]:
    """Samples are one sequence each, as transformers finds by their positions on a rank: attention then needs no mask. Without
    numbers it would take them for several, with masks of positions x positions in float32."""
    from transformers import masking_utils

    before = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda position_ids: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = before


def _noting(shapes: dict[str, tuple[int, ...]], path: str) -> Callable[..., None]:
    def note(part: Any, given: Any, made: Any) -> None:
        import torch
        from torch.distributed.tensor import DTensor

        if isinstance(made, torch.Tensor):
            shapes.setdefault(path, tuple((made.to_local() if isinstance(made, DTensor) else made).shape))

    return note


def _layers(shapes: Mapping[str, tuple[int, ...]], graph: taskflow.OperatorGraph) -> list[taskflow.Node]:
    """Operators that are a layer of the module by themselves, of which a rank said what it made."""
    return [node for node in graph if node.name in shapes and node.parameters and node.inputs]


def _wrong_layers(
    shapes: Mapping[str, tuple[int, ...]], graph: taskflow.OperatorGraph, wanted: Strategy, rank: int
) -> Iterator[str]:
    """Layers whose local result is neither what a reader takes of it nor their piece, where that is smaller: readers gather it."""
    for node in _layers(shapes, graph):
        readers = [(r, k) for r in graph for k, t in enumerate(r.inputs) if (t.node, t.index) == (node.number, 0)]
        takes = {r.reads(rect).inputs[k].shape for r, k in readers for rect, p in wanted[r.name].pieces(r) if p == rank}
        makes = {node.writes(rect)[0].shape for rect, p in wanted[node.name].pieces(node) if p == rank}
        kept = shapes[node.name] in makes and all(prod(shapes[node.name]) < prod(taken) for taken in takes)
        if shapes[node.name] not in takes and not kept:
            yield f"{node.name}: makes {shapes[node.name]}, planned {sorted(takes or makes)}"


def _wrong_parameters(
    here: Mapping[str, Any], graph: taskflow.OperatorGraph, wanted: Strategy, rank: int, replicas: int
) -> Iterator[str]:
    """Parameters whose local shape is not that of the plan's piece, or of a share of it among the replicas if they share."""
    for node in graph:
        for k, parameter in enumerate(node.parameters):
            if parameter.layer != node.name or parameter.name not in here:
                continue
            rect = next(node.reads(rect).weights[k] for rect, p in wanted[node.name].pieces(node) if p == rank)
            sync = wanted.sync(parameter.layer)
            group = sync.shard_group if isinstance(sync, ShardedSync) else 0
            shares = (group or replicas) if sync.zero else 1
            planned = (-(-rect.shape[0] // shares), *rect.shape[1:])
            found = tuple(here[parameter.name].to_local().shape)
            if found != planned:
                yield f"{parameter.name}: is {found}, planned {planned}"


def main() -> None:
    """Print what a dry run found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=list(CONFIGS), default="llama-70b")
    parser.add_argument("--plan", default="t8 d8 zero3 mb2 recompute=full", help="in words, or a strategy file")
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4096)
    parser.add_argument("--layers", type=int, help="other than the network's own")
    parser.add_argument("--rule", choices=list(RULES), default="momentum")
    parser.add_argument("--config", help="write the network to this file, and nothing else")
    options = parser.parse_args()
    config = dict(CONFIGS[options.network])
    config["num_hidden_layers"] = options.layers or config["num_hidden_layers"]
    if options.config:
        Path(options.config).write_text(json.dumps(config, indent=2))
        return
    row = dry_run(config, options.plan, options.devices, options.batch, options.steps, rule=options.rule)
    what = f"{options.network}, {config['num_hidden_layers']} layers, {options.batch} x {options.steps}"
    print(f"{what}: {options.plan} on {options.devices}")
    print(f"{row.parameters} parameters and {row.layers} layers, {len(row.wrong)} otherwise than planned; {row.seconds:.0f} s")
    print("\n".join(row.wrong[:20]))
    parts = ", ".join(f"{kind} {n / 1e9:.3f}" for kind, n in row.parts.items() if n)
    print(f"most memory {row.peak / 1e9:.3f} GB ({parts}), predicted {row.predicted / 1e9:.3f} GB: {row.peak / row.predicted:.3f}")
    if row.more:
        whole = row.predicted + row.more
        print(f"with the shares beside whole weights {whole / 1e9:.3f} GB: {row.peak / whole:.3f}")


if __name__ == "__main__":
    main()
