"""Files that users write by hand, damaged at random: each is read whole, or one sentence says which file is wrong and where."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from fast_and_slow import fast_among

import taskflow
from taskflow.cli.main import main
from taskflow.machine import load_machine
from taskflow.machine.machine_file import MachineFile, unparse
from taskflow.machine.presets import LIKE_MACHINE, machine_content
from taskflow.mapper import load, save, search_of
from taskflow.mapper.strategy_file import StrategyFile
from taskflow.models import build
from taskflow.optimizer.space.constraints import Constraints, RuleEntry
from taskflow.optimizer.trust import RunFile
from taskflow.programs import load_program
from taskflow.programs import unparse as unparse_program
from taskflow.programs.program_file import ProgramFile
from taskflow.reading import Entry, parse_json, read_as, schema
from taskflow.writing import json_text

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = sorted((ROOT / "taskflow" / "programs").glob("*.json"))
MACHINES = sorted((ROOT / "taskflow" / "machines").glob("*.json"))
FAST = [ROOT / "taskflow" / "machines" / f"{name}.json" for name in ("a100", "h100", "p4d", "l40s", "mi300x", "a100-v100", "p100")]
"""Machines whose files have all keys between them, one with two kinds of devices, and the paper's."""
GRAPH = build("MLP", preset="small")
SCHEMAS: dict[str, tuple[type[Entry] | Any, str]] = {
    "machine": (MachineFile, "taskflow machine file"),
    "machine-like": (LIKE_MACHINE, "taskflow machine file that begins as another machine"),
    "program": (ProgramFile, "taskflow program file"),
    "strategy": (StrategyFile, "taskflow strategy file"),
    "run": (RunFile, "taskflow run file: a measured step"),
    "constraints": (dict[str, RuleEntry], "taskflow constraints file: pattern of operators' names -> what holds for them"),
}
OTHERS = [
    None, True, False, 0, -1, 1, 3, 2.5, "", "x", "1", [], [1], {}, {"x": 1}, 10**30, 1e300, 1e-320, -0.0, [[1, 2]], "\u00e9" * 99,
]


# ---- schemas ---------------------------------------------------------------------------------------------------------
def write_schemas(folder: Path = ROOT / "docs" / "schema") -> None:
    """``python tests/test_files.py`` writes them anew."""
    folder.mkdir(exist_ok=True)
    for name, (form, title) in SCHEMAS.items():
        (folder / f"{name}.json").write_text(schema(form, title))


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_schemas_in_the_documentation_are_those_of_the_types(name: str, tmp_path: Path) -> None:
    write_schemas(tmp_path)
    there = (ROOT / "docs" / "schema" / f"{name}.json").read_text()
    assert there == (tmp_path / f"{name}.json").read_text(), "python tests/test_files.py writes it anew"


def test_what_is_written_fits_the_schemas(tmp_path: Path) -> None:
    jsonschema, validators = pytest.importorskip("jsonschema"), {}
    for name in SCHEMAS:  # checked once: that takes longer than to check a file by it
        form = json.loads((ROOT / "docs" / "schema" / f"{name}.json").read_text())
        of = jsonschema.validators.validator_for(form)
        of.check_schema(form)
        validators[name] = of(form)
    for path in MACHINES:
        content = json.loads(path.read_text())
        validators["machine-like" if "like" in content else "machine"].validate(content)
    for path in PROGRAMS:
        validators["program"].validate(json.loads(path.read_text()))
    validators["strategy"].validate(written := plan(tmp_path))
    for path in sorted((ROOT / "tests" / "cli" / "runs").glob("*.json")):
        validators["run"].validate(json.loads(path.read_text()))
    with pytest.raises(jsonschema.ValidationError):
        validators["strategy"].validate({**written, "sync": {}})
    validators["constraints"].validate({"fc*": {"devices": "0-1", "max_degree": {"n": 2}}})


