"""taskflow from scratch: how all of it works, in two files of numpy that do not import taskflow.

    python examples/taskflow_from_scratch.py

Read this one from top to bottom, and then `from_scratch_tasks.py`, which has the heart of it. A small network is cut into
pieces that several processors compute. What must be copied, waited for and summed follows from what each piece reads and
writes (the other file). A simulator says how long a step takes; a search finds a faster cut; and a run, with every array in
its own processor's memory, trains as the uncut network does. The names are taskflow's, and so are the results: a test holds
tasks, simulated times and losses equal to those of `taskflow`.
"""

from __future__ import annotations

import heapq
from itertools import product
from math import ceil, exp, prod
from typing import NamedTuple

import numpy as np
from from_scratch_tasks import OpConfig, Program, Rect, Task

# ---- 1. Operators: what one piece reads, writes and computes ---------------------------------------------------------
# An operator is cut over its iteration space. `reads` and `writes` map a piece of that space to Rects. Nothing else is ever
# said about parallelism: copies, sums of partial results and sums of gradients all follow from these two maps. A Rect is a
# half-open box: Rect((0, 2), (4, 6)) is rows 0 to 3 of columns 2 to 5.

class Operator:
    """``inputs`` name operators; ``space`` is what is cut, ``shape`` the output's; ``weight`` a weight's, if there is one."""
    # keeps: what backward looks at, "reads", "output" or "saved". flops: for a point of the space, forward and backward.
    weight, dims, dtype, keeps, flops = None, "na", float, "", (1, 2)

    def __init__(self, name: str, inputs: list[Operator], shape: tuple[int, ...], space: tuple[int, ...] = ()) -> None:
        self.name, self.inputs, self.shape, self.space = name, [i.name for i in inputs], shape, space or shape

    def reads(self, piece: Rect) -> list[Rect]:  # one for each input, then the weight's
        return [piece for _ in self.inputs]

    def writes(self, piece: Rect) -> Rect:  # the space's dimensions beyond the output's are summed over
        return Rect(piece.lo[: len(self.shape)], piece.hi[: len(self.shape)])

class Input(Operator):
    """The step's data, which `train` feeds under the operator's name."""
    flops = (0, 0)

    def forward(self, out: np.ndarray) -> None:
        """Nothing to compute."""

