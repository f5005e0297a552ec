"""Networks of Hugging Face and timm as exported modules on two gloo ranks, trained some steps beside PyTorch alone.

    python benchmarks/export_networks.py                          # all of imports.py: HF's, then timm's where timm is installed
    python benchmarks/export_networks.py --networks Llama BERT --plans data "d2 zero3" t2 "p2 mb2"

For each network and plan: how far the losses of three steps are off PyTorch's (relatively, the largest), ``refused`` if the export
refuses the plan, ``failed`` if the module ends with an error. Below the table: why. With --json a line of JSON for each row.
Configurations are in huggingface_networks.py and timm_networks.py; weights are random, dropout is off. Needs the extra hf.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PLANS = ("data", "d2 zero3", "t2", "p2 mb2")
STEPS, RATE = 3, 0.5
AT_ONCE = 10  # networks of one process
LIMIT = 900.0  # seconds of all plans of these


def imports() -> Any:
    """The module imports.py of this folder, whose kernels.py must not be found by name."""
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != HERE]
    spec = importlib.util.spec_from_file_location("imports", HERE / "imports.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["imports"] = module
    spec.loader.exec_module(module)
    return module


def given(keywords: dict[str, Any], step: int) -> dict[str, Any]:
    """Random arguments of a network."""
    import torch

    numbers = torch.Generator().manual_seed(step)
    return {
        key: torch.randn(value.shape, generator=numbers) if value.is_floating_point()
        else torch.randint(9, 200, value.shape, generator=numbers) for key, value in keywords.items()
    }


def scores_of(output: Any) -> Any:
    """The scores in what a module returns."""
    import torch

    if isinstance(output, dict):
        return output["logits"] if "logits" in output else next(iter(output.values()))
    return output if isinstance(output, torch.Tensor) else getattr(output, "logits", output[0])


def loss(output: Any, target: Any) -> Any:
    """Mean cross-entropy over the last dimension of the scores."""
    import torch

    scores = scores_of(output)
    return torch.nn.functional.cross_entropy(scores.flatten(0, -2), target.flatten())


def labels_of(scores: Any, step: int) -> Any:
    """Random labels for scores."""
    import torch

    return torch.randint(scores.shape[-1], scores.shape[:-1], generator=torch.Generator().manual_seed(100 + step))


def write(names: list[str], plans: list[str], folder: Path) -> None:
    """Write the exported modules of networks, each in a folder by its number, and why plans were refused."""
    for number, name in enumerate(names):
        of = folder / str(number)
        of.mkdir()
        try:
            refused = written(name, plans, of)
        except Exception as error:
            refused = dict.fromkeys(plans, f"{type(error).__name__}: {error}")
        of.joinpath("refused.json").write_text(json.dumps(refused))


def written(name: str, plans: list[str], folder: Path) -> dict[str, str]:
    """Write the exported modules of a network; why plans were refused."""
    import taskflow
    from taskflow.export import exported

    module, keywords = imports().network(name)
    graph = taskflow.from_torch(module, keywords=keywords)
    refused, machine = {}, taskflow.load_machine("p100", 2)
    for number, plan in enumerate(plans):
        try:
            found = exported(graph, taskflow.choose(plan, graph, machine)[0], "torch", "plan.py")
        except ValueError as error:
            refused[plan] = str(error)
            continue
        folder.joinpath(f"plan_{number}.py").write_text(str(found.files["plan.py"]))
    inputs = [node.name for node in graph if node.operator.kind == "input" and node.name in keywords]
    folder.joinpath("inputs.json").write_text(json.dumps(inputs))
    return refused


def worker(names: list[str], folder: Path) -> None:
    """Train what was written and has no result yet, one plan after the other, each beside PyTorch alone."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for number, name in enumerate(names):
        plans = left(folder / str(number))
        dist.barrier()
        if plans:
            train(name, plans, folder / str(number))
    dist.destroy_process_group()


def left(folder: Path) -> list[Path]:
    """The plans of a network that were written and have no result."""
    return [file for file in sorted(folder.glob("plan_*.py")) if not file.with_suffix(".json").exists()]


