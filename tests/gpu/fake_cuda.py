"""A CUDA device that is not there: tensors without numbers say they are on it, and a clock says when its streams would be done.

PyTorch's own fake tensors refuse what a device would (operands on two devices, numbers that are read); its fake process group
stands for NCCL's, and takes no tensors of the CPU. Here come streams, events, what `torch.cuda` answers, and the time that kernels
and messages take by given rates.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

FEW = 64  # elements of a tensor whose numbers are known all the same
READS = ("_local_scalar_dense", "item", "nonzero", "_unique2", "unique_dim", "unique_consecutive", "masked_select", "bincount",
         "equal", "is_nonzero", "repeat_interleave.Tensor")  # fmt: skip
"""Operators of which the host waits for the device's result."""
OPERATIONS = {"allreduce_": "all_reduce", "_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter",
              "alltoall_base_": "all_to_all", "broadcast_": "broadcast"}  # fmt: skip


@dataclass
class Rates:
    """What a device does in a second. ``flops``: by type; ``messages``: seconds of a collective of so many bytes."""

    flops: dict[str, float] = field(default_factory=lambda: {"float32": 45e12, "bfloat16": 620e12, "float8_e4m3fn": 1100e12})
    bytes_per_second: float = 2.7e12
    kernel_seconds: float = 2e-6
    host_seconds: float = 4e-6
    cycles_per_second: float = 1.98e9
    messages: Callable[[str, int, int], float] = lambda what, nbytes, count: 1e-5 + nbytes / 400e9


class FakeStream:
    """A stream of the device, with the time at which it is done. Used as a context it is the current one."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.until, self.device = cuda, 0.0, cuda.device
        self.stream_id = self.cuda_stream = 7
        self.before: list[FakeStream] = []

    def wait_stream(self, other: FakeStream) -> None:
        self.until = max(self.until, other.until)

    def wait_event(self, event: Any) -> None:
        self.until = max(self.until, event.at)

    def synchronize(self) -> None:
        self.cuda.waits(self.until)

    def query(self) -> bool:
        return self.until <= self.cuda.host

    def record_event(self, event: Any = None) -> Any:
        event = event or self.cuda.event()
        event.record(self)
        return event

    def __enter__(self) -> FakeStream:
        self.before.append(self.cuda.current)
        self.cuda.current = self
        return self

    def __exit__(self, *_: object) -> None:
        self.cuda.current = self.before.pop()


class FakeEvent:
    """A mark in a stream."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.at = cuda, 0.0

    def record(self, stream: FakeStream | None = None) -> None:
        self.at = max(self.cuda.host, (stream or self.cuda.current).until)

    def wait(self, stream: FakeStream | None = None) -> None:
        (stream or self.cuda.current).wait_event(self)

    def query(self) -> bool:
        return self.at <= self.cuda.host

    def synchronize(self) -> None:
        self.cuda.waits(self.at)

    def elapsed_time(self, other: FakeEvent) -> float:
        return 1e3 * (other.at - self.at)


