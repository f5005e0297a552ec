"""torch_ranks.py RANKS AMONG PORT PROGRAM [ARGUMENTS]: runs a program on the first of so many ranks, as torchrun does, but imports
PyTorch once for all of them.

A start of PyTorch takes longer than most of what the tests train: with torchrun it is one for each rank and one for torchrun.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import traceback

import torch.distributed.fsdp
import torch.distributed.tensor  # noqa: F401


def run(rank: int, among: str, port: str, program: str, arguments: list[str]) -> int:
    """The exit code of the program as this rank."""
    sys.argv = [program, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(program))
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": among, "LOCAL_WORLD_SIZE": among,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
    }  # fmt: skip
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> int:
    """Start the ranks. If one fails, the others are ended."""
    ranks, among, port, program, *arguments = sys.argv[1:]
    here = set[int]()
    for rank in range(int(ranks)):
        if not (child := os.fork()):
            code = run(rank, among, port, program, arguments)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        here.add(child)
    failed = 0
    while here:
        child, status = os.wait()
        here.discard(child)
        if status and not failed:
            failed = 1
            for other in here:
                os.kill(other, signal.SIGKILL)
    return failed


if __name__ == "__main__":
    sys.exit(main())