def test_the_guide_names_every_key() -> None:
    guide = (ROOT / "docs" / "guide" / "machines.md").read_text()
    names = ("machine", "machine-like", "program")
    schemas = [json.loads((ROOT / "docs" / "schema" / f"{name}.json").read_text()) for name in names]
    forms = {key: form for whole in schemas for key, form in whole["$defs"].items()}
    named = {word for row in re.findall(r"^\|.*\|$", guide, re.MULTILINE) for word in re.findall(r"\w+", row)}
    assert {key for form in forms.values() for key in form["properties"]} <= named


# ---- hostile files ---------------------------------------------------------------------------------------------------
def plan(folder: Path) -> dict[str, Any]:
    """A plan's file as `taskflow search` writes it."""
    found = taskflow.search(GRAPH, taskflow.host(2), budget="20p")
    made = {"model": "MLP", "machine": "this", "devices": 2, "batch": None, "size": "small", "rule": "sgd", "set": {}}
    save(found.strategy, GRAPH, "host-2", folder / "whole.json", made, found.as_json())
    content: dict[str, Any] = json.loads((folder / "whole.json").read_text())
    return content


def places(content: Any) -> list[tuple[Any, Any]]:
    """Every (table or list, key) in it."""
    inner = list(content.items()) if isinstance(content, dict) else list(enumerate(content)) if isinstance(content, list) else []
    return [(content, key) for key, _ in inner] + [place for _, value in inner for place in places(value)]


def damaged(content: Any, random: Random) -> bytes:
    """Its text with something changed."""
    content = copy.deepcopy(content)
    where, key = random.choice(places(content))
    kind = random.choice(["drop", "rename", "change", "change", "change", "twice", "text", "deep", "cut", "byte", "number"])
    if kind == "drop":
        del where[key]
    elif kind == "rename" and isinstance(where, dict):
        where[random.choice([key[:-1], key[::-1], key + "s", key.upper(), ""])] = where.pop(key)
    elif kind == "change":
        where[key] = random.choice(OTHERS)
    elif kind == "text":
        where[key] = str(where[key])
    elif kind == "deep":
        where[key] = json.loads("[" * 500 + "]" * 500)
    mark = "a mark that nobody else writes"
    if kind in ("twice", "number"):
        where[key] = mark if kind == "number" else where[key]
    text = json.dumps(content)
    if kind == "twice" and isinstance(where, dict):
        entry = f"{json.dumps(key)}: {json.dumps(where[key])}"
        text = text.replace(entry, f"{entry}, {json.dumps(key)}: {json.dumps(random.choice(OTHERS))}", 1)
    if kind == "number":
        numbers = ["NaN", "-Infinity", "1e999", "9" * 5000, "-" + "9" * 400 + ".0", '"\\ud800"']
        text = text.replace(json.dumps(mark), random.choice(numbers))
    data = text.encode()
    if kind == "cut":
        data = data[: random.randrange(len(data))]
    if kind == "byte":
        at = random.randrange(len(data))
        data = data[:at] + bytes([random.randrange(256)]) + data[at + 1 :]
    return data


def accounted(data: bytes, read: Callable[[Path], Any], write: Callable[[Any], Any], path: Path) -> str:
    """What is said of a file; empty if it was read. Then nothing of it was dropped: what is written again says the same."""
    path.write_bytes(data)
    try:
        value = read(path)
    except ValueError as error:
        said = str(error)
        assert str(path) in said and "\n" not in said and len(said) < 2000, said
        return said
    assert as_said(machine_content(path)) == as_said(write(value))
    return ""


def as_said(content: Any) -> Any:
    """Without what a file need not say, and with equal numbers of one type."""
    if isinstance(content, dict):
        left = {"count": 1, "multiprocessors": 1, "cache_bytes": 0, "switches": [], "links": [], "duplex": "full", "source": "",
                "efficiency": {}, "products": "float32", "occupies_endpoints": False, "extensible": False, "at_most": [],
                "step_seconds": 0.0, "ramp_seconds": 0.0, "network_ramp_seconds": 0.0, "message_seconds": 0.0,
                "share": 1.0, "latency_seconds": 0.0, "levels": [], "rails": False,
                "few": 0.0, "beside": 0.0, "sustained": 0.0, "cast": 0.0, "term_seconds": 0.0, "by_rows": 0,
                "short_share": 0.0, "long_seconds": 0.0, "power": 1.0, "matrix_products": {}, "attention": {},
                "times": 1.0, "kernels": 1.0, "kept": 0.0, "about": "", "passes": {}, "gpus": {}}  # fmt: skip
        alike = {k for k, v in content.items() if k in left and v == left[k] and isinstance(v, bool) == isinstance(left[k], bool)}
        return {k: as_said(v) for k, v in content.items() if k not in alike}
    if isinstance(content, list):
        return [as_said(x) for x in content]
    if isinstance(content, bool):
        return str(content)  # else true would equal 1
    return float(content) if isinstance(content, (int, float)) else content