class Linear(Operator):
    """y[n, c] = sum over k of x[n, k] w[c, k]. Cutting n cuts samples. Cutting c cuts the weight: a piece holds only its rows.
    Cutting k cuts the contraction: pieces that differ in k write the same Rect of y, each a partial value of it."""
    keeps, flops, dims = "reads", (2, 4), "nck"

    def __init__(self, name: str, x: Operator, features: int) -> None:
        super().__init__(name, [x], (x.shape[0], features), (x.shape[0], features, x.shape[1]))
        self.weight = self.space[1:]

    def reads(self, piece: Rect) -> list[Rect]:
        (n0, c0, k0), (n1, c1, k1) = piece
        return [Rect((n0, k0), (n1, k1)), Rect((c0, k0), (c1, k1))]

    def forward(self, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
        np.matmul(x, w.T, out=y)

    def backward(self, x: np.ndarray, w: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, ...]:
        return dy @ w, dy.T @ x  # over the Rects that forward reads

class ReLU(Operator):
    """y = max(x, 0)."""
    keeps = "output"

    def forward(self, x: np.ndarray, y: np.ndarray) -> None:
        np.maximum(x, 0, out=y)

    def backward(self, y: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, ...]:
        return (dy * (y > 0),)

class CrossEntropy(Operator):
    """The loss. A piece reads whole rows of classes and adds up its samples' part: every piece writes the only point of a
    scalar, so the loss is a sum of partial values, as a cut contraction is."""
    keeps, dims = "saved", "n"  # the probabilities, and the labels

    def __init__(self, name: str, x: Operator, label: Operator) -> None:
        super().__init__(name, [x, label], (), label.shape)
        (self.samples, self.classes), self.flops = x.shape, (5 * x.shape[1], x.shape[1])

    def reads(self, piece: Rect) -> list[Rect]:
        return [Rect((*piece.lo, 0), (*piece.hi, self.classes)), piece]

    def forward(self, x: np.ndarray, label: np.ndarray, y: np.ndarray, p: np.ndarray, kept: np.ndarray) -> None:
        e = np.exp(x - x.max(axis=1, keepdims=True))
        p[...], kept[...] = e / e.sum(axis=1, keepdims=True), label
        y[...] = -np.log(p[np.arange(len(p)), label]).sum() / self.samples

    def backward(self, p: np.ndarray, label: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, ...]:
        return ((p - np.eye(self.classes)[label]) * (dy / self.samples),)

# ---- 2. Simulate: how long does a step take? -------------------------------------------------------------------------

class Machine(NamedTuple):
    """Equal processors, and a link of its own from each to each."""
    processors: int = 4
    flops_per_second: float = 5e9
    bytes_per_second: float = 10e9  # of memory
    link_bytes_per_second: float = 2e9
    start_seconds: float = 3e-6  # of a task or a transfer

    def seconds(self, task: Task) -> float:
        work = max(task.flops / self.flops_per_second, task.nbytes / self.bytes_per_second)
        seconds = task.nbytes / self.link_bytes_per_second if task.kind == "copy" else work
        return ceil((self.start_seconds + seconds) * 2**40) / 2**40  # on a grid: sums are exact, in any order

def simulate(tasks: list[Task], machine: Machine) -> dict[int, tuple[float, float]]:
    """Start and end of each task, in the order in which they are taken: the paper's Algorithm 1. The task that is ready first
    goes first (of equals, the one with the lowest number), and starts when its processor, or its link, is free."""
    waits, ready, followers = [len(task.after) for task in tasks], [0.0] * len(tasks), [[] for _ in tasks]
    for task in tasks:
        for before in task.after:
            followers[before].append(task.number)
    queue = [(0.0, task.number) for task in tasks if not task.after]
    free, spans = {}, {}
    while queue:
        at, number = heapq.heappop(queue)
        task, where = tasks[number], (tasks[number].source, tasks[number].processor)  # one processor, or the link of two
        start = max(at, free.get(where, 0.0))
        free[where] = end = start + machine.seconds(task)
        spans[number] = start, end
        for follower in followers[number]:
            ready[follower] = max(ready[follower], end)
            waits[follower] -= 1
            if not waits[follower]:
                heapq.heappush(queue, (ready[follower], follower))
    return spans

def makespan(graph: list[Operator], strategy: dict[str, OpConfig], machine: Machine) -> float:
    return max(end for _, end in simulate(Program(graph, strategy).tasks, machine).values())

# ---- 3. Search: which strategy is fast? ------------------------------------------------------------------------------

def data_parallel(graph: list[Operator], processors: int) -> dict[str, OpConfig]:
    """Every operator cut by samples, one piece a processor."""
    return {op.name: ((processors,) + (1,) * (len(op.space) - 1), tuple(range(processors))) for op in graph}

def random_config(op: Operator, processors: int, random: np.random.Generator) -> OpConfig:
    """Any degrees that give at most as many pieces as there are processors, and any processor for each piece."""
    most = (range(1, min(size, processors) + 1) for size in op.space)
    degrees = random.permutation([d for d in product(*most) if prod(d) <= processors])[0].tolist()
    return tuple(degrees), tuple(random.integers(processors, size=prod(degrees)).tolist())

def mcmc(graph: list[Operator], machine: Machine, proposals: int, seed: int = 0, beta: float = 50.0) -> dict[str, OpConfig]:
    """Metropolis-Hastings: change one random operator. A faster strategy is always taken, a slower one with a probability
    that falls with what it loses, so that the walk gets out of dead ends. The best one seen is the answer."""
    random, current = np.random.default_rng(seed), data_parallel(graph, machine.processors)
    first = seconds = makespan(graph, current, machine)
    best = seconds, current
    for _ in range(proposals):
        op = graph[random.integers(len(graph))]
        proposed = makespan(graph, proposal := {**current, op.name: random_config(op, machine.processors, random)}, machine)
        if random.random() < exp(min(0.0, beta * (seconds - proposed) / first)):
            current, seconds = proposal, proposed
        best = min(best, (seconds, current), key=lambda pair: pair[0])
    return best[1]

# ---- 4. Run: does it train as the uncut network does? ----------------------------------------------------------------

def train(program: Program, machine: Machine, start: dict[str, np.ndarray], feeds: dict[str, np.ndarray], steps: int):
    """The losses of some steps. The tasks go in the order of the simulation, in which nobody waits for something later."""
    for (name, *_), here in [*program.readers.items(), *((key, out) for key, (_, out, _) in program.kept.items())]:
        if name in start or name in feeds:
            here.array[...] = {**start, **feeds}[name][tuple(map(slice, *here.rect))]
    for _ in range(steps):
        for number in simulate(program.tasks, machine):
            program.tasks[number].run()
        yield float(program.loss.array)

def network(samples: int = 64, features: int = 256, hidden: int = 512, classes: int = 16) -> list[Operator]:
    """Two layers that classify."""
    x, label = Input("x", [], (samples, features)), Input("label", [], (samples,))
    label.dtype, fc1 = int, Linear("fc1", x, hidden)
    act = ReLU("act", [fc1], fc1.shape)
    return [x, label, fc1, act, fc2 := Linear("fc2", act, classes), CrossEntropy("loss", fc2, label)]

def chart(program: Program, machine: Machine, width: int = 76) -> str:
    """A line a processor: what it does when (forward, backward, sum, update, move, fill; a dot is nothing)."""
    spans, rows = simulate(program.tasks, machine), np.full((machine.processors, width), ".")
    scale = width / max(end for _, end in spans.values())
    for task, (start, end) in ((t, spans[t.number]) for t in program.tasks if t.kind != "copy"):
        rows[task.processor, int(start * scale) : int(end * scale)] = task.kind[0]
    return "\n".join("  " + "".join(row) for row in rows)

def main(proposals: int = 1000) -> None:
    graph, machine, random = network(), Machine(), np.random.default_rng(0)
    start = {f"{op.name}.weight": random.normal(0, op.weight[1] ** -0.5, op.weight) for op in graph if op.weight}
    feeds = {"x": random.normal(size=graph[0].shape), "label": random.integers(0, 16, graph[1].shape)}
    plans = {"uncut": data_parallel(graph, 1), "data parallel": data_parallel(graph, 4), "found": mcmc(graph, machine, proposals)}
    for title, strategy in plans.items():
        losses = list(train(program := Program(graph, strategy), machine, start, feeds, 20))
        print(f"{title}: {len(program.tasks)} tasks, loss {losses[0]:.4f} -> {losses[-1]:.4f}, "
              f"{makespan(graph, strategy, machine) * 1e6:.0f} us a step predicted")
        print(" ", *(f"{op.name} {' '.join(map('{}/{}'.format, op.dims, strategy[op.name][0]))};" for op in graph))
        print(chart(program, machine))

if __name__ == "__main__":
    main()
