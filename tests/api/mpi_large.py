"""Run under mpirun by test_mpi: messages too long to be buffered, to a rank that is late. What is sent must not be
overwritten before it has left, in launches that run at once and in replays, and on the change between them."""

import time

import numpy as np

import taskflow

SIZE = 1 << 18
TURNS = 12


@taskflow.task(x="read-write")
def count_up(x):
    x += 1


@taskflow.task(x="read", seen="read-write")
def look(x, seen):
    """Note the value of all elements; no number goes back, so the counting rank runs ahead."""
    time.sleep(0.005)
    place = int(seen[0]) + 1
    seen[place] = x[0] if (x == x[0]).all() else np.nan
    seen[0] = place


with taskflow.TaskRuntime() as rt:
    x, seen = rt.region((SIZE,), name="x"), rt.region((1 + 3 * TURNS,), name="seen")

    def count_and_look():
        rt.launch(count_up, x=x)
        rt.launch(look, x=x, seen=seen, place=lambda c: 1)

    def body():
        count_and_look()
        count_and_look()

    step = rt.trace(body)
    wanted, value = [], 0
    for turn in range(TURNS):
        if turn % 4 == 3:
            count_and_look()
            value += 1
            wanted.append(value)
        step()
        wanted += [value + 1, value + 2]
        value += 2
    assert step.replays > 3, step
    found = rt.read(seen)
    assert found[1 : 1 + len(wanted)].tolist() == wanted, (found, wanted)
    assert (rt.read(x) == value).all()
    if rt.rank == 0:
        print("right")