def train(name: str, plans: list[Path], folder: Path) -> None:
    """Train plans of a network; each has then how far its losses are off."""
    import torch
    import torch.distributed as dist

    module, keywords = imports().network(name)
    order = json.loads(folder.joinpath("inputs.json").read_text())
    alone = copy.deepcopy(module)
    optimizer = torch.optim.SGD(alone.parameters(), lr=RATE)
    wanted = []
    for step in range(STEPS):
        output = alone(**given(keywords, step))
        labels = labels_of(scores_of(output), step)
        value = loss(output, labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        wanted.append((value.item(), labels))
    for plan in plans:
        spec = importlib.util.spec_from_file_location(f"{folder.name}_{plan.stem}", plan)
        assert spec is not None and spec.loader is not None
        exported = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(exported)
        model = exported.parallelize(copy.deepcopy(module), "cpu")
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        off = list[float]()
        for step, (expected, labels) in enumerate(wanted):
            arguments = given(keywords, step)
            optimizer.zero_grad()
            found = model.step(loss, [arguments[key] for key in order], labels)
            optimizer.step()
            off.append(abs(found - expected) / abs(expected))
        dist.barrier()
        if dist.get_rank() == 0:
            plan.with_suffix(".json").write_text(json.dumps({"off": max(off, key=lambda one: (one != one, one))}))


def run(names: list[str], plans: list[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """For each network each plan's row: ``off``, ``refused`` or ``failed``."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, found = Path(temporary), dict[str, dict[str, dict[str, Any]]]()
        shared = ["--networks", *names, "--plans", *plans, "--folder", temporary]
        subprocess.run([sys.executable, "-W", "ignore", __file__, *shared, "--write"], check=True, env=environment())
        while waiting := [plan for number in range(len(names)) for plan in left(folder / str(number))]:
            error = started(shared, folder)
            if (first := next((plan for plan in waiting if plan in left(plan.parent)), None)) is not None:
                first.with_suffix(".json").write_text(json.dumps({"failed": error}))
        for number, name in enumerate(names):
            of = folder / str(number)
            rows = {plan: {"refused": why} for plan, why in json.loads(of.joinpath("refused.json").read_text()).items()}
            trained = {plan: of / f"plan_{place}.json" for place, plan in enumerate(plans) if plan not in rows}
            found[name] = {plan: rows.get(plan) or json.loads(trained[plan].read_text()) for plan in plans}
        return found


def started(shared: list[str], folder: Path) -> str:
    """Train plans on two ranks; the error that ended it."""
    command = [
        sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__, *shared,
        "--train",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=environment(), cwd=folder)
    except subprocess.TimeoutExpired:
        return f"not done after {LIMIT:.0f} s"
    return last_error(done.stderr)


def last_error(text: str) -> str:
    """The line of an error that says most."""
    lines = [line.split("]:", 1)[-1].strip() for line in text.splitlines()]
    errors = [line for line in lines if "Error: " in line and "ChildFailed" not in line and "closed by peer" not in line]
    return (errors or lines or [""])[0 if errors else -1]


def environment() -> dict[str, str]:
    """One thread a rank."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", metavar="NAME", help="some of them")
    parser.add_argument("--plans", nargs="+", default=list(PLANS))
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write(options.networks, options.plans, options.folder)
    elif options.train:
        worker(options.networks, options.folder)
    else:
        names = options.networks or [*imports().CONFIGS, *(imports().beside("timm_networks").TIMM if timm_is_there() else ())]
        table(names, options.plans, options.json)


def timm_is_there() -> bool:
    """True if timm is installed."""
    return importlib.util.find_spec("timm") is not None


def table(names: list[str], plans: list[str], as_json: bool) -> None:
    """Print the table, some networks at a time."""
    why = []
    if not as_json:
        print(f"| network | {' | '.join(plans)} |\n" + "|---" * (1 + len(plans)) + "|")
    for begin in range(0, len(names), AT_ONCE):
        for name, found in run(names[begin : begin + AT_ONCE], plans).items():
            if as_json:
                print(json.dumps({"network": name, "plans": found}), flush=True)
                continue
            cells = [f"{row['off']:.1e}" if "off" in row else next(iter(row)) for row in found.values()]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
            why += [(name, plan, *next(iter(row.items()))) for plan, row in found.items() if "off" not in row]
    for name, plan, kind, reason in why:
        print(f"\n{name}, {plan}, {kind}: {reason}")


if __name__ == "__main__":
    main()
