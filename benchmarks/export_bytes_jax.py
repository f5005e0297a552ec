"""Bytes that modules exported for JAX send in a step on eight devices, read from the compiled program, beside those that taskflow's
plan predicts.

    python benchmarks/export_bytes_jax.py --network mlp

Each row is a network of tests/export/jax_networks.py under a plan. Counted: collectives in XLA's text for simulated CPU devices, as
rings would send them (all-reduce 2 (n - 1) / n of its bytes a device, all-gather, all-to-all and reduce-scatter (n - 1) / n of the
whole). Predicted: what `taskflow simulate` says is moved in a step. Needs the extra jax.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLANS = {
    "mlp": ["d8", "t2 d4", "t4 d2", "d8 zero1", "d8 fsdp"],
    "llama": ["d8", "t2 d4", "t4 d2", "t4 d2 mb2 zero1", "d8 zero2 mb1", "d8 fsdp recompute=full", "c2 d4"],
    "moe": ["d8", "d8 e8", "d8 e4", "t2 d4 e4"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=list(PLANS), action="append", help="may be repeated (default: all)")
    parser.add_argument("--predicted", action="store_true", help="predictions alone, without JAX")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "export")]
    print("| network | plan | predicted bytes | counted | counted / predicted | by kind |\n|---|---|---|---|---|---|", flush=True)
    for name in options.network or PLANS:
        rows(name, options.predicted)


def rows(name: str, predicted_alone: bool) -> None:
    """Print a network's rows."""
    import jax_networks

    import taskflow
    from taskflow.export import exported
    from taskflow.optimizer import make_evaluator
    from taskflow.optimizer.evaluate import where_time_goes

    graph, machine = jax_networks.graph(name), taskflow.load_machine("h100", 8)
    evaluator = make_evaluator(graph, machine)
    predicted, modules = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number, plan in enumerate(PLANS[name]):
            strategy = taskflow.choose(plan, graph, machine)[0]
            evaluator.set(strategy)
            predicted.append(where_time_goes(evaluator, path=False).transfer_bytes)
            modules.append(f"plan_{number}")
            Path(folder, f"plan_{number}.py").write_text(exported(graph, strategy, "jax", "plan.py").files["plan.py"])
        found: list[dict[str, list[int]]] = [{} for _ in modules]
        if not predicted_alone:
            program = str(ROOT / "tests" / "export" / "train_beside_jax.py")
            done = subprocess.run(
                [sys.executable, program, name, "1", *modules], cwd=folder, check=True, text=True, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            found = [json.loads(line)["collectives"] for line in done.stdout.splitlines()]
    for plan, wanted, kinds in zip(PLANS[name], predicted, found):
        counted = sum(number for _, number in kinds.values())
        by = ", ".join(f"{kind} {number:,} ({times})" for kind, (times, number) in sorted(kinds.items()))
        print(f"| {name} | {plan} | {wanted:,} | {counted:,} | {counted / wanted:.3f} | {by} |", flush=True)


if __name__ == "__main__":
    main()
