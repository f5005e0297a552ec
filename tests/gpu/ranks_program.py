"""Started under mpirun: trains a small language model on the GPU's kernels (compiled for the host, or a GPU's) and prints the
losses of rank 0 and how messages went."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

for room in (".", "gpu"):
    sys.path.insert(0, str(Path(__file__).parents[1] / room))

import numpy as np  # noqa: E402
import partial_sums  # noqa: E402
from language_model import feeds, model, random_strategy  # noqa: E402
from pipelines import GPT, fitting, tokens  # noqa: E402

from taskflow.loss_scaling import LossScaling  # noqa: E402
from taskflow.mapper import SyncAlgorithm  # noqa: E402
from taskflow.mapper.notation import parse_sync  # noqa: E402
from taskflow.models.gpt import gpt  # noqa: E402
from taskflow.rules import SGD  # noqa: E402
from taskflow.runtime.connecting import connect  # noqa: E402
from taskflow.runtime.executor import Executor  # noqa: E402
from taskflow.runtime.program import graph_capture as recording  # noqa: E402
from taskflow.runtime.transport.nccl import NCCLShares  # noqa: E402
from taskflow.tasks import AllReduce  # noqa: E402


def main(which: str, processors: int, sync: str) -> None:
    if which in ("host", "recorded", "nccl"):
        from host_device import HostDevice, host_kernels

        kernels = host_kernels(records=which == "recorded")
        recording.LEAST = 2  # this small model has no longer runs between its messages on four ranks
        if which == "nccl":
            import fake_nccl

            fake_nccl.install(kernels.device)
            HostDevice.identity = property(lambda self: str(os.getpid()))  # type: ignore[assignment]
    else:
        from taskflow.kernels import kernels_on

        kernels = kernels_on(which)
    transport = connect(watchdog_seconds=60)
    graph, batch = model(), feeds
    strategy = random_strategy(graph, processors, Random(processors))
    scaling = None
    if sync in ("bfloat16", "float16"):  # a decoder, cut by heads and hidden units too, so that partial values are added up
        graph, batch = gpt(replace(GPT, layers=1), sync), tokens
        strategy = replace(fitting(graph, processors, Random(9)), sums=SyncAlgorithm.COLLECTIVE)
        scaling = LossScaling(2.0**40, backoff=2.0**-10)
    elif sync.startswith("sums "):  # a network with batch normalisations, cut by samples
        (graph, strategy), batch = partial_sums.case(0, processors, SyncAlgorithm(sync.split()[1])), partial_sums.feeds
    elif sync:
        strategy = replace(strategy, syncs=dict.fromkeys(strategy.syncs, parse_sync(sync, "sync")))
    run = Executor(
        graph, strategy, SGD(0.5, momentum=0.9), seed=3, clip_norm=1.0, kernels=kernels, transport=transport, loss_scaling=scaling,
    )
    losses = [run.train(batch(step)) for step in range(4)]
    losses.append(run.evaluate(batch(9)))
    described, weights = run.describe(), run.parameters()
    made = run.program("train").recording
    recorded = transport.gather(0 if made is None else made.recorded)
    assert which != "recorded" or recorded is None or sum(recorded) > 0
    channels = run.program("train")._channels.values()
    even = sorted({channel.even for channel in channels if isinstance(channel, NCCLShares)})
    tasks = run.program("train").graph
    narrow = sum(isinstance(t.work, AllReduce) and tasks.buffers[t.reads[0].buffer].dtype.itemsize == 2 for t in tasks)
    run.close()
    if transport.rank == 0:
        assert weights is not None
        total = sum(float(w.sum(dtype=np.float64)) for w in weights.values())
        row = {"losses": losses, "describe": described, "sum": total, "even": even, "skipped": run.state.skipped}
        print(json.dumps(row | {"narrow sums": narrow}))
    transport.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
