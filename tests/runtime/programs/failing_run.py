"""A small training program, ``failing_run:main``, that notes each step's samples and loss, and fails as FAULTS says.

FAULTS is a list of faults in JSON, one a start: [kind, when, rank, step, seconds]. ``kind``: kill, stop, hang, exit (by os._exit),
gone (by _exit in C), raise, or full (no file gets longer than 1,000 bytes, as on a full disk). ``when``: start (before connect),
restart (before the first step), step, gather, write (of a file's bytes) or replace (a file is whole, and not there yet);
``seconds`` after that, if they are not 0. Lines of ``notes``: start, step, samples, loss.
"""

import ctypes
import errno
import json
import os
import resource
import signal
import threading
import time
from dataclasses import dataclass

import numpy as np

import taskflow
import taskflow.checkpoint.writer as writer
from taskflow import Adam, OperatorGraph
from taskflow.runtime.job import launcher
from taskflow.training.data import Batches
from taskflow.training.program import Preset, RunConfig, Training, example

SAMPLES, FEATURES, CLASSES = 60, 16, 4
START = int(os.environ.get("TASKFLOW_START", "0"))
RANK = started.rank if (started := launcher()) else 0
SIZE = started.size if started else 1
FAULTS = json.loads(os.environ.get("FAULTS", "[]"))
IN_THE_JOB = "TASKFLOW_START" in os.environ  # not the loop, which loads this too
KIND, WHEN, WHO, STEP, SECONDS = FAULTS[START] if len(FAULTS) > START and IN_THE_JOB else ("", "", 0, 0, 0.0)
MINE = WHO % SIZE == RANK
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))


def fail() -> None:
    if KIND == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if KIND == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if KIND == "hang":
        time.sleep(3600)
    if KIND == "exit":
        os._exit(3)
    if KIND == "gone":
        ctypes.CDLL(None)._exit(3)
    if KIND == "raise":
        raise FloatingPointError("boom")
    if KIND == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))


def fail_at(when: str, rank: bool = MINE, step: int = 10**9) -> None:
    if when == WHEN and rank and step >= STEP:
        threading.Timer(SECONDS, fail).start() if SECONDS else fail()


fail_at("start")


@dataclass(frozen=True)
class Config:
    batch: int = 12


@dataclass(frozen=True)
class Batch:
    samples: np.ndarray
    epoch: int
    reset: bool = False

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        numbers = np.random.default_rng(7).normal(size=(SAMPLES, FEATURES)).astype("float32")
        labels = numbers[:, :CLASSES].argmax(1)
        return {"x": numbers[self.samples], "label": labels[self.samples]}


class Shuffled(Batches):
    items_per_step, digest = Config.batch, "shuffled"

    def __len__(self) -> int:
        return SAMPLES // Config.batch

    def at(self, k: int) -> Batch:
        epoch, index = divmod(k, len(self))
        order = np.random.default_rng(epoch).permutation(SAMPLES)
        return Batch(order[index * Config.batch :][: Config.batch], epoch)


def note(line: object) -> None:
    """Append a line, whole or not at all: where no file gets longer, a part of it would be written."""
    if RANK == 0:
        with open("notes", "ab", buffering=0) as file:
            before, text = file.tell(), (json.dumps(line) + "\n").encode()
            if file.write(text) < len(text):
                file.truncate(before)
                raise OSError(errno.EFBIG, "no room for a note", "notes")


@example({"small": Preset(Config(), Adam(lr=0.02), 40)}, data="NONE", data_help="Nothing.")
def main(run: RunConfig) -> Training:
    """Train on numbers."""
    fail_at("restart")
    graph = OperatorGraph()
    x = taskflow.input(graph, (run.batch, FEATURES), name="x")
    label = taskflow.input(graph, (run.batch,), "int64", name="label")
    hidden = taskflow.dropout(taskflow.relu(taskflow.linear(x, 32)), 0.1)
    graph.minimize(taskflow.cross_entropy(taskflow.linear(hidden, CLASSES), label))
    return Training(graph, Shuffled(), "images", "numbers")


def train(self, feeds, **options):
    step = self.state.step
    fail_at("step", step=step)
    time.sleep(STEP_SECONDS)
    loss = plain_train(self, feeds, **options)
    note([START, step, [round(float(v), 6) for v in feeds["x"][:, 0]], loss])
    return loss


def gather(executor, *more):
    fail_at("gather", step=executor.state.step)
    LAST_STEP[0] = executor.state.step
    return plain_gather(executor, *more)


def write(path, arrays, metadata):
    fail_at("write", True, LAST_STEP[0])
    return plain_write(path, arrays, metadata)


def replace(*paths):
    if str(paths[1]).endswith(".safetensors"):
        fail_at("replace", True, LAST_STEP[0])
    return plain_replace(*paths)


LAST_STEP = [0]
plain_train, taskflow.Executor.train = taskflow.Executor.train, train
plain_gather, writer.gather_checkpoint = writer.gather_checkpoint, gather
plain_write, writer.write_safetensors = writer.write_safetensors, write
plain_replace, os.replace = os.replace, replace
