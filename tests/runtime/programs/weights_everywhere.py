"""Started by mpirun: trains, saves weights and a checkpoint, or goes on from them, and predicts; prints JSON on rank 0.

Arguments: "save" or "load", a folder, and the seed of the strategy.
"""

import json
import sys
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[2]))

import taskflow  # isort: skip
import numpy as np
from inference_model import data, network
from language_model import random_strategy

from taskflow.training import load_checkpoint, load_weights, save_checkpoint, save_weights

what, folder, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
transport = taskflow.connect(watchdog_seconds=60)
random = Random(seed)
graph = network()
strategy = random_strategy(graph, transport.size + 1, random)  # one rank drives two
run = taskflow.Executor(graph, strategy, taskflow.Adam(0.01), transport=transport, seed=3)
said = None
if what == "save":
    losses = [run.train(data(step)) for step in range(3)]
    save_weights(run, folder / "weights.safetensors")
    save_checkpoint(run, folder / "checkpoint.safetensors", position={"batch": 3})
    losses += [run.train(data(step)) for step in range(3, 6)]
else:
    said = load_checkpoint(run, folder / "checkpoint.safetensors").position
    losses = [run.train(data(step)) for step in range(said["batch"], 6)]
images = data(100)["images"]
small = network(batch=4)
user = taskflow.Executor(small, random_strategy(small, transport.size + 2, random), weights=run)
mine, all_have = run.predict({"images": images}), user.predict({"images": images}, everywhere=True)
if transport.rank == 0:
    assert mine is not None
    np.testing.assert_allclose(all_have, mine, rtol=1e-10)
else:
    assert mine is None
assert len(set(transport.broadcast(transport.gather(all_have.tobytes())))) == 1
alone = taskflow.Executor(small, random_strategy(small, transport.size, random), transport=transport)
load_weights(alone, folder / "weights.safetensors")
errors = []
try:
    load_weights(alone, folder / "nothing.safetensors")
except FileNotFoundError as error:
    errors.append(str(error))
before = alone.predict({"images": images}, everywhere=True)
errors = transport.gather(errors)
if transport.rank == 0:
    print(json.dumps({
        "losses": losses, "scores": all_have.tolist(), "before": before.tolist(), "position": said,
        "errors": [len(e) for e in errors], "mine": mine.tolist(),
    }))
run.close()
user.close()
alone.close()
transport.close()
