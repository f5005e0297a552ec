"""Path: the critical path of a step, contracted to a few readable stretches whose seconds add up to the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskflow.report.spans import CATEGORIES, Spans


def path_value(path: Sequence[int], spans: Spans, operator: NDArray[np.int64]) -> dict[str, Any]:
    """Return the critical path. ``stretches``: [category, operator, seconds, tasks] of neighbours of one category and operator,
    in order. ``seconds``: by category. Each task of the path starts when the one before ends, so they add up to the makespan."""
    stretches: list[list[Any]] = []
    by_category = np.zeros(len(CATEGORIES))
    for task in path:
        category, of = int(spans.category[task]), int(operator[task])
        seconds = float(spans.end[task] - spans.start[task])
        by_category[category] += seconds
        if stretches and stretches[-1][:2] == [category, of]:
            stretches[-1][2] += seconds
            stretches[-1][3] += 1
        else:
            stretches.append([category, of, seconds, 1])
    return {"stretches": stretches, "seconds": by_category.tolist(), "tasks": len(path)}
