"""Started by mpirun: trains a Llama whose keys go around a ring under the plans of ``argv``, and prints, on rank 0, one JSON line
a plan."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import taskflow  # isort: skip
from rings import STEPS, llama, tokens

from taskflow.mapper import choose

transport = taskflow.connect(watchdog_seconds=60)
for plan in sys.argv[1:]:
    graph = llama()
    strategy = choose(plan, graph, taskflow.host(transport.size))[0]
    run = taskflow.Executor(graph, strategy, taskflow.SGD(0.1, momentum=0.9), transport=transport, seed=3, clip_norm=1.0)
    losses = [run.train(tokens(graph, step)) for step in range(STEPS)]
    run.close()
    if transport.rank == 0:
        print(json.dumps({"case": plan, "losses": losses}))
transport.close()
