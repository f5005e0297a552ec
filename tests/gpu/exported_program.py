"""exported_program.py CASES: steps of exported networks on a GPU that is not there. CASES: a JSON file, a list of cases
(network, file of the exported module, type of its numbers). Writes what the device was asked for to rankN.json."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "export")]
import networks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from fake_cuda import FakeCuda, fake_cuda  # noqa: E402

from taskflow.trial.script.timing import step_of, timed_steps  # noqa: E402

STEPS = 2  # the optimizer has its state in the second


def ran(name: str, file: str, kind: str, cuda: FakeCuda) -> dict[str, Any]:
    """What the last of a few steps asked for, and where its numbers lie."""
    plan = _loaded(file)
    dtype = getattr(torch, kind)
    torch.manual_seed(0)
    model = plan.parallelize(networks.MODULES[name]().to(dtype))
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=kind == "bfloat16")
    inputs, labels = networks.batch_of(name, torch.Generator())
    inputs = [value.to(dtype) if value.is_floating_point() else value for value in inputs]
    threads: set[int] = set()
    for parameter in (one for one in parameters if one.requires_grad):
        parameter.register_post_accumulate_grad_hook(lambda _: threads.add(threading.get_ident()))
    for _ in range(STEPS):
        for found in (cuda.waited, cuda.copied, cuda.messages):
            found.clear()
        optimizer.zero_grad()
        loss = model.gradients(networks.loss, inputs, labels)
        norm = model.clip_grad_norm_(1.0)
        optimizer.step()
    kept = [*parameters, *(p.grad for p in parameters if p.grad is not None), loss, norm]
    kept += [value for part in model.parts for value in part.buffers()]
    result = {
        "waited": list(cuda.waited), "copied": list(cuda.copied), "messages": len(cuda.messages),
        "elsewhere": [str(value.device) for value in kept if value.device != cuda.device], "gradients": len(kept) - len(parameters),
        "threads": len(threads - {threading.get_ident()}),
    }  # fmt: skip
    if model.schedule is None:
        model.eval()
        output = model(*[model.rows(value) for value in inputs])
        result["elsewhere"] += [str(_first(output).device)] if _first(output).device != cuda.device else []
    model.state_dict()
    result["seconds"] = timed_steps(step_of(model, optimizer, networks.loss, inputs, labels), 2, cuda.device)
    return result


def _first(output: Any) -> torch.Tensor:
    """The tensor that a module returns, or the first of several."""
    return output if isinstance(output, torch.Tensor) else next(iter(output.values())) if hasattr(output, "values") else output[0]


def _mail(number: int, ranks: int) -> dist.Store:
    store = dist.FileStore(f"mail{number}", ranks)
    store.set_timeout(timedelta(seconds=30))
    return store


def _loaded(file: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    cases, rank, ranks = json.loads(Path(sys.argv[1]).read_text()), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    found = []
    for number, (name, file, kind) in enumerate(cases):
        with fake_cuda(rank, ranks, mail=_mail(number, ranks)) as cuda:
            found.append(ran(name, file, kind, cuda))
    Path(f"rank{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
