"""Started by mpirun: trains a small decoder in 16-bit floats under the plans of `precisions.CASES` whose numbers
are its arguments, and prints, on rank 0, one JSON line a plan."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import taskflow  # isort: skip
from pipelines import tokens
from precisions import executor

transport = taskflow.connect(watchdog_seconds=60)
for number in map(int, sys.argv[1:]):
    run = executor(number, transport.size, transport)
    losses = [run.train(tokens(step)) for step in range(4)]
    weights, masters = run.parameters(), dict(run.gather(run.master_holdings.values()))
    told = transport.gather((run.state.skipped, 0.0 if run.scaler is None else run.scaler.scale))
    run.close()
    if transport.rank == 0:
        rounded = all((masters[name].astype(value.dtype) == value).all() for name, value in weights.items())
        total = sum(float(abs(value).sum()) for value in masters.values())
        print(json.dumps({"losses": losses, "masters": total, "rounded": rounded, "told": told}))
transport.close()
