"""Rank 1 ends, as the first argument says, before it connects, so many seconds (the second argument) after it has begun. Where the
others connect at once, they are there before. Each rank says "starts" first."""

import ctypes
import os
import signal
import sys
import time

from taskflow.runtime.connecting import connect
from taskflow.runtime.job.launch import launcher

case, seconds = sys.argv[1], float(sys.argv[2])
rank = launcher().rank
if rank == 0:
    os.write(1, b"starts\n")  # at once, so that no other rank's words come between it and its end of line
if rank == 1 or case == "everywhere":
    time.sleep(seconds)
    if case == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if case == "exit":
        sys.exit(3)
    if case == "exit well":
        sys.exit(0)
    if case in ("import", "everywhere"):
        import a_module_that_is_not_there  # noqa: F401
    if case == "gone":
        os._exit(4)
    if case == "crash":
        ctypes.string_at(0)
    if case == "hang":
        time.sleep(60)
connect(watchdog_seconds=30).close()
if rank == 0:
    print("connected", flush=True)
