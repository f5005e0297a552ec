"""Started by mpirun: trains with updates by shares under every rule, and prints, on rank 0, one JSON line a case."""

import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import taskflow  # isort: skip
from language_model import feeds, model

from taskflow.machine import load_machine
from taskflow.mapper import DataParallel, map_graph
from taskflow.mapper.notation import parse_sync
from taskflow.tasks.task import Update

RULES = {"sgd": taskflow.SGD(0.5), "momentum": taskflow.SGD(0.5, momentum=0.9), "adam": taskflow.Adam(0.01)}
transport = taskflow.connect(watchdog_seconds=60)
processors = int(sys.argv[1])
for case in sys.argv[2:]:
    name, sync, clip = case.split(":")
    graph = model()
    strategy = map_graph(DataParallel(), graph, load_machine("k80", processors))
    strategy = replace(strategy, syncs=dict.fromkeys(strategy.syncs, parse_sync(sync, "sync")))
    run = taskflow.Executor(graph, strategy, RULES[name], transport=transport, seed=3, clip_norm=float(clip) if clip else None)
    losses = [run.train(feeds(step)) for step in range(5)]
    tasks = run.program("train").graph
    mine = [
        sum(tasks.buffers[b].nbytes for b in task.work.state)
        for task in tasks if isinstance(task.work, Update) and run.placement.rank(task.processor) == transport.rank
    ]
    state = transport.gather(sum(mine))
    parameters = run.parameters()
    run.close()
    if transport.rank == 0:
        total = sum(float(abs(v).sum()) for v in parameters.values())
        print(json.dumps({"case": case, "losses": losses, "parameters": total, "state": state}))
transport.close()
