"""Bytes that exported modules send under torchrun, counted from their collectives, beside those that taskflow's plan predicts.

    python benchmarks/export_bytes.py --ranks 2

Each row is a network of tests/export/networks.py under a plan. Counted: what c10d's operators are given in the second step on
all ranks, as a ring would send it (all-reduce 2 (n - 1) / n of its bytes a rank, all-gather and reduce-scatter (n - 1) / n of the
whole, a message all of it). Predicted: what `taskflow simulate` says is moved in a step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASES = {
    2: [("llama", "data"), ("llama", "d2 zero1"), ("llama", "t2"), ("llama", "p2 mb2"), ("gpt", "data"), ("gpt", "t2"),
        ("gpt", "p2 mb2"), ("resnet", "data"), ("cnn", "data"), ("cnn", "expert")],
    4: [("llama", "t2 d2"), ("llama", "t2 d2 zero1"), ("llama", "p2 d2 mb2"), ("llama", "t2 p2 mb2"), ("gpt", "t2 d2"),
        ("cnn", "expert")],
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, choices=list(CASES), default=2)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "export"), os.getcwd()]
    if options.worker:
        worker(*options.worker)
        return
    print("| network | plan | predicted bytes | counted | counted / predicted | by kind |\n|---|---|---|---|---|---|", flush=True)
    for name, plan in CASES[options.ranks]:
        predicted, found = case(name, plan, options.ranks)
        total = sum(found.values())
        kinds = ", ".join(f"{kind} {number:,.0f}" for kind, number in sorted(found.items()))
        print(f"| {name} | {plan} | {predicted:,} | {total:,.0f} | {total / predicted:.3f} | {kinds} |", flush=True)


def case(name: str, plan: str, ranks: int) -> tuple[int, dict[str, float]]:
    """Predicted bytes, and counted ones by kind of collective."""
    import networks

    import taskflow
    from taskflow.export import exported
    from taskflow.optimizer import make_evaluator
    from taskflow.optimizer.evaluate import where_time_goes

    graph, machine = networks.graph(name), taskflow.load_machine("p100", ranks)
    strategy = taskflow.choose(plan, graph, machine)[0]
    evaluator = make_evaluator(graph, machine)
    evaluator.set(strategy)
    predicted = where_time_goes(evaluator, path=False).transfer_bytes
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "parallel.py").write_text(exported(graph, strategy, "torch", "parallel.py").files["parallel.py"])
        subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(Path(__file__)),
             "--ranks", str(ranks), "--worker", name, folder],
            cwd=folder, check=True, timeout=250, capture_output=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )
        found: dict[str, float] = {}
        for rank in range(ranks):
            for kind, number in json.loads(Path(folder, f"bytes{rank}.json").read_text()).items():
                found[kind] = found.get(kind, 0) + number
    return predicted, found


def worker(name: str, folder: str) -> None:
    """One rank: the second step's bytes."""
    import networks
    import parallel  # type: ignore[import-not-found]
    import torch
    import torch.distributed as dist
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

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func.namespace in ("c10d", "_c10d_functional"):
                self.count(str(func).split(".")[1].strip("_"), args)
            return func(*args, **(kwargs or {}))

        def count(self, kind: str, args: tuple) -> None:  # type: ignore[type-arg]
            tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            groups = [group for leaf in args if (group := unboxed(leaf)) is not None]
            names = [leaf for leaf in args if isinstance(leaf, str) and leaf.isdecimal()]
            if kind.startswith(("wait", "wrap", "barrier", "recv")) or not tensors:
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
            elif "all_to_all" in kind or "alltoall" in kind:
                self.add("all-to-all", (n - 1) / n * tensors[-1].nbytes)
            else:
                self.add(kind, tensors[0].nbytes)

        def add(self, kind: str, number: float) -> None:
            self.found[kind] = self.found.get(kind, 0) + number

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = parallel.parallelize(networks.MODULES[name](), "cpu")
    generator = torch.Generator().manual_seed(1)
    for step in range(2):
        inputs, labels = networks.batch_of(name, generator)
        counting = Counting()
        with counting if step else nullcontext():
            model.step(networks.loss, inputs, labels)
    Path(folder, f"bytes{dist.get_rank()}.json").write_text(json.dumps(counting.found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
