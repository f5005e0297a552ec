"""Started by mpirun: trains a small decoder under random pipelines, and networks under `HYBRIDS`, and prints, on rank 0, one
JSON line a plan.

With a second argument ``shares`` they keep gradients or weights as shares. With ``kill`` the last rank is killed in the middle of
the third step of a pipeline; rank 0 says "training" after the second step.
"""

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[2]))

import taskflow  # isort: skip
from pipelines import HYBRIDS, decoder, fitting, hybrid, random_shares, tokens, words

from taskflow.mapper import choose
from taskflow.runtime.program.bind import bind

transport = taskflow.connect(watchdog_seconds=60)


def bind_killed(task, storage, kernels, state):
    """As bind, but the last rank dies in the backward task of its second micro-batch in the third step."""
    action = bind(task, storage, kernels, state)
    if transport.rank != transport.size - 1 or not str(task).startswith("ln_f[1] backward"):
        return action

    def dying():
        if state.step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        action()

    return dying


if "kill" in sys.argv:
    graph = decoder()
    run = taskflow.Executor(
        graph, choose(f"p{transport.size} mb1", graph, taskflow.host(transport.size))[0], taskflow.SGD(0.1), transport=transport,
        binder=bind_killed,
    )
    for step in range(10**6):
        run.train(tokens(step))
        if step == 1 and transport.rank == 0:
            print("training", flush=True)
shares = "shares" in sys.argv
cases = [(f"random {seed}", decoder(), tokens) for seed in range(int(sys.argv[1]))]
cases += [(text, hybrid(text)[0], None) for text in HYBRIDS.get(transport.size, ()) if not shares]
for name, graph, batch in cases:
    random = Random(0 if batch is None else int(name.split()[1]))
    strategy = hybrid(name)[1] if batch is None else fitting(graph, transport.size, random)
    batch = batch or partial(words, graph)
    if shares:
        strategy = random_shares(graph, strategy, random)
    run = taskflow.Executor(graph, strategy, taskflow.SGD(0.1, momentum=0.9), transport=transport, seed=3, clip_norm=1.0)
    losses = [run.train(batch(step)) for step in range(3)]
    parameters = run.parameters()
    run.close()
    if transport.rank == 0:
        print(json.dumps({"case": name, "losses": losses, "parameters": sum(float(abs(v).sum()) for v in parameters.values())}))
transport.close()