@pytest.mark.parametrize("path", fast_among(MACHINES, FAST), ids=lambda path: path.stem)
def test_damaged_machine_files(path: Path, tmp_path: Path) -> None:
    content, random = json.loads(path.read_text()), Random(path.stem)
    said = [accounted(damaged(content, random), load_machine, unparse, tmp_path / "m.json") for _ in range(150)]
    assert sum(map(bool, said)) > 50 and "" in said


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_damaged_program_files(path: Path, tmp_path: Path) -> None:
    content, random = json.loads(path.read_text()), Random(path.stem)
    file, again, refused = tmp_path / "p.json", tmp_path / "again.json", 0
    for _ in range(100):
        file.write_bytes(damaged(content, random))
        try:
            program = load_program(file)
        except ValueError as error:
            refused += 1
            assert str(file) in str(error) and "\n" not in str(error)
            continue
        again.write_text(json_text(unparse_program(program)))
        assert load_program(again) == program
    assert 20 < refused < 100


def test_damaged_plans(tmp_path: Path) -> None:
    content, random, file = plan(tmp_path), Random(1), tmp_path / "p.json"

    def again(strategy: taskflow.Strategy) -> dict[str, Any]:
        save(strategy, GRAPH, "host-2", tmp_path / "again.json")
        return {key: json.loads((tmp_path / "again.json").read_text())[key] for key in ("operators", "syncs", "sums", "name")}

    def read(path: Path) -> taskflow.Strategy:
        search_of(path)
        return load(path, GRAPH, 2)

    accepted = 0
    for _ in range(600):
        file.write_bytes(data := damaged(content, random))
        try:
            strategy = read(file)
        except ValueError as error:
            assert str(file) in str(error) and "\n" not in str(error)
            continue
        accepted += 1
        found, changed = again(strategy), json.loads(data)
        assert found["sums"] == changed.get("sums", "owner") and found["name"] == changed.get("name", "file")
        for name, entry in changed["operators"].items():
            there = {k: v for k, v in found["operators"][name].items() if k != "dims"}
            assert as_said({k: v for k, v in entry.items() if k != "dims" and v != []}) == as_said(there)
        assert as_said(found["syncs"]) == as_said({k: {"chunks": 0, **v} for k, v in changed.get("syncs", {}).items()})
    assert 20 < accepted < 400


def test_damaged_constraints(tmp_path: Path) -> None:
    random, file = Random(2), tmp_path / "c.json"
    content = {"fc*": {"devices": [0, 1], "max_degree": {"n": 2}, "sync": "ring/every"}, "fc1": {"forbid": ["n"], "max_pieces": 4}}
    for _ in range(300):
        file.write_bytes(damaged(content, random))
        try:
            Constraints.load(file)
        except ValueError as error:
            assert str(file) in str(error) and "\n" not in str(error)


def test_the_command_says_one_line_with_exit_code_2(tmp_path: Path) -> None:
    content, random, file = plan(tmp_path), Random(3), tmp_path / "p.json"
    for _ in range(25):
        file.write_bytes(damaged(content, random))
        done = CliRunner().invoke(main, ["strategy", "show", str(file), "--json"])
        assert done.exit_code in (0, 2), done.exception
        if done.exit_code:
            assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
        else:
            parse_json(done.stdout, "stdout")


