"""torchrun ... train_unusual.py NAME:FILE ...: trains exported modules, whose gradients are clipped, beside PyTorch alone. Each
rank writes a JSON file: for each of them [its losses and norms, those of PyTorch alone]."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path.cwd()), str(Path(__file__).parent)]
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import unusual  # noqa: E402

STEPS, MOST = 4, 0.1  # norms are 0.2 to 3
torch.set_num_threads(1)


def optimizer_of(model: Any) -> Any:
    """Of which a scaled gradient makes a scaled change; Adam would hide a wrong scale."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def alone(name: str) -> list[float]:
    """Losses and norms of PyTorch alone."""
    torch.manual_seed(0)
    module, found = unusual.MODULES[name](), []
    optimizer = optimizer_of(module)
    for step in range(STEPS):
        inputs, named, labels = unusual.batch(name, step)
        optimizer.zero_grad()
        value = unusual.loss(module(*inputs, **named), labels)
        value.backward()
        found += [value.item(), float(torch.nn.utils.clip_grad_norm_(module.parameters(), MOST))]
        optimizer.step()
    return found


def divided(name: str, file: str) -> list[float]:
    """Those of an exported module."""
    torch.manual_seed(0)
    model, found = importlib.import_module(file).parallelize(unusual.MODULES[name](), "cpu"), []
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        inputs, named, labels = unusual.batch(name, step)
        optimizer.zero_grad()
        value = model.step(unusual.loss, [*inputs, *named.values()], labels)
        found += [value, float(model.clip_grad_norm_(MOST))]
        optimizer.step()
    return found


def results(file: str) -> list[Any]:
    """Of a network with dropout: whether two results of this replica are equal in training, in evaluation, and afterwards."""
    torch.manual_seed(0)
    model = importlib.import_module(file).parallelize(unusual.MODULES["masked"](), "cpu")
    part = model.rows(unusual.batch("masked", 0)[0][0])
    modes = (lambda: model, model.eval, model.train)
    return [bool((mode()(part) == model(part)).all()) for mode in modes]


pairs = [pair.split(":") for pair in sys.argv[1:]]
rows = {file: results(file) if name == "masked" else [divided(name, file), alone(name)] for name, file in pairs}
Path(f"rank{dist.get_rank()}.json").write_text(json.dumps(rows))
dist.destroy_process_group()
