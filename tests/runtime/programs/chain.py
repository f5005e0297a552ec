"""Ranks wait for each other, as the first argument says; the second is the watchdog's limit in seconds.

In "hang" each rank waits for the next and the last hangs; in "late" those nearer to it begin to wait later. In "cycle" the last
waits for the first. In "sum" one rank misses from a sum, since it waits for the last.
"""

import sys
import time

import numpy as np

from taskflow.runtime.connecting import connect

case, limit = sys.argv[1], float(sys.argv[2])
transport = connect(watchdog_seconds=limit)
transport.barrier()
if transport.rank == 0:
    print("ready", flush=True)
transport.barrier()
last = transport.size - 1
if transport.rank == last and case != "cycle":
    time.sleep(60)
if case == "late":
    time.sleep(0.5 * transport.rank)
if case == "sum" and transport.rank < last - 1:
    total = transport.all_reduce(np.ones(4), range(last))
    total.start()
    transport.wait(total, "sum of conv1")
receive = transport.receiver(np.zeros(4), (transport.rank + 1) % transport.size, 5)
receive.start()
transport.wait(receive, f"task {transport.rank}")
