"""Started by mpirun: trains under many strategies and prints, on rank 0, one JSON line a strategy."""

import json
import sys
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[2]))

import taskflow  # isort: skip
from language_model import CONFIG, ONE_STEP, feeds, model, random_strategy

from taskflow.machine import ring_bytes
from taskflow.runtime.weights import aliased_memory as share_weights

if "one-copy" in sys.argv:
    share_weights.SMALLEST_BYTES = 1
transport = taskflow.connect(watchdog_seconds=60)
for seed in range(int(sys.argv[1])):
    config = (CONFIG, ONE_STEP)[seed % 2]
    dtype = ("float64", "float32")[seed // 2 % 2]
    graph = model(dtype, config)
    processors = transport.size + seed % 3  # sometimes a rank drives several
    strategy = random_strategy(graph, processors, Random(seed))
    run = taskflow.Executor(
        graph, strategy, taskflow.SGD(0.5, momentum=0.9), transport=transport, seed=3, clip_norm=1.0
    )
    run.program("train")
    before = transport.bytes_sent
    losses = [run.train(feeds(step, config)) for step in range(5)]
    sent = transport.gather(transport.bytes_sent - before)
    planned = run.moved_bytes_per_step()
    parameters = run.parameters()
    lent = transport.gather(run.kept.lent_nbytes)
    run.close()
    if transport.rank == 0:
        graph_bytes = 0
        for t in run.program("train").graph:
            ranks = len({run.placement.rank(p) for p in t.processors})
            if t.kind.value == "collective":
                halves = t.work.halves
                graph_bytes += ring_bytes(ranks, t.nbytes // ring_bytes(len(t.processors), 1, halves), halves)
            elif ranks > 1:
                graph_bytes += t.nbytes
        total = sum(float(abs(v).sum()) for v in parameters.values())
        print(json.dumps({
            "seed": seed, "processors": processors, "losses": losses, "sent": sum(sent), "planned": 5 * planned,
            "graph": 5 * graph_bytes, "parameters": total, "lent": sum(lent),
        }))
transport.close()
