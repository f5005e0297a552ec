"""One rank (the last) fails in the way that the first argument names, while the others need it. Rank 0 says "ready"."""

import ctypes
import os
import signal
import sys
import time
import warnings

import numpy as np

from taskflow.runtime.connecting import connect

case = sys.argv[1]
limit = float(sys.argv[2]) if len(sys.argv) > 2 else None
transport = connect(watchdog_seconds=limit)
culprit = transport.size - 1
fails = transport.rank == culprit
transport.barrier()
if transport.rank == 0:
    print("ready", flush=True)
transport.barrier()  # or the culprit is gone, and mpirun ends rank 0, before it has its turn to say so


def need_the_culprit():
    if case.startswith("all-reduce"):
        total = transport.all_reduce(np.ones(4), range(transport.size))
        total.start()
        transport.wait(total, lambda: "sum of conv1")
        return
    if case.startswith(("reduce-scatter", "all-gather")):
        make = transport.reduce_scatter if case.startswith("reduce") else transport.all_gather
        share = make(np.ones(4), [2, *[1] * 2, *[0] * (transport.size - 3)], range(transport.size))
        share.start()
        transport.wait(share, lambda: "share of conv1")
        return
    receive = transport.receiver(np.zeros(4), culprit, 5)
    receive.start()
    transport.wait(receive, lambda: "conv1 forward 2")
    print("received what nobody sent", flush=True)


if case == "exception" and fails:
    raise ValueError("boom\nand more")
elif case == "memory" and fails:
    bytearray(1 << 62)
elif case == "everywhere":
    raise KeyError("lost")
elif case == "finally" and fails:
    try:
        raise ValueError("boom")
    finally:
        transport.close()
elif case == "other hook" and fails:
    sys.excepthook = sys.__excepthook__
    raise ValueError("boom")
elif case == "exit" and fails:
    sys.exit(int(sys.argv[3]))
elif case == "gone" and fails:
    os._exit(int(sys.argv[3]))
elif case == "gone in C" and fails:
    ctypes.CDLL(None)._exit(int(sys.argv[3]))
elif case == "crash" and fails:
    ctypes.string_at(0)
elif case == "kill" and fails:
    os.kill(os.getpid(), signal.SIGKILL)
elif case == "fork":
    if fails:
        warnings.simplefilter("ignore", DeprecationWarning)  # since Python 3.12 one of forking beside threads
        child = os.fork()
        if not child:
            os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
elif case in ("all-reduce exit", "reduce-scatter exit", "all-gather exit") and fails:
    sys.exit(3)
elif case in ("hang", "all-reduce hang", "reduce-scatter hang", "all-gather hang") and fails:
    time.sleep(60)
elif case == "barrier" and not fails:
    transport.barrier()
elif case == "broadcast" and not fails:
    transport.broadcast(1, root=culprit)
elif case == "gather" and not fails:
    transport.gather(1)
    transport.barrier()
elif case == "last word" and fails:
    # What was sent before the end arrives: longer than what MPI keeps for a late receiver.
    for peer in range(culprit):
        transport.sender(np.full(1 << 20, 7, np.uint8), peer, 5).start()
elif case == "last word":
    time.sleep(0.3)
    words = np.zeros(1 << 20, np.uint8)
    receive = transport.receiver(words, culprit, 5)
    receive.start()
    transport.wait(receive, "last words")
    assert (words == 7).all()
elif case == "unneeded":
    # The culprit leaves with a code; the others work on without it, close, and have work left after that.
    if fails:
        sys.exit(int(sys.argv[3]))
    time.sleep(0.3)
    transport.close()
    time.sleep(0.3 if transport.rank else 0.6)
    print("worked on", flush=True)
elif case == "after close":
    transport.close()
    if fails:
        raise ValueError("boom")
elif not fails:
    need_the_culprit()
