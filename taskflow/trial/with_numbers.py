"""A step of an exported module beside the module alone, with numbers, on processes of this machine."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.util import find_spec
from math import inf, prod
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from taskflow.export import Exported
from taskflow.graph import OperatorGraph
from taskflow.models.pytorch import no_dropout, place_text, raising_line, random_copy, require_origin, sites_of
from taskflow.models.pytorch.exported import ExportedModule
from taskflow.trial.beside import LEAST, RELATIVE, Beside
from taskflow.trial.network import StepData, step_of
from taskflow.trial.script import cross_entropy, drawn, loaded, mse_loss

MOST_RANKS = 16
MOST_PARAMETERS = 1 << 27  # of the module, times the ranks: each has two modules and the gradients of both
MOST_FLOPS = 1e11  # of forward passes of the module alone, on each rank: some ten seconds on two cores, with backward passes
LIMIT = 120.0  # seconds until all ranks have answered
IMPORTED = [__name__, "taskflow.export.pytorch.support.checkpoints"]  # this, and all that exported modules import
LOSSES = {"cross_entropy": cross_entropy, "mse_loss": mse_loss}


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a new process is asked. ``text``: the exported module. ``data``: what a step is given; ``arguments``: those of forward
    that its inputs are. ``flops``: of a forward pass."""

    text: str
    module: Any
    data: StepData
    arguments: tuple[str, ...]
    flops: float
    ranks: int


@dataclass(frozen=True, slots=True)
class _Step:
    """What each rank is given: text of the exported module, the module alone, its inputs by name, target and loss."""

    text: str
    module: Any
    inputs: Mapping[str, Any]
    target: Any
    loss: str

    def of_type(self, dtype: torch.dtype) -> _Step:
        """The same with other floats, and with random weights."""
        inputs = {name: _of_type(value, dtype) for name, value in self.inputs.items()}
        return replace(self, module=random_copy(self.module, dtype), inputs=inputs, target=_of_type(self.target, dtype))


