"""Bytes that exported modules send under torchrun, counted from their collectives, beside those that taskflow's plan predicts.

    python benchmarks/export_bytes.py --ranks 2 [--networks llama gpt]

Each row is a network of tests/export/networks.py under a plan. Counted: what the collectives of the exported module are given in
the second step on all ranks, as a ring would send it (all-reduce 2 (n - 1) / n of its bytes a rank, all-gather and reduce-scatter
(n - 1) / n of the whole, all-to-all (n - 1) / n of a rank's piece, a message all of it). Where DTensor replaces an all-to-all,
which gloo lacks, by an all-gather, the all-to-all is counted, as on GPUs. Predicted: what `taskflow simulate` says is moved in a
step. The loss itself is left out of both. Two more columns say what the plan moves and the module does not: inputs (torchrun gives
every rank the whole batch) and statistics of batches (the plan has float64, PyTorch float32). ``left``: bytes that these do not
explain. For a plan that can only be exported as its nearest, all columns are of that.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASES = {
    2: [("llama", "data"), ("llama", "d2 zero1"), ("llama", "d2 zero3"), ("llama", "d2 zero3 mb2"), ("llama", "t2"),
        ("llama", "p2 mb2"), ("gpt", "data"), ("gpt", "t2"), ("gpt", "p2 mb2"), ("mixtral", "data"), ("mixtral", "t2"),
        ("resnet", "data"), ("cnn", "data"), ("cnn", "expert"), ("gpt2", "data"), ("gpt2", "t2"), ("gpt2", "p2 mb2"),
        ("t5", "data"), ("t5", "t2"), ("t5", "p2 mb2")],
    4: [("llama", "t2 d2"), ("llama", "t2 d2 zero1"), ("llama", "t2 d2 zero3"), ("llama", "p2 d2 mb2"), ("llama", "t2 p2 mb2"),
        ("gpt", "t2 d2"), ("mixtral", "t2 d2"), ("cnn", "expert")],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes of a step. ``statistics``: what float64 has more than float32. ``counted``: by kind of collective."""

    predicted: int
    inputs: int
    statistics: int
    counted: dict[str, float]

    @property
    def left(self) -> float:
        """What is predicted and neither explained nor counted; negative: more is counted."""
        return self.predicted - self.inputs - self.statistics - sum(self.counted.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, choices=list(CASES), default=2)
    parser.add_argument("--networks", nargs="+", default=sorted({name for cases in CASES.values() for name, _ in cases}))
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "export"), os.getcwd()]
    if options.worker:
        worker(*options.worker)
        return
    heads = "network | plan | predicted | inputs | statistics | counted | counted / predicted | left | by kind"
    print(f"| {heads} |\n{'|---' * 9}|", flush=True)
    for name, plan in CASES[options.ranks]:
        if name not in options.networks:
            continue
        row = case(name, plan, options.ranks)
        total = sum(row.counted.values())
        kinds = ", ".join(f"{kind} {number:,.0f}" for kind, number in sorted(row.counted.items()))
        print(f"| {name} | {plan} | {row.predicted:,} | {row.inputs:,} | {row.statistics:,} | {total:,.0f} | "
              f"{total / row.predicted:.3f} | {row.left:,.0f} | {kinds} |", flush=True)  # fmt: skip


def case(name: str, plan: str, ranks: int) -> Row:
    """Predicted and counted bytes of a network under a plan."""
    import networks

    import taskflow
    from taskflow.export import exported
    from taskflow.tasks.lower import lower

    graph, machine = networks.graph(name), taskflow.load_machine("p100", ranks)
    found = exported(graph, taskflow.choose(plan, graph, machine)[0], "torch", "parallel.py")
    nodes = {node.name: node for node in graph}
    moved = {"inputs": 0, "statistics": 0, "predicted": 0}
    for task in lower(graph, found.nearest, taskflow.SGD(lr=0.1, momentum=0.9)):
        node = nodes.get(task.topic.name)
        if not task.kind.travels or (node is not None and node.outputs[0] in graph.losses):
            continue
        moved["predicted"] += task.nbytes
        if node is not None and not node.inputs and not node.parameters:
            moved["inputs"] += task.nbytes
        elif node is not None and node.operator.kind == "moments":
            moved["statistics"] += task.nbytes // 2
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "parallel.py").write_text(str(found.files["parallel.py"]))
        subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(Path(__file__)),
             "--ranks", str(ranks), "--worker", name, folder],
            cwd=folder, check=True, timeout=250, capture_output=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )
        counted: dict[str, float] = {}
        for rank in range(ranks):
            for kind, number in json.loads(Path(folder, f"bytes{rank}.json").read_text()).items():
                counted[kind] = counted.get(kind, 0) + number
    return Row(counted=counted, **moved)


