"""Run under mpirun by test_mpi: random programs, with as many processors as ranks and with more, against the oracle."""

import sys

from task_oracle import compare

import taskflow

transport = taskflow.connect(watchdog_seconds=60)
replays = 0
for seed in range(int(sys.argv[1])):
    runner = compare(seed, transport.size + seed % 3, transport, changing=seed % 4 == 3)
    replays += runner.step.replays
    runner.tasks.close()
if transport.rank == 0:
    print(f"replays {replays} messages")
transport.close()