def _of_type(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return value.to(dtype) if value.is_floating_point() else value


def beside_alone(graph: OperatorGraph, found: Exported) -> Beside:
    """Return what an exported module computes beside the module alone, in a step of random numbers without dropout. Differences are
    those in double precision where float32 shows any and the code has it."""
    module = require_origin(graph).module
    why = _why_not(graph, module, found.ranks)
    if why:
        return Beside(unknown=why)
    try:
        data, sites = step_of(graph), sites_of(graph)[0]
    except ValueError as error:
        return Beside(unknown=str(error))
    flops = float(sum(node.operator.flops(node.specs, node.space) for node in graph))
    arguments = tuple(sites[one["name"]].name for one in data.inputs)
    return _in_fresh_process(_Asked(str(next(iter(found.files.values()))), module, data, arguments, flops, found.ranks))


def _why_not(graph: OperatorGraph, module: Any, ranks: int) -> str:
    """Why a step is not computed with numbers; empty if it is."""
    parameters = sum(parameter.numel() for parameter in module.parameters())
    if isinstance(module, ExportedModule):
        return "it is an exported program"
    if sys.platform != "linux":
        return "that takes Linux"
    if ranks > MOST_RANKS or parameters * ranks > MOST_PARAMETERS:
        return (
            f"{parameters:,} parameters on {ranks} ranks are more than {MOST_PARAMETERS:,} in all on {MOST_RANKS} ranks; export "
            "a smaller network of the same code under such a plan to have them compared"
        )
    return ""


# ---- processes -------------------------------------------------------------------------------------------------------
def _in_fresh_process(asked: _Asked) -> Beside:
    """Let a new process start the ranks: one in which PyTorch has taken gradients cannot be forked. It is forked from one that has
    but imported this, which stays for the next exported module until this process ends."""
    classes = {type(part).__module__ for part in asked.module.modules()}
    files = {name: str(file) for name in classes if (file := getattr(sys.modules.get(name), "__file__", None))}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    here, sent = context.Pipe(duplex=False)
    try:
        process = context.Process(target=_serve, args=(sent, files, pickle.dumps(asked)))
    except Exception as error:  # whatever the module holds
        return Beside(unknown=f"{type(asked.module).__name__} cannot be sent to another process ({_line(error)})")
    process.start()
    sent.close()
    (found,) = _received([here], 2 * LIMIT) or [Beside(unknown=_too_long(2 * LIMIT))]
    process.kill()
    process.join()
    return found


def _serve(sent: Connection, files: Mapping[str, str], data: bytes) -> None:
    """The new process. ``files``: those of the module's classes, by the names under which they were imported."""
    _quiet()
    try:
        for name, file in files.items():
            if find_spec(name.partition(".")[0]) is None:
                loaded(Path(file), name)
        asked: _Asked = pickle.loads(data)
    except Exception as error:
        sent.send(Beside(unknown=f"another process cannot load the module ({_line(error)})"))
        return
    sent.send(_answer(asked))


def _answer(asked: _Asked) -> Beside:
    try:
        step = _step(asked)
    except ValueError as error:
        return Beside(unknown=str(error))
    result = _on_ranks(step.of_type(torch.float32), asked.ranks)
    if result.wrong and not (result.failed or result.unknown):
        exact = _on_ranks(step.of_type(torch.float64), asked.ranks)
        return result if exact.failed or exact.unknown else exact
    return result


def _step(asked: _Asked) -> _Step:
    """Random numbers for a step. A batch that would take long has as few samples as the plan can divide. Raises ValueError if that
    is too much as well."""
    data, plan = asked.data, _generated(asked.text).plan()
    least = plan.micro_batches * prod(plan.mesh[name] for name in plan.data)
    samples = {one["shape"][0] if one["shape"] else 0 for one in (*data.inputs, data.target)}
    flops, fewer = asked.flops * asked.ranks, 0
    if flops > MOST_FLOPS and len(samples) == 1 and not plan.samples:
        fewer = least
        flops *= least / max(1, *samples)
    if flops > MOST_FLOPS:
        raise ValueError(f"{flops:.2g} operations on {asked.ranks} ranks are more than {MOST_FLOPS:.2g}")
    numbers = torch.Generator().manual_seed(0)

    def given(one: Mapping[str, Any]) -> torch.Tensor:
        return drawn({**one, "shape": [fewer, *one["shape"][1:]]} if fewer else one, numbers)

    inputs = {name: given(one) for name, one in zip(asked.arguments, data.inputs, strict=True)}
    return _Step(asked.text, asked.module, inputs, given(data.target), data.loss)


def _generated(text: str) -> Any:
    """The exported module; what it imports is there for ranks as well."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "parallel.py")
        path.write_text(text, encoding="utf-8")
        return loaded(path, "taskflow_beside")


def _on_ranks(step: _Step, ranks: int) -> Beside:
    """Start the ranks, and return the worst that one of them found, or the first error."""
    context, pipes, started = multiprocessing.get_context("fork"), list[Connection](), list[Any]()
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(ranks):
            here, sent = context.Pipe(duplex=False)
            started.append(context.Process(target=_rank, args=(rank, ranks, folder, step, sent), daemon=True))
            started[-1].start()
            sent.close()
            pipes.append(here)
        found = _received(pipes, LIMIT)
        for process in started:
            process.kill()
        for process in started:
            process.join()
    if bad := [one for one in found if one.unknown] or [one for one in found if one.failed]:
        return bad[0]
    if len(found) < ranks:
        return Beside(unknown=_too_long(LIMIT))
    worst = max(found, key=lambda one: (bool(one.name), one.gradient))
    return replace(worst, loss=max(one.loss for one in found), names=frozenset[str]().union(*(one.names for one in found)))


def _too_long(limit: float) -> str:
    return f"ranks were ended, or have not answered within {limit:.0f} s"


def _received(pipes: Sequence[Connection], limit: float) -> list[Beside]:
    """What processes found, until the first error, or for so many seconds."""
    found, left, end = list[Beside](), list(pipes), time.monotonic() + limit
    while left and (ready := wait(left, max(0.0, end - time.monotonic()))):
        for pipe in ready:
            assert isinstance(pipe, Connection)
            left.remove(pipe)
            with suppress(EOFError):  # it was killed
                found.append(pipe.recv())
        if any(one.failed or one.unknown for one in found):
            break
    return found


def _rank(rank: int, ranks: int, folder: str, step: _Step, sent: Connection) -> None:
    """One rank: sends what it found."""
    torch.set_num_threads(1)
    try:
        file, most = f"file://{folder}/store", timedelta(seconds=LIMIT)
        dist.init_process_group("gloo", init_method=file, rank=rank, world_size=ranks, timeout=most)
    except Exception as error:
        sent.send(Beside(unknown=f"ranks cannot meet here ({error})"))
        return
    sent.send(_compared(step))


def _quiet() -> None:
    """Nothing that this process or one that it starts says is shown."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


def _compared(step: _Step) -> Beside:
    """What this rank computes, beside the module alone."""
    criterion, alone = LOSSES[step.loss], copy.deepcopy(step.module)
    with no_dropout(alone):
        try:
            value = criterion(alone(**step.inputs), step.target)
            value.backward()
        except Exception as error:
            return Beside(unknown=f"the module alone fails on random numbers ({_line(error)})")
    wanted = {name: parameter.grad for name, parameter in alone.named_parameters(remove_duplicate=False)}
    finite = value.isfinite().item() and all(bool(grad.isfinite().all()) for grad in wanted.values() if grad is not None)
    if not finite:
        return Beside(unknown="the module alone computes no finite numbers of random ones")
    with no_dropout(step.module):
        try:
            model = _generated(step.text).parallelize(step.module, "cpu")
            loss = model.step(criterion, [*step.inputs.values()], step.target)
            found = {name: _whole(parameter.grad) for name, parameter in model.named_parameters()}
        except Exception as error:
            return Beside(failed=f"{_line(error)}{place_text(raising_line(error.__traceback__))}")
    off = abs(loss - value.item()) / max(abs(value.item()), LEAST)
    return _worst(off, found, wanted)


def _worst(loss: float, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Beside:
    """The gradient that is off most."""
    largest = max((grad.abs().max().item() for grad in wanted.values() if grad is not None and grad.numel()), default=0.0) or 1.0
    worst, name, over = 0.0, "", 1.0
    for key, grad in found.items():
        theirs = wanted.get(key)
        if grad is None and theirs is None:
            continue
        ours = torch.zeros_like(theirs) if grad is None else grad
        theirs = torch.zeros_like(ours) if theirs is None else theirs
        off = (ours - theirs).abs().max().item() if ours.shape == theirs.shape else inf
        worst = max(worst, off / largest) if off == off else inf
        if not off <= over * (most := RELATIVE * theirs.abs().max().item() + LEAST * largest):
            name, over = key, off / most
    return Beside(loss, worst, name, names=frozenset(found))


def _whole(value: Any) -> Any:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