def worker(name: str, folder: str) -> None:
    """One rank: the second step's bytes."""
    import networks
    import parallel  # type: ignore[import-not-found]
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, placement_types
    from torch.utils._python_dispatch import TorchDispatchMode

    def unboxed(value):  # type: ignore[no-untyped-def]
        """A process group as operators are given it; None for what is none."""
        if isinstance(value, torch.ScriptObject):
            try:
                return dist.ProcessGroup.unbox(value)
            except (RuntimeError, TypeError):  # a reduction
                return None
        return value if isinstance(value, dist.ProcessGroup) else None

    class Counting(TorchDispatchMode):
        """Adds up what collectives are given."""

        def __init__(self) -> None:
            super().__init__()
            self.found: dict[str, float] = {}
            self.aside = False  # within what is counted as a whole

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if any(issubclass(kind, DTensor) for kind in types):
                return NotImplemented  # what it moves comes here once it has become collectives
            if func.namespace in ("c10d", "_c10d_functional"):
                self.count(str(func).split(".")[1].strip("_"), args)
            return func(*args, **(kwargs or {}))

        def count(self, kind: str, args: tuple) -> None:  # type: ignore[type-arg]
            tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            groups = [group for leaf in args if (group := unboxed(leaf)) is not None]
            names = [leaf for leaf in args if isinstance(leaf, str) and leaf.isdecimal()]
            if self.aside or kind.startswith(("wait", "wrap", "barrier", "recv")) or not tensors:
                return
            if kind == "send":
                self.add("send", tensors[0].nbytes)
                return
            n = groups[0].size() if groups else dist.distributed_c10d._resolve_process_group(names[-1]).size() if names else 1
            functional = not groups
            if "allreduce" in kind or "all_reduce" in kind:
                if tensors[0].numel() > 1:  # the loss itself is for the eye
                    self.add("all-reduce", 2 * (n - 1) / n * tensors[0].nbytes)
            elif "gather" in kind:
                whole = tensors[0].nbytes * n if functional else max(t.nbytes for t in tensors)
                self.add("all-gather", (n - 1) / n * whole)
            elif "reduce_scatter" in kind:
                self.add("reduce-scatter", (n - 1) / n * max(t.nbytes for t in tensors))
            elif "alltoall" in kind:
                self.add("all-to-all", (n - 1) / n * tensors[0].nbytes)
            else:
                self.add(kind, tensors[0].nbytes)

        def add(self, kind: str, number: float) -> None:
            self.found[kind] = self.found.get(kind, 0) + number

        def another_axis(self, piece, gather_dim, shard_dim, mesh, mesh_dim):  # type: ignore[no-untyped-def]
            """In the place of DTensor's all-to-all, of which gloo makes an all-gather."""
            n = mesh.size(mesh_dim)
            self.add("all-to-all", (n - 1) / n * piece.nbytes)
            self.aside = True
            try:
                return whole(piece, gather_dim, shard_dim, mesh, mesh_dim)
            finally:
                self.aside = False

    whole = placement_types.shard_dim_alltoall
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = parallel.parallelize(networks.MODULES[name](), "cpu")
    generator = torch.Generator().manual_seed(1)
    for step in range(2):
        inputs, labels = networks.batch_of(name, generator)
        counting = Counting()
        placement_types.shard_dim_alltoall = counting.another_axis
        for parameter in model.parameters():
            parameter.grad = None
        with counting if step else nullcontext():
            model.step(networks.loss, inputs, labels)
    Path(folder, f"bytes{dist.get_rank()}.json").write_text(json.dumps(counting.found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
