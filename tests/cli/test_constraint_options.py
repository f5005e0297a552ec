"""taskflow search --pin, --forbid, --limit, --constraints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from taskflow.cli.constraints import gathered
from taskflow.cli.main import main
from taskflow.optimizer.space.constraints import Constraints

PROBLEM = ("search", "mlp", "--size", "small", "-m", "k80", "-n", "4", "--budget", "60p")


def test_options_say_what_a_file_says(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"x": {"max_pieces": 2}}))
    made = gathered(
        str(file), ("fc1=n/4 @ 0-3",), ("fc2=ring/spread/4",), ("relu*:n,c", "a:b:c"),
        ("fc*: n<=2, degree<=4 pieces<=8 @ 0-2",),
    )
    assert made == Constraints.parse({
        "x": {"max_pieces": 2}, "fc1": {"pin": "n/4 @ 0-3"}, "fc2": {"sync": "ring/spread/4"},
        "relu*": {"forbid": ["n", "c"]}, "a:b": {"forbid": ["c"]},
        "fc*": {"max_degree": {"n": 2, "": 4}, "max_pieces": 8, "devices": [0, 1, 2]},
    })


def test_a_plan_that_respects_them(tmp_path: Path) -> None:
    plan, file = tmp_path / "plan.json", tmp_path / "c.json"
    file.write_text(json.dumps({"fc2": {"devices": [3]}}))
    result = CliRunner().invoke(
        main, [*PROBLEM, "--pin", "fc1=c/2 @ 1,3", "--forbid", "*:n", "--constraints", str(file), "--out", str(plan), "--json"])
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    assert value["constraints"] == ["fc2: on 3", "fc1: pinned to c/2 @ 1,3", "*: n not cut"]
    operators = json.loads(plan.read_text())["operators"]
    assert operators["fc1"]["processors"] == [1, 3] and set(operators["fc2"]["processors"]) == {3}
    for entry in operators.values():
        assert dict(zip(entry["dims"], entry["degrees"])).get("n", 1) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--pin-sync", "fc1"), "--pin-sync 'fc1': write LAYER=ALGORITHM/PLACEMENT"),
        (("--pin-sync", "fc1=fast/every"), "write ALGORITHM/PLACEMENT or ALGORITHM/PLACEMENT/CHUNKS"),
        (("--pin-sync", "relu1=ring/every"), "no layer of MLP that has weights matches 'relu1'"),
        (("--pin", "fc1"), "--pin 'fc1': write OPERATOR=CUT @ DEVICES"),
        (("--pin", "fc1=n/9"), "operator fc1: "),
        (("--forbid", "fc1"), "--forbid 'fc1': write OPERATOR:DIMENSION"),
        (("--limit", "fc1"), "--limit 'fc1': write OPERATOR: LIMITS"),
        (("--limit", "fc1: n<2"), "'n<2' is not a limit"),
        (("--limit", "fc1: @ x"), "processors must be numbers and ranges"),
        (("--limit", "conv*: n<=2"), "no operator of MLP"),
        (("--pin", "fc1=n/2 @ 0-1", "--forbid", "fc1:n"), "but n must not be cut"),
        (("--constraints", "none.json"), "constraints file none.json does not exist"),
    ],
)
def test_mistakes(options: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(main, [*PROBLEM, *options])
    assert result.exit_code == 2 and message in result.stderr and result.stderr.count("\n") == 1, result.output


def test_compare_and_explain_respect_them_too() -> None:
    where = ("--size", "small", "-m", "k80", "-n", "4")
    asks = ("--pin", "fc1=c/2 @ 1,3", "--pin-sync", "fc*=tree/owner")
    result = CliRunner().invoke(main, ["compare", "mlp", *where, *asks, "--budget", "40p", "--json"])
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    assert [row["name"] for row in value["strategies"]][:3] == ["data (repaired)", "model (repaired)", "expert (repaired)"]
    assert value["constraints"] == ["fc1: pinned to c/2 @ 1,3", "fc*: weights by tree/owner"]
    result = CliRunner().invoke(
        main, ["explain", "data", "fc1", "--model", "mlp", *where, "--pin-sync", "fc*=tree/owner", "--limit", "fc1: n<=1 @ 0-1",
               "--what-if", "links=2x", "--search", "--budget", "40p", "--json"])
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    operator = value["operator"]
    assert value["strategy"] == "data (repaired)" and operator["syncs"] == {"fc1": "tree/owner"}
    assert set(operator["devices"]) <= {0, 1} and operator["alternatives"]
    for other in operator["alternatives"]:
        assert set(other["devices"]) <= {0, 1} and other["degrees"][0] == 1
    assert value["what_if"][0]["search"] is not None
    lines = CliRunner().invoke(main, ["compare", "mlp", *where, *asks, "--budget", "40p"]).stdout.splitlines()
    assert "data (repaired)" in lines[3] and "1.00x" in lines[3]  # still what the others are compared with
