"""torchrun ... train_beside.py NETWORK PARALLEL STEPS: trains an exported network beside PyTorch alone. Each rank writes a JSON
file: the losses of both, and how far its weights are from those of PyTorch alone."""

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
torch.manual_seed(0)
alone = networks.MODULES[name]()
torch.manual_seed(0 if int(os.environ["RANK"]) == 0 else 1)  # the others get rank 0's
model = importlib.import_module(sys.argv[2]).parallelize(networks.MODULES[name](), "cpu")
ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, alone))
generator = torch.Generator().manual_seed(1)
losses = []
for _ in range(steps):
    inputs, labels = networks.batch_of(name, generator)
    theirs.zero_grad()
    expected = networks.loss(alone(*inputs), labels)
    expected.backward()
    theirs.step()
    ours.zero_grad()
    losses.append((model.step(networks.loss, inputs, labels), expected.item()))
    ours.step()
weights, wanted = model.state_dict(), alone.state_dict()
worst = max((weights[key] - wanted[key]).abs().max().item() for key in weights if weights[key].is_floating_point())
Path(f"rank{dist.get_rank()}.json").write_text(json.dumps({"losses": losses, "weights": len(weights), "worst": worst}))
dist.destroy_process_group()
