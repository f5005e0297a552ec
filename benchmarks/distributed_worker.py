"""One rank of a side of benchmarks/distributed.py: a network on two ranks, which takes a training step when told to.

    mpirun -n 2 python distributed_worker.py SIDE MODEL BATCH PRESET MACHINE BUDGET

SIDE: data or search (taskflow), or ddp (PyTorch's DistributedDataParallel over gloo). BATCH: of both ranks together. The first
rank reads numbers of steps from standard input and answers as training_worker.py does. A step is timed from when all ranks
are ready to when all have ended.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import replace
from time import perf_counter, process_time, sleep

import training_worker as single

import taskflow
from taskflow.machine import load_machine
from taskflow.models import build, find
from taskflow.runtime.job import launcher
from taskflow.training.data import random_feeds
from taskflow.training.program import plan

RATE = single.RATE


class Ours:
    """taskflow's ranks."""

    def __init__(self, side: str, name: str, batch: int, preset: str, machine: str, budget: str) -> None:
        self.transport = taskflow.connect(processors=2)
        self.rank = self.transport.rank
        graph = build(find(name)[0], batch, preset=preset)
        cluster, rule = load_machine(machine, self.transport.size), taskflow.SGD(RATE)
        strategy, mapper = plan(side, graph, cluster, self.transport, rule=rule, budget=budget)
        self.batch = random_feeds(graph)
        self.began = single.resident_bytes("VmRSS")
        self.run = taskflow.Executor(graph, strategy, rule, transport=self.transport, machine=cluster, mapper=mapper)
        self.how = f"taskflow, {side}, {self.run.kernels.name} kernels, {self.run.moved_bytes_per_step() / 1e6:.1f} MB a step"

    def step(self) -> None:
        """One step."""
        self.run.train(self.batch)

    def meet(self) -> None:
        """Until all ranks are here."""
        self.transport.barrier()

    def total(self, value: int) -> int:
        """The sum over both ranks, on rank 0."""
        return sum(self.transport.gather(value) or ())


class Theirs:
    """PyTorch's ranks, each with its half of the batch."""

    def __init__(self, name: str, batch: int, preset: str) -> None:
        import torch
        import torch.distributed as distributed
        import torch_networks

        started = launcher()
        assert started is not None, "start it with mpirun -n 2"
        self._distributed, self._torch = distributed, torch
        torch.set_num_threads(1)
        torch.manual_seed(0)
        distributed.init_process_group("gloo", rank=started.rank, world_size=started.size)
        self.rank = started.rank
        known, model = find(name)
        share = batch // started.size
        config = replace(getattr(model, preset), batch=share)
        whole = random_feeds(build(known, batch, preset=preset))
        mine = slice(self.rank * share, (self.rank + 1) * share)
        self.given = {key: torch.from_numpy(value[mine].copy()) for key, value in whole.items()}
        self.began = single.resident_bytes("VmRSS")
        self.net = torch.nn.parallel.DistributedDataParallel(torch_networks.NETWORKS[known](config))
        self.rule = torch.optim.SGD(self.net.parameters(), lr=RATE)
        self.how = f"torch {torch.__version__}, DistributedDataParallel, gloo, {share} samples a rank"

    def step(self) -> None:
        """One step."""
        loss = self.net(**self.given)
        self.rule.zero_grad()
        loss.backward()
        self.rule.step()
        float(loss)

    def meet(self) -> None:
        """Until all ranks are here."""
        self._distributed.barrier()

    def total(self, value: int) -> int:
        """The sum over both ranks."""
        tensor = self._torch.tensor(value)
        self._distributed.all_reduce(tensor)
        return int(tensor)


class Orders:
    """What rank 0 is told, told on to rank 1, which sleeps in the kernel until then: a rank that polls meanwhile would take
    time from the side whose turn it is."""

    def __init__(self, first: bool) -> None:
        self._first = first
        self._socket = socket.socket()
        address = "127.0.0.1", int(os.environ["ORDERS_PORT"])
        if first:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
            self._socket.listen(1)
            self._socket, _ = self._socket.accept()
        else:
            while self._socket.connect_ex(address):
                self._socket.close()
                sleep(0.05)
                self._socket = socket.socket()

    def next(self) -> int:
        """How many steps to take; 0 at the end."""
        if not self._first:
            return int(self._socket.recv(16) or b"0")
        count = int(sys.stdin.readline().strip() or 0)
        self._socket.sendall(str(count).encode())
        return count


def main(side: str, name: str, batch: int, preset: str, machine: str, budget: str) -> None:
    """Build the network, take two steps to warm up, then do as told."""
    job: Ours | Theirs = Theirs(name, batch, preset) if side == "ddp" else Ours(side, name, batch, preset, machine, budget)
    first = job.rank == 0
    for _ in range(2):
        job.step()
    single.forget_peak()
    if first:
        print(json.dumps({"ready": job.how}), flush=True)
    orders = Orders(first)
    while count := orders.next():
        seconds, cpu_seconds = [], []
        for _ in range(count):
            job.meet()
            start, busy = perf_counter(), process_time()
            job.step()
            job.meet()
            seconds.append(perf_counter() - start)
            cpu_seconds.append(process_time() - busy)
        peak = job.total(single.resident_bytes("VmHWM") - job.began)
        if first:
            print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_bytes": peak}), flush=True)


if __name__ == "__main__":
    side, name, batch, preset, machine, budget = sys.argv[1:]
    os.environ.pop("OPENBLAS_CORETYPE", None)
    main(side, name, int(batch), preset, machine, budget)
