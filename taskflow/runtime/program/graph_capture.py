"""Graph capture: tasks of a step that stay on the device are recorded in long segments, which are then replayed as a whole.

The first run of a program executes actions one by one (which compiles kernels and plans convolutions), the second records,
later ones replay. What needs the host is not recorded: inputs, messages, user functions. An action that cannot be recorded on
this device is left out, with one message. After a few of those the whole program runs one by one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from taskflow.kernels import NotRecorded, Recorder
from taskflow.operators.input import Input
from taskflow.operators.operator import StepState
from taskflow.runtime.program.schedule import Item, RunTask
from taskflow.tasks import Compute, Update, UserCall

Action = Callable[[], object]
LEAST = 4
"""Actions that are worth a recording: one costs about as much to start as two kernels."""
MOST_REFUSALS = 3


def segments(wanted: Sequence[bool]) -> list[tuple[int, int, bool]]:
    """Return segments (first, last, whether to record it) that cover all items in order, as few as possible."""
    found: list[tuple[int, int, bool]] = []
    first = 0
    while first < len(wanted):
        last = first
        while last < len(wanted) and wanted[last] == wanted[first]:
            last += 1
        record = wanted[first] and last - first >= LEAST
        if found and not record and not found[-1][2]:
            found[-1] = found[-1][0], last, False
        else:
            found.append((first, last, record))
        first = last
    return found


def recordable(item: Item) -> bool:
    """True if an item needs only the device, and does the same in every step."""
    if not isinstance(item, RunTask) or isinstance(item.task.work, UserCall):
        return False
    return not (isinstance(item.task.work, Compute) and isinstance(item.task.work.node.operator, Input))


class GraphCapture:
    """Runner of the actions of one program. ``failed`` gets the number of an action and raises its error with its task's name."""

    def __init__(
        self, items: Sequence[Item], actions: Sequence[Action], recorder: Recorder, state: StepState,
        failed: Callable[[Exception, int], NoReturn],
    ) -> None:
        self._actions, self._recorder, self._state, self._failed = actions, recorder, state, failed
        self._wanted = [recordable(item) for item in items]
        rates = {item.task.work.rule.lr for item in items if isinstance(item, RunTask) and isinstance(item.task.work, Update)}
        if len(rates) > 1:  # one number stands for the learning rate of a step
            self._wanted = [False] * len(items)
        self._lr = next(iter(rates), 0.0)
        self._refusals = 0
        self._warm = False
        self._recorded_for: object = None
        self._runs: list[tuple[int, Action | None]] = []  # from which action on, and what replays them if they are recorded

    @property
    def recorded(self) -> int:
        """Number of actions that are replayed."""
        bounds = [*(first for first, _ in self._runs), len(self._actions)]
        return sum(bounds[i + 1] - first for i, (first, replay) in enumerate(self._runs) if replay is not None)

    def run(self) -> None:
        """Run one step."""
        if not self._warm or not any(self._wanted):
            self._one_by_one(0, len(self._actions))
            self._warm = True
            return
        state = self._state
        self._set()
        now = state.training, state.seed  # arguments of kernels that a replay would not change
        if now == self._recorded_for:
            self._replay()
        else:
            self._record()
            self._recorded_for = now

    def _set(self) -> None:
        """Give the device what changes from step to step."""
        state = self._state
        self._recorder.set(self._lr if state.lr is None else state.lr, state.step, state.step - state.skipped)

    def _replay(self) -> None:
        runs, total = self._runs, len(self._actions)
        for number, (first, replay) in enumerate(runs):
            if replay is None:
                self._one_by_one(first, runs[number + 1][0] if number + 1 < len(runs) else total)
                continue
            try:
                replay()
            except Exception as error:
                self._failed(error, first)

    def _record(self) -> None:
        """Record each segment, then run it: the segments after it may need what it computes."""
        self._runs = []
        todo = [one for one in reversed(segments(self._wanted))]
        while todo:
            first, last, wanted = todo.pop()
            if not wanted:
                self._runs.append((first, None))
                self._one_by_one(first, last)
                continue
            try:
                replay = self._recorder.record(self._actions[first:last])
            except NotRecorded as error:
                self._refuse(error, first, last)
                todo.extend(
                    (first + a, first + b, record) for a, b, record in reversed(segments(self._wanted[first:last]))
                )
                continue
            # What a kernel of this recording reads of the step may be asked for only now.
            self._set()
            self._runs.append((first, replay))
            try:
                replay()
            except Exception as error:
                self._failed(error, first)

    def _refuse(self, error: NotRecorded, first: int, last: int) -> None:
        self._refusals += 1
        if error.number is None or self._refusals >= MOST_REFUSALS:
            self._wanted = [False] * len(self._wanted)
            left = "no step is recorded"
        else:
            self._wanted[first + error.number] = False
            left = "it is left out"
        print(f"taskflow: part of a step cannot be recorded ({error}); {left}; TASKFLOW_GRAPHS=0 avoids trying", file=sys.stderr)

    def _one_by_one(self, first: int, last: int) -> None:
        number = first
        try:
            for number in range(first, last):
                self._actions[number]()
        except Exception as error:
            self._failed(error, number)