@pytest.mark.parametrize(("text", "said"), [
    ('{"a": [{"b": 1, "c": 2, "b": 3}]}', "f: a[0].b: the key is there twice"),
    ('{"a": 1, "a": 1}', "f: a: the key is there twice"),
    ('{"a": {"b c": [1, NaN]}}', "f: a['b c'][1]: must be a finite number, got nan"),
    ('{"a": 1e999}', "f: a: must be a finite number, got inf"),
    ('{"a": ' + "9" * 5000 + "}", "f: a: must be a finite number, got inf"),
    ('{"a": "\\ud800"}', "f: a: must be a text, got half of a surrogate pair"),
    ("", "f: not JSON"), ("[" * 100_000, "f: not JSON that can be read"), ("\ufeff{}", "f: not JSON"),
])  # fmt: skip
def test_what_is_no_json(text: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_json(text.encode(), "f")
    assert str(caught.value).startswith(said)


def test_a_pair_of_surrogates_is_a_letter() -> None:
    assert parse_json(b'["\\ud83d\\ude00"]', "f") == ["\U0001f600"]


def test_of_many_entries_the_wrong_one_is_named() -> None:
    rules = {f"op {i}": {"max_pieces": 1 + (i != 7777) * i} for i in range(10_000)}
    rules["op 7777"]["max_pieces"] = 0
    with pytest.raises(ValueError, match=r"^f: \['op 7777'\].max_pieces: must be an integer from 1 to 2\*\*62, got 0$"):
        read_as(dict[str, RuleEntry], rules, "f")


# ---- numbers at their limits -----------------------------------------------------------------------------------------
EXTREMES = [
    {"bytes_per_second": 1e-100}, {"bytes_per_second": 1e100}, {"latency_seconds": 1e100}, {"memory_bytes_per_second": 1e-100},
    {"memory_bytes_per_second": 1e100, "launch_seconds": 0, "flops_per_second": {"float32": 1e100}},
    {"flops_per_second": {"float32": 1e-100}, "launch_seconds": 1e100}, {"memory_bytes": 2**62, "cache_bytes": 2**62},
    {"efficiency": {"contraction": 1e-100, "memory": 1e-100}, "memory_bytes_per_second": 1e-100,
     "flops_per_second": {"float32": 1e-100}},
]


@pytest.mark.parametrize("extreme", EXTREMES, ids=str)
def test_no_command_prints_infinity(extreme: dict[str, Any], tmp_path: Path) -> None:
    content = json.loads((ROOT / "taskflow" / "machines" / "p100.json").read_text())
    for entry in [*content["devices"], *(link for node in content["nodes"] for link in node["links"])]:
        links = ("bytes_per_second", "latency_seconds")
        entry.update({key: value for key, value in extreme.items() if ("kind" in entry) == (key not in links)})
    (tmp_path / "m.json").write_text(json.dumps(content))
    machine = ["--size", "small", "-m", str(tmp_path / "m.json"), "-n", "2", "--json"]
    budget = ("mlp", "--budget", "5p")
    for words in (("simulate", "mlp"), ("search", *budget, "--out", str(tmp_path / "p.json")), ("compare", *budget)):
        done = CliRunner().invoke(main, [*words, *machine])
        assert done.exit_code == 0, (done.stderr, done.exception)
        parse_json(done.stdout, "stdout")
    done = CliRunner().invoke(main, ["explain", str(tmp_path / "p.json"), "--json"])
    assert done.exit_code == 0, (done.stderr, done.exception)
    parse_json(done.stdout, "stdout")


def test_json_has_no_infinity() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text({"a": float("inf")})


def test_only_one_place_writes_json_for_users() -> None:
    """Others make digests of it, files that can be made again, or messages between ranks."""
    may = {
        "writing.py", "reading.py", "report/page.py", "training/data/text.py", "training/data/corpus.py",
        "training/translation/text.py", "optimizer/cost/measured/identity.py", "optimizer/cost/measured/store.py",
        "runtime/job/chain.py", "probe/script/main.py", "probe/script_jax/main.py", "trial/script/main.py",
        "trial/script/ranks.py", "trial/script/visit.py",
    }
    package = ROOT / "taskflow"
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if "json.dump" in path.read_text()}
    assert found <= may, found - may


if __name__ == "__main__":
    write_schemas()
