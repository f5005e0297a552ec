"""Text of an exported module: first the plan, then the code that every such module contains (`support`)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from taskflow.export.cuts import Lies
from taskflow.export.pytorch.layers import CutLayer, Lying
from taskflow.export.pytorch.plan import TorchPlan
from taskflow.export.pytorch.units import NUMBER

SUPPORT = Path(__file__).with_name("support")
FILES = (  # in the order of reading
    "exchange", "plan", "parallel", "checkpoints", "clipping", "means", "stages", "layers", "statistics", "naming", "modules",
)
RULE = "# ---- The same in every exported module " + "-" * 80


def torch_code(plan: TorchPlan, title: str, about: str, file: str) -> str:
    """Return the text of a module with the function ``parallelize``. ``title``: the network's name. ``about``: sentences for
    its docstring. ``file``: the file's future name."""
    imports, bodies = joined_code(SUPPORT, FILES, ["import operator"] if plan.stages else [])
    parts = [
        _docstring(title, about, file, plan.mesh.ranks, plan), "from __future__ import annotations", imports,
        _parallelize(), _plan(plan), *(stage.code.replace("_operator.", "operator.") for stage in plan.stages), RULE[:120], *bodies,
    ]
    return re.sub(r"\n{4,}", "\n\n\n", "\n\n\n".join(parts) + "\n")


def joined_code(folder: Path, files: Iterable[str], more: Iterable[str] = ()) -> tuple[str, list[str]]:
    """Return the imports that some files of a folder need together, without those of taskflow, and the code of each. ``more``: more
    lines that import."""
    found: dict[str, set[str]] = {line: set() for line in more}
    bodies = []
    for name in files:
        text = folder.joinpath(f"{name}.py").read_text("utf-8")
        tree = ast.parse(text)
        statements = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        for node in statements:
            module = node.module if isinstance(node, ast.ImportFrom) else None
            if module is None:
                found.setdefault(ast.unparse(node), set())
            elif not module.startswith(("taskflow", "__future__")):
                found.setdefault(f"from {module} import", set()).update(ast.unparse(alias) for alias in node.names)
        bodies.append("\n".join(text.splitlines()[statements[-1].end_lineno :]).strip())
    lines = [f"{start} {', '.join(sorted(names, key=str.lower))}" if names else start for start, names in found.items()]
    return _joined(sorted(lines, key=_import_order)), bodies


def _import_order(line: str) -> tuple[bool, bool, str]:
    """Python's own first, then torch."""
    return "torch" in line, line.startswith("from"), line


def _joined(imports: list[str]) -> str:
    own = [line for line in imports if "torch" not in line]
    return "\n".join([*own, "", *(line for line in imports if "torch" in line)])


def _docstring(title: str, about: str, file: str, ranks: int, plan: TorchPlan) -> str:
    name = file.removesuffix(".py")
    notes = "".join(f"\n{note}" for note in plan.notes)
    return f'''"""{title} on {ranks} ranks. Written by taskflow export; needs PyTorch alone.

{about}{notes}

    torchrun --nproc-per-node {ranks} train.py

with in train.py:

    model = {name}.parallelize({title}())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in batches:  # the whole batch, the same on every rank
        optimizer.zero_grad()
        loss = model.step(loss_function, [inputs], targets)
        optimizer.step()
"""'''


def _parallelize() -> str:
    return '''def parallelize(module: nn.Module, device: str | None = None) -> Parallel:
    """The module on the ranks of this plan. ``device``: "cuda" or "cpu"; None: what is there. All ranks get rank 0's weights."""
    return Parallel(module, plan(), device)
'''


def _plan(plan: TorchPlan) -> str:
    axes = sorted({lies.axis for lies in _all_lies(plan) if lies.axis is not None})
    names = [f"S{axis} = Shard({axis})" for axis in axes]
    if plan.tensor:
        names += ["R = Replicate()", "P = Partial()"]
    lines = [f"mesh={_mapping(plan.names)}", f"layers={_layers(plan.layers, plan.modules)}"]
    for key in ("data", "tensor", "zero", "group", "units", "again", "whole", "devices", "elements", "samples"):
        if value := getattr(plan, key):
            lines.append(f"{key}={value!r}")
    if plan.statistics:
        lines.append("statistics=True")
    if plan.micro_batches > 1:
        lines.append(f"micro_batches={plan.micro_batches}")
    if plan.stages or plan.by_name:
        lines.append(f"inputs={plan.inputs!r}")
    if plan.stages:
        lines += [f"schedule={plan.schedule!r}", f"stages=({_stages(plan)}\n        )"]
    if plan.tensor:
        lines += [f"output={_lying(plan.output)}", f"target={_lying(plan.target)}"] if plan.output else [
            f"output={_lying(tuple(Lies() for _ in plan.tensor))}", f"target={_lying(tuple(Lies() for _ in plan.tensor))}"
        ]
    body = ",\n        ".join(lines)
    given = "".join(f"    {line}\n" for line in names)
    return f'def plan() -> ParallelPlan:\n    """How it is divided."""\n{given}    return ParallelPlan(\n        {body},\n    )\n'


def _all_lies(plan: TorchPlan) -> Iterable[Lies]:
    for layer in plan.layers.values():
        for lying in (*layer.inputs, *layer.weights.values(), layer.makes, layer.output):
            yield from lying
    for arriving in plan.arrives:
        for lying in arriving:
            yield from lying
    yield from (*plan.output, *plan.target)


def _layers(layers: Mapping[str, CutLayer], modules: Sequence[str]) -> str:
    """Layers by pattern, or by path where modules of one pattern are cut differently, or some are no layers."""
    texts = {path: _layer(layer) for path, layer in layers.items()}
    by_pattern: dict[str, set[str]] = {}
    for path in modules:
        by_pattern.setdefault(NUMBER.sub("#", path), set()).add(texts.get(path, ""))
    lines: dict[str, str] = {}
    for path, text in texts.items():
        pattern = NUMBER.sub("#", path)
        lines[pattern if len(by_pattern[pattern]) == 1 else path] = text
    if not lines:
        return "{}"
    return "{\n" + "".join(f'            "{path}": {text},\n' for path, text in lines.items()) + "        }"


def _layer(layer: CutLayer) -> str:
    words = [
        f"({', '.join(map(_lying, layer.inputs))},)",
        "{" + ", ".join(f'"{name}": {_lying(lying)}' for name, lying in layer.weights.items()) + "}",
        _lying(layer.makes), _lying(layer.output),
    ]
    if layer.once:
        words.append(f"once={layer.once!r}")
    if layer.rows:
        words.append("rows=True")
    return f"LayerPlan({', '.join(words)})"


def _stages(plan: TorchPlan) -> str:
    found = ""
    for number, (stage, arrives) in enumerate(zip(plan.stages, plan.arrives)):
        lies = "".join(f"{_lying(lying)}, " for lying in arrives) if plan.tensor else ""
        found += f"\n            StagePlan(stage_{number}, {stage.parts!r}, {stage.inputs!r}, ({lies.strip()})),"
    return found


def _mapping(names: Mapping[str, int]) -> str:
    return "{" + ", ".join(f'"{name}": {size}' for name, size in names.items()) + "}"


def _lying(lying: Lying) -> str:
    return f"({', '.join('P' if lies.partial else 'R' if lies.axis is None else f'S{lies.axis}' for lies in lying)},)"
