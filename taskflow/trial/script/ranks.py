"""What torchrun's ranks agree on while each starts a process for every visit to a plan: who fails, and what was found."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from taskflow.trial.script.visit import MOST_TEXT, store_of

GRACE = 2.0  # seconds for a rank to write why it fails, once any has failed
MORE = 60.0  # seconds that ranks wait for each other beyond the limit of a visit
LAST_LINES = 15  # of what a failed process has printed
ORDER = ("ended", "memory", "error", "late", "stopped")  # which failure is the cause, if ranks fail in several ways


class TrialRanks:
    """This rank among all. ``limit``: seconds of a visit."""

    def __init__(self, limit: float) -> None:
        if "RANK" not in os.environ:
            os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(_free_port()))
        self.rank, self.count, self.limit = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), limit
        serves = self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        names = [os.environ.get(f"TORCHELASTIC_{key}", "0") for key in ("RUN_ID", "RESTART_COUNT")]
        self.key = "/".join(["taskflow-try", *names])
        self.store = dist.PrefixStore(self.key, store_of(serves, limit + MORE))
        self.visits = 0

    def together(self, key: str, value: Any) -> list[Any]:
        """Return what all ranks say, in the order of ranks."""
        self.store.set(f"{key}/{self.rank}", json.dumps(value))
        return [json.loads(self.store.get(f"{key}/{rank}")) for rank in range(self.count)]

    def leave(self) -> None:
        """Let rank 0, which may serve the store, leave last."""
        self.store.set(f"left/{self.rank}", b"1")
        if self.rank == 0:
            self.store.wait([f"left/{rank}" for rank in range(self.count)])

    def visit(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """Run a visit on all ranks (``told``: what `visit` takes). Return the same on all: what each rank found, or the error of
        the one that failed first."""
        self.visits += 1
        key = f"visit{self.visits}"
        found = self.together(key, self._own(key, told))
        failed = [(ORDER.index(one["kind"]), one["when"], rank) for rank, one in enumerate(found) if "error" in one]
        if not failed:
            return {"seconds": found[0]["seconds"], "ranks": found}
        rank = min(failed)[2]
        text = found[rank]["error"]
        return {"error": f"rank {rank}: {text}" if self.count > 1 else text, "log": found[rank].get("log", "")}

    def _own(self, key: str, told: Mapping[str, Any]) -> dict[str, Any]:
        """What this rank's process found. It is ended when another rank has failed, or after the limit."""
        with tempfile.TemporaryDirectory() as folder:
            out, log = Path(folder, "found.json"), Path(folder, "log.txt")
            given = {**told, "out": str(out), "key": f"{self.key}/{key}", "seconds": self.limit}
            variables = {**os.environ, "TORCHELASTIC_USE_AGENT_STORE": "False"}
            with log.open("w") as file:
                job = subprocess.Popen(
                    [sys.executable, os.path.abspath(__file__), "--visit", json.dumps(given)], env=variables, stdout=file,
                    stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                )
                try:
                    why = self._ended(job, f"{key}/failed")
                finally:
                    job.kill()
                    job.wait()
            found = json.loads(out.read_text()) if out.is_file() else _without(job.returncode, why, self.limit)
            if "error" in found:
                self.store.set(f"{key}/failed", b"1")
                found["log"] = "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
            return found  # type: ignore[no-any-return]

    def _ended(self, job: subprocess.Popen[bytes], failed: str) -> str:
        """Wait for a process to end. Return why it has to be ended: ``late``, or ``stopped`` with another rank; else nothing."""
        until, stop = time.monotonic() + self.limit, 0.0
        while job.poll() is None:
            time.sleep(0.05)
            now = time.monotonic()
            if now > until:
                return "late"
            if not stop and self.store.check([failed]):
                stop = now + GRACE
            if stop and now > stop:
                return "stopped"
        return ""


def _without(code: int, why: str, limit: float) -> dict[str, Any]:
    """What is said of a process that has written nothing."""
    text = {"late": f"not done after {limit:g} s (--limit)", "stopped": "ended with another rank"}.get(why, "")
    if not text:
        text = f"its process was ended by {signal.Signals(-code).name}" if code < 0 else f"its process ended with {code}"
        text += " (by the system, for want of memory?)" if -code == signal.SIGKILL else ""
    return {"error": text[:MOST_TEXT], "kind": why or "ended", "when": time.time()}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
