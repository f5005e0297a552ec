"""Started by mpirun: trains and evaluates with partial values that an all-reduce sums; on rank 0 prints a JSON line a strategy."""

import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import taskflow  # isort: skip
from partial_sums import case, feeds, results, summing

from taskflow.mapper import Exchange, SyncAlgorithm
from taskflow.tasks.topic import Purpose

transport = taskflow.connect(watchdog_seconds=60)
for seed in range(int(sys.argv[1])):
    processors = transport.size + seed % 3  # sometimes a rank drives several
    graph, strategy = case(seed, processors, SyncAlgorithm.COLLECTIVE)
    strategy = replace(strategy, exchange=list(Exchange)[seed % 2])  # then what is cut anew goes as collectives, too
    run = taskflow.Executor(graph, strategy, taskflow.SGD(0.1, momentum=0.9), transport=transport, seed=3)
    found = results(run)
    tasks = run.program("train").graph
    ahead, back = (len(summing(tasks, purpose)) for purpose in (Purpose.PARTIAL, Purpose.GRADIENT))
    evaluated = run.evaluate(feeds(9, str(graph.dtype)))
    run.close()
    if transport.rank == 0:
        print(json.dumps({"seed": seed, "processors": processors, "ahead": ahead, "back": back, "evaluated": evaluated, **found}))
transport.close()
