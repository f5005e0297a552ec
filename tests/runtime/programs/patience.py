"""Rank 0 plans for longer than the watchdog's limit, which is the argument in seconds; the others wait for it patiently."""

import sys
import time

from taskflow.runtime.connecting import connect

limit = float(sys.argv[1])
transport = connect(watchdog_seconds=limit)
with transport.patient(60.0):
    transport.barrier()
    began = time.process_time()
    if transport.rank == 0:
        time.sleep(2 * limit)
    assert transport.broadcast("planned" if transport.rank == 0 else None) == "planned"
    used = time.process_time() - began  # a rank that polls without sleeping takes 2 * limit
    assert used < 0.05 * limit, f"rank {transport.rank} took {used:.3f} s of a core to wait"
assert transport._limit == limit
if transport.rank == 0:
    print("planned")
transport.barrier()
with transport.patient(limit / 10):
    assert transport._limit == limit, "patience never shortens the watchdog's limit"
transport.close()
