"""Started under mpirun: trains a small language model on the GPU's kernels (compiled for the host, or a GPU's) and prints the
losses of rank 0 and how messages went."""

import json
import sys
from pathlib import Path
from random import Random

for room in (".", "gpu"):
    sys.path.insert(0, str(Path(__file__).parents[1] / room))

from language_model import feeds, model, random_strategy  # noqa: E402

from taskflow.rules import SGD  # noqa: E402
from taskflow.runtime.executor import Executor  # noqa: E402
from taskflow.runtime.launch import connect  # noqa: E402


def main(which: str, processors: int) -> None:
    if which in ("host", "recorded"):
        from host_device import host_kernels

        kernels = host_kernels(records=which == "recorded")
    else:
        from taskflow.kernels import kernels_on

        kernels = kernels_on(which)
    transport = connect(watchdog_seconds=60)
    graph = model()
    strategy = random_strategy(graph, processors, Random(processors))
    run = Executor(graph, strategy, SGD(0.5, momentum=0.9), seed=3, clip_norm=1.0, kernels=kernels, transport=transport)
    losses = [run.train(feeds(step)) for step in range(4)]
    losses.append(run.evaluate(feeds(9)))
    described, weights = run.describe(), run.parameters()
    recording = run.program("train").recording
    recorded = transport.gather(0 if recording is None else recording.recorded)
    assert which != "recorded" or recorded is None or sum(recorded) > 0
    run.close()
    if transport.rank == 0:
        assert weights is not None
        print(json.dumps({"losses": losses, "describe": described, "sum": sum(float(w.sum()) for w in weights.values())}))
    transport.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
