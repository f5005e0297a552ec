"""torchrun ... train_elastic.py STEPS LOST: trains an exported Llama with Adam under the plan for as many ranks as there are, from
its newest checkpoint, and notes each step's loss. At step LOST the last of four ranks is killed, or, where KEEP_OR_LOSE says which,
the one that it says to lose, together with its agent."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from pathlib import Path

sys.path[:0] = [str(Path.cwd()), str(Path(__file__).parent)]
import networks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

torch.set_num_threads(1)
steps, lost = int(sys.argv[1]), int(sys.argv[2])
ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
agent = os.environ.get("KEEP_OR_LOSE")
plan = importlib.import_module(f"parallel{ranks}")
torch.manual_seed(0)
model = plan.parallelize(networks.MODULES["llama"](), "cpu")
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
first = plan.resume(model, optimizer, "saved")
for step in range(first, steps):
    if step == lost and (agent == "lose" if agent else ranks == 4 and rank == ranks - 1):
        if agent:
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    tokens = torch.randint(networks.WORDS, (12, networks.STEPS + 1), generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    loss = model.step(networks.loss, [tokens[:, :-1]], tokens[:, 1:])
    optimizer.step()
    if rank == 0:
        with open("notes", "a") as file:
            file.write(json.dumps([ranks, step, loss]) + "\n")
    if step % 3 == 2:
        plan.save(model, optimizer, "saved", step + 1)
dist.destroy_process_group()
