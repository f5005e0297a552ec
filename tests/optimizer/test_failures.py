"""What failures cost is what drawn failures cost, and the interval is the best one."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from math import sqrt

import pytest
from click.testing import CliRunner

from taskflow.cli.main import main
from taskflow.optimizer.failures import best_interval, failure_costs


def drawn(interval: float, held: float, restart: float, mtbf: float, segments: int) -> float:
    """Share of useful time of a job that fails at random, also while it writes or restarts."""
    draw = random.Random(1)
    passed, left = 0.0, draw.expovariate(1 / mtbf)
    for _ in range(segments):
        while left < interval + held:  # it fails before the checkpoint is complete, and then perhaps while it restarts
            passed += left
            left = draw.expovariate(1 / mtbf)
            while left < restart:
                passed += left
                left = draw.expovariate(1 / mtbf)
            passed, left = passed + restart, left - restart
        passed, left = passed + interval + held, left - interval - held
    return segments * interval / passed


@pytest.mark.parametrize("mtbf,held,restart", [
    (3600.0, 10.0, 60.0), (600.0, 60.0, 30.0), (86400.0, 1.0, 300.0), (100.0, 50.0, 20.0),
])
def test_the_share_of_useful_time_is_that_of_drawn_failures(mtbf: float, held: float, restart: float) -> None:
    costs = failure_costs(0.5, mtbf, write=held, restart=restart)
    assert costs.useful == pytest.approx(drawn(costs.interval, held, restart, mtbf, 30_000), rel=0.03)
    for other in (0.5, 0.8, 1.25, 2.0):
        assert failure_costs(0.5, mtbf, write=held, restart=restart, interval=other * costs.interval).useful < costs.useful + 1e-4


def test_without_higher_terms_the_interval_is_youngs() -> None:
    assert best_interval(1.0, 1e6) == pytest.approx(sqrt(2e6), rel=1e-3)
    assert best_interval(10.0, 3600.0) == pytest.approx(sqrt(2 * 10 * 3600) * (1 + sqrt(1 / 720) / 3 + 1 / 6480) - 10)
    assert best_interval(300.0, 100.0) == 100.0  # longer than two failures' distance: Daly's other case


def test_writing_beside_training_costs_less() -> None:
    together = failure_costs(2.0, 28800.0, write=40.0, restart=120.0)
    beside = failure_costs(2.0, 28800.0, write=40.0, held=1.0, restart=120.0)
    assert beside.useful > together.useful and beside.interval < together.interval
    assert beside.steps == round(beside.interval / 2.0)
    assert failure_costs(2.0, 28800.0, write=0.0, restart=0.0).steps == 1
    assert failure_costs(1.0, 1.0, write=900.0, restart=0.0).useful == 0.0


def test_a_plan_for_what_is_left_is_slower_until_the_devices_are_back() -> None:
    whole = failure_costs(1.0, 9000.0, write=5.0, restart=60.0)
    left = failure_costs(1.0, 9000.0, write=5.0, restart=60.0, repair=1000.0, slower=1.25)
    assert left.useful == pytest.approx(whole.useful * (1 - 0.1 * 0.2)) and left.lost == pytest.approx(whole.lost + 200)


@pytest.mark.parametrize("wrong", [
    {"step": 0.0}, {"mtbf": 0.0}, {"write": -1.0}, {"held": 9.0}, {"restart": -1.0}, {"interval": 0.0}, {"slower": 0.9},
])
def test_numbers_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="failure_costs: "):
        failure_costs(**{"step": 1.0, "mtbf": 3600.0, "write": 5.0, "restart": 60.0} | wrong)


def test_the_command_says_it() -> None:
    words = ["simulate", "mlp", "-m", "h100", "-n", "2", "--mtbf", "8h", "--checkpoint-time", "2s", "--restart-time", "5m"]
    said = CliRunner().invoke(main, words).stdout
    assert "failures every 8 h: with a checkpoint (of 2 s) every 5.6" in said and "of the time is useful" in said
    row = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    found = failure_costs(row["iteration_seconds"], 28800.0, write=2.0, restart=300.0)
    assert row["failures"] == {**asdict(found), "mtbf": 28800.0, "checkpoint": 2.0}
    wrong = CliRunner().invoke(main, ["simulate", "mlp", "--mtbf", "8"])
    assert wrong.exit_code == 2 and "'8' is no such time; write 480ms, 90s, 10m, 8h or 2d" in wrong.stderr
