"""What the other cores' work does to a task's time: the same measurement alone and in company.

    python benchmarks/company.py [--rounds 5] [--json]

Every action of `MeasuredCosts`' kind is measured in turn alone and while as many processes as there are other cores run the same;
figures are medians of the rounds, in processor time of the measured process. A core of a rented machine may have to share a real
core for a while: so it is counted, too, how many rounds in company took over 1.3 times as long as their median, and in how many of
these and of the others a `SpeedProbe` before or after it said that the core was slow.
"""

from __future__ import annotations

import json
import os
from functools import partial
from statistics import median
from time import thread_time

import click
import numpy as np

from taskflow.kernels import default_kernels
from taskflow.operators.linear import Linear
from taskflow.operators.operator import Spec
from taskflow.optimizer.cost.measured import ContendingProcesses, SpeedProbe, measure, memory_action, piece_action
from taskflow.regions import Rect
from taskflow.tasks import Kind

SECONDS = 0.2  # of one measurement
DISTURBED = 1.3  # times the median


def actions() -> dict[str, partial]:
    """What is measured, by name."""
    kernels = default_kernels()

    def product(rows: int, features: int, outputs: int) -> partial:
        inputs = (Spec((rows, features), np.dtype(np.float32)),)
        piece = Rect((0, 0, 0), (rows, outputs, features))
        return partial(piece_action, Linear(outputs), inputs, piece, False, (True,), kernels, ())

    return {
        "sum of 96 MB": partial(memory_action, Kind.SUM, 96 << 20, None, kernels),
        "sum of 1 MB": partial(memory_action, Kind.SUM, 1 << 20, None, kernels),
        "product 256 x 512 x 2048": product(256, 512, 2048),
        "product 1024 x 1024 x 1024": product(1024, 1024, 1024),
    }


@click.command(help=__doc__)
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(rounds: int, as_json: bool) -> None:
    """Measure and print."""
    company = ContendingProcesses(max(1, (os.cpu_count() or 1) - 1))
    rows, yardstick = [], SpeedProbe()
    for name, make in actions().items():
        alone, beside, slow = [], [], []
        action, _ = make()
        for _ in range(rounds):
            alone.append(measure(action, SECONDS, clock=thread_time).seconds)
            with company.beside(make):
                before = yardstick.slow()
                beside.append(measure(action, SECONDS, clock=thread_time).seconds)
                slow.append(yardstick.slow() or before)
        disturbed = [seconds > DISTURBED * median(beside) for seconds in beside]
        rows.append({
            "action": name, "alone_seconds": median(alone), "company_seconds": median(beside),
            "ratio": median(beside) / median(alone), "rounds": rounds, "disturbed": sum(disturbed),
            "noticed": sum(d and s for d, s in zip(disturbed, slow)),
            "noticed_in_vain": sum(s and not d for d, s in zip(disturbed, slow)),
        })
    company.close()
    if as_json:
        print(json.dumps({"benchmark": "company", "processes_beside": company.count, "actions": rows}))
        return
    for row in rows:
        alone_ms, company_ms = row["alone_seconds"] * 1e3, row["company_seconds"] * 1e3
        print(f"{row['action']:<30}{alone_ms:>10.3f} ms alone {company_ms:>10.3f} ms in company {row['ratio']:>6.2f}, "
              f"{row['disturbed']} of {rounds} disturbed, {row['noticed']} of them noticed, {row['noticed_in_vain']} others")


if __name__ == "__main__":
    main()
