"""torchrun ... train_beside.py NETWORK PARALLEL STEPS: trains an exported network beside PyTorch alone. Each rank writes a JSON
file: the losses of both, and how far its weights are from those of PyTorch alone. Of every other batch a rank has its replica's
samples alone."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path.cwd()), str(Path(__file__).parent)]
import networks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

torch.set_num_threads(1)
name, steps = sys.argv[1], int(sys.argv[3])
wanted, alone = networks.trained_alone(name, steps)
torch.manual_seed(0 if int(os.environ["RANK"]) == 0 else 1)  # the others get rank 0's
model = importlib.import_module(sys.argv[2]).parallelize(networks.MODULES[name](), "cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
generator = torch.Generator().manual_seed(1)
losses = []
for number, expected in enumerate(wanted):
    inputs, labels = networks.batch_of(name, generator)
    own = number % 2 == 1  # every other step each rank has its replica's samples alone
    if own:
        *inputs, labels = (value.chunk(model.replicas)[model.replica] for value in (*inputs, labels))
    optimizer.zero_grad()
    losses.append((model.step(networks.loss, inputs, labels, own=own), expected))
    optimizer.step()
weights, theirs = model.state_dict(), alone.state_dict()
worst = max((weights[key] - theirs[key]).abs().max().item() for key in weights if weights[key].is_floating_point())
Path(f"rank{dist.get_rank()}.json").write_text(json.dumps({"losses": losses, "weights": len(weights), "worst": worst}))
dist.destroy_process_group()
