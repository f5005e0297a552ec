"""One plan on one rank, in a process of its own: all of its memory is free afterwards, whatever has failed."""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from taskflow.trial.script.network import LOSSES, OPTIMIZERS, drawn, loaded, module_of, with_numbers
from taskflow.trial.script.timing import step_of, timed_steps

WARM_UP = 3  # steps before those that are timed; the first allocates the optimizer's state
MOST_TEXT = 300  # letters of an error


def visit(told: Mapping[str, Any]) -> None:
    """Run a plan's steps and write what was found to ``told["out"]``; on an error write that, tell the other ranks, and end."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.PrefixStore(told["key"], store_of(False, told["seconds"]))
    out = Path(told["out"])
    try:
        found = run(told, store, rank, ranks)
    except BaseException as error:  # whatever a plan, PyTorch or the user's module raises
        kind = "memory" if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)) or "allocate" in str(error) else "error"
        out.write_text(json.dumps({"error": message_of(error), "kind": kind, "when": time.time()}))
        store.set("failed", b"1")
        raise
    out.write_text(json.dumps(found))
    store.set(f"done/{rank}", b"1")
    store.wait([f"done/{other}" for other in range(ranks)])  # nobody leaves while another waits for messages
    sys.stdout.flush()
    os._exit(0)  # nothing is left to do, and destroying groups may wait


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def store_of(serves: bool, seconds: float) -> Any:
    """Return the store that torchrun's ranks share, at the address that torchrun says; ``seconds``: how long it waits."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(address, port, is_master=serves, wait_for_workers=False, timeout=timedelta(seconds=seconds))


def message_of(error: BaseException) -> str:
    """Return an error's kind and its first line."""
    text = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {text}"[:MOST_TEXT]


def run(told: Mapping[str, Any], store: Any, rank: int, ranks: int) -> dict[str, Any]:
    """Return the seconds of all steps, which are the same on all ranks, and this rank's memory in bytes."""
    network, kind = told["network"], told["device"]
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    limit = timedelta(seconds=told["seconds"])
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
    torch.manual_seed(0)
    plan = loaded(Path(told["file"]), Path(told["file"]).stem)
    module = module_of(network["module"])
    model = plan.parallelize(module, kind)
    if any(parameter.is_meta for parameter in model.parameters()):
        with_numbers(model)
    optimizer = OPTIMIZERS[network["rule"]](list(model.parameters()))
    generator = torch.Generator().manual_seed(1)
    inputs, target = [drawn(one, generator) for one in network["inputs"]], drawn(network["target"], generator)
    step = step_of(model, optimizer, LOSSES[network["loss"]], inputs, target)
    for _ in range(WARM_UP):
        step()
    if kind == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    seconds = timed_steps(step, told["steps"], model.device)
    return {"seconds": seconds, **memory(kind)}


def memory(kind: str) -> dict[str, Any]:
    """Return what this rank's steps have needed: of a GPU the most bytes that PyTorch had allocated and reserved; of the process
    the most that were resident, Python and PyTorch themselves included."""
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    if kind != "cuda":
        return {"allocated": None, "reserved": None, "resident": resident, "name": None}
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return {"allocated": allocated, "reserved": reserved, "resident": resident, "name": torch.cuda.get_device_name()}
