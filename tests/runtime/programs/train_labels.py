"""Started by mpirun: trains the networks whose numbers are its arguments (`ignored_labels.rank_case`); rank 0 prints a JSON line
for each."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import taskflow  # isort: skip
from ignored_labels import batch, rank_case

transport = taskflow.connect(watchdog_seconds=60)
for seed in map(int, sys.argv[1:]):
    graph, strategy = rank_case(seed, transport.size)
    run = taskflow.Executor(graph, strategy, taskflow.SGD(0.3), transport=transport, seed=3)
    losses = [run.train(batch(graph, seed, step)) for step in range(3)]
    parameters = run.parameters()
    run.close()
    if transport.rank == 0:
        print(json.dumps({"case": seed, "losses": losses, "parameters": sum(float(abs(v).sum()) for v in parameters.values())}))
transport.close()
