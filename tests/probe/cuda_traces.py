"""Traces as PyTorch's profiler writes them of a GPU (libkineto's names of fields), made of a predicted step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from taskflow.mapper import Strategy
from taskflow.optimizer.evaluate import Evaluator
from taskflow.probe.joined import OF_PURPOSE, owner_of
from taskflow.tasks import Compute, Kind, Task

MAIN, AUTOGRAD = 4242, 4301  # the host's threads: a GPU's backward pass has one of its own
COMPUTING, SENDING = 7, 20  # streams
HOST = 2.0  # microseconds that the host needs for a kernel, far less than the device
NAMES = {2: "AllReduce_Sum_f32_RING_LL", 1: "ReduceScatter_Sum_f32_RING_LL", 0: "SendRecv"}
SAID = {2: "allreduce", 1: "_reduce_scatter_base", 0: "alltoall_base"}


class CudaTrace:
    """Events of some steps of a rank, one after the other."""

    def __init__(self, rank: int, paths: frozenset[str]) -> None:
        self.rank, self.paths, self.events = rank, paths, list[dict[str, Any]]()
        self.host, self.number, self.sequence = 1e6, 0, 0
        self.of_node: dict[str, int] = {}

    def add(self, category: str, name: str, begin: float, took: float, thread: int, **args: Any) -> None:
        where = self.rank if category == "kernel" else MAIN
        event = {"ph": "X", "cat": category, "name": name, "pid": where, "tid": thread, "ts": begin, "dur": took, "args": args}
        self.events.append(event)

    def launched(self, begin: float, took: float, thread: int, stream: int, name: str, **more: Any) -> None:
        """A kernel, and the call that starts it, with the arrow between both."""
        self.number += 1
        category, call = ("cuda_driver", "cuLaunchKernelEx") if name.startswith("triton") else ("cuda_runtime", "cudaLaunchKernel")
        self.add(category, call, self.host, HOST / 2, thread, correlation=self.number)
        self.add("kernel", name, begin, took, stream, device=self.rank, context=1, stream=stream, correlation=self.number,
                 **{"External id": self.number}, **more)  # fmt: skip
        for phase, at, where in (("s", self.host, thread), ("f", begin, stream)):
            arrow = {"ph": phase, "id": self.number, "cat": "ac2g", "name": "ac2g", "pid": MAIN}
            self.events.append({**arrow, "tid": where, "ts": at})
        self.host += HOST

    def annotated(self, begin: float, name: str, thread: int) -> None:
        self.add("user_annotation", name, begin, self.host - begin, thread)

    def step(self, begin: float, tasks: list[tuple[float, float, Task]]) -> None:
        """Tasks of the rank, with begin and end in microseconds from the step's."""
        mark = self.host
        for low, high, task in sorted(tasks, key=lambda one: (one[0], one[2].number)):
            started, work = self.host, task.work
            if isinstance(work, Compute):
                self._computed(begin + low, high - low, work)
            elif task.kind is Kind.UPDATE:
                self.launched(begin + low, high - low, MAIN, COMPUTING, "multi_tensor_apply_kernel")
                self.annotated(started, "Optimizer.step#SGD.step", MAIN)
            elif task.kind.travels:
                self._sent(begin + low, high - low, task)
            else:
                self.launched(begin + low, high - low, MAIN, COMPUTING, "vectorized_elementwise_kernel")
                self.add("cpu_op", "aten::add", started, self.host - started, MAIN)
                if task.topic.purpose in OF_PURPOSE:
                    self.annotated(started, "FSDP::all_gather_copy_out ()", MAIN)
        self.events.append({"ph": "X", "cat": "user_annotation", "name": "taskflow::step", "pid": MAIN, "tid": MAIN, "ts": mark,
                            "dur": self.host - mark, "args": {}})  # fmt: skip

    def _computed(self, begin: float, took: float, work: Compute) -> None:
        started, name = self.host, work.node.name
        loss = work.node.operator.kind in ("cross_entropy", "mse_loss")
        path = "loss" if loss else owner_of(name, self.paths)
        if not work.backward:
            self.sequence += 1
            self.of_node[name] = self.sequence
            self.launched(begin, took, MAIN, COMPUTING, "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n")
            found = {"Sequence number": self.sequence, "Fwd thread id": 0}
            self.add("cpu_op", "aten::addmm", started, self.host - started, MAIN, **found)
            if path:
                self.annotated(started, f"taskflow::{path}", MAIN)
            return
        self.launched(begin, took, AUTOGRAD, COMPUTING, "triton_poi_fused_gelu_backward_0")
        found = {"Sequence number": self.of_node[name], "Fwd thread id": 1}
        self.add("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", started, self.host - started, AUTOGRAD, **found)

    def _sent(self, begin: float, took: float, task: Task) -> None:
        started, halves = self.host, getattr(task.work, "halves", 0) or 0
        owner = owner_of(str(task.topic.name or ""), self.paths)
        gathers = task.topic.purpose.name in ("UNSHARDED", "NEW_WEIGHTS")
        thread, name = (MAIN, "all_gather") if gathers else (AUTOGRAD, "post_backward_reduce")
        kernel = "AllGather_RING_LL" if gathers else NAMES[halves]
        said = "_allgather_base" if gathers else SAID[halves]
        args = {
            "Collective name": said, "dtype": "Float", "In msg nelems": task.nbytes // 4,
            "Group size": len(task.processors), "Process Group Name": "0", "Process Group Description": "default_pg",
        }  # fmt: skip
        self.launched(begin, took, thread, SENDING, f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)", **args)
        self.add("cpu_op", "record_param_comms", started, self.host - started, thread, **args)
        if task.topic.purpose in OF_PURPOSE:
            self.annotated(started, f"FSDP::{name} ({owner})", thread)
        else:
            self.annotated(started, "BroughtPieces", thread)

    def write(self, path: Path) -> str:
        about = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": self.rank}}
        path.write_text(json.dumps({**about, "traceEvents": self.events}))
        return str(path)


def trace_of(evaluator: Evaluator, strategy: Strategy, rank: int, paths: frozenset[str], path: Path, steps: int = 3) -> str:
    """Write the trace of some steps that a rank has run exactly as predicted, asked for by a host that is far ahead."""
    tasks, timeline = evaluator.evaluated(strategy)
    own = []
    for task in tasks.tasks:
        if rank in task.processors:
            span = timeline.spans[task.number]
            own.append((1e6 * (span.starts[-1] if span.starts else span.start), 1e6 * span.end, task))
    made = CudaTrace(rank, paths)
    for step in range(steps):
        made.step(2e6 + step * 1e6 * timeline.makespan, own)
    return made.write(path)