class FakeCuda(TorchDispatchMode):
    """The device, and what it is asked for. ``waited``: operators for whose results the host waited; ``copied``: copies between
    host and device for which it waited; ``wrong``: messages of tensors that are not on the device."""

    def __init__(self, rank: int, ranks: int, rates: Rates | None = None) -> None:
        super().__init__()
        self.rank, self.ranks, self.rates = rank, ranks, rates or Rates()
        self.device = torch.device("cuda", rank % 8)
        self.host = 0.0
        self.waited: list[str] = []
        self.copied: list[str] = []
        self.wrong: list[str] = []
        self.seen: set[str] = set()
        self.messages: list[tuple[str, int]] = []
        self.numbers: dict[int, tuple[Any, torch.Tensor]] = {}
        self.current = self.first = FakeStream(self)
        self.sends = FakeStream(self)

    # ---- what torch.cuda has -----------------------------------------------------------------------------------------
    def event(self, *_: Any, **__: Any) -> FakeEvent:
        return FakeEvent(self)

    def stream(self, *_: Any, **__: Any) -> FakeStream:
        return FakeStream(self)

    def waits(self, until: float | None = None) -> None:
        """Let the host wait for a time, or for all streams."""
        self.host = max(self.host, self.first.until if until is None else until, self.sends.until if until is None else 0.0)

    def sleep(self, cycles: int) -> None:
        self.current.until = max(self.host, self.current.until) + cycles / self.rates.cycles_per_second

    def clock(self) -> float:
        """The host's clock, which stands still between calls but for the little that reading it takes."""
        self.host += 1e-7
        return self.host

    # ---- operators ---------------------------------------------------------------------------------------------------
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, space = func._schema.name.partition("::")[2], func.namespace
        self.seen.add(name)
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        if space in ("c10d", "_c10d_functional"):
            return self._message(func, name, args, kwargs, given)
        on_device = [value for value in given if value.device.type == "cuda"]
        if on_device and (name in READS or str(func).removeprefix("aten.") in READS):
            self.waited.append(str(func))
            self.waits()
            if name in ("_local_scalar_dense", "item"):
                with unset_fake_temporarily():
                    return self._known(given[0]).item()
        if not on_device and torch.device(kwargs.get("device") or "cpu").type != "cuda":
            with unset_fake_temporarily():  # what is on the host has numbers
                return func(*args, **kwargs)
        if (name == "copy_" and args[0].device.type == "cpu") or (name == "_to_copy" and _cpu(kwargs)):
            return self._read(func, args, kwargs)
        result = func(*args, **kwargs)
        found = [value for value in tree_leaves(result) if isinstance(value, torch.Tensor)]
        self._note(func, args, kwargs, given, found)
        kinds = {value.device.type for value in (*given, *found) if value.device.type in ("cpu", "cuda")}
        if name in ("_to_copy", "copy_", "lift_fresh") and len(kinds) == 2:
            blocking = not (kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))
            if blocking:
                self.copied.append(f"{func}: {given[-1].device.type}, {tuple(given[-1].shape)}")
                self.waits(self.current.until)
        if on_device or any(value.device.type == "cuda" for value in found):
            self._runs(func, given, found, result, args, kwargs)
        return result

    def _read(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        """What the host reads of the device: as many numbers as there are."""
        source = args[1] if func._schema.name == "aten::copy_" else args[0]
        if not kwargs.get("non_blocking") and (len(args) < 3 or not args[2]):
            self.copied.append(f"{func}: to the host, {tuple(source.shape)}")
            self.waits(self.current.until)
        with unset_fake_temporarily():
            known = self._known(source)
            return args[0] if source is not args[0] else known.to(kwargs.get("dtype") or source.dtype)

    def _runs(self, func: Any, given: list[Any], found: list[Any], result: Any, args: Any, kwargs: Any) -> None:
        """A kernel, unless the result is a view."""
        returns = func._schema.returns
        views = [one.alias_info is not None and not one.alias_info.is_write for one in returns]
        if func.namespace == "prim" or (views and all(views)):
            return
        rates = self.rates
        flops = flop_registry[func._overloadpacket](*args, **kwargs, out_val=result) if func._overloadpacket in flop_registry else 0
        kind = str(given[0].dtype if given else torch.float32).removeprefix("torch.")
        nbytes = sum(value.numel() * value.element_size() for value in (*given, *found))
        took = max(flops / rates.flops.get(kind, rates.flops["float32"]), nbytes / rates.bytes_per_second, rates.kernel_seconds)
        self.host += rates.host_seconds
        self.current.until = max(self.host, self.current.until) + took

    def _message(self, func: Any, name: str, args: Any, kwargs: Any, given: list[Any]) -> Any:
        wrong = [value for value in given if value.device != self.device]
        if wrong and name not in ("wait_tensor", "barrier"):
            self.wrong.append(f"{name}: a tensor on {wrong[0].device}")
            raise RuntimeError(f"No backend type associated with device type {wrong[0].device.type}")
        result = func(*args, **kwargs)
        self.host += self.rates.host_seconds
        what = OPERATIONS.get(name, name)
        nbytes = max((value.numel() * value.element_size() for value in given), default=4)
        group = next((dist.ProcessGroup.unbox(one) for one in args if "ProcessGroup" in str(one)), None)
        count = self.ranks if group is None else group.size()
        self.messages.append((what, nbytes))
        self.sends.until = max(self.host, self.sends.until, self.current.until) + self.rates.messages(what, nbytes, count)
        names = [one.name for one in func._schema.arguments]
        said = dict(zip(names, args)) | kwargs  # a call leaves out what is as by default: that nobody waits
        asynchronous = "async_op" in names and said.get("async_op", True)
        if not asynchronous:
            self.current.wait_stream(self.sends)
        if name == "barrier":
            self.waits()
        return result

    def summed(self, plain: Any) -> Any:
        """``all_reduce`` in the place of the plain one: numbers that are known are the same on all ranks, and its handle lets the
        stream wait for the message."""
        class Work:
            def wait(_) -> None:
                self.current.wait_stream(self.sends)

        def all_reduce(value: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
            found = plain(value, op, group=group, async_op=async_op)
            if id(value) in self.numbers:
                with unset_fake_temporarily():
                    times = 1 if op == dist.ReduceOp.MAX else dist.get_world_size(group)
                    self.numbers[id(value)] = value, self.numbers[id(value)][1] * times
            return Work() if async_op else found

        return all_reduce

    # ---- a few numbers -----------------------------------------------------------------------------------------------
    def _known(self, value: Any) -> torch.Tensor:
        if id(value) in self.numbers:
            return self.numbers[id(value)][1]
        return torch.zeros(tuple(value.shape), dtype=value.dtype)

    def _note(self, func: Any, args: Any, kwargs: Any, given: list[Any], found: list[Any]) -> None:
        """Keep the numbers of small tensors that are made from numbers that are known."""
        if not found or not given or max(value.numel() for value in (*given, *found)) > FEW:
            return
        if not all(id(value) in self.numbers or not isinstance(value, FakeTensor) for value in given):
            return

        def real(value: torch.Tensor) -> torch.Tensor:
            return self.numbers[id(value)][1] if id(value) in self.numbers else value.cpu()

        with unset_fake_temporarily():
            said = {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory")}
            values = func(*tree_map_only(torch.Tensor, real, args), **tree_map_only(torch.Tensor, real, said))
            values = [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]
            self.numbers |= {id(one): (one, value) for one, value in zip(found, values, strict=True)}


def _cpu(options: Any) -> bool:
    return options.get("device") is not None and torch.device(options["device"]).type == "cpu"


@contextlib.contextmanager
def fake_cuda(
    rank: int = 0, ranks: int = 8, rates: Rates | None = None, nvml: bool = False, mail: dist.Store | None = None
) -> Iterator[FakeCuda]:
    """A context of a program that was started with `fake_cudart.c` loaded: this process is a rank of ``ranks`` with a device of
    a node of eight, and tensors on it have no numbers. ``rates``: streams and events go by a clock of these. ``nvml``: clocks and
    power are known. ``mail``: where stages of a pipeline leave the shapes that they send each other."""
    cuda, start = FakeCuda(rank, ranks, rates), dist.init_process_group

    def started(backend: str | None = None, **options: Any) -> None:
        assert backend == "nccl", backend
        start("cuda:fake", store=FakeStore(), rank=rank, world_size=ranks)

    def gathered(every: list[Any], one: Any, group: Any = None) -> None:
        every[:] = [one] * len(every)

    posted: dict[str, int] = {}

    def key(source: int, target: int) -> str:
        way = f"{source}-{target}"
        posted[way] = posted.get(way, 0) + 1
        return f"{way}-{posted[way]}"

    def sent(objects: list[Any], dst: int | None = None, **_: Any) -> None:
        assert mail is not None and dst is not None
        mail.set(key(rank, dst), pickle.dumps(objects))

    def received(objects: list[Any], src: int | None = None, **_: Any) -> None:
        assert mail is not None and src is not None
        objects[:] = pickle.loads(mail.get(key(src, rank)))

    def unknown(*_: Any) -> int:
        raise ModuleNotFoundError("pynvml does not seem to be installed")

    clocked: dict[str, Any] = {
        "Stream": cuda.stream, "Event": cuda.event, "stream": lambda stream: stream, "_sleep": cuda.sleep,
        "current_stream": lambda device=None: cuda.current, "default_stream": lambda device=None: cuda.first,
        "synchronize": lambda device=None: cuda.waits(),
        "clock_rate": (lambda device=None: 1980) if nvml else unknown,
        "power_draw": (lambda device=None: 123_000) if nvml else unknown,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        said = {"RANK": str(rank), "LOCAL_RANK": str(rank % 8), "WORLD_SIZE": str(ranks)}
        stack.enter_context(mock.patch.dict("os.environ", said))
        for name, value in clocked.items() if rates is not None else ():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        instead = {
            "init_process_group": started, "all_reduce": cuda.summed(dist.all_reduce), "send_object_list": sent,
            "recv_object_list": received, "all_gather_object": gathered,
        }  # fmt: skip
        for name, value in instead.items():
            stack.enter_context(mock.patch.object(dist, name, value))
        stack.enter_context(mock.patch.object(FakeTensorMode, "__deepcopy__", lambda mode, memo: mode, create=True))
        stack.enter_context(mock.patch.object(torch.utils, "swap_tensors", _swapped))
        stack.enter_context(mock.patch.object(torch.__future__, "get_swap_module_params_on_conversion", lambda: True))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(cuda)
        try:
            yield cuda
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def _swapped(first: Any, second: Any) -> None:
    """Give two tensors without numbers each other's device, as ``.data =`` does with tensors that have numbers."""
    first.__class__, second.__class__ = second.__class__, first.__class__
    first.__dict__, second.__dict__ = second.__dict__, first.__dict__
    torch._C._swap_tensor_impl(first, second)
