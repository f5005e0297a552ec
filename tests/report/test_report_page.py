"""The page: well formed, self-contained, small, and safe whatever names it is given."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from report_cases import EVIL, evil_report, report_of

from taskflow.cli.main import main
from taskflow.mapper import MessageSync, SyncAlgorithm, UpdatePlacement
from taskflow.report import page, write_page
from taskflow.report.page import SCRIPTS, unpack
from taskflow.report.units import nbytes, percent, seconds

VOID = {"meta", "input", "br", "img", "link", "hr"}
STATIC = Path(__file__).resolve().parents[2] / "taskflow" / "report" / "static"


class Reader(HTMLParser):
    """Checks nesting, and gathers elements, attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.wrong: list[str] = []
        self.text: dict[str, list[str]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        self.text.setdefault(self.open[-1] if self.open else "", []).append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert not reader.wrong and not reader.open, (reader.wrong[:3], reader.open)
    return reader


def test_well_formed_and_self_contained() -> None:
    _, report = report_of("RNNTC", "expert", 4)
    text = page(report)
    reader = read(text)
    ids = [a["id"] for _, a in reader.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for tag, attributes in reader.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        assert "src" not in attributes and not any(name.startswith("on") for name in attributes), (tag, attributes)
        if "href" in attributes:
            target = str(attributes["href"])
            assert target.startswith("#") and target[1:] in ids
        assert "for" not in attributes or attributes["for"] in ids
    assert not re.search(r"(https?:)?//[a-z]", re.sub(r"(?m)^\s*//.*$|[;{}]\s*//.*$", "", text.split('<script id="data"')[0]))
    scripts = "".join((STATIC / name).read_text() for name in SCRIPTS)
    assert not re.search(r"https?://|fetch\(|XMLHttpRequest|WebSocket|import\(|innerHTML|eval\(", scripts)
    (policy,) = [a["content"] for t, a in reader.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert str(policy).startswith("default-src 'none'") and "http" not in str(policy)
    for wanted in re.findall(r'\bat\("([\w-]+)"\)', scripts):
        assert wanted in ids, f"the scripts use #{wanted}"
    assert {path.name for path in STATIC.glob("*.js")} == set(SCRIPTS)


def test_every_figure_is_in_the_tables_too() -> None:
    _, report = report_of("RNNTC", "expert", 4)
    reader = read(page(report))
    cells = reader.text["td"] + reader.text["th"] + reader.text["dd"] + reader.text["small"]
    value = report.value
    for row in value["baselines"]:
        assert row["name"] in cells and seconds(row["seconds"]) in cells
    for operator in value["operators"]:
        assert operator["name"] in cells and operator["configuration"] in cells
    for link in value["machine"]["links"]:
        assert link["name"] in cells
    assert nbytes(value["plan"]["peak_memory_bytes"]) in cells and nbytes(value["plan"]["transfer_bytes"]) in cells
    data = next(a for t, a in reader.elements if a.get("id") == "data")
    assert data["type"] == "text/plain"
    packed, _ = unpack(page(report).split('type="text/plain">')[1].split("</script>")[0])
    assert packed == report.value


def test_names_cannot_break_out() -> None:
    report = evil_report()
    text = page(report)
    reader = read(text)
    assert EVIL not in text and "<img" not in text
    assert not [tag for tag, _ in reader.elements if tag == "img"]
    assert f"b{EVIL}" in reader.text["th"]  # and are shown as they are
    assert text.count("<script") == 2 and text.count("</script>") == 2
    packed, _ = unpack(text.split('type="text/plain">')[1].split("</script>")[0])
    assert packed["operators"][2]["name"] == f"b{EVIL}" and packed["model"]["name"] == EVIL


def test_the_largest_small_page_is_small() -> None:
    _, report = report_of("NMT", "data", 16, preset="paper", sync=MessageSync(SyncAlgorithm.RING, UpdatePlacement.SHARDED))
    assert report.value["plan"]["tasks"] > 4000
    assert len(page(report)) < 600_000


def test_writing_is_whole_or_not_at_all(tmp_path: Path) -> None:
    _, report = report_of("LeNet", "data", 2)
    target = tmp_path / "r.html"
    size = write_page(report, target)
    assert target.stat().st_size == size and list(tmp_path.iterdir()) == [target]
    with pytest.raises(OSError):
        write_page(report, tmp_path / "no" / "r.html")
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("number,words", [
    (0, "0"), (1.5, "1.50 s"), (0.0123, "12.3 ms"), (9.9999e-4, "1.00 ms"), (4.56e-6, "4.56 µs"), (7e-9, "7.00 ns"),
    (1234.5, "1,234 s"),
])
def test_seconds(number: float, words: str) -> None:
    assert seconds(number) == words


def test_bytes_and_shares() -> None:
    assert [nbytes(n) for n in (0, 12, 1500, 2.5e9, 3e12)] == ["0", "12 B", "1.50 kB", "2.50 GB", "3.00 TB"]
    assert [percent(x) for x in (0, 0.05, 0.5, 1)] == ["0 %", "5.0 %", "50 %", "100 %"]


# ---- the command -----------------------------------------------------------------------------------------------------
def test_a_searched_plan_keeps_its_history(tmp_path: Path) -> None:
    plan, out = str(tmp_path / "plan.json"), str(tmp_path / "plan.html")
    problem = ["lenet", "-m", "k80", "-n", "3", "--batch", "48", "--rule", "adam"]
    done = CliRunner().invoke(main, ["search", *problem, "--budget", "150p", "--out", plan, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert json.loads(Path(plan).read_text())["search"]["history"] == found["history"]
    done = CliRunner().invoke(main, ["report", plan, "--out", out, "--json"])  # the file knows all the rest
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["devices"], told["bytes"]) == (3, Path(out).stat().st_size)
    assert told["plan"]["seconds"] == found["iteration_seconds"]
    text = Path(out).read_text()
    value, _ = unpack(text.split('type="text/plain">')[1].split("</script>")[0])
    each = f"{16 / found['iteration_seconds']:,.0f}"
    assert f"<dt>samples a second</dt><dd>{found['samples_per_second']:,.0f}</dd><small>{each} a device</small>" in text
    assert value["search"]["history"] == found["history"] and value["plan"]["units"]["samples_per_step"] == 48
    assert value["rule"].startswith("Adam(")


def test_the_command_searches_and_takes_mappers(tmp_path: Path) -> None:
    out = str(tmp_path / "r.html")
    problem = ["--model", "lenet", "-m", "k80", "-n", "2", "--out", out]
    done = CliRunner().invoke(main, ["report", "search", *problem, "--budget", "60p"])
    assert done.exit_code == 0 and "open it in a browser" in done.output, done.output
    value, _ = unpack(Path(out).read_text().split('type="text/plain">')[1].split("</script>")[0])
    assert value["search"]["proposals"] <= 60
    done = CliRunner().invoke(main, ["report", "expert", *problem])
    assert done.exit_code == 0, done.output
    value, _ = unpack(Path(out).read_text().split('type="text/plain">')[1].split("</script>")[0])
    assert value["search"] is None and value["plan"]["name"] == "expert"


@pytest.mark.parametrize("words,message", [
    (["data"], "--model"),
    (["nothing.json"], "does not exist"),
    (["nonsense", "--model", "lenet"], "nonsense"),
    (["data", "--model", "lenet", "--out", "no/such/folder/r.html"], "cannot write"),
])
def test_mistakes_are_one_line(words: list[str], message: str) -> None:
    done = CliRunner().invoke(main, ["report", *words])
    assert done.exit_code == 2 and message in done.stderr and "Traceback" not in done.output
    assert len(done.stderr.strip().splitlines()) == 1
