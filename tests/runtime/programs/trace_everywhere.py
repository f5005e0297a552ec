"""Trace steps of a language model under MPI, each rank by a clock of its own: FILE SKEW_SECONDS DRIFT MAPPER."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[2]))

from language_model import CONFIG, feeds, model

import taskflow

path, skew, drift, mapper = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
transport = taskflow.connect()
began = perf_counter()


def clock() -> float:
    """Ahead of rank 0's by ``skew`` a rank, and faster."""
    return perf_counter() + transport.rank * (skew + drift * (perf_counter() - began))


graph, machine = model("float64", CONFIG), taskflow.host(transport.size)
strategy, chosen = taskflow.choose(mapper, graph, machine)
run = taskflow.Executor(graph, strategy, taskflow.SGD(0.1), transport=transport, machine=machine, mapper=chosen)
tracer = run.trace(path, range(2, 5), clock=clock)
for step in range(7):
    written_before = tracer.written
    run.train(feeds(step, CONFIG))
    assert tracer.written == (step >= 4) and (not written_before or step > 4)
tracer.close()
run.close()
if transport.rank == 0:
    print(json.dumps({"tasks": len(run.program("train").graph), "began": began}))
transport.close()
