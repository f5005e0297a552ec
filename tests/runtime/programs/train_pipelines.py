"""Started by mpirun: trains the cases that its arguments name (`pipelines.rank_case`), and prints, on rank 0, one JSON line a case.

With ``kill`` as its only argument the last rank is killed in the middle of the third step of a pipeline; rank 0 says
"training" after the second step.
"""

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import taskflow  # isort: skip
from pipelines import decoder, rank_case, tokens

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


if sys.argv[1:] == ["kill"]:
    graph = decoder()
    run = taskflow.Executor(
        graph, choose(f"p{transport.size} mb1", graph, taskflow.host(transport.size))[0], taskflow.SGD(0.1), transport=transport,
        binder=bind_killed,
    )
    for step in range(10**6):
        run.train(tokens(step))
        if step == 1 and transport.rank == 0:
            print("training", flush=True)
for name in sys.argv[1:]:
    graph, strategy, batch = rank_case(name, transport.size)
    run = taskflow.Executor(graph, strategy, taskflow.SGD(0.1, momentum=0.9), transport=transport, seed=3, clip_norm=1.0)
    losses = [run.train(batch(step)) for step in range(3)]
    parameters = run.parameters()
    run.close()
    if transport.rank == 0:
        print(json.dumps({"case": name, "losses": losses, "parameters": sum(float(abs(v).sum()) for v in parameters.values())}))
transport.close()
